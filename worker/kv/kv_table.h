/* kv_table.h - the block tables: one row of every group for each sequence slot; the edits and
 * copies of a step; the step that may still use a row.
 *
 * The functions that change a table append the change to a struct kv_out, which is a view of the
 * batch that is being planned; the caller owns its arrays. kv_live() and the functions after it
 * only read.
 */
#pragma once

#include "worker/kv/kv.h"

struct kv_out {
    struct kv_edit *edit;
    uint32_t n_edits, max_edits;
    struct kv_copy *copy;
    /* The copies of a step: at most one for each group of each sequence that starts, and one for
     * each onboarded block (kv_hit.n_host). Copies to the host tier use at most half of
     * max_copies. */
    uint32_t n_copies, max_copies;
    uint64_t step;            /* the step that is being planned; for the host tier */
    uint64_t wait[MAX_LANES]; /* the step of that lane that the planned step waits for; 0: none */
};

/* The steps of a lane are numbered from 1 and run in order. A block carries, for each lane, the
 * last step that may still read or write it. The next step of the same lane may use the block at
 * once; a step of another lane waits on the device for the steps that kv_out.wait names.
 *
 * kv_fence: the step reads or writes the blocks and table rows of the slot; step > the last
 * kv_done() of the lane. The steps of a slot are passed in order. A step that is done before the
 * next call for the slot may be left out. */
void kv_fence(struct kv *kv, seq_slot slot, unsigned lane, uint64_t step);
/* The step of the lane, and every earlier one, is finished on the device. */
void kv_done(struct kv *kv, unsigned lane, uint64_t step);

/* Appends a copy of a whole block; stops the program if the array is full. Blocks are block numbers
 * of the arena, or of the host tier (kv_internal.h). Returns the copy, for the caller to set
 * n_tokens or after. For the files of worker/kv alone. */
struct kv_copy *kv_add_copy(const struct kv *kv, uint32_t group, uint32_t from, uint32_t to,
                            struct kv_out *out);

/* Appends an EDIT_SET for every entry that the slot holds, for a device table that has none of
 * them. */
void kv_rows(const struct kv *kv, seq_slot slot, struct kv_out *out);

/* Returns true from the reservation or adoption of the slot until kv_drop(). */
bool kv_live(const struct kv *kv, seq_slot slot);
/* Returns the number of blocks that the slot holds, of all groups. */
uint32_t kv_n_held(const struct kv *kv, seq_slot slot);
/* Returns the number of entries that the slot holds of the group; *first is the first of them
 * that is not a sink: entries *first and later, and sinks below *first. */
uint32_t kv_held(const struct kv *kv, seq_slot slot, uint32_t group, uint32_t *first);
/* Returns the first slice of the entry's block. SLICE_NONE: the entry is empty, or its block is
 * in the host tier. */
slice_id kv_entry(const struct kv *kv, seq_slot slot, uint32_t group, uint32_t entry);
