/* deliver.c - see deliver.h. Encoding first, then the order of things, then the clock. */
#include "daemon/deliver.h"

#include "base/failpoint.h"
#include "base/log.h"
#include "daemon/admission.h"
#include "daemon/frontend.h"
#include "daemon/history.h"
#include "daemon/pieces.h"
#include "daemon/recall.h"
#include "daemon/relay.h"
#include "wire/msg.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A chunk's payload: well under LAGAN_MAX_FRAME and, for its text, under LAGAN_MAX_STR. */
enum {
    CHUNK_BYTES = 512 << 10,
    CHUNK_TEXT = 256 << 10,
    KEPT_BYTES = 1 << 20, /* log-probabilities that were sent and not acked, a request */
    IDLE_FACTOR = 6
};
static const nsec RETRY = 10 * NSEC_MS, PAUSE_AFTER = 250 * NSEC_MS;

static void
put_u64(msgpack_packer *p, const char *key, uint64_t v)
{
    msg_key(p, key);
    msgpack_pack_uint64(p, v);
}

/* ---- encoding */

/* {k: tops a token, d: bin of {i32, f32}} of the first n tokens of a list. */
static void
put_tops(msgpack_packer *p, uint32_t n, uint32_t n_top, const char *top)
{
    put_u64(p, "k", n_top);
    msg_key(p, "d");
    msg_bin(p, n && n_top ? top : "", (size_t)n * n_top * 8);
}

static uint32_t
put_prompt_chunk(struct daemon *d, struct row *r)
{
    uint32_t n_top = r->submit->prompt_logprobs, each = 4 + 8 * n_top;
    uint32_t n = MIN((uint32_t)(r->p_logprob.n / 4), MAX(CHUNK_BYTES / each, 1u));
    msgpack_packer p = front_begin(d, LAGAN_MSG_CHUNK, r->rid, 6);

    put_u64(&p, "o", 0);
    put_u64(&p, "i", 0);
    msg_key(&p, "t");
    msg_bin(&p, "", 0);
    msg_key(&p, "s");
    msg_bytes(&p, "", 0);
    put_u64(&p, "n", r->n_chunks + 1);
    msg_key(&p, "pl");
    msgpack_pack_map(&p, 5);
    put_u64(&p, "i", r->n_prompt_sent);
    msg_key(&p, "t");
    msg_bin(&p, r->p_id.p, (size_t)n * 4);
    msg_key(&p, "lp");
    msg_bin(&p, r->p_logprob.p, (size_t)n * 4);
    put_tops(&p, n, n_top, r->p_top.p);
    return n;
}

static uint32_t
put_tensor_chunk(struct daemon *d, const struct row *r, uint32_t kind)
{
    const struct row_tensor *t = &r->tensor[kind - 1];
    uint32_t n = (uint32_t)MIN(t->value.n, (size_t)CHUNK_BYTES) / 4;
    msgpack_packer p = front_begin(d, LAGAN_MSG_CHUNK, r->rid, 2);

    put_u64(&p, "n", r->n_chunks + 1);
    msg_key(&p, "x");
    msgpack_pack_map(&p, 4);
    put_u64(&p, "k", kind);
    put_u64(&p, "i", t->sent);
    put_u64(&p, "c", t->cols);
    msg_key(&p, "d");
    msg_bin(&p, t->value.p, (size_t)n * 4);
    return n;
}

/* Where to cut text that is too long for one chunk: not inside a character. */
static uint32_t
cut(const char *s, size_t n)
{
    uint32_t at = CHUNK_TEXT;

    if (n <= CHUNK_TEXT) return (uint32_t)n;
    while (((uint8_t)s[at] & 0xc0) == 0x80) at--;
    return at;
}

static bool
is_error(const struct row *r)
{
    return r->reason >= LAGAN_E_INVALID_REQUEST;
}

/* How an output ended. */
static void
put_output(msgpack_packer *p, const struct row *r, uint32_t output)
{
    struct row_output o = {
        .n_said = row_n_tokens(r),
        .score = r->score,
        .reason = r->reason,
        .cached = r->cached,
        .adopted = r->adopted,
        .recomputed = r->recomputed,
    };

    if (r->out) o = r->out[output];
    msgpack_pack_map(p, 10);
    put_u64(p, "o", output);
    put_u64(p, "reason", o.reason);
    msg_key(p, "reason_name");
    msg_text(p, msg_reason(o.reason, NULL));
    put_u64(p, "n_tokens", o.n_said);
    msg_key(p, "score");
    msgpack_pack_double(p, (double)o.score);
    put_u64(p, "cached", o.cached);
    put_u64(p, "seed", r->submit->seed);
    put_u64(p, "resumed", r->resumed);
    put_u64(p, "adopted", o.adopted);
    put_u64(p, "recomputed", o.recomputed);
}

/* The next chunk is of one output: how many tokens and how much text of it are there. */
static struct row_piece
next_piece(const struct row *r)
{
    struct row_piece p = { .n = row_n_tokens(r) - r->n_sent,
                           .n_text = (uint32_t)(r->text.n - r->n_text_sent) };

    return r->out ? pieces_next(r) : p;
}

static void
put_chunk(struct daemon *d, const struct row *r, uint32_t n, uint32_t n_text)
{
    bool lp = r->submit->flags & SUBMIT_LOGPROBS, top = lp && r->submit->logprobs;
    struct row_piece piece = next_piece(r);
    bool more = n < piece.n || n_text < piece.n_text;
    /* With its last token a client knows how its answer ends, whatever becomes of us. */
    bool end = !more && !r->out && r->state == ROW_ENDED && !is_error(r);
    msgpack_packer p =
        front_begin(d, LAGAN_MSG_CHUNK, r->rid,
                    5 + (uint32_t)lp + (uint32_t)top + (uint32_t)more + (uint32_t)end);

    put_u64(&p, "o", piece.output);
    put_u64(&p, "i", r->out ? pieces_next_first(r) : r->n_sent);
    msg_key(&p, "t");
    msg_bin(&p, n ? r->token.p + (size_t)r->n_sent * 4 : "", (size_t)n * 4);
    msg_key(&p, "s");
    msg_bytes(&p, n_text ? r->text.p + r->n_text_sent : "", n_text);
    put_u64(&p, "n", r->n_chunks + 1);
    if (lp) {
        msg_key(&p, "lp");
        msg_bin(&p, n ? r->logprob.p + (size_t)(r->n_sent - r->lp_first) * 4 : "", (size_t)n * 4);
    }
    if (top) {
        size_t each = (size_t)r->submit->logprobs * 8;

        msg_key(&p, "tp");
        msgpack_pack_map(&p, 2);
        put_tops(&p, n, r->submit->logprobs, r->top.p + (r->n_sent - r->lp_first) * each);
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
put_done(struct daemon *d, const struct row *r)
{
    msgpack_packer p = front_begin(d, LAGAN_MSG_DONE, r->rid, 1);
    uint32_t order[LAGAN_MAX_OUTPUTS] = { 0 };

    if (r->out) pieces_order(r, order);
    msg_key(&p, "outputs");
    msgpack_pack_array(&p, r->submit->n);
    for (uint32_t i = 0; i < r->submit->n; i++) put_output(&p, r, order[i]);
}

/* ---- one request */

static uint32_t
credit(const struct row *r)
{
    uint32_t out = r->n_chunks - r->n_acked;

    return out >= r->ack_window ? 0 : r->ack_window - out;
}

/* Log-probabilities before that token are not sent again. */
static void
drop_logprobs(struct row *r, uint32_t before)
{
    uint32_t n = before > r->lp_first ? before - r->lp_first : 0;

    if (!(r->submit->flags & SUBMIT_LOGPROBS) || !n) return;
    bytes_drop(&r->logprob, (size_t)n * 4);
    bytes_drop(&r->top, (size_t)n * r->submit->logprobs * 8);
    r->lp_first = before;
}

/* What a client has acked it will not ask for again. */
static void
drop_acked(struct daemon *d, struct row *r)
{
    struct client *c = session_find(d->sessions, r->client);

    if (r->n_acked < r->mark_chunk) return;
    drop_logprobs(r, r->mark_token);
    if (c) front_pong(d, c, r->mark_sent);
    r->mark_sent = r->chunk_sent;
    r->mark_chunk = r->n_chunks;
    r->mark_token = r->n_sent;
}

/* The one to be sent next: before the tokens that it belongs to. 0: none. */
static uint32_t
tensor_due(const struct row *r)
{
    uint32_t kind = 1;

    while (kind <= LAGAN_N_TENSORS && !r->tensor[kind - 1].value.n) kind++;
    return kind > LAGAN_N_TENSORS ? 0 : kind;
}

static bool
has_chunk(const struct row *r)
{
    return r->p_logprob.n || tensor_due(r) || row_n_tokens(r) > r->n_sent ||
           r->text.n > r->n_text_sent;
}

static int
send_chunk(struct daemon *d, struct client *c, struct row *r)
{
    uint32_t n_top = r->submit->logprobs, n, n_text = 0, kind = tensor_due(r);
    bool prompt = r->p_logprob.n > 0;
    int k;

    TRY(front_room(d, c));
    if (prompt) {
        n = put_prompt_chunk(d, r);
    } else if (kind) {
        n = put_tensor_chunk(d, r, kind);
    } else {
        struct row_piece piece = next_piece(r);

        n = MIN(piece.n, MAX((uint32_t)CHUNK_BYTES / (8 + 8 * n_top), 1u));
        n_text = cut(r->text.p + r->n_text_sent, piece.n_text);
        put_chunk(d, r, n, n_text);
    }
    k = front_send_chunk(d, c);
    if (k < 0) return k;
    FP(deliver_chunk);
    r->stalled = 0;
    r->chunk_sent = c->sent;
    r->n_chunks++;
    if (prompt) {
        r->n_prompt_sent += n;
        bytes_drop(&r->p_id, (size_t)n * 4);
        bytes_drop(&r->p_logprob, (size_t)n * 4);
        bytes_drop(&r->p_top, (size_t)n * r->submit->prompt_logprobs * 8);
        return 0;
    }
    if (kind) {
        r->tensor[kind - 1].sent += n;
        bytes_drop(&r->tensor[kind - 1].value, (size_t)n * 4);
        return 0;
    }
    r->n_sent += n;
    r->n_text_sent += n_text;
    if (r->out) pieces_sent(r, n, n_text);
    /* Kept for one that may come back, within reason. */
    if (!r->named || r->logprob.n + r->top.n > KEPT_BYTES) drop_logprobs(r, r->n_sent);
    return 0;
}

static int
send_last(struct daemon *d, struct client *c, struct row *r)
{
    int k;

    if (is_error(r)) {
        k = front_error(d, c, r->rid, r->reason, r->n_sent, "%s", r->why);
    } else {
        put_done(d, r);
        k = front_send(d, c, d->out.data, d->out.size);
    }
    if (k < 0) return k;
    FP(deliver_last);
    ledger_detach(d->ledger, r);
    c->n_open--;
    return 0;
}

/* What can go now: 1, and more can go in the next turn; 0 nothing more for now; -EAGAIN. */
static int
deliver(struct daemon *d, struct row *r)
{
    struct client *c = session_find(d->sessions, r->client);
    int k;

    if (!r->attached) return 0;
    if (!c) {
        deliver_client_lost(d, r->client);
        return 0;
    }
    if (has_chunk(r) && credit(r)) {
        k = send_chunk(d, c, r);
        if (k == 0 && has_chunk(r) && credit(r)) return 1;
        if (k == 0 && !has_chunk(r)) row_pause(d, r, false);
        if (k == 0 && !has_chunk(r) && r->state == ROW_ENDED) k = send_last(d, c, r);
    } else if (r->state == ROW_ENDED && (!has_chunk(r) || is_error(r))) {
        k = send_last(d, c, r);
    } else {
        if (has_chunk(r) && !r->stalled) r->stalled = d->now;
        return 0;
    }
    if (k == -EAGAIN || k == 0) return k;
    deliver_client_lost(d, r->client);
    return 0;
}

void
row_pause(struct daemon *d, struct row *r, bool paused)
{
    r->paused = paused;
    if (r->held) relay_pause(d->worker[r->worker], r);
}

void
row_settle(struct daemon *d, struct row *r)
{
    if (r->state != ROW_ENDED || r->attached || r->held || r->due || r->kept) return;
    admission_over(d, r);
    ledger_give(d->ledger, r);
}

void
row_due(struct daemon *d, struct row *r)
{
    if (r->due || !r->attached) return;
    r->due = true;
    r->next_due = ROW_NONE;
    if (d->due_last == ROW_NONE) {
        d->due_first = r->index;
    } else {
        ledger_row(d->ledger, d->due_last)->next_due = r->index;
    }
    d->due_last = r->index;
}

/* There is no event for room in one client's queue, and the others may not wait for it. */
static void
block(struct daemon *d, struct row *r)
{
    r->blocked = true;
    if (!r->stalled) r->stalled = d->now;
    if (!d->retry_at) d->retry_at = d->now + RETRY;
}

static void
try_again(struct daemon *d)
{
    d->retry_at = 0;
    for (uint32_t i = 0; i < ledger_capacity(d->ledger); i++) {
        struct row *r = ledger_row(d->ledger, i);

        if (!r || !r->blocked) continue;
        r->blocked = false;
        row_due(d, r);
    }
}

bool
deliver_flush(struct daemon *d)
{
    bool more = false;
    uint32_t i;

    if (d->retry_at && d->now >= d->retry_at) try_again(d);
    i = d->due_first;
    d->due_first = d->due_last = ROW_NONE;
    while (i != ROW_NONE) {
        struct row *r = ledger_row(d->ledger, i);
        int k;

        i = r->next_due;
        r->due = false;
        k = r->blocked ? 0 : deliver(d, r);
        if (k > 0) {
            row_due(d, r);
            more = true;
        } else if (k == -EAGAIN) {
            block(d, r);
        }
        row_settle(d, r);
    }
    return more;
}

static void
end_with(struct daemon *d, struct row *r, uint16_t reason, const char *fmt, va_list ap)
{
    if (r->state == ROW_ENDED) return;
    if (blame_suspect(r)) d->n_suspects--;
    r->reason = reason;
    r->ended = d->now;
    vsnprintf(r->why, sizeof r->why, fmt, ap);
    row_move(d->ledger, r, ROW_ENDED);
    recall_end(d, r);
    check(reason < REASONS);
    d->n_ended[reason]++;
    if (is_error(r)) {
        d->n_failed++;
    } else {
        d->n_finished++;
    }
    if (reason == LAGAN_E_WORKER_LOST || reason == LAGAN_E_SLOW_READER ||
        reason == LAGAN_E_POISONED) {
        log_info("request %llu: ended with %s: %s", (unsigned long long)r->id,
                 msg_reason(reason, NULL), r->why);
        history_add(d, "request", "", "%llu ended with %s: %.180s", (unsigned long long)r->id,
                    msg_reason(reason, NULL), r->why);
    }
    row_due(d, r);
    row_settle(d, r);
}

void
row_end(struct daemon *d, struct row *r, uint16_t reason, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    end_with(d, r, reason, fmt, ap);
    va_end(ap);
}

/* Finished, but its tokens wait for credit: they are given up. */
static void
give_up(struct daemon *d, struct row *r, uint16_t reason, const char *fmt, va_list ap)
{
    if (!r->attached || is_error(r)) return;
    r->reason = reason;
    vsnprintf(r->why, sizeof r->why, fmt, ap);
    row_due(d, r);
}

void
row_cancel(struct daemon *d, struct row *r, uint16_t reason, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    if (r->state == ROW_ENDED) {
        give_up(d, r, reason, fmt, ap);
    } else {
        if (r->held) {
            relay_cancel(d->worker[r->worker], r, reason == LAGAN_E_DEADLINE ? reason : 0);
        }
        end_with(d, r, reason, fmt, ap);
    }
    va_end(ap);
}

void
deliver_acked(struct daemon *d, struct row *r, uint32_t n, uint32_t ack_window)
{
    if (ack_window) r->ack_window = MIN(ack_window, (uint32_t)LAGAN_MAX_ACK_WINDOW);
    /* Cumulative: older ones say nothing, and none can be ahead of what was sent. */
    if (n - r->n_acked > r->n_chunks - r->n_acked) return;
    if (n != r->n_acked) r->stalled = r->blocked ? d->now : 0;
    r->n_acked = n;
    drop_acked(d, r);
    if (has_chunk(r) || r->state == ROW_ENDED) row_due(d, r);
}

/* Nobody listens any more. A row with a name goes on: its client may come back and ask. */
static void
leave(struct daemon *d, struct row *r, bool for_good)
{
    ledger_detach(d->ledger, r);
    r->left = d->now;
    r->blocked = false;
    r->stalled = 0;
    row_pause(d, r, false);
    if (for_good || !r->named) row_cancel(d, r, LAGAN_E_CANCELLED, "its client is gone");
    row_settle(d, r);
}

static void
drop_client(struct daemon *d, uint32_t handle, bool for_good)
{
    struct client *c = session_find(d->sessions, handle);
    uint32_t open = c ? c->n_open : ledger_capacity(d->ledger);

    /* Rows are many, and of most that go none is open. */
    for (uint32_t i = 0; open && i < ledger_capacity(d->ledger); i++) {
        struct row *r = ledger_row(d->ledger, i);

        if (!r || !r->attached || r->client != handle) continue;
        leave(d, r, for_good);
        open--;
    }
    if (!c) return;
    front_cut(d, c);
    session_drop(d->sessions, c);
}

void
deliver_client_gone(struct daemon *d, uint32_t handle)
{
    drop_client(d, handle, true);
}

void
deliver_client_lost(struct daemon *d, uint32_t handle)
{
    drop_client(d, handle, false);
}

int
deliver_resume(struct daemon *d, struct row *r, struct client *c, uint64_t rid, uint32_t n_tokens,
               uint32_t n_text, uint32_t ack_window)
{
    const struct row_tensor *logits = &r->tensor[LAGAN_TENSOR_LOGITS - 1];
    bool lp = r->submit->flags & SUBMIT_LOGPROBS;
    struct client *old = r->attached ? session_find(d->sessions, r->client) : NULL;
    uint64_t old_rid = r->rid;

    /* What is gone cannot be sent again. */
    if (n_tokens > row_n_tokens(r) || n_text > r->text.n || (lp && n_tokens < r->lp_first) ||
        (!n_tokens && (r->n_prompt_sent || r->tensor[LAGAN_TENSOR_ENCODER_OUTPUT - 1].sent)) ||
        logits->sent > (uint64_t)n_tokens * logits->cols ||
        (r->out && !pieces_may_resume(r, n_tokens, n_text)))
        return -ENOENT;
    TRY(ledger_attach(d->ledger, r, c->handle, rid));
    if (rid != old_rid) recall_rid(d, r);
    if (r->out) pieces_resume(r, n_tokens, n_text);
    admission_charge(d, c, r);
    if (old) old->n_open--;
    c->n_open++;
    /* Every number that was accepted gets its last word. */
    if (old && (old != c || old_rid != rid) &&
        front_error(d, old, old_rid, LAGAN_E_CANCELLED, r->n_sent,
                    old == c ? "it goes on under the id of a later request with its key"
                             : "another connection of this session has taken the request over") < 0)
        log_debug("a connection that is gone has not heard that its request goes on");
    r->n_sent = n_tokens;
    r->n_text_sent = n_text;
    r->ack_window = ack_window;
    r->n_chunks = r->n_acked = r->mark_chunk = 0;
    r->mark_token = n_tokens;
    r->mark_sent = r->chunk_sent = 0;
    r->stalled = 0;
    r->blocked = false;
    row_pause(d, r, false);
    row_due(d, r);
    return 0;
}

void
deliver_forget(struct daemon *d, struct row *r)
{
    bool over = r->kept; /* then it is gone with its names */

    recall_gone(d, r);
    ledger_unname(d->ledger, r);
    if (!over) row_cancel(d, r, LAGAN_E_CANCELLED, "what its client lacks of it is not kept here");
}

/* It takes nothing, and may not hold what it has for ever. Its requests' last words go out behind what it has
 * not read; when it has not read those either, its connection ends. */
static void
drop_slow(struct daemon *d, uint32_t handle, nsec since)
{
    struct client *c = session_find(d->sessions, handle);
    double seconds = (double)(d->now - since) / NSEC_S;
    bool told = c != NULL;

    log_warn("a client has not read for %.1f s, ending its requests", seconds);
    history_add(d, "client", "", "one has not read for %.1f s, its requests end", seconds);
    for (uint32_t i = 0; i < ledger_capacity(d->ledger); i++) {
        struct row *r = ledger_row(d->ledger, i);

        if (!r || !r->attached || r->client != handle) continue;
        row_cancel(d, r, LAGAN_E_SLOW_READER, "its client has not read for %.1f s", seconds);
        if (!told) continue;
        c->last_words = true;
        told = send_last(d, c, r) == 0;
        c->last_words = false;
        row_settle(d, r);
    }
    if (c) c->last_word = c->sent;
    if (told && front_ping(d, c) == 0) {
        c->cut_at = d->now + d->config->o.ack_timeout;
        return;
    }
    deliver_client_lost(d, handle);
}

/* What was not heard for so long may have been said. */
static void
excuse(struct daemon *d, nsec now, nsec late)
{
    struct client *c;

    for (uint32_t i = 0; i < ledger_capacity(d->ledger); i++) {
        struct row *r = ledger_row(d->ledger, i);

        if (r && r->stalled) r->stalled = MIN(r->stalled + late, now);
        if (r && r->left < now) r->left = MIN(r->left + late, now);
    }
    for (uint32_t at = 0; (c = session_next(d->sessions, &at));) {
        c->heard = MIN(c->heard + late, now);
        if (c->cut_at) c->cut_at += late;
    }
}

void
deliver_tick(struct daemon *d, nsec now, nsec late)
{
    const struct options *o = &d->config->o;
    struct client *c;

    if (late) excuse(d, now, late);
    for (uint32_t i = 0; ledger_n(d->ledger) && i < ledger_capacity(d->ledger); i++) {
        struct row *r = ledger_row(d->ledger, i);

        if (!r || r->kept) continue;
        if (now >= r->deadline && !is_error(r)) {
            row_cancel(d, r, LAGAN_E_DEADLINE, "deadline_ms passed after %u tokens",
                       row_n_tokens(r));
        } else if (!r->attached) {
            if (r->state == ROW_ENDED || now - r->left < r->patience) continue;
            /* One that comes later finds nothing, and may submit it again. */
            ledger_unname(d->ledger, r);
            row_cancel(d, r, LAGAN_E_CANCELLED, "its client has not come back");
        } else if (r->stalled && now - r->stalled < o->ack_timeout) {
            if (now - r->stalled >= PAUSE_AFTER) row_pause(d, r, true);
        } else if (r->blocked) {
            drop_slow(d, r->client, r->stalled);
        } else if (r->stalled) {
            row_cancel(d, r, LAGAN_E_SLOW_READER,
                       "no ACK for %.1f s with %u chunks on the way, %u tokens were not taken",
                       (double)(now - r->stalled) / NSEC_S, r->n_chunks - r->n_acked,
                       row_n_tokens(r) - r->n_sent);
        }
    }
    for (uint32_t at = 0; (c = session_next(d->sessions, &at));) {
        nsec silent = now - c->heard;

        if (c->hung_up || c->over) {
            c->hung_up = false;
            if (front_look(d, c)) continue;
        }
        if (c->cut_at && now >= c->cut_at) {
            log_warn("a client has not read what its requests ended with, cutting its connection");
            deliver_client_lost(d, c->handle);
            continue;
        }
        /* One that has nothing open may be silent, but does not keep its place for ever. */
        if (silent < (c->n_open ? o->idle_timeout : o->idle_timeout * IDLE_FACTOR)) continue;
        if (c->n_open) log_info("a client with %u requests is silent, dropping it", c->n_open);
        deliver_client_lost(d, c->handle);
    }
    ledger_expire(d->ledger, now);
}
