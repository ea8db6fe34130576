/* block_holders.h - a table of the workers that have a prompt block in their prefix cache; KV
 * events change the table, the router reads it for each request.
 *
 * The name of a block, 2 x 64 bits (worker/kv/kv_event.h), depends on the tokens of the block and
 * on all tokens before it, so a worker that has a block usually has the blocks before it. The table
 * is a hint: a missing entry costs a cache hit, not correctness. The capacity is fixed; a full
 * table ignores additions. */
#pragma once
#include "base/base.h"

struct block_holders;

/* Creates a table of max_blocks entries, for all workers together. NULL: out of memory. */
struct block_holders *block_holders_new(uint32_t max_blocks) MUST_USE;
struct block_holders *block_holders_free(struct block_holders *h);
CLEAN_FUNC(struct block_holders, block_holders_free)

void block_holders_add(struct block_holders *h, uint32_t worker, const uint64_t name[2]);
void block_holders_remove(struct block_holders *h, uint32_t worker,
                          const uint64_t name[2]); /* no effect if absent */
/* removes all blocks of a restarted worker */
void block_holders_forget(struct block_holders *h, uint32_t worker);

/* Finds the workers that have the longest prefix of a prompt, whose n blocks have the given names.
 * Returns how many were found, at most max, the longest prefix first: block found[i] - 1 is the
 * last one that worker[i] has. A block that more than max workers have, and the blocks before it,
 * are not considered, because they do not distinguish the workers. */
uint32_t block_holders_find(const struct block_holders *h, const uint64_t (*name)[2], uint32_t n,
                            uint32_t *worker, uint32_t *found, uint32_t max);
