/* ledger.c - the table of lagand's requests, its queue and its indices by rid, name and id. */
#include "daemon/ledger/ledger.h"

#include "base/map.h"
#include "daemon/ledger/outputs.h"
#include "daemon/ledger/request.h"

struct list { /* of requests: indices of the first and last one, linked by request.next and prev */
    uint32_t first, last, n;
};

struct ledger {
    struct request *request;              /* [capacity] */
    uint32_t capacity, n, n_ever;         /* n: open requests; n_ever: entries ever used */
    uint32_t free;                        /* first entry of the free list, linked by next */
    struct list queue, retained, pending; /* pending is linked by next_pending, without n */
    uint64_t queued_tokens, retained_bytes, seed;
    req_id last_id;
    struct map *by_rid;  /* (client, rid) -> index */
    struct map *by_name; /* (session, rid) and (session, idempotency key) -> index */
    struct map *by_id;
};

_Static_assert(REQUEST_NONE == MAP_NONE, "at_index() accepts list links and map_find() results");
static struct request *
at_index(struct ledger *l, uint32_t i)
{
    return i == REQUEST_NONE ? NULL : &l->request[i];
}

/* Returns the key of (client, rid) in by_rid. The secret seed prevents deliberate collisions. */
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
    l->free = REQUEST_NONE;
    l->queue = l->retained = l->pending = (struct list){ REQUEST_NONE, REQUEST_NONE, 0 };
    /* Pages of this array are mapped when entries are first written: an idle lagand is small. */
    l->request = calloc(capacity, sizeof *l->request);
    l->by_rid = map_new(capacity);
    l->by_name = map_new(2 * capacity);
    l->by_id = map_new(capacity);
    return l->request && l->by_rid && l->by_name && l->by_id ? TAKE(l) : NULL;
}

static void
empty(struct request *r)
{
    free(r->submit);
    r->submit = NULL;
    outputs_done(r);
}

struct ledger *
ledger_free(struct ledger *l)
{
    if (!l) return NULL;
    for (uint32_t i = 0; l->request && i < l->n_ever; i++) empty(&l->request[i]);
    map_free(l->by_rid);
    map_free(l->by_name);
    map_free(l->by_id);
    free(l->request);
    free(l);
    return NULL;
}

struct ledger_counts
ledger_counts(const struct ledger *l)
{
    return (struct ledger_counts){ l->n, l->queue.n, l->capacity, l->queued_tokens };
}

/* Estimates 4 bytes of text per token, because only a worker can tokenize. */
uint64_t
ledger_prompt_tokens(const struct rec_submit *s)
{
    return (uint64_t)s->n_prompt + s->n_decoder + (s->text_bytes + 3) / 4;
}

uint64_t
ledger_total_tokens(const struct rec_submit *s)
{
    return ledger_prompt_tokens(s) + (uint64_t)s->max_tokens * MAX(s->n, s->beams);
}

/* ---- lists */

/* Inserts r into q before the request with index at, or at the end if at is REQUEST_NONE. */
static void
put_in(struct ledger *l, struct list *q, struct request *r, uint32_t at)
{
    uint32_t before = at == REQUEST_NONE ? q->last : l->request[at].prev;

    r->prev = before;
    r->next = at;
    *(before == REQUEST_NONE ? &q->first : &l->request[before].next) = r->index;
    *(at == REQUEST_NONE ? &q->last : &l->request[at].prev) = r->index;
    q->n++;
}

static void
take_out(struct ledger *l, struct list *q, struct request *r)
{
    *(r->prev == REQUEST_NONE ? &q->first : &l->request[r->prev].next) = r->next;
    *(r->next == REQUEST_NONE ? &q->last : &l->request[r->next].prev) = r->prev;
    q->n--;
}

static bool
before(const struct request *a, const struct request *b)
{
    if (a->submit->priority > b->submit->priority) return true;
    if (a->submit->priority < b->submit->priority) return false;
    return a->fair_tag < b->fair_tag || (a->fair_tag == b->fair_tag && a->id < b->id);
}

static void
enqueue(struct ledger *l, struct request *r)
{
    uint32_t at = REQUEST_NONE, prev = l->queue.last;

    /* Searches r's position from the end, because most requests arrive in queue order. */
    while (prev != REQUEST_NONE && before(r, &l->request[prev])) {
        at = prev;
        prev = l->request[prev].prev;
    }
    put_in(l, &l->queue, r, at);
    l->queued_tokens += r->n_prompt_tokens;
}

static void
dequeue(struct ledger *l, struct request *r)
{
    take_out(l, &l->queue, r);
    l->queued_tokens -= r->n_prompt_tokens;
}

/* ---- names */

/* Returns the key in by_name of (session, n bytes at p). kind: 'r' rid, 'k' idempotency key. */
static uint64_t
name_of(const struct ledger *l, const struct session_id *session, char kind, const void *p,
        size_t n)
{
    uint64_t h = (l->seed ^ (uint8_t)kind) * UINT64_C(0x9e3779b97f4a7c15);

    /* FNV-1a, started from the secret seed so that clients cannot cause collisions. */
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

/* Returns the session's request with this name hash, or NULL. The caller compares the rid or key,
 * because another name can have the same hash. */
static struct request *
find_name(struct ledger *l, const struct session_id *session, uint64_t name)
{
    struct request *r = at_index(l, map_find(l->by_name, name));

    return r && !memcmp(&r->session, session, sizeof *session) ? r : NULL;
}

struct request *
ledger_find_rid(struct ledger *l, const struct session_id *session, uint64_t rid)
{
    struct request *r = find_name(l, session, rid_name(l, session, rid));

    return r && r->rid == rid ? r : NULL;
}

struct request *
ledger_find_key(struct ledger *l, const struct session_id *session, const char *key, uint32_t n_key)
{
    struct request *r = find_name(l, session, name_of(l, session, 'k', key, n_key));

    return r && r->n_key == n_key && !memcmp(r->key, key, n_key) ? r : NULL;
}

static void
unname(struct ledger *l, struct request *r)
{
    if (!r->named) return;
    check(map_take(l->by_name, rid_name(l, &r->session, r->rid)) == r->index);
    check(!r->n_key ||
          map_take(l->by_name, name_of(l, &r->session, 'k', r->key, r->n_key)) == r->index);
    r->named = false;
}

static void
forget(struct ledger *l, struct request *r)
{
    unname(l, r);
    check(map_take(l->by_id, r->id) == r->index);
    empty(r);
    r->state = REQUEST_FREE;
    r->next = l->free;
    l->free = r->index;
}

static size_t
retained_bytes(const struct request *r)
{
    return sizeof *r + r->submit_bytes + outputs_bytes(r);
}

/* Removes r from the list of retained requests; the caller then attaches or frees r. */
static void
unretain(struct ledger *l, struct request *r)
{
    take_out(l, &l->retained, r);
    l->retained_bytes -= retained_bytes(r);
    r->retained = false;
}

static void
drop_retained(struct ledger *l, struct request *r)
{
    unretain(l, r);
    forget(l, r);
}

void
ledger_unname(struct ledger *l, struct request *r)
{
    (r->retained ? drop_retained : unname)(l, r);
}

int
ledger_name(struct ledger *l, struct request *r, const struct session_id *session, const char *key,
            uint32_t n_key)
{
    struct request *old = ledger_find_rid(l, session, r->rid);

    check(!r->named && n_key <= sizeof r->key);
    if (old && !old->retained) return -EEXIST;
    if (n_key && ledger_find_key(l, session, key, n_key)) return -EEXIST;
    if (old) drop_retained(l, old);
    r->session = *session;
    r->n_key = (uint8_t)n_key;
    if (n_key) memcpy(r->key, key, n_key);
    TRY(map_put(l->by_name, rid_name(l, session, r->rid), r->index));
    if (n_key && map_put(l->by_name, name_of(l, session, 'k', key, n_key), r->index) < 0) {
        map_take(l->by_name, rid_name(l, session, r->rid));
        return -EEXIST;
    }
    r->named = true;
    return 0;
}

/* ---- life of a request */

static struct request *
place(struct ledger *l)
{
    uint32_t i = l->free;

    if (i == REQUEST_NONE && l->n_ever == l->capacity) {
        if (!l->retained.n) return NULL;
        drop_retained(l, &l->request[l->retained.first]);
        i = l->free;
    }
    if (i == REQUEST_NONE) return &l->request[l->n_ever++];
    l->free = l->request[i].next;
    return &l->request[i];
}

/* Returns a new queued request with this id and record; NULL: every entry has an open request. */
static struct request *
add(struct ledger *l, req_id id, uint64_t rid, struct rec_submit *submit, uint32_t submit_bytes)
{
    struct request *r = place(l);
    uint32_t gen;

    if (!r) return NULL;
    submit->n = MAX(submit->n, 1u);
    submit->beams = MAX(submit->beams, 1u);
    gen = r->gen + 1;
    *r = (struct request){
        .state = REQUEST_QUEUED,
        .index = (uint32_t)(r - l->request),
        .gen = gen ? gen : 1,
        .id = id,
        .rid = rid,
        .client = UINT32_MAX,
        .terms.deadline = NSEC_NEVER,
        .submit = submit,
        .submit_bytes = submit_bytes,
        .n_prompt_tokens = ledger_prompt_tokens(submit),
        .accounting.n_tokens = ledger_total_tokens(submit),
    };
    submit->ledger_index = r->index;
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
            uint32_t submit_bytes, struct request **ret)
{
    struct request *r;

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
ledger_restore(struct ledger *l, req_id id, uint64_t rid, struct rec_submit *submit,
               uint32_t submit_bytes, struct request **ret)
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
ledger_set_terms(struct request *r, const struct request_terms *terms)
{
    r->terms = *terms;
}

void
ledger_detach(struct ledger *l, struct request *r)
{
    check(r->attached);
    check(map_take(l->by_rid, key_of(l, r->client, r->rid)) == r->index);
    r->attached = false;
}

/* Returns true if m maps the hash `name` to a request other than r. */
static bool
is_anothers(const struct map *m, uint64_t name, const struct request *r)
{
    uint32_t i = map_find(m, name);

    return i != MAP_NONE && i != r->index;
}

/* Returns true if r cannot get this rid, because an open request of r's session has it or its hash
 * collides. A retained request with the rid does not count: the caller frees it. */
static bool
is_taken(struct ledger *l, const struct request *r, uint64_t rid)
{
    const struct request *other = ledger_find_rid(l, &r->session, rid);

    return !(other && other->retained) && is_anothers(l->by_name, rid_name(l, &r->session, rid), r);
}

int
ledger_renumber(struct ledger *l, struct request *r, uint64_t rid)
{
    struct request *other;

    check(r->named && !r->attached);
    if (rid == r->rid) return 0;
    if (is_taken(l, r, rid)) return -EEXIST;
    other = ledger_find_rid(l, &r->session, rid);
    if (other) drop_retained(l, other);
    check(map_take(l->by_name, rid_name(l, &r->session, r->rid)) == r->index);
    check(map_put(l->by_name, rid_name(l, &r->session, rid), r->index) == 0);
    r->rid = rid;
    return 0;
}

int
ledger_attach(struct ledger *l, struct request *r, uint32_t client, uint64_t rid)
{
    check(r->named);
    if (is_anothers(l->by_rid, key_of(l, client, rid), r) || is_taken(l, r, rid)) return -EEXIST;
    if (r->attached) ledger_detach(l, r);
    check(ledger_renumber(l, r, rid) == 0);
    if (r->retained) {
        unretain(l, r);
        l->n++;
    }
    r->client = client;
    r->attached = true;
    check(map_put(l->by_rid, key_of(l, client, rid), r->index) == 0);
    return 0;
}

/* Frees the tails (prompt etc.) of r's SUBMIT record: a retained request never runs again. */
static void
shrink(struct request *r)
{
    struct rec_submit *head = realloc(r->submit, sizeof *head);

    if (head) r->submit = head;
    head = r->submit;
    head->n_prompt = head->n_decoder = head->text_bytes = 0;
    head->n_eos = head->n_stop_ids = head->n_stop = head->n_bias = head->salt_bytes = 0;
    r->submit_bytes = sizeof *head;
}

void
ledger_give(struct ledger *l, struct request *r)
{
    check(r->state == REQUEST_ENDED && !r->attached && !r->dispatch.held && !r->pending &&
          !r->retained);
    l->n--;
    if (!r->named) {
        forget(l, r);
        return;
    }
    shrink(r);
    r->retained = true;
    put_in(l, &l->retained, r, REQUEST_NONE);
    l->retained_bytes += retained_bytes(r);
    while (l->retained_bytes > LEDGER_KEEP_BYTES) drop_retained(l, &l->request[l->retained.first]);
}

void
ledger_expire(struct ledger *l, nsec now)
{
    while (l->retained.n) {
        struct request *r = &l->request[l->retained.first];

        if (now - r->result.ended_at < LEDGER_KEEP_TIME) return;
        drop_retained(l, r);
    }
}

struct request *
ledger_request(struct ledger *l, uint32_t index)
{
    if (index >= l->n_ever || l->request[index].state == REQUEST_FREE) return NULL;
    return &l->request[index];
}

struct request *
ledger_next(struct ledger *l, uint32_t *at)
{
    while (*at < l->n_ever && l->request[*at].state == REQUEST_FREE) ++*at;
    return *at < l->n_ever ? &l->request[(*at)++] : NULL;
}

struct request *
ledger_find(struct ledger *l, uint32_t client, uint64_t rid)
{
    struct request *r = at_index(l, map_find(l->by_rid, key_of(l, client, rid)));

    return r && r->client == client && r->rid == rid ? r : NULL;
}

struct request *
ledger_find_id(struct ledger *l, req_id id)
{
    return at_index(l, map_find(l->by_id, id));
}

void
ledger_set_fair_tag(struct ledger *l, struct request *r, uint64_t fair_tag)
{
    if (r->state != REQUEST_QUEUED) {
        r->fair_tag = fair_tag;
        return;
    }
    /* Returns early, because enqueue() may search the position among thousands of requests. */
    if (fair_tag == r->fair_tag) return;
    dequeue(l, r);
    r->fair_tag = fair_tag;
    enqueue(l, r);
}

struct request *
ledger_next_queued(struct ledger *l, const struct request *after)
{
    return at_index(l, after ? after->next : l->queue.first);
}

struct request *
ledger_last_queued(struct ledger *l, const struct request *before)
{
    return at_index(l, before ? before->prev : l->queue.last);
}

void
ledger_add_pending(struct ledger *l, struct request *r)
{
    uint32_t last = l->pending.last;

    if (r->pending || !r->attached) return;
    r->pending = true;
    r->next_pending = REQUEST_NONE;
    *(last == REQUEST_NONE ? &l->pending.first : &l->request[last].next_pending) = r->index;
    l->pending.last = r->index;
}

uint32_t
ledger_take_pending(struct ledger *l)
{
    uint32_t first = l->pending.first;

    l->pending.first = l->pending.last = REQUEST_NONE;
    return first;
}

struct request *
ledger_pop_pending(struct ledger *l, uint32_t *at)
{
    struct request *r = at_index(l, *at);

    if (!r) return NULL;
    *at = r->next_pending;
    r->pending = false;
    return r;
}

void
request_move(struct ledger *l, struct request *r, enum request_state to)
{
    /* clang-format off */
    static const bool may[REQUEST_N_STATES][REQUEST_N_STATES] = {
        /*                   FREE   QUEUED DISP.  STREAM ENDED */
        [REQUEST_QUEUED]     = { false, false, true,  false, true  },
        [REQUEST_DISPATCHED] = { false, true,  false, true,  true  },
        [REQUEST_STREAMING]  = { false, true,  false, false, true  },
    };
    /* clang-format on */
    check(may[r->state][to]);
    if (r->state == REQUEST_QUEUED) dequeue(l, r);
    r->state = to;
    if (to == REQUEST_QUEUED) enqueue(l, r);
}

/* ---- getters */

enum request_state
request_state(const struct request *r)
{
    return r->state;
}

const char *
request_state_name(enum request_state state)
{
    static const char *const names[REQUEST_N_STATES] = {
        [REQUEST_FREE] = "free",
        [REQUEST_QUEUED] = "queued",
        [REQUEST_DISPATCHED] = "dispatched",
        [REQUEST_STREAMING] = "streaming",
        [REQUEST_ENDED] = "ended",
    };

    return names[state];
}

struct request_info
request_info(const struct request *r)
{
    return (struct request_info){
        .id = r->id,
        .client = r->client,
        .worker = r->dispatch.worker,
        .model = r->terms.model,
        .user = r->accounting.user,
        .seed = r->submit->seed,
        .n_prompt_tokens = r->n_prompt_tokens,
        .accepted = r->terms.accepted,
        .accepted_at = r->terms.accepted_at,
        .request_id = r->terms.request_id,
        .attached = r->attached,
        .retained = r->retained,
        .held = r->dispatch.held,
        .suspended = r->notify.suspended,
    };
}

uint32_t
request_n_seqs(const struct request *r)
{
    return MAX(r->submit->n, r->submit->beams);
}

const char *
request_stop(const struct request *r, uint32_t i, uint32_t *n)
{
    const struct rec_submit *s = r->submit;
    uint64_t n_eos = s->n_eos == 0xffff ? 0 : s->n_eos;
    /* The order of the tails is in records.h. A log may have ended inside of them. */
    uint64_t at = sizeof *s + REC_PAD(s->n_prompt * 4) + REC_PAD(s->n_decoder * 4) +
                  REC_PAD(s->text_bytes) + REC_PAD(n_eos * 4) + REC_PAD(s->n_stop_ids * 4);

    for (uint32_t k = 0; k < s->n_stop && at + 4 <= r->submit_bytes; k++, at += 4 + *n) {
        memcpy(n, (const char *)s + at, 4);
        if (*n > r->submit_bytes - at - 4) return NULL;
        if (k == i) return (const char *)s + at + 4;
    }
    return NULL;
}

/* ---- the SUBMIT with which a worker continues */

uint32_t
request_record_bytes(const struct request *r)
{
    return r->submit_bytes + (uint32_t)(REC_PAD(r->outputs.token.n) + REC_PAD(r->outputs.text.n)) +
           outputs_record_bytes(r);
}

/* Appends n bytes at `from` (NULL: zeros) to a record that is *pos bytes long. Copies only the
 * record's bytes [at, end), to `to`, which starts with byte `at`. */
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
request_record(const struct request *r, uint32_t at, void *to, uint32_t n)
{
    const char *base = (const char *)r->submit;
    struct rec_submit head = *r->submit;
    /* Order of the tails in records.h: ids of prompt and decoder; generated ids; text; text of the
     * generated ids; the other tails; with several outputs the output index of each generated id
     * and the score of each output. */
    size_t ids = REC_PAD(head.n_prompt * 4) + REC_PAD(head.n_decoder * 4);
    size_t text = REC_PAD(head.text_bytes), before = sizeof head + ids + text;
    uint32_t pos = 0, end = at + n;

    check(end <= request_record_bytes(r));
    head.n_done = request_n_tokens(r);
    head.done_text = (uint32_t)r->outputs.text.n;
    head.done_score = r->outputs.score;
    /* A worker sends prompt log-probabilities and encoder output before its first token: if r has
     * tokens, the next worker need not send these data again. */
    if (head.n_done) head.flags &= (uint8_t) ~(SUBMIT_PROMPT_LOGPROBS | SUBMIT_ENCODER_OUTPUT);
    if (r->notify.suspend_sent) head.flags |= SUBMIT_SUSPENDED;
    splice(&pos, &head, sizeof head, at, end, to);
    splice(&pos, base + sizeof head, ids, at, end, to);
    splice(&pos, r->outputs.token.p, r->outputs.token.n, at, end, to);
    splice(&pos, NULL, REC_PAD(r->outputs.token.n) - r->outputs.token.n, at, end, to);
    splice(&pos, base + sizeof head + ids, text, at, end, to);
    splice(&pos, r->outputs.text.p, r->outputs.text.n, at, end, to);
    splice(&pos, NULL, REC_PAD(r->outputs.text.n) - r->outputs.text.n, at, end, to);
    splice(&pos, base + before, r->submit_bytes - before, at, end, to);
    if (end > pos) {
        uint32_t from = MAX(pos, at);

        outputs_record(r, from - pos, (uint8_t *)to + (from - at), end - from);
    }
}

void
ledger_check(const struct ledger *l)
{
    uint32_t n = 0, all = 0, attached = 0, names = 0, queued = 0, in_queue = 0, kept = 0,
             in_kept = 0;
    uint64_t tokens = 0, bytes = 0;

    for (uint32_t i = 0; i < l->n_ever; i++) {
        const struct request *r = &l->request[i];

        if (r->state == REQUEST_FREE) continue;
        n += !r->retained;
        all++;
        check(map_find(l->by_id, r->id) == i);
        check(r->index == i && r->submit);
        attached += r->attached;
        names += r->named ? 1u + (r->n_key > 0) : 0;
        check(!r->attached || map_find(l->by_rid, key_of(l, r->client, r->rid)) == i);
        check(!r->named || map_find(l->by_name, rid_name(l, &r->session, r->rid)) == i);
        check(!r->retained ||
              (r->state == REQUEST_ENDED && r->named && !r->attached && !r->dispatch.held));
        kept += r->retained;
        if (r->retained) bytes += retained_bytes(r);
        if (r->state != REQUEST_QUEUED) continue;
        queued++;
        tokens += r->n_prompt_tokens;
        check(!r->dispatch.held);
    }
    for (uint32_t i = l->queue.first; i != REQUEST_NONE; i = l->request[i].next) {
        uint32_t next = l->request[i].next;

        in_queue++;
        check(next == REQUEST_NONE || before(&l->request[i], &l->request[next]));
    }
    for (uint32_t i = l->retained.first; i != REQUEST_NONE; i = l->request[i].next) in_kept++;
    check(n == l->n && all == map_n(l->by_id) && attached == map_n(l->by_rid) &&
          names == map_n(l->by_name));
    check(queued == l->queue.n && in_queue == queued && tokens == l->queued_tokens);
    check(kept == l->retained.n && in_kept == kept && bytes == l->retained_bytes);
}
