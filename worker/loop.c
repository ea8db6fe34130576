/* loop.c - the worker's whole life, one turn after another.
 *
 *     load (beating) -> READY -> { retire finished steps -> take requests -> plan and launch for every
 *     idle lane -> publish, ring once -> sleep until a lane finishes or a bell rings } -> drained
 *
 * One thread, one loop, nothing else moves a sequence. There is no timer that hides a lost wake-up:
 * the longest sleep is half a second, and only because the supervisor wants to see us beat. A device
 * whose lanes have an fd wakes us; of one without we predict when a step will be done, sleep until
 * shortly before and then look (step_wait.h). With nothing out nothing is looked at.
 */
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "include/lagan_wire.h"
#include "ipc/records.h"
#include "worker/ops/control.h"
#include "worker/process/health.h"
#include "worker/handover/adopt.h"
#include "worker/io/outputs.h"
#include "worker/tp/plan_ring.h"
#include "worker/io/text_thread.h"
#include "worker/handover/host_tier.h"
#include "worker/worker.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { OVERDUE_FACTOR = 20, MIN_SLOTS = 256, QUEUE_SLOTS = 2048 };
static const nsec OVERDUE_LEAST = 3 * NSEC_S, LOAD_TURN = NSEC_MS, IDLE_TURN = 500 * NSEC_MS;
/* Looking at the device, we take what the other threads have for us this often. */
static const nsec LOOK_TURN = 100 * NSEC_US;

static const nsec MOST_BEHIND = 500 * NSEC_MS;

/* Weight bytes a nanosecond that a row is taken to cost until a step has been measured: 30 GFLOP/s at
 * two bytes a weight, on a GPU 100 TFLOP/s. Without it a large model's first prompt would be overdue before
 * it is done. */
enum { FIRST_GUESS = 30, FIRST_GUESS_GPU = 100000 };

static inline void
cpu_relax(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

static bool
ready(void *arg)
{
    struct worker *w = arg;

    if (!ring_empty(&w->link.in)) return true;
    return !outbox_empty(&w->outbox) && ring_room(&w->link.out) >= outbox_need(&w->outbox);
}

/* Publish what the turn has put out: one store, at most one bell. */
static int
flush(struct worker *w, struct err *e)
{
    int r = outbox_flush(&w->outbox, &w->link.out);

    if (r < 0) return err_set(e, r, "response ring: %s", ring_why(&w->link.out));
    if (!outbox_empty(&w->outbox)) w->stats.v[STAT_ring_full]++;
    if (r > 0) {
        ring_publish(&w->link.out);
        FP(loop_published);
        bell_ring(&w->link.bell);
    }
    return 0;
}

/* Whose step is out on a device without an fd: when to look. */
static struct step_wait_next
next_look(const struct worker *w, nsec now)
{
    struct step_wait_next first = { .until = NSEC_NEVER };

    for (unsigned l = 0; w->loaded && l < w->e.limits.n_lanes; l++) {
        const struct worker_lane *lane = &w->lane[l];
        const struct batch *b = lane->batch[(lane->finished + 1) % STEPS_OUT];
        struct step_wait_next here;

        if (lane->started == lane->finished || exec_fd(w->e.exec, l) >= 0) continue;
        here = step_wait_next(&lane->wait, b->work, b->n_rows, lane->since, now);
        if (here.look && !first.look) first = here;
        if (here.look == first.look && here.until < first.until) first = here;
    }
    return first;
}

/* No system call: until a step is done, a record has come, or then. */
static void
look(struct worker *w, nsec until)
{
    for (unsigned n = 1;; n++) {
        for (unsigned l = 0; l < w->e.limits.n_lanes; l++)
            if (exec_done(w->e.exec, l) != w->lane[l].finished) {
                w->seen = true;
                return;
            }
        if (!ring_empty(&w->link.in)) return;
        if (n % 16 == 0 && clock_now() >= until) return;
        cpu_relax();
    }
}

/* Sleep until something happens, or as long as that. -EPIPE: lagand is gone. */
static int
rest(struct worker *w, nsec now, nsec most)
{
    struct step_wait_next next = next_look(w, now);
    struct pollfd p[3 + MAX_LANES];
    nfds_t n = 0;
    int r;

    w->seen = false;
    w->idled |= next.until == NSEC_NEVER;
    if (next.look) {
        look(w, MIN(next.until, now + LOOK_TURN));
        return 0;
    }
    if (next.until != NSEC_NEVER) most = MIN(most, next.until - now);
    p[n++] = (struct pollfd){ .fd = w->link.bell.fd, .events = POLLIN };
    p[n++] = (struct pollfd){ .fd = control_fd(w->control), .events = POLLIN };
    if (w->text) p[n++] = (struct pollfd){ .fd = text_thread_fd(w->text), .events = POLLIN };
    for (unsigned l = 0; w->loaded && l < w->e.limits.n_lanes; l++)
        if (exec_fd(w->e.exec, l) >= 0)
            p[n++] = (struct pollfd){ .fd = exec_fd(w->e.exec, l), .events = POLLIN };

    r = bell_sleep(&w->link.bell, !outbox_empty(&w->outbox), ready, w);
    if (r < 0) return r;
    if (r > 0) {
        const struct timespec t = { .tv_sec = most / NSEC_S, .tv_nsec = most % NSEC_S };

        r = ppoll(p, n, &t, NULL);
        if (r < 0 && errno != EINTR) check(!"poll");
    }
    bell_wake(&w->link.bell);
    if (p[0].revents) bell_heard(&w->link.bell);
    for (nfds_t i = 1; i < n; i++) {
        uint64_t count;

        if (!p[i].revents) continue;
        while (read(p[i].fd, &count, sizeof count) < 0 && errno == EINTR) {
        }
    }
    return 0;
}

/* A turn while the loader works. */
static int
look_on(struct worker *w, struct err *e)
{
    uint64_t part = atomic_load_explicit(&w->load_done, memory_order_relaxed) >> 24;

    if (part != w->load_said) emit_phase(w);
    w->load_said = part;
    TRY(flush(w, e));
    return rest(w, clock_now(), LOAD_TURN) < 0 ? err_set(e, -EPIPE, "lagand is gone") : 0;
}

static int
load(struct worker *w, struct err *e)
{
    TRY(load_run(w, look_on, e));
    w->loaded = true;
    return 0;
}

/* Bytes of what a step may lead to, and a rest; touched as far as it is asked for. Of the outputs of a search nothing
 * may have been told before its last step, and a token may be any of the vocabulary: then all their text is. */
static size_t
most_of_a_step(const struct worker *w)
{
    const struct model_shape *shape = &w->e.model->shape;
    const struct scheduler_limits *l = &w->e.limits;
    size_t token = sizeof(struct rec_step) + sizeof(struct rec_out) + 32 + worker_token_text(w);
    size_t tensors =
        ((size_t)l->max_seqs * shape->vocab + (size_t)l->max_enc_rows * shape->hidden) *
        sizeof(float);

    return (size_t)l->max_rows * (64 + 8 * (LAGAN_MAX_TOP + 1)) +
           l->max_seqs * ((32u << 10) + (size_t)shape->max_len * token) + 2 * tensors + (8u << 20);
}

static int
open_requests(struct worker *w, struct err *e)
{
    const struct model_shape *shape = &w->e.model->shape;
    const struct scheduler_limits *l = &w->e.limits;
    uint32_t prompt = w->e.max_source ? w->e.max_source : shape->max_len;

    w->owner = calloc(l->max_seqs, sizeof *w->owner);
    w->named = calloc(w->e.kv_config.n_seats, sizeof *w->named);
    if (!w->owner || !w->named) return err_set(e, -ENOMEM, "memory for a step");
    TRY(requests_open(&w->requests, MAX(l->max_seqs + QUEUE_SLOTS, (uint32_t)MIN_SLOTS),
                      outputs_room(w->e.max_source, shape->max_len), LAGAN_MAX_STR + CHAT_DAY, e));
    TRY(intake_open(w, e));
    outbox_close(&w->outbox);
    TRY(outbox_open(&w->outbox, most_of_a_step(w), e));
    if (!w->e.tokenizer) return 0;
    w->text_cap = 2 * DETOK_HELD + 3 * (size_t)tokenizer_longest(w->e.tokenizer);
    w->text_buf = malloc(w->text_cap);
    if (!w->text_buf) return err_set(e, -ENOMEM, "memory for a token's text");
    return text_thread_start(&w->text, &w->requests, w->e.tokenizer, &w->e.chat, prompt, e);
}

/* Until when the steps that are out may take: past it the supervisor ends us. */
static void
set_deadline(struct worker *w, nsec now)
{
    double rows = 0;
    bool out = false;

    for (unsigned l = 0; l < w->e.limits.n_lanes; l++)
        for (uint64_t s = w->lane[l].finished + 1; s <= w->lane[l].started; s++) {
            rows += w->lane[l].batch[s % STEPS_OUT]->n_rows;
            out = true;
        }
    health_phase(w,
                 out           ? PHASE_STEP
                 : w->draining ? PHASE_DRAIN
                               : PHASE_READY,
                 out ? now + MAX(OVERDUE_LEAST, (nsec)(OVERDUE_FACTOR * rows * w->ns_per_row)) : 0);
}

/* A driver's queue holds some thousand launches (gpu/cuda/README.md), a step of a large model up to a thousand:
 * one that queues more than fits blocks until the device has got rid of it, and the supervisor takes us for
 * dead. So behind a long step we queue when its end is near, and one of which nothing is known yet is waited for. */
static bool
too_early(const struct worker *w, unsigned lane, nsec now)
{
    const struct worker_lane *l = &w->lane[lane];
    const struct batch *b = l->batch[(l->finished + 1) % STEPS_OUT];
    nsec left;

    if (l->started == l->finished || exec_fd(w->e.exec, lane) >= 0) return false;
    left = step_wait_left(&l->wait, b->work, b->n_rows, l->since, now);
    if (left < 0) left = l->since + (nsec)(b->n_rows * w->ns_per_row) - now;
    return left > MOST_BEHIND;
}

static int
launch(struct worker *w, unsigned lane, nsec now, struct err *e)
{
    struct worker_lane *l = &w->lane[lane];
    struct batch *b = l->batch[(l->started + 1) % STEPS_OUT];
    int r;

    if (l->started - l->finished == STEPS_OUT || too_early(w, lane, now)) return 0;
    partition_ctl_turn(&w->e.partition_ctl);
    r = scheduler_plan(w->e.sched, lane, now, b);
    if (r <= 0) return r;
    check(b->step == l->started + 1);
    for (uint32_t i = 0; i < b->n_runs; i++)
        if (b->run[i].flags & (RUN_FIRST_CHUNK | RUN_BEAM)) {
            struct worker_request *q = scheduler_seat(w->e.sched, b->run[i].seat)->owner;

            if (b->run[i].flags & RUN_FIRST_CHUNK)
                exec_seat(w->e.exec, b->run[i].seat, &q->sampling);
            exec_seen(w->e.exec, b->run[i].seat, q->seq.token, (uint32_t)b->run[i].first_pos);
        }
    if (l->started == l->finished) l->since = now;
    l->started++;
    partition_ctl_began(&w->e.partition_ctl, b, now);
    if (w->idled) w->after_idle = b->step;
    w->idled = false;
    health_launch(w, b);
    set_deadline(w, now);
    adopt_launch(w, b);
    FP(step_planned);
    TRY(plan_ring_step(w, b, e));
    r = exec_start(w->e.exec, b, e);
    FP(step_launched);
    return r < 0 ? r : 1;
}

/* A device that had nothing to do was not idle between two steps. */
static void
count_gaps(struct worker *w, uint64_t step)
{
    uint64_t n, ns;

    exec_gaps(w->e.exec, &n, &ns);
    if (step != w->after_idle) {
        w->stats.v[STAT_gaps] += n - w->gaps;
        w->stats.v[STAT_idle_ns] += ns - w->gaps_ns;
    }
    w->gaps = n;
    w->gaps_ns = ns;
}

/* The lane's oldest step, if it is done: commit, emit. 1: it was; 0: not yet. A step that waited for
 * another lane's has that one committed first, and told: K and V of a token are committed after it was. */
static int
retire(struct worker *w, unsigned lane, nsec now, struct seq **seq, uint32_t *n_before)
{
    struct worker_lane *l = &w->lane[lane];
    const struct batch *b = l->batch[(l->finished + 1) % STEPS_OUT];
    const struct batch_result *res;
    unsigned first;

    if (l->started == l->finished) return 0;
    /* Without an fd a failed device is noticed only by asking for a step. */
    if (exec_done(w->e.exec, lane) == l->finished && exec_fd(w->e.exec, lane) >= 0) return 0;
    while ((first = scheduler_turn(w->e.sched, b)) != lane) {
        int r = retire(w, first, now, seq, n_before);

        if (r <= 0 || !outbox_empty(&w->outbox)) return r;
    }
    if (exec_finish(w->e.exec, lane, &res) < 0) return 0;
    check(res->step == l->finished + 1);
    for (uint32_t i = 0; i < b->n_runs; i++) {
        seq[i] = scheduler_seat(w->e.sched, b->run[i].seat);
        n_before[i] = seq[i] ? seq[i]->n_tokens : 0;
    }
    FP(step_finished);
    if (res->status == 0) adopt_commit(w, b);
    scheduler_commit(w->e.sched, b, res, now);
    for (uint32_t i = 0; i < b->n_runs; i++)
        if (seq[i] && seq[i]->beam && seq[i]->first_member == seq[i] &&
            seq[i]->n_tokens > n_before[i] && !seq[i]->beam->over)
            adopt_turned(w, seq[i]);
    FP(step_committed);
    emit_step(w, b, res, seq, n_before);
    FP(step_emitted);
    l->finished = res->step;
    health_retire(w, lane, res->step);
    partition_ctl_ended(&w->e.partition_ctl, b, now);
    step_wait_learn(&l->wait, b->work, b->n_rows, now - l->since, w->seen);
    if (b->n_rows) {
        double ns = (double)(now - l->since) / b->n_rows;

        w->ns_per_row = w->ns_per_row > 0 ? 0.9 * w->ns_per_row + 0.1 * ns : ns;
    }
    w->stats.v[STAT_steps]++;
    if (w->keys.timing) count_gaps(w, res->step);
    w->stats.v[STAT_step_rows] = b->n_rows;
    w->stats.v[STAT_step_ns] = (uint64_t)(now - l->since);
    l->since = now;
    set_deadline(w, now);
    return res->status < 0 ? res->status : 1;
}

static void
reap(struct worker *w)
{
    struct seq *s;

    while ((s = scheduler_reap(w->e.sched))) {
        struct worker_request *r = s->owner;

        emit_ended(w, r);
        request_give(&w->requests, r);
    }
}

static nsec
may_sleep(const struct worker *w, nsec now)
{
    nsec wake = scheduler_wake(w->e.sched);

    if (wake == NSEC_NEVER || wake - now > IDLE_TURN) return host_tier_sleep(w, now, IDLE_TURN);
    return host_tier_sleep(w, now, MAX(wake - now, (nsec)0));
}

/* No request anywhere in this process, and none that waits to be read. */
static bool
nothing_to_do(struct worker *w)
{
    for (unsigned l = 0; l < w->e.limits.n_lanes; l++)
        if (w->lane[l].started != w->lane[l].finished) return false;
    return !w->requests.n_used && !w->draining && ring_empty(&w->link.in) &&
           outbox_empty(&w->outbox);
}

static int
turn(struct worker *w, struct seq **seq, uint32_t *n_before, struct err *e)
{
    nsec now = clock_now();
    bool held_up = !outbox_empty(&w->outbox);
    struct worker_request *r;
    int busy = 0, got;

    /* A full response ring stops the engine here: no step is finished, so none is launched. */
    for (unsigned l = 0; l < w->e.limits.n_lanes && outbox_empty(&w->outbox); l++) {
        got = retire(w, l, now, seq, n_before);
        if (got < 0) return err_set(e, got, "the device failed: %s", gpu_why(w->e.gpu));
        busy += got;
    }
    got = intake_drain(w, now, e);
    if (got < 0) return got;
    busy += got;
    while (w->text && outbox_takes(&w->outbox, &w->link.out) && (r = text_thread_take(w->text))) {
        intake_text_done(w, r, now);
        busy = 1;
    }
    host_tier_turn(w, now);
    if (cache_flush_turn(&w->cache_flush, w->e.kv)) {
        adopt_rest(w);
        busy = 1;
    }
    for (unsigned l = 0; l < w->e.limits.n_lanes && outbox_empty(&w->outbox) && got >= 0; l++)
        while ((got = launch(w, l, now, e)) > 0) busy = 1;
    if (got < 0) return got;
    reap(w);
    adopt_expire(w, now);
    adopt_rest(w);
    TRY(flush(w, e));
    busy |= held_up && outbox_empty(&w->outbox); /* steps may have ended meanwhile, and woken us */
    health_beat(w, now); /* what the turn has done is there before whoever gets its tokens asks */
    if (atomic_load_explicit(&w->drain_asked, memory_order_relaxed)) w->draining = true;
    if (w->draining && !w->requests.n_used && outbox_empty(&w->outbox)) return 1;
    got = tuning_turn(&w->tuning, !busy && nothing_to_do(w), now, e);
    if (got < 0) return got;
    w->idled |= got > 0;
    busy += got;
    if (!busy && rest(w, now, may_sleep(w, now)) < 0) return err_set(e, -EPIPE, "lagand is gone");
    return 0;
}

int
loop_run(struct worker *w, struct err *e)
{
    struct seq **seq = NULL;
    uint32_t *n_before = NULL;
    int r;

    TRY(outbox_open(&w->outbox, 1 << 20, e));
    TRY(load(w, e));
    TRY(open_requests(w, e));
    seq = calloc(w->e.limits.max_seqs, sizeof *seq);
    n_before = calloc(w->e.limits.max_seqs, sizeof *n_before);
    if (!seq || !n_before) {
        free(seq);
        free(n_before);
        return err_set(e, -ENOMEM, "memory for a step");
    }
    w->ns_per_row = (double)w->e.model->weight_bytes /
                    (exec_fd(w->e.exec, 0) >= 0 ? FIRST_GUESS : FIRST_GUESS_GPU);
    prctl(PR_SET_TIMERSLACK, 1000ul); /* 50 us by default: a sleep ends when it says */
    TRY(tuning_open(&w->tuning, w->e.exec, load_no_tuning(w), clock_now(), e));
    cache_flush_open(&w->cache_flush);
    w->control = control_start(w);
    health_phase(w, PHASE_READY, 0);
    emit_ready(w);
    FP(ready_said);
    log_info("ready in %.2f s (device %.2f, weights %.2f, steps %.2f, KV %.2f) on %s, "
             "%.1f MiB weights%s, %.1f MiB KV in %u group%s of %u-token blocks",
             (double)w->e.load_ns / NSEC_S, (double)w->e.slice_ns[LOAD_DEVICE] / NSEC_S,
             (double)w->e.slice_ns[LOAD_WEIGHTS] / NSEC_S,
             (double)w->e.slice_ns[LOAD_STEPS] / NSEC_S, (double)w->e.slice_ns[LOAD_KV] / NSEC_S,
             gpu_describe(w->e.gpu), (double)w->e.model->weight_bytes / (1 << 20),
             w->e.model->adopted ? " (adopted)" : "", (double)w->e.kv_arena.bytes / (1 << 20),
             w->e.kv_config.n_groups, w->e.kv_config.n_groups == 1 ? "" : "s",
             w->e.kv_config.tokens_per_block);
    adopt_begin(w, clock_now());
    do r = turn(w, seq, n_before, e);
    while (r == 0);
    free(seq);
    free(n_before);
    return r < 0 ? r : 0;
}
