/* fleet.c - see fleet.h.
 *
 * A job is a request from its arrival to its one end, whatever happens to workers meanwhile. It is in the
 * fleet's queue or at one worker. A lane has at most two steps out: one that runs, and one planned behind it
 * that begins when that is over and those it waits for are.
 */
#include "sim/fleet.h"

#include "include/lagan_wire.h"
#include "route/holders.h"
#include "route/route.h"
#include "sim/cost.h"
#include "sim/events.h"
#include "sim/worker.h"
#include "worker/kv/kv_event.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum event_kind {
    EVENT_STEP,
    EVENT_WAKE,
    EVENT_DEATH,
    EVENT_RESTART,
    EVENT_CANCEL,
    EVENT_HALT,
    EVENT_GO_ON
};
enum {
    CHECK_EVERY = 4096,
    PACK_BYTES = 1 << 20,
    EVENTS = 4096,
    CANDIDATES = 16,
    HOLDINGS = 1 << 23
};
#define NOBODY UINT32_MAX

struct job {
    struct request r; /* first: seq->owner */
    struct trace_line t;
    uint64_t id;
    uint32_t told, worker; /* tokens of the answer; NOBODY: in the queue */
    uint32_t stop;         /* of them, where it ends */
    nsec first, last;      /* of its tokens */
    bool gone;             /* its client is */
    bool begun, halted;    /* at its worker */
    uint32_t passed;
    uint64_t (*name)[2]; /* [n_names] of its prompt's blocks, where route/ asks for them */
    uint32_t n_names;
    struct job *next, *prev;
};
struct jobs {
    struct job *first, *last;
    uint64_t n;
};

struct member { /* of the fleet */
    struct worker w;
    struct jobs jobs;
    bool running[MAX_LANES]; /* the lane's oldest step */
    uint32_t life;
    nsec wake;           /* the earliest EVENT_WAKE that is out */
    uint64_t next_event; /* of its KV manager */
};

struct fleet {
    struct fleet_setting s;
    struct member *m;
    struct route_worker *table; /* what lagand would know of each */
    struct route_holders *holders;
    struct worker namer; /* of blocks: one that does nothing else, and never dies */
    struct events events;
    struct jobs queue;
    struct job **open; /* jobs by id modulo room_open, for events that name one */
    uint64_t room_open;
    nsec now, next_use;
    uint64_t random, since_check;
    uint8_t *bytes;
    struct fleet_result result;
};

/* ---- small things */

static double
draw(struct fleet *f)
{
    f->random ^= f->random << 13;
    f->random ^= f->random >> 7;
    f->random ^= f->random << 17;
    return (double)(f->random >> 11) / 9007199254740992.0;
}

static void
jobs_add(struct jobs *l, struct job *j, struct job *behind)
{
    j->prev = behind;
    j->next = behind ? behind->next : l->first;
    *(j->next ? &j->next->prev : &l->last) = j;
    *(behind ? &behind->next : &l->first) = j;
    l->n++;
}

static void
jobs_take(struct jobs *l, struct job *j)
{
    *(j->prev ? &j->prev->next : &l->first) = j->next;
    *(j->next ? &j->next->prev : &l->last) = j->prev;
    l->n--;
}

static struct job *
job_of(const struct seq *q)
{
    return q->owner;
}

static struct job *
find_job(const struct fleet *f, uint64_t id)
{
    struct job *j = f->open[id % f->room_open];

    return j && j->id == id ? j : NULL;
}

/* Ids of open jobs lie within room_open of each other. */
static void
remember(struct fleet *f, struct job *j)
{
    while (f->open[j->id % f->room_open]) {
        struct job **more = calloc(2 * f->room_open, sizeof *more);

        check(more);
        for (uint64_t i = 0; i < f->room_open; i++)
            if (f->open[i]) more[f->open[i]->id % (2 * f->room_open)] = f->open[i];
        free(f->open);
        f->open = more;
        f->room_open *= 2;
    }
    f->open[j->id % f->room_open] = j;
}

/* ---- a request at a worker */

static uint32_t
prompt_of(const struct job *j)
{
    return (j->t.encdec ? 1 : j->t.isl) + j->told;
}

static uint64_t
tokens_ahead(const struct job *j)
{
    return (uint64_t)j->t.isl + j->t.osl;
}

static void
fill_seq(struct job *j)
{
    struct seq *q = &j->r.seq;
    uint32_t prompt = prompt_of(j), source = j->t.encdec ? j->t.isl : 0;

    free(q->token);
    *q = (struct seq){ .id = j->id,
                       .n_source = source,
                       .n_prompt = prompt,
                       .max_new = j->t.osl - j->told,
                       .cap = prompt + j->t.osl - j->told,
                       .priority = j->t.priority,
                       .client = j->t.client,
                       .lora = j->t.lora,
                       .pages = j->t.lora ? 1 + (uint32_t)(j->t.lora % 4) : 0,
                       .deadline = NSEC_NEVER,
                       .owner = j };
    q->token = malloc(((size_t)q->cap + source) * sizeof q->token[0]);
    check(q->token);
    for (uint32_t i = 0; i < prompt; i++) q->token[i] = request_token(&j->r, i);
    for (uint32_t i = 0; i < source; i++)
        q->token[q->cap + i] = request_token(&j->r, (1u << 24) + i);
    if (source > 0) q->source = q->token + q->cap;
    if (j->stop < j->t.osl) {
        q->n_end = 1;
        q->end_id[0] = request_token(&j->r, prompt - j->told + j->stop - 1);
    }
}

/* false: it can never run there, nor anywhere. */
static bool
give(struct fleet *f, struct job *j, uint32_t worker)
{
    struct member *m = &f->m[worker];
    struct err e;

    fill_seq(j);
    if (scheduler_add(m->w.s, &j->r.seq, f->now, &e) < 0) return false;
    jobs_add(&m->jobs, j, m->jobs.last);
    j->begun = j->halted = false;
    j->passed = 0;
    j->worker = worker;
    f->table[worker].rows++;
    f->table[worker].tokens += tokens_ahead(j);
    return true;
}

static void
leave(struct fleet *f, struct job *j)
{
    jobs_take(&f->m[j->worker].jobs, j);
    f->table[j->worker].rows--;
    f->table[j->worker].tokens -= tokens_ahead(j);
    j->worker = NOBODY;
}

/* A token that its client sees. */
static void
tell(struct request *r, token_id token, nsec now, void *to)
{
    struct fleet *f = to;
    struct job *j = job_of(&r->seq);

    (void)token;
    if (j->told++ == 0) {
        j->first = now;
        hist_add(&f->result.ttft, now - j->t.arrival, 1);
    } else {
        hist_add(&f->result.itl, now - j->last, 1);
    }
    j->last = now;
    f->result.output_tokens++;
}

/* Nothing more comes: it has what it asked for, its client is gone, or nobody could run it. */
static void
end_job(struct fleet *f, struct job *j)
{
    struct fleet_result *r = &f->result;

    check(find_job(f, j->id) == j);
    f->open[j->id % f->room_open] = NULL;
    if (j->told >= j->stop) {
        r->finished++;
        hist_add(&r->e2e, f->now - j->t.arrival, 1);
    } else if (j->gone) {
        r->cancelled++;
    } else {
        r->refused++;
    }
    r->end = f->now;
    free(j->r.seq.token);
    free(j->name);
    free(j);
}

static void
reap(struct fleet *f, struct member *m)
{
    for (struct seq *q; (q = scheduler_reap(m->w.s));) {
        struct job *j = job_of(q);

        check(q->reason != LAGAN_FINISH_LENGTH || j->told == j->t.osl);
        check(q->reason != LAGAN_FINISH_STOP || j->told <= j->stop);
        check(q->reason != LAGAN_E_CANCELLED || j->gone);
        if (q->reason == LAGAN_FINISH_STOP)
            j->stop = j->told; /* the token came by chance, earlier */
        f->result.cached_tokens += q->n_cached;
        leave(f, j);
        end_job(f, j);
    }
}

/* ---- steps */

static void
start_step(struct fleet *f, uint32_t worker, unsigned lane)
{
    struct member *m = &f->m[worker];
    const struct batch *b = m->w.batch[lane][(m->w.done[lane] + 1) % WORKER_OUT];

    if (m->running[lane] || m->w.planned[lane] == m->w.done[lane]) return;
    if (scheduler_turn(m->w.s, b) != lane) return; /* waits for another lane's */
    m->running[lane] = true;
    events_add(&f->events, (struct event){ .at = f->now + cost_of(&m->w.st, b),
                                           .kind = EVENT_STEP,
                                           .lane = (uint8_t)lane,
                                           .worker = worker,
                                           .life = m->life });
}

static void
digest(struct fleet *f, uint32_t worker, const struct batch *b)
{
    int n = batch_pack(b, f->bytes, PACK_BYTES);

    check(n >= 0);
    f->result.digest = XXH3_64bits_withSeed(f->bytes, (size_t)n, f->result.digest + worker);
}

/* It runs for the first time there: whoever of its client came before it, is no less urgent and has not begun was passed over. */
static void
begin(struct fleet *f, struct job *j)
{
    if (j->begun) return;
    j->begun = true;
    for (struct job *k = j->prev; k; k = k->prev) {
        if (k->begun || k->halted || k->gone || k->t.lora || k->t.client != j->t.client ||
            k->t.priority < j->t.priority)
            continue;
        f->result.passed = MAX(f->result.passed, ++k->passed);
    }
}

static void
begin_all(struct fleet *f, const struct member *m, const struct batch *b)
{
    for (uint32_t i = 0; i < b->n_runs; i++)
        if (b->run[i].flags & RUN_FIRST_CHUNK)
            begin(f, job_of(scheduler_seat(m->w.s, b->run[i].seat)));
    for (uint32_t i = 0; i < b->n_encode; i++)
        begin(f, job_of(scheduler_seat(m->w.s, b->encode[i].seat)));
}

/* Plan what the worker's lanes have room for, start what may start. */
static void
kick(struct fleet *f, uint32_t worker)
{
    struct member *m = &f->m[worker];
    bool more = true, out = false;

    if (!f->table[worker].open) return;
    while (more) {
        more = false;
        for (unsigned l = 0; l < m->w.st.sched.n_lanes; l++) {
            const struct batch *b = worker_plan(&m->w, l, f->now);

            if (!b) continue;
            more = true;
            f->result.steps++;
            if (f->s.digest) digest(f, worker, b);
            if (f->s.check) begin_all(f, m, b);
            start_step(f, worker, l);
        }
    }
    for (unsigned l = 0; l < m->w.st.sched.n_lanes; l++) {
        start_step(f, worker, l);
        out = out || m->w.planned[l] != m->w.done[l];
    }
    reap(f, m);
    if (!out && scheduler_wake(m->w.s) < m->wake) {
        m->wake = MAX(scheduler_wake(m->w.s), f->now + 1);
        events_add(
            &f->events,
            (struct event){ .at = m->wake, .kind = EVENT_WAKE, .worker = worker, .life = m->life });
    }
}

/* ---- where to */

static void
name_blocks(struct fleet *f, struct job *j)
{
    uint32_t max = j->t.isl / f->s.worker.kv.tokens_per_block, n = j->t.isl;
    token_id *token = malloc(n * sizeof *token);
    struct kv_space space;
    struct kv_text t = { .token = token, .n = n, .space = &space };

    check(token);
    j->name = malloc(MAX(max, 1u) * sizeof j->name[0]);
    check(j->name);
    for (uint32_t i = 0; i < n; i++) token[i] = request_token(&j->r, i);
    kv_space(f->namer.kv, 0, j->t.lora, NULL, 0, &space);
    j->n_names = kv_names(f->namer.kv, &t, j->name, max);
    free(token);
}

/* What the worker's blocks became since the last look. */
static void
listen(struct fleet *f, uint32_t worker)
{
    struct member *m = &f->m[worker];
    struct kv_event e[64];
    uint64_t missed = 0;
    uint32_t n, at = 0;

    while (f->holders && (n = kv_events(m->w.kv, &m->next_event, e, ARRAY_LEN(e), &missed)))
        for (uint32_t i = 0; i < n; i++) {
            if (e[i].group != 0) continue;
            if (e[i].op == KV_STORED) route_hold(f->holders, worker, e[i].name);
            if (e[i].op == KV_REMOVED) route_lose(f->holders, worker, e[i].name);
        }
    if (missed == 0) return;
    route_forget(f->holders, worker);
    while ((n = kv_event_snapshot(m->w.kv, &at, e, ARRAY_LEN(e))))
        for (uint32_t i = 0; i < n; i++)
            if (e[i].group == 0) route_hold(f->holders, worker, e[i].name);
}

static uint32_t
pick(struct fleet *f, const struct job *j)
{
    uint32_t worker[CANDIDATES], found[CANDIDATES], n = 0, i;

    if (f->holders)
        n = route_found(f->holders, (const uint64_t(*)[2])j->name, j->n_names, worker, found,
                        CANDIDATES);
    for (uint32_t k = 0; k < n; k++)
        f->table[worker[k]].found = (uint64_t)found[k] * f->s.worker.kv.tokens_per_block;
    i = route_pick(f->table, f->s.n_workers, 0);
    for (uint32_t k = 0; k < n; k++) f->table[worker[k]].found = 0;
    return i;
}

static void
dispatch(struct fleet *f)
{
    for (struct job *j; (j = f->queue.first);) {
        uint32_t i = pick(f, j);

        if (i == ROUTE_NONE) return;
        jobs_take(&f->queue, j);
        if (give(f, j, i)) {
            kick(f, i);
        } else {
            end_job(f, j);
        }
    }
}

static void
finish_step(struct fleet *f, const struct event *e)
{
    struct member *m = &f->m[e->worker];
    uint64_t running = scheduler_n_running(m->w.s);

    f->result.peak_running = MAX(f->result.peak_running, running);
    m->running[e->lane] = false;
    check(worker_commit(&m->w, e->lane, f->now));
    reap(f, m);
    kick(f, e->worker);
    listen(f, e->worker);
    if (f->s.check && ++f->since_check % CHECK_EVERY == 0) scheduler_check(m->w.s);
    if (f->queue.n > 0) dispatch(f);
}

/* ---- mischief */

static nsec
some_time(struct fleet *f, nsec most)
{
    return f->now + 1 + (nsec)(draw(f) * (double)most);
}

static void
plan_mischief(struct fleet *f, struct job *j)
{
    const struct fleet_mischief *m = &f->s.mischief;
    const struct cost *c = &f->s.worker.cost;
    nsec step = c->launch + (nsec)((double)c->weights / c->bandwidth * 1e9);
    nsec life = 4 * step * (j->t.osl + 1); /* about as long as it runs */

    j->stop = j->t.osl;
    if (m->stopped > 0 && draw(f) < m->stopped) j->stop = 1 + (uint32_t)(draw(f) * j->t.osl);
    if (m->cancelled > 0 && draw(f) < m->cancelled)
        events_add(&f->events,
                   (struct event){ .at = some_time(f, life), .kind = EVENT_CANCEL, .job = j->id });
    if (m->halted > 0 && draw(f) < m->halted) {
        nsec at = some_time(f, life);

        events_add(&f->events, (struct event){ .at = at, .kind = EVENT_HALT, .job = j->id });
        events_add(&f->events,
                   (struct event){ .at = at + life, .kind = EVENT_GO_ON, .job = j->id });
    }
}

static void
cancel(struct fleet *f, uint64_t id)
{
    struct job *j = find_job(f, id);

    if (!j) return;
    j->gone = true;
    if (j->worker != NOBODY) {
        uint32_t worker = j->worker;

        scheduler_cancel(f->m[worker].w.s, id, LAGAN_E_CANCELLED);
        kick(f, worker);
        if (f->queue.n > 0) dispatch(f);
        return;
    }
    jobs_take(&f->queue, j);
    end_job(f, j);
}

static void
halt(struct fleet *f, uint64_t id, bool halted)
{
    struct job *j = find_job(f, id);

    if (!j || j->worker == NOBODY) return;
    j->halted = halted;
    scheduler_halt(f->m[j->worker].w.s, id, halted);
    kick(f, j->worker);
}

static void
next_death(struct fleet *f, uint32_t worker)
{
    double rate = f->s.mischief.deaths;

    if (rate > 0)
        events_add(&f->events, (struct event){ .at = some_time(f, (nsec)(2e9 / rate)),
                                               .kind = EVENT_DEATH,
                                               .worker = worker });
}

/* Its requests go back to the head of the queue, with what their clients have. */
static void
die(struct fleet *f, uint32_t worker)
{
    struct member *m = &f->m[worker];
    struct job *behind = NULL;

    f->result.deaths++;
    for (struct job *j; (j = m->jobs.first);) {
        leave(f, j);
        if (j->gone || j->told >= j->stop) {
            end_job(f, j);
            continue;
        }
        jobs_add(&f->queue, j, behind);
        behind = j;
        f->result.moved++;
    }
    f->result.pauses += scheduler_n_pauses(m->w.s);
    if (f->holders) route_forget(f->holders, worker);
    worker_close(&m->w);
    m->life++;
    f->table[worker].open = false;
    events_add(&f->events, (struct event){ .at = f->now + f->s.mischief.restart,
                                           .kind = EVENT_RESTART,
                                           .worker = worker });
    dispatch(f);
}

/* ---- what happens */

static int
open_member(struct fleet *f, uint32_t i, struct err *e)
{
    struct member *m = &f->m[i];

    TRY(worker_open(&m->w, &f->s.worker, e));
    m->w.sampled = tell;
    m->w.sampled_to = f;
    m->wake = NSEC_NEVER;
    m->next_event = 0;
    memset(m->running, 0, sizeof m->running);
    f->table[i] = (struct route_worker){ .open = true,
                                         .max_rows = f->s.worker.sched.max_seqs + f->s.ahead };
    return 0;
}

static int
restart(struct fleet *f, uint32_t worker, struct err *e)
{
    TRY(open_member(f, worker, e));
    next_death(f, worker);
    dispatch(f);
    return 0;
}

static void
tell_use(struct fleet *f)
{
    struct fleet_use u = { .at = f->next_use, .queued = f->queue.n };

    for (uint32_t i = 0; i < f->s.n_workers; i++) {
        const struct worker *w = &f->m[i].w;

        if (!f->table[i].open) continue;
        u.waiting += scheduler_n_waiting(w->s);
        u.running += scheduler_n_running(w->s);
        for (uint32_t p = 0; p < kv_n_pools(w->kv); p++) {
            struct kv_count n;

            kv_count(w->kv, p, &n);
            u.used[p] += n.used;
            u.cached[p] += n.cached;
            u.free[p] += n.free;
        }
    }
    f->s.use(f->s.to, &u);
    f->next_use += f->s.every;
}

static int
happen(struct fleet *f, const struct event *e, struct err *err)
{
    bool stale = e->kind <= EVENT_WAKE && e->life != f->m[e->worker].life;

    if (stale) return 0;
    switch ((enum event_kind)e->kind) {
    case EVENT_STEP:
        finish_step(f, e);
        break;
    case EVENT_WAKE:
        f->m[e->worker].wake = NSEC_NEVER;
        kick(f, e->worker);
        break;
    case EVENT_DEATH:
        die(f, e->worker);
        break;
    case EVENT_RESTART:
        return restart(f, e->worker, err);
    case EVENT_CANCEL:
        cancel(f, e->job);
        break;
    case EVENT_HALT:
    case EVENT_GO_ON:
        halt(f, e->job, e->kind == EVENT_HALT);
        break;
    }
    return 0;
}

/* Everything up to that time. */
static int
go_on(struct fleet *f, nsec until, struct err *err)
{
    for (const struct event *next; (next = events_next(&f->events)) && next->at <= until;) {
        struct event e = *next;

        events_drop(&f->events);
        while (f->s.every > 0 && f->next_use <= e.at) tell_use(f);
        f->now = e.at;
        TRY(happen(f, &e, err));
    }
    f->now = until == NSEC_NEVER ? f->now : until;
    return 0;
}

int
fleet_add(struct fleet *f, const struct trace_line *t, struct err *e)
{
    struct job *j = calloc(1, sizeof *j);

    if (!j) return err_set(e, -ENOMEM, "request %llu", (unsigned long long)f->result.requests);
    TRY(go_on(f, t->arrival, e));
    j->id = f->result.requests++;
    j->t = *t;
    j->worker = NOBODY;
    j->r.stream = t->session != TRACE_NONE ? t->session + (UINT64_C(1) << 40) : j->id;
    j->r.shared = t->prefix_id + (UINT64_C(1) << 41);
    j->r.n_shared = t->prefix_id != TRACE_NONE ? t->prefix_len : 0;
    f->result.prompt_tokens += t->isl;
    remember(f, j);
    plan_mischief(f, j);
    if (f->holders && !t->encdec) name_blocks(f, j);
    jobs_add(&f->queue, j, f->queue.last);
    if (f->queue.n == 1) dispatch(f);
    return 0;
}

int
fleet_finish(struct fleet *f, struct err *e)
{
    struct fleet_result *r = &f->result;

    while (r->finished + r->cancelled + r->refused < r->requests) {
        const struct event *next = events_next(&f->events);

        check(next); /* somebody waits for nothing */
        TRY(go_on(f, next->at, e));
    }
    for (uint32_t i = 0; i < f->s.n_workers; i++) {
        if (!f->table[i].open) continue;
        r->pauses += scheduler_n_pauses(f->m[i].w.s);
        if (!f->s.check) continue;
        while (worker_commit(&f->m[i].w, 0, f->now)) continue; /* rows thrown away */
        scheduler_check(f->m[i].w.s);
        for (uint32_t p = 0; p < kv_n_pools(f->m[i].w.kv); p++) {
            struct kv_count n;

            kv_count(f->m[i].w.kv, p, &n);
            check(n.used == 0 && n.cached + n.free == n.blocks);
        }
    }
    return 0;
}

const struct fleet_result *
fleet_result(const struct fleet *f)
{
    return &f->result;
}

uint32_t
fleet_n_pools(const struct fleet *f)
{
    return kv_n_pools(f->m[0].w.kv);
}

struct fleet *
fleet_free(struct fleet *f)
{
    if (!f) return NULL;
    for (uint64_t i = 0; i < f->room_open; i++) {
        if (!f->open || !f->open[i]) continue;
        free(f->open[i]->r.seq.token);
        free(f->open[i]->name);
        free(f->open[i]);
    }
    for (uint32_t i = 0; i < f->s.n_workers && f->m; i++) worker_close(&f->m[i].w);
    events_done(&f->events);
    worker_close(&f->namer);
    route_holders_free(f->holders);
    free(f->open);
    free(f->m);
    free(f->table);
    free(f->bytes);
    free(f);
    return NULL;
}

int
fleet_new(struct fleet **ret, const struct fleet_setting *setting, struct err *e)
{
    CLEAN(fleet_free_at) struct fleet *f = calloc(1, sizeof *f);

    if (!f) return err_set(e, -ENOMEM, "fleet");
    f->s = *setting;
    f->room_open = 1024;
    f->m = calloc(f->s.n_workers, sizeof f->m[0]);
    f->table = calloc(f->s.n_workers, sizeof f->table[0]);
    f->open = calloc(f->room_open, sizeof f->open[0]);
    f->bytes = f->s.digest ? malloc(PACK_BYTES) : NULL;
    if (!f->m || !f->table || !f->open || (f->s.digest && !f->bytes))
        return err_set(e, -ENOMEM, "%u workers", f->s.n_workers);
    if (f->s.affinity) {
        f->s.worker.kv.max_events = EVENTS;
        f->holders = route_holders_new(HOLDINGS);
        if (!f->holders) return err_set(e, -ENOMEM, "route");
        TRY(worker_open(&f->namer, &f->s.worker, e));
    }
    f->random = f->s.mischief.seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (uint32_t i = 0; i < f->s.n_workers; i++) {
        TRY(open_member(f, i, e));
        next_death(f, i);
    }
    *ret = TAKE(f);
    return 0;
}
