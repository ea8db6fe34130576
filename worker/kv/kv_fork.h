/* kv_fork.h - several slots with one beginning: the beams of a search, the samples of a request.
 *
 *     before           fork of slot 0 at position 6         beam 1 goes on from beam 0's 8 positions
 *     slot 0  A  B     slot 0  A  B      (4, 2 positions)   slot 0  A  B
 *                      slot 1  A  C      C: a copy of B     slot 1  A  B       C is free
 *
 * Full blocks and the source are shared; the block that is written is each slot's own. Every slot reserves
 * before the first of them starts: kv_reserve() with kv_fork_need(), then kv_fork() once the prompt is
 * computed. Such slots are dropped with kv_drop(): what a search tried is of no use to others.
 */
#ifndef KV_FORK_H
#define KV_FORK_H

#include "worker/kv/kv_seq.h"

/* What a slot needs beside what it will share when it is forked at n_prompt positions. */
struct kv_need kv_fork_need(const struct kv *kv, uint32_t len, uint32_t n_prompt, uint32_t chunk);

/* The first n positions of `from` are `to`'s too; `to` holds nothing yet. The step is the next of both, and
 * what wrote them was before it in this lane or is waited for. What no query from done <= n on sees leaves `from`, or
 * from n on, where `to` has no room for more; edits of its rows, a copy of the last block. */
void kv_fork(struct kv *kv, unsigned lane, uint64_t step, seq_slot from, seq_slot to, uint32_t n,
             uint32_t done, struct kv_out *out);

/* Seat i goes on from what slot[parent[i]] has, n positions each; at most 16 slots. Edits of entries that
 * change; a copy of the last block for each but one who goes on from the same slot, that itself if it does. It lies
 * in the block of a slot that nobody goes on from, its own if it can be, so none is taken. Where each goes on
 * from itself or from one who does, doing it again does no harm, whatever part of it was done. */
void kv_reorder(struct kv *kv, unsigned lane, uint64_t step, const seq_slot *slot,
                const uint8_t *parent, uint32_t n_slots, uint32_t n, struct kv_out *out);

#endif
