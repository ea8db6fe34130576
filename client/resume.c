/* resume.c - moves open requests to a new connection; see client.h and lagan.h.
 *
 * Every open request keeps its keys and its delivered tokens. After a WELCOME on a new connection
 * one RESUME lists all open requests and how much of each has been delivered. lagand continues
 * those that it knows. A restarted lagand may know none; those requests are submitted again with
 * the delivered tokens as generated_ids. A request that cannot be continued exactly ends with an
 * error; only then does the caller notice. */
#include "client/client.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_TRIES = 20 }; /* SUBMITs without a new token */
#define RETRY_AFTER (100 * NSEC_MS)

/* ---- ERROR frames made by the library */

/* Queues the frame behind the received frames. */
static void
queue_own_frame(struct lagan *c, const msgpack_sbuffer *b)
{
    struct frame *f = calloc(1, sizeof *f);

    if (!f || zmq_msg_init_size(&f->z, b->size) < 0) {
        free(f);
        client_lose(c, LAGAN_E_OUT_OF_MEMORY, "out of memory for a frame");
        return;
    }
    memcpy(zmq_msg_data(&f->z), b->data, b->size);
    /* The entry of lagand is one container deeper here and may exceed LAGAN_MAX_DEPTH. */
    if (msg_decode(&f->m, zmq_msg_data(&f->z), b->size, NULL) < 0) {
        frame_free(f);
        client_lose(c, LAGAN_E_INTERNAL, "lagand sent a message with invalid values");
        return;
    }
    *c->last = f;
    c->last = &f->next;
    c->own_frame_queued = true;
}

static void
end_well(struct lagan *c, const struct open_request *r)
{
    msgpack_sbuffer b;
    msgpack_packer p;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_DONE, r->rid, 1);
    msg_key(&p, "outputs"), msgpack_pack_array(&p, 1);
    msgpack_sbuffer_write(&b, r->end.data, r->end.size);
    queue_own_frame(c, &b);
    msgpack_sbuffer_destroy(&b);
}

static void
end_with_error(struct lagan *c, const struct open_request *r, uint32_t code, const char *why)
{
    msgpack_sbuffer b;
    msgpack_packer p;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_ERROR, r->rid, 3);
    msg_key(&p, "code"), msgpack_pack_uint32(&p, code);
    msg_key(&p, "message"), msg_text(&p, why);
    msg_key(&p, "delivered"), msgpack_pack_uint32(&p, r->n_ids);
    queue_own_frame(c, &b);
    msgpack_sbuffer_destroy(&b);
}

/* ---- SUBMIT */

static void
pack_ids(msgpack_packer *p, const int32_t *ids, uint32_t n)
{
    msgpack_pack_bin(p, 4 * (size_t)n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t v = (uint32_t)ids[i];
        const uint8_t le[4] = { (uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16),
                                (uint8_t)(v >> 24) };

        msgpack_pack_bin_body(p, le, 4);
    }
}

/* Packs the request as submitted. If tokens were delivered: with these tokens, their seed and the
 * remaining time, without prompt log-probabilities. */
void
client_pack_submit(const struct open_request *r, msgpack_sbuffer *b)
{
    bool seed = r->n_ids && r->has_seed, time = r->deadline != NSEC_NEVER;
    uint32_t n = r->n_plain_keys + (r->n_ids ? 1 : r->n_prompt_keys) + seed + time;
    msgpack_packer p;

    msgpack_packer_init(&p, b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_SUBMIT, r->rid, n);
    msgpack_sbuffer_write(b, r->body, r->n_ids ? r->n_plain : r->n_body);
    if (r->n_ids) msg_key(&p, "generated_ids"), pack_ids(&p, r->ids, r->n_ids);
    if (seed) msg_key(&p, "seed"), msgpack_pack_uint64(&p, r->seed);
    if (!time) return;
    msg_key(&p, "deadline_ms");
    msgpack_pack_uint64(&p, (uint64_t)CEIL_DIV(MAX(r->deadline - clock_now(), NSEC_MS), NSEC_MS));
}

static void
submit_again(struct lagan *c, struct open_request *r)
{
    msgpack_sbuffer b;

    r->retry_at = 0;
    r->known_to_lagand = false;
    r->taken = r->acked = r->n_text = 0;
    if (++r->n_tries > MOST_TRIES) {
        end_with_error(
            c, r, LAGAN_E_WORKER_LOST,
            "the connection to lagand was lost 20 times without a new token of this request");
        return;
    }
    msgpack_sbuffer_init(&b);
    client_pack_submit(r, &b);
    if (b.size > LAGAN_MAX_FRAME)
        end_with_error(c, r, LAGAN_E_TOO_LONG,
                       "lagand was restarted, and prompt and output are too long to submit again");
    else if (client_send(c, &b) < 0)
        end_with_error(c, r, LAGAN_E_INTERNAL, c->errmsg);
    msgpack_sbuffer_destroy(&b);
}

/* Handles a request that lagand does not know. */
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
    /* A full queue empties. A model whose workers are drained or have failed may stay without a
     * worker. */
    if (code == LAGAN_E_QUEUE_FULL)
        r->rejected_since = 0;
    else if (!r->rejected_since)
        r->rejected_since = now;
    else if (now >= clock_after(r->rejected_since, c->reconnect_timeout))
        return false;
    r->n_tries--; /* lagand did not fail because of this request */
    r->retry_at = now + RETRY_AFTER;
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
    nsec at = NSEC_NEVER;

    for (uint32_t i = 0; i < c->n_requests && c->welcome; i++)
        if (c->requests[i].retry_at) at = MIN(at, c->requests[i].retry_at);
    return at;
}

void
client_retry(struct lagan *c, nsec now)
{
    for (uint32_t i = 0; i < c->n_requests && c->welcome; i++)
        if (c->requests[i].retry_at && now >= c->requests[i].retry_at)
            submit_again(c, &c->requests[i]);
}

/* ---- RESUME */

/* Drops undelivered frames of the old connection; lagand sends their contents again. */
static void
drop_frames(struct lagan *c)
{
    while (c->first) {
        struct frame *f = c->first;

        c->first = f->next;
        frame_free(f);
    }
    c->last = &c->first;
}

static void
pack_list(msgpack_packer *p, const char *key, const struct lagan *c,
          uint64_t (*of)(const struct open_request *))
{
    msg_key(p, key);
    msgpack_pack_array(p, c->n_requests);
    for (uint32_t i = 0; i < c->n_requests; i++) msgpack_pack_uint64(p, of(&c->requests[i]));
}

static uint64_t
of_rid(const struct open_request *r)
{
    return r->rid;
}
static uint64_t
of_n_tokens(const struct open_request *r)
{
    return r->n_ids + r->n_more;
}
static uint64_t
of_text_bytes(const struct open_request *r)
{
    return r->n_text;
}
void
client_resume(struct lagan *c)
{
    msgpack_sbuffer b;
    msgpack_packer p;

    drop_frames(c);
    if (!c->n_requests) return;
    c->resume_rid = ++c->next_rid;
    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_RESUME, c->resume_rid, 3);
    pack_list(&p, "rids", c, of_rid);
    pack_list(&p, "n_tokens", c, of_n_tokens);
    pack_list(&p, "text_bytes", c, of_text_bytes);
    if (client_send(c, &b) < 0) client_lose(c, LAGAN_E_INTERNAL, c->errmsg);
    msgpack_sbuffer_destroy(&b);
}

static void
cancel_again(struct lagan *c, const struct open_request *r)
{
    msgpack_sbuffer b;
    msgpack_packer p;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_CANCEL, r->rid, 0);
    client_send(c, &b);
    msgpack_sbuffer_destroy(&b);
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

void
client_resumed(struct lagan *c, const struct msg *m)
{
    const msgpack_object *result = msg_get(&m->map, "result"), *list = NULL;

    c->resume_rid = 0;
    if (m->type == LAGAN_MSG_REPLY && result && result->type == MSGPACK_OBJECT_MAP)
        list = msg_get(result, "unknown");
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
            if (r->cancelled) cancel_again(c, r);
        }
    }
}
