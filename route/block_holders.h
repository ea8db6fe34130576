/* block_holders.h - which worker has which prompt block in its cache; fed by KV events, read for
 * each request.
 *
 * The name of a block (worker/kv/kv_event.h) depends on its tokens and all tokens before, so a
 * worker that has a block usually has the blocks before it. The table is a hint: a missing entry
 * costs a cache hit, not correctness. Fixed capacity, no allocation after block_holders_new(); a
 * full table ignores additions. */
#pragma once

#include "base/base.h"

struct block_holders;

/* max_blocks: capacity for all workers together. NULL: out of memory. */
struct block_holders *block_holders_new(uint32_t max_blocks) MUST_USE;
struct block_holders *block_holders_free(struct block_holders *h);
CLEAN_FUNC(struct block_holders, block_holders_free)

void block_holders_add(struct block_holders *h, uint32_t worker, const uint64_t name[2]);
void block_holders_remove(struct block_holders *h, uint32_t worker,
                          const uint64_t name[2]); /* no effect if absent */
/* removes all blocks of a restarted worker */
void block_holders_forget(struct block_holders *h, uint32_t worker);

/* For a prompt of n blocks in order: worker[i] and found[i], the number of leading blocks that it
 * has, for the workers with the most. Returns their number, at most max. A block that more than max
 * workers have does not distinguish them: it and the blocks before it are not considered. */
uint32_t block_holders_find(const struct block_holders *h, const uint64_t (*name)[2], uint32_t n,
                            uint32_t *worker, uint32_t *found, uint32_t max);
