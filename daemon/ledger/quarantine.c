/* quarantine.c - see quarantine.h. */
#include "daemon/ledger/quarantine.h"

#include <stdlib.h>
#include <string.h>

static const nsec POISON_TIME = 600 * NSEC_S;

/* One entry, copied: every field of it may be anything. false: it cannot be believed. */
static bool
read_entry(struct fault_trace *b, const struct step_trace *t, uint64_t i, const uint64_t *retired)
{
    struct step_entry e;

    shm_copy_in(&e, &t->entry[i % TRACE_ENTRIES], sizeof e);
    if (e.seq == 2 * i + 1) return true; /* being written: not launched */
    /* A full list may be a cut one. */
    if (e.seq != 2 * i + 2 || e.lane >= ARRAY_LEN(t->retired) || e.n_ids >= TRACE_IDS) return false;
    if (e.step <= retired[e.lane]) return true;
    memcpy(b->id + b->n, e.id, e.n_ids * sizeof *e.id);
    b->n += e.n_ids;
    return true;
}

static int
compare(const void *a, const void *b)
{
    req_id x = *(const req_id *)a, y = *(const req_id *)b;

    return (x > y) - (x < y);
}

void
fault_trace_read(struct fault_trace *b, const struct step_trace *trace)
{
    uint64_t retired[ARRAY_LEN(trace->retired)], n;

    b->n = 0;
    b->all = false;
    if (!trace) return;
    for (size_t i = 0; i < ARRAY_LEN(retired); i++)
        retired[i] = atomic_load_explicit(&trace->retired[i], memory_order_relaxed);
    n = atomic_load_explicit(&trace->n, memory_order_relaxed);
    for (uint64_t k = 0; k < MIN(n, (uint64_t)TRACE_ENTRIES) && !b->all; k++)
        b->all = !read_entry(b, trace, n - 1 - k, retired);
    if (!b->n) b->all = true;
    qsort(b->id, b->n, sizeof *b->id, compare); /* thousands of rows are looked up */
}

bool
fault_trace_has(const struct fault_trace *b, req_id id)
{
    return b->all || bsearch(&id, b->id, b->n, sizeof *b->id, compare);
}

enum quarantine_verdict
quarantine_fault(struct request *r, bool fault, bool blamed)
{
    uint32_t n = request_n_tokens(r);

    if (!fault) return QUARANTINE_RETRY;
    r->n_vain = n > r->n_before ? 1 : r->n_vain + 1;
    r->n_before = n;
    if (blamed) {
        r->blamed_at = n;
        r->n_blames++;
    }
    if (r->n_blames > 2) return QUARANTINE_POISONED;
    return r->n_vain >= QUARANTINE_VAIN ? QUARANTINE_LOST : QUARANTINE_RETRY;
}

bool
quarantine_is_suspect(const struct request *r)
{
    return r->n_blames == 2;
}

bool
quarantine_progress(struct request *r)
{
    if (!quarantine_is_suspect(r) || r->acquitted ||
        request_n_tokens(r) - r->blamed_at < QUARANTINE_PAST)
        return false;
    r->acquitted = true;
    r->n_blames = 1;
    return true;
}

/* Of what is asked and not of how: model, prompt, decoder prefix, text. In words: prompts have megabytes. */
static uint64_t
hash(uint32_t model, const struct rec_submit *s)
{
    const uint8_t *p = (const uint8_t *)(s + 1);
    size_t n = ROUND_UP((size_t)s->n_prompt * 4, (size_t)8) +
               ROUND_UP((size_t)s->n_decoder * 4, (size_t)8) + s->text_bytes;
    uint64_t h = UINT64_C(0xcbf29ce484222325) ^ s->n_prompt ^ (uint64_t)s->n_decoder << 32, word;

    h = (h ^ model) * UINT64_C(0x9e3779b97f4a7c15);
    for (; n; p += MIN(n, sizeof word), n -= MIN(n, sizeof word)) {
        word = 0;
        memcpy(&word, p, MIN(n, sizeof word));
        h = (h ^ h >> 29 ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    }
    return h ^ h >> 32;
}

void
quarantine_poison(struct quarantine *p, uint32_t model, const struct rec_submit *s, nsec now)
{
    uint32_t i = p->n++ % POISONS;

    p->at[i].hash = hash(model, s);
    p->at[i].until = now + POISON_TIME;
}

bool
quarantine_is_poisoned(const struct quarantine *p, uint32_t model, const struct rec_submit *s,
                       nsec now)
{
    uint32_t n = MIN(p->n, (uint32_t)POISONS);
    bool fresh = false;
    uint64_t h;

    for (uint32_t i = 0; i < n; i++) fresh |= now < p->at[i].until;
    if (!fresh) return false; /* the usual case costs no hash */
    h = hash(model, s);
    for (uint32_t i = 0; i < n; i++) {
        if (p->at[i].hash == h && now < p->at[i].until) return true;
    }
    return false;
}
