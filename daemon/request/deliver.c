/* deliver.c - encodes CHUNK, DONE and ERROR, sends them, resumes requests, and checks timeouts. */
#include "daemon/request/deliver.h"

#include "base/failpoint.h"
#include "base/log.h"
#include "daemon/config/options.h"
#include "daemon/ledger/ledger_save.h"
#include "daemon/ledger/outputs.h"
#include "daemon/ledger/request.h"
#include "daemon/net/frontend.h"
#include "daemon/persist/event_log.h"
#include "daemon/request/accounting.h"
#include "daemon/request/length.h"
#include "daemon/request/lifecycle.h"
#include "wire/msg.h"

#include <stdio.h>

/* Most bytes of a CHUNK's arrays and of its text: below LAGAN_MAX_FRAME and LAGAN_MAX_STR. */
enum {
    CHUNK_BYTES = 512 << 10,
    CHUNK_TEXT = 256 << 10,
    KEPT_BYTES = 1 << 20, /* most log-probabilities that are kept for a client that may reconnect */
    IDLE_FACTOR = 6       /* factor of the idle timeout of a client without open requests */
};
static const nsec RETRY = 10 * NSEC_MS, SUSPEND_AFTER = 250 * NSEC_MS;

/* ---- encoding */

static void
put_bin(msgpack_packer *p, const char *key, const void *v, size_t n)
{
    msg_key(p, key);
    msg_bin(p, n ? v : "", n);
}

/* Packs the keys k (top log-probabilities per token) and d (bin of {i32, f32}[n][n_top]). */
static void
put_tops(msgpack_packer *p, uint32_t n, uint32_t n_top, const char *top)
{
    msg_key_u64(p, "k", n_top);
    put_bin(p, "d", top, (size_t)n * n_top * 8);
}

static uint32_t
put_prompt_chunk(struct daemon *d, struct request *r)
{
    uint32_t n_top = r->submit->prompt_logprobs, each = 4 + 8 * n_top;
    uint32_t n = MIN((uint32_t)(r->outputs.prompt_logprob.n / 4), MAX(CHUNK_BYTES / each, 1u));
    msgpack_packer p = frontend_begin(d, LAGAN_MSG_CHUNK, r->rid, 6);

    msg_key_u64(&p, "o", 0);
    msg_key_u64(&p, "i", 0);
    put_bin(&p, "t", NULL, 0);
    msg_key(&p, "s");
    msg_bytes(&p, "", 0);
    msg_key_u64(&p, "n", r->delivery.n_chunks + 1);
    msg_key(&p, "pl");
    msgpack_pack_map(&p, 5);
    msg_key_u64(&p, "i", r->delivery.n_prompt);
    put_bin(&p, "t", r->outputs.prompt_id.p, (size_t)n * 4);
    put_bin(&p, "lp", r->outputs.prompt_logprob.p, (size_t)n * 4);
    put_tops(&p, n, n_top, r->outputs.prompt_top.p);
    return n;
}

static uint32_t
put_tensor_chunk(struct daemon *d, const struct request *r, uint32_t kind)
{
    const struct output_tensor *t = &r->outputs.tensor[kind - 1];
    uint32_t n = (uint32_t)MIN(t->value.n, (size_t)CHUNK_BYTES) / 4;
    msgpack_packer p = frontend_begin(d, LAGAN_MSG_CHUNK, r->rid, 2);

    msg_key_u64(&p, "n", r->delivery.n_chunks + 1);
    msg_key(&p, "x");
    msgpack_pack_map(&p, 4);
    msg_key_u64(&p, "k", kind);
    msg_key_u64(&p, "i", t->n_delivered);
    msg_key_u64(&p, "c", t->cols);
    put_bin(&p, "d", t->value.p, (size_t)n * 4);
    return n;
}

/* Returns how many of n bytes of text s a chunk gets: at most CHUNK_TEXT, whole characters. */
static uint32_t
cut(const char *s, size_t n)
{
    uint32_t at = CHUNK_TEXT;

    if (n <= CHUNK_TEXT) return (uint32_t)n;
    while (((uint8_t)s[at] & 0xc0) == 0x80) at--;
    return at;
}

/* stop: as request_output.stop. */
static void
put_stop(msgpack_packer *p, const struct request *r, uint32_t output, uint32_t stop)
{
    uint32_t n;
    const char *text = stop ? request_stop(r, stop - 1, &n) : NULL;

    msg_key(p, "stop");
    if (text)
        msg_bytes(p, text, n);
    else
        msgpack_pack_int32(p, outputs_last_token(r, output));
}

/* Packs the map with which DONE, or the last CHUNK, describes the end of one output. */
static void
put_output(msgpack_packer *p, const struct request *r, uint32_t output)
{
    bool has_stop;
    struct request_output o = {
        .n_received = request_n_tokens(r),
        .score = r->outputs.score,
        .reason = r->result.reason,
        .stop = r->result.stop,
        .cached = r->result.cached,
        .adopted = r->result.adopted,
        .recomputed = r->result.recomputed,
        .kv_blocks = r->result.kv_blocks,
    };

    if (r->outputs.each) o = r->outputs.each[output];
    has_stop = o.reason == LAGAN_FINISH_STOP && o.n_received;
    msgpack_pack_map(p, has_stop ? 13 : 12);
    if (has_stop) put_stop(p, r, output, o.stop);
    msg_key_u64(p, "o", output);
    msg_key_u64(p, "reason", o.reason);
    msg_key(p, "reason_name");
    msg_text(p, msg_reason(o.reason, NULL));
    msg_key_u64(p, "n_tokens", o.n_received);
    msg_key(p, "score");
    msgpack_pack_double(p, (double)o.score);
    msg_key_u64(p, "cached", o.cached);
    msg_key_u64(p, "seed", r->submit->seed);
    msg_key_u64(p, "resumed", r->dispatch.resumed);
    msg_key_u64(p, "adopted", o.adopted);
    msg_key_u64(p, "recomputed", o.recomputed);
    msg_key_u64(p, "n_prompt_tokens", r->result.n_prompt_tokens);
    msg_key(p, "kv_blocks");
    msgpack_pack_map(p, 4);
    msg_key_u64(p, "allocated", o.kv_blocks.allocated);
    msg_key_u64(p, "allocated_new", o.kv_blocks.allocated_new);
    msg_key_u64(p, "reused", o.kv_blocks.reused);
    msg_key_u64(p, "missed", o.kv_blocks.missed);
}

/* Returns the undelivered tokens and text that the next chunk may have: those of one output. */
static struct output_span
next_span(const struct request *r)
{
    struct output_span p = { .n = request_n_tokens(r) - r->delivery.n_tokens,
                             .n_text = (uint32_t)(r->outputs.text.n - r->delivery.n_text) };

    return r->outputs.each ? outputs_next(r) : p;
}

static void
put_chunk(struct daemon *d, const struct request *r, uint32_t n, uint32_t n_text)
{
    bool lp = r->submit->flags & SUBMIT_LOGPROBS, top = lp && r->submit->logprobs;
    struct output_span span = next_span(r);
    bool more = n < span.n || n_text < span.n_text;
    /* The last chunk has the finish reason, for the case that lagand crashes before DONE. */
    bool end = !more && !r->outputs.each && r->state == REQUEST_ENDED && !lifecycle_is_error(r);
    size_t at = r->delivery.n_tokens, lp_at = at - r->outputs.first_logprob;
    msgpack_packer p =
        frontend_begin(d, LAGAN_MSG_CHUNK, r->rid,
                       5 + (uint32_t)lp + (uint32_t)top + (uint32_t)more + (uint32_t)end);

    msg_key_u64(&p, "o", span.output);
    msg_key_u64(&p, "i", r->outputs.each ? outputs_next_first(r) : at);
    put_bin(&p, "t", r->outputs.token.p + at * 4, (size_t)n * 4);
    msg_key(&p, "s");
    msg_bytes(&p, n_text ? r->outputs.text.p + r->delivery.n_text : "", n_text);
    msg_key_u64(&p, "n", r->delivery.n_chunks + 1);
    if (lp) put_bin(&p, "lp", r->outputs.logprob.p + lp_at * 4, (size_t)n * 4);
    if (top) {
        msg_key(&p, "tp");
        msgpack_pack_map(&p, 2);
        put_tops(&p, n, r->submit->logprobs, r->outputs.top.p + lp_at * r->submit->logprobs * 8);
    }
    if (more) {
        msg_key(&p, "more");
        msgpack_pack_true(&p);
    }
    if (end) {
        msg_key(&p, "end");
        put_output(&p, r, 0);
    }
}

static void
put_done(struct daemon *d, const struct request *r)
{
    msgpack_packer p = frontend_begin(d, LAGAN_MSG_DONE, r->rid, 1);
    uint32_t order[LAGAN_MAX_OUTPUTS] = { 0 };

    if (r->outputs.each) outputs_order(r, order);
    msg_key(&p, "outputs");
    msgpack_pack_array(&p, r->submit->n);
    for (uint32_t i = 0; i < r->submit->n; i++) put_output(&p, r, order[i]);
}

/* ---- one request */

static bool
has_credit(const struct request *r)
{
    return r->delivery.n_chunks - r->delivery.n_acked < r->delivery.ack_window;
}

/* If mark_chunk is acknowledged: frees log-probabilities before mark_token, sets new marks. */
static void
drop_acked(struct daemon *d, struct request *r)
{
    struct client *c = session_find(d->sessions, r->client);

    if (r->delivery.n_acked < r->delivery.mark_chunk) return;
    outputs_drop_logprobs(r, r->delivery.mark_token);
    if (c) frontend_pong(d, c, r->delivery.mark_sent);
    r->delivery.mark_sent = r->delivery.chunk_sent;
    r->delivery.mark_chunk = r->delivery.n_chunks;
    r->delivery.mark_token = r->delivery.n_tokens;
}

/* Returns the kind of the tensor with undelivered values, which precede tokens; 0: none. */
static uint32_t
tensor_due(const struct request *r)
{
    uint32_t kind = 1;

    while (kind <= LAGAN_N_TENSORS && !r->outputs.tensor[kind - 1].value.n) kind++;
    return kind > LAGAN_N_TENSORS ? 0 : kind;
}

static bool
has_chunk(const struct request *r)
{
    return r->outputs.prompt_logprob.n || tensor_due(r) ||
           request_n_tokens(r) > r->delivery.n_tokens || r->outputs.text.n > r->delivery.n_text;
}

static int
send_chunk(struct daemon *d, struct client *c, struct request *r)
{
    uint32_t n_top = r->submit->logprobs, n, n_text = 0, kind = tensor_due(r);
    bool prompt = r->outputs.prompt_logprob.n > 0;
    int k;

    TRY(frontend_check_space(d, c));
    if (prompt) {
        n = put_prompt_chunk(d, r);
    } else if (kind) {
        n = put_tensor_chunk(d, r, kind);
    } else {
        struct output_span span = next_span(r);

        n = MIN(span.n, MAX((uint32_t)CHUNK_BYTES / (8 + 8 * n_top), 1u));
        n_text = cut(r->outputs.text.p + r->delivery.n_text, span.n_text);
        put_chunk(d, r, n, n_text);
    }
    k = frontend_send_chunk(d, c);
    if (k < 0) return k;
    FP(deliver_chunk);
    r->delivery.stalled_since = 0;
    r->delivery.chunk_sent = c->sent;
    r->delivery.n_chunks++;
    if (prompt) {
        r->delivery.n_prompt += n;
        outputs_drop_prompt(r, n);
        return 0;
    }
    if (kind) {
        outputs_drop_tensor(r, kind, n);
        return 0;
    }
    r->delivery.n_tokens += n;
    r->delivery.n_text += n_text;
    if (r->outputs.each) outputs_delivered(r, n, n_text);
    /* A named request keeps delivered log-probabilities, because its client may reconnect. */
    if (!r->named || r->outputs.logprob.n + r->outputs.top.n > KEPT_BYTES)
        outputs_drop_logprobs(r, r->delivery.n_tokens);
    return 0;
}

static int
send_last(struct daemon *d, struct client *c, struct request *r)
{
    int k;

    if (lifecycle_is_error(r)) {
        const struct prompt_length length = length_of(
            &d->facts[r->terms.model], MAX(r->result.n_prompt_tokens, r->submit->n_prompt));

        k = frontend_error_length(d, c, r->rid, r->result.reason, r->delivery.n_tokens, &length,
                                  r->result.message);
    } else {
        put_done(d, r);
        k = frontend_send(d, c, d->out.data, d->out.size);
    }
    if (k < 0) return k;
    FP(deliver_last);
    ledger_detach(d->ledger, r);
    c->n_open--;
    return 0;
}

/* Sends one message of r. Returns 1 if r has another chunk for the next loop iteration, 0 if not,
 * -EAGAIN if the client has too many unread bytes. */
static int
deliver(struct daemon *d, struct request *r)
{
    struct client *c = session_find(d->sessions, r->client);
    int k;

    if (!r->attached) return 0;
    if (!c) {
        deliver_client_disconnected(d, r->client);
        return 0;
    }
    if (has_chunk(r) && has_credit(r)) {
        k = send_chunk(d, c, r);
        if (k == 0 && has_chunk(r) && has_credit(r)) return 1;
        if (k == 0 && !has_chunk(r)) lifecycle_suspend(d, r, false);
        if (k == 0 && !has_chunk(r) && r->state == REQUEST_ENDED) k = send_last(d, c, r);
    } else if (r->state == REQUEST_ENDED && (!has_chunk(r) || lifecycle_is_error(r))) {
        k = send_last(d, c, r);
    } else {
        if (has_chunk(r) && !r->delivery.stalled_since) r->delivery.stalled_since = d->now;
        return 0;
    }
    if (k == -EAGAIN || k == 0) return k;
    deliver_client_disconnected(d, r->client);
    return 0;
}

/* Marks r as blocked until try_again(), because no event reports that its client has read. */
static void
block(struct daemon *d, struct request *r)
{
    r->delivery.send_blocked = true;
    if (!r->delivery.stalled_since) r->delivery.stalled_since = d->now;
    if (!d->retry_at) d->retry_at = d->now + RETRY;
}

static void
try_again(struct daemon *d)
{
    struct request *r;

    d->retry_at = 0;
    for (uint32_t at = 0; (r = ledger_next(d->ledger, &at));) {
        if (!r->delivery.send_blocked) continue;
        r->delivery.send_blocked = false;
        ledger_add_pending(d->ledger, r);
    }
}

bool
deliver_flush(struct daemon *d)
{
    struct request *r;
    bool more = false;
    uint32_t at;

    if (d->retry_at && d->now >= d->retry_at) try_again(d);
    at = ledger_take_pending(d->ledger);
    while ((r = ledger_pop_pending(d->ledger, &at))) {
        int k = r->delivery.send_blocked ? 0 : deliver(d, r);

        if (k > 0) {
            ledger_add_pending(d->ledger, r);
            more = true;
        } else if (k == -EAGAIN) {
            block(d, r);
        }
        lifecycle_settle(d, r);
    }
    return more;
}

void
deliver_init(struct request *r, uint32_t ack_window)
{
    r->delivery.ack_window = ack_window;
    r->delivery.n_tokens = r->delivery.mark_token = request_n_tokens(r);
}

void
deliver_restore(struct daemon *d, struct request *r)
{
    r->delivery.client_left_at = d->now + d->config->o.idle_timeout;
}

void
deliver_restart(struct daemon *d, struct request *r)
{
    r->delivery.stalled_since = 0;
    lifecycle_suspend(d, r, false);
    ledger_add_pending(d->ledger, r);
}

void
deliver_acked(struct daemon *d, struct request *r, uint32_t n, uint32_t ack_window)
{
    if (ack_window) r->delivery.ack_window = MIN(ack_window, (uint32_t)LAGAN_MAX_ACK_WINDOW);
    /* Acks are cumulative: ignores an older number and the number of a chunk that was not sent. */
    if (n - r->delivery.n_acked > r->delivery.n_chunks - r->delivery.n_acked) return;
    if (n != r->delivery.n_acked) r->delivery.stalled_since = r->delivery.send_blocked ? d->now : 0;
    r->delivery.n_acked = n;
    drop_acked(d, r);
    if (has_chunk(r) || r->state == REQUEST_ENDED) ledger_add_pending(d->ledger, r);
}

/* Detaches r from its client, which has disconnected. A named request continues, because its client
 * may reconnect; an unnamed one is cancelled, and so is a named one if for_good. */
static void
disconnect(struct daemon *d, struct request *r, bool for_good)
{
    ledger_detach(d->ledger, r);
    r->delivery.client_left_at = d->now;
    r->delivery.send_blocked = false;
    r->delivery.stalled_since = 0;
    lifecycle_suspend(d, r, false);
    if (for_good || !r->named)
        lifecycle_cancel(d, r, LAGAN_E_CANCELLED, "the client has disconnected");
    lifecycle_settle(d, r);
}

static void
drop_client(struct daemon *d, uint32_t handle, bool for_good)
{
    struct client *c = session_find(d->sessions, handle);
    uint32_t open = c ? c->n_open : ledger_counts(d->ledger).capacity;
    struct request *r;

    /* Stops after the last open request of the client; most clients that disconnect have none. */
    for (uint32_t at = 0; open && (r = ledger_next(d->ledger, &at));) {
        if (!r->attached || r->client != handle) continue;
        disconnect(d, r, for_good);
        open--;
    }
    if (!c) return;
    frontend_disconnect(d, c);
    session_drop(d->sessions, c);
}

void
deliver_client_dropped(struct daemon *d, uint32_t handle)
{
    drop_client(d, handle, true);
}

void
deliver_client_disconnected(struct daemon *d, uint32_t handle)
{
    drop_client(d, handle, false);
}

int
deliver_resume(struct daemon *d, struct request *r, struct client *c, uint64_t rid,
               uint32_t n_tokens, uint32_t n_text, uint32_t ack_window)
{
    const struct output_tensor *logits = &r->outputs.tensor[LAGAN_TENSOR_LOGITS - 1];
    bool lp = r->submit->flags & SUBMIT_LOGPROBS;
    struct client *old = r->attached ? session_find(d->sessions, r->client) : NULL;
    uint64_t old_rid = r->rid;

    /* Refuses if a part of the data that the client lacks is no longer stored. */
    if (n_tokens > request_n_tokens(r) || n_text > r->outputs.text.n ||
        (lp && n_tokens < r->outputs.first_logprob) ||
        (!n_tokens && (r->delivery.n_prompt ||
                       r->outputs.tensor[LAGAN_TENSOR_ENCODER_OUTPUT - 1].n_delivered)) ||
        logits->n_delivered > (uint64_t)n_tokens * logits->cols ||
        (r->outputs.each && !outputs_can_resume(r, n_tokens, n_text)))
        return -ENOENT;
    TRY(ledger_attach(d->ledger, r, c->handle, rid));
    if (rid != old_rid) ledger_save_rid(d->ledger_log, r);
    if (r->outputs.each) outputs_resume(r, n_tokens, n_text);
    accounting_charge(d, c, r);
    if (old) old->n_open--;
    c->n_open++;
    /* Every accepted rid gets DONE or ERROR: the previous connection or rid of r gets ERROR. */
    if (old && (old != c || old_rid != rid) &&
        frontend_error(d, old, old_rid, LAGAN_E_CANCELLED, r->delivery.n_tokens,
                       old == c
                           ? "a later request with the same idempotency key continues it"
                           : "another connection of this session has taken over the request") < 0)
        log_debug("a closed connection did not get the ERROR of its resumed request");
    r->delivery = (struct request_delivery){
        .n_tokens = n_tokens,
        .n_text = n_text,
        .n_prompt = r->delivery.n_prompt,
        .ack_window = ack_window,
        .mark_token = n_tokens,
        .last_resume = r->delivery.last_resume,
        .client_left_at = r->delivery.client_left_at,
    };
    lifecycle_suspend(d, r, false);
    ledger_add_pending(d->ledger, r);
    return 0;
}

void
deliver_forget(struct daemon *d, struct request *r)
{
    bool freed = r->retained; /* by ledger_unname() */

    ledger_save_unname(d->ledger_log, r);
    ledger_unname(d->ledger, r);
    if (!freed)
        lifecycle_cancel(d, r, LAGAN_E_CANCELLED,
                         "the missing output is no longer stored; submit the request again");
}

void
deliver_resume_named(struct daemon *d, struct client *c, uint64_t rid, uint64_t n_tokens,
                     uint64_t n_text)
{
    struct request *r = ledger_find_rid(d->ledger, &c->session, rid);

    if (!r || r->delivery.last_resume == d->n_resumes) return; /* unknown, or listed twice */
    r->delivery.last_resume = d->n_resumes;
    if (n_tokens > UINT32_MAX || n_text > UINT32_MAX ||
        deliver_resume(d, r, c, rid, (uint32_t)n_tokens, (uint32_t)n_text, r->delivery.ack_window) <
            0)
        deliver_forget(d, r);
}

/* Ends the requests of a client that has not read since `since`, because its unread data must not
 * use memory without bound. Their ERRORs are queued behind its unread messages. If the client does
 * not read the ERRORs within the ack timeout, tick_client() closes its connection. */
static void
drop_slow(struct daemon *d, uint32_t handle, nsec since)
{
    struct client *c = session_find(d->sessions, handle);
    double seconds = (double)(d->now - since) / NSEC_S;
    const char *user = c && c->user ? c->user->name : "(unknown)";
    bool queued = c != NULL;
    struct request *r;

    log_warn("a client of user %s has not read for %.1f s; ending its requests", user, seconds);
    event_log_add(d, "client", "", "a client of user %s has not read for %.1f s; its requests end",
                  user, seconds);
    for (uint32_t at = 0; (r = ledger_next(d->ledger, &at));) {
        if (!r->attached || r->client != handle) continue;
        lifecycle_cancel(d, r, LAGAN_E_SLOW_READER, "the client has not read for %.1f s", seconds);
        if (!queued) continue;
        c->ending = true;
        queued = send_last(d, c, r) == 0;
        c->ending = false;
        lifecycle_settle(d, r);
    }
    if (c) c->ending_bytes = c->sent;
    if (queued && frontend_ping(d, c) == 0) {
        c->close_at = d->now + d->config->o.ack_timeout;
        return;
    }
    deliver_client_disconnected(d, handle);
}

/* Extends all timeouts of clients by `late`, the time in which lagand did not run: their messages
 * from that time may be unread in lagand's sockets. */
static void
discount(struct daemon *d, nsec now, nsec late)
{
    struct request *r;
    struct client *c;

    for (uint32_t at = 0; (r = ledger_next(d->ledger, &at));) {
        if (r->delivery.stalled_since)
            r->delivery.stalled_since = MIN(r->delivery.stalled_since + late, now);
        if (r->delivery.client_left_at < now)
            r->delivery.client_left_at = MIN(r->delivery.client_left_at + late, now);
    }
    for (uint32_t at = 0; (c = session_next(d->sessions, &at));) {
        c->received_at = MIN(c->received_at + late, now);
        if (c->close_at) c->close_at += late;
    }
}

static void
tick_request(struct daemon *d, struct request *r, nsec now)
{
    nsec ack_timeout = d->config->o.ack_timeout, stalled = r->delivery.stalled_since;

    if (now >= r->terms.deadline && !lifecycle_is_error(r)) {
        lifecycle_cancel(d, r, LAGAN_E_DEADLINE, "deadline_ms has passed after %u generated tokens",
                         request_n_tokens(r));
    } else if (!r->attached) {
        if (r->state == REQUEST_ENDED ||
            now - r->delivery.client_left_at < r->terms.disconnect_timeout)
            return;
        /* Without names, a client that reconnects later does not find r and may submit it again. */
        ledger_unname(d->ledger, r);
        lifecycle_cancel(d, r, LAGAN_E_CANCELLED,
                         "the client has not reconnected within its disconnect timeout");
    } else if (stalled && now - stalled < ack_timeout) {
        if (now - stalled >= SUSPEND_AFTER) lifecycle_suspend(d, r, true);
    } else if (r->delivery.send_blocked) {
        drop_slow(d, r->client, stalled);
    } else if (stalled) {
        lifecycle_cancel(
            d, r, LAGAN_E_SLOW_READER,
            "no ACK for %.1f s with %u unacknowledged chunks; %u tokens are undelivered",
            (double)(now - stalled) / NSEC_S, r->delivery.n_chunks - r->delivery.n_acked,
            request_n_tokens(r) - r->delivery.n_tokens);
    }
}

/* Tells a silent client why its connection is closed with the next tick; it may reconnect. */
static void
send_bye(struct daemon *d, struct client *c, nsec silent)
{
    msgpack_packer p = frontend_begin(d, LAGAN_MSG_BYE, 0, 2);
    char why[96];

    snprintf(why, sizeof why, "no message from this client for %.1f s; a client sends PING",
             (double)silent / NSEC_S);
    msg_key(&p, "reason");
    msg_text(&p, why);
    msg_key_u64(&p, "retry_after_ms", 0);
    frontend_send_or_drop(d, c);
    c->bye_sent = true;
}

static void
tick_client(struct daemon *d, struct client *c, nsec now)
{
    nsec idle = d->config->o.idle_timeout;

    if (c->socket_closed || c->disconnected) {
        c->socket_closed = false;
        if (frontend_probe(d, c)) return;
    }
    if (c->close_at && now >= c->close_at) {
        log_warn("a client of user %s has not read its errors; closing its "
                 "connection",
                 c->user->name);
        deliver_client_disconnected(d, c->handle);
        return;
    }
    if (c->bye_sent) {
        deliver_client_disconnected(d, c->handle);
        return;
    }
    if (now - c->received_at < (c->n_open ? idle : idle * IDLE_FACTOR)) return;
    if (c->n_open)
        log_info("a client of user %s with %u open requests has sent no message for %.1f s "
                 "(api.idle_timeout); closing its connection",
                 c->user->name, c->n_open, (double)(now - c->received_at) / NSEC_S);
    send_bye(d, c, now - c->received_at);
}

void
deliver_tick(struct daemon *d, nsec now, nsec late)
{
    struct request *r;
    struct client *c;

    if (late) discount(d, now, late);
    for (uint32_t at = 0; ledger_counts(d->ledger).open && (r = ledger_next(d->ledger, &at));)
        if (!r->retained) tick_request(d, r, now);
    for (uint32_t at = 0; (c = session_next(d->sessions, &at));) tick_client(d, c, now);
    ledger_expire(d->ledger, now);
}
