/* The layout in which a record is hashed, as in record_hash.py. */
#ifndef TXNPRODUCER_RECORD_HASH_H
#define TXNPRODUCER_RECORD_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "_varint.h"

/* The type and the function of 128-bit hashes in libxxhash; both are its public ABI. */
typedef struct {
    uint64_t low;
    uint64_t high;
} txn_hash;
typedef txn_hash (*txn_hash_function)(const void *data, size_t size);

static inline char *txn_put_int32(char *at, int32_t value)
{
    uint32_t bits = (uint32_t)value;
    *at++ = (char)(bits >> 24);
    *at++ = (char)(bits >> 16);
    *at++ = (char)(bits >> 8);
    *at++ = (char)bits;
    return at;
}

/* A size of -1 is null. */
static inline char *txn_put_field(char *at, const char *data, int64_t size)
{
    at = txn_put_int32(at, (int32_t)size);
    if (size > 0) {
        memcpy(at, data, (size_t)size);
        at += size;
    }
    return at;
}

/* Headers as they lie in a record, each number in them as an int32: at most four times as long. */
static inline char *txn_put_hashed_headers(char *at, const char *encoded)
{
    int64_t fields = txn_get_varint(&encoded);
    at = txn_put_int32(at, (int32_t)fields);
    for (fields *= 2; fields > 0; fields--) {
        int64_t size = txn_get_varint(&encoded);
        at = txn_put_field(at, encoded, size);
        if (size > 0)
            encoded += size;
    }
    return at;
}

#endif
