/* recall.c - see recall.h. Writing down first, then reading back. */
#include "daemon/recall.h"

#include "base/log.h"
#include "daemon/deliver.h"
#include "ipc/msg.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The log grows to so much, or to so many times what the last turn wrote, before it is written anew. */
enum { LOG_LEAST = 1 << 20, LOG_FACTOR = 4 };

static bool
wanted(const struct row *r)
{
    return r->named && !(r->submit->flags & SUBMIT_PROMPT_LOGPROBS);
}

/* ---- writing: each into room that is there, or not at all */

static bool
put_row(struct daemon *d, const struct row *r)
{
    struct kept_row *k = mirror_reserve(&d->mirror, KEPT_ROW,
                                        (uint32_t)sizeof *k + r->submit_bytes);

    if (!k) return false;
    *k = (struct kept_row){
        .id = r->id,
        .rid = r->rid,
        .session = r->session,
        .accepted = r->accepted,
        .deadline = r->deadline,
        .patience = r->patience,
        .win = r->win,
        .submit_bytes = r->submit_bytes,
        .n_key = r->n_key,
        .no_resume = r->no_resume,
    };
    memcpy(k->key, r->key, r->n_key);
    memcpy(k->model, d->config->model[r->model].keys.name, sizeof k->model);
    memcpy(k + 1, r->submit, r->submit_bytes);
    mirror_commit(&d->mirror);
    return true;
}

static bool
put_tokens(struct daemon *d, const struct row *r, uint32_t n, uint32_t n_text)
{
    bool lp = r->submit->flags & SUBMIT_LOGPROBS;
    uint32_t first = row_n_tokens(r) - n, lp_first = MAX(first, r->lp_first);
    uint32_t n_lp = lp ? first + n - lp_first : 0, each = 8 * r->submit->logprobs;
    struct kept_tokens *k;
    char *to;

    if (!n && !n_text) return true;
    k = mirror_reserve(&d->mirror, KEPT_TOKENS,
                       (uint32_t)sizeof *k + 4 * n + n_lp * (4 + each) + n_text);
    if (!k) return false;
    *k = (struct kept_tokens){
        .id = r->id,
        .first = first,
        .n = n,
        .n_text = n_text,
        .lp_first = lp_first,
        .score = r->score,
        .text_said = r->n_text_said,
        .text_unknown = r->text_unknown,
    };
    to = (char *)(k + 1);
    if (n) memcpy(to, r->token.p + (size_t)first * 4, (size_t)n * 4);
    to += (size_t)n * 4;
    if (n_lp) {
        size_t at = lp_first - r->lp_first;

        memcpy(to, r->logprob.p + at * 4, (size_t)n_lp * 4);
        to += (size_t)n_lp * 4;
        if (each) memcpy(to, r->top.p + at * each, (size_t)n_lp * each);
        to += (size_t)n_lp * each;
    }
    if (n_text) memcpy(to, r->text.p + (r->text.n - n_text), n_text);
    mirror_commit(&d->mirror);
    return true;
}

static bool
put_state(struct daemon *d, const struct row *r)
{
    struct kept_state *k = mirror_reserve(&d->mirror, KEPT_STATE, sizeof *k);

    if (!k) return false;
    *k = (struct kept_state){
        .id = r->id,
        .resumed = r->resumed,
        .n_vain = r->n_vain,
        .n_before = r->n_before,
        .blamed_at = r->blamed_at,
        .n_blames = r->n_blames,
        .acquitted = r->acquitted,
    };
    mirror_commit(&d->mirror);
    return true;
}

static bool
put_end(struct daemon *d, const struct row *r)
{
    struct kept_end *k = mirror_reserve(&d->mirror, KEPT_END, sizeof *k);

    if (!k) return false;
    *k = (struct kept_end){
        .id = r->id,
        .ended = r->ended,
        .score = r->score,
        .cached = r->cached,
        .adopted = r->adopted,
        .recomputed = r->recomputed,
        .reason = r->reason,
    };
    memcpy(k->why, r->why, sizeof k->why);
    mirror_commit(&d->mirror);
    return true;
}

static bool
put_gone(struct daemon *d, const struct row *r)
{
    struct kept_gone *k = mirror_reserve(&d->mirror, KEPT_GONE, sizeof *k);

    if (!k) return false;
    k->id = r->id;
    mirror_commit(&d->mirror);
    return true;
}

static bool
put_ids(struct daemon *d)
{
    struct kept_ids *k = mirror_reserve(&d->mirror, KEPT_IDS, sizeof *k);

    if (!k) return false;
    k->last = ledger_last_id(d->ledger);
    mirror_commit(&d->mirror);
    return true;
}

/* Everything that matters, into the other half. */
static bool
write_anew(struct daemon *d)
{
    bool ok;

    mirror_turn(&d->mirror);
    ok = put_ids(d);
    for (uint32_t i = 0; i < ledger_capacity(d->ledger) && ok; i++) {
        const struct row *r = ledger_row(d->ledger, i);

        if (!r || !r->noted || !r->named) continue;
        ok = put_row(d, r) && put_tokens(d, r, row_n_tokens(r), (uint32_t)r->text.n) &&
             put_state(d, r) && (r->state != ROW_ENDED || put_end(d, r));
    }
    if (!ok) return false;
    mirror_turned(&d->mirror);
    d->mirror_most = MAX((uint64_t)LOG_LEAST, LOG_FACTOR * mirror_bytes(&d->mirror));
    return true;
}

/* The ledger does not fit: nothing of it is to be believed any more. */
static void
give_up(struct daemon *d)
{
    log_warn("the ledger's mirror is full: a restart would lose the %u open requests",
             ledger_n(d->ledger));
    mirror_void(&d->mirror);
    d->mirror_void = true;
}

static bool
may_write(const struct daemon *d, const struct row *r)
{
    return d->mirror.base && !d->mirror_void && r->noted;
}

/* It has been written; or there was no room, or there is too much: then all of it is written anew. */
static void
after(struct daemon *d, bool written)
{
    if (written && mirror_bytes(&d->mirror) <= d->mirror_most) return;
    if (!write_anew(d)) give_up(d);
}

void
recall_tokens(struct daemon *d, struct row *r, uint32_t n, uint32_t n_text)
{
    if (may_write(d, r)) after(d, put_tokens(d, r, n, n_text));
}

void
recall_state(struct daemon *d, struct row *r)
{
    if (may_write(d, r)) after(d, put_state(d, r));
}

void
recall_end(struct daemon *d, struct row *r)
{
    if (may_write(d, r)) after(d, r->named ? put_end(d, r) : put_gone(d, r));
}

void
recall_new(struct daemon *d)
{
    struct row *r;

    if (!d->mirror.base) return;
    if (d->mirror_void && !ledger_n(d->ledger)) d->mirror_void = !write_anew(d);
    /* The newest stand last; rows that came back from a dead worker are known. */
    for (r = ledger_last_queued(d->ledger, NULL); r && r->id > d->noted_id && !d->mirror_void;
         r = ledger_last_queued(d->ledger, r)) {
        if (!wanted(r)) continue;
        r->noted = true;
        after(d,
              put_row(d, r) && put_tokens(d, r, row_n_tokens(r), 0)); /* it may begin with some */
    }
    if (d->noted_id != ledger_last_id(d->ledger) && !d->mirror_void) after(d, put_ids(d));
    d->noted_id = ledger_last_id(d->ledger);
}

/* ---- reading back: every field may be anything */

/* Do the counts that lagand uses lie inside? The rest of it is the worker's to judge. */
static bool
submit_fits(const struct rec_submit *s, uint32_t bytes)
{
    uint64_t n_eos = s->n_eos == 0xffff ? 0 : s->n_eos, n = sizeof *s;

    n += ROUND_UP((uint64_t)s->n_prompt * 4, (uint64_t)8);
    n += ROUND_UP((uint64_t)s->n_decoder * 4, (uint64_t)8);
    n += ROUND_UP((uint64_t)s->text_bytes, (uint64_t)8);
    n += ROUND_UP(n_eos * 4, (uint64_t)8) + ROUND_UP((uint64_t)s->n_stop_ids * 4, (uint64_t)8);
    return n <= bytes && !s->n_done && !s->done_text && s->max_tokens &&
           s->max_tokens <= LAGAN_MAX_IDS && s->logprobs <= LAGAN_MAX_TOP &&
           !(s->flags & SUBMIT_PROMPT_LOGPROBS);
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
    struct row *r;
    uint32_t model;

    if (n < sizeof k + sizeof *s) return err_set(e, -EBADMSG, "a row of %u bytes", n);
    memcpy(&k, p, sizeof k);
    model = model_named(c, k.model);
    if (k.submit_bytes != n - sizeof k || k.n_key > sizeof k.key || !k.id || k.id > INT64_MAX ||
        !k.win || k.win > LAGAN_MAX_WIN || !memcmp(&k.session, &nobody, sizeof nobody))
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
    if (ledger_name(l, r, &k.session, k.key, k.n_key) < 0) {
        row_move(l, r, ROW_ENDED);
        ledger_give(l, r);
        return err_set(e, -EBADMSG, "row %llu: its name is another's", (unsigned long long)k.id);
    }
    r->noted = true;
    r->model = model;
    r->accepted = k.accepted;
    r->deadline = k.deadline;
    r->patience = k.patience;
    r->win = k.win;
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

static int
read_tokens(struct ledger *l, const char *p, uint32_t n, struct err *e)
{
    struct kept_tokens k;
    const char *lps, *tops, *text;
    uint64_t n_lp, each;
    struct row *r;

    if (n < sizeof k) return err_set(e, -EBADMSG, "tokens of %u bytes", n);
    memcpy(&k, p, sizeof k);
    p += sizeof k;
    n -= (uint32_t)sizeof k;
    r = named(l, k.id, e);
    if (!r) return -EBADMSG;
    if (k.first != row_n_tokens(r) || k.n > r->submit->max_tokens - k.first ||
        k.lp_first < k.first || k.lp_first - k.first > k.n)
        return err_set(e, -EBADMSG, "row %llu: %u tokens after %u", (unsigned long long)k.id, k.n,
                       k.first);
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
    return 0;
}

static int
read_end(struct ledger *l, const char *p, uint32_t n, struct err *e)
{
    struct kept_end k;
    struct row *r;

    if (n != sizeof k) return err_set(e, -EBADMSG, "an end of %u bytes", n);
    memcpy(&k, p, sizeof k);
    r = named(l, k.id, e);
    if (!r) return -EBADMSG;
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
    r = named(l, k.id, e);
    if (!r) return -EBADMSG;
    row_move(l, r, ROW_ENDED);
    ledger_unname(l, r);
    ledger_give(l, r);
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
    case KEPT_IDS:
        return read_ids(l, data, n, e);
    default:
        return err_set(e, -EBADMSG, "a record of type %u", type);
    }
}

static int
on_record(void *arg, uint16_t type, const void *data, uint32_t n)
{
    struct daemon *d = arg;
    struct err e;

    if (recall_record(d->ledger, d->config, type, data, n, &e) < 0)
        log_warn("ledger's mirror: %s", e.text);
    return 0;
}

/* Open rows as their new lagand finds them. */
static uint32_t
wake_rows(struct daemon *d)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < ledger_capacity(d->ledger); i++) {
        struct row *r = ledger_row(d->ledger, i);

        if (!r) continue;
        n++;
        if (r->kept) continue;
        r->left = d->now + d->config->o.lease; /* so long its client may take to find us */
        r->resumed += r->n_said > 0;
        d->n_suspects += blame_suspect(r);
        if (row_n_tokens(r) >= r->submit->max_tokens)
            row_end(d, r, LAGAN_FINISH_LENGTH, "%s", msg_reason_sentence(LAGAN_FINISH_LENGTH));
    }
    return n;
}

uint32_t
recall_open(struct daemon *d, int fd)
{
    struct err e;
    uint32_t n = 0;

    d->mirror_void = true; /* until it has been read */
    if (fd >= 0 && mirror_open(&d->mirror, fd, &e) < 0) {
        log_warn("%s; starting without it", e.text);
        close(fd);
        fd = -1;
    }
    if (fd >= 0) {
        int r = mirror_read(d->mirror.base, MIRROR_PAGE + 2 * d->mirror.half, on_record, d, &e);

        if (r < 0) log_warn("%s", e.text);
        n = wake_rows(d);
    } else if (mirror_make(&d->mirror, RECALL_BYTES, &e) < 0) {
        log_warn("%s; a restart will lose open requests", e.text);
        return 0;
    }
    d->mirror_void = false;
    d->noted_id = ledger_last_id(d->ledger);
    if (!write_anew(d)) give_up(d);
    return n;
}
