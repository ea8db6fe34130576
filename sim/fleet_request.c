/* fleet_request.c - a request from arrival to end: see fleet_internal.h. */
#include "sim/fleet_internal.h"

#include "include/lagan_wire.h"

#include <stdlib.h>

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

/* The ids of open requests differ by less than open_capacity. */
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

static uint32_t
prompt_of(const struct fleet_request *j)
{
    return (j->t.encdec ? 1 : j->t.isl) + j->n_delivered;
}

static uint64_t
tokens_ahead(const struct fleet_request *j)
{
    return (uint64_t)j->t.isl + j->t.osl;
}

static void
fill_seq(struct fleet_request *j)
{
    struct seq *q = &j->r.seq;
    uint32_t prompt = prompt_of(j), source = j->t.encdec ? j->t.isl : 0;

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

bool
fleet_request_give(struct fleet *f, struct fleet_request *j, uint32_t worker)
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
    f->table[worker].tokens += tokens_ahead(j);
    return true;
}

void
fleet_request_leave(struct fleet *f, struct fleet_request *j)
{
    fleet_list_remove(&f->m[j->worker].requests, j);
    f->table[j->worker].n_seqs--;
    f->table[j->worker].tokens -= tokens_ahead(j);
    j->worker = NOBODY;
}

/* Records a token delivered to the client. */
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

void
fleet_reap(struct fleet *f, struct fleet_worker *m)
{
    for (struct seq *q; (q = scheduler_reap(m->w.s));) {
        struct fleet_request *j = q->owner;

        check(q->reason != LAGAN_FINISH_LENGTH || j->n_delivered == j->t.osl);
        check(q->reason != LAGAN_FINISH_STOP || j->n_delivered <= j->stop);
        check(q->reason != LAGAN_E_CANCELLED || j->gone);
        if (q->reason == LAGAN_FINISH_STOP)
            j->stop = j->n_delivered; /* the end id occurred earlier */
        f->result.cached_tokens += q->n_cached;
        fleet_request_leave(f, j);
        fleet_request_end(f, j);
    }
}
