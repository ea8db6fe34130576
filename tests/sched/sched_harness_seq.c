/* sched_harness_seq.c - requests, their tokens, and the end of a test: see sched_harness.h. */
#include "tests/sched/sched_harness.h"

#include "include/lagan_wire.h"

token_id
fake_token(req_id id, uint32_t pos)
{
    uint64_t stem = id >> 32 & 0xff, x;

    if (stem && (pos < id >> 40 || pos >= RUN_SOURCE)) id = stem << 32;
    x = (id * 1000003 + pos) * UINT64_C(0x9e3779b97f4a7c15);
    return (token_id)((x >> 33) % 1000);
}

req_id
run_ref(uint32_t n, uint32_t stem, uint32_t alike)
{
    return n | (req_id)stem << 32 | (req_id)alike << 40;
}

uint32_t
seq_member(const struct seq *q)
{
    return (uint32_t)(uintptr_t)q->owner;
}

/* Beams have equal tokens: KV of one beam is valid for another. */
req_id
seq_name(const struct seq *q)
{
    return q->beam ? q->id : q->id + ((req_id)seq_member(q) << 16);
}

struct seq *
seq_new(req_id id, uint32_t n_prompt, uint32_t max_new, uint32_t n_source)
{
    struct seq *q = calloc(1, sizeof *q);
    token_id *source = calloc(n_source + 1, sizeof *source);

    q->id = id;
    q->cap = n_prompt + max_new;
    q->token = calloc(q->cap, sizeof q->token[0]);
    for (uint32_t i = 0; i < n_prompt; i++) q->token[i] = fake_token(id, i);
    for (uint32_t i = 0; i < n_source; i++) source[i] = fake_token(id, RUN_SOURCE + i);
    q->source = source;
    q->n_source = n_source;
    q->n_prompt = n_prompt;
    q->max_new = max_new;
    q->priority = 0.5f;
    q->deadline = NSEC_NEVER;
    return q;
}

struct search { /* shared by its beams */
    struct beam beam;
    uint32_t n_left;
    token_id *done_token;
    float *total;
    uint8_t *row_slot;
};

static struct search *
search_new(const struct seq *first, uint32_t n)
{
    struct search *s = calloc(1, sizeof *s);
    uint32_t max_new = first->max_new;

    s->n_left = n;
    s->done_token = calloc((size_t)n * max_new, sizeof s->done_token[0]);
    s->total = calloc((size_t)2 * n * max_new, sizeof s->total[0]); /* live, then ended beams */
    s->row_slot = calloc((size_t)2 * n * max_new, 1);
    s->beam = (struct beam){
        .n_beams = n, .max_new = max_new, .length_penalty = 1, .first = first->n_prompt
    };
    for (uint32_t i = 0; i < n; i++) {
        s->beam.done_token[i] = s->done_token + (size_t)i * max_new;
        s->beam.total[i] = s->total + (size_t)i * max_new;
        s->beam.done_total[i] = s->total + (size_t)(n + i) * max_new;
        s->beam.row_slot[i] = s->row_slot + (size_t)i * max_new;
        s->beam.done_row_slot[i] = s->row_slot + (size_t)(n + i) * max_new;
    }
    return s;
}

struct seq *
seq_group_of(req_id id, uint32_t n, bool beams, uint32_t n_prompt, uint32_t max_new,
             uint32_t n_source)
{
    struct seq *first = seq_new(id, n_prompt, max_new, n_source), *last = first;
    struct search *s = beams ? search_new(first, n) : NULL;

    first->n_members = n;
    first->n_shared = n_prompt - 1;
    for (uint32_t i = 0; i < n; i++) {
        struct seq *q = i ? seq_new(id, n_prompt, max_new, n_source) : first;

        q->first_member = first;
        q->owner = (void *)(uintptr_t)i;
        q->plan_after_commit = beams;
        q->beam = beams ? &s->beam : NULL;
        if (beams) s->beam.line[i] = q->token;
        if (i) last = last->next_member = q;
    }
    if (beams) beam_start(&s->beam, 0, 0);
    return first;
}

void
seq_free(struct seq *q)
{
    struct search *s = q->beam ? (struct search *)(void *)q->beam : NULL;
    union {
        const token_id *in;
        void *out;
    } source = { .in = q->source };

    if (s && --s->n_left == 0) {
        free(s->done_token);
        free(s->total);
        free(s->row_slot);
        free(s);
    }
    free(source.out);
    free(q->token);
    free(q);
}

void
run_check_tokens(const struct seq *q)
{
    for (uint32_t i = 0; i < (q->beam ? q->beam->first : q->n_tokens); i++)
        check(q->token[i] == fake_token(seq_name(q), i));
}

void
run_open_with(struct sched_fixture *r, struct seq *const *q, uint32_t n)
{
    run_open(r);
    for (uint32_t i = 0; i < n; i++) run_add(r, q[i]);
}

static bool
drain_round(struct sched_fixture *r)
{
    bool more = false;

    for (unsigned l = 0; l < r->l.n_lanes; l++) more = run_plan(r, l) || more;
    if (more && r->l.n_lanes == 1) return true;
    for (unsigned l = 0; l < r->l.n_lanes; l++) more = run_commit(r, l) || more;
    return more;
}

void
run_drain(struct sched_fixture *r)
{
    while (drain_round(r)) continue;
}

void
run_end(struct sched_fixture *r, struct seq *const *q, uint32_t n)
{
    while (scheduler_reap(r->s)) continue;
    check(scheduler_counts(r->s).running + scheduler_counts(r->s).waiting == 0);
    check(run_used(r) == 0);
    run_close(r);
    for (uint32_t i = 0; i < n; i++) {
        check(q[i]->state == SEQ_NEW);
        run_check_tokens(q[i]);
        seq_free(q[i]);
    }
}

void
run_finish(struct sched_fixture *r, struct seq *const *q, uint32_t n)
{
    run_drain(r);
    for (uint32_t i = 0; i < n; i++) check(q[i]->n_tokens == q[i]->n_prompt + q[i]->max_new);
    run_end(r, q, n);
}

void
run_cancel(struct sched_fixture *r, struct seq *const *q, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) scheduler_cancel(r->s, q[i]->id, LAGAN_E_CANCELLED);
    run_end(r, q, n);
}
