/* block_name.c - see block_name.h. XXH3 is fast and, with a secret, keyed. */
#include "base/block_name.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

void
block_key_init(struct block_key *k, const uint64_t seed[4])
{
    uint8_t bytes[4 * sizeof seed[0]];

    memcpy(bytes, seed, sizeof bytes);
    XXH3_generateSecret(k->secret, sizeof k->secret, bytes, sizeof bytes);
}

uint64_t
block_salt(const struct block_key *k, const void *bytes, size_t n)
{
    return n ? XXH3_64bits_withSecret(bytes, n, k->secret, sizeof k->secret) : 0;
}

void
block_root(const struct block_key *k, uint64_t salt, uint64_t lora, const token_id *source,
           uint32_t n_source, uint64_t which, uint64_t ret[2])
{
    uint64_t in[4] = { salt, lora, n_source, which };
    XXH3_state_t state;
    XXH128_hash_t h;

    XXH3_128bits_reset_withSecret(&state, k->secret, sizeof k->secret);
    XXH3_128bits_update(&state, in, sizeof in);
    if (source) XXH3_128bits_update(&state, source, n_source * sizeof *source);
    h = XXH3_128bits_digest(&state);
    ret[0] = h.low64;
    ret[1] = h.high64;
}

void
block_name(const uint64_t parent[2], const void *content, size_t n, uint64_t ret[2])
{
    XXH128_hash_t h = XXH3_128bits_withSeed(content, n, parent[0]);

    ret[0] = h.low64;
    ret[1] = h.high64 ^ (parent[1] << 1 | parent[1] >> 63);
}
