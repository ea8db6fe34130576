/* rank_loop.c - a rank that is not the first: see plan_ring.h.
 *
 * Two threads, as a worker's: the loader's, which ends with READY, and the engine's, which beats, reads the plan ring
 * and queues what it says. It decides nothing; what it reads is a process's of the same build, and bounded all the same.
 */
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "worker/process/health.h"
#include "worker/tp/plan_ring.h"
#include "worker/sched/bounds.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { LOOK_US = 500 };
static const nsec LOAD_TURN = 10 * NSEC_MS, IDLE_TURN = 500 * NSEC_MS;
enum { NAP = 20000 }; /* ns between two looks at a device that wakes nobody */

/* Who sits where, as far as rank 0 has told: of tokens those before a sequence's first step, and what steps bring of one
 * that looks back. */
struct rank_loop {
    struct worker *w;
    token_id *token;     /* [seats][max_len] */
    bool *looks_back;    /* [seats] exec_looks_back() */
    struct nudge *bias;  /* [seats][EXEC_MAX_BIAS] */
    struct batch *batch; /* read by exec_start() alone */
    struct batch_bounds bounds;
    uint32_t max_len;
    size_t token_bytes;
    char *packed; /* [packed_bytes] a step of several records, as far as it has come */
    size_t packed_bytes, n_packed;
};

/* ---- the start: the loader's */

static int
say(struct worker *w, uint16_t type, const void *data, size_t n, struct err *e)
{
    void *to;
    int r = ring_reserve(&w->link.out, type, 0, (uint32_t)n, 0, &to);

    if (r < 0) return err_set(e, r, "an answer of %zu bytes: %s", n, ring_why(&w->link.out));
    memcpy(to, data, n);
    link_publish(&w->link);
    return 0;
}

int
rank_start_join(struct worker *w, struct err *e)
{
    char room[JOIN_BYTES];

    return say(w, ANSWER_JOIN, room, plan_ring_identity(w, room, sizeof room), e);
}

int
rank_start_left(struct worker *w, struct err *e)
{
    struct plan_ring_left left;

    memcpy(left.kv_id, w->e.old_kv_id, sizeof left.kv_id);
    memcpy(left.host_id, w->e.old_host_id, sizeof left.host_id);
    return say(w, ANSWER_LEFT, &left, sizeof left, e);
}

int
rank_start_kv(struct worker *w, struct plan_ring_kv *kv, struct err *e)
{
    struct ring_record rec;
    int r;

    while ((r = ring_peek(&w->link.in, &rec)) == 0) usleep(LOOK_US);
    if (r < 0) return err_set(e, r, "plan ring: %s", ring_why(&w->link.in));
    if (rec.type != PLAN_KV || rec.len != sizeof *kv)
        return err_set(e, -EBADMSG, "the plan begins with a record %u of %u bytes", rec.type,
                       rec.len);
    memcpy(kv, rec.data, sizeof *kv);
    link_release(&w->link);
    return 0;
}

int
rank_start_ready(struct worker *w, struct err *e)
{
    return say(w, ANSWER_READY, &(uint64_t){ 0 }, sizeof(uint64_t), e);
}

/* ---- what the plan says */

static int
wrong(const struct ring_record *rec, struct err *e)
{
    return err_set(e, -EBADMSG, "plan ring: a record %u of %u bytes cannot be", rec->type,
                   rec->len);
}

static int
take_seat(struct rank_loop *f, const struct ring_record *rec, struct err *e)
{
    struct plan_ring_seat s;
    struct nudge *bias;

    if (rec->len < sizeof s) return wrong(rec, e);
    memcpy(&s, rec->data, sizeof s);
    if (s.seat >= f->w->e.limits.max_seqs || s.n_bias > EXEC_MAX_BIAS || s.how.n_bias != s.n_bias ||
        rec->len != sizeof s + s.n_bias * sizeof *bias || s.how.n_eos > ARRAY_LEN(s.how.eos) ||
        s.how.n_prompt > f->max_len)
        return wrong(rec, e);
    bias = f->bias + (size_t)s.seat * EXEC_MAX_BIAS;
    memcpy(bias, (const char *)rec->data + sizeof s, s.n_bias * sizeof *bias);
    s.how.bias = bias;
    s.how.prompt = f->token + (size_t)s.seat * f->max_len;
    f->looks_back[s.seat] = exec_looks_back(&s.how);
    exec_seat(f->w->e.exec, s.seat, &s.how);
    return 0;
}

static int
take_tokens(struct rank_loop *f, const struct ring_record *rec, struct err *e)
{
    uint32_t vocab = f->w->e.model->whole.vocab;
    struct plan_ring_tokens t;
    token_id *to;

    if (rec->len < sizeof t) return wrong(rec, e);
    memcpy(&t, rec->data, sizeof t);
    if (t.seat >= f->w->e.limits.max_seqs || t.first > f->max_len || t.n > f->max_len - t.first)
        return wrong(rec, e);
    to = f->token + (size_t)t.seat * f->max_len + t.first;
    if (rec->type == PLAN_SEEN && rec->len == sizeof t && t.first == 0) {
        exec_seen(f->w->e.exec, t.seat, to, t.n);
        return 0;
    }
    if (rec->type == PLAN_SEEN || rec->len != sizeof t + t.n * sizeof *to) return wrong(rec, e);
    memcpy(to, (const char *)rec->data + sizeof t, t.n * sizeof *to);
    for (uint32_t i = 0; i < t.n; i++)
        if (to[i] < 0 || (uint32_t)to[i] >= vocab) return wrong(rec, e);
    return 0;
}

/* An operator's division, made here as rank 0 has made it; where it cannot be, all lanes have the whole device. */
static int
take_parts(struct rank_loop *f, const struct ring_record *rec, struct err *e)
{
    struct worker *w = f->w;
    struct plan_ring_parts p;
    struct err why;
    int r;

    if (rec->len != sizeof p) return wrong(rec, e);
    memcpy(&p, rec->data, sizeof p);
    if (p.rung == 0 || p.rung >= MAX_RUNGS) return wrong(rec, e);
    for (unsigned i = 0; i < w->e.limits.n_lanes; i++)
        if (p.part[i].first > w->e.steps.lane_units[i] ||
            p.part[i].n > w->e.steps.lane_units[i] - p.part[i].first)
            return wrong(rec, e);
    r = exec_rung(w->e.exec, p.rung, p.part, &why);
    if (r < 0) log_warn("rank %u stays undivided: %s", w->rank, why.text);
    if (r == 0)
        log_info("rank %u is divided as rank 0: %u and %u units", w->rank, p.part[0].n,
                 p.part[1].n);
    return 0;
}

/* Steps that are done are nobody's news here. */
static int
retire(struct rank_loop *f, struct err *e)
{
    struct worker *w = f->w;
    const struct batch_result *r;

    for (unsigned l = 0; l < w->e.limits.n_lanes; l++)
        while (w->lane[l].finished < w->lane[l].started && exec_finish(w->e.exec, l, &r) == 0) {
            w->lane[l].finished = r->step;
            w->stats.v[STAT_steps]++;
            if (r->status < 0)
                return err_set(e, r->status, "the device failed: %s", gpu_why(w->e.gpu));
        }
    return 0;
}

/* A step of a lane ends, rank 0 says something or is gone (-EPIPE), or that time has passed. What a lane has said is
 * taken: of a last step, which is retired without it, too. */
static int
rest(struct rank_loop *f, nsec most)
{
    struct worker *w = f->w;
    const struct timespec t = { .tv_sec = most / NSEC_S, .tv_nsec = most % NSEC_S };
    struct pollfd p[1 + MAX_LANES] = { { .fd = w->link.bell.fd, .events = POLLIN } };
    nfds_t n = 1;
    int r;

    for (unsigned l = 0; w->loaded && l < w->e.limits.n_lanes; l++)
        p[n++] = (struct pollfd){ .fd = exec_fd(w->e.exec, l), .events = POLLIN };
    r = bell_sleep(&w->link.bell, w->link.out.full, link_ready, &w->link);
    if (r < 0) return r;
    if (r > 0 && ppoll(p, n, &t, NULL) < 0 && errno != EINTR) check(!"poll");
    bell_wake(&w->link.bell);
    if (p[0].revents) bell_heard(&w->link.bell);
    for (nfds_t i = 1; i < n; i++) {
        uint64_t count;

        if (!p[i].revents) continue;
        while (read(p[i].fd, &count, sizeof count) < 0 && errno == EINTR) {
        }
    }
    health_beat(w, clock_now());
    return 0;
}

/* A step is done, or that time has passed. A lane without an fd is looked at: what is waited for ends any moment now,
 * because rank 0 has seen the same step end. */
static void
wait_for_step(const struct exec *x, unsigned lane)
{
    static const struct timespec nap = { .tv_nsec = NAP };
    struct pollfd p = { .fd = exec_fd(x, lane), .events = POLLIN };

    if (p.fd < 0)
        nanosleep(&nap, NULL);
    else if (poll(&p, 1, (int)(IDLE_TURN / NSEC_MS)) < 0 && errno != EINTR)
        check(!"poll");
}

/* Until the lane can take a step. Plans may come meanwhile: the bell is not looked at. */
static int
make_room(struct rank_loop *f, unsigned lane, struct err *e)
{
    struct worker *w = f->w;

    TRY(retire(f, e));
    while (w->lane[lane].started - w->lane[lane].finished == STEPS_OUT) {
        wait_for_step(w->e.exec, lane);
        health_beat(w, clock_now());
        TRY(retire(f, e));
    }
    return 0;
}

/* Draws that depend on tokens further back find them there. */
static void
keep_tokens(struct rank_loop *f, const struct batch *b)
{
    for (uint32_t i = 0; i < b->n_runs; i++) {
        const struct batch_run *r = &b->run[i];
        token_id *to = f->token + (size_t)r->seat * f->max_len + r->first_pos;

        for (uint32_t k = 0; f->looks_back[r->seat] && k < r->n_rows; k++)
            if (b->token[r->first_row + k] >= 0) to[k] = b->token[r->first_row + k];
    }
}

static int
take_more(struct rank_loop *f, const struct ring_record *rec, struct err *e)
{
    if (rec->len > f->packed_bytes - f->n_packed) return wrong(rec, e);
    memcpy(f->packed + f->n_packed, rec->data, rec->len);
    f->n_packed += rec->len;
    return 0;
}

static int
unpack(struct rank_loop *f, const struct ring_record *rec, struct err *e)
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

    TRY(unpack(f, rec, e));
    TRY(batch_within(b, &f->bounds, e));
    if (b->step != w->lane[b->lane].started + 1)
        return err_set(e, -EBADMSG, "plan ring: step %llu of lane %u", (unsigned long long)b->step,
                       b->lane);
    keep_tokens(f, b);
    TRY(make_room(f, b->lane, e));
    w->lane[b->lane].started++;
    FP(rank_planned);
    TRY(exec_start(w->e.exec, b, e));
    FP(rank_launched);
    return 0;
}

static int
take(struct rank_loop *f, const struct ring_record *rec, struct err *e)
{
    switch (rec->type) {
    case PLAN_SEAT:
        return take_seat(f, rec, e);
    case PLAN_TOKENS:
    case PLAN_SEEN:
        return take_tokens(f, rec, e);
    case PLAN_MORE:
        return take_more(f, rec, e);
    case PLAN_STEP:
        return take_step(f, rec, e);
    case PLAN_PARTS:
        return take_parts(f, rec, e);
    default:
        return wrong(rec, e);
    }
}

static int
turn(struct rank_loop *f, struct err *e)
{
    struct link *l = &f->w->link;
    struct ring_record rec;
    bool some = false;
    int r;

    TRY(retire(f, e));
    while ((r = ring_peek(&l->in, &rec)) > 0) {
        TRY(take(f, &rec, e));
        link_release(l);
        some = true;
    }
    if (r < 0) return err_set(e, r, "plan ring: %s", ring_why(&l->in));
    if (some) return 0;
    return rest(f, IDLE_TURN) < 0 ? err_set(e, -EPIPE, "rank 0 is gone") : 0;
}

/* ---- its life */

/* A turn while the loader works. */
static int
look_on(struct worker *w, struct err *e)
{
    struct pollfd p = { .fd = w->link.bell.fd };

    if (poll(&p, 1, (int)(LOAD_TURN / NSEC_MS)) > 0 && p.revents & POLLHUP)
        return err_set(e, -EPIPE, "rank 0 is gone");
    return 0;
}

static int
make(struct rank_loop *f, struct err *e)
{
    const struct engine *n = &f->w->e;
    const struct exec_config *x = &n->steps;
    uint32_t rows = x->max_rows + x->max_enc_rows;

    f->max_len = n->model->shape.max_len;
    f->token_bytes = (size_t)n->limits.max_seqs * f->max_len * sizeof *f->token;
    f->token = mmap(NULL, f->token_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (f->token == MAP_FAILED) f->token = NULL;
    f->looks_back = calloc(n->limits.max_seqs, sizeof *f->looks_back);
    f->bias = calloc((size_t)n->limits.max_seqs * EXEC_MAX_BIAS, sizeof *f->bias);
    f->bounds = (struct batch_bounds){
        .kv = &n->kv_config,
        .n_lanes = n->limits.n_lanes,
        .n_rungs = MAX_RUNGS,
        .max_rows = x->max_rows,
        .max_enc_rows = x->max_enc_rows,
        .vocab = n->model->whole.vocab,
        .max_len = f->max_len,
        .max_source = n->max_source,
        .n_enc_layers = n->model->shape.n_encoder_layers,
        .bucket = n->limits.bucket,
        .n_buckets = n->limits.n_buckets,
    };
    f->batch = batch_new(rows, n->limits.max_seqs, x->max_edits, x->max_copies);
    f->packed_bytes = f->batch ? batch_most_bytes(f->batch) : 0;
    f->packed = malloc(f->packed_bytes);
    if (f->token && f->looks_back && f->bias && f->batch && f->packed) return 0;
    return err_set(e, -ENOMEM, "memory for plans");
}

int
rank_loop_run(struct worker *w, struct err *e)
{
    struct rank_loop f = { .w = w };
    int r = load_run(w, look_on, e);

    if (r == 0) r = make(&f, e);
    w->loaded = r == 0;
    if (r == 0) {
        prctl(PR_SET_TIMERSLACK, 1000ul); /* 50 us by default: a nap ends when it says */
        health_phase(w, PHASE_READY, 0);
        log_info("rank %u of %u is ready in %.2f s on %s, %.1f MiB weights%s, %.1f MiB KV", w->rank,
                 w->keys.tensor_parallel, (double)w->e.load_ns / NSEC_S, gpu_describe(w->e.gpu),
                 (double)w->e.model->weight_bytes / (1 << 20),
                 w->e.model->adopted ? " (adopted)" : "", (double)w->e.kv_arena.bytes / (1 << 20));
    }
    while (r == 0) r = turn(&f, e);
    if (f.token) munmap(f.token, f.token_bytes);
    free(f.looks_back);
    free(f.bias);
    free(f.packed);
    batch_free(f.batch);
    return r;
}
