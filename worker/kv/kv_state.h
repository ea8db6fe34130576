/* kv_state.h - recurrent state: one block a layer, whatever the length; snapshots of it at borders.
 *
 *     positions   0       16      32  36 37        interval 16, a prompt of 37
 *     state       zero ---------------------> live
 *     snapshots           A       B   C            a step ends at each border
 *
 * The live state changes with every step, so it is its slot's own and nobody goes on from it: not another
 * request, not a successor. A snapshot never changes. It is copied from the live state by the step that ends at its
 * border, behind the step's work; once that is done it is found as full blocks are (kv_reuse.h), and a slot that
 * begins with it copies it into a live state of its own. Hits end at a snapshot, and never in a block.
 *
 * A slot holds its last KV_SNAPSHOTS, in a ring: one that is done, while two steps that make another are out. A slot
 * that begins at position 0 has a live state that nobody wrote: position 0 begins with zeros.
 */
#ifndef KV_STATE_H
#define KV_STATE_H

#include "worker/kv/kv_seq.h"

/* The next position after pos at which a step of the sequence has to end: a multiple of the interval, or the last
 * border between blocks that the same prompt again could begin at. UINT32_MAX: there is none. */
uint32_t kv_border(const struct kv *kv, uint32_t pos, uint32_t n_prompt);
/* After kv_grow(), where the step ends at a border: a snapshot of every layer. Edits with the position; a copy a
 * layer, after the step. */
void kv_snapshot(struct kv *kv, unsigned lane, seq_slot slot, uint32_t pos, struct kv_out *out);

#endif
