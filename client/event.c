/* event.c - lagan_next(): converts received frames to events; see lagan.h.
 *
 * A frame stays in c->current until the next call, because the event points into it. Bins (lists of
 * numbers as bytes) are copied to aligned memory. */
#include "client/client.h"

/* Grows the array *p of *max elements to at least n elements of this many bytes each. */
static int
grow(void **p, size_t *max, size_t n, size_t bytes)
{
    void *more;

    if (n <= *max) return 0;
    more = realloc(*p, n * bytes);
    if (!more) return -ENOMEM;
    *p = more;
    *max = n;
    return 0;
}

static uint32_t
le32(const char *p)
{
    const uint8_t *b = (const uint8_t *)p;

    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* Copies lp (log-probabilities) and tp (alternatives) of n tokens from a map into the event. */
static int
take_logprobs(struct lagan *c, const msgpack_object *map, uint32_t n, struct lagan_event *ev)
{
    const msgpack_object *tp = msg_get(map, "tp");
    struct msg_span s;
    uint64_t k = 0;
    uint32_t bits;

    if (msg_str(map, "lp", &s) == 0) {
        if (s.n != 4 * (size_t)n) return -EBADMSG;
        TRY(grow((void **)&c->logprob, &c->max_logprob, n, sizeof *c->logprob));
        for (size_t i = 0; i < n; i++) bits = le32(s.p + 4 * i), memcpy(&c->logprob[i], &bits, 4);
        ev->logprob = c->logprob;
    }
    /* alternatives: k of each token, data d; for prompt tokens k and d are beside lp, not in tp */
    if (!tp && msg_get(map, "d")) tp = map;
    if (!tp) return 0;
    if (msg_u64(tp, "k", &k) < 0 || msg_str(tp, "d", &s) < 0) return -EBADMSG;
    if (k > LAGAN_MAX_TOP || s.n != 8 * (size_t)n * k) return -EBADMSG;
    if (!k) return 0;
    TRY(grow((void **)&c->top, &c->max_top, (size_t)n * k, sizeof *c->top));
    for (size_t i = 0; i < (size_t)n * k; i++) {
        c->top[i].id = (int32_t)le32(s.p + 8 * i);
        bits = le32(s.p + 8 * i + 4);
        memcpy(&c->top[i].logprob, &bits, 4);
    }
    ev->n_top = (uint32_t)k;
    ev->top = c->top;
    return 0;
}

static int
take_ids(struct lagan *c, const msgpack_object *map, struct lagan_event *ev)
{
    struct msg_ids ids;
    int r = msg_ids(map, "t", &ids, NULL);

    if (r == -ENOENT) return 0;
    if (r < 0) return -EBADMSG;
    TRY(grow((void **)&c->ids, &c->max_ids, ids.n, sizeof *c->ids));
    for (uint32_t i = 0; i < ids.n; i++) c->ids[i] = msg_id(&ids, i);
    ev->n_ids = ids.n;
    ev->ids = c->ids;
    return 0;
}

/* Removes positions that the caller received before another SUBMIT. Returns 0 if none is left. */
static int
drop_known(struct lagan_event *ev, uint32_t have)
{
    uint32_t n = have > ev->first ? MIN(have - ev->first, ev->n_ids) : 0;

    ev->first += n;
    ev->n_ids -= n;
    if (ev->ids) ev->ids += n;
    if (ev->logprob) ev->logprob += n;
    if (ev->top) ev->top += (size_t)n * ev->n_top;
    return ev->n_ids > 0;
}

static int
take_prompt(struct lagan *c, struct open_request *req, const msgpack_object *pl,
            struct lagan_event *ev)
{
    struct msg_span s;
    uint64_t first = 0;

    if (pl->type != MSGPACK_OBJECT_MAP || msg_str(pl, "lp", &s) < 0 || s.n % 4) return -EBADMSG;
    if (msg_u64(pl, "i", &first) == -EINVAL || first > req->n_prompt_have) return -EBADMSG;
    TRY(take_ids(c, pl, ev));
    if (ev->ids && ev->n_ids != s.n / 4) return -EBADMSG;
    ev->kind = LAGAN_EVENT_PROMPT;
    ev->first = (uint32_t)first;
    ev->n_ids = s.n / 4;
    TRY(take_logprobs(c, pl, ev->n_ids, ev));
    if (!drop_known(ev, req->n_prompt_have)) return 0;
    req->n_prompt_have = ev->first + ev->n_ids;
    return 1;
}

static int
take_tensor(struct lagan *c, struct open_request *req, const msgpack_object *x,
            struct lagan_event *ev)
{
    static const char *const name[] = {
#define X(number, name, word, sentence) word,
        LAGAN_TENSORS(X)
#undef X
    };
    uint64_t kind = 0, first = 0, cols = 0, *have;
    struct msg_span s;
    size_t n, known;

    if (x->type != MSGPACK_OBJECT_MAP || msg_u64(x, "k", &kind) < 0 || !kind ||
        kind > LAGAN_N_TENSORS || msg_u64(x, "i", &first) < 0 || msg_u64(x, "c", &cols) < 0 ||
        cols > UINT32_MAX || msg_str(x, "d", &s) < 0 || s.n % 4)
        return -EBADMSG;
    have = &req->n_values[kind - 1];
    if (!*have && req->n_ids) *have = first; /* with generated_ids the rows start later */
    if (first > *have) return -EBADMSG;
    n = s.n / 4;
    known = (size_t)MIN(*have - first, (uint64_t)n);
    if (known == n) return 0;
    TRY(grow((void **)&c->values, &c->max_values, n, sizeof *c->values));
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = le32(s.p + 4 * i);

        memcpy(&c->values[i], &bits, 4);
    }
    ev->kind = LAGAN_EVENT_TENSOR;
    ev->tensor_name = name[kind - 1];
    ev->values = c->values + known;
    ev->n_values = n - known;
    ev->first_value = *have;
    ev->cols = (uint32_t)cols;
    *have = first + n;
    return 1;
}

/* Stores the tokens of this chunk, because after a restart lagand needs them to continue. */
static int
keep_tokens(struct open_request *req, const struct msg *m, const struct lagan_event *ev)
{
    const msgpack_object *end = msg_get(&m->map, "end");
    msgpack_packer p;
    bool more = false;

    if (ev->first != req->n_ids) return -EBADMSG;
    if (ev->n_ids > req->max_ids - req->n_ids) {
        uint32_t max = MAX(2 * req->max_ids, req->n_ids + ev->n_ids + 64);
        int32_t *ids = realloc(req->ids, max * sizeof *ids);

        if (!ids) return -ENOMEM;
        req->ids = ids;
        req->max_ids = max;
    }
    if (ev->n_ids) memcpy(req->ids + req->n_ids, ev->ids, ev->n_ids * sizeof *ev->ids);
    req->n_ids += ev->n_ids;
    msg_bool(&m->map, "more", &more);
    req->text_incomplete = more;
    if (!end || end->type != MSGPACK_OBJECT_MAP || req->end.size) return 0;
    msgpack_packer_init(&p, &req->end, msgpack_sbuffer_write);
    return msgpack_pack_object(&p, *end) < 0 ? -ENOMEM : 0;
}

/* Converts a CHUNK. Returns 1: *ev is set; 0: the caller already has everything in the chunk. */
static int
take_chunk(struct lagan *c, struct open_request *req, const struct msg *m, struct lagan_event *ev)
{
    const msgpack_object *pl = msg_get(&m->map, "pl"), *x = msg_get(&m->map, "x");
    uint64_t o = 0, first = 0, n = req->taken + 1;
    struct msg_span s = { "", 0 };

    /* lagand numbers the chunks of a request from 1 without gaps. */
    if (msg_u64(&m->map, "n", &n) == -EINVAL || n != req->taken + 1) return -EBADMSG;
    req->taken = n;
    /* ACK after half of the window: few ACKs, yet lagand has credit while the caller reads. */
    if (n - req->acked >= MAX(1u, req->ack_window / 2)) c->ack_rid = req->rid;
    if (!c->ack_at) c->ack_at = clock_now() + CLIENT_ACK_AFTER;
    if (pl) return take_prompt(c, req, pl, ev);
    if (x) return take_tensor(c, req, x, ev);
    if (msg_u64(&m->map, "o", &o) == -EINVAL || msg_u64(&m->map, "i", &first) == -EINVAL ||
        msg_str(&m->map, "s", &s) == -EINVAL || o > UINT32_MAX || first > UINT32_MAX)
        return -EBADMSG;
    ev->kind = LAGAN_EVENT_TOKENS;
    ev->output = (uint32_t)o;
    ev->first = (uint32_t)first;
    ev->text = s.p;
    ev->text_len = s.n;
    TRY(take_ids(c, &m->map, ev));
    TRY(take_logprobs(c, &m->map, ev->n_ids, ev));
    if (o)
        req->n_more += ev->n_ids;
    else
        TRY(keep_tokens(req, m, ev));
    req->n_text += ev->text_len;
    if (ev->n_ids) req->n_tries = 0;
    return 1;
}

static uint32_t
small(const msgpack_object *map, const char *key)
{
    uint64_t v = 0;

    msg_u64(map, key, &v);
    return (uint32_t)MIN(v, (uint64_t)UINT32_MAX);
}

/* Sets reason and reason_name of the event. Returns true if a retry may succeed. */
static bool
set_reason(struct lagan_event *ev, uint32_t reason, const char *unknown)
{
    bool retry;

    ev->reason = reason;
    ev->reason_name = msg_reason(reason, &retry);
    if (!ev->reason_name) ev->reason_name = unknown;
    return retry;
}

static void
take_stop(const msgpack_object *o, struct lagan_event *ev)
{
    ev->stop_id = -1;
    if (o && o->type == MSGPACK_OBJECT_STR) {
        ev->stop = o->via.str.ptr;
        ev->stop_len = o->via.str.size;
    } else if (o && o->type == MSGPACK_OBJECT_POSITIVE_INTEGER && o->via.u64 <= INT32_MAX) {
        ev->stop_id = (int32_t)o->via.u64;
    }
}

/* Converts one entry of the list outputs of a DONE to an OUTPUT event. */
static int
take_output(const msgpack_object *o, struct lagan_event *ev)
{
    const msgpack_object *blocks;
    double score = 0;

    if (o->type != MSGPACK_OBJECT_MAP) return -EBADMSG;
    ev->kind = LAGAN_EVENT_OUTPUT;
    ev->output = small(o, "o");
    set_reason(ev, small(o, "reason"), "error");
    ev->n_tokens = small(o, "n_tokens");
    msg_f64(o, "score", &score);
    ev->score = (float)score;
    ev->cached = small(o, "cached");
    msg_u64(o, "seed", &ev->seed);
    ev->resumed = small(o, "resumed");
    ev->adopted = small(o, "adopted");
    ev->recomputed = small(o, "recomputed");
    ev->n_prompt_tokens = small(o, "n_prompt_tokens");
    take_stop(msg_get(o, "stop"), ev);
    blocks = msg_get(o, "kv_blocks");
    if (!blocks || blocks->type != MSGPACK_OBJECT_MAP) return 0;
    ev->blocks_allocated = small(blocks, "allocated");
    ev->blocks_allocated_new = small(blocks, "allocated_new");
    ev->blocks_reused = small(blocks, "reused");
    ev->blocks_missed = small(blocks, "missed");
    return 0;
}

/* Makes the event for the next output of the DONE in c->current, and after the last one DONE. */
static int
take_done(struct lagan *c, struct open_request *req, struct lagan_event *ev)
{
    const msgpack_object *outputs = msg_get(&c->current->m.map, "outputs");
    uint32_t n = 0;

    if (outputs && outputs->type != MSGPACK_OBJECT_ARRAY) return -EBADMSG;
    if (outputs) n = outputs->via.array.size;
    req->done_started = true;
    if (c->next_output < n) return take_output(&outputs->via.array.ptr[c->next_output++], ev);
    c->next_output = 0;
    ev->kind = LAGAN_EVENT_DONE;
    client_close_request(c, c->current->m.rid);
    return 0;
}

static void
take_error(struct lagan *c, const struct msg *m, struct lagan_event *ev)
{
    struct msg_span s;
    bool retry = set_reason(ev, small(&m->map, "code"), "internal");

    ev->kind = LAGAN_EVENT_ERROR;
    msg_bool(&m->map, "retryable", &retry);
    ev->retryable = retry;
    ev->n_tokens = small(&m->map, "delivered");
    ev->n_prompt_tokens = small(&m->map, "n_prompt_tokens");
    ev->max_len = small(&m->map, "max_len");
    ev->message = msg_reason_sentence(ev->reason);
    if (msg_str(&m->map, "message", &s) == 0) {
        client_fail(c, 0, "%.*s", (int)MIN(s.n, 300u), s.p);
        ev->message = c->errmsg;
    }
    if (!ev->message) ev->message = "";
    client_close_request(c, m->rid);
}

/* Makes the events of a lost connection: ERROR for each open request, then DISCONNECTED. */
static void
take_loss(struct lagan *c, struct lagan_event *ev)
{
    set_reason(ev, c->lost_code, "internal");
    ev->message = c->lost_why;
    ev->retryable = 1;
    if (c->n_requests) {
        ev->kind = LAGAN_EVENT_ERROR;
        ev->id = c->requests[0].rid;
        ev->accepted_at = c->requests[0].accepted_at;
        client_close_request(c, ev->id);
        return;
    }
    ev->kind = LAGAN_EVENT_DISCONNECTED;
    c->reporting_loss = false;
}

/* Makes the event of a call that was lost with its connection. */
static void
take_lost_call(struct lagan *c, struct lagan_event *ev)
{
    ev->kind = LAGAN_EVENT_ERROR;
    ev->id = c->calls[0];
    set_reason(ev, LAGAN_E_INTERNAL, "internal");
    client_fail(c, 0, "%.200s; it is unknown whether lagand executed the command", c->lost_why);
    ev->message = c->errmsg;
    client_close_call(c, ev->id);
}

/* Makes the event of a REPLY or ERROR to lagan_start_call(). */
static int
take_call_end(struct lagan *c, const struct msg *m, struct lagan_event *ev)
{
    ev->id = m->rid;
    client_close_call(c, m->rid);
    if (m->type == LAGAN_MSG_ERROR) return take_error(c, m, ev), 1;
    free(c->reply);
    c->reply = client_reply_text(m);
    if (!c->reply) return -ENOMEM;
    ev->kind = LAGAN_EVENT_REPLY;
    ev->text = c->reply;
    ev->text_len = strlen(c->reply);
    return 1;
}

static int
take_event(struct lagan *c, struct lagan_event *ev)
{
    const struct msg *m = &c->current->m;
    struct open_request *req = client_find(c, m->rid);

    if (client_is_call(c, m->rid)) return take_call_end(c, m, ev);
    if (!req) return 0; /* ended while the frame was queued */
    ev->id = m->rid;
    ev->accepted_at = req->accepted_at;
    switch (m->type) {
    case LAGAN_MSG_CHUNK:
        return take_chunk(c, req, m, ev);
    case LAGAN_MSG_DONE:
        TRY(take_done(c, req, ev));
        return 1;
    default:
        if (client_retries(c, req, small(&m->map, "code"))) return 0;
        take_error(c, m, ev);
        return 1;
    }
}

static int
next_event(struct lagan *c, struct lagan_event *ev, nsec until)
{
    int r = 0;

    client_ack(c, /* all= */ false);
    for (;;) {
        if (!c->next_output) { /* otherwise c->current is a DONE with further outputs */
            if (c->current) frame_free(c->current);
            c->current = client_take_received(c);
            if (!c->current && c->n_lost_calls) return take_lost_call(c, ev), 1;
            if (!c->current && c->reporting_loss) return take_loss(c, ev), 1;
            if (!c->current) {
                r = client_step(c, &c->current, until);
                if (r <= 0) return r;
                if (!c->current) continue;
            }
        }
        r = take_event(c, ev);
        if (r > 0) return r;
        c->next_output = 0;
        memset(ev, 0, sizeof *ev);
        if (r == -ENOMEM) return client_fail(c, r, "out of memory for the tokens of a message");
        if (r < 0) client_lose(c, LAGAN_E_INTERNAL, "lagand sent a message with invalid values");
    }
}

int
lagan_next(struct lagan *c, struct lagan_event *ev, int timeout_ms)
{
    struct lagan_event full;
    size_t size = ev->size;
    int r;

    if (size < offsetof(struct lagan_event, output) || size > 4096)
        return client_fail(
            c, -EINVAL,
            "lagan_event.size is %zu; the caller must set it to sizeof(struct lagan_event)", size);
    memset(&full, 0, sizeof full);
    r = next_event(c, &full, client_until(timeout_ms));
    if (r > 0) {
        memset(ev, 0, size);
        memcpy(ev, &full, MIN(size, sizeof full));
        ev->size = size;
    }
    client_rearm(c);
    return r;
}
