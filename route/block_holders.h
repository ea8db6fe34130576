/* block_holders.h - which worker could find which block of a prompt: fed by their KV events, asked for each request.
 *
 * A block is known by its name (worker/kv/kv_event.h): of its tokens and of all before them, so that whoever
 * has it has, as a rule, those before it. A hint and no promise: what is forgotten here costs a prompt that
 * could have been found. Fixed capacity, no allocation after block_holders_new(); beyond it nothing is noted.
 */
#ifndef ROUTE_BLOCK_HOLDERS_H
#define ROUTE_BLOCK_HOLDERS_H

#include "base/base.h"

struct block_holders;

struct block_holders *block_holders_new(
    uint32_t max_blocks) MUST_USE; /* over all workers; NULL: no memory */
struct block_holders *block_holders_free(struct block_holders *h);
CLEAN_FUNC(struct block_holders, block_holders_free)

void block_holders_add(struct block_holders *h, uint32_t worker, const uint64_t name[2]);
void block_holders_remove(struct block_holders *h, uint32_t worker,
                          const uint64_t name[2]);                   /* not there: nothing */
void block_holders_forget(struct block_holders *h, uint32_t worker); /* it begins anew */

/* Of a prompt's n blocks, in order: found[i] is how many of them worker[i] has, for the few that have most; the
 * number of those, at most max. A block that more than max have tells nobody apart: it and those before it
 * are not looked at. */
uint32_t block_holders_find(const struct block_holders *h, const uint64_t (*name)[2], uint32_t n,
                            uint32_t *worker, uint32_t *found, uint32_t max);

#endif
