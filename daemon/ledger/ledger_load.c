/* ledger_load.c - see ledger_load.h.
 *
 * A process that crashed wrote the log, so every field may have any value. An invalid record is
 * dropped; the others are used.
 */
#include "daemon/ledger/ledger_load.h"

#include "daemon/config/options.h"
#include "daemon/ledger/ledger_save.h"
#include "daemon/ledger/outputs.h"
#include "daemon/ledger/request.h"
#include "wire/msg.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Checks that the counts that lagand uses fit into the record; the worker checks the rest. */
static bool
submit_fits(const struct rec_submit *s, uint32_t bytes)
{
    uint64_t n_eos = s->n_eos == 0xffff ? 0 : s->n_eos, n = sizeof *s;

    n += ROUND_UP((uint64_t)s->n_prompt * 4, (uint64_t)8);
    n += ROUND_UP((uint64_t)s->n_decoder * 4, (uint64_t)8);
    n += ROUND_UP((uint64_t)s->text_bytes, (uint64_t)8);
    n += ROUND_UP(n_eos * 4, (uint64_t)8) + ROUND_UP((uint64_t)s->n_stop_ids * 4, (uint64_t)8);
    return n <= bytes && s->n <= LAGAN_MAX_OUTPUTS && !s->n_done && !s->done_text &&
           s->max_tokens && s->max_tokens <= LAGAN_MAX_TOKENS && s->logprobs <= LAGAN_MAX_TOP &&
           !(s->flags & LEDGER_NOT_SAVED);
}

static uint32_t
model_named(const struct config *c, const char name[64])
{
    uint32_t i = 0;

    while (i < c->n_models && strncmp(c->model[i].keys.name, name, 64)) i++;
    return i;
}

static int
read_request(struct ledger *l, const struct config *c, const char *p, uint32_t n, struct err *e)
{
    static const struct session_id none;
    struct rec_submit *s;
    struct saved_request k;
    struct request *r, *old, *of_rid;
    uint32_t model;

    if (n < sizeof k + sizeof *s) return err_set(e, -EBADMSG, "a request of %u bytes", n);
    memcpy(&k, p, sizeof k);
    model = model_named(c, k.model);
    if (k.submit_bytes != n - sizeof k || k.n_key > sizeof k.key || !k.id || k.id > INT64_MAX ||
        !k.ack_window || k.ack_window > LAGAN_MAX_ACK_WINDOW ||
        !memcmp(&k.session, &none, sizeof none))
        return err_set(e, -EBADMSG, "request %llu: a field is out of range",
                       (unsigned long long)k.id);
    if (model == c->n_models)
        return err_set(e, -EBADMSG, "request %llu: its model is not served any more",
                       (unsigned long long)k.id);
    s = malloc(k.submit_bytes);
    if (!s) return err_set(e, -ENOMEM, "no memory for the ledger");
    memcpy(s, p + sizeof k, k.submit_bytes);
    if (!submit_fits(s, k.submit_bytes) ||
        ledger_restore(l, k.id, k.rid, s, k.submit_bytes, &r) < 0) {
        free(s);
        return err_set(e, -EBADMSG, "request %llu: its SUBMIT is incomplete",
                       (unsigned long long)k.id);
    }
    /* A retained request that had expired when this one got its key. */
    old = k.n_key ? ledger_find_key(l, &k.session, k.key, k.n_key) : NULL;
    of_rid = ledger_find_rid(l, &k.session, k.rid);
    if (old && old->retained && (!of_rid || of_rid->retained)) ledger_unname(l, old);
    if (outputs_init(r) < 0 || ledger_name(l, r, &k.session, k.key, k.n_key) < 0) {
        request_move(l, r, REQUEST_ENDED);
        ledger_give(l, r);
        return err_set(e, -EBADMSG, "request %llu: its name belongs to another request",
                       (unsigned long long)k.id);
    }
    r->log.logged = true;
    r->terms.model = model;
    r->terms.accepted = k.accepted;
    r->terms.deadline = k.deadline;
    r->terms.disconnect_timeout = k.disconnect_timeout;
    r->delivery.ack_window = k.ack_window;
    r->terms.no_resume = k.no_resume != 0;
    return 0;
}

/* The open request of a record. */
static struct request *
named(struct ledger *l, uint64_t id, struct err *e)
{
    struct request *r = ledger_find_id(l, id);

    if (r && r->state != REQUEST_ENDED) return r;
    err_set(e, -EBADMSG, "there is no open request %llu", (unsigned long long)id);
    return NULL;
}

/* Checks the outputs of a record's tokens: the sums match, and no output exceeds its limit. */
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
read_tokens(struct ledger *l, const char *p, uint32_t n, struct err *e)
{
    struct saved_tokens k;
    const char *lps, *tops, *text;
    uint64_t n_lp, each, most;
    struct request *r;

    if (n < sizeof k) return err_set(e, -EBADMSG, "tokens of %u bytes", n);
    memcpy(&k, p, sizeof k);
    p += sizeof k;
    n -= (uint32_t)sizeof k;
    r = named(l, k.id, e);
    if (!r) return -EBADMSG;
    most = (uint64_t)r->submit->max_tokens * r->submit->n;
    if (k.first != outputs_n_tokens(r) || k.n > most - k.first || (k.n_spans && !r->outputs.each) ||
        k.n_spans > n / sizeof(struct output_span) || k.lp_first < k.first ||
        k.lp_first - k.first > k.n)
        return err_set(e, -EBADMSG, "request %llu: %u tokens at position %u",
                       (unsigned long long)k.id, k.n, k.first);
    n -= k.n_spans * (uint32_t)sizeof(struct output_span);
    if (r->outputs.each && read_spans(r, &k, p + n) < 0)
        return err_set(e, -EBADMSG, "request %llu: its tokens do not match its outputs",
                       (unsigned long long)k.id);
    each = r->submit->flags & SUBMIT_LOGPROBS ? 4 + 8 * (uint64_t)r->submit->logprobs : 0;
    n_lp = k.n - (k.lp_first - k.first);
    if (4 * (uint64_t)k.n + n_lp * each + k.n_text != n)
        return err_set(e, -EBADMSG, "request %llu: its tokens are %u bytes",
                       (unsigned long long)k.id, n);
    lps = p + 4 * (size_t)k.n;
    tops = each ? lps + 4 * n_lp : lps;
    text = p + (n - k.n_text);
    if (bytes_add(&r->outputs.token, p, 4 * (size_t)k.n) < 0 ||
        bytes_add(&r->outputs.text, text, k.n_text) < 0)
        return err_set(e, -ENOMEM, "no memory for the ledger");
    if (each && n_lp) {
        /* Acknowledged log-probabilities were not saved, nor those before them. */
        if (k.lp_first > k.first) {
            r->outputs.first_logprob = k.lp_first;
            r->outputs.logprob.n = r->outputs.top.n = 0;
        }
        if (bytes_add(&r->outputs.logprob, lps, 4 * n_lp) < 0 ||
            bytes_add(&r->outputs.top, tops, n_lp * (each - 4)) < 0)
            return err_set(e, -ENOMEM, "no memory for the ledger");
    } else if (each && k.n) {
        r->outputs.first_logprob = k.first + k.n;
        r->outputs.logprob.n = r->outputs.top.n = 0;
    }
    r->outputs.n_received += k.n;
    r->outputs.n_text_received = k.text_received;
    r->outputs.text_start_unknown = k.text_start_unknown != 0;
    r->outputs.tensor[LAGAN_TENSOR_LOGITS - 1].start_unknown = outputs_n_tokens(r) > 0;
    r->outputs.score = k.score == k.score ? k.score : 0;
    return 0;
}

static int
read_state(struct ledger *l, const char *p, uint32_t n, struct err *e)
{
    struct saved_state k;
    struct request *r;

    if (n != sizeof k) return err_set(e, -EBADMSG, "a state of %u bytes", n);
    memcpy(&k, p, sizeof k);
    r = named(l, k.id, e);
    if (!r) return -EBADMSG;
    r->dispatch.resumed = k.resumed;
    r->suspicion.n_stuck = k.n_stuck;
    r->suspicion.n_tokens_before = k.n_tokens_before;
    r->suspicion.fault_at = MIN(k.fault_at, outputs_n_tokens(r));
    r->suspicion.n_faults = k.n_faults > 2 ? 2 : k.n_faults;
    r->suspicion.cleared = k.cleared != 0;
    r->dispatch.home = k.home; /* route_home() checks the number */
    return 0;
}

/* Reads how each output ended, with checks. */
static void
read_ends(struct request *r, const char *p, uint16_t reason)
{
    for (uint32_t i = 0; i < r->submit->n; i++) {
        struct request_output o, *to = &r->outputs.each[i];

        memcpy(&o, p + i * sizeof o, sizeof o);
        to->score = o.score == o.score ? o.score : 0;
        to->reason = msg_reason(o.reason, NULL) ? o.reason : reason;
        to->cached = o.cached;
        to->adopted = o.adopted;
        to->recomputed = o.recomputed;
    }
}

static int
read_end(struct ledger *l, const char *p, uint32_t n, struct err *e)
{
    struct saved_end k;
    struct request *r;

    if (n < sizeof k) return err_set(e, -EBADMSG, "an end of %u bytes", n);
    memcpy(&k, p, sizeof k);
    r = named(l, k.id, e);
    if (!r) return -EBADMSG;
    if (n != sizeof k + (r->outputs.each ? r->submit->n * sizeof *r->outputs.each : 0))
        return err_set(e, -EBADMSG, "an end of %u bytes", n);
    if (r->outputs.each) read_ends(r, p + sizeof k, k.reason);
    if (!msg_reason(k.reason, NULL))
        return err_set(e, -EBADMSG, "request %llu: reason %u is unknown", (unsigned long long)k.id,
                       k.reason);
    r->result.reason = k.reason;
    r->result.ended_at = k.ended;
    r->outputs.score = k.score == k.score ? k.score : 0;
    r->result.cached = k.cached;
    r->result.adopted = k.adopted;
    r->result.recomputed = k.recomputed;
    r->result.n_prompt_tokens = k.n_prompt_tokens;
    memcpy(r->result.message, k.message, sizeof r->result.message);
    r->result.message[sizeof r->result.message - 1] = 0;
    if (!msg_utf8(r->result.message, strlen(r->result.message))) r->result.message[0] = 0;
    request_move(l, r, REQUEST_ENDED);
    ledger_give(l, r);
    return 0;
}

static int
read_dropped(struct ledger *l, const char *p, uint32_t n, struct err *e)
{
    struct saved_unname k;
    struct request *r;

    if (n != sizeof k) return err_set(e, -EBADMSG, "a name of %u bytes", n);
    memcpy(&k, p, sizeof k);
    r = ledger_find_id(l, k.id);
    if (!r) return err_set(e, -EBADMSG, "there is no request %llu", (unsigned long long)k.id);
    if (r->retained) {
        ledger_unname(l, r);
        return 0;
    }
    request_move(l, r, REQUEST_ENDED);
    ledger_unname(l, r);
    ledger_give(l, r);
    return 0;
}

static int
read_rid(struct ledger *l, const char *p, uint32_t n, struct err *e)
{
    struct saved_rid k;
    struct request *r;

    if (n != sizeof k) return err_set(e, -EBADMSG, "a number of %u bytes", n);
    memcpy(&k, p, sizeof k);
    r = ledger_find_id(l, k.id);
    if (!r || !r->named || ledger_renumber(l, r, k.rid) < 0)
        return err_set(e, -EBADMSG, "request %llu: its new rid belongs to another request",
                       (unsigned long long)k.id);
    return 0;
}

static int
read_ids(struct ledger *l, const char *p, uint32_t n, struct err *e)
{
    struct saved_ids k;

    if (n != sizeof k) return err_set(e, -EBADMSG, "ids of %u bytes", n);
    memcpy(&k, p, sizeof k);
    if (k.last > INT64_MAX) return err_set(e, -EBADMSG, "ids are used up");
    ledger_skip_ids(l, k.last);
    return 0;
}

int
ledger_load_record(struct ledger *l, const struct config *c, uint16_t type, const void *data,
                   uint32_t n, struct err *e)
{
    switch (type) {
    case SAVED_REQUEST:
        return read_request(l, c, data, n, e);
    case SAVED_TOKENS:
        return read_tokens(l, data, n, e);
    case SAVED_STATE:
        return read_state(l, data, n, e);
    case SAVED_END:
        return read_end(l, data, n, e);
    case SAVED_UNNAME:
        return read_dropped(l, data, n, e);
    case SAVED_RID:
        return read_rid(l, data, n, e);
    case SAVED_IDS:
        return read_ids(l, data, n, e);
    default:
        return err_set(e, -EBADMSG, "a record of type %u", type);
    }
}
