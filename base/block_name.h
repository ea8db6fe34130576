/* block_name.h - names of KV blocks: 128-bit hashes of a block's tokens, of all tokens before it
 * and of the cache namespace, with a secret key.
 *
 *     root = block_root(key, salt, adapter, encoder input)
 *     name of block 0 = block_name(root, its tokens), of block 1 = block_name(name of block 0, ...)
 *
 * The workers name the blocks of their prefix caches (worker/kv), lagand the blocks of a prompt
 * (daemon/request/kv_watch.h). lagand gives all workers of a model the same key. A client that
 * does not know the key cannot construct tokens whose name collides with another's. */
#pragma once
#include "base/base.h"

enum { BLOCK_SECRET_BYTES = 192 };
struct block_key {
    uint8_t secret[BLOCK_SECRET_BYTES]; /* made of a seed by block_key_init() */
};

void block_key_init(struct block_key *k, const uint64_t seed[4]);
/* The salt that stands for n bytes (ipc/records.h); 0 if n is 0. */
uint64_t block_salt(const struct block_key *k, const void *bytes, size_t n);
/* The name of a root. which: one of the roots of equal namespace (0 decoder, 1 encoder input). */
void block_root(const struct block_key *k, uint64_t salt, uint64_t lora, const token_id *source,
                uint32_t n_source, uint64_t which, uint64_t ret[2]);
/* The name of a block: n bytes of content behind the block `parent`. */
void block_name(const uint64_t parent[2], const void *content, size_t n, uint64_t ret[2]);
