/* block_holders.h - a table of the blocks that the workers have in their prefix caches; KV events
 * change the table, the router reads it for each request.
 *
 * The name of a block, 2 x 64 bits (base/block_name.h), depends on the tokens of the block and
 * on all tokens before it, so a worker that has a block usually has the blocks before it. The table
 * is a hint: a missing entry costs a cache hit, not correctness. The capacity is fixed; a full
 * table ignores additions.
 *
 * A worker may have a block in several KV groups, each on the device or in the host tier; the
 * router counts a block that at least one group has. */
#pragma once
#include "base/base.h"

struct block_holders;
struct held_block {
    uint64_t name[2], parent[2]; /* parent: name of the block before it, or of the root */
    uint16_t n_tokens;
    uint8_t group; /* 0 .. 7 */
    bool on_host;  /* the host tier has it, the device has not */
    uint8_t priority;
};

/* Creates a table of max_blocks entries, for all workers together. NULL: out of memory. */
struct block_holders *block_holders_new(uint32_t max_blocks) MUST_USE;
struct block_holders *block_holders_free(struct block_holders *h);
CLEAN_FUNC(struct block_holders, block_holders_free)

/* Adds the block, or replaces what is known of it. */
void block_holders_add(struct block_holders *h, uint32_t worker, const struct held_block *b);
/* Removes the block of one group; no effect if absent. */
void block_holders_remove(struct block_holders *h, uint32_t worker, const uint64_t name[2],
                          uint8_t group);
/* Removes all blocks of a worker whose cache is lost, or will be listed again. */
void block_holders_forget(struct block_holders *h, uint32_t worker);
/* Copies up to max blocks of a worker, in any order, from *at on, and advances *at. Returns how
 * many were copied; 0: the end. A block that is added or removed between two calls may be
 * left out. */
uint32_t block_holders_list(const struct block_holders *h, uint32_t worker, uint32_t *at,
                            struct held_block *ret, uint32_t max);

/* Finds the workers that have the longest prefix of a prompt, whose n blocks have the given names.
 * Returns how many were found, at most max, the longest prefix first: block found[i] - 1 is the
 * last one that worker[i] has. A block that more than max workers have, and the blocks before it,
 * are not considered, because they do not distinguish the workers. */
uint32_t block_holders_find(const struct block_holders *h, const uint64_t (*name)[2], uint32_t n,
                            uint32_t *worker, uint32_t *found, uint32_t max);
