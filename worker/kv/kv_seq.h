/* kv_seq.h - the scheduler's calls of the KV manager: reserve, grow, trim, drop.
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
