/* fleet.c - handles the fleet's events in order of time, and injects faults: see fleet.h.
 *
 * A request exists from its arrival to its single end, across crashes of workers. It is either in
 * the fleet's queue or at one worker. Faults are cancelled and suspended clients and crashed
 * workers.
 */
#include "sim/fleet_internal.h"

#include "include/lagan_wire.h"

enum { EVENTS = 4096, HOLDINGS = 1 << 23 };

/* Returns the next random number x, 0 <= x < 1. */
static double
draw_share(struct fleet *f)
{
    f->random ^= f->random << 13;
    f->random ^= f->random >> 7;
    f->random ^= f->random << 17;
    return (double)(f->random >> 11) / 9007199254740992.0;
}

static nsec
some_time(struct fleet *f, nsec most)
{
    return f->now + 1 + (nsec)(draw_share(f) * (double)most);
}

static void
faults_plan(struct fleet *f, struct fleet_request *j)
{
    const struct fleet_faults *m = &f->s.faults;
    const struct sim_cost *c = &f->s.worker.cost;
    nsec step = c->launch + (nsec)((double)c->work.weights / c->bandwidth * 1e9);
    nsec life = 4 * step * (j->t.osl + 1); /* roughly the run time of the request */

    j->stop = j->t.osl;
    if (m->stopped > 0 && draw_share(f) < m->stopped)
        j->stop = 1 + (uint32_t)(draw_share(f) * j->t.osl);
    if (m->cancelled > 0 && draw_share(f) < m->cancelled)
        events_add(&f->events, (struct sim_event){
                                   .at = some_time(f, life), .kind = EVENT_CANCEL, .id = j->id });
    if (m->suspended > 0 && draw_share(f) < m->suspended) {
        nsec at = some_time(f, life);

        events_add(&f->events, (struct sim_event){ .at = at, .kind = EVENT_SUSPEND, .id = j->id });
        events_add(&f->events,
                   (struct sim_event){ .at = at + life, .kind = EVENT_RESUME, .id = j->id });
    }
}

static void
faults_cancel(struct fleet *f, uint64_t id)
{
    struct fleet_request *j = fleet_request_find(f, id);

    if (!j) return;
    j->gone = true;
    if (j->worker != NOBODY) {
        uint32_t worker = j->worker;

        scheduler_cancel(f->m[worker].w.s, id, LAGAN_E_CANCELLED);
        fleet_kick(f, worker);
        if (f->queue.n > 0) fleet_dispatch(f);
        return;
    }
    fleet_list_remove(&f->queue, j);
    fleet_request_end(f, j);
}

static void
faults_suspend(struct fleet *f, uint64_t id, bool suspended)
{
    struct fleet_request *j = fleet_request_find(f, id);

    if (!j || j->worker == NOBODY) return;
    j->suspended = suspended;
    scheduler_suspend(f->m[j->worker].w.s, id, suspended);
    fleet_kick(f, j->worker);
}

static void
faults_schedule_crash(struct fleet *f, uint32_t worker)
{
    double rate = f->s.faults.deaths;

    if (rate > 0)
        events_add(&f->events, (struct sim_event){ .at = some_time(f, (nsec)(2e9 / rate)),
                                                   .kind = EVENT_DEATH,
                                                   .worker = worker });
}

/* Crashes a worker: its requests return to the queue's head, with the tokens that clients have. */
static void
faults_crash(struct fleet *f, uint32_t worker)
{
    struct fleet_worker *m = &f->m[worker];
    struct fleet_request *behind = NULL;

    f->result.deaths++;
    for (struct fleet_request *j; (j = m->requests.first);) {
        fleet_request_leave(f, j);
        if (j->gone || j->n_delivered >= j->stop) {
            fleet_request_end(f, j);
            continue;
        }
        fleet_list_add(&f->queue, j, behind);
        behind = j;
        f->result.moved++;
    }
    f->result.preemptions += scheduler_counts(m->w.s).preemptions;
    if (f->holders) block_holders_forget(f->holders, worker);
    worker_close(&m->w);
    m->life++;
    f->table[worker].open = false;
    events_add(&f->events, (struct sim_event){ .at = f->now + f->s.faults.restart,
                                               .kind = EVENT_RESTART,
                                               .worker = worker });
    fleet_dispatch(f);
}

static int
open_member(struct fleet *f, uint32_t i, struct err *e)
{
    struct fleet_worker *m = &f->m[i];

    TRY(worker_open(&m->w, &f->s.worker, e));
    m->w.sampled = fleet_request_deliver;
    m->w.sampled_to = f;
    m->wake = NSEC_NEVER;
    m->next_event = 0;
    memset(m->running, 0, sizeof m->running);
    f->table[i] = (struct route_worker){ .open = true,
                                         .max_seqs = f->s.worker.sched.max_seqs + f->s.ahead };
    return 0;
}

static void
report_use_due(struct fleet *f)
{
    struct fleet_use u = { .at = f->next_use,
                           .queued = f->queue.n,
                           .n_pools = kv_n_pools(f->m[0].w.kv) };

    for (uint32_t i = 0; i < f->s.n_workers; i++) {
        const struct sim_worker *w = &f->m[i].w;

        if (!f->table[i].open) continue;
        u.waiting += scheduler_counts(w->s).waiting;
        u.running += scheduler_counts(w->s).running;
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
handle_event(struct fleet *f, const struct sim_event *e, struct err *err)
{
    bool stale = e->kind <= EVENT_WAKE && e->life != f->m[e->worker].life;

    if (stale) return 0;
    switch ((enum event_kind)e->kind) {
    case EVENT_STEP:
        fleet_finish_step(f, e);
        break;
    case EVENT_WAKE:
        f->m[e->worker].wake = NSEC_NEVER;
        fleet_kick(f, e->worker);
        break;
    case EVENT_DEATH:
        faults_crash(f, e->worker);
        break;
    case EVENT_RESTART:
        TRY(open_member(f, e->worker, err));
        faults_schedule_crash(f, e->worker);
        fleet_dispatch(f);
        break;
    case EVENT_CANCEL:
        faults_cancel(f, e->id);
        break;
    case EVENT_SUSPEND:
    case EVENT_RESUME:
        faults_suspend(f, e->id, e->kind == EVENT_SUSPEND);
        break;
    }
    return 0;
}

static int
run_until(struct fleet *f, nsec until, struct err *err)
{
    for (const struct sim_event *next; (next = events_next(&f->events)) && next->at <= until;) {
        struct sim_event e = *next;

        events_drop(&f->events);
        while (f->s.every > 0 && f->next_use <= e.at) report_use_due(f);
        f->now = e.at;
        TRY(handle_event(f, &e, err));
    }
    f->now = until == NSEC_NEVER ? f->now : until;
    return 0;
}

int
fleet_add(struct fleet *f, const struct trace_line *t, struct err *e)
{
    struct fleet_request *j = calloc(1, sizeof *j);

    if (!j) return err_set(e, -ENOMEM, "out of memory for a request of the trace");
    TRY(run_until(f, t->arrival, e));
    j->id = f->result.requests++;
    j->t = *t;
    j->worker = NOBODY;
    j->r.stream = t->session != TRACE_NONE ? t->session + (UINT64_C(1) << 40) : j->id;
    j->r.shared = t->prefix_id + (UINT64_C(1) << 41);
    j->r.n_shared = t->prefix_id != TRACE_NONE ? t->prefix_len : 0;
    f->result.prompt_tokens += t->isl;
    fleet_request_remember(f, j);
    faults_plan(f, j);
    if (f->holders && !t->encdec) fleet_name_blocks(f, j);
    fleet_list_add(&f->queue, j, f->queue.last);
    if (f->queue.n == 1) fleet_dispatch(f);
    return 0;
}

int
fleet_finish(struct fleet *f, struct err *e)
{
    struct fleet_result *r = &f->result;

    while (r->finished + r->cancelled + r->refused < r->requests) {
        const struct sim_event *next = events_next(&f->events);

        check(next); /* a request is still open, so the queue must have an event */
        TRY(run_until(f, next->at, e));
    }
    for (uint32_t i = 0; i < f->s.n_workers; i++) {
        if (!f->table[i].open) continue;
        r->preemptions += scheduler_counts(f->m[i].w.s).preemptions;
        if (!f->s.check) continue;
        while (worker_commit(&f->m[i].w, 0, f->now)) continue; /* its tokens are discarded */
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

struct fleet *
fleet_free(struct fleet *f)
{
    if (!f) return NULL;
    for (uint64_t i = 0; i < f->open_capacity; i++) {
        if (!f->open || !f->open[i]) continue;
        free(f->open[i]->r.seq.token);
        free(f->open[i]->name);
        free(f->open[i]);
    }
    for (uint32_t i = 0; i < f->s.n_workers && f->m; i++) worker_close(&f->m[i].w);
    events_done(&f->events);
    worker_close(&f->namer);
    block_holders_free(f->holders);
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

    if (!f) return err_set(e, -ENOMEM, "out of memory for the fleet");
    f->s = *setting;
    f->open_capacity = 1024;
    f->m = calloc(f->s.n_workers, sizeof f->m[0]);
    f->table = calloc(f->s.n_workers, sizeof f->table[0]);
    f->open = calloc(f->open_capacity, sizeof f->open[0]);
    f->bytes = f->s.digest ? malloc(PACK_BYTES) : NULL;
    if (!f->m || !f->table || !f->open || (f->s.digest && !f->bytes))
        return err_set(e, -ENOMEM, "out of memory for %u workers", f->s.n_workers);
    if (f->s.affinity) {
        f->s.worker.kv.max_events = EVENTS;
        f->holders = block_holders_new(HOLDINGS);
        if (!f->holders) return err_set(e, -ENOMEM, "out of memory for routing");
        TRY(worker_open(&f->namer, &f->s.worker, e));
    }
    f->random = f->s.faults.seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (uint32_t i = 0; i < f->s.n_workers; i++) {
        TRY(open_member(f, i, e));
        faults_schedule_crash(f, i);
    }
    *ret = TAKE(f);
    return 0;
}
