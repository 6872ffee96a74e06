/* Zigzag varints of the record format: their size, and how to write and read them. */
#ifndef TXNPRODUCER_VARINT_H
#define TXNPRODUCER_VARINT_H

#include <stddef.h>
#include <stdint.h>

static inline uint64_t txn_zigzag(int64_t value)
{
    return ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
}

static inline size_t txn_varint_size(int64_t value)
{
    uint64_t zigzag = txn_zigzag(value);
    if (zigzag < 0x80)
        return 1;
#if defined(__GNUC__)
    return (size_t)(64 - __builtin_clzll(zigzag) + 6) / 7;
#else
    {
        size_t size = 1;
        while (zigzag >>= 7)
            size++;
        return size;
    }
#endif
}

static inline char *txn_put_varint(char *at, int64_t value)
{
    uint64_t zigzag = txn_zigzag(value);
    while (zigzag > 0x7F) {
        *at++ = (char)(zigzag | 0x80);
        zigzag >>= 7;
    }
    *at++ = (char)zigzag;
    return at;
}

/* Reads one that txn_put_varint has written, and moves on behind it. */
static inline int64_t txn_get_varint(const char **at)
{
    uint64_t zigzag = 0;
    unsigned int shift = 0;
    unsigned char byte;
    do {
        byte = (unsigned char)*(*at)++;
        zigzag |= (uint64_t)(byte & 0x7F) << shift;
        shift += 7;
    } while (byte & 0x80);
    return (int64_t)(zigzag >> 1) ^ -(int64_t)(zigzag & 1);
}

#endif
