/* kv_slab.h - slabs: equal pieces of the arena that pools draw when they are full and give back when
 * they are empty. Elasticity between pools is this and nothing else.
 */
#ifndef KV_SLAB_H
#define KV_SLAB_H

#include "worker/kv/kv.h"

/* A slab for the pool, linked into its list of slabs with a free block. The caller has made sure that
 * there is one. lane: one that needs no wait there is preferred. */
uint32_t kv_slab_draw(struct kv *kv, uint32_t pool, unsigned lane);
bool kv_slab_any(const struct kv *kv); /* one is nobody's */
/* While a predecessor's blocks are taken over: the slab is the pool's. Then, nobody holds a block of it. */
void kv_slab_claim(struct kv *kv, uint32_t slab, uint32_t pool);
void kv_slab_cold(struct kv *kv, uint32_t slab);

/* So many of its blocks more, or fewer, are held, and so many cached: it is on the lists that it belongs on,
 * and nobody's when it is empty. */
void kv_slab_count(struct kv *kv, uint32_t slab, int held, int cached);

/* The pool's list of slabs with a free block: fill a nearly full one first, so that others empty. */
void kv_slab_open_first(struct kv *kv, uint32_t slab);

/* Writes the number of the block whose first slice is `at` to *ret. -EBADMSG: no block of the group's
 * pool can begin there; *ret is unchanged. */
int kv_block_at(const struct kv *kv, uint32_t group, slice_id at, uint32_t *ret) MUST_USE;

#endif
