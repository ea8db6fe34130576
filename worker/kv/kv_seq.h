/* kv_seq.h - the scheduler's calls of the KV manager: reserve, grow, trim, drop; fork; recurrent
 * state.
 *
 * A sequence slot has one row in the block table of every group. Its life:
 *
 *     kv_reserve   reserves all blocks that the sequence will hold at once, in every group
 *     kv_raise     reserves more blocks, for a sequence that reserves step by step
 *     kv_cross     allocates the blocks of the encoder input, with the first decoder chunk
 *     kv_trim      frees window blocks that no later query sees; every step, before kv_grow()
 *     kv_grow      allocates the blocks of the next step; never fails within the reservation
 *     kv_fence     records the slot's last step if it may still run; call it before the calls above
 *     kv_drop      frees all blocks for use after the recorded step; the next step has EDIT_CLEAR
 *
 * A slot that kv_adopt() filled starts with kv_resume() instead of kv_reserve(). kv_start() then
 * sends its table rows with its first step, as after a prefix hit (kv_reuse.h). kv_reserve() is in
 * kv_reuse.h, kv_fence() in kv_table.h. Changes are appended to a struct kv_out (kv_table.h).
 */
#pragma once
#include "worker/kv/kv_need.h"
#include "worker/kv/kv_table.h"

/* Raises the reservation of each group to n blocks, counted with the blocks that it has reserved.
 * -EAGAIN: not enough blocks are free or cached now; kv is unchanged. */
int kv_raise(struct kv *kv, seq_slot slot, const struct kv_need *n) MUST_USE;
/* Lowers the reservation of each group to n blocks, or to the blocks held now if they are more. */
void kv_lower(struct kv *kv, seq_slot slot, const struct kv_need *n);
/* Resumes an adopted slot at position pos and raises its reservation to n. -ENODATA: a block that a
 * query at pos sees is missing (recurrent state: there is no snapshot at pos), or another slot
 * shares a block that will be written. -EAGAIN as kv_raise(). On failure kv is unchanged. */
int kv_resume(struct kv *kv, seq_slot slot, uint32_t pos, const struct kv_need *n) MUST_USE;
/* Returns true if the reservation covers positions up to end_pos without another kv_trim(). */
bool kv_has_capacity(const struct kv *kv, seq_slot slot, uint32_t end_pos);
/* kv_cross() allocates the blocks of n_source tokens of encoder input, kv_grow() those of positions
 * up to end_pos; kv_trim() frees the window blocks that no query at first_pos or later sees. lane:
 * the lane of the planned step. The edits are EDIT_SET; a freed entry is set to SLICE_NONE. */
void kv_cross(struct kv *kv, unsigned lane, seq_slot slot, uint32_t n_source, struct kv_out *out);
void kv_trim(struct kv *kv, seq_slot slot, uint32_t first_pos, struct kv_out *out);
void kv_grow(struct kv *kv, unsigned lane, seq_slot slot, uint32_t end_pos, struct kv_out *out);
/* Returns up to where the slot's block tables stay unchanged: kv_grow() has no effect for positions
 * up to *end_pos, kv_trim() for positions below *first_pos. */
void kv_quiet(const struct kv *kv, seq_slot slot, uint32_t *end_pos, uint32_t *first_pos);
/* A slot for which kv_trim() will free blocks soon (go true), or kv_grow() allocate some. */
struct kv_soon {
    seq_slot slot;
    bool go;
};
/* Prefetches the cache lines that kv_grow() or kv_trim() of these n slots will read. With 1000
 * slots they are not in the CPU cache, and the misses of one call overlap. */
void kv_prefetch(const struct kv *kv, const struct kv_soon *soon, uint32_t n);
/* Frees the blocks and the reservation of the slot; no effect without a reservation. */
void kv_drop(struct kv *kv, seq_slot slot);
/* Appends the EDIT_CLEAR of each slot dropped since the last kv_ends_sent(); call it before the
 * planned step's other edits. Call kv_ends_sent() only when the step is launched. */
void kv_ends(const struct kv *kv, unsigned lane, struct kv_out *out);
void kv_ends_sent(struct kv *kv, unsigned lane, uint64_t step);
/* Sets *ret to the i-th slot whose EDIT_CLEAR is not sent yet. Returns false if there are fewer. */
bool kv_end(const struct kv *kv, uint32_t i, seq_slot *ret);

/* ---- kv_fork.c: forks sequences that share a prefix: beams of a search, samples of a request.
 *
 *     before           fork of slot 0 at position 6         beam 1 continues beam 0's 8 positions
 *     slot 0  A  B     slot 0  A  B      (4, 2 positions)   slot 0  A  B
 *                      slot 1  A  C      C: a copy of B     slot 1  A  B       C is free
 *
 * Full blocks and the encoder input's blocks are shared; each slot has its own last block. All
 * slots reserve before the first one starts: kv_reserve() with kv_fork_need(), then kv_fork() after
 * the prompt is computed. kv_store() and kv_release() of a forked slot cache its own blocks beside
 * those that it shares. */

/* Returns the need (kv_need.h) of a slot that is forked at n_prompt positions, without the blocks
 * that it shares. len and chunk are as for kv_need(). beam: the slot takes no snapshots. */
struct kv_need kv_fork_need(const struct kv *kv, uint32_t len, uint32_t n_prompt, uint32_t chunk,
                            bool beam);
/* Gives slot `to`, which holds no block, the first n positions of slot `from`. `step` of `lane` is
 * the next step of both slots. Adds edits of both rows and a copy of the last block. First trims
 * `from`: keeps the blocks that queries at `done` (the first position that may be computed again)
 * or later see; if `to` has reserved too few blocks for these, those of queries at n or later. */
void kv_fork(struct kv *kv, unsigned lane, uint64_t step, seq_slot from, seq_slot to, uint32_t n,
             uint32_t done, struct kv_out *out);
/* Reorders the beams of a search: slot[i] continues the n positions of slot[parent[i]]; at most 16
 * slots. Shares full blocks and adds edits of the entries that change. Among the slots that
 * continue one parent, one keeps the parent's last block (the parent itself if possible). The
 * others get a copy of it in the last block of a beam that no slot continues; so no block is
 * allocated. If parent[parent[i]] == parent[i] for all i, the call may be repeated after a crash:
 * each parent keeps its own blocks, so a second reorder has the same result. */
void kv_reorder(struct kv *kv, unsigned lane, uint64_t step, const seq_slot *slot,
                const uint8_t *parent, uint32_t n_slots, uint32_t n, struct kv_out *out);

/* ---- kv_state.c: recurrent state: one block per layer for any number of positions (the live
 * state), and snapshots of it.
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
 * A slot holds its last KV_SNAPSHOTS snapshots in a ring: one is complete while 2 steps in flight
 * write the others. At position 0 the live state is not initialized; the kernels start with 0. */

/* Returns the next position after pos at which a step of the sequence must end, because a snapshot
 * is taken there: a multiple of the snapshot interval, or the last block boundary from which a
 * later request with the same prompt could continue. UINT32_MAX: no snapshots are taken. */
uint32_t kv_border(const struct kv *kv, uint32_t pos, uint32_t n_prompt);
/* Plans a snapshot of every layer at pos, where the planned step ends; call after kv_grow(). Adds
 * edits with the position, and one copy per layer that runs after the work of the step. */
void kv_snapshot(struct kv *kv, unsigned lane, seq_slot slot, uint32_t pos, struct kv_out *out);
