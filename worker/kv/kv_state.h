/* kv_state.h - recurrent state: one block per layer at any length, and snapshots of it.
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
 * write others. At position 0 the live state is not initialized; the kernels start with zeros.
 */
#pragma once

#include "worker/kv/kv_seq.h"

/* Returns the next position after pos at which a step of the sequence must end: a multiple of the
 * interval, or the last block boundary at which a later request with the same prompt could start.
 * UINT32_MAX: none. */
uint32_t kv_border(const struct kv *kv, uint32_t pos, uint32_t n_prompt);
/* Adds a snapshot of every layer at pos, the end of the planned step; call after kv_grow(). Adds
 * edits with the position, and one copy per layer that runs after the step's work. */
void kv_snapshot(struct kv *kv, unsigned lane, seq_slot slot, uint32_t pos, struct kv_out *out);
