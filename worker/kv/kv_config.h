/* kv_config.h - checks a configuration of the KV manager and computes the layout of struct kv
 * from it.
 *
 * The layout is a pure function of struct kv_config: kv_bytes() and kv_init() compute the same
 * one. The functions allocate nothing and change only their outputs. For the files of worker/kv
 * alone. kv_config.c also defines kv_bytes() and kv_slab_bytes() of kv.h and kv_tree_max_exports()
 * of kv_tree_export.h.
 */
#pragma once

#include "worker/kv/kv.h"

/* Returns the least common multiple of the slice sizes of all groups, in bytes. 0: a slice size is
 * 0, or the multiple needs more than 32 bits. */
uint64_t kv_slice_lcm(const struct kv_config *c);

/* Returns 0 if every field of c is in its range. -EINVAL: e (may be NULL) names the group, the
 * field and its value. The size of the arena is checked by kv_init(). */
int kv_config_check(const struct kv_config *c, struct err *e) MUST_USE;

/* Fills *kv with the pools, counts and offsets (bytes from kv) that follow from c; c has passed
 * kv_config_check(). Returns the size of struct kv with all its arrays, in bytes; 0: no slab of
 * less than 4 GiB holds the blocks of all groups. */
uint64_t kv_config_lay_out(struct kv *kv, const struct kv_config *c);
