/* rank_loop.c - the engine loop of a rank above 0: executes the steps that rank 0 has planned.
 *
 * A step arrives as a record in the plan ring (tp/plan_ring.h). There are two threads, as in rank
 * 0: the loader thread, which ends when the model is loaded, and the engine thread, which updates
 * the heartbeat, reads the plan ring and queues its steps on the device. This rank makes no
 * scheduling decision. It validates all records. */
#include "worker/loop.h"

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "ipc/channel.h"
#include "ipc/model_options.h"
#include "ipc/stat.h"
#include "worker/exec/exec.h"
#include "worker/handover/adopt.h"
#include "worker/lane_wait.h"
#include "worker/load/load.h"
#include "worker/model/model.h"
#include "worker/process/health.h"
#include "worker/sched/batch.h"
#include "worker/sched/scheduler.h"
#include "worker/tp/plan_ring.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>

static const nsec LOAD_SLEEP = 10 * NSEC_MS, IDLE_SLEEP = 500 * NSEC_MS;
enum { POLL_NS = 20000 }; /* nanoseconds between two polls of a lane without an fd */

/* State of the loop, with the sequences in the slots as rank 0 has sent them. token[]: the tokens
 * of a sequence before its first step; with prompt log-probabilities the whole prompt. */
struct rank_loop {
    struct worker *w;
    struct worker_lane lane[MAX_LANES]; /* batch[] is not used */
    token_id *token;                    /* [slots][max_len] */
    struct logit_bias *bias;            /* [slots][EXEC_MAX_BIAS] */
    struct batch *batch;                /* the step that was received last */
    struct batch_limits bounds;
    uint32_t max_len;
    size_t token_bytes;
    char *packed; /* [packed_bytes] the n_packed bytes received of a step of several records */
    size_t packed_bytes, n_packed;
};

/* ---- records of the plan ring */

static int
invalid(const struct ring_record *rec, struct err *e)
{
    return err_set(e, -EBADMSG, "rank 0 sent an invalid plan: type %u, %u bytes (internal error)",
                   rec->type, rec->len);
}

static int
take_slot(struct rank_loop *f, const struct ring_record *rec, struct err *e)
{
    struct plan_ring_slot s;
    struct logit_bias *bias;

    if (rec->len < sizeof s) return invalid(rec, e);
    memcpy(&s, rec->data, sizeof s);
    if (s.slot >= f->w->limits->max_seqs || s.n_bias > EXEC_MAX_BIAS || s.how.n_bias != s.n_bias ||
        rec->len != sizeof s + s.n_bias * sizeof *bias || s.how.n_eos > ARRAY_LEN(s.how.eos) ||
        s.how.n_prompt > f->max_len)
        return invalid(rec, e);
    bias = f->bias + (size_t)s.slot * EXEC_MAX_BIAS;
    memcpy(bias, (const char *)rec->data + sizeof s, s.n_bias * sizeof *bias);
    s.how.bias = bias;
    s.how.prompt = f->token + (size_t)s.slot * f->max_len;
    exec_set_sampling(f->w->exec, s.slot, &s.how);
    return 0;
}

static int
take_tokens(struct rank_loop *f, const struct ring_record *rec, struct err *e)
{
    uint32_t vocab = f->w->model->whole.vocab;
    struct plan_ring_tokens t;
    token_id *to;

    if (rec->len < sizeof t) return invalid(rec, e);
    memcpy(&t, rec->data, sizeof t);
    if (t.slot >= f->w->limits->max_seqs || t.first > f->max_len || t.n > f->max_len - t.first)
        return invalid(rec, e);
    to = f->token + (size_t)t.slot * f->max_len + t.first;
    if (rec->type == PLAN_SEEN && rec->len == sizeof t && t.first == 0) {
        exec_mark_tokens(f->w->exec, t.slot, to, t.n);
        return 0;
    }
    if (rec->type == PLAN_SEEN || rec->len != sizeof t + t.n * sizeof *to) return invalid(rec, e);
    memcpy(to, (const char *)rec->data + sizeof t, t.n * sizeof *to);
    for (uint32_t i = 0; i < t.n; i++)
        if (to[i] < 0 || (uint32_t)to[i] >= vocab) return invalid(rec, e);
    return 0;
}

/* Applies the partition that rank 0 has selected; on failure every lane uses the whole device. */
static int
take_partition(struct rank_loop *f, const struct ring_record *rec, struct err *e)
{
    struct worker *w = f->w;
    struct plan_ring_partition p;
    struct err why;
    int r;

    if (rec->len != sizeof p) return invalid(rec, e);
    memcpy(&p, rec->data, sizeof p);
    if (p.partition == 0 || p.partition >= MAX_PARTITIONS) return invalid(rec, e);
    for (unsigned i = 0; i < w->limits->n_lanes; i++)
        if (p.part[i].first > w->steps->lane_units[i] ||
            p.part[i].n > w->steps->lane_units[i] - p.part[i].first)
            return invalid(rec, e);
    r = exec_set_partition(w->exec, p.partition, p.part, &why);
    if (r < 0)
        log_warn("rank %u: cannot divide the device between prefill and decode: %s", w->rank,
                 why.text);
    if (r == 0)
        log_info("rank %u: applied the partition of rank 0: %u units for prefill, %u for decode",
                 w->rank, p.part[0].n, p.part[1].n);
    return 0;
}

/* Counts every finished step. Ignores the sampled tokens, because rank 0 reports them. */
static int
retire(struct rank_loop *f, struct err *e)
{
    struct worker *w = f->w;
    const struct batch_result *res;

    for (unsigned l = 0; l < w->limits->n_lanes; l++)
        while ((res = lane_wait_finished(w, &f->lane[l], l))) {
            f->lane[l].finished = res->step;
            w->stats->v[STAT_steps]++;
            if (res->status < 0)
                return err_set(e, res->status, "the device failed: %s", gpu_why(w->gpu));
        }
    return 0;
}

/* Sleeps until a step of the lane may have ended: until its fd is readable, or 20 us if it has
 * none, because rank 0 has seen the same step end and so it ends here soon. */
static void
wait_for_step(const struct exec *x, unsigned lane)
{
    static const struct timespec nap = { .tv_nsec = POLL_NS };
    struct pollfd p = { .fd = exec_fd(x, lane), .events = POLLIN };

    if (p.fd < 0)
        nanosleep(&nap, NULL);
    else if (poll(&p, 1, (int)(IDLE_SLEEP / NSEC_MS)) < 0 && errno != EINTR)
        check(!"poll");
}

/* Waits until the lane has space for a step; meanwhile records stay in the plan ring. */
static int
await_free_step(struct rank_loop *f, unsigned lane, struct err *e)
{
    struct worker *w = f->w;

    TRY(retire(f, e));
    while (f->lane[lane].started - f->lane[lane].finished == STEPS_IN_FLIGHT) {
        wait_for_step(w->exec, lane);
        health_heartbeat(w, clock_now());
        TRY(retire(f, e));
    }
    return 0;
}

/* Appends one part of a step that is split over several records. */
static int
take_more(struct rank_loop *f, const struct ring_record *rec, struct err *e)
{
    if (rec->len > f->packed_bytes - f->n_packed) return invalid(rec, e);
    memcpy(f->packed + f->n_packed, rec->data, rec->len);
    f->n_packed += rec->len;
    return 0;
}

static int
unpack_step(struct rank_loop *f, const struct ring_record *rec, struct err *e)
{
    size_t n;

    if (f->n_packed == 0) return batch_unpack(f->batch, rec->data, rec->len, e);
    TRY(take_more(f, rec, e));
    n = f->n_packed;
    f->n_packed = 0;
    return batch_unpack(f->batch, f->packed, n, e);
}

static int
take_step(struct rank_loop *f, const struct ring_record *rec, struct err *e)
{
    struct worker *w = f->w;
    struct batch *b = f->batch;

    TRY(unpack_step(f, rec, e));
    TRY(batch_check(b, &f->bounds, e));
    if (b->step != f->lane[b->lane].started + 1)
        return err_set(e, -EBADMSG,
                       "rank 0 sent step %llu of lane %u out of order (internal error)",
                       (unsigned long long)b->step, b->lane);
    TRY(await_free_step(f, b->lane, e));
    f->lane[b->lane].started++;
    FP(rank_planned);
    TRY(exec_start(w->exec, b, e));
    FP(rank_launched);
    return 0;
}

static int
take_record(struct rank_loop *f, const struct ring_record *rec, struct err *e)
{
    switch (rec->type) {
    case PLAN_SLOT:
        return take_slot(f, rec, e);
    case PLAN_TOKENS:
    case PLAN_SEEN:
        return take_tokens(f, rec, e);
    case PLAN_MORE:
        return take_more(f, rec, e);
    case PLAN_STEP:
        return take_step(f, rec, e);
    case PLAN_PARTS:
        return take_partition(f, rec, e);
    default:
        return invalid(rec, e);
    }
}

static int
iteration(struct rank_loop *f, struct err *e)
{
    struct channel *l = f->w->channel;
    struct lane_wait until = { .fd = { -1, -1 },
                               .max_sleep = IDLE_SLEEP,
                               .output_blocked = l->out.full,
                               .ready = channel_ready,
                               .arg = l };
    struct ring_record rec;
    bool some = false;
    int r;

    TRY(retire(f, e));
    while ((r = ring_peek(&l->in, &rec)) > 0) {
        TRY(take_record(f, &rec, e));
        channel_release(l);
        some = true;
    }
    if (r < 0) return err_set(e, r, "plan ring is corrupt: %s", ring_why(&l->in));
    if (some) return 0;
    if (lane_wait_sleep(f->w, &until) < 0) return err_set(e, -EPIPE, "rank 0 exited");
    health_heartbeat(f->w, clock_now());
    return 0;
}

/* ---- start and end */

/* Runs one iteration while the loader thread runs. The loader thread reads the plan ring meanwhile;
 * this function only checks whether rank 0 has closed the doorbell. */
static int
load_iteration(struct worker *w, struct err *e)
{
    struct pollfd p = { .fd = w->channel->doorbell.fd };

    health_heartbeat(w, clock_now());
    if (poll(&p, 1, (int)(LOAD_SLEEP / NSEC_MS)) > 0 && p.revents & POLLHUP)
        return err_set(e, -EPIPE, "rank 0 exited");
    return 0;
}

static int
open_buffers(struct rank_loop *f, struct err *e)
{
    const struct worker *w = f->w;
    const struct exec_config *x = w->steps;
    uint32_t n_tokens = x->max_tokens + x->max_enc_tokens;

    f->max_len = w->model->shape.max_len;
    f->token_bytes = (size_t)w->limits->max_seqs * f->max_len * sizeof *f->token;
    f->token = mmap(NULL, f->token_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (f->token == MAP_FAILED) f->token = NULL;
    f->bias = calloc((size_t)w->limits->max_seqs * EXEC_MAX_BIAS, sizeof *f->bias);
    f->bounds = (struct batch_limits){
        .kv = w->kv_config,
        .n_lanes = w->limits->n_lanes,
        .n_partitions = MAX_PARTITIONS,
        .max_tokens = x->max_tokens,
        .max_enc_tokens = x->max_enc_tokens,
        .vocab = w->model->whole.vocab,
        .max_len = f->max_len,
        .max_source = w->max_source,
        .n_enc_layers = w->model->shape.n_encoder_layers,
        .bucket = w->limits->bucket,
        .n_buckets = w->limits->n_buckets,
    };
    f->batch = batch_new(n_tokens, w->limits->max_seqs, x->max_edits, x->max_copies);
    f->packed_bytes = f->batch ? batch_most_bytes(f->batch) : 0;
    f->packed = malloc(f->packed_bytes);
    if (f->token && f->bias && f->batch && f->packed) return 0;
    return err_set(e, -ENOMEM, "no host memory for the steps that rank 0 sends");
}

int
rank_loop_run(struct worker *w, struct err *e)
{
    struct rank_loop f = { .w = w };
    int r;

    while ((r = load_poll(w, e)) == 0) TRY(load_iteration(w, e));
    if (r > 0) r = open_buffers(&f, e);
    if (r == 0) {
        prctl(PR_SET_TIMERSLACK,
              1000ul); /* timer slack 1 us instead of 50 us: sleeps end on time */
        health_phase(w, PHASE_READY, 0);
        log_info("rank %u of %u: ready in %.2f s on %s, %.1f MiB weights%s, %.1f MiB KV", w->rank,
                 w->keys->tensor_parallel, (double)w->loader->load_ns / NSEC_S,
                 gpu_facts(w->gpu).describe, (double)w->model->weight_bytes / (1 << 20),
                 w->model->adopted ? " (adopted)" : "",
                 (double)w->adopt->kv_arena.bytes / (1 << 20));
    }
    while (r == 0) r = iteration(&f, e);
    if (f.token) munmap(f.token, f.token_bytes);
    free(f.bias);
    free(f.packed);
    batch_free(f.batch);
    return r;
}
