/* kv_table.h - reads the block tables, and defines the output of planning: the edits and copies of
 * the planned step, and the steps that it waits for.
 *
 * A block table has one row for each sequence slot in every group. The functions that change a
 * table append the change to a struct kv_out, which refers to the batch that is being planned; the
 * caller owns its arrays. kv_live() and the functions after it only read.
 */
#pragma once
#include "worker/kv/kv.h"

struct kv_out {
    struct kv_edit *edit;
    uint32_t n_edits, max_edits;
    struct kv_copy *copy;
    /* A step has at most one copy for each group of each sequence that starts, and one for each
     * onboarded block (kv_hit.n_host). Offloads use at most half of max_copies. */
    uint32_t n_copies, max_copies;
    uint64_t step; /* number of the planned step; fences offloaded and onboarded blocks */
    uint64_t wait[MAX_LANES]; /* the step of lane l that the planned step waits for; 0: no wait */
};

/* Records that `step` of `lane`, not yet done, reads or writes the slot's blocks and table rows.
 * Pass the steps of a slot in order; one that is done before the next is planned may be omitted.
 *
 * The steps of a lane are numbered from 1 and run in order. A block carries, for each lane, the
 * last step that may still read or write it. The next step of the same lane may use the block at
 * once; a step of another lane waits on the device for the steps that kv_out.wait names. */
void kv_fence(struct kv *kv, seq_slot slot, unsigned lane, uint64_t step);
/* Records that the step of the lane, and every earlier one, is finished on the device. */
void kv_done(struct kv *kv, unsigned lane, uint64_t step);
/* Appends a copy of a whole block to out; aborts if the array is full. from, to: block numbers of
 * the arena or of the host tier (kv_internal.h). Returns the copy, so that the caller can set
 * n_tokens or after. For the files of worker/kv alone. */
struct kv_copy *kv_add_copy(const struct kv *kv, uint32_t group, uint32_t from, uint32_t to,
                            struct kv_out *out);
/* Appends an EDIT_SET for every entry of the slot, because the device table has none of them. */
void kv_rows(const struct kv *kv, seq_slot slot, struct kv_out *out);
/* Returns true if the slot has a reservation: from kv_reserve() or kv_adopt() until kv_drop(). */
bool kv_live(const struct kv *kv, seq_slot slot);
/* Returns the number of blocks that the slot holds, of all groups. */
uint32_t kv_n_held(const struct kv *kv, seq_slot slot);
/* Returns how many block-table entries of the group the slot holds, sinks included. The held
 * entries are the sink entries below *first and the consecutive entries from *first on. */
uint32_t kv_held(const struct kv *kv, seq_slot slot, uint32_t group, uint32_t *first);
/* Returns the slice_id of the entry's block. SLICE_NONE: the entry is empty or a host block. */
slice_id kv_entry(const struct kv *kv, seq_slot slot, uint32_t group, uint32_t entry);
