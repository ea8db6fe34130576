/* step_record.c - see step_record.h. */
#include "worker/step_record.h"

#include "base/failpoint.h"
#include "ipc/channel.h"
#include "ipc/stat.h"
#include "worker/kv/kv.h"
#include "worker/sched/scheduler.h"

static void
count_tokens(struct step_record *r, const struct batch *b, struct seq *const *seq)
{
    for (uint32_t i = 0; i < b->n_segments; i++) {
        const struct batch_segment *s = &b->segment[i];

        *(s->work == WORK_DECODE ? &r->decode_tokens : &r->prefill_tokens) += s->n_tokens;
        if (seq[i] && s->flags & SEGMENT_FIRST_CHUNK) r->cached_tokens += seq[i]->n_cached;
    }
    for (uint32_t i = 0; i < b->n_encode; i++)
        if (!b->encode[i].first_layer) r->encoder_tokens += b->encode[i].n_tokens;
}

static void
count_pools(struct step_record *r, const struct kv *kv)
{
    r->n_pools = (uint8_t)kv_n_pools(kv);
    for (uint32_t i = 0; i < r->n_pools; i++) {
        struct kv_count n;

        kv_count(kv, i, &n);
        r->used[i] = n.used;
        r->free[i] = n.free;
    }
}

void
step_record_put(struct worker *w, const struct batch *b, struct seq *const *seq,
                const struct step_launch *launch, nsec took, nsec now)
{
    struct step_records *all = shm_steps(&w->channel->w);
    uint64_t n = atomic_load_explicit(&all->n, memory_order_relaxed);
    struct step_record *to = &all->entry[n % STEP_RECORDS];
    const uint64_t *v = w->stats->v;
    struct step_record r = {
        .step = b->step,
        .at_ns = now,
        .plan_ns = (uint64_t)launch->plan,
        .queue_ns = (uint64_t)launch->queue,
        .device_ns = (uint64_t)took,
        .n_segments = b->n_segments,
        .preempted = launch->preempted,
        .running = scheduler_counts(w->sched).running,
        .waiting = scheduler_counts(w->sched).waiting,
        .prefill_units = (uint32_t)v[STAT_partition_prefill_units],
        .decode_units = (uint32_t)v[STAT_partition_decode_units],
        .lane = b->lane,
    };
    const size_t first = offsetof(struct step_record, step);

    count_tokens(&r, b, seq);
    count_pools(&r, w->kv);
    /* seq is odd before the record changes; pair: the fence in step_log_read() */
    atomic_store_explicit(&to->seq, 2 * n + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    FP(step_recording);
    memcpy((char *)to + first, (const char *)&r + first, sizeof r - first);
    /* seq and n are stored after the record; pair: the acquire loads in step_log_read() */
    atomic_store_explicit(&to->seq, 2 * n + 2, memory_order_release);
    atomic_store_explicit(&all->n, n + 1, memory_order_release);
}
