/* kv_fence.c - see kv_fence.h. */
#include "worker/kv/kv_fence.h"

#include "worker/kv/kv_internal.h"

void
kv_fence(struct kv *kv, seq_slot slot, unsigned lane, uint64_t step)
{
    struct kv_seq *s = &kv_seqs(kv)[slot];

    check(lane < kv->c.n_lanes && step > kv->done[lane]);
    s->lane = (uint8_t)lane;
    s->step = step;
}

void
kv_done(struct kv *kv, unsigned lane, uint64_t step)
{
    check(lane < kv->c.n_lanes && step >= kv->done[lane]);
    kv->done[lane] = step;
}
