/* mock_lagand.c - a lagand without workers, for tests: mock_lagand DIR [PROTO [REJECTIONS]].
 *
 * It serves DIR/api.sock and DIR/ctl.sock. The text of a request selects the reply:
 *
 *     echo TEXT      TEXT, one byte a token, ids = bytes; a chunk for each, within the window
 *     many N         N chunks of one token
 *     error CODE     an ERROR with that code
 *     hang           ACCEPT and no chunks; can be cancelled
 *     late CODE      one chunk, then an ERROR
 *     raw HEX        these bytes as a frame
 *     logprobs       two tokens with log-probabilities and alternatives; those of the prompt first,
 *                    if requested
 *     badlp          log-probabilities of a wrong size
 *     skip           tokens at 0, then at 5
 *     gap            chunk 1, then chunk 3 with the next token
 *     bye            BYE
 *     leave          BYE with retry_after_ms; the request stays open
 *     ping           PING; the verb "pongs" returns the number of PONGs
 *     lp             like echo "ab"
 *     last           "ab" whose last chunk has `end`, and no DONE
 *     deep           like last, with an `end` of the maximum depth
 *     stop WORD      no tokens; ended by the stop string WORD, or by the stop id 7 if WORD is 7
 *     long           an ERROR too_long for 5000 of 4096 tokens
 *     prompt         two prompt positions in two chunks, no tokens; three if REJECTIONS is set
 *
 * A client with a session may reconnect and RESUME. REJECTIONS: this many SUBMITs with
 * generated_ids are rejected first, with queue_full; -1: all of them, with draining. A prompt of
 * ids is echoed. The verb "echo" returns its args. Requests are accepted at AT. */
#include "wire/msg.h"

#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

enum { MAX_ROWS = 256, AT = 1764000000 };

struct peer {
    char id[256];
    size_t n;
};

struct open_request { /* a stream in flight */
    bool used, hang;
    struct peer peer;
    char session[16];
    uint64_t rid, sent, acked;
    uint32_t ack_window, at, n;
    unsigned char *text;
};

static void *sock, *api_sock, *ctl_sock;
static struct open_request rows[MAX_ROWS];
static struct {
    struct peer peer;
    char session[16];
} sessions[MAX_ROWS];
static uint32_t n_sessions, n_refusals, n_pongs, n_accepted;
static uint8_t instance[16];
static int proto = 1;
static msgpack_sbuffer b;
static msgpack_packer p;

static void
begin(uint32_t type, uint64_t rid, uint32_t n_keys)
{
    msgpack_sbuffer_clear(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, type, rid, n_keys);
}

static void
send_raw(const struct peer *to, const void *bytes, size_t n)
{
    zmq_send(sock, to->id, to->n, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(sock, bytes, n, ZMQ_DONTWAIT);
}

static void
send_out(const struct peer *to)
{
    send_raw(to, b.data, b.size);
}

static void
send_error(const struct peer *to, uint64_t rid, uint32_t code, const char *message)
{
    bool retry;
    const char *word = msg_reason(code, &retry);

    begin(LAGAN_MSG_ERROR, rid, 5);
    msg_key(&p, "code"), msgpack_pack_uint32(&p, code);
    msg_key(&p, "reason_name"), msg_text(&p, word ? word : "?");
    msg_key(&p, "message"), msg_text(&p, message);
    msg_key(&p, "retryable"), retry ? msgpack_pack_true(&p) : msgpack_pack_false(&p);
    msg_key(&p, "delivered"), msgpack_pack_int(&p, 0);
    send_out(to);
}

static void
send_done(const struct peer *to, uint64_t rid, uint32_t n_tokens)
{
    begin(LAGAN_MSG_DONE, rid, 1);
    msg_key(&p, "outputs"), msgpack_pack_array(&p, 1), msgpack_pack_map(&p, 7);
    msg_key(&p, "o"), msgpack_pack_int(&p, 0);
    msg_key(&p, "reason"), msgpack_pack_int(&p, LAGAN_FINISH_EOS);
    msg_key(&p, "n_tokens"), msgpack_pack_uint32(&p, n_tokens);
    msg_key(&p, "score"), msgpack_pack_double(&p, -0.5);
    msg_key(&p, "seed"), msgpack_pack_int(&p, 99);
    msg_key(&p, "cached"), msgpack_pack_int(&p, 3);
    msg_key(&p, "n_prompt_tokens"), msgpack_pack_int(&p, 4);
    send_out(to);
}

static void
send_chunk(const struct peer *to, uint64_t rid, uint64_t n, uint32_t at, int32_t id, const char *s)
{
    begin(LAGAN_MSG_CHUNK, rid, 5);
    msg_key(&p, "o"), msgpack_pack_int(&p, 0);
    msg_key(&p, "i"), msgpack_pack_uint32(&p, at);
    msg_key(&p, "n"), msgpack_pack_uint64(&p, n);
    msg_key(&p, "t"), msg_bin(&p, &id, 4);
    msg_key(&p, "s"), msg_text(&p, s);
    send_out(to);
}

static void
advance(struct open_request *r)
{
    while (!r->hang && r->at < r->n && r->sent - r->acked < r->ack_window) {
        char s[2] = { r->text && r->text[r->at] < 0x80 ? (char)r->text[r->at] : 'x', 0 };

        send_chunk(&r->peer, r->rid, ++r->sent, r->at, r->text ? r->text[r->at] : 7, s);
        r->at++;
    }
    if (r->hang || r->at < r->n) return;
    send_done(&r->peer, r->rid, r->n);
    free(r->text);
    r->used = false;
}

static const char *
session_of(const struct peer *from)
{
    uint32_t i = n_sessions;

    while (i-- > 0)
        if (sessions[i].peer.n == from->n && !memcmp(sessions[i].peer.id, from->id, from->n))
            return sessions[i].session;
    return "no session here";
}

static struct open_request *
new_row(const struct peer *from, uint64_t rid, uint32_t ack_window)
{
    int i;

    for (i = 0; i < MAX_ROWS && rows[i].used; i++) continue;
    check(i < MAX_ROWS);
    rows[i] =
        (struct open_request){ .used = true, .peer = *from, .rid = rid, .ack_window = ack_window };
    memcpy(rows[i].session, session_of(from), 16);
    return &rows[i];
}

static uint64_t
number_at(const struct msg *m, const char *key, uint32_t i)
{
    const msgpack_object *list = msg_get(&m->map, key);

    check(list && list->type == MSGPACK_OBJECT_ARRAY && i < list->via.array.size);
    return list->via.array.ptr[i].via.u64;
}

static void
take_resume(const struct peer *from, const struct msg *m)
{
    uint32_t n = msg_get(&m->map, "rids")->via.array.size, k = 0, i, j;
    uint64_t unknown[MAX_ROWS];
    struct open_request *known[MAX_ROWS];

    check(n <= MAX_ROWS);
    for (i = 0; i < n; i++) {
        known[i] = NULL;
        for (j = 0; j < MAX_ROWS; j++)
            if (rows[j].used && rows[j].rid == number_at(m, "rids", i) &&
                !memcmp(rows[j].session, session_of(from), 16))
                known[i] = &rows[j];
        if (!known[i]) unknown[k++] = number_at(m, "rids", i);
    }
    begin(LAGAN_MSG_REPLY, m->rid, 1);
    msg_key(&p, "result"), msgpack_pack_map(&p, 1);
    msg_key(&p, "unknown"), msgpack_pack_array(&p, k);
    for (i = 0; i < k; i++) msgpack_pack_uint64(&p, unknown[i]);
    send_out(from);
    for (i = 0; i < n; i++) {
        if (!known[i]) continue;
        known[i]->peer = *from;
        known[i]->at = (uint32_t)number_at(m, "n_tokens", i);
        known[i]->sent = known[i]->acked = 0;
        advance(known[i]);
    }
}

static void
send_last(const struct peer *to, uint64_t rid, bool deep)
{
    const int32_t ids[2] = { 'a', 'b' };

    begin(LAGAN_MSG_CHUNK, rid, 6);
    msg_key(&p, "o"), msgpack_pack_int(&p, 0);
    msg_key(&p, "i"), msgpack_pack_int(&p, 0);
    msg_key(&p, "n"), msgpack_pack_uint64(&p, 1);
    msg_key(&p, "t"), msg_bin(&p, ids, sizeof ids);
    msg_key(&p, "s"), msg_text(&p, "ab");
    msg_key(&p, "end"), msgpack_pack_map(&p, 3);
    msg_key(&p, "reason"), msgpack_pack_int(&p, LAGAN_FINISH_STOP);
    msg_key(&p, "n_tokens"), msgpack_pack_int(&p, 2);
    msg_key(&p, "seed");
    for (int i = 0; deep && i < LAGAN_MAX_DEPTH - 3; i++) msgpack_pack_array(&p, 1);
    msgpack_pack_int(&p, 5);
    send_out(to);
}

static void
send_prompt(const struct peer *to, uint64_t rid, uint32_t n)
{
    const float lp[3] = { 0.0f, -1.0f, -2.0f };

    for (uint32_t i = 0; i < n; i++) {
        begin(LAGAN_MSG_CHUNK, rid, 2);
        msg_key(&p, "n"), msgpack_pack_uint64(&p, i + 1);
        msg_key(&p, "pl"), msgpack_pack_map(&p, 2);
        msg_key(&p, "i"), msgpack_pack_uint32(&p, i);
        msg_key(&p, "lp"), msg_bin(&p, lp + i, 4);
        send_out(to);
    }
}

static void
send_logprobs(const struct peer *to, uint64_t rid, const struct msg_request *q, bool bad)
{
    const int32_t ids[2] = { 'h', 'i' };
    const float lp[2] = { -0.25f, -1.5f }, prompt[3] = { 0.0f / 1.0f, -2.0f, -0.1f };
    const struct {
        int32_t id;
        float lp;
    } top[4] = { { 'h', -0.25f }, { 'x', -2.5f }, { 'j', -1.25f }, { 'i', -1.5f } };
    uint64_t n = 0;

    if (q->want_prompt_logprobs) {
        begin(LAGAN_MSG_CHUNK, rid, 2);
        msg_key(&p, "n"), msgpack_pack_uint64(&p, ++n);
        msg_key(&p, "pl"), msgpack_pack_map(&p, 2);
        msg_key(&p, "i"), msgpack_pack_int(&p, 0);
        msg_key(&p, "lp"), msg_bin(&p, prompt, sizeof prompt);
        send_out(to);
    }
    begin(LAGAN_MSG_CHUNK, rid, 7);
    msg_key(&p, "o"), msgpack_pack_int(&p, 0);
    msg_key(&p, "i"), msgpack_pack_int(&p, 0);
    msg_key(&p, "n"), msgpack_pack_uint64(&p, ++n);
    msg_key(&p, "t"), msg_bin(&p, ids, sizeof ids);
    msg_key(&p, "s"), msg_text(&p, "hi");
    msg_key(&p, "lp"), msg_bin(&p, lp, bad ? 5 : sizeof lp);
    msg_key(&p, "tp"), msgpack_pack_map(&p, 2);
    msg_key(&p, "k"), msgpack_pack_int(&p, 2);
    msg_key(&p, "d"), msg_bin(&p, top, sizeof top);
    send_out(to);
    send_done(to, rid, 2);
}

static void
send_stop(const struct peer *to, uint64_t rid, const char *word)
{
    begin(LAGAN_MSG_DONE, rid, 1);
    msg_key(&p, "outputs"), msgpack_pack_array(&p, 1), msgpack_pack_map(&p, 3);
    msg_key(&p, "o"), msgpack_pack_int(&p, 0);
    msg_key(&p, "reason"), msgpack_pack_int(&p, LAGAN_FINISH_STOP);
    msg_key(&p, "stop");
    if (strcmp(word, "7"))
        msg_text(&p, word);
    else
        msgpack_pack_int(&p, 7);
    send_out(to);
}

static void
send_too_long(const struct peer *to, uint64_t rid)
{
    begin(LAGAN_MSG_ERROR, rid, 4);
    msg_key(&p, "code"), msgpack_pack_int(&p, LAGAN_E_TOO_LONG);
    msg_key(&p, "message"), msg_text(&p, "too long");
    msg_key(&p, "n_prompt_tokens"), msgpack_pack_int(&p, 5000);
    msg_key(&p, "max_len"), msgpack_pack_int(&p, 4096);
    send_out(to);
}

static void
send_hex(const struct peer *to, const char *hex)
{
    char raw[512];
    size_t n = 0;
    unsigned v;

    while (n < sizeof raw && sscanf(hex + 2 * n, "%2x", &v) == 1) raw[n++] = (char)v;
    send_raw(to, raw, n);
}

static void
take_submit(const struct peer *from, const struct msg *m)
{
    struct msg_request q;
    struct err e;
    char text[512], rest[512] = "";
    struct open_request *r;
    uint32_t i;
    int n = 0;

    if (msg_request(&q, m, &e) < 0) {
        send_error(from, m->rid, LAGAN_E_INVALID_REQUEST, e.text);
        return;
    }
    if (q.generated_ids.n && n_refusals) {
        if (n_refusals == UINT32_MAX) {
            send_error(from, m->rid, LAGAN_E_DRAINING, "no worker is here");
            return;
        }
        n_refusals--;
        send_error(from, m->rid, LAGAN_E_QUEUE_FULL, "not yet");
        return;
    }
    begin(LAGAN_MSG_ACCEPT, m->rid, 2);
    msg_key(&p, "seed"), msgpack_pack_int(&p, 4711);
    msg_key(&p, "at"), msgpack_pack_int(&p, AT + n_accepted++);
    send_out(from);
    if (!q.has_text) {
        r = new_row(from, m->rid, q.ack_window);
        r->n = MIN(q.ids.n, q.max_tokens);
        r->text = malloc(r->n + 1);
        for (i = 0; i < r->n; i++) r->text[i] = (unsigned char)msg_id(&q.ids, i);
        advance(r);
        return;
    }
    snprintf(text, sizeof text, "%.*s", (int)MIN(q.text.n, 511u), q.text.p);
    snprintf(rest, sizeof rest, "%s", strchr(text, ' ') ? strchr(text, ' ') + 1 : "");
    if (!strncmp(text, "echo ", 5) || !strcmp(text, "lp")) {
        if (!*rest) strcpy(rest, "ab");
        r = new_row(from, m->rid, q.ack_window);
        r->n = MIN((uint32_t)strlen(rest), q.max_tokens);
        r->text = (unsigned char *)strdup(rest);
        r->at = q.generated_ids.n;
        advance(r);
    } else if (sscanf(text, "many %d", &n) == 1) {
        r = new_row(from, m->rid, q.ack_window);
        r->n = (uint32_t)n;
        r->at = q.generated_ids.n;
        check(!q.generated_ids.n || q.seed == 4711); /* the seed of ACCEPT */
        advance(r);
    } else if (!strcmp(text, "last") || !strcmp(text, "deep")) {
        send_last(from, m->rid, *text == 'd');
    } else if (!strcmp(text, "prompt")) {
        send_prompt(from, m->rid, n_refusals ? 3 : 2);
        new_row(from, m->rid, q.ack_window)->hang = true;
    } else if (sscanf(text, "error %d", &n) == 1) {
        send_error(from, m->rid, (uint32_t)n, "as the test wished");
    } else if (sscanf(text, "late %d", &n) == 1) {
        send_chunk(from, m->rid, 1, 0, 'a', "a");
        send_error(from, m->rid, (uint32_t)n, "after a token");
    } else if (!strncmp(text, "stop ", 5)) {
        send_stop(from, m->rid, rest);
    } else if (!strcmp(text, "long")) {
        send_too_long(from, m->rid);
    } else if (!strcmp(text, "hang")) {
        new_row(from, m->rid, q.ack_window)->hang = true;
    } else if (!strncmp(text, "raw ", 4)) {
        new_row(from, m->rid, q.ack_window)->hang = true;
        send_hex(from, rest);
    } else if (!strcmp(text, "logprobs") || !strcmp(text, "badlp")) {
        send_logprobs(from, m->rid, &q, *text == 'b');
    } else if (!strcmp(text, "skip")) {
        send_chunk(from, m->rid, 1, 0, 'a', "a");
        send_chunk(from, m->rid, 2, 5, 'b', "b");
        send_done(from, m->rid, 2);
    } else if (!strcmp(text, "gap")) {
        send_chunk(from, m->rid, 1, 0, 'a', "a");
        send_chunk(from, m->rid, 3, 1, 'c', "c");
    } else if (!strcmp(text, "ping")) {
        begin(LAGAN_MSG_PING, 0, 1);
        msg_key(&p, "t"), msgpack_pack_int(&p, 77);
        send_out(from);
    } else if (!strcmp(text, "bye") || !strcmp(text, "leave")) {
        bool leave = *text == 'l';

        if (leave) new_row(from, m->rid, q.ack_window)->hang = true;
        begin(LAGAN_MSG_BYE, 0, 1 + leave);
        msg_key(&p, "reason"), msg_text(&p, "draining");
        if (leave) msg_key(&p, "retry_after_ms"), msgpack_pack_int(&p, 0);
        send_out(from);
    } else {
        send_error(from, m->rid, LAGAN_E_INVALID_REQUEST, "the mock does not know this text");
    }
}

enum { TUNE_PAIRS = 3 };

static void
pack_worker(const char *worker)
{
    static uint32_t n_looks;
    const char *model = getenv("MOCK_MODEL"),
               *down = getenv("MOCK_DOWN"); /* worker state: no process */

    msgpack_pack_map(&p, 15);
    msg_key(&p, "dtype"), msg_text(&p, "bf16");
    msg_key(&p, "max_len"), msgpack_pack_int(&p, 4096);
    msg_key(&p, "text"), msg_text(&p, getenv("MOCK_TEXT") ? getenv("MOCK_TEXT") : "yes");
    msg_key(&p, "chat"), msg_text(&p, "no");
    msg_key(&p, "load"), msgpack_pack_map(&p, 2);
    msg_key(&p, "done"), msgpack_pack_int(&p, 3 << 20);
    msg_key(&p, "total"), msgpack_pack_int(&p, 8 << 20);
    msg_key(&p, "stats"), msgpack_pack_map(&p, 3);
    msg_key(&p, "generation_tokens"), msgpack_pack_int(&p, 1000 * (int)++n_looks);
    msg_key(&p, "step_ns"), msgpack_pack_int(&p, 2500000);
    msg_key(&p, "step_tokens"), msgpack_pack_int(&p, 40);
    msg_key(&p, "name"), msg_text(&p, worker);
    msg_key(&p, "pid"), msgpack_pack_int(&p, down ? 0 : 4711);
    msg_key(&p, "device"), msg_text(&p, "cpu");
    msg_key(&p, "model"), msg_text(&p, model ? model : "mock");
    msg_key(&p, "state"), msg_text(&p, down ? down : "ready");
    msg_key(&p, "running"), msgpack_pack_int(&p, 3);
    msg_key(&p, "waiting"), msgpack_pack_int(&p, 12);
    msg_key(&p, "restarts"), msgpack_pack_int(&p, 0);
    msg_key(&p, "kv"), msgpack_pack_array(&p, 1), msgpack_pack_map(&p, 5);
    msg_key(&p, "pool"), msgpack_pack_int(&p, 0);
    msg_key(&p, "blocks"), msgpack_pack_int(&p, 100);
    msg_key(&p, "used"), msgpack_pack_int(&p, 62);
    msg_key(&p, "cached"), msgpack_pack_int(&p, 0);
    msg_key(&p, "free"), msgpack_pack_int(&p, 38);
}

/* One row in a reply; the last pair has no result or, if full, failed for lack of memory. */
static void
pack_tuned(uint64_t from, bool full)
{
    bool all = from >= TUNE_PAIRS - 1;

    msgpack_pack_map(&p, 5);
    msg_key(&p, "done"), msgpack_pack_uint64(&p, all ? TUNE_PAIRS : from + 1);
    msg_key(&p, "total"), msgpack_pack_int(&p, TUNE_PAIRS);
    msg_key(&p, "running"), all ? msgpack_pack_false(&p) : msgpack_pack_true(&p);
    msg_key(&p, "why"), msg_text(&p, all && full ? "the disk is full" : "");
    msg_key(&p, "rows"), msgpack_pack_array(&p, !all);
    if (all) return;
    msgpack_pack_map(&p, 5);
    msg_key(&p, "n"), msgpack_pack_int(&p, 6144);
    msg_key(&p, "k"), msgpack_pack_int(&p, 4096);
    msg_key(&p, "rows"), msgpack_pack_uint64(&p, 24 << from);
    msg_key(&p, "first_us"), msgpack_pack_double(&p, 20.04);
    msg_key(&p, "best_us"), msgpack_pack_double(&p, from ? 20.04 : 14.5);
}

static void
pack_event(uint64_t number)
{
    msgpack_pack_map(&p, 5);
    msg_key(&p, "number"), msgpack_pack_uint64(&p, number);
    msg_key(&p, "at_ms"), msgpack_pack_int64(&p, 1795278406713);
    msg_key(&p, "kind"), msg_text(&p, "worker");
    msg_key(&p, "worker"), msg_text(&p, "w0");
    msg_key(&p, "text"), msg_text(&p, number == 3 ? "loading -> ready" : "down -> loading");
}

static void
pack_step(uint64_t number)
{
    msgpack_pack_map(&p, 5);
    msg_key(&p, "number"), msgpack_pack_uint64(&p, number);
    msg_key(&p, "at_ms"), msgpack_pack_int64(&p, 1795278406713);
    msg_key(&p, "prefill_tokens"), msgpack_pack_int(&p, 77);
    msg_key(&p, "device_ns"), msgpack_pack_int(&p, 2500000);
    msg_key(&p, "used"), msgpack_pack_array(&p, 2), msgpack_pack_int(&p, 5),
        msgpack_pack_int(&p, 6);
}

/* number 0: a block of the cache and no event. */
static void
pack_block(uint64_t number)
{
    msgpack_pack_map(&p, number ? 7 : 4);
    if (number) {
        msg_key(&p, "number"), msgpack_pack_uint64(&p, number);
        msg_key(&p, "op"), msg_text(&p, number == 7 ? "removed" : "stored");
        msg_key(&p, "why"), msg_text(&p, "pressure");
    }
    msg_key(&p, "name"), msg_text(&p, "00ff");
    msg_key(&p, "parent"), msg_text(&p, "aa00");
    msg_key(&p, "tier"), msg_text(&p, "host");
    msg_key(&p, "tokens"), msgpack_pack_int(&p, 16);
}

static void
take_call(const struct peer *from, const struct msg *m)
{
    const msgpack_object *args = msg_get(&m->map, "args");
    struct msg_span verb = { "", 0 }, name;
    struct msg_ids ids;
    struct err e;
    uint64_t id, at;

    msg_str(&m->map, "verb", &verb);
#define IS(word) (verb.n == strlen(word) && !memcmp(verb.p, word, verb.n))
    begin(LAGAN_MSG_REPLY, m->rid, 1);
    msg_key(&p, "result");
    if (IS("echo")) {
        msgpack_pack_object(&p, *args);
    } else if (IS("silent")) {
        return;
    } else if (IS("pongs")) {
        msgpack_pack_uint32(&p, n_pongs);
    } else if (IS("count")) { /* calls so far */
        static int n;

        msgpack_pack_int(&p, ++n);
    } else if (IS("status")) {
        msgpack_pack_map(&p, 8);
        msg_key(&p, "models"), msgpack_pack_array(&p, 1), msg_text(&p, "mock");
        msg_key(&p, "version"), msg_text(&p, "0.1.0");
        msg_key(&p, "pid"), msgpack_pack_int(&p, 42);
        msg_key(&p, "uptime_s"), msgpack_pack_double(&p, 273840.5);
        msg_key(&p, "state"), msg_text(&p, getenv("MOCK_STATE") ? getenv("MOCK_STATE") : "ready");
        msg_key(&p, "requests"), msgpack_pack_int(&p, 15);
        msg_key(&p, "max_requests"), msgpack_pack_int(&p, 1024);
        msg_key(&p, "workers"), msgpack_pack_array(&p, 1), pack_worker("w0");
    } else if (IS("workers list")) {
        bool more = getenv("MOCK_WORKERS"); /* w1 is not running */

        msgpack_pack_array(&p, more ? 3 : 1), pack_worker("w0");
        if (more) pack_worker("w1"), pack_worker("w2");
    } else if (IS("requests list") && sock == ctl_sock) {
        msgpack_pack_array(&p, 1), msgpack_pack_map(&p, 5);
        msg_key(&p, "id"), msgpack_pack_int(&p, 17);
        msg_key(&p, "state"), msg_text(&p, "running");
        msg_key(&p, "prompt"), msgpack_pack_int(&p, 120);
        msg_key(&p, "generated"), msgpack_pack_int(&p, 9);
        msg_key(&p, "age_ms"), msgpack_pack_int(&p, 1500);
    } else if (IS("drain") && sock == ctl_sock && msg_str(args, "worker", &name) == 0) {
        if (name.n != 2 || memcmp(name.p, "w0", 2)) {
            send_error(from, m->rid, LAGAN_E_NOT_FOUND, "there is no such worker");
            return;
        }
        msgpack_pack_map(&p, 1);
        msg_key(&p, "requests"), msgpack_pack_int(&p, 2);
    } else if (IS("kv flush") && sock == ctl_sock && msg_str(args, "worker", &name) == 0) {
        if (name.n != 2 || name.p[1] == '1') {
            send_error(from, m->rid, name.n == 2 ? LAGAN_E_WORKER_LOST : LAGAN_E_NOT_FOUND,
                       "the worker is not there");
            return;
        }
        msgpack_pack_map(&p, 4);
        msg_key(&p, "blocks"), msgpack_pack_int(&p, 12);
        msg_key(&p, "bytes"), msgpack_pack_int(&p, 12 << 10);
        msg_key(&p, "host_blocks"), msgpack_pack_int(&p, 3);
        msg_key(&p, "host_bytes"), msgpack_pack_int(&p, 3 << 10);
    } else if (IS("metrics")) {
        msgpack_pack_map(&p, 1);
        msg_key(&p, "text"), msg_text(&p, "# TYPE mock gauge\nmock 1\n");
    } else if (IS("steps") && (msg_u64(args, "from", &id), true)) {
        msgpack_pack_map(&p, 4); /* steps 3 and 4 of 4; the first two are lost */
        msg_key(&p, "next"), msgpack_pack_uint64(&p, 5);
        msg_key(&p, "end"), msgpack_pack_uint64(&p, 5);
        msg_key(&p, "lost"), msgpack_pack_uint64(&p, id && id < 3 ? 3 - id : 0);
        msg_key(&p, "steps"), msgpack_pack_array(&p, id < 5 ? 5 - MAX(id, (uint64_t)3) : 0);
        for (id = MAX(id, (uint64_t)3); id < 5; id++) pack_step(id);
    } else if (IS("kv events") && sock == ctl_sock && msg_u64(args, "from", &id) == 0) {
        bool asked = msg_u64(args, "at", &at) == 0;

        msgpack_pack_map(&p, 7); /* events 6 and 7 are kept; the cache has one block */
        msg_key(&p, "first"), msgpack_pack_uint64(&p, 6);
        msg_key(&p, "next"), msgpack_pack_uint64(&p, 8);
        msg_key(&p, "end"), msgpack_pack_uint64(&p, 8);
        msg_key(&p, "lost"), msgpack_pack_uint64(&p, id && id < 6 ? 6 - id : 0);
        msg_key(&p, "events"), msgpack_pack_array(&p, id < 8 ? 8 - MAX(id, (uint64_t)6) : 0);
        for (id = MAX(id, (uint64_t)6); id < 8; id++) pack_block(id);
        msg_key(&p, "at");
        if (asked && at == 0)
            msgpack_pack_uint64(&p, 1);
        else
            msgpack_pack_nil(&p);
        msg_key(&p, "blocks"), msgpack_pack_array(&p, asked && at == 0);
        if (asked && at == 0) pack_block(0);
    } else if (IS("events") && sock == ctl_sock && msg_u64(args, "from", &id) == 0) {
        msgpack_pack_map(&p, 2); /* three rows, one in a reply */
        msg_key(&p, "next"), msgpack_pack_uint64(&p, MIN(id + 1, (uint64_t)4));
        msg_key(&p, "events"), msgpack_pack_array(&p, id < 4);
        if (id < 4) pack_event(id);
    } else if (IS("panic") && sock == ctl_sock) {
        msgpack_pack_array(&p, 1), msgpack_pack_map(&p, 6);
        msg_key(&p, "at_ms"), msgpack_pack_int64(&p, 1795278406713);
        msg_key(&p, "worker"), msg_text(&p, "w0");
        msg_key(&p, "cause"), msg_text(&p, "check");
        msg_key(&p, "how"), msg_text(&p, "signal 6 (Aborted)");
        msg_key(&p, "words"), msg_text(&p, "x.c:7: check(sky) failed");
        msg_key(&p, "log"), msgpack_pack_array(&p, 1), msg_text(&p, "the last line");
    } else if (IS("tune") && sock == ctl_sock) {
        if (msg_str(args, "worker", &name) == 0 && !memcmp(name.p, "cpu", MIN(name.n, 3u))) {
            send_error(from, m->rid, LAGAN_E_UNSUPPORTED, "this worker has nothing to tune");
            return;
        }
        msgpack_pack_map(&p, 1);
        msg_key(&p, "total"), msgpack_pack_int(&p, TUNE_PAIRS);
    } else if (IS("tune status") && sock == ctl_sock && msg_u64(args, "from", &id) == 0) {
        pack_tuned(id, msg_str(args, "worker", &name) == 0 && name.n == 4);
    } else if (IS("cancel") && msg_u64(args, "id", &id) == 0) {
        if (id != 17) {
            send_error(from, m->rid, LAGAN_E_NOT_FOUND, "no request has the id asked for");
            return;
        }
        msgpack_pack_map(&p, 0);
    } else if (IS("tokenize")) {
        struct msg_span text = { "", 0 }, model;

        msg_str(args, "text", &text);
        if (msg_str(args, "model", &model) == 0 && *model.p != 'm') {
            send_error(from, m->rid, LAGAN_E_MODEL_NOT_FOUND, "that model is not served here");
            return;
        }
        msgpack_pack_map(&p, 1);
        msg_key(&p, "ids"), msgpack_pack_array(&p, text.n ? 2 : 0);
        if (text.n) msgpack_pack_int(&p, 104), msgpack_pack_int(&p, 105);
    } else if (IS("pieces")) {
        msgpack_pack_array(&p, 2);
        msg_bin(&p, "\xe2\x82", 2);
        msg_bin(&p, "", 0);
    } else if (IS("detokenize") && msg_ids(args, "ids", &ids, &e) == 0) {
        msgpack_pack_map(&p, 1);
        msg_key(&p, "text"), msg_text(&p, "a \"quoted\" line\n");
    } else {
        send_error(from, m->rid, LAGAN_E_UNSUPPORTED, "the mock has no such verb");
        return;
    }
    send_out(from);
}

static void
take(const struct peer *from, const void *frame, size_t n)
{
    struct msg_span session;
    struct msg m;
    struct err e;
    uint64_t v;
    int64_t t = 0;
    int i;

    if (msg_decode(&m, frame, n, &e) < 0) {
        send_error(from, m.rid, LAGAN_E_INVALID_REQUEST, e.text);
        return;
    }
    switch (m.type) {
    case LAGAN_MSG_HELLO:
        if (msg_str(&m.map, "session", &session) == 0 && session.n == 16) {
            check(n_sessions < MAX_ROWS);
            sessions[n_sessions].peer = *from;
            memcpy(sessions[n_sessions++].session, session.p, 16);
        }
        begin(LAGAN_MSG_WELCOME, 0, 4);
        msg_key(&p, "features"), msgpack_pack_array(&p, 2);
        msg_text(&p, "fit"), msg_text(&p, "request_id");
        msg_key(&p, "proto"), msgpack_pack_int(&p, proto);
        msg_key(&p, "instance"), msg_bin(&p, instance, 16);
        msg_key(&p, "state"), msg_text(&p, "ready");
        send_out(from);
        break;
    case LAGAN_MSG_SUBMIT:
        take_submit(from, &m);
        break;
    case LAGAN_MSG_RESUME:
        take_resume(from, &m);
        break;
    case LAGAN_MSG_CALL:
        take_call(from, &m);
        break;
    case LAGAN_MSG_PING:
        msg_i64(&m.map, "t", &t);
        begin(LAGAN_MSG_PONG, 0, 1);
        msg_key(&p, "t"), msgpack_pack_int64(&p, t);
        send_out(from);
        break;
    case LAGAN_MSG_PONG:
        n_pongs++;
        break;
    case LAGAN_MSG_ACK:
    case LAGAN_MSG_CANCEL:
        for (i = 0; i < MAX_ROWS; i++) {
            if (!rows[i].used || rows[i].rid != m.rid || rows[i].peer.n != from->n ||
                memcmp(rows[i].peer.id, from->id, from->n))
                continue;
            if (m.type == LAGAN_MSG_CANCEL) {
                rows[i].used = false;
                send_error(from, m.rid, LAGAN_E_CANCELLED, "cancelled");
            } else if (msg_u64(&m.map, "n", &v) == 0) {
                rows[i].acked = v;
                advance(&rows[i]);
            }
        }
    }
    msg_done(&m);
}

static void
receive(void *from_sock)
{
    static char frame[LAGAN_MAX_FRAME];
    struct peer from;
    int n;

    sock = from_sock;
    for (;;) {
        n = zmq_recv(sock, from.id, sizeof from.id, ZMQ_DONTWAIT);
        if (n < 0) return;
        from.n = (size_t)n;
        n = zmq_recv(sock, frame, sizeof frame, ZMQ_DONTWAIT);
        if (n >= 0) take(&from, frame, MIN((size_t)n, sizeof frame));
    }
}

static volatile sig_atomic_t stopped;

static void
on_stop(int sig)
{
    (void)sig;
    stopped = 1;
}

/* Files of the start are removed at the end, as laganctl --spawn expects. */
static void
leave(const char *dir)
{
    char path[300];

    snprintf(path, sizeof path, "%s/api.sock", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/ctl.sock", dir);
    unlink(path);
    rmdir(dir);
}

int
main(int argc, char **argv)
{
    void *ctx = zmq_ctx_new();
    char at[256];
    int none = 0;
    struct sigaction act = { .sa_handler = on_stop };
    sigset_t none_blocked;
    FILE *random = fopen("/dev/urandom", "rb");

    if (argc < 2 || !random || fread(instance, 1, 16, random) != 16) return 2;
    fclose(random);
    if (argc > 2) proto = atoi(argv[2]);
    if (argc > 3) n_refusals = (uint32_t)atoi(argv[3]);
    sigaction(SIGTERM, &act, NULL);
    sigemptyset(&none_blocked);
    sigprocmask(SIG_SETMASK, &none_blocked, NULL);
    mkdir(argv[1], 0700);
    msgpack_sbuffer_init(&b);
    api_sock = zmq_socket(ctx, ZMQ_ROUTER);
    ctl_sock = zmq_socket(ctx, ZMQ_ROUTER);
    zmq_setsockopt(api_sock, ZMQ_SNDHWM, &none, sizeof none); /* limited by the ack windows */
    snprintf(at, sizeof at, "ipc://%s/api.sock", argv[1]);
    if (zmq_bind(api_sock, at) < 0) return perror(at), 1;
    snprintf(at, sizeof at, "ipc://%s/ctl.sock", argv[1]);
    if (zmq_bind(ctl_sock, at) < 0) return perror(at), 1;
    while (!stopped) {
        zmq_pollitem_t items[2] = { { api_sock, 0, ZMQ_POLLIN, 0 },
                                    { ctl_sock, 0, ZMQ_POLLIN, 0 } };

        /* Not without limit, because a signal between the test above and this call would be missed.
         */
        if (zmq_poll(items, 2, 50) < 0 && errno != EINTR) return 1;
        receive(api_sock);
        receive(ctl_sock);
    }
    leave(argv[1]);
    return 0;
}
