/* kv_seq.h - the scheduler's side of the KV manager: reserve, grow, trim, drop.
 *
 * A slot is one row of every group's table. Its life:
 *
 *     kv_reserve   all blocks it will ever hold at once, in every group, or nothing
 *     kv_raise     where that is paid step by step: some more, or nothing
 *     kv_cross     its source's blocks, at its first decoder chunk
 *     kv_trim      window blocks that no later query sees; before kv_grow(), every step
 *     kv_grow      blocks for the rows of the next step; never fails after kv_reserve()
 *     kv_fence     its last step, before any of these if that may still run
 *     kv_drop      everything back, fenced by that step; EDIT_CLEAR with the next step of any lane
 *
 * A slot that kv_adopt() filled begins with kv_resume() instead of kv_reserve(), and kv_start() sends
 * what it holds with its first step, as of one that begins with a hit (kv_reuse.h). kv_reserve() is in
 * kv_reuse.h, kv_fence() in kv_fence.h. What changes goes to a struct kv_out (kv_table.h).
 */
#ifndef KV_SEQ_H
#define KV_SEQ_H

#include "worker/kv/kv_fence.h"
#include "worker/kv/kv_need.h"
#include "worker/kv/kv_table.h"

/* What was reserved was not all it needs: n, with what it has. -EAGAIN: not now; nothing changed. */
int kv_raise(struct kv *kv, seq_slot slot, const struct kv_need *n) MUST_USE;
/* It will never need more than n again (or than it holds now); the rest may be reserved_blocks to others. */
void kv_lower(struct kv *kv, seq_slot slot, const struct kv_need *n);

/* A slot that was adopted goes on at position pos: reserve for it what n says. -ENODATA: what pos sees is
 * not all there (state: a snapshot of just that position); -EAGAIN: no room now. Nothing changed then. */
int kv_resume(struct kv *kv, seq_slot slot, uint32_t pos, const struct kv_need *n) MUST_USE;
/* Whether positions up to end_pos can have their blocks without another kv_trim(). */
bool kv_room(const struct kv *kv, seq_slot slot, uint32_t end_pos);

/* lane: of the step being planned. Edits are EDIT_SET; a dropped entry is set to SLICE_NONE. */
void kv_cross(struct kv *kv, unsigned lane, seq_slot slot, uint32_t n_source, struct kv_out *out);
void kv_trim(struct kv *kv, seq_slot slot, uint32_t first_pos, struct kv_out *out);
void kv_grow(struct kv *kv, unsigned lane, seq_slot slot, uint32_t end_pos, struct kv_out *out);
/* Up to which end_pos kv_grow(), and below which first_pos kv_trim() has nothing to do. */
void kv_quiet(const struct kv *kv, seq_slot slot, uint32_t *end_pos, uint32_t *first_pos);
/* Whose blocks change soon: at the end, where some come, or at the beginning, where some go. */
struct kv_soon {
    seq_slot slot;
    bool go;
};
/* What kv_grow(), or kv_trim(), will look at, into the processor's caches: of a thousand slots nothing is there, and
 * all that are asked for together are waited for together. Nothing else happens. */
void kv_fetch(const struct kv *kv, const struct kv_soon *soon, uint32_t n);
void kv_drop(struct kv *kv, seq_slot slot); /* a slot without a reservation: nothing happens */

/* EDIT_CLEAR of slots dropped since the last kv_ends_sent(); to come before the step's other edits.
 * Sent only when the step is really launched. */
void kv_ends(const struct kv *kv, unsigned lane, struct kv_out *out);
void kv_ends_sent(struct kv *kv, unsigned lane, uint64_t step);

#endif
