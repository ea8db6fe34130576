/* kv_fence.c - see kv_fence.h. */
#include "worker/kv/kv_fence.h"

#include "worker/kv/kv_core.h"

void
kv_fence(struct kv *kv, seq_slot seat, unsigned lane, uint64_t step)
{
    struct kv_seat *s = &kv_seats(kv)[seat];

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

void
kv_wait_steps(const struct kv *kv, unsigned lane, const uint64_t step[MAX_LANES],
              struct kv_out *out)
{
    for (unsigned l = 0; l < kv->c.n_lanes; l++)
        if (l != lane && step[l] > kv->done[l]) out->wait[l] = MAX(out->wait[l], step[l]);
}

void
kv_wait_block(const struct kv *kv, unsigned lane, uint32_t block, struct kv_out *out)
{
    kv_wait_steps(kv, lane, kv_blocks(kv)[block].step, out);
}

void
kv_wait_row(const struct kv *kv, unsigned lane, seq_slot seat, struct kv_out *out)
{
    const struct kv_seat *s = &kv_seats(kv)[seat];

    if (s->lane != lane && s->step > kv->done[s->lane])
        out->wait[s->lane] = MAX(out->wait[s->lane], s->step);
}
