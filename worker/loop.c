/* loop.c - a worker's engine loop: loads the model, then retires, plans and launches steps.
 *
 *     load (with heartbeat) -> READY -> { retire finished steps -> take requests -> plan and launch
 *     for every idle lane -> publish, ring the doorbell once -> sleep until a lane finishes or the
 *     doorbell rings } -> drained
 *
 * One thread handles all sequences. The longest sleep is 0.5 s, because lagand expects a heartbeat;
 * every other event wakes the loop. A device whose lanes have an fd wakes the loop at the end of a
 * step. Another device is polled shortly before the end that step_wait.h predicts. */
#include "worker/loop.h"

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "include/lagan_wire.h"
#include "ipc/channel.h"
#include "ipc/model_options.h"
#include "ipc/records.h"
#include "ipc/stat.h"
#include "worker/exec/exec.h"
#include "worker/handover/adopt.h"
#include "worker/handover/adopt_log.h"
#include "worker/handover/host_tier.h"
#include "worker/io/emit.h"
#include "worker/io/intake.h"
#include "worker/io/kv_publish.h"
#include "worker/io/outbox.h"
#include "worker/io/outputs.h"
#include "worker/io/search_rows.h"
#include "worker/io/text_thread.h"
#include "worker/lane_wait.h"
#include "worker/load/load.h"
#include "worker/load/sizes.h"
#include "worker/model/model.h"
#include "worker/ops/cache_flush.h"
#include "worker/ops/cache_pin.h"
#include "worker/ops/control.h"
#include "worker/ops/partition_ctl.h"
#include "worker/ops/tuning.h"
#include "worker/process/health.h"
#include "worker/sched/beam_search.h"
#include "worker/sched/scheduler.h"
#include "worker/step_record.h"
#include "worker/step_wait.h"
#include "worker/text/detok.h"
#include "worker/tp/plan_ring.h"

#include <sys/prctl.h>

/* A step is overdue after OVERDUE_FACTOR times its predicted duration, at least MIN_DEADLINE. The
 * worker has QUEUE_SLOTS more request slots than sequence slots, in total at least MIN_SLOTS. */
enum { OVERDUE_FACTOR = 20, MIN_SLOTS = 256, QUEUE_SLOTS = 2048 };
static const nsec MIN_DEADLINE = 3 * NSEC_S, LOAD_SLEEP = NSEC_MS, IDLE_SLEEP = 500 * NSEC_MS;
/* Longest uninterrupted poll of the device; then the loop handles other events. */
static const nsec POLL_TIME = 100 * NSEC_US;
static const nsec MAX_QUEUE_AHEAD = 500 * NSEC_MS; /* see must_wait_to_queue() */

/* Estimated speed of the first step: (bytes of all weights) x (batched tokens) per nanosecond. With
 * 2 bytes per weight, FIRST_RATE (CPU) is 30 GFLOP/s and FIRST_RATE_GPU 100 TFLOP/s. Without this
 * estimate the first prefill of a large model would be overdue before it ends. */
enum { FIRST_RATE = 30, FIRST_RATE_GPU = 100000 };

struct loop {
    struct worker *w;
    struct worker_lane lane[MAX_LANES];
    struct seq **seq;       /* [max_seqs] sequences of the step being retired */
    uint32_t *n_before;     /* [max_seqs] tokens of seq[i] before the commit */
    double ns_per_token;    /* running mean of finished steps; predicts deadlines */
    bool polled;            /* the loop polled the device while a step ended */
    bool idled;             /* since the last launch there was a time without a step in flight */
    uint64_t after_idle;    /* number of the last step that was launched after such a time */
    uint64_t gaps, gaps_ns; /* what exec_gaps() returned to the last count_gaps() */
};

static inline void
cpu_relax(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

static bool
must_not_sleep(void *arg)
{
    struct worker *w = arg;

    if (!ring_empty(&w->channel->in)) return true;
    return !outbox_empty(w->outbox) && ring_free_bytes(&w->channel->out) >= outbox_need(w->outbox);
}

/* Moves queued records to the response ring and publishes them with one store and one wake-up. */
static int
publish(struct worker *w, struct err *e)
{
    int r = outbox_flush(w->outbox, &w->channel->out);

    if (r < 0) return err_set(e, r, "response ring is corrupt: %s", ring_why(&w->channel->out));
    if (!outbox_empty(w->outbox)) w->stats->v[STAT_ring_full]++;
    if (r > 0) {
        ring_publish(&w->channel->out);
        FP(loop_published);
        doorbell_ring(&w->channel->doorbell);
    }
    return 0;
}

/* Returns whether to sleep or poll, and until when, to notice the next end of a step on a lane
 * without an fd. until is NSEC_NEVER if no step is in flight on such a lane. */
static struct step_wait_next
next_poll(const struct loop *p, nsec now)
{
    const struct worker *w = p->w;
    struct step_wait_next first = { .until = NSEC_NEVER };

    for (unsigned l = 0; w->loaded && l < w->limits->n_lanes; l++) {
        const struct worker_lane *lane = &p->lane[l];
        const struct batch *b = lane->batch[(lane->finished + 1) % STEPS_IN_FLIGHT];
        struct step_wait_next here;

        if (lane->started == lane->finished || exec_fd(w->exec, l) >= 0) continue;
        here = step_wait_next(&lane->wait, b->work, b->n_tokens, lane->since, now);
        if (here.poll && !first.poll) first = here;
        if (here.poll == first.poll && here.until < first.until) first = here;
    }
    return first;
}

/* Polls the device without system calls until a step ends, a record arrives, or time `until`. */
static void
poll_device(struct loop *p, nsec until)
{
    struct worker *w = p->w;

    for (unsigned n = 1;; n++) {
        for (unsigned l = 0; l < w->limits->n_lanes; l++)
            if (exec_done(w->exec, l) != p->lane[l].finished) {
                p->polled = true;
                return;
            }
        if (!ring_empty(&w->channel->in)) return;
        if (n % 16 == 0 && clock_now() >= until) return;
        cpu_relax();
    }
}

/* Waits at most `most`: polls near the end of a step, else sleeps. -EPIPE: lagand has exited. */
static int
sleep_or_poll(struct loop *p, nsec now, nsec most)
{
    struct worker *w = p->w;
    struct step_wait_next next = next_poll(p, now);
    struct lane_wait f = { .fd = { control_fd(w->control), w->text ? text_thread_fd(w->text) : -1 },
                           .max_sleep = most,
                           .output_blocked = !outbox_empty(w->outbox),
                           .ready = must_not_sleep,
                           .arg = w };

    p->polled = false;
    p->idled |= next.until == NSEC_NEVER;
    if (next.poll) {
        poll_device(p, MIN(next.until, now + POLL_TIME));
        return 0;
    }
    if (next.until != NSEC_NEVER) f.max_sleep = MIN(most, next.until - now);
    return lane_wait_sleep(w, &f);
}

/* Runs one iteration of the loop while the loader thread loads the model. */
static int
load_iteration(struct loop *p, struct err *e)
{
    struct worker *w = p->w;
    uint64_t done = atomic_load_explicit(&w->loader->bytes_done, memory_order_relaxed),
             total = atomic_load_explicit(&w->loader->bytes_total, memory_order_relaxed);

    health_heartbeat(w, clock_now());
    if (done >> 24 != w->loader->reported) emit_phase(w, done, total);
    w->loader->reported = done >> 24;
    TRY(publish(w, e));
    return sleep_or_poll(p, clock_now(), LOAD_SLEEP) < 0 ? err_set(e, -EPIPE, "lagand exited") : 0;
}

/* Returns the size of the outbox: bytes for the records of one step and of one iteration's intake.
 * Only used pages become resident. A beam search may report all its tokens in its last step, each
 * with the longest text of the vocabulary, and with the logit rows that its slots have kept. */
static size_t
max_record_bytes(const struct worker *w)
{
    const struct model_shape *shape = &w->model->shape;
    const struct scheduler_limits *l = w->limits;
    size_t token = sizeof(struct rec_step) + sizeof(struct rec_out) + sizeof(struct rec_tensor) +
                   32 + emit_token_text_bytes(w);
    size_t tensors =
        ((size_t)l->max_seqs * shape->vocab + (size_t)l->max_enc_tokens * shape->hidden) *
        sizeof(float);

    return (size_t)l->max_tokens * (64 + 8 * (LAGAN_MAX_TOP + 1)) +
           l->max_seqs * ((32u << 10) + (size_t)shape->max_len * token) + 2 * tensors +
           (size_t)l->max_seqs * w->requests->row_bytes + 8 * (size_t)LAGAN_MAX_STR;
}

static int
open_requests(struct worker *w, struct err *e)
{
    const struct model_shape *shape = &w->model->shape;
    const struct scheduler_limits *l = w->limits;
    uint32_t prompt = w->max_source ? w->max_source : shape->max_len;

    TRY(adopt_log_open(w, e));
    TRY(requests_open(w->requests, MAX(l->max_seqs + QUEUE_SLOTS, (uint32_t)MIN_SLOTS),
                      outputs_max_ids(w->max_source, shape->max_len), LAGAN_MAX_STR + CHAT_DAY, e));
    requests_open_rows(w->requests, search_rows_slot_bytes(w));
    if (!w->requests->rows)
        log_warn("no memory for the logits of beam searches; refusing searches that ask for them");
    TRY(intake_open(w, e));
    outbox_close(w->outbox);
    TRY(outbox_open(w->outbox, max_record_bytes(w), e));
    if (!w->tokenizer) return 0;
    w->text_cap = 2 * DETOK_HELD + 3 * (size_t)tokenizer_longest(w->tokenizer);
    w->text_buf = malloc(w->text_cap);
    if (!w->text_buf) return err_set(e, -ENOMEM, "no memory to buffer the text of a token");
    return text_thread_start(&w->text, w->requests, w->tokenizer, w->chat, prompt, e);
}

/* Publishes the deadline of the steps in flight; lagand kills a worker that exceeds it. */
static void
set_deadline(struct loop *p, nsec now)
{
    struct worker *w = p->w;
    double n_tokens = 0;
    bool in_flight = false;

    for (unsigned l = 0; l < w->limits->n_lanes; l++)
        for (uint64_t s = p->lane[l].finished + 1; s <= p->lane[l].started; s++) {
            n_tokens += p->lane[l].batch[s % STEPS_IN_FLIGHT]->n_tokens;
            in_flight = true;
        }
    if (in_flight)
        health_phase(w, PHASE_STEP,
                     now + MAX(MIN_DEADLINE, (nsec)(OVERDUE_FACTOR * n_tokens * p->ns_per_token)));
    else
        health_phase(w, w->draining ? PHASE_DRAIN : PHASE_READY, 0);
}

/* Returns true if the next step of the lane must not be launched yet: the running step has more
 * than 0.5 s left. A driver queue holds about 1000 launches (gpu/cuda/README.md), and a step of a
 * large model can use 1000. A launch into a full queue blocks: the worker seems hung. */
static bool
must_wait_to_queue(const struct loop *p, unsigned lane, nsec now)
{
    const struct worker_lane *l = &p->lane[lane];
    const struct batch *b = l->batch[(l->finished + 1) % STEPS_IN_FLIGHT];
    nsec left;

    if (l->started == l->finished || exec_fd(p->w->exec, lane) >= 0) return false;
    left = step_wait_left(&l->wait, b->work, b->n_tokens, l->since, now);
    if (left < 0) left = l->since + (nsec)(b->n_tokens * p->ns_per_token) - now;
    return left > MAX_QUEUE_AHEAD;
}

/* Stores `now` as the launch of the first step of the request in this slot, in all its slots. */
static void
mark_scheduled(struct worker *w, uint32_t slot, nsec now)
{
    struct worker_request *q = scheduler_seq_at(w->sched, slot)->owner;

    if (q->scheduled) return;
    q->scheduled = now;
    for (struct worker_request *m = q->first; m; m = m->next) m->scheduled = now;
}

/* Gives the executor the sampling parameters of each sequence whose first chunk is in b and, for
 * these sequences and all beams in b, the tokens before the segment in b. */
static void
slot_sequences(struct worker *w, const struct batch *b, nsec now)
{
    for (uint32_t i = 0; i < b->n_encode; i++) mark_scheduled(w, b->encode[i].slot, now);
    for (uint32_t i = 0; i < b->n_segments; i++) {
        const struct batch_segment *segment = &b->segment[i];
        struct worker_request *q;

        if (!(segment->flags & (SEGMENT_FIRST_CHUNK | SEGMENT_BEAM))) continue;
        q = scheduler_seq_at(w->sched, segment->slot)->owner;
        if (segment->flags & SEGMENT_FIRST_CHUNK) {
            mark_scheduled(w, segment->slot, now);
            exec_set_sampling(w->exec, segment->slot, &q->sampling);
        }
        exec_mark_tokens(w->exec, segment->slot, q->seq.token, (uint32_t)segment->first_pos);
    }
}

/* Sends b, with the data of its new sequences, to the other ranks of the rank group, if any. */
static int
send_plan(struct worker *w, const struct batch *b, struct err *e)
{
    for (uint32_t i = 0; w->plan->n && i < b->n_segments; i++) {
        const struct worker_request *q;

        if (!(b->segment[i].flags & SEGMENT_FIRST_CHUNK)) continue;
        q = scheduler_seq_at(w->sched, b->segment[i].slot)->owner;
        TRY(plan_ring_sequence(w, &b->segment[i], &q->seq, &q->sampling, e));
    }
    return plan_ring_step(w, b, e);
}

/* Plans and launches the next step of the lane. Returns 1 if a step was launched, 0 if the
 * scheduler has no step for the lane or the lane must wait. */
static int
launch(struct loop *p, unsigned lane, nsec now, struct err *e)
{
    struct worker *w = p->w;
    struct worker_lane *l = &p->lane[lane];
    struct batch *b = l->batch[(l->started + 1) % STEPS_IN_FLIGHT];
    uint64_t n_preempted, preempted;
    nsec begun, planned;
    int r;

    if (l->started - l->finished == STEPS_IN_FLIGHT || must_wait_to_queue(p, lane, now)) return 0;
    partition_ctl_update(w->partition_ctl);
    n_preempted = scheduler_counts(w->sched).preemptions;
    begun = clock_now();
    r = scheduler_plan(w->sched, lane, now, b);
    if (r <= 0) return r;
    check(b->step == l->started + 1);
    planned = clock_now();
    preempted = scheduler_counts(w->sched).preemptions;
    slot_sequences(w, b, planned);
    if (l->started == l->finished) l->since = now;
    l->started++;
    partition_ctl_launched(w->partition_ctl, b, now);
    if (p->idled) p->after_idle = b->step;
    p->idled = false;
    health_launch(w, b);
    set_deadline(p, now);
    adopt_log_launch(w, b);
    FP(step_planned);
    TRY(send_plan(w, b, e));
    r = exec_start(w->exec, b, e);
    l->launch[b->step % STEPS_IN_FLIGHT] = (struct step_launch){
        planned - begun, clock_now() - planned, (uint32_t)(preempted - n_preempted)
    };
    FP(step_launched);
    return r < 0 ? r : 1;
}

/* Counts the device gap before an ended step: the time for which the device was idle after the step
 * before. Does not count it if the lanes were idle before the launch of the ended step. */
static void
count_gaps(struct loop *p, uint64_t step)
{
    uint64_t *v = p->w->stats->v, n, ns;

    exec_gaps(p->w->exec, &n, &ns);
    if (step != p->after_idle) {
        v[STAT_device_gaps] += n - p->gaps;
        v[STAT_device_idle_ns] += ns - p->gaps_ns;
    }
    p->gaps = n;
    p->gaps_ns = ns;
}

/* Records the duration of a finished step. */
static void
measure(struct loop *p, struct worker_lane *l, const struct batch *b, nsec now)
{
    struct worker *w = p->w;
    nsec took = now - l->since;

    step_wait_learn(&l->wait, b->work, b->n_tokens, took, p->polled);
    if (b->n_tokens) {
        double ns = (double)took / b->n_tokens;

        p->ns_per_token = p->ns_per_token > 0 ? 0.9 * p->ns_per_token + 0.1 * ns : ns;
    }
    if (b->work & WORK_PREFILL && b->n_tokens >= w->kv_config->tokens_per_block)
        host_tier_learn(w, (double)took / b->n_tokens);
    w->stats->v[STAT_steps]++;
    if (w->keys->step_timing) count_gaps(p, b->step);
    w->stats->v[STAT_step_tokens] = b->n_tokens;
    w->stats->v[STAT_step_ns] = (uint64_t)took;
    step_record_put(w, b, p->seq, &l->launch[b->step % STEPS_IN_FLIGHT], took, now);
    l->since = now;
}

/* Applies the result of b: publishes committed positions in the manifest, adds the tokens to the
 * sequences, then queues the records for lagand. */
static void
commit(struct loop *p, const struct batch *b, const struct batch_result *res, nsec now)
{
    struct worker *w = p->w;
    struct seq **seq = p->seq;
    uint32_t *n_before = p->n_before;

    for (uint32_t i = 0; i < b->n_segments; i++) {
        seq[i] = scheduler_seq_at(w->sched, b->segment[i].slot);
        n_before[i] = seq[i] ? seq[i]->n_tokens : 0;
    }
    FP(step_finished);
    if (res->status == 0) {
        adopt_log_commit(w, b);
        search_rows_keep(w, b, res, seq);
    }
    scheduler_commit(w->sched, b, res, now);
    for (uint32_t i = 0; i < b->n_segments; i++)
        if (seq[i] && seq[i]->beam && seq[i]->first_member == seq[i] &&
            seq[i]->n_tokens > n_before[i] && !seq[i]->beam->over)
            adopt_log_beams(w, seq[i]);
    FP(step_committed);
    emit_step(w, b, res, seq, n_before);
    FP(step_emitted);
}

/* Commits the oldest step of a lane if it is finished. Returns 1 if it was, 0 if not; negative: the
 * device failed. If this step waited for a step on another lane, commits the other step first:
 * this step computed K and V of tokens that the other step sampled, and a token is committed before
 * its K and V. */
static int
retire(struct loop *p, unsigned lane, nsec now)
{
    struct worker *w = p->w;
    struct worker_lane *l = &p->lane[lane];
    const struct batch *b = l->batch[(l->finished + 1) % STEPS_IN_FLIGHT];
    const struct batch_result *res;
    unsigned first;

    if (l->started == l->finished) return 0;
    /* Continues if the lane has no fd: there, only exec_finish() notices that the device failed. */
    if (exec_done(w->exec, lane) == l->finished && exec_fd(w->exec, lane) >= 0) return 0;
    while ((first = scheduler_commit_lane(w->sched, b)) != lane) {
        int r = retire(p, first, now);

        if (r <= 0 || !outbox_empty(w->outbox)) return r;
    }
    res = lane_wait_finished(w, l, lane);
    if (!res) return 0;
    commit(p, b, res, now);
    l->finished = res->step;
    health_retire(lane, res->step);
    partition_ctl_retired(w->partition_ctl, b, now);
    measure(p, l, b, now);
    set_deadline(p, now);
    return res->status < 0 ? res->status : 1;
}

static void
reap(struct worker *w)
{
    struct seq *s;

    while ((s = scheduler_reap(w->sched))) {
        struct worker_request *r = s->owner;

        emit_ended(w, r);
        request_give(w->requests, r);
    }
}

static nsec
max_sleep(const struct worker *w, nsec now)
{
    nsec wake = scheduler_wake(w->sched);

    if (wake == NSEC_NEVER || wake - now > IDLE_SLEEP) return host_tier_sleep(w, now, IDLE_SLEEP);
    return host_tier_sleep(w, now, MAX(wake - now, (nsec)0));
}

/* Returns true if the worker and the request ring have no request, and no step is in flight. */
static bool
is_idle(struct loop *p)
{
    struct worker *w = p->w;

    for (unsigned l = 0; l < w->limits->n_lanes; l++)
        if (p->lane[l].started != p->lane[l].finished) return false;
    return !w->requests->n_used && !w->draining && ring_empty(&w->channel->in) &&
           outbox_empty(w->outbox);
}

/* Commits finished steps of all lanes. Returns > 0 if there were any. While the response ring is
 * full and the outbox has records, retires no step; then launch_all() launches none. */
static int
retire_all(struct loop *p, nsec now, struct err *e)
{
    struct worker *w = p->w;
    int busy = 0;

    for (unsigned l = 0; l < w->limits->n_lanes && outbox_empty(w->outbox); l++) {
        int r = retire(p, l, now);

        if (r < 0) return err_set(e, r, "the device failed: %s", gpu_why(w->gpu));
        busy += r;
    }
    return busy;
}

/* Reads the request ring and admits tokenized requests. Returns > 0 if there were any. */
static int
take_requests(struct worker *w, nsec now, struct err *e)
{
    struct worker_request *r;
    int busy = intake_drain(w, now, e);

    while (busy >= 0 && w->text && outbox_takes(w->outbox, &w->channel->out) &&
           (r = text_thread_take(w->text))) {
        intake_text_done(w, r, now);
        busy = 1;
    }
    return busy;
}

static int
launch_all(struct loop *p, nsec now, struct err *e)
{
    struct worker *w = p->w;
    int busy = 0, r = 0;

    for (unsigned l = 0; l < w->limits->n_lanes && outbox_empty(w->outbox) && r >= 0; l++)
        while ((r = launch(p, l, now, e)) > 0) busy = 1;
    return r < 0 ? r : busy;
}

/* Maps memory of the host tier, pins prefixes, and frees cached blocks for `laganctl kv flush`.
 * Returns 1 if
 * blocks were freed and more may be left. */
static int
maintain_cache(struct worker *w, nsec now)
{
    host_tier_update(w, now);
    cache_pin_run(w);
    if (!cache_flush_run(w->cache_flush, w->kv)) return 0;
    adopt_log_tree(w);
    return 1;
}

/* Runs one iteration of the loop. Returns 1 if the worker is drained: no request is left. */
static int
iteration(struct loop *p, struct err *e)
{
    struct worker *w = p->w;
    nsec now = clock_now();
    bool was_blocked = !outbox_empty(w->outbox);
    int busy, r;

    TRY(busy = retire_all(p, now, e));
    TRY(r = take_requests(w, now, e));
    busy += r + maintain_cache(w, now);
    TRY(r = launch_all(p, now, e));
    busy += r;
    reap(w);
    adopt_expire(w, now);
    adopt_log_tree(w);
    busy += kv_publish_run(w);
    TRY(publish(w, e));
    if (outbox_empty(w->outbox)) adopt_log_ends(w);
    /* If publish() has emptied the outbox, does not sleep: steps may have ended in the meantime. */
    busy |= was_blocked && outbox_empty(w->outbox);
    partition_ctl_stats(w->partition_ctl, w->stats);
    health_heartbeat(w, now); /* publishes statistics before a client with the tokens can ask */
    if (w->draining && !w->requests->n_used && outbox_empty(w->outbox)) return 1;
    TRY(r = tuning_run(w->tuning, !busy && is_idle(p), now, e));
    p->idled |= r > 0;
    busy += r;
    if (!busy && sleep_or_poll(p, now, max_sleep(w, now)) < 0)
        return err_set(e, -EPIPE, "lagand exited");
    return 0;
}

static int
open_lanes(struct loop *p, struct err *e)
{
    struct worker *w = p->w;

    for (uint32_t l = 0; l < w->limits->n_lanes; l++)
        for (uint32_t i = 0; i < STEPS_IN_FLIGHT; i++) {
            p->lane[l].batch[i] = scheduler_batch(w->sched);
            if (!p->lane[l].batch[i])
                return err_set(e, -ENOMEM, "no host memory for the batches of a lane");
        }
    p->seq = calloc(w->limits->max_seqs, sizeof *p->seq);
    p->n_before = calloc(w->limits->max_seqs, sizeof *p->n_before);
    if (!p->seq || !p->n_before)
        return err_set(e, -ENOMEM, "no host memory for a step's sequences");
    p->ns_per_token = (double)w->model->weight_bytes /
                      (exec_fd(w->exec, 0) >= 0 ? FIRST_RATE : FIRST_RATE_GPU);
    return plan_ring_alloc(w->plan, p->lane[0].batch[0], e);
}

static void
close_lanes(struct loop *p)
{
    for (unsigned l = 0; l < MAX_LANES; l++)
        for (unsigned i = 0; i < STEPS_IN_FLIGHT; i++) batch_free(p->lane[l].batch[i]);
    free(p->seq);
    free(p->n_before);
}

static void
log_ready(const struct worker *w)
{
    const struct loader *l = w->loader;

    log_info("ready in %.2f s (device %.2f s, weights %.2f s, step buffers %.2f s, KV %.2f s) on "
             "%s; %.1f MiB of weights%s; %.1f MiB of KV in %u group%s with blocks of %u tokens%s",
             (double)l->load_ns / NSEC_S, (double)l->phase_ns[LOAD_DEVICE] / NSEC_S,
             (double)l->phase_ns[LOAD_WEIGHTS] / NSEC_S, (double)l->phase_ns[LOAD_STEPS] / NSEC_S,
             (double)l->phase_ns[LOAD_KV] / NSEC_S, gpu_facts(w->gpu).describe,
             (double)w->model->weight_bytes / (1 << 20), w->model->adopted ? " (adopted)" : "",
             (double)w->adopt->kv_arena.bytes / (1 << 20), w->kv_config->n_groups,
             w->kv_config->n_groups == 1 ? "" : "s", w->kv_config->tokens_per_block,
             w->tokenizer ? "" : "; ids only, no text");
}

int
loop_run(struct worker *w, struct err *e)
{
    struct loop p = { .w = w };
    int r;

    TRY(outbox_open(w->outbox, 1 << 20, e));
    while ((r = load_poll(w, e)) == 0) TRY(load_iteration(&p, e));
    if (r < 0) return r;
    TRY(open_lanes(&p, e));
    TRY(open_requests(w, e));
    prctl(PR_SET_TIMERSLACK, 1000ul); /* timer slack 1 us instead of 50 us: sleeps end on time */
    TRY(tuning_open(w->tuning, w->exec,
                    tuning_refusal(w->keys, sizes_on_gpu(w), w->limits->n_lanes), clock_now(), e));
    cache_flush_open(w->cache_flush);
    cache_pin_open(w->cache_pin);
    kv_publish_open(w);
    w->control = control_start(w);
    health_phase(w, PHASE_READY, 0);
    emit_ready(w, w->loader->load_ns);
    FP(ready_reported);
    log_ready(w);
    adopt_start_claims(w, clock_now());
    do r = iteration(&p, e);
    while (r == 0);
    if (r > 0) close_lanes(&p);
    return MIN(r, 0);
}
