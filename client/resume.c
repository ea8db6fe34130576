/* resume.c - moves open requests to a new connection; see client.h and lagan.h.
 *
 * The library keeps keys and delivered tokens of every open request. After a WELCOME on a new
 * connection it sends one RESUME, which lists all open requests and how much of each was delivered.
 * lagand continues the requests that it knows. A restarted lagand may not know them; the library
 * then submits them again with the delivered tokens as generated_ids. A request that cannot be
 * continued exactly ends with an ERROR event; otherwise the caller does not notice the loss. */
#include "client/client.h"

enum { MOST_TRIES = 20 };           /* maximum number of SUBMITs of a request without a new token */
#define RETRY_AFTER (100 * NSEC_MS) /* after a rejection */

/* ---- DONE and ERROR frames made by the library */

/* Queues a frame made by the library behind the received frames. */
static void
queue_own_frame(struct lagan *c, const msgpack_sbuffer *b)
{
    struct frame *f = NULL;
    struct err e;
    int r = frame_new(&f, b->data, b->size, &e);

    if (!f) {
        client_lose(c, LAGAN_E_OUT_OF_MEMORY, "out of memory for the end of a request");
        return;
    }
    /* Fails if r->end, one container deeper in this DONE than in CHUNK, exceeds LAGAN_MAX_DEPTH. */
    if (r < 0) {
        frame_free(f);
        client_lose(c, LAGAN_E_INTERNAL, "lagand sent a message with invalid values");
        return;
    }
    client_queue_received(c, f);
    c->own_frame_queued = true;
}

static void
end_well(struct lagan *c, const struct open_request *r)
{
    CLEAN(msgpack_sbuffer_destroy) msgpack_sbuffer b = { 0 };
    msgpack_packer p = client_begin(&b, LAGAN_MSG_DONE, r->rid, 1);

    msg_key(&p, "outputs"), msgpack_pack_array(&p, 1);
    msgpack_sbuffer_write(&b, r->end.data, r->end.size);
    queue_own_frame(c, &b);
}

static void
end_with_error(struct lagan *c, const struct open_request *r, uint32_t code, const char *why)
{
    CLEAN(msgpack_sbuffer_destroy) msgpack_sbuffer b = { 0 };
    msgpack_packer p = client_begin(&b, LAGAN_MSG_ERROR, r->rid, 3);

    msg_key(&p, "code"), msgpack_pack_uint32(&p, code);
    msg_key(&p, "message"), msg_text(&p, why);
    msg_key(&p, "delivered"), msgpack_pack_uint32(&p, r->n_ids);
    queue_own_frame(c, &b);
}

/* ---- SUBMIT */

/* Packs SUBMIT with the stored keys and the time left to the deadline. If tokens were delivered,
 * adds generated_ids and the seed of these tokens, and omits prompt_logprobs. */
void
client_pack_submit(const struct open_request *r, msgpack_sbuffer *b)
{
    bool seed = r->n_ids && r->has_seed, time = r->deadline != NSEC_NEVER;
    uint32_t n = r->n_plain_keys + (r->n_ids ? 1 : r->n_prompt_keys) + seed + time;
    msgpack_packer p = client_begin(b, LAGAN_MSG_SUBMIT, r->rid, n);

    msgpack_sbuffer_write(b, r->body, r->n_ids ? r->n_plain : r->n_body);
    if (r->n_ids) msg_key(&p, "generated_ids"), client_pack_ids(&p, r->ids, r->n_ids);
    if (seed) msg_key(&p, "seed"), msgpack_pack_uint64(&p, r->seed);
    if (!time) return;
    msg_key(&p, "deadline_ms");
    msgpack_pack_uint64(&p, (uint64_t)CEIL_DIV(MAX(r->deadline - clock_now(), NSEC_MS), NSEC_MS));
}

static void
submit_again(struct lagan *c, struct open_request *r)
{
    CLEAN(msgpack_sbuffer_destroy) msgpack_sbuffer b = { 0 };

    r->retry_at = 0;
    r->known_to_lagand = false;
    r->taken = r->acked = r->n_text = 0;
    if (++r->n_tries > MOST_TRIES) {
        end_with_error(
            c, r, LAGAN_E_WORKER_LOST,
            "the connection was lost 20 times before lagand sent a new token of this request");
        return;
    }
    client_pack_submit(r, &b);
    if (b.size > LAGAN_MAX_FRAME)
        end_with_error(c, r, LAGAN_E_TOO_LONG,
                       "lagand was restarted, and prompt and output are too long to submit again");
    else if (client_send(c, &b) < 0)
        end_with_error(c, r, LAGAN_E_INTERNAL, c->errmsg);
}

/* Handles a request that lagand does not know after a reconnect: ends it or submits it again. */
static void
unknown(struct lagan *c, struct open_request *r)
{
    if (r->done_started) return;
    if (r->end.size) {
        end_well(c, r);
    } else if (r->cancelled) {
        end_with_error(c, r, LAGAN_E_CANCELLED, "cancelled while the connection was lost");
    } else if (r->n_more || (r->several_outputs && r->n_ids)) {
        end_with_error(
            c, r, LAGAN_E_WORKER_LOST,
            "lagand was restarted and lost the state of the request, which has several outputs");
    } else if (r->no_resume) {
        end_with_error(c, r, LAGAN_E_WORKER_LOST, "lagand was restarted and resume is false");
    } else if (r->text_incomplete) {
        end_with_error(c, r, LAGAN_E_WORKER_LOST,
                       "lagand was restarted between some tokens and their text");
    } else {
        submit_again(c, r);
    }
}

bool
client_retries(struct lagan *c, struct open_request *r, uint32_t code)
{
    nsec now = clock_now();

    if (!r->accepted || r->known_to_lagand || c->reporting_loss) return false;
    if (code != LAGAN_E_QUEUE_FULL && code != LAGAN_E_DRAINING && code != LAGAN_E_WORKER_LOST)
        return false;
    if (r->cancelled) {
        client_cancelled(c, r);
        return true;
    }
    /* A full queue becomes empty, so the request is retried without limit. A model may stay without
     * a worker (drained, failed), so the request is then retried until the reconnect timeout. */
    if (code == LAGAN_E_QUEUE_FULL)
        r->rejected_since = 0;
    else if (!r->rejected_since)
        r->rejected_since = now;
    else if (now >= clock_after(r->rejected_since, c->reconnect_timeout))
        return false;
    r->n_tries--; /* n_tries counts lost connections; this lagand only rejected the request */
    r->retry_at = now + RETRY_AFTER;
    c->retry_at = MIN(c->retry_at, r->retry_at);
    return true;
}

void
client_cancelled(struct lagan *c, struct open_request *r)
{
    r->retry_at = 0;
    end_with_error(c, r, LAGAN_E_CANCELLED, "cancelled before it was submitted again");
}

nsec
client_retry_at(const struct lagan *c)
{
    return c->welcome ? c->retry_at : NSEC_NEVER;
}

void
client_retry(struct lagan *c, nsec now)
{
    nsec next = NSEC_NEVER;

    if (!c->welcome || now < c->retry_at) return;
    for (uint32_t i = 0; i < c->n_requests; i++) {
        struct open_request *r = &c->requests[i];

        if (r->retry_at && now >= r->retry_at) submit_again(c, r);
        if (r->retry_at) next = MIN(next, r->retry_at);
    }
    c->retry_at = next;
}

/* ---- RESUME */

void
client_resume(struct lagan *c)
{
    static const char *const keys[] = { "rids", "n_tokens", "text_bytes" };
    CLEAN(msgpack_sbuffer_destroy) msgpack_sbuffer b = { 0 };
    msgpack_packer p;

    client_drop_received(c); /* lagand sends their contents again on the new connection */
    if (!c->n_requests) return;
    c->resume_rid = ++c->next_rid;
    p = client_begin(&b, LAGAN_MSG_RESUME, c->resume_rid, ARRAY_LEN(keys));
    for (size_t k = 0; k < ARRAY_LEN(keys); k++) {
        msg_key(&p, keys[k]);
        msgpack_pack_array(&p, c->n_requests);
        for (uint32_t i = 0; i < c->n_requests; i++) {
            const struct open_request *r = &c->requests[i];
            const uint64_t value[] = { r->rid, r->n_ids + r->n_more, r->n_text };

            msgpack_pack_uint64(&p, value[k]);
        }
    }
    if (client_send(c, &b) < 0) client_lose(c, LAGAN_E_INTERNAL, c->errmsg);
}

static bool
among(const msgpack_object *list, uint64_t rid)
{
    for (uint32_t i = 0; i < list->via.array.size; i++) {
        const msgpack_object *o = &list->via.array.ptr[i];

        if (o->type == MSGPACK_OBJECT_POSITIVE_INTEGER && o->via.u64 == rid) return true;
    }
    return false;
}

/* Stores the times at which lagand accepted requests, from a list of [rid, UNIX time]. */
static void
take_times(struct lagan *c, const msgpack_object *list)
{
    for (uint32_t i = 0; list && list->type == MSGPACK_OBJECT_ARRAY && i < list->via.array.size;
         i++) {
        const msgpack_object *o = &list->via.array.ptr[i], *v = o->via.array.ptr;
        struct open_request *r;

        if (o->type != MSGPACK_OBJECT_ARRAY || o->via.array.size != 2 ||
            v[0].type != MSGPACK_OBJECT_POSITIVE_INTEGER ||
            v[1].type != MSGPACK_OBJECT_POSITIVE_INTEGER)
            continue;
        r = client_find(c, v[0].via.u64);
        if (r && !r->accepted_at) r->accepted_at = v[1].via.u64;
    }
}

void
client_resumed(struct lagan *c, const struct msg *m)
{
    const msgpack_object *result = msg_get(&m->map, "result"), *list = NULL;

    c->resume_rid = 0;
    if (m->type == LAGAN_MSG_REPLY && result && result->type == MSGPACK_OBJECT_MAP)
        list = msg_get(result, "unknown"), take_times(c, msg_get(result, "at"));
    if (list && list->type != MSGPACK_OBJECT_ARRAY) list = NULL;
    /* No list: lagand rejected RESUME and knows none of the requests. */
    for (uint32_t i = 0; i < c->n_requests; i++) {
        struct open_request *r = &c->requests[i];

        if (r->rid > m->rid) break; /* submitted after the RESUME */
        if (!list || among(list, r->rid)) {
            unknown(c, r);
        } else {
            r->accepted = r->known_to_lagand = true;
            r->taken = r->acked = 0;
            if (r->cancelled) client_send_cancel(c, r->rid);
        }
    }
}
