/* fuzz_receive.c - records of a hostile worker against a reference: accepted or rejected, and the
 * state of the request afterwards.
 *
 * Input is a table of requests and a list of records in a short form: a type, the request, correct
 * numbers, and words to corrupt. The reference is written from records.h and receive.h alone, on
 * plain bytes. A protocol error ends the input, as it ends the worker.
 */
#include "daemon/config/options.h"
#include "tests/fuzz/fuzz.h"

#include "base/log.h"
#include "daemon/ledger/outputs.h"
#include "daemon/ledger/quarantine.h"
#include "daemon/ledger/request.h"
#include "daemon/request/kv_watch.h"
#include "daemon/request/lifecycle.h"
#include "daemon/request/receive.h"
#include "daemon/request/worker_calls.h"
#include "daemon/supervise/worker_struct.h"

#include <unistd.h>

enum {
    MAX_ROWS = 5,
    MAX_TOKENS = 12,
    MAX_OUTPUTS = 3,
    MAX_TEXT = 1 << 15,
    RECORD_BYTES = 4096,
    VOCAB = 100,
    RING_LOG2 = 16
};

/* ---- the ref */

struct ref_row {
    uint32_t index, gen;
    bool held, other, partly, ended,
        start_unknown; /* other: another worker's; partly: being n_delivered */
    bool lp, plp;
    bool wants[2]; /* encoder's output, logits */
    uint64_t values[2], kept[2];
    uint32_t cols[2];
    uint32_t tops, ptops, max, n_received, prompt_received;
    struct ref_output {
        uint32_t n_received, text_received;
        bool over;
    } out[MAX_OUTPUTS];
    uint32_t n_outs;
    uint32_t n, n_text; /* what the client is to have */
    uint32_t token[MAX_OUTPUTS * MAX_TOKENS];
    uint8_t text[MAX_TEXT], whose[MAX_OUTPUTS * MAX_TOKENS];
};
static struct ref_row rows[MAX_ROWS];
static uint32_t n_tokens, vocab;
static bool loading;

static uint32_t
word(const uint8_t *p, uint32_t bytes)
{
    uint32_t v = 0;

    while (bytes--) v = v << 8 | p[bytes];
    return v;
}

static bool
is_utf8(const uint8_t *p, uint64_t n)
{
    for (uint64_t i = 0, len; i < n; i += len) {
        static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
        uint32_t c = p[i];

        len = c < 0x80 ? 1 : c < 0xc0 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf8 ? 4 : 0;
        if (!len || len > n - i) return false;
        if (len > 1) c &= 0xffu >> (len + 1);
        for (uint64_t k = 1; k < len; k++) {
            if (p[i + k] >> 6 != 2) return false;
            c = c << 6 | (p[i + k] & 63u);
        }
        if (c < least[len] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return false;
    }
    return true;
}

static bool
is_reason(uint32_t r)
{
    return (r >= 1 && r <= 5) || (r >= 32 && r <= 48);
}

static struct ref_row *
named(const uint8_t *p)
{
    for (uint32_t i = 0; i < n_tokens; i++) {
        struct ref_row *t = &rows[i];

        if (t->index == word(p, 4) && t->gen == word(p + 4, 4))
            return t->held && !t->other && !t->partly ? t : NULL;
    }
    return NULL;
}

static bool
ref_out(const uint8_t *p, uint64_t n, uint64_t *taken)
{
    uint64_t tokens, text, tops, each, all;
    struct ref_output *o;
    struct ref_row *t;
    uint32_t output;

    if (n < 32) return false;
    output = word(p + 8, 2);
    tokens = p[10];
    text = word(p + 16, 4);
    tops = word(p + 24, 4);
    each = p[11] ? 4 + 4 + 8 * tops : 4;
    all = tokens * each + text;
    *taken = 32 + (all + 7) / 8 * 8;
    if (!tokens || p[11] > 1 || tops > 1024 || (!p[11] && tops) || *taken > n) return false;
    t = named(p);
    if (!t || output >= t->n_outs) return false;
    o = &t->out[output];
    if (o->over || word(p + 12, 4) != o->n_received) return false;
    if (!t->start_unknown && word(p + 20, 4) != o->text_received) return false;
    if (tokens > t->max - o->n_received) return false;
    if (p[11] != t->lp || (t->lp && tops != t->tops)) return false;
    for (uint64_t i = 0; i < tokens; i++)
        if (word(p + 32 + 4 * i, 4) >= vocab) return false;
    if (!is_utf8(p + 32 + tokens * each, text)) return false;
    t->n_received += (uint32_t)tokens;
    o->n_received += (uint32_t)tokens;
    o->text_received = word(p + 20, 4) + (uint32_t)text;
    t->start_unknown = false;
    if (t->ended) return true;
    for (uint64_t i = 0; i < tokens; i++) {
        t->whose[t->n] = (uint8_t)output;
        t->token[t->n++] = word(p + 32 + 4 * i, 4);
    }
    memcpy(t->text + t->n_text, p + 32 + tokens * each, text);
    t->n_text += (uint32_t)text;
    return true;
}

/* Entries before one that lies stand. */
static bool
ref_step(const uint8_t *p, uint64_t n)
{
    uint64_t at = 16, taken;

    if (n < 16 || word(p + 12, 4) > 65536) return false;
    for (uint32_t i = word(p + 12, 4); i > 0; i--) {
        if (!ref_out(p + at, n - at, &taken)) return false;
        at += taken;
    }
    return at == n;
}

static bool
ref_finish(const uint8_t *p, uint64_t n)
{
    struct ref_row *t = n == 64 ? named(p) : NULL;
    struct ref_output *o;

    if (!t || word(p + 8, 2) >= t->n_outs || !is_reason(word(p + 10, 2))) return false;
    o = &t->out[word(p + 8, 2)];
    if (word(p + 36, 4)) return false; /* no request here has stop strings */
    if (o->over || word(p + 16, 4) != o->n_received) return false;
    o->over = true;
    for (uint32_t i = 0; i < t->n_outs; i++)
        if (!t->out[i].over) return true;
    t->held = false;
    t->ended = true;
    return true;
}

static bool
ref_reject(const uint8_t *p, uint64_t n)
{
    uint32_t text, reason;
    struct ref_row *t;

    if (n < 16) return false;
    text = word(p + 10, 2);
    reason = word(p + 8, 2);
    if (text > n - 16 || (text + 7) / 8 * 8 < n - 16) return false;
    t = named(p);
    if (!t || reason < 32 || !is_reason(reason) || (!t->ended && t->n)) return false;
    t->held = false;
    t->ended = true;
    return true;
}

static bool
ref_prompt(const uint8_t *p, uint64_t n)
{
    uint64_t first, some, tops, need;
    struct ref_row *t;

    if (n < 24) return false;
    first = word(p + 8, 4);
    some = word(p + 12, 4);
    tops = word(p + 16, 4);
    need = 24 + some * (8 + 8 * tops);
    if (tops > 1024 || some > 4u << 20 || need > n || n - need > 7) return false;
    t = named(p);
    if (!t || !t->plp || tops != t->ptops || t->n_received) return false;
    if (first != t->prompt_received || first + some > 4u << 20) return false;
    t->prompt_received += (uint32_t)some;
    return true;
}

static bool
ref_tensor(const uint8_t *p, uint64_t n)
{
    uint64_t first, some, end;
    uint32_t kind;
    struct ref_row *t;

    if (n < 32) return false;
    first = word(p + 8, 4) | (uint64_t)word(p + 12, 4) << 32;
    some = word(p + 16, 4);
    kind = word(p + 24, 4);
    if (kind < 1 || kind > 2 || !some || !word(p + 20, 4)) return false;
    if (32 + 4 * some > n || n - 32 - 4 * some > 7) return false;
    t = named(p);
    if (!t || !t->wants[--kind] || first > t->values[kind]) return false;
    if (t->values[kind] && t->cols[kind] != word(p + 20, 4)) return false;
    end = first + some;
    t->cols[kind] = word(p + 20, 4);
    if (end > t->values[kind] && !t->ended) t->kept[kind] += end - t->values[kind];
    if (end > t->values[kind]) t->values[kind] = end;
    return true;
}

static bool
ref_ready(const uint8_t *p, uint64_t n)
{
    uint32_t name, device, unserved, dtype, template;
    float temperature;

    if (n < sizeof(struct rec_ready) || !loading) return false;
    memcpy(&temperature, p + 72, 4);
    unserved = (uint32_t)strnlen((const char *)p + 88, 48);
    if (!(temperature >= 0) || unserved == 48 || !is_utf8(p + 88, unserved)) return false;
    dtype = (uint32_t)strnlen((const char *)p + 136, 8);
    if (dtype == 8 || !is_utf8(p + 136, dtype)) return false;
    template = (uint32_t)strnlen((const char *)p + 176, 32);
    if (template == 32 || !is_utf8(p + 176, template)) return false;
    name = word(p + 24, 4);
    device = word(p + 84, 2);
    if (!word(p, 4) || word(p, 4) > INT32_MAX || !word(p + 4, 4)) return false;
    if (!word(p + 12, 4) || word(p + 12, 4) > 65536 || word(p + 68, 4) > 16) return false;
    if (word(p + 16, 4) > 65536) return false;
    if (name >= 64 || device >= 64 ||
        (name + 7) / 8 * 8 + (device + 7) / 8 * 8 != n - sizeof(struct rec_ready))
        return false;
    vocab = word(p, 4);
    loading = false;
    return true;
}

/* No call is open here: records of calls are validated and dropped, whatever bytes they have. */
static bool
ref_text(const uint8_t *p, uint64_t n)
{
    uint64_t ids, text;

    if (n < 24) return false;
    ids = 4 * (uint64_t)word(p + 12, 4);
    text = word(p + 16, 4);
    if (24 + ids + text > n || n - 24 - ids - text > 7) return false;
    return !word(p + 8, 4) || is_reason(word(p + 8, 4));
}

/* The blocks that the worker has, and the numbers of its events. */
enum { EVENTS_KEPT = 7, MAX_HELD = 1 << 16 };
static struct ref_held {
    uint8_t name[16];
    uint32_t group;
} has[MAX_HELD];
static uint32_t n_has;
static uint64_t first_event, next_event;
static bool in_snapshot;

static void
ref_event(const uint8_t *p, bool snapshot)
{
    uint32_t i = 0;

    while (i < n_has && (memcmp(has[i].name, p, 16) || has[i].group != p[33])) i++;
    if (p[32] == 1 && i < n_has) has[i] = has[--n_has];
    if (p[32] != 1 && i == n_has) {
        memcpy(has[n_has].name, p, 16);
        has[n_has++].group = p[33];
    }
    if (!snapshot && ++next_event - first_event > EVENTS_KEPT) first_event++;
}

static bool
ref_events(const uint8_t *p, uint64_t n)
{
    uint32_t some, flags;
    uint64_t lost;

    if (n < 16) return false;
    some = word(p, 4);
    flags = word(p + 4, 4);
    lost = word(p + 8, 4) | (uint64_t)word(p + 12, 4) << 32;
    if (some > 256 || n != 16 + 40 * (uint64_t)some) return false;
    if (flags > 7 || (flags && flags % 2 == 0) || lost >> 32 || (lost && !(flags & 2)))
        return false;
    if (flags && (flags & 2) == 0 && !in_snapshot) return false;
    if (flags & 2 && in_snapshot) return false;
    if (flags & 2) {
        n_has = 0;
        first_event = next_event += lost + 1;
        in_snapshot = true;
    }
    for (uint32_t i = 0; i < some; i++) {
        const uint8_t *v = p + 16 + 40 * i;

        if (v[32] > 2 || (flags && v[32]) || v[33] >= 8 || v[34] > 100 || v[35] > 1 || v[36] > 4 ||
            !word(v + 38, 2))
            return false;
        ref_event(v, flags);
    }
    if (flags & 4) {
        in_snapshot = false;
        first_event = ++next_event;
    }
    return true;
}

static bool
ref_take(uint16_t type, uint16_t flags, const uint8_t *p, uint32_t n)
{
    if (flags) return false;
    switch (type) {
    case REC_READY:
        return ref_ready(p, n);
    case REC_STEP:
        return ref_step(p, n);
    case REC_FINISH:
        return ref_finish(p, n);
    case REC_REJECT:
        return ref_reject(p, n);
    case REC_PROMPT_LOGPROBS:
        return ref_prompt(p, n);
    case REC_TEXT_DONE:
        return ref_text(p, n);
    case REC_TENSOR:
        return ref_tensor(p, n);
    case REC_PHASE:
        return n == 24;
    case REC_KV_EVENTS:
        return ref_events(p, n);
    default:
        return false;
    }
}

/* ---- records in a short form */

static uint32_t
put_text(struct in *in, uint8_t *p)
{
    static const char *const texts[] = {
        "", "a", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\xa0\x80", "\xc0\x80", "\xff"
    };
    const char *t = texts[byte(in) % ARRAY_LEN(texts)];

    memcpy(p, t, strlen(t));
    return (uint32_t)strlen(t);
}

static uint32_t
make_step(struct in *in, uint8_t *p)
{
    uint32_t n = sizeof(struct rec_step);
    struct rec_step s = { .n_ent = 1 + byte(in) % 3 };
    struct ref_output out[MAX_ROWS][MAX_OUTPUTS];

    for (uint32_t i = 0; i < n_tokens; i++) memcpy(out[i], rows[i].out, sizeof out[i]);
    memcpy(p, &s, sizeof s);
    for (uint32_t i = 0; i < s.n_ent; i++) {
        uint32_t k = byte(in) % n_tokens, at, what = byte(in);
        const struct ref_row *t = &rows[k];
        struct ref_output *of = &out[k][what / 3 % t->n_outs];
        struct rec_out o = { .ledger_index = t->index,
                             .gen = t->gen,
                             .output = (uint16_t)(what > 250 ? t->n_outs : of - out[k]),
                             .n_tokens = (uint8_t)(1 + what % 3),
                             .has_logprobs = t->lp,
                             .first = of->n_received,
                             .text_first = of->text_received,
                             .n_top = t->lp ? t->tops : 0 };

        at = n + (uint32_t)sizeof o;
        for (uint32_t j = 0; j < o.n_tokens; j++, at += 4)
            p[at] = (uint8_t)(byte(in) % (VOCAB + 1));
        at += t->lp ? o.n_tokens * (4 + 8 * t->tops) : 0;
        o.text_bytes = put_text(in, p + at);
        memcpy(p + n, &o, sizeof o);
        n = ROUND_UP(at + o.text_bytes, 8u);
        of->n_received += o.n_tokens;
        of->text_received += o.text_bytes;
    }
    return n;
}

static uint32_t
make_events(struct in *in, uint8_t *p)
{
    uint32_t what = byte(in);
    struct rec_kv_events h = { .n = what % 6 };

    if (what & 64) h.flags = KV_EVENTS_SNAPSHOT | (what & 128 ? KV_EVENTS_END : 0);
    if (h.flags && !in_snapshot) h.flags |= KV_EVENTS_BEGIN, h.lost = what / 8 % 4;
    memcpy(p, &h, sizeof h);
    for (uint32_t i = 0; i < h.n; i++) {
        uint32_t which = byte(in), how = byte(in);
        struct rec_kv_event v = { .name = { which % 8, 7 },
                                  .op = (uint8_t)(h.flags ? 0 : how % 3),
                                  .group = (uint8_t)(how > 250 ? 8 : which / 8 % 8),
                                  .priority = 35,
                                  .tier = (uint8_t)(which / 64 % 2),
                                  .why = (uint8_t)(how / 4 % 5),
                                  .n_tokens = 16 };

        memcpy(p + sizeof h + i * sizeof v, &v, sizeof v);
    }
    return (uint32_t)(sizeof h + h.n * sizeof(struct rec_kv_event));
}

static uint32_t
make(struct in *in, uint16_t type, uint8_t *p)
{
    const struct ref_row *t = &rows[byte(in) % n_tokens];

    memset(p, 0, RECORD_BYTES);
    if (type == REC_STEP) return make_step(in, p);
    if (type == REC_FINISH) {
        struct rec_finish f = { t->index, t->gen, .reason = (uint16_t)(byte(in) % 64) };
        uint32_t what = byte(in);

        f.output = (uint16_t)(what % t->n_outs);
        f.n_tokens = t->out[f.output].n_received - (what >> 6 == 3); /* now and then one too few */
        f.stop = what % 31 == 30;
        memcpy(p, &f, sizeof f);
        return sizeof f;
    }
    if (type == REC_REJECT) {
        struct rec_reject j = { t->index, t->gen, .reason = (uint16_t)(byte(in) % 64) };

        j.text_bytes = (uint16_t)put_text(in, p + sizeof j);
        memcpy(p, &j, sizeof j);
        return (uint32_t)sizeof j + ROUND_UP(j.text_bytes, 8u);
    }
    if (type == REC_PROMPT_LOGPROBS) {
        struct rec_prompt o = { t->index, t->gen, t->prompt_received, byte(in) % 4, t->ptops, 0 };

        memcpy(p, &o, sizeof o);
        return (uint32_t)sizeof o + o.n * (8 + 8 * o.n_top);
    }
    if (type == REC_TENSOR) {
        uint32_t kind = byte(in) % 2;
        struct rec_tensor o = { t->index, t->gen, t->values[kind], byte(in) % 9, 0, kind + 1, 0 };

        o.first -= o.first % (1 + o.n); /* sometimes a part was received already */
        o.cols = t->values[kind] ? t->cols[kind] : 3;
        memcpy(p, &o, sizeof o);
        return (uint32_t)sizeof o + ROUND_UP(4 * o.n, 8u);
    }
    if (type == REC_READY) {
        struct rec_ready y = { .vocab = VOCAB + byte(in), .max_len = 9, .n_slots = 4 };

        y.name_bytes = byte(in) % 80;
        y.beams = y.name_bytes % 18;
        y.device_bytes = byte(in) % 80;
        memcpy(y.dtype, "bf16", 4);
        memcpy(p, &y, sizeof y);
        return (uint32_t)sizeof y + ROUND_UP(y.name_bytes, 8u) + ROUND_UP(y.device_bytes, 8u);
    }
    if (type == REC_TEXT_DONE) {
        struct rec_text_done d = { .reason = byte(in) % 64, .n_ids = byte(in) % 4 };

        d.text_bytes = put_text(in, p + sizeof d + 4 * (size_t)d.n_ids);
        memcpy(p, &d, sizeof d);
        return ROUND_UP((uint32_t)sizeof d + 4 * d.n_ids + d.text_bytes, 8u);
    }
    if (type == REC_KV_EVENTS) return make_events(in, p);
    return type == REC_PHASE ? sizeof(struct rec_phase) : 8 * (byte(in) % 16);
}

/* Words of it become others: edges, or any. */
static void
spoil(struct in *in, uint8_t *p, uint32_t n)
{
    static const uint32_t edges[] = { 0, 1, 255, 65536, INT32_MAX, UINT32_MAX };
    uint32_t what = byte(in), at = byte(in), v = edges[what % ARRAY_LEN(edges)];

    if (n < 4) return;
    if (what & 64) v = byte(in);
    if (what & 128)
        p[at % n] ^= (uint8_t)v;
    else
        memcpy(p + at % (n / 4) * 4, &v, 4);
}

/* ---- lagand */

static struct config config;
static struct daemon d;
static const struct daemon_events events = { .worker_record = receive_record };
static struct worker w;
static struct kv_watch *kv_watch;
static struct channel ours, theirs; /* both ends of a pair of rings, until one is broken */

static void
connect_worker(void)
{
    static const uint8_t id[16] = { 1 };
    int doorbell;

    if (ours.in.data && !*ring_why(&ours.in)) return;
    if (ours.in.data) {
        channel_close(&theirs);
        channel_close(&ours);
    }
    check(channel_make(&ours, 0, 1, id, RING_LOG2, RING_LOG2, &doorbell, NULL) == 0);
    check(channel_attach(&theirs, dup(ours.d.fd), dup(ours.w.fd), doorbell, 1, NULL) == 0);
}

static int
spawn_none(void *arg)
{
    (void)arg;
    return 0;
}

static void
kill_none(void *arg, int sig)
{
    (void)arg;
    (void)sig;
}

static void
moved_none(void *arg, enum super_state from, enum super_state to)
{
    (void)arg;
    (void)from;
    (void)to;
}

static void
begin(struct in *in)
{
    static const struct super_ops ops = { .spawn = spawn_none,
                                          .kill = kill_none,
                                          .moved = moved_none };

    log_level_set(LOG_LEVEL_ERR - 1);
    memset(&d, 0, sizeof d);
    memset(&w, 0, sizeof w);
    connect_worker();
    w.channel = ours;
    w.alive = true;
    opt_defaults(daemon_opts, &config.o);
    d.config = &config;
    d.events = &events;
    d.n_workers = 1;
    d.worker[0] = &w;
    d.ledger = ledger_new(2 * MAX_ROWS, 1);
    d.sessions = sessions_new(1);
    d.calls = worker_calls_new();
    d.quarantine = quarantine_new();
    config.n_models = 1;
    opt_defaults(model_opts, &config.model[0].keys);
    config.model[0].keys.kv_reuse = true;
    config.model[0].keys.kv_events = EVENTS_KEPT;
    if (!kv_watch) kv_watch = kv_watch_new(&config); /* large: one for all inputs */
    check(kv_watch);
    d.kv_watch = kv_watch;
    check(d.ledger && d.sessions && d.calls);
    d.facts[0] =
        (struct model_facts){ .known = true, .vocab = VOCAB, .n_slots = 4, .max_request_seqs = 4 };
    w.d = &d;
    kv_watch_lost(&w);
    kv_watch_range(&w, &first_event, &next_event);
    n_has = 0;
    in_snapshot = false;
    w.info.vocab = VOCAB;
    w.requests.sending = w.requests.alone = REQUEST_NONE;
    super_init(&w.super, &ops, &w, 1);
    loading = byte(in) % 4 == 3;
    w.super.state = loading ? SUPER_LOADING : SUPER_READY;
    vocab = VOCAB;
    n_tokens = 1 + byte(in) % MAX_ROWS;
}

/* One that the worker has, or may not speak of. */
static void
take_row(uint32_t i, struct in *in)
{
    struct ref_row *t = &rows[i];
    uint32_t what = byte(in), tops = byte(in);
    struct rec_submit *s = calloc(1, sizeof *s);
    struct request *r;
    bool suspected;

    check(s);
    *t = (struct ref_row){
        .held = true, .lp = what & 1, .plp = what & 2, .start_unknown = what & 4
    };
    t->other = (what >> 3) % 8 == 1;
    t->partly = (what >> 3) % 8 == 2 && w.requests.sending == REQUEST_NONE;
    t->ended = (what >> 3) % 8 == 3;
    suspected = (what >> 3) % 8 == 4;
    t->tops = t->lp ? tops % 3 : 0;
    t->ptops = t->plp ? tops / 4 % 3 : 0;
    t->wants[0] = tops & 64;
    t->wants[1] = tops & 128;
    t->n_outs = 1 + (tops >> 4) % 4 % MAX_OUTPUTS;
    if (t->n_outs > 1) t->start_unknown = false;
    t->max = 1 + (what >> 6) * (MAX_TOKENS - 1) / 3;
    s->max_tokens = t->max;
    s->n_prompt = 3;
    s->n = t->n_outs;
    s->logprobs = t->tops;
    s->prompt_logprobs = t->ptops;
    s->flags = (uint8_t)((t->lp ? SUBMIT_LOGPROBS : 0) | (t->plp ? SUBMIT_PROMPT_LOGPROBS : 0) |
                         (t->wants[0] ? SUBMIT_ENCODER_OUTPUT : 0) |
                         (t->wants[1] ? SUBMIT_LOGITS : 0));
    check(ledger_take(d.ledger, 1, i + 1, s, sizeof *s, &r) == 0 && outputs_init(r) == 0);
    request_move(d.ledger, r, REQUEST_DISPATCHED);
    r->dispatch.held = true;
    r->delivery.ack_window = 4;
    r->outputs.text_start_unknown = t->start_unknown;
    r->dispatch.worker = t->other;
    w.requests.n++;
    w.requests.n_seqs += request_n_seqs(r);
    w.requests.tokens += r->dispatch.load = r->accounting.n_tokens;
    t->index = r->index;
    t->gen = r->gen;
    if (t->partly) w.requests.sending = r->index;
    if (suspected) {
        r->suspicion.n_faults = 2; /* it runs alone, until it has got past its deaths */
        w.requests.alone = r->index;
        d.quarantine->n_suspects++;
    }
    if (t->ended) lifecycle_end(&d, r, LAGAN_E_CANCELLED, "by its client");
}

/* Compares the spans of tokens and their outputs. */
static void
compare_outputs(const struct ref_row *t, const struct request *r)
{
    uint32_t n = 0, n_text = 0;

    check((r->outputs.each != NULL) == (t->n_outs > 1));
    for (uint32_t i = 0; r->outputs.each && i < t->n_outs; i++) {
        check(r->outputs.each[i].n_received == t->out[i].n_received &&
              r->outputs.each[i].n_text_received == t->out[i].text_received);
        check((r->outputs.each[i].reason != 0) == t->out[i].over);
    }
    for (uint32_t i = 0; i < outputs_n_spans(r); i++) {
        struct output_span p = outputs_span(r, i);

        check(n + p.n <= t->n && p.n);
        for (uint32_t end = n + p.n; n < end; n++) check(t->whose[n] == p.output);
        n_text += p.n_text;
    }
    check(!r->outputs.each || (n == t->n && n_text == t->n_text));
}

/* Compares the blocks that lagand knows, and the numbers of the events that it keeps. */
static void
compare_events(void)
{
    struct held_block b[64];
    uint64_t first, next;
    uint32_t at = 0, n, sum = 0;

    while ((n = kv_watch_blocks(&w, &at, b, 64))) {
        for (uint32_t i = 0, j; i < n; i++) {
            for (j = 0; j < n_has; j++)
                if (!memcmp(has[j].name, b[i].name, 16) && has[j].group == b[i].group) break;
            check(j < n_has);
        }
        sum += n;
    }
    kv_watch_range(&w, &first, &next);
    check(sum == n_has && first == first_event && next == next_event);
}

/* Is every row what the ref says? */
static void
compare(void)
{
    uint32_t held = 0;

    for (uint32_t i = 0; i < n_tokens; i++) {
        const struct ref_row *t = &rows[i];
        const struct request *r = ledger_request(d.ledger, t->index);

        held += t->held;
        check(r && r->gen == t->gen && r->dispatch.held == t->held);
        check((r->state == REQUEST_ENDED) == t->ended &&
              r->outputs.n_prompt_received == t->prompt_received);
        check(r->outputs.n_received == t->n_received && request_n_tokens(r) == t->n &&
              r->outputs.text.n == t->n_text);
        compare_outputs(t, r);
        check(!t->n || !memcmp(r->outputs.token.p, t->token, 4 * (size_t)t->n));
        check(!t->n_text || !memcmp(r->outputs.text.p, t->text, t->n_text));
        check(!t->lp || (r->outputs.logprob.n == 4 * (size_t)t->n &&
                         r->outputs.top.n == 8 * (size_t)t->tops * t->n));
        for (uint32_t k = 0; k < 2; k++)
            check(r->outputs.tensor[k].n_received == t->values[k] &&
                  r->outputs.tensor[k].value.n == 4 * t->kept[k]);
    }
    check(w.requests.n == held && d.facts[0].vocab == vocab && w.info.vocab == vocab);
    ledger_check(d.ledger);
    compare_events();
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct in in = { data, data + size };
    bool taken = true;

    begin(&in);
    for (uint32_t i = 0; i < n_tokens; i++) take_row(i, &in);
    while (in.p < in.end && taken) {
        static uint8_t made[RECORD_BYTES];
        uint32_t op = byte(&in), n;
        uint16_t type = (uint16_t)(REC_READY + op % 10), flags = op >= 250 ? RING_MORE : 0;
        void *record;

        n = make(&in, type, made);
        for (uint32_t k = op / 10 % 4; k > 0; k--) spoil(&in, made, n);
        if (op / 64 == 3) n = byte(&in) % 64 * 8;
        check(ring_reserve(&theirs.out, type, flags, n, 0, &record) == 0);
        memcpy(record, made, n);
        ring_publish(&theirs.out);
        taken = ref_take(type, flags, made, n);
        worker_receive(&w);
        check((w.super.suspect == DEATH_NONE) == taken && (taken || *w.info.why));
        compare();
    }
    worker_receive_rest(&w);
    ours = w.channel;
    ledger_free(d.ledger);
    sessions_free(d.sessions);
    worker_calls_free(d.calls);
    quarantine_free(d.quarantine);
    return 0;
}
