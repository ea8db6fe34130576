/* kv_fork.h - sequences that share a prefix: the beams of a search, the samples of a request.
 *
 *     before           fork of slot 0 at position 6         beam 1 continues beam 0's 8 positions
 *     slot 0  A  B     slot 0  A  B      (4, 2 positions)   slot 0  A  B
 *                      slot 1  A  C      C: a copy of B     slot 1  A  B       C is free
 *
 * Full blocks and the encoder input's blocks are shared; each slot has its own last block. All
 * slots reserve before the first one starts: kv_reserve() with kv_fork_need(), then kv_fork() after
 * the prompt is computed. Drop such slots with kv_drop(), because no other request reuses the
 * tokens that a search tried.
 */
#pragma once

#include "worker/kv/kv_seq.h"

/* Returns the blocks that a slot needs besides the blocks it shares, if it is forked at n_prompt
 * positions. len and chunk are as for kv_need(). */
struct kv_need kv_fork_need(const struct kv *kv, uint32_t len, uint32_t n_prompt, uint32_t chunk);

/* Gives slot `to`, which holds nothing, the first n positions of slot `from`. `step` of `lane` is
 * the next step of both slots. Adds edits of both rows and a copy of the last block. Trims `from`
 * to what queries from position done <= n on see, or from n on if `to` has not reserved enough for
 * more. */
void kv_fork(struct kv *kv, unsigned lane, uint64_t step, seq_slot from, seq_slot to, uint32_t n,
             uint32_t done, struct kv_out *out);

/* Beam reorder: slot[i] continues from the n positions of slot[parent[i]]; at most 16 slots. Shares
 * full blocks and adds edits of the entries that change. Among the slots that continue one parent,
 * one keeps the parent's last block (the parent itself if possible) and the others get a copy of
 * it, in a block that no slot continues from; so no block is allocated. If parent[parent[i]] ==
 * parent[i] for every i, the step may be repeated after any part of it ran. */
void kv_reorder(struct kv *kv, unsigned lane, uint64_t step, const seq_slot *slot,
                const uint8_t *parent, uint32_t n_slots, uint32_t n, struct kv_out *out);
