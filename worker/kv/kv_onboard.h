/* kv_onboard.h - copies the blocks of a hit from the host tier back to the arena.
 *
 * Above the pool, because a copy needs a block of the arena; kv_host_tier.h, which the pool calls
 * when it evicts, is below. For the files of worker/kv alone.
 */
#pragma once

#include "worker/kv/kv_table.h"

/* Replaces every host block in the slot's row of the group by a block: by the block that another
 * sequence has onboarded, or by a new one that a copy of this step fills. `step` is the step of
 * `lane` that is being planned; the sequence has reserved the blocks, so the call does not fail.
 * The caller adds the edits (kv_rows()). */
void kv_onboard(struct kv *kv, unsigned lane, uint64_t step, seq_slot slot, uint32_t group,
                struct kv_out *out);
