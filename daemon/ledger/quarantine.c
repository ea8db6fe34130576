/* quarantine.c - counts the faults of each request, and remembers poisoned prompts. */
#include "daemon/ledger/quarantine.h"

#include "daemon/ledger/outputs.h"
#include "daemon/ledger/request.h"

static const nsec POISON_TIME = 600 * NSEC_S;

/* Adds the requests of entry i of the trace to f if the step of the entry was not retired. Returns
 * false if the entry is invalid; a faulty worker may have written any value. */
static bool
read_entry(struct fault_trace *f, const struct step_trace *t, uint64_t i, const uint64_t *retired)
{
    struct step_entry e;

    shm_copy_in(&e, &t->entry[i % TRACE_ENTRIES], sizeof e);
    if (e.seq == 2 * i + 1) return true; /* the entry is half-written: its step was not launched */
    /* A full list may be truncated. It is rejected, so that all requests count as named. */
    if (e.seq != 2 * i + 2 || e.lane >= ARRAY_LEN(t->retired) || e.n_ids >= TRACE_IDS) return false;
    if (e.step <= retired[e.lane]) return true;
    memcpy(f->id + f->n, e.id, e.n_ids * sizeof *e.id);
    f->n += e.n_ids;
    return true;
}

static int
compare(const void *a, const void *b)
{
    req_id x = *(const req_id *)a, y = *(const req_id *)b;

    return (x > y) - (x < y);
}

void
fault_trace_read(struct fault_trace *f, const struct step_trace *trace)
{
    uint64_t retired[ARRAY_LEN(trace->retired)], n;

    f->n = 0;
    f->all = false;
    if (!trace) return;
    for (size_t i = 0; i < ARRAY_LEN(retired); i++)
        retired[i] = atomic_load_explicit(&trace->retired[i], memory_order_relaxed);
    n = atomic_load_explicit(&trace->n, memory_order_relaxed);
    for (uint64_t k = 0; k < MIN(n, (uint64_t)TRACE_ENTRIES) && !f->all; k++)
        f->all = !read_entry(f, trace, n - 1 - k, retired);
    if (!f->n) f->all = true;
    /* Sorted for bsearch(), because fault_trace_has() is called for thousands of requests. */
    qsort(f->id, f->n, sizeof *f->id, compare);
}

bool
fault_trace_has(const struct fault_trace *f, req_id id)
{
    return f->all || bsearch(&id, f->id, f->n, sizeof *f->id, compare);
}

struct quarantine *
quarantine_new(void)
{
    return calloc(1, sizeof(struct quarantine));
}

struct quarantine *
quarantine_free(struct quarantine *q)
{
    free(q);
    return NULL;
}

enum quarantine_verdict
quarantine_fault(struct quarantine *q, struct request *r, bool fault, bool named)
{
    struct request_suspicion *s = &r->suspicion;
    uint32_t n = request_n_tokens(r);

    if (!fault) return QUARANTINE_RETRY;
    s->n_stuck = n > s->n_tokens_before ? 1 : s->n_stuck + 1;
    s->n_tokens_before = n;
    if (named) {
        q->n_suspects -= quarantine_is_suspect(r);
        s->fault_at = n;
        s->n_faults++;
        q->n_suspects += quarantine_is_suspect(r);
    }
    if (s->n_faults > 2) return QUARANTINE_POISONED;
    return s->n_stuck >= QUARANTINE_STUCK ? QUARANTINE_LOST : QUARANTINE_RETRY;
}

bool
quarantine_is_suspect(const struct request *r)
{
    return r->suspicion.n_faults == 2;
}

bool
quarantine_progress(struct quarantine *q, struct request *r)
{
    struct request_suspicion *s = &r->suspicion;

    if (!quarantine_is_suspect(r) || s->cleared ||
        request_n_tokens(r) - s->fault_at < QUARANTINE_PAST)
        return false;
    s->cleared = true;
    s->n_faults = 1;
    q->n_suspects--;
    return true;
}

void
quarantine_restored(struct quarantine *q, const struct request *r)
{
    q->n_suspects += quarantine_is_suspect(r);
}

void
quarantine_ended(struct quarantine *q, const struct request *r)
{
    q->n_suspects -= quarantine_is_suspect(r);
}

/* Returns a hash of the model and the prompt: its ids, decoder ids and text, without the sampling
 * parameters. Reads 8 bytes at a time, because prompts can have megabytes. */
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
quarantine_poison(struct quarantine *q, uint32_t model, const struct rec_submit *s, nsec now)
{
    uint32_t i = q->n++ % QUARANTINE_PROMPTS;

    q->at[i].hash = hash(model, s);
    q->at[i].until = now + POISON_TIME;
}

bool
quarantine_is_poisoned(const struct quarantine *q, uint32_t model, const struct rec_submit *s,
                       nsec now)
{
    uint32_t n = MIN(q->n, (uint32_t)QUARANTINE_PROMPTS);
    bool fresh = false;
    uint64_t h;

    for (uint32_t i = 0; i < n; i++) fresh |= now < q->at[i].until;
    if (!fresh) return false; /* the usual case: no prompt is poisoned, so no hash is computed */
    h = hash(model, s);
    for (uint32_t i = 0; i < n; i++) {
        if (q->at[i].hash == h && now < q->at[i].until) return true;
    }
    return false;
}
