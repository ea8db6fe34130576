/* fleet_request.c - handles a request from arrival to end, the steps of a worker, and the selection
 * of a worker: see fleet_internal.h.
 *
 * A lane has at most two steps in flight: one that runs, and one that is planned and starts when
 * the first one, and the steps of other lanes on which it depends, have ended.
 */
#include "sim/fleet_internal.h"

#include "include/lagan_wire.h"
#include "sim/cost.h"
#include "worker/kv/kv_event.h"

#include <xxhash.h>

enum { CHECK_EVERY = 4096, CANDIDATES = 16 };

void
fleet_list_add(struct fleet_request_list *l, struct fleet_request *j, struct fleet_request *behind)
{
    j->prev = behind;
    j->next = behind ? behind->next : l->first;
    *(j->next ? &j->next->prev : &l->last) = j;
    *(behind ? &behind->next : &l->first) = j;
    l->n++;
}

void
fleet_list_remove(struct fleet_request_list *l, struct fleet_request *j)
{
    *(j->prev ? &j->prev->next : &l->first) = j->next;
    *(j->next ? &j->next->prev : &l->last) = j->prev;
    l->n--;
}

struct fleet_request *
fleet_request_find(const struct fleet *f, uint64_t id)
{
    struct fleet_request *j = f->open[id % f->open_capacity];

    return j && j->id == id ? j : NULL;
}

/* Adds j to f->open, where a request has the index id % open_capacity. Doubles the capacity until
 * no two open requests have the same index. */
void
fleet_request_remember(struct fleet *f, struct fleet_request *j)
{
    while (f->open[j->id % f->open_capacity]) {
        struct fleet_request **more = calloc(2 * f->open_capacity, sizeof *more);

        check(more);
        for (uint64_t i = 0; i < f->open_capacity; i++)
            if (f->open[i]) more[f->open[i]->id % (2 * f->open_capacity)] = f->open[i];
        free(f->open);
        f->open = more;
        f->open_capacity *= 2;
    }
    f->open[j->id % f->open_capacity] = j;
}

static void
fill_seq(struct fleet_request *j)
{
    struct seq *q = &j->r.seq;
    uint32_t prompt = (j->t.encdec ? 1 : j->t.isl) + j->n_delivered,
             source = j->t.encdec ? j->t.isl : 0;

    free(q->token);
    *q = (struct seq){ .id = j->id,
                       .n_source = source,
                       .n_prompt = prompt,
                       .max_new = j->t.osl - j->n_delivered,
                       .cap = prompt + j->t.osl - j->n_delivered,
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
        q->end_id[0] = request_token(&j->r, prompt - j->n_delivered + j->stop - 1);
    }
}

/* Gives a request to a worker, which has `found` of its tokens. False: it fits no worker. */
static bool
give_request(struct fleet *f, struct fleet_request *j, uint32_t worker, uint64_t found)
{
    struct fleet_worker *m = &f->m[worker];
    struct err e;

    fill_seq(j);
    if (scheduler_add(m->w.s, &j->r.seq, f->now, &e) < 0) return false;
    fleet_list_add(&m->requests, j, m->requests.last);
    j->begun = j->suspended = false;
    j->passed = 0;
    j->worker = worker;
    f->table[worker].n_seqs++;
    j->load = (uint64_t)j->t.isl + j->t.osl - found;
    f->table[worker].tokens += j->load;
    return true;
}

void
fleet_request_leave(struct fleet *f, struct fleet_request *j)
{
    fleet_list_remove(&f->m[j->worker].requests, j);
    f->table[j->worker].n_seqs--;
    f->table[j->worker].tokens -= j->load;
    j->worker = NOBODY;
}

void
fleet_request_deliver(struct sim_request *r, token_id token, nsec now, void *to)
{
    struct fleet *f = to;
    struct fleet_request *j = r->seq.owner;

    (void)token;
    if (j->n_delivered++ == 0) {
        j->first = now;
        hist_add(&f->result.ttft, now - j->t.arrival, 1);
    } else {
        hist_add(&f->result.itl, now - j->last, 1);
    }
    j->last = now;
    f->result.output_tokens++;
}

void
fleet_request_end(struct fleet *f, struct fleet_request *j)
{
    struct fleet_result *r = &f->result;

    check(fleet_request_find(f, j->id) == j);
    f->open[j->id % f->open_capacity] = NULL;
    if (j->n_delivered >= j->stop) {
        r->finished++;
        hist_add(&r->e2e, f->now - j->t.arrival, 1);
        if (j->n_delivered > 1) hist_add(&r->tpot, (j->last - j->first) / (j->n_delivered - 1), 1);
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
reap_requests(struct fleet *f, struct fleet_worker *m)
{
    for (struct seq *q; (q = scheduler_reap(m->w.s));) {
        struct fleet_request *j = q->owner;

        check(q->reason != LAGAN_FINISH_LENGTH || j->n_delivered == j->t.osl);
        check(q->reason != LAGAN_FINISH_STOP || j->n_delivered <= j->stop);
        check(q->reason != LAGAN_E_CANCELLED || j->gone);
        if (q->reason == LAGAN_FINISH_STOP)
            j->stop = j->n_delivered; /* the end id was sampled before */
        f->result.cached_tokens += q->n_cached;
        fleet_request_leave(f, j);
        fleet_request_end(f, j);
    }
}

static void
start_step(struct fleet *f, uint32_t worker, unsigned lane)
{
    struct fleet_worker *m = &f->m[worker];
    const struct batch *b = m->w.batch[lane][(m->w.done[lane] + 1) % WORKER_OUT];
    bool beside_whole = false;
    struct part_share has;

    if (m->running[lane] || m->w.planned[lane] == m->w.done[lane]) return;
    /* the step depends on another lane's step */
    if (scheduler_commit_lane(m->w.s, b) != lane) return;
    for (unsigned l = 0; l < m->w.st.sched.n_lanes; l++)
        beside_whole = beside_whole || (l != lane && m->running[l] && m->whole[l]);
    m->running[lane] = true;
    m->whole[lane] = b->partition == 0;
    has = cost_share(&m->w.st, &m->w.partition_list, b, beside_whole);
    events_add(&f->events, (struct sim_event){ .at = f->now + cost_of(&m->w.st, b, has),
                                               .kind = EVENT_STEP,
                                               .lane = (uint8_t)lane,
                                               .worker = worker,
                                               .life = m->life });
}

/* Call at each step of j: at the first one, counts it for the requests that j overtook (soak.h). */
static void
count_passed_over(struct fleet *f, struct fleet_request *j)
{
    if (j->begun) return;
    j->begun = true;
    for (struct fleet_request *k = j->prev; k; k = k->prev) {
        if (k->begun || k->suspended || k->gone || k->t.client != j->t.client ||
            k->t.priority < j->t.priority || (k->t.lora && !j->t.lora))
            continue;
        f->result.passed = MAX(f->result.passed, ++k->passed);
    }
}

static void
begin_all(struct fleet *f, const struct fleet_worker *m, const struct batch *b)
{
    for (uint32_t i = 0; i < b->n_segments; i++)
        if (b->segment[i].flags & SEGMENT_FIRST_CHUNK)
            count_passed_over(f, scheduler_seq_at(m->w.s, b->segment[i].slot)->owner);
    for (uint32_t i = 0; i < b->n_encode; i++)
        count_passed_over(f, scheduler_seq_at(m->w.s, b->encode[i].slot)->owner);
}

void
fleet_kick(struct fleet *f, uint32_t worker)
{
    struct fleet_worker *m = &f->m[worker];
    bool more = true, out = false;

    if (!f->table[worker].open) return;
    while (more) {
        more = false;
        for (unsigned l = 0; l < m->w.st.sched.n_lanes; l++) {
            const struct batch *b = worker_plan(&m->w, l, f->now);

            if (!b) continue;
            more = true;
            f->result.steps++;
            if (f->s.digest) {
                int n = batch_pack(b, f->bytes, PACK_BYTES);

                check(n >= 0);
                f->result.digest = XXH3_64bits_withSeed(f->bytes, (size_t)n,
                                                        f->result.digest + worker);
            }
            if (f->s.check) begin_all(f, m, b);
            start_step(f, worker, l);
        }
    }
    for (unsigned l = 0; l < m->w.st.sched.n_lanes; l++) {
        start_step(f, worker, l);
        out = out || m->w.planned[l] != m->w.done[l];
    }
    reap_requests(f, m);
    if (!out && scheduler_wake(m->w.s) < m->wake) {
        m->wake = MAX(scheduler_wake(m->w.s), f->now + 1);
        events_add(&f->events,
                   (struct sim_event){
                       .at = m->wake, .kind = EVENT_WAKE, .worker = worker, .life = m->life });
    }
}

void
fleet_name_blocks(struct fleet *f, struct fleet_request *j)
{
    uint32_t max = j->t.isl / f->s.worker.kv.tokens_per_block, n = j->t.isl;
    token_id *token = malloc(n * sizeof *token);
    struct kv_namespace space;
    struct kv_text t = { .token = token, .n = n, .namespace = &space };

    check(token);
    j->name = malloc(MAX(max, 1u) * sizeof j->name[0]);
    check(j->name);
    for (uint32_t i = 0; i < n; i++) token[i] = request_token(&j->r, i);
    kv_namespace(f->namer.kv, 0, j->t.lora, NULL, 0, &space);
    j->n_names = kv_names(f->namer.kv, &t, j->name, max);
    free(token);
}

static struct held_block
held_block(const struct kv_event *e)
{
    return (struct held_block){ .name = { e->name[0], e->name[1] },
                                .parent = { e->parent[0], e->parent[1] },
                                .n_tokens = e->n_tokens,
                                .group = e->group,
                                .on_host = e->tier == TIER_HOST,
                                .priority = e->priority };
}

/* Updates f->holders, the table of the blocks that each worker caches, with the new KV events. */
static void
read_kv_events(struct fleet *f, uint32_t worker)
{
    struct fleet_worker *m = &f->m[worker];
    struct kv_event e[64];
    struct held_block b;
    uint64_t missed = 0;
    uint32_t n, at = 0;

    while (f->holders && (n = kv_events(m->w.kv, &m->next_event, e, ARRAY_LEN(e), &missed)))
        for (uint32_t i = 0; i < n; i++) {
            b = held_block(&e[i]);
            if (e[i].op == KV_REMOVED)
                block_holders_remove(f->holders, worker, b.name, b.group);
            else
                block_holders_add(f->holders, worker, &b);
        }
    if (missed == 0) return;
    block_holders_forget(f->holders, worker);
    while ((n = kv_event_snapshot(m->w.kv, &at, e, ARRAY_LEN(e))))
        for (uint32_t i = 0; i < n; i++) {
            b = held_block(&e[i]);
            block_holders_add(f->holders, worker, &b);
        }
}

/* *hit: tokens of the request that the worker is expected to find. */
static uint32_t
pick_worker(struct fleet *f, const struct fleet_request *j, uint64_t *hit)
{
    uint32_t worker[CANDIDATES], found[CANDIDATES], n = 0, i;

    if (f->holders)
        n = block_holders_find(f->holders, (const uint64_t(*)[2])j->name, j->n_names, worker, found,
                               CANDIDATES);
    for (uint32_t k = 0; k < n; k++)
        f->table[worker[k]].found = (uint64_t)found[k] * f->s.worker.kv.tokens_per_block;
    i = route_pick(f->table, f->s.n_workers, 0);
    *hit = i == ROUTE_NONE ? 0 : f->table[i].found;
    for (uint32_t k = 0; k < n; k++) f->table[worker[k]].found = 0;
    return i;
}

void
fleet_dispatch(struct fleet *f)
{
    for (struct fleet_request *j; (j = f->queue.first);) {
        uint64_t found;
        uint32_t i = pick_worker(f, j, &found);

        if (i == ROUTE_NONE) return;
        fleet_list_remove(&f->queue, j);
        if (give_request(f, j, i, found)) {
            fleet_kick(f, i);
        } else {
            fleet_request_end(f, j);
        }
    }
}

void
fleet_finish_step(struct fleet *f, const struct sim_event *e)
{
    struct fleet_worker *m = &f->m[e->worker];
    uint64_t running = scheduler_counts(m->w.s).running;

    f->result.peak_running = MAX(f->result.peak_running, running);
    m->running[e->lane] = false;
    check(worker_commit(&m->w, e->lane, f->now));
    reap_requests(f, m);
    fleet_kick(f, e->worker);
    read_kv_events(f, e->worker);
    if (f->s.check && ++f->since_check % CHECK_EVERY == 0) scheduler_check(m->w.s);
    if (f->queue.n > 0) fleet_dispatch(f);
}
