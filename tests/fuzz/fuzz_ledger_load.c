/* fuzz_ledger_load.c - records of the ledger log against a reference: accepted or dropped, and the
 * state of the request afterwards.
 *
 * Input is a list of records in a short form: a type, a few numbers for ids, names and lengths, and
 * bytes to corrupt. The reference is written from ledger_save.h and ledger.h alone. Accepted
 * records are used as lagand would use them, so that a wrong count reads out of bounds.
 */
#include "tests/fuzz/fuzz.h"

#include "daemon/config/options.h"
#include "daemon/ledger/ledger_save.h"
#include "daemon/ledger/outputs.h"
#include "daemon/ledger/quarantine.h"
#include "daemon/ledger/request.h"

enum { MAX_ROWS = 300, RECORD_BYTES = 8192 };

/* ---- the ref: rows as plain lists */

struct ref_row {
    bool there, open, lp;
    uint64_t id, rid;
    struct session_id session;
    uint32_t n_key, n, most, tops, n_text;
    char key[LAGAN_MAX_KEY];
    uint32_t n_out; /* outputs */
    uint64_t n_received[64];
    int32_t token[RECORD_BYTES / 4];
};
static struct ref_row rows[MAX_ROWS];
static uint32_t n_tokens;

static struct ref_row *
ref_id(uint64_t id)
{
    for (uint32_t i = 0; i < n_tokens; i++) {
        if (rows[i].there && rows[i].id == id) return &rows[i];
    }
    return NULL;
}

static uint64_t
eights(uint64_t n)
{
    while (n % 8) n++;
    return n;
}

static bool
ref_take_row(const struct saved_request *k, const uint8_t *p, uint32_t n)
{
    static const struct session_id nobody;
    struct ref_row *t = &rows[n_tokens], *old = NULL, *had_key = NULL;
    struct rec_submit s;
    uint64_t need;

    if (n < sizeof *k + sizeof s || n_tokens == MAX_ROWS) return false;
    if (k->submit_bytes != n - sizeof *k || k->n_key > 64) return false;
    if (k->id == 0 || k->id > INT64_MAX || k->ack_window == 0 ||
        k->ack_window > LAGAN_MAX_ACK_WINDOW)
        return false;
    if (strncmp(k->model, "mine", 64)) return false;
    if (!memcmp(&k->session, &nobody, sizeof nobody)) return false;
    memcpy(&s, p + sizeof *k, sizeof s);
    need = sizeof s + eights(4 * (uint64_t)s.n_prompt) + eights(4 * (uint64_t)s.n_decoder) +
           eights(s.text_bytes) + eights(4 * (uint64_t)(s.n_eos == 0xffff ? 0 : s.n_eos)) +
           eights(4 * (uint64_t)s.n_stop_ids) + eights(s.salt_bytes);
    if (need > k->submit_bytes || s.n_done || s.done_text || !s.max_tokens ||
        s.max_tokens > LAGAN_MAX_TOKENS || s.logprobs > LAGAN_MAX_TOP ||
        (s.flags & LEDGER_NOT_SAVED) || s.n > 64 || ref_id(k->id))
        return false;
    for (uint32_t i = 0; i < n_tokens; i++) {
        struct ref_row *o = &rows[i];

        if (!o->there || memcmp(&o->session, &k->session, sizeof nobody)) continue;
        if (k->n_key && o->n_key == k->n_key && !memcmp(o->key, k->key, k->n_key)) {
            if (o->open) return false;
            had_key = o;
        }
        if (o->rid == k->rid && o->open) return false;
        if (o->rid == k->rid) old = o;
    }
    if (old) old->there = false;
    if (had_key) had_key->there = false;
    *t = (struct ref_row){ .there = true,
                           .open = true,
                           .lp = s.flags & SUBMIT_LOGPROBS,
                           .id = k->id,
                           .rid = k->rid,
                           .session = k->session,
                           .n_key = k->n_key,
                           .most = s.max_tokens,
                           .n_out = s.n ? s.n : 1,
                           .tops = s.logprobs };
    memcpy(t->key, k->key, k->n_key);
    n_tokens++;
    return true;
}

/* Every token and every byte of text is an output's. */
static bool
ref_spans(struct ref_row *t, const struct saved_tokens *k, const uint8_t *p)
{
    uint64_t n_new[64] = { 0 }, n = 0, n_text = 0;

    for (uint32_t i = 0; i < k->n_spans; i++) {
        struct output_span one;

        memcpy(&one, p + i * sizeof one, sizeof one);
        if (one.output >= t->n_out) return false;
        n_new[one.output] += one.n;
        n += one.n;
        n_text += one.n_text;
        if (t->n_received[one.output] + n_new[one.output] > t->most) return false;
    }
    if (n != k->n || n_text != k->n_text) return false;
    for (uint32_t i = 0; i < t->n_out; i++) t->n_received[i] += n_new[i];
    return true;
}

static bool
ref_take_tokens(const struct saved_tokens *k, const uint8_t *p, uint32_t n)
{
    struct ref_row *t = ref_id(k->id);
    uint64_t bytes = sizeof *k + 4 * (uint64_t)k->n + k->n_text, lps;

    if (n < sizeof *k || !t || !t->open || k->first != t->n) return false;
    if (k->first + (uint64_t)k->n > (uint64_t)t->most * t->n_out) return false;
    if (k->n_spans && t->n_out == 1) return false;
    bytes += (uint64_t)k->n_spans * sizeof(struct output_span);
    if (k->lp_first < k->first || k->lp_first > (uint64_t)k->first + k->n) return false;
    lps = (uint64_t)k->first + k->n - k->lp_first;
    if (t->lp) bytes += lps * (4 + 8 * (uint64_t)t->tops);
    if (bytes != n ||
        (t->n_out > 1 && !ref_spans(t, k, p + n - k->n_spans * sizeof(struct output_span))))
        return false;
    memcpy(t->token + t->n, p + sizeof *k, 4 * (size_t)k->n);
    t->n += k->n;
    t->n_text += k->n_text;
    return true;
}

static bool
ref_take_rid(struct ref_row *t, uint64_t rid)
{
    struct ref_row *old = NULL;

    for (uint32_t i = 0; i < n_tokens; i++) {
        struct ref_row *o = &rows[i];

        if (!o->there || o == t || o->rid != rid) continue;
        if (memcmp(&o->session, &t->session, sizeof t->session)) continue;
        if (o->open) return false;
        old = o;
    }
    if (old) old->there = false;
    t->rid = rid;
    return true;
}

static bool
ref_take(uint16_t type, const uint8_t *p, uint32_t n)
{
    struct saved_request row = { 0 };
    struct saved_tokens tokens = { 0 };
    struct saved_end end = { 0 };
    struct ref_row *t;
    uint64_t id = 0;

    if (n >= 8) memcpy(&id, p, 8);
    t = ref_id(id);
    switch (type) {
    case SAVED_REQUEST:
        memcpy(&row, p, n < sizeof row ? n : sizeof row);
        return ref_take_row(&row, p, n);
    case SAVED_TOKENS:
        memcpy(&tokens, p, n < sizeof tokens ? n : sizeof tokens);
        return ref_take_tokens(&tokens, p, n);
    case SAVED_STATE:
        return n == sizeof(struct saved_state) && t && t->open;
    case SAVED_END:
        if (!t || !t->open) return false;
        if (n != sizeof end + (t->n_out > 1 ? t->n_out * sizeof(struct request_output) : 0))
            return false;
        memcpy(&end, p, sizeof end);
        if (!((end.reason >= 1 && end.reason <= 5) ||
              (end.reason >= 32 && end.reason <= LAGAN_E_CONFIGURATION)))
            return false;
        t->open = false;
        return true;
    case SAVED_IDS:
        return n == 8 && id <= INT64_MAX;
    case SAVED_UNNAME:
        if (n != 8 || !t) return false;
        t->there = false;
        return true;
    case SAVED_RID:
        if (n == 16) memcpy(&id, p + 8, 8);
        return n == 16 && t && ref_take_rid(t, id);
    default:
        return false;
    }
}

/* ---- records in a short form */

static uint32_t
make_row(struct in *in, uint8_t *p)
{
    struct saved_request k = { .ack_window = 4, .model = "mine" };
    struct rec_submit s = { .n_eos = 0xffff };
    uint32_t tail = byte(in) % 128;

    k.id = byte(in) % 32;
    k.rid = byte(in) % 8;
    s.max_tokens = byte(in);
    s.n = byte(in) % 4 ? 0 : byte(in) % 6;
    k.session.b[0] = (uint8_t)(byte(in) % 4);
    k.n_key = (uint8_t)(byte(in) % 4);
    memset(k.key, (int)(byte(in) % 3), k.n_key);
    if (k.n_key == 3) k.n_key += LAGAN_MAX_KEY;
    s.n_prompt = byte(in) % 16;
    s.n_decoder = byte(in) % 8;
    s.text_bytes = byte(in) % 32;
    s.n_stop_ids = (uint16_t)(byte(in) % 8);
    s.flags = (uint8_t)(byte(in) & SUBMIT_LOGPROBS);
    s.logprobs = byte(in) % 3;
    k.submit_bytes = (uint32_t)sizeof s + tail;
    memcpy(p, &k, sizeof k);
    memcpy(p + sizeof k, &s, sizeof s);
    return (uint32_t)(sizeof k + sizeof s) + tail;
}

static uint32_t
make_tokens(struct in *in, uint8_t *p)
{
    struct saved_tokens k = { .id = byte(in) % 32 };
    const struct ref_row *t = ref_id(k.id);
    uint32_t at, acked = byte(in) % 8, each = t && t->lp ? 4 + 8 * t->tops : 0;

    k.n = byte(in) % 16;
    k.n_text = byte(in) % 32;
    k.first = (t ? t->n : 0) + (acked == 4);
    k.lp_first = acked == 3 ? k.first - 1 : k.first + MIN(acked % 4, k.n);
    k.text_received = k.n_text;
    if (t && t->n_out > 1) k.n_spans = byte(in) % 4;
    memcpy(p, &k, sizeof k);
    for (uint32_t i = 0; i < 4 * k.n; i++) p[sizeof k + i] = (uint8_t)(i * 7 + k.first);
    at = (uint32_t)sizeof k + 4 * k.n + (k.first + k.n - k.lp_first) * each + k.n_text;
    for (uint32_t i = 0; i < k.n_spans; i++, at += (uint32_t)sizeof(struct output_span)) {
        bool last = i + 1 == k.n_spans;
        struct output_span one = { .output = byte(in) % (t->n_out + (byte(in) % 16 == 0)),
                                   .n = last ? k.n : k.n / 2,
                                   .n_text = last ? k.n_text : 0 };

        k.n -= one.n;
        memcpy(p + at, &one, sizeof one);
    }
    return at;
}

static uint32_t
make(struct in *in, uint16_t type, uint8_t *p)
{
    struct saved_end end = { 0 };
    struct saved_state state = { 0 };
    uint64_t id;

    memset(p, 0, RECORD_BYTES);
    if (type == SAVED_REQUEST) return make_row(in, p);
    if (type == SAVED_TOKENS) return make_tokens(in, p);
    id = byte(in) % 32;
    end.id = state.id = id;
    if (type == SAVED_STATE) {
        state.n_faults = (uint8_t)byte(in);
        state.fault_at = byte(in);
        memcpy(p, &state, sizeof state);
        return sizeof state;
    }
    if (type == SAVED_END) {
        const struct ref_row *t = ref_id(id);

        end.reason = (uint16_t)(byte(in) % 64);
        memcpy(p, &end, sizeof end);
        return (uint32_t)(sizeof end +
                          (t && t->n_out > 1 ? t->n_out * sizeof(struct request_output) : 0));
    }
    memcpy(p, &id, sizeof id);
    if (type != SAVED_RID) return sizeof id;
    id = byte(in) % 8;
    memcpy(p + 8, &id, sizeof id);
    return 16;
}

/* What lagand does with a queued request: the whole record for a worker, its place among poisoned
 * requests. */
static void
use(struct ledger *l)
{
    static struct quarantine poisons;

    for (uint32_t i = 0; i < ledger_counts(l).capacity; i++) {
        struct request *r = ledger_request(l, i);
        const struct ref_row *t = r ? ref_id(r->id) : NULL;
        uint32_t n;
        char *whole;

        if (!r) continue;
        check(t && t->open == !r->retained && t->n == request_n_tokens(r) &&
              t->n_text == r->outputs.text.n);
        check(!t->n || !memcmp(r->outputs.token.p, t->token, 4 * (size_t)t->n));
        check(r->suspicion.n_faults <= 2 && r->suspicion.fault_at <= t->n &&
              r->outputs.first_logprob <= t->n);
        check(!t->lp || r->outputs.logprob.n == 4 * (size_t)(t->n - r->outputs.first_logprob));
        check(!t->lp ||
              r->outputs.top.n == 8 * (size_t)t->tops * (t->n - r->outputs.first_logprob));
        n = request_record_bytes(r);
        whole = malloc(n);
        check(whole);
        request_record(r, 0, whole, n);
        free(whole);
        quarantine_poison(&poisons, r->terms.model, r->submit, 0);
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct config config;
    struct in in = { data, data + size };
    struct ledger *l = ledger_new(2 * MAX_ROWS, 1);

    config.n_models = 1;
    memcpy(config.model[0].keys.name, "mine", 5);
    n_tokens = 0;
    check(l);
    while (in.p < in.end && n_tokens < MAX_ROWS) {
        uint32_t op = byte(&in), n;
        uint16_t type = (uint16_t)(op % 8);
        uint8_t made[RECORD_BYTES], *record;
        struct err e = { .text = "" };
        bool taken;

        n = make(&in, type, made);
        for (uint32_t k = op >> 6; k; k--) { /* spoil some of it */
            uint32_t at = byte(&in);

            made[(at + 256 * (byte(&in) % 4)) % RECORD_BYTES] ^= (uint8_t)byte(&in);
        }
        if (op & 32) n -= MIN(n, 2 * byte(&in));
        record = malloc(n ? n : 1); /* so that a read beyond it is seen */
        check(record);
        memcpy(record, made, n);
        taken = ref_take(type, record, n);
        check((ledger_load_record(l, &config, type, record, n, &e) == 0) == taken);
        check(taken || *e.text);
        free(record);
        ledger_check(l);
    }
    use(l);
    ledger_free(l);
    return 0;
}
