/* murmur2 as Kafka's clients use it: 32 bits, little endian, one seed. */
#ifndef TXNPRODUCER_MURMUR2_H
#define TXNPRODUCER_MURMUR2_H

#include <stddef.h>
#include <stdint.h>

static inline uint32_t txn_murmur2(const unsigned char *data, size_t size)
{
    const uint32_t m = 0x5BD1E995u;
    uint32_t h = 0x9747B28Cu ^ (uint32_t)size;
    while (size >= 4) {
        uint32_t k = (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16
            | (uint32_t)data[3] << 24;
        k *= m;
        h = (h * m) ^ ((k ^ k >> 24) * m);
        data += 4;
        size -= 4;
    }
    if (size) {
        uint32_t rest = data[0];
        if (size > 1)
            rest |= (uint32_t)data[1] << 8;
        if (size > 2)
            rest |= (uint32_t)data[2] << 16;
        h = (h ^ rest) * m;
    }
    h = (h ^ h >> 13) * m;
    return h ^ h >> 15;
}

#endif
