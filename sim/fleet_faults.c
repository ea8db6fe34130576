/* fleet_faults.c - cancelled and suspended clients, crashed workers: see fleet_internal.h. */
#include "sim/fleet_internal.h"

#include "include/lagan_wire.h"

/* The next random number, 0 <= x < 1. */
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

void
faults_plan(struct fleet *f, struct fleet_request *j)
{
    const struct fleet_faults *m = &f->s.faults;
    const struct sim_cost *c = &f->s.worker.cost;
    nsec step = c->launch + (nsec)((double)c->work.weights / c->bandwidth * 1e9);
    nsec life = 4 * step * (j->t.osl + 1); /* roughly its run time */

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

void
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

void
faults_suspend(struct fleet *f, uint64_t id, bool suspended)
{
    struct fleet_request *j = fleet_request_find(f, id);

    if (!j || j->worker == NOBODY) return;
    j->suspended = suspended;
    scheduler_suspend(f->m[j->worker].w.s, id, suspended);
    fleet_kick(f, j->worker);
}

void
faults_schedule_crash(struct fleet *f, uint32_t worker)
{
    double rate = f->s.faults.deaths;

    if (rate > 0)
        events_add(&f->events, (struct sim_event){ .at = some_time(f, (nsec)(2e9 / rate)),
                                                   .kind = EVENT_DEATH,
                                                   .worker = worker });
}

void
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
    f->result.preemptions += scheduler_n_preemptions(m->w.s);
    if (f->holders) block_holders_forget(f->holders, worker);
    worker_close(&m->w);
    m->life++;
    f->table[worker].open = false;
    events_add(&f->events, (struct sim_event){ .at = f->now + f->s.faults.restart,
                                               .kind = EVENT_RESTART,
                                               .worker = worker });
    fleet_dispatch(f);
}
