/* recall_read.c - records of the mirror into the ledger; see recall.h.
 *
 * Every field may be anything: it was written by a process that has crashed. What is not possible is
 * dropped, one record at a time.
 */
#include "daemon/recall.h"

#include "daemon/pieces.h"
#include "wire/msg.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Do the counts that lagand uses lie inside? The rest of it is the worker's to judge. */
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
           !(s->flags & RECALL_LOST);
}

static uint32_t
model_named(const struct config *c, const char name[64])
{
    uint32_t i = 0;

    while (i < c->n_models && strncmp(c->model[i].keys.name, name, 64)) i++;
    return i;
}

static int
read_row(struct ledger *l, const struct config *c, const char *p, uint32_t n, struct err *e)
{
    static const struct session_id nobody;
    struct rec_submit *s;
    struct kept_row k;
    struct row *r, *old, *same;
    uint32_t model;

    if (n < sizeof k + sizeof *s) return err_set(e, -EBADMSG, "a row of %u bytes", n);
    memcpy(&k, p, sizeof k);
    model = model_named(c, k.model);
    if (k.submit_bytes != n - sizeof k || k.n_key > sizeof k.key || !k.id || k.id > INT64_MAX ||
        !k.ack_window || k.ack_window > LAGAN_MAX_ACK_WINDOW ||
        !memcmp(&k.session, &nobody, sizeof nobody))
        return err_set(e, -EBADMSG, "row %llu: a field is not possible", (unsigned long long)k.id);
    if (model == c->n_models)
        return err_set(e, -EBADMSG, "row %llu: its model is not served any more",
                       (unsigned long long)k.id);
    s = malloc(k.submit_bytes);
    if (!s) return err_set(e, -ENOMEM, "no memory for the ledger");
    memcpy(s, p + sizeof k, k.submit_bytes);
    if (!submit_fits(s, k.submit_bytes) ||
        ledger_recall(l, k.id, k.rid, s, k.submit_bytes, &r) < 0) {
        free(s);
        return err_set(e, -EBADMSG, "row %llu: its request is not whole", (unsigned long long)k.id);
    }
    /* One that was no longer kept when this one got its key. */
    old = k.n_key ? ledger_find_key(l, &k.session, k.key, k.n_key) : NULL;
    same = ledger_find_rid(l, &k.session, k.rid);
    if (old && old->kept && (!same || same->kept)) ledger_unname(l, old);
    if (pieces_begin(r) < 0 || ledger_name(l, r, &k.session, k.key, k.n_key) < 0) {
        row_move(l, r, ROW_ENDED);
        ledger_give(l, r);
        return err_set(e, -EBADMSG, "row %llu: its name is another's", (unsigned long long)k.id);
    }
    r->noted = true;
    r->model = model;
    r->accepted = k.accepted;
    r->deadline = k.deadline;
    r->patience = k.patience;
    r->ack_window = k.ack_window;
    r->no_resume = k.no_resume != 0;
    return 0;
}

/* The open row that a record speaks of. */
static struct row *
named(struct ledger *l, uint64_t id, struct err *e)
{
    struct row *r = ledger_find_id(l, id);

    if (r && r->state != ROW_ENDED) return r;
    err_set(e, -EBADMSG, "there is no open row %llu", (unsigned long long)id);
    return NULL;
}

/* Whose a record's tokens are: all of them, and each output's no more than it may have. */
static int
read_pieces(struct row *r, const struct kept_tokens *k, const char *p)
{
    uint32_t said[LAGAN_MAX_OUTPUTS];
    struct row_piece one;
    uint64_t n = 0, n_text = 0;

    for (uint32_t i = 0; i < r->submit->n; i++) said[i] = r->out[i].n_said;
    for (uint32_t i = 0; i < k->n_pieces; i++) {
        memcpy(&one, p + i * sizeof one, sizeof one);
        n += one.n;
        n_text += one.n_text;
        if (one.output >= r->submit->n || one.n > r->submit->max_tokens - said[one.output])
            return -EBADMSG;
        said[one.output] += one.n;
    }
    if (n != k->n || n_text != k->n_text) return -EBADMSG;
    for (uint32_t i = 0; i < k->n_pieces; i++) {
        memcpy(&one, p + i * sizeof one, sizeof one);
        TRY(pieces_add(r, &one));
    }
    return 0;
}

static int
read_tokens(struct ledger *l, const char *p, uint32_t n, struct err *e)
{
    struct kept_tokens k;
    const char *lps, *tops, *text;
    uint64_t n_lp, each, most;
    struct row *r;

    if (n < sizeof k) return err_set(e, -EBADMSG, "tokens of %u bytes", n);
    memcpy(&k, p, sizeof k);
    p += sizeof k;
    n -= (uint32_t)sizeof k;
    r = named(l, k.id, e);
    if (!r) return -EBADMSG;
    most = (uint64_t)r->submit->max_tokens * r->submit->n;
    if (k.first != row_n_tokens(r) || k.n > most - k.first || (k.n_pieces && !r->out) ||
        k.n_pieces > n / sizeof(struct row_piece) || k.lp_first < k.first ||
        k.lp_first - k.first > k.n)
        return err_set(e, -EBADMSG, "row %llu: %u tokens after %u", (unsigned long long)k.id, k.n,
                       k.first);
    n -= k.n_pieces * (uint32_t)sizeof(struct row_piece);
    if (r->out && read_pieces(r, &k, p + n) < 0)
        return err_set(e, -EBADMSG, "row %llu: whose its tokens are is not said",
                       (unsigned long long)k.id);
    each = r->submit->flags & SUBMIT_LOGPROBS ? 4 + 8 * (uint64_t)r->submit->logprobs : 0;
    n_lp = k.n - (k.lp_first - k.first);
    if (4 * (uint64_t)k.n + n_lp * each + k.n_text != n)
        return err_set(e, -EBADMSG, "row %llu: tokens are %u bytes", (unsigned long long)k.id, n);
    lps = p + 4 * (size_t)k.n;
    tops = each ? lps + 4 * n_lp : lps;
    text = p + (n - k.n_text);
    if (bytes_add(&r->token, p, 4 * (size_t)k.n) < 0 || bytes_add(&r->text, text, k.n_text) < 0)
        return err_set(e, -ENOMEM, "no memory for the ledger");
    if (each && n_lp) {
        /* What was acked is not there: nothing before it either. */
        if (k.lp_first > k.first) {
            r->lp_first = k.lp_first;
            r->logprob.n = r->top.n = 0;
        }
        if (bytes_add(&r->logprob, lps, 4 * n_lp) < 0 ||
            bytes_add(&r->top, tops, n_lp * (each - 4)) < 0)
            return err_set(e, -ENOMEM, "no memory for the ledger");
    } else if (each && k.n) {
        r->lp_first = k.first + k.n;
        r->logprob.n = r->top.n = 0;
    }
    r->n_said += k.n;
    r->n_text_said = k.text_said;
    r->text_unknown = k.text_unknown != 0;
    r->tensor[LAGAN_TENSOR_LOGITS - 1].unknown = row_n_tokens(r) > 0;
    r->score = k.score == k.score ? k.score : 0;
    return 0;
}

static int
read_state(struct ledger *l, const char *p, uint32_t n, struct err *e)
{
    struct kept_state k;
    struct row *r;

    if (n != sizeof k) return err_set(e, -EBADMSG, "a state of %u bytes", n);
    memcpy(&k, p, sizeof k);
    r = named(l, k.id, e);
    if (!r) return -EBADMSG;
    r->resumed = k.resumed;
    r->n_vain = k.n_vain;
    r->n_before = k.n_before;
    r->blamed_at = MIN(k.blamed_at, row_n_tokens(r));
    r->n_blames = k.n_blames > 2 ? 2 : k.n_blames;
    r->acquitted = k.acquitted != 0;
    r->home = k.home; /* any number: route_home() looks */
    return 0;
}

/* How each output ended, where that can be. */
static void
read_ends(struct row *r, const char *p, uint16_t reason)
{
    for (uint32_t i = 0; i < r->submit->n; i++) {
        struct row_output o, *to = &r->out[i];

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
    struct kept_end k;
    struct row *r;

    if (n < sizeof k) return err_set(e, -EBADMSG, "an end of %u bytes", n);
    memcpy(&k, p, sizeof k);
    r = named(l, k.id, e);
    if (!r) return -EBADMSG;
    if (n != sizeof k + (r->out ? r->submit->n * sizeof *r->out : 0))
        return err_set(e, -EBADMSG, "an end of %u bytes", n);
    if (r->out) read_ends(r, p + sizeof k, k.reason);
    if (!msg_reason(k.reason, NULL))
        return err_set(e, -EBADMSG, "row %llu: there is no reason %u", (unsigned long long)k.id,
                       k.reason);
    r->reason = k.reason;
    r->ended = k.ended;
    r->score = k.score == k.score ? k.score : 0;
    r->cached = k.cached;
    r->adopted = k.adopted;
    r->recomputed = k.recomputed;
    memcpy(r->why, k.why, sizeof r->why);
    r->why[sizeof r->why - 1] = 0;
    if (!msg_utf8(r->why, strlen(r->why))) r->why[0] = 0;
    row_move(l, r, ROW_ENDED);
    ledger_give(l, r);
    return 0;
}

static int
read_gone(struct ledger *l, const char *p, uint32_t n, struct err *e)
{
    struct kept_gone k;
    struct row *r;

    if (n != sizeof k) return err_set(e, -EBADMSG, "a name of %u bytes", n);
    memcpy(&k, p, sizeof k);
    r = ledger_find_id(l, k.id);
    if (!r) return err_set(e, -EBADMSG, "there is no row %llu", (unsigned long long)k.id);
    if (r->kept) {
        ledger_unname(l, r);
        return 0;
    }
    row_move(l, r, ROW_ENDED);
    ledger_unname(l, r);
    ledger_give(l, r);
    return 0;
}

static int
read_rid(struct ledger *l, const char *p, uint32_t n, struct err *e)
{
    struct kept_rid k;
    struct row *r;

    if (n != sizeof k) return err_set(e, -EBADMSG, "a number of %u bytes", n);
    memcpy(&k, p, sizeof k);
    r = ledger_find_id(l, k.id);
    if (!r || !r->named || ledger_renumber(l, r, k.rid) < 0)
        return err_set(e, -EBADMSG, "row %llu: it cannot have that number",
                       (unsigned long long)k.id);
    return 0;
}

static int
read_ids(struct ledger *l, const char *p, uint32_t n, struct err *e)
{
    struct kept_ids k;

    if (n != sizeof k) return err_set(e, -EBADMSG, "ids of %u bytes", n);
    memcpy(&k, p, sizeof k);
    if (k.last > INT64_MAX) return err_set(e, -EBADMSG, "ids are used up");
    ledger_skip_ids(l, k.last);
    return 0;
}

int
recall_record(struct ledger *l, const struct config *c, uint16_t type, const void *data, uint32_t n,
              struct err *e)
{
    switch (type) {
    case KEPT_ROW:
        return read_row(l, c, data, n, e);
    case KEPT_TOKENS:
        return read_tokens(l, data, n, e);
    case KEPT_STATE:
        return read_state(l, data, n, e);
    case KEPT_END:
        return read_end(l, data, n, e);
    case KEPT_GONE:
        return read_gone(l, data, n, e);
    case KEPT_RID:
        return read_rid(l, data, n, e);
    case KEPT_IDS:
        return read_ids(l, data, n, e);
    default:
        return err_set(e, -EBADMSG, "a record of type %u", type);
    }
}
