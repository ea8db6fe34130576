/* ledger.c - see ledger.h. */
#include "daemon/ledger.h"

#include "base/clock.h"
#include "base/map.h"
#include "daemon/pieces.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct list { /* by row.next and row.prev */
    uint32_t first, last, n;
};

struct ledger {
    struct row *row;
    uint32_t capacity, n, n_ever; /* n_ever: rows touched so far */
    uint32_t free;                /* free list */
    struct list queue, kept;
    uint64_t queued_tokens, kept_bytes, seed;
    req_id last_id;
    struct map *by_rid;  /* (client, rid) -> row */
    struct map *by_name; /* (session, rid) and (session, key) -> row */
    struct map *by_id;
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
    l->free = ROW_NONE;
    l->queue = l->kept = (struct list){ ROW_NONE, ROW_NONE, 0 };
    /* Rows are touched when first taken, so that an idle lagand is small. */
    l->row = calloc(capacity, sizeof *l->row);
    l->by_rid = map_new(capacity);
    l->by_name = map_new(2 * capacity);
    l->by_id = map_new(capacity);
    return l->row && l->by_rid && l->by_name && l->by_id ? TAKE(l) : NULL;
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
    pieces_done(r);
    for (uint32_t i = 0; i < LAGAN_N_TENSORS; i++) bytes_done(&r->tensor[i].value);
}

struct ledger *
ledger_free(struct ledger *l)
{
    if (!l) return NULL;
    for (uint32_t i = 0; l->row && i < l->n_ever; i++) empty(&l->row[i]);
    map_free(l->by_rid);
    map_free(l->by_name);
    map_free(l->by_id);
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
    return l->queue.n;
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

uint64_t
ledger_cost(const struct rec_submit *s)
{
    return ledger_prompt_cost(s) + (uint64_t)s->max_tokens * MAX(s->n, s->beams);
}

/* Of several outputs all tokens are in one count, of beams those of the best. */
uint64_t
ledger_unused(const struct row *r)
{
    const struct rec_submit *s = r->submit;

    return ((uint64_t)s->max_tokens * s->n - row_n_tokens(r)) * MAX(s->n, s->beams) / s->n;
}

/* ---- lists */

/* Before the row at `at`; ROW_NONE: at the end. */
static void
put_in(struct ledger *l, struct list *q, struct row *r, uint32_t at)
{
    uint32_t before = at == ROW_NONE ? q->last : l->row[at].prev;

    r->prev = before;
    r->next = at;
    *(before == ROW_NONE ? &q->first : &l->row[before].next) = r->index;
    *(at == ROW_NONE ? &q->last : &l->row[at].prev) = r->index;
    q->n++;
}

static void
take_out(struct ledger *l, struct list *q, struct row *r)
{
    *(r->prev == ROW_NONE ? &q->first : &l->row[r->prev].next) = r->next;
    *(r->next == ROW_NONE ? &q->last : &l->row[r->next].prev) = r->prev;
    q->n--;
}

static bool
before(const struct row *a, const struct row *b)
{
    if (a->submit->priority > b->submit->priority) return true;
    if (a->submit->priority < b->submit->priority) return false;
    return a->turn < b->turn || (a->turn == b->turn && a->id < b->id);
}

static void
enqueue(struct ledger *l, struct row *r)
{
    uint32_t at = ROW_NONE, prev = l->queue.last; /* from the end: most come in order */

    while (prev != ROW_NONE && before(r, &l->row[prev])) {
        at = prev;
        prev = l->row[prev].prev;
    }
    put_in(l, &l->queue, r, at);
    l->queued_tokens += r->prompt_cost;
}

static void
dequeue(struct ledger *l, struct row *r)
{
    take_out(l, &l->queue, r);
    l->queued_tokens -= r->prompt_cost;
}

/* ---- names */

static uint64_t
name_of(const struct ledger *l, const struct session_id *session, char kind, const void *p,
        size_t n)
{
    uint64_t h = (l->seed ^ (uint8_t)kind) * UINT64_C(0x9e3779b97f4a7c15);

    /* FNV-1a from a secret start. */
    for (size_t i = 0; i < sizeof session->b; i++)
        h = (h ^ session->b[i]) * UINT64_C(0x100000001b3);
    for (size_t i = 0; i < n; i++) h = (h ^ ((const uint8_t *)p)[i]) * UINT64_C(0x100000001b3);
    h = (h ^ h >> 31) * UINT64_C(0xd6e8feb86659fd93);
    return h ^ h >> 32;
}

static uint64_t
rid_name(const struct ledger *l, const struct session_id *session, uint64_t rid)
{
    return name_of(l, session, 'r', &rid, sizeof rid);
}

static uint64_t
key_name(const struct ledger *l, const struct session_id *session, const char *key, uint32_t n)
{
    return name_of(l, session, 'k', key, n);
}

static bool
same(const struct session_id *a, const struct session_id *b)
{
    return !memcmp(a->b, b->b, sizeof a->b);
}

struct row *
ledger_find_rid(struct ledger *l, const struct session_id *session, uint64_t rid)
{
    uint32_t i = map_find(l->by_name, rid_name(l, session, rid));
    struct row *r = i == MAP_NONE ? NULL : &l->row[i];

    return r && r->rid == rid && same(&r->session, session) ? r : NULL;
}

struct row *
ledger_find_key(struct ledger *l, const struct session_id *session, const char *key, uint32_t n_key)
{
    uint32_t i = map_find(l->by_name, key_name(l, session, key, n_key));
    struct row *r = i == MAP_NONE ? NULL : &l->row[i];

    return r && r->n_key == n_key && !memcmp(r->key, key, n_key) && same(&r->session, session)
               ? r
               : NULL;
}

static void
unname(struct ledger *l, struct row *r)
{
    if (!r->named) return;
    check(map_take(l->by_name, rid_name(l, &r->session, r->rid)) == r->index);
    check(!r->n_key ||
          map_take(l->by_name, key_name(l, &r->session, r->key, r->n_key)) == r->index);
    r->named = false;
}

static void
forget(struct ledger *l, struct row *r)
{
    unname(l, r);
    check(map_take(l->by_id, r->id) == r->index);
    empty(r);
    r->state = ROW_FREE;
    r->next = l->free;
    l->free = r->index;
}

static size_t
kept_bytes(const struct row *r)
{
    return sizeof *r + r->submit_bytes + r->token.cap + r->text.cap + r->logprob.cap + r->top.cap +
           pieces_bytes(r);
}

/* It is not kept any more: another connection reads it, or it goes. */
static void
unkeep(struct ledger *l, struct row *r)
{
    take_out(l, &l->kept, r);
    l->kept_bytes -= kept_bytes(r);
    r->kept = false;
}

void
ledger_unname(struct ledger *l, struct row *r)
{
    if (r->kept) {
        unkeep(l, r);
        forget(l, r);
    } else {
        unname(l, r);
    }
}

static bool
drop_oldest(struct ledger *l)
{
    struct row *r = l->kept.n ? &l->row[l->kept.first] : NULL;

    if (!r) return false;
    unkeep(l, r);
    forget(l, r);
    return true;
}

int
ledger_name(struct ledger *l, struct row *r, const struct session_id *session, const char *key,
            uint32_t n_key)
{
    struct row *old = ledger_find_rid(l, session, r->rid);

    check(!r->named && n_key <= sizeof r->key);
    if (old && !old->kept) return -EEXIST;
    if (n_key && ledger_find_key(l, session, key, n_key)) return -EEXIST;
    if (old) {
        unkeep(l, old);
        forget(l, old);
    }
    r->session = *session;
    r->n_key = (uint8_t)n_key;
    if (n_key) memcpy(r->key, key, n_key);
    TRY(map_put(l->by_name, rid_name(l, session, r->rid), r->index));
    if (n_key && map_put(l->by_name, key_name(l, session, key, n_key), r->index) < 0) {
        map_take(l->by_name, rid_name(l, session, r->rid));
        return -EEXIST;
    }
    r->named = true;
    return 0;
}

/* ---- a row's life */

static struct row *
place(struct ledger *l)
{
    uint32_t i = l->free;

    if (i == ROW_NONE && l->n_ever == l->capacity) {
        if (!drop_oldest(l)) return NULL;
        i = l->free;
    }
    if (i == ROW_NONE) return &l->row[l->n_ever++];
    l->free = l->row[i].next;
    return &l->row[i];
}

/* A row that waits. NULL: all places are taken. */
static struct row *
add(struct ledger *l, req_id id, uint64_t rid, struct rec_submit *submit, uint32_t submit_bytes)
{
    struct row *r = place(l);
    uint32_t gen;

    if (!r) return NULL;
    submit->n = MAX(submit->n, 1u);
    submit->beams = MAX(submit->beams, 1u);
    gen = r->gen + 1;
    *r = (struct row){
        .state = ROW_QUEUED,
        .index = (uint32_t)(r - l->row),
        .gen = gen ? gen : 1,
        .id = id,
        .rid = rid,
        .client = UINT32_MAX,
        .deadline = NSEC_NEVER,
        .submit = submit,
        .submit_bytes = submit_bytes,
        .prompt_cost = ledger_prompt_cost(submit),
    };
    r->cost = ledger_cost(submit);
    submit->row = r->index;
    submit->gen = r->gen;
    submit->id = r->id;
    check(map_put(l->by_id, id, r->index) == 0);
    l->last_id = MAX(l->last_id, id);
    l->n++;
    enqueue(l, r);
    return r;
}

int
ledger_take(struct ledger *l, uint32_t client, uint64_t rid, struct rec_submit *submit,
            uint32_t submit_bytes, struct row **ret)
{
    struct row *r;

    if (map_find(l->by_rid, key_of(l, client, rid)) != MAP_NONE) return -EEXIST;
    r = add(l, l->last_id + 1, rid, submit, submit_bytes);
    if (!r) return -ENOSPC;
    r->client = client;
    r->attached = true;
    check(map_put(l->by_rid, key_of(l, client, rid), r->index) == 0);
    *ret = r;
    return 0;
}

int
ledger_recall(struct ledger *l, req_id id, uint64_t rid, struct rec_submit *submit,
              uint32_t submit_bytes, struct row **ret)
{
    if (ledger_find_id(l, id)) return -EEXIST;
    *ret = add(l, id, rid, submit, submit_bytes);
    return *ret ? 0 : -ENOSPC;
}

void
ledger_skip_ids(struct ledger *l, req_id last)
{
    l->last_id = MAX(l->last_id, last);
}

req_id
ledger_last_id(const struct ledger *l)
{
    return l->last_id;
}

void
ledger_detach(struct ledger *l, struct row *r)
{
    check(r->attached);
    check(map_take(l->by_rid, key_of(l, r->client, r->rid)) == r->index);
    r->attached = false;
}

/* Another row has that place in a table, by its name or by one that falls together with it. */
static bool
is_anothers(const struct map *m, uint64_t name, const struct row *r)
{
    uint32_t i = map_find(m, name);

    return i != MAP_NONE && i != r->index;
}

/* One that has ended makes room, if it is of that very name. */
static bool
is_taken(struct ledger *l, const struct row *r, uint64_t rid)
{
    const struct row *other = ledger_find_rid(l, &r->session, rid);

    return !(other && other->kept) && is_anothers(l->by_name, rid_name(l, &r->session, rid), r);
}

int
ledger_renumber(struct ledger *l, struct row *r, uint64_t rid)
{
    struct row *other;

    check(r->named && !r->attached);
    if (rid == r->rid) return 0;
    if (is_taken(l, r, rid)) return -EEXIST;
    other = ledger_find_rid(l, &r->session, rid);
    if (other) {
        unkeep(l, other);
        forget(l, other);
    }
    check(map_take(l->by_name, rid_name(l, &r->session, r->rid)) == r->index);
    check(map_put(l->by_name, rid_name(l, &r->session, rid), r->index) == 0);
    r->rid = rid;
    return 0;
}

int
ledger_attach(struct ledger *l, struct row *r, uint32_t client, uint64_t rid)
{
    check(r->named);
    if (is_anothers(l->by_rid, key_of(l, client, rid), r) || is_taken(l, r, rid)) return -EEXIST;
    if (r->attached) ledger_detach(l, r);
    check(ledger_renumber(l, r, rid) == 0);
    if (r->kept) {
        unkeep(l, r);
        l->n++;
    }
    r->client = client;
    r->attached = true;
    check(map_put(l->by_rid, key_of(l, client, rid), r->index) == 0);
    return 0;
}

/* A kept row answers and never runs again: of its request the head is enough. */
static void
shrink(struct row *r)
{
    struct rec_submit *head = realloc(r->submit, sizeof *head);

    if (head) r->submit = head;
    head = r->submit;
    head->n_prompt = head->n_decoder = head->text_bytes = 0;
    head->n_eos = head->n_stop_ids = head->n_stop = head->n_bias = 0;
    r->submit_bytes = sizeof *head;
}

void
ledger_give(struct ledger *l, struct row *r)
{
    check(r->state == ROW_ENDED && !r->attached && !r->held && !r->due && !r->kept);
    l->n--;
    if (!r->named) {
        forget(l, r);
        return;
    }
    shrink(r);
    r->kept = true;
    put_in(l, &l->kept, r, ROW_NONE);
    l->kept_bytes += kept_bytes(r);
    while (l->kept_bytes > LEDGER_KEEP_BYTES) drop_oldest(l);
}

void
ledger_expire(struct ledger *l, nsec now)
{
    while (l->kept.n && now - l->row[l->kept.first].ended >= LEDGER_KEEP_TIME) drop_oldest(l);
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
    uint32_t i = map_find(l->by_id, id);

    return i == MAP_NONE ? NULL : &l->row[i];
}

void
ledger_turn(struct ledger *l, struct row *r, uint64_t turn)
{
    check(r->state == ROW_QUEUED);
    /* Thousands may be told so at once, and a place is looked for from the end. */
    if (turn == r->turn) return;
    dequeue(l, r);
    r->turn = turn;
    enqueue(l, r);
}

struct row *
ledger_next_queued(struct ledger *l, const struct row *after)
{
    uint32_t i = after ? after->next : l->queue.first;

    return i == ROW_NONE ? NULL : &l->row[i];
}

struct row *
ledger_last_queued(struct ledger *l, const struct row *before)
{
    uint32_t i = before ? before->prev : l->queue.last;

    return i == ROW_NONE ? NULL : &l->row[i];
}

void
row_move(struct ledger *l, struct row *r, enum row_state to)
{
    /* clang-format off */
    static const bool may[ROW_N_STATES][ROW_N_STATES] = {
        /*                   FREE   QUEUED DISP.  STREAM ENDED */
        [ROW_QUEUED]     = { false, false, true,  false, true  },
        [ROW_DISPATCHED] = { false, true,  false, true,  true  },
        [ROW_STREAMING]  = { false, true,  false, false, true  },
    };
    /* clang-format on */
    check(may[r->state][to]);
    if (r->state == ROW_QUEUED) dequeue(l, r);
    r->state = to;
    if (to == ROW_QUEUED) enqueue(l, r);
}

uint32_t
row_n_tokens(const struct row *r)
{
    return (uint32_t)(r->token.n / sizeof(token_id));
}

uint32_t
row_n_seqs(const struct row *r)
{
    return MAX(r->submit->n, r->submit->beams);
}

/* ---- the record that goes on from here */

static size_t
padded(size_t n)
{
    return ROUND_UP(n, (size_t)8);
}

uint32_t
row_record_bytes(const struct row *r)
{
    return r->submit_bytes + (uint32_t)(padded(r->token.n) + padded(r->text.n)) +
           pieces_record_bytes(r);
}

/* The part of [from, from + n) that lies in [at, end) is copied to `to`; NULL from: zeros. */
static void
splice(uint32_t *pos, const void *from, size_t n, uint32_t at, uint32_t end, char *to)
{
    uint32_t first = MAX(*pos, at), last = MIN(*pos + (uint32_t)n, end);

    if (first < last && from) {
        memcpy(to + (first - at), (const char *)from + (first - *pos), last - first);
    } else if (first < last) {
        memset(to + (first - at), 0, last - first);
    }
    *pos += (uint32_t)n;
}

void
row_record(const struct row *r, uint32_t at, void *to, uint32_t n)
{
    const char *base = (const char *)r->submit;
    struct rec_submit head = *r->submit;
    /* records.h: prompt, decoder | done | text | done's text | the rest | whose done is */
    size_t ids = padded((size_t)head.n_prompt * 4) + padded((size_t)head.n_decoder * 4);
    size_t text = padded(head.text_bytes), before = sizeof head + ids + text;
    uint32_t pos = 0, end = at + n;

    check(end <= row_record_bytes(r));
    head.n_done = row_n_tokens(r);
    head.done_text = (uint32_t)r->text.n;
    head.done_score = r->score;
    /* Those come before the first token: they are out. */
    if (head.n_done) head.flags &= (uint8_t) ~(SUBMIT_PROMPT_LOGPROBS | SUBMIT_ENCODER_OUTPUT);
    if (r->pause_told) head.flags |= SUBMIT_SUSPENDED;
    splice(&pos, &head, sizeof head, at, end, to);
    splice(&pos, base + sizeof head, ids, at, end, to);
    splice(&pos, r->token.p, r->token.n, at, end, to);
    splice(&pos, NULL, padded(r->token.n) - r->token.n, at, end, to);
    splice(&pos, base + sizeof head + ids, text, at, end, to);
    splice(&pos, r->text.p, r->text.n, at, end, to);
    splice(&pos, NULL, padded(r->text.n) - r->text.n, at, end, to);
    splice(&pos, base + before, r->submit_bytes - before, at, end, to);
    if (end > pos) {
        uint32_t from = MAX(pos, at);

        pieces_record(r, from - pos, (uint8_t *)to + (from - at), end - from);
    }
}

void
ledger_check(const struct ledger *l)
{
    uint32_t n = 0, all = 0, attached = 0, names = 0, queued = 0, in_queue = 0, kept = 0,
             in_kept = 0;
    uint64_t tokens = 0, bytes = 0;

    for (uint32_t i = 0; i < l->n_ever; i++) {
        const struct row *r = &l->row[i];

        if (r->state == ROW_FREE) continue;
        n += !r->kept;
        all++;
        check(map_find(l->by_id, r->id) == i);
        check(r->index == i && r->submit);
        attached += r->attached;
        names += r->named ? 1u + (r->n_key > 0) : 0;
        check(!r->attached || map_find(l->by_rid, key_of(l, r->client, r->rid)) == i);
        check(!r->named || map_find(l->by_name, rid_name(l, &r->session, r->rid)) == i);
        check(!r->kept || (r->state == ROW_ENDED && r->named && !r->attached && !r->held));
        kept += r->kept;
        if (r->kept) bytes += kept_bytes(r);
        if (r->state != ROW_QUEUED) continue;
        queued++;
        tokens += r->prompt_cost;
        check(!r->held);
    }
    for (uint32_t i = l->queue.first; i != ROW_NONE; i = l->row[i].next) {
        uint32_t next = l->row[i].next;

        in_queue++;
        check(next == ROW_NONE || before(&l->row[i], &l->row[next]));
    }
    for (uint32_t i = l->kept.first; i != ROW_NONE; i = l->row[i].next) in_kept++;
    check(n == l->n && all == map_n(l->by_id) && attached == map_n(l->by_rid) &&
          names == map_n(l->by_name));
    check(queued == l->queue.n && in_queue == queued && tokens == l->queued_tokens);
    check(kept == l->kept.n && in_kept == kept && bytes == l->kept_bytes);
}
