/* kv_seq.h - the scheduler's calls of the KV manager: reserve, grow, trim, drop; fork; recurrent
 * state.
 *
 * A sequence slot has one row in the block table of every group. Its life:
 *
 *     kv_reserve   reserves all blocks that the sequence will hold at once, in every group
 *     kv_raise     reserves more, for a sequence that reserves step by step
 *     kv_cross     allocates the blocks of the encoder input, with the first decoder chunk
 *     kv_trim      frees window blocks that no later query sees; every step, before kv_grow()
 *     kv_grow      allocates the blocks of the next step; never fails after kv_reserve()
 *     kv_fence     records the slot's last step; before the calls above if that step may still run
 *     kv_drop      frees everything behind that fence; EDIT_CLEAR is sent with the next step
 *
 * A slot that kv_adopt() filled starts with kv_resume() instead of kv_reserve(). kv_start() then
 * sends its table rows with its first step, as after a prefix hit (kv_reuse.h). kv_reserve() is in
 * kv_reuse.h, kv_fence() in kv_table.h. Changes are appended to a struct kv_out (kv_table.h).
 */
#pragma once

#include "worker/kv/kv_need.h"
#include "worker/kv/kv_table.h"

/* Raises the reservation to n blocks in total. -EAGAIN: not enough blocks now; nothing changed. */
int kv_raise(struct kv *kv, seq_slot slot, const struct kv_need *n) MUST_USE;
/* Lowers the reservation to n, or to the blocks held now if they are more. */
void kv_lower(struct kv *kv, seq_slot slot, const struct kv_need *n);

/* Resumes an adopted slot at position pos and raises its reservation to n. -ENODATA: a block that
 * pos sees is missing (state: the snapshot at pos), or another slot shares a block to be written.
 * -EAGAIN: not enough blocks now. On failure nothing has changed. */
int kv_resume(struct kv *kv, seq_slot slot, uint32_t pos, const struct kv_need *n) MUST_USE;
/* Returns true if the reservation covers positions up to end_pos without another kv_trim(). */
bool kv_has_capacity(const struct kv *kv, seq_slot slot, uint32_t end_pos);

/* lane: of the planned step. Edits are EDIT_SET; a dropped entry is set to SLICE_NONE. */
void kv_cross(struct kv *kv, unsigned lane, seq_slot slot, uint32_t n_source, struct kv_out *out);
void kv_trim(struct kv *kv, seq_slot slot, uint32_t first_pos, struct kv_out *out);
void kv_grow(struct kv *kv, unsigned lane, seq_slot slot, uint32_t end_pos, struct kv_out *out);
/* Returns the bounds within which the block tables do not change: kv_grow() has no effect up to
 * *end_pos, kv_trim() below *first_pos. */
void kv_quiet(const struct kv *kv, seq_slot slot, uint32_t *end_pos, uint32_t *first_pos);
/* A slot whose blocks change soon: kv_trim() frees some (go), or kv_grow() allocates some. */
struct kv_soon {
    seq_slot slot;
    bool go;
};
/* Prefetches the cache lines that kv_grow() or kv_trim() of these slots will read. Because with
 * 1000 slots they are not cached, and misses that are issued together overlap. */
void kv_prefetch(const struct kv *kv, const struct kv_soon *soon, uint32_t n);
void kv_drop(struct kv *kv, seq_slot slot); /* no effect without a reservation */

/* Adds the EDIT_CLEAR of the slots dropped since the last kv_ends_sent(), before the step's other
 * edits. Call kv_ends_sent() only when the step is launched. */
void kv_ends(const struct kv *kv, unsigned lane, struct kv_out *out);
void kv_ends_sent(struct kv *kv, unsigned lane, uint64_t step);

/* ---- kv_fork.c: sequences that share a prefix: the beams of a search, the samples of a request.
 *
 *     before           fork of slot 0 at position 6         beam 1 continues beam 0's 8 positions
 *     slot 0  A  B     slot 0  A  B      (4, 2 positions)   slot 0  A  B
 *                      slot 1  A  C      C: a copy of B     slot 1  A  B       C is free
 *
 * Full blocks and the encoder input's blocks are shared; each slot has its own last block. All
 * slots reserve before the first one starts: kv_reserve() with kv_fork_need(), then kv_fork() after
 * the prompt is computed. Drop such slots with kv_drop(), because no other request reuses the
 * tokens that a search tried. */

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

/* ---- kv_state.c: recurrent state: one block per layer at any length, and snapshots of it.
 *
 *     positions   0       16      32  36 37        interval 16, a prompt of 37
 *     state       zero ---------------------> live
 *     snapshots           A       B   C            a step ends at each snapshot position
 *
 * Every step changes the live state, so only its own slot uses it: no other request and no
 * replacement worker continues from it. A snapshot never changes. The step that ends at a snapshot
 * position copies the live state after its work. After that step the snapshot is in the tree like a
 * full block (kv_reuse.h), and a slot that is admitted with it copies it to a live state of its
 * own. Hits end at a snapshot, never within a block.
 *
 * A slot holds its last KV_SNAPSHOTS snapshots in a ring: a finished one while two steps in flight
 * write others. At position 0 the live state is not initialized; the kernels start with zeros. */

/* Returns the next position after pos at which a step of the sequence must end: a multiple of the
 * interval, or the last block boundary at which a later request with the same prompt could start.
 * UINT32_MAX: none. */
uint32_t kv_border(const struct kv *kv, uint32_t pos, uint32_t n_prompt);
/* Adds a snapshot of every layer at pos, the end of the planned step; call after kv_grow(). Adds
 * edits with the position, and one copy per layer that runs after the step's work. */
void kv_snapshot(struct kv *kv, unsigned lane, seq_slot slot, uint32_t pos, struct kv_out *out);
