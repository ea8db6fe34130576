/* kv_fence.h - which step may still use a block or a row of a table, and which steps another lane
 * must wait for.
 *
 * The steps of a lane are numbered from 1 and run in order. A block carries, for each lane, the
 * last step that may still read or write it. The next step of the same lane may use the block at
 * once; a step of another lane waits on the device for the steps that kv_out.wait names. The
 * functions that fill it in are inline in kv_internal.h.
 */
#pragma once

#include "worker/kv/kv_table.h"

/* The step reads or writes the blocks and table rows of the slot; step > the last kv_done() of
 * the lane. The steps of a slot are passed in order. A step that is done before the next call for
 * the slot may be left out. */
void kv_fence(struct kv *kv, seq_slot slot, unsigned lane, uint64_t step);
/* The step of the lane, and every earlier one, is finished on the device. */
void kv_done(struct kv *kv, unsigned lane, uint64_t step);
