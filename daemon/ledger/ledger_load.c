/* ledger_load.c - applies the records (ledger_save.h) of a previous lagand's log to the ledger. */
#include "daemon/config/options.h"
#include "daemon/ledger/ledger_save.h"
#include "daemon/ledger/outputs.h"
#include "daemon/ledger/request.h"
#include "wire/msg.h"

/* Returns true if the counts in the saved SUBMIT s fit into its `bytes` bytes, and the fields that
 * lagand uses are in range. The worker validates the other fields. */
static bool
submit_fits(const struct rec_submit *s, uint32_t bytes)
{
    uint64_t n_eos = s->n_eos == 0xffff ? 0 : s->n_eos, n = sizeof *s;

    n += REC_PAD((uint64_t)s->n_prompt * 4);
    n += REC_PAD((uint64_t)s->n_decoder * 4);
    n += REC_PAD(s->text_bytes);
    n += REC_PAD(n_eos * 4) + REC_PAD(s->n_stop_ids * 4u) + REC_PAD(s->salt_bytes);
    return n <= bytes && s->n <= LAGAN_MAX_OUTPUTS && !s->n_done && !s->done_text &&
           s->max_tokens && s->max_tokens <= LAGAN_MAX_TOKENS && s->logprobs <= LAGAN_MAX_TOP &&
           !(s->flags & LEDGER_NOT_SAVED);
}

/* The record that is being applied to the ledger. */
struct record {
    struct ledger *ledger;
    const struct config *config;
    const char *p;
    uint32_t n; /* bytes at p: the size of the record's struct, plus its tails */
    struct err *e;
};

#define NO_MEMORY "no memory to restore a saved request"
#define INVALID(x, id, fmt, ...) \
    err_set((x)->e, -EBADMSG, "saved request %llu: " fmt, (unsigned long long)(id), ##__VA_ARGS__)

static uint32_t
model_named(const struct config *c, const char name[64])
{
    uint32_t i = 0;

    while (i < c->n_models && strncmp(c->model[i].keys.name, name, 64)) i++;
    return i;
}

static int
read_request(const struct record *x)
{
    static const struct session_id none;
    struct rec_submit *s;
    struct saved_request k;
    struct request *r, *old, *of_rid;
    uint32_t model;

    memcpy(&k, x->p, sizeof k);
    model = model_named(x->config, k.model);
    if (k.submit_bytes != x->n - sizeof k || k.n_key > sizeof k.key ||
        k.n_request_id > sizeof k.request_id || !msg_utf8(k.request_id, k.n_request_id) || !k.id ||
        k.id > INT64_MAX || !k.ack_window || k.ack_window > LAGAN_MAX_ACK_WINDOW ||
        !memcmp(&k.session, &none, sizeof none))
        return INVALID(x, k.id, "a field of its record is out of range");
    if (model == x->config->n_models)
        return INVALID(x, k.id, "its model %.64s is not in the configuration any more", k.model);
    s = malloc(k.submit_bytes);
    if (!s) return err_set(x->e, -ENOMEM, NO_MEMORY);
    memcpy(s, x->p + sizeof k, k.submit_bytes);
    if (!submit_fits(s, k.submit_bytes) ||
        ledger_restore(x->ledger, k.id, k.rid, s, k.submit_bytes, &r) < 0) {
        free(s);
        return INVALID(x, k.id, "its SUBMIT is invalid, its id is in use, or the ledger is full");
    }
    /* If a retained request has the key of r, it had expired before r was accepted with this key:
     * removes the names of the retained request. */
    old = k.n_key ? ledger_find_key(x->ledger, &k.session, k.key, k.n_key) : NULL;
    of_rid = ledger_find_rid(x->ledger, &k.session, k.rid);
    if (old && old->retained && (!of_rid || of_rid->retained)) ledger_unname(x->ledger, old);
    if (outputs_init(r) < 0 || ledger_name(x->ledger, r, &k.session, k.key, k.n_key) < 0) {
        request_move(x->ledger, r, REQUEST_ENDED);
        ledger_give(x->ledger, r);
        return INVALID(x, k.id, "another request has its rid or its idempotency key");
    }
    r->log.logged = true;
    r->terms.model = model;
    r->terms.accepted = k.accepted;
    r->terms.deadline = k.deadline;
    r->terms.disconnect_timeout = k.disconnect_timeout;
    r->delivery.ack_window = k.ack_window;
    r->terms.no_resume = k.no_resume != 0;
    r->terms.accepted_at = k.accepted_at;
    memcpy(r->terms.request_id, k.request_id, k.n_request_id);
    return 0;
}

/* Returns the request with this id if it has not ended, else NULL and the error. */
static struct request *
named(const struct record *x, uint64_t id)
{
    struct request *r = ledger_find_id(x->ledger, id);

    if (r && r->state != REQUEST_ENDED) return r;
    INVALID(x, id, "a record continues it, but it has ended or was not saved");
    return NULL;
}

/* Adds the spans at p of a record of tokens to r. -EBADMSG: the spans do not add up to the record's
 * tokens and text, or an output exceeds max_tokens. */
static int
read_spans(struct request *r, const struct saved_tokens *k, const char *p)
{
    uint32_t n_received[LAGAN_MAX_OUTPUTS];
    struct output_span one;
    uint64_t n = 0, n_text = 0;

    for (uint32_t i = 0; i < r->submit->n; i++) n_received[i] = r->outputs.each[i].n_received;
    for (uint32_t i = 0; i < k->n_spans; i++) {
        memcpy(&one, p + i * sizeof one, sizeof one);
        n += one.n;
        n_text += one.n_text;
        if (one.output >= r->submit->n || one.n > r->submit->max_tokens - n_received[one.output])
            return -EBADMSG;
        n_received[one.output] += one.n;
    }
    if (n != k->n || n_text != k->n_text) return -EBADMSG;
    for (uint32_t i = 0; i < k->n_spans; i++) {
        memcpy(&one, p + i * sizeof one, sizeof one);
        TRY(outputs_add_span(r, &one));
    }
    return 0;
}

static int
read_tokens(const struct record *x)
{
    struct saved_tokens k;
    const char *lps, *text;
    uint64_t n_lp, each, most;
    const char *p = x->p + sizeof k;
    uint32_t n = x->n - (uint32_t)sizeof k;
    struct request *r;

    memcpy(&k, x->p, sizeof k);
    r = named(x, k.id);
    if (!r) return -EBADMSG;
    most = (uint64_t)r->submit->max_tokens * r->submit->n;
    if (k.first != request_n_tokens(r) || k.n > most - k.first || (k.n_spans && !r->outputs.each) ||
        k.n_spans > n / sizeof(struct output_span) || k.lp_first < k.first ||
        k.lp_first - k.first > k.n)
        return INVALID(x, k.id, "a record has %u tokens from position %u, but the request has %u",
                       k.n, k.first, request_n_tokens(r));
    n -= k.n_spans * (uint32_t)sizeof(struct output_span);
    if (r->outputs.each && read_spans(r, &k, p + n) < 0)
        return INVALID(x, k.id, "the spans of a record do not match its tokens or max_tokens");
    each = r->submit->flags & SUBMIT_LOGPROBS ? 4 + 8 * (uint64_t)r->submit->logprobs : 0;
    n_lp = k.n - (k.lp_first - k.first);
    if (4 * (uint64_t)k.n + n_lp * each + k.n_text != n)
        return INVALID(x, k.id, "%u tokens with their text do not have %u bytes", k.n, n);
    lps = p + 4 * (size_t)k.n;
    text = p + (n - k.n_text);
    if (bytes_add(&r->outputs.token, p, 4 * (size_t)k.n) < 0 ||
        bytes_add(&r->outputs.text, text, k.n_text) < 0)
        return err_set(x->e, -ENOMEM, NO_MEMORY);
    /* The client had acknowledged the log-probabilities of the tokens before lp_first, and this
     * record does not have them. Drops those of earlier records: all are before lp_first. */
    if (each && k.lp_first > k.first) {
        r->outputs.first_logprob = k.lp_first;
        r->outputs.logprob.n = r->outputs.top.n = 0;
    }
    if (each && (bytes_add(&r->outputs.logprob, lps, 4 * n_lp) < 0 ||
                 bytes_add(&r->outputs.top, lps + 4 * n_lp, n_lp * (each - 4)) < 0))
        return err_set(x->e, -ENOMEM, NO_MEMORY);
    r->outputs.n_received += k.n;
    r->outputs.n_text_received = k.text_received;
    r->outputs.text_start_unknown = k.text_start_unknown != 0;
    r->outputs.tensor[LAGAN_TENSOR_LOGITS - 1].start_unknown = request_n_tokens(r) > 0;
    r->outputs.score = k.score == k.score ? k.score : 0;
    return 0;
}

static int
read_state(const struct record *x)
{
    struct saved_state k;
    struct request *r;

    memcpy(&k, x->p, sizeof k);
    r = named(x, k.id);
    if (!r) return -EBADMSG;
    r->dispatch.resumed = k.resumed;
    r->suspicion.n_stuck = k.n_stuck;
    r->suspicion.n_tokens_before = k.n_tokens_before;
    r->suspicion.fault_at = MIN(k.fault_at, request_n_tokens(r));
    r->suspicion.n_faults = k.n_faults > 2 ? 2 : k.n_faults;
    r->suspicion.cleared = k.cleared != 0;
    r->dispatch.home = k.home; /* not checked here: route_home() accepts any worker number */
    return 0;
}

/* Stores the result of each output: submit->n structs request_output at p. Replaces a reason
 * that is not in enum lagan_reason by `reason`, the reason of the request. */
static void
read_ends(struct request *r, const char *p, uint16_t reason)
{
    for (uint32_t i = 0; i < r->submit->n; i++) {
        struct request_output o, *to = &r->outputs.each[i];

        memcpy(&o, p + i * sizeof o, sizeof o);
        to->score = o.score == o.score ? o.score : 0;
        to->reason = msg_reason(o.reason, NULL) ? o.reason : reason;
        to->stop = o.stop;
        to->cached = o.cached;
        to->adopted = o.adopted;
        to->recomputed = o.recomputed;
        to->kv_blocks = o.kv_blocks;
    }
}

static int
read_end(const struct record *x)
{
    struct saved_end k;
    struct request *r;

    memcpy(&k, x->p, sizeof k);
    r = named(x, k.id);
    if (!r) return -EBADMSG;
    if (x->n != sizeof k + (r->outputs.each ? r->submit->n * sizeof *r->outputs.each : 0))
        return INVALID(x, k.id, "the record of its end has the wrong length, %u bytes", x->n);
    if (r->outputs.each) read_ends(r, x->p + sizeof k, k.reason);
    if (!msg_reason(k.reason, NULL)) return INVALID(x, k.id, "reason %u is unknown", k.reason);
    r->result.reason = k.reason;
    r->result.stop = k.stop;
    r->result.ended_at = k.ended;
    r->outputs.score = k.score == k.score ? k.score : 0;
    r->result.cached = k.cached;
    r->result.adopted = k.adopted;
    r->result.recomputed = k.recomputed;
    r->result.n_prompt_tokens = k.n_prompt_tokens;
    r->result.kv_blocks = k.kv_blocks;
    memcpy(r->result.message, k.message, sizeof r->result.message);
    r->result.message[sizeof r->result.message - 1] = 0;
    if (!msg_utf8(r->result.message, strlen(r->result.message))) r->result.message[0] = 0;
    request_move(x->ledger, r, REQUEST_ENDED);
    ledger_give(x->ledger, r);
    return 0;
}

static int
read_dropped(const struct record *x)
{
    struct saved_unname k;
    struct request *r;

    memcpy(&k, x->p, sizeof k);
    r = ledger_find_id(x->ledger, k.id);
    if (!r) return INVALID(x, k.id, "a record removes its names, but the request was not saved");
    if (r->retained) {
        ledger_unname(x->ledger, r);
        return 0;
    }
    request_move(x->ledger, r, REQUEST_ENDED);
    ledger_unname(x->ledger, r);
    ledger_give(x->ledger, r);
    return 0;
}

static int
read_rid(const struct record *x)
{
    struct saved_rid k;
    struct request *r;

    memcpy(&k, x->p, sizeof k);
    r = ledger_find_id(x->ledger, k.id);
    if (!r || !r->named || ledger_renumber(x->ledger, r, k.rid) < 0)
        return INVALID(x, k.id, "its new rid is in use, or the request was not saved");
    return 0;
}

static int
read_ids(const struct record *x)
{
    struct saved_ids k;

    memcpy(&k, x->p, sizeof k);
    if (k.last > INT64_MAX)
        return err_set(x->e, -EBADMSG, "the highest request id, %llu, is above 2^63 - 1",
                       (unsigned long long)k.last);
    ledger_skip_ids(x->ledger, k.last);
    return 0;
}

int
ledger_load_record(struct ledger *l, const struct config *c, uint16_t type, const void *data,
                   uint32_t n, struct err *e)
{
    static const struct {
        int (*read)(const struct record *x);
        uint32_t bytes;
        bool has_tails;
        const char *what;
    } types[] = {
        [SAVED_REQUEST] = { read_request, sizeof(struct saved_request) + sizeof(struct rec_submit),
                            true, "REQUEST" },
        [SAVED_TOKENS] = { read_tokens, sizeof(struct saved_tokens), true, "TOKENS" },
        [SAVED_STATE] = { read_state, sizeof(struct saved_state), false, "STATE" },
        [SAVED_END] = { read_end, sizeof(struct saved_end), true, "END" },
        [SAVED_UNNAME] = { read_dropped, sizeof(struct saved_unname), false, "UNNAME" },
        [SAVED_RID] = { read_rid, sizeof(struct saved_rid), false, "RID" },
        [SAVED_IDS] = { read_ids, sizeof(struct saved_ids), false, "IDS" },
    };

    if (type >= ARRAY_LEN(types) || !types[type].read)
        return err_set(e, -EBADMSG, "a record has the unknown type %u", type);
    if (n < types[type].bytes || (n > types[type].bytes && !types[type].has_tails))
        return err_set(e, -EBADMSG, "a record of type %s has %u bytes, expected %zu%s",
                       types[type].what, n, (size_t)types[type].bytes,
                       types[type].has_tails ? " or more" : "");
    return types[type].read(&(struct record){ l, c, data, n, e });
}
