/* sim_worker.c - plans and commits the steps of a simulated worker: see sim_worker.h. */
#include "sim/sim_worker.h"

#include "sim/cost.h"

token_id
request_token(const struct sim_request *q, uint32_t pos)
{
    uint64_t of = pos < q->n_shared ? q->shared : q->stream;
    uint64_t x = (of * 0x10001 + pos) * UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
    return (token_id)((x >> 32) % 50000);
}

void
worker_close(struct sim_worker *w)
{
    scheduler_free(w->s);
    for (unsigned l = 0; l < MAX_LANES; l++)
        for (unsigned i = 0; i < WORKER_OUT; i++) batch_free(w->batch[l][i]);
    free(w->n_tokens);
    free(w->token);
    free(w->mem);
    memset(w, 0, sizeof *w);
}

/* Makes the partitions and starts their controller, as worker/ops/partition_ctl.c does. */
static int
make_partitions(struct sim_worker *w, struct err *e)
{
    const struct sim_division *d = &w->st.divide;
    const struct scheduler_limits *l = &w->st.sched;
    const struct partition_limits limits = { MIN(w->st.kv.tokens_per_block, l->max_tokens),
                                             l->max_tokens, d->target, w->st.cost.tile };
    unsigned partition = 0;

    partition_list_make(&w->partition_list, d->units, d->least, d->grain);
    if (d->mode == DIVIDE_OFF) return 0;
    if (d->mode == DIVIDE_FIXED)
        TRY(partition_list_fixed(&w->partition_list, d->context_sm, &partition, e));
    partition_choose_init(&w->split, &limits, &w->partition_list, &w->st.cost.work, &w->st.kv,
                          w->st.cost.bandwidth, w->st.cost.peak);
    /* as a worker measures them at its start */
    for (unsigned r = 1; r < w->partition_list.n; r++) {
        struct part_share context, generation;

        cost_parts(&w->st, &w->partition_list, r, w->st.cost.initial_read, &context, &generation);
        step_time_set_partition(&w->split.time, r, context, generation);
    }
    scheduler_set_partition(w->s, partition, 0);
    return 0;
}

static int
open_at(struct sim_worker *w, struct err *e)
{
    w->mem = calloc(1, kv_bytes(&w->st.kv));
    if (!w->mem) return err_set(e, -ENOMEM, "out of memory for the KV tables");
    w->kv = kv_init(w->mem, &w->st.kv, e);
    if (!w->kv) return e->code;
    TRY(scheduler_new(&w->s, &w->st.sched, w->kv, e));
    for (unsigned l = 0; l < w->st.sched.n_lanes; l++)
        for (unsigned i = 0; i < WORKER_OUT; i++)
            if (!(w->batch[l][i] = scheduler_batch(w->s)))
                return err_set(e, -ENOMEM, "out of memory for batches");
    w->n_tokens = calloc(w->batch[0][0]->max_segments, sizeof w->n_tokens[0]);
    w->token = calloc((size_t)w->batch[0][0]->max_segments * (1 + MAX_DRAFT), sizeof w->token[0]);
    if (!w->n_tokens || !w->token) return err_set(e, -ENOMEM, "no host memory for results");
    return make_partitions(w, e);
}

int
worker_open(struct sim_worker *w, const struct sim_config *st, struct err *e)
{
    int r;

    memset(w, 0, sizeof *w);
    w->st = *st;
    r = open_at(w, e);
    if (r < 0) worker_close(w);
    return r;
}

const struct batch *
worker_plan(struct sim_worker *w, unsigned lane, nsec now)
{
    struct batch *b = w->batch[lane][(w->planned[lane] + 1) % WORKER_OUT];

    if (w->planned[lane] - w->done[lane] == WORKER_OUT) return NULL;
    if (w->st.divide.mode == DIVIDE_AUTO) {
        struct partition_mode m = partition_choose(&w->split, &w->partition_list, w->s);

        scheduler_set_partition(w->s, m.partition, m.rows);
    }
    if (scheduler_plan(w->s, lane, now, b) == 0) return NULL;
    w->planned[lane] = b->step;
    if (w->st.divide.mode != DIVIDE_OFF) partition_choose_launched(&w->split, b, now);
    return b;
}

static void
commit_step(struct sim_worker *w, const struct batch *b, nsec now)
{
    struct batch_result r = {
        .step = b->step, .lane = b->lane, .n_tokens = w->n_tokens, .token = w->token
    };

    /* with 1,000 workers they are not in the CPU caches */
    for (uint32_t i = 0; i < b->n_segments; i++)
        __builtin_prefetch(&scheduler_seq_at(w->s, b->segment[i].slot)->owner);
    for (uint32_t i = 0; i < b->n_segments; i++) {
        const struct batch_segment *run = &b->segment[i];
        const struct seq *q = scheduler_seq_at(w->s, run->slot);

        token_id *to = &w->token[(size_t)i * (1 + MAX_DRAFT)];

        w->n_tokens[i] = (run->flags & SEGMENT_SAMPLE) != 0;
        if (!w->n_tokens[i]) continue;
        *to = request_token(q->owner, (uint32_t)run->first_pos + run->n_tokens);
        if (w->sampled && q->state != SEQ_ENDED) w->sampled(q->owner, *to, now, w->sampled_to);
    }
    w->done[b->lane] = b->step;
    if (w->st.divide.mode != DIVIDE_OFF) partition_choose_retired(&w->split, b, now);
    scheduler_commit(w->s, b, &r, now);
}

const struct batch *
worker_commit(struct sim_worker *w, unsigned lane, nsec now)
{
    const struct batch *b = w->batch[lane][(w->done[lane] + 1) % WORKER_OUT];
    unsigned first;

    if (w->planned[lane] == w->done[lane]) return NULL;
    while ((first = scheduler_commit_lane(w->s, b)) != lane) check(worker_commit(w, first, now));
    commit_step(w, b, now);
    return b;
}
