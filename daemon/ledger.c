/* ledger.c - see ledger.h. */
#include "daemon/ledger.h"

#include "base/clock.h"
#include "base/map.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct ledger {
    struct row *row;
    uint32_t capacity, n, n_queued, n_ever; /* n_ever: rows touched so far */
    uint32_t free, first, last;             /* free list; queue */
    uint64_t queued_tokens, seed;
    req_id last_id;
    struct map *by_rid; /* (client, rid) -> row */
};

int
bytes_add(struct bytes *b, const void *from, size_t n)
{
    if (b->n + n > b->cap) {
        size_t cap = MAX(b->cap * 2, (size_t)64);
        char *p;

        cap = MAX(cap, b->n + n);
        p = realloc(b->p, cap);
        if (!p) return -ENOMEM;
        b->p = p;
        b->cap = cap;
    }
    if (from && n) memcpy(b->p + b->n, from, n);
    b->n += n;
    return 0;
}

void
bytes_drop(struct bytes *b, size_t n)
{
    check(n <= b->n);
    b->n -= n;
    if (n && b->n) memmove(b->p, b->p + n, b->n);
}

void
bytes_done(struct bytes *b)
{
    free(b->p);
    *b = (struct bytes){ 0 };
}

/* Clients choose rids; the seed keeps them from choosing collisions. */
static uint64_t
key_of(const struct ledger *l, uint32_t client, uint64_t rid)
{
    uint64_t x = rid ^ l->seed;

    x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
    x += client * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    return x ^ x >> 32;
}

struct ledger *
ledger_new(uint32_t capacity, uint64_t seed)
{
    CLEAN(ledger_free_at) struct ledger *l = calloc(1, sizeof *l);

    if (!l) return NULL;
    l->capacity = capacity;
    l->seed = seed;
    l->free = l->first = l->last = ROW_NONE;
    /* Rows are touched when first taken, so that an idle lagand is small. */
    l->row = calloc(capacity, sizeof *l->row);
    l->by_rid = map_new(capacity);
    return l->row && l->by_rid ? TAKE(l) : NULL;
}

static void
empty(struct row *r)
{
    free(r->submit);
    r->submit = NULL;
    bytes_done(&r->token);
    bytes_done(&r->text);
    bytes_done(&r->logprob);
    bytes_done(&r->top);
    bytes_done(&r->p_id);
    bytes_done(&r->p_logprob);
    bytes_done(&r->p_top);
}

struct ledger *
ledger_free(struct ledger *l)
{
    if (!l) return NULL;
    for (uint32_t i = 0; l->row && i < l->n_ever; i++) empty(&l->row[i]);
    map_free(l->by_rid);
    free(l->row);
    free(l);
    return NULL;
}

uint32_t
ledger_n(const struct ledger *l)
{
    return l->n;
}

uint32_t
ledger_n_queued(const struct ledger *l)
{
    return l->n_queued;
}

uint64_t
ledger_queued_tokens(const struct ledger *l)
{
    return l->queued_tokens;
}

uint32_t
ledger_capacity(const struct ledger *l)
{
    return l->capacity;
}

/* A token of text is about four bytes. */
uint64_t
ledger_prompt_cost(const struct rec_submit *s)
{
    return (uint64_t)s->n_prompt + s->n_decoder + (s->text_bytes + 3) / 4;
}

static void
enqueue(struct ledger *l, struct row *r)
{
    r->prev = l->last;
    r->next = ROW_NONE;
    if (l->last == ROW_NONE) {
        l->first = r->index;
    } else {
        l->row[l->last].next = r->index;
    }
    l->last = r->index;
    l->n_queued++;
    l->queued_tokens += r->prompt_cost;
}

static void
dequeue(struct ledger *l, struct row *r)
{
    if (r->prev == ROW_NONE) {
        l->first = r->next;
    } else {
        l->row[r->prev].next = r->next;
    }
    if (r->next == ROW_NONE) {
        l->last = r->prev;
    } else {
        l->row[r->next].prev = r->prev;
    }
    l->n_queued--;
    l->queued_tokens -= r->prompt_cost;
}

int
ledger_take(struct ledger *l, uint32_t client, uint64_t rid, struct rec_submit *submit,
            uint32_t submit_bytes, struct row **ret)
{
    uint32_t i = l->free != ROW_NONE ? l->free : l->n_ever, gen;
    struct row *r;

    if (ledger_find(l, client, rid)) return -EEXIST;
    if (i >= l->capacity) return -ENOSPC;
    if (map_put(l->by_rid, key_of(l, client, rid), i) < 0) return -ENOSPC;
    r = &l->row[i];
    if (i == l->free) {
        l->free = r->next;
    } else {
        l->n_ever++;
    }
    gen = r->gen + 1;
    *r = (struct row){
        .state = ROW_QUEUED,
        .index = i,
        .gen = gen ? gen : 1,
        .id = ++l->last_id,
        .rid = rid,
        .client = client,
        .deadline = NSEC_NEVER,
        .submit = submit,
        .submit_bytes = submit_bytes,
        .prompt_cost = ledger_prompt_cost(submit),
    };
    r->cost = r->prompt_cost + submit->max_tokens;
    submit->row = i;
    submit->gen = r->gen;
    submit->id = r->id;
    l->n++;
    enqueue(l, r);
    *ret = r;
    return 0;
}

void
ledger_told(struct ledger *l, struct row *r)
{
    check(!r->told);
    check(map_take(l->by_rid, key_of(l, r->client, r->rid)) == r->index);
    r->told = true;
}

void
ledger_give(struct ledger *l, struct row *r)
{
    check(r->state == ROW_ENDED && r->told && !r->held && !r->due);
    empty(r);
    r->state = ROW_FREE;
    r->next = l->free;
    l->free = r->index;
    l->n--;
}

struct row *
ledger_row(struct ledger *l, uint32_t index)
{
    if (index >= l->n_ever || l->row[index].state == ROW_FREE) return NULL;
    return &l->row[index];
}

struct row *
ledger_find(struct ledger *l, uint32_t client, uint64_t rid)
{
    uint32_t i = map_find(l->by_rid, key_of(l, client, rid));

    if (i == MAP_NONE || l->row[i].client != client || l->row[i].rid != rid) return NULL;
    return &l->row[i];
}

struct row *
ledger_find_id(struct ledger *l, req_id id)
{
    for (uint32_t i = 0; i < l->n_ever; i++) {
        if (l->row[i].state != ROW_FREE && l->row[i].id == id) return &l->row[i];
    }
    return NULL;
}

struct row *
ledger_next_queued(struct ledger *l, const struct row *after)
{
    uint32_t i = after ? after->next : l->first;

    return i == ROW_NONE ? NULL : &l->row[i];
}

void
row_move(struct ledger *l, struct row *r, enum row_state to)
{
    /* clang-format off */
    static const bool may[ROW_N_STATES][ROW_N_STATES] = {
        /*                   FREE   QUEUED DISP.  STREAM ENDED */
        [ROW_QUEUED]     = { false, false, true,  false, true  },
        [ROW_DISPATCHED] = { false, false, false, true,  true  },
        [ROW_STREAMING]  = { false, false, false, false, true  },
    };
    /* clang-format on */
    check(may[r->state][to]);
    if (r->state == ROW_QUEUED) dequeue(l, r);
    r->state = to;
}

uint32_t
row_n_tokens(const struct row *r)
{
    return (uint32_t)(r->token.n / sizeof(token_id));
}

void
ledger_check(const struct ledger *l)
{
    uint32_t n = 0, named = 0, queued = 0, in_queue = 0;
    uint64_t tokens = 0;

    for (uint32_t i = 0; i < l->n_ever; i++) {
        const struct row *r = &l->row[i];

        if (r->state == ROW_FREE) continue;
        n++;
        check(r->index == i && r->submit);
        named += !r->told;
        check(r->told || map_find(l->by_rid, key_of(l, r->client, r->rid)) == i);
        if (r->state != ROW_QUEUED) continue;
        queued++;
        tokens += r->prompt_cost;
        check(!r->held && !r->told);
    }
    for (uint32_t i = l->first; i != ROW_NONE; i = l->row[i].next) in_queue++;
    check(n == l->n && named == map_n(l->by_rid));
    check(queued == l->n_queued && in_queue == queued && tokens == l->queued_tokens);
}
