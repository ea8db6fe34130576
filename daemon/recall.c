/* recall.c - see recall.h: writing down, and taking over. recall_read.c reads. */
#include "daemon/recall.h"

#include "base/log.h"
#include "daemon/admission.h"
#include "daemon/deliver.h"
#include "daemon/pieces.h"
#include "wire/msg.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

_Static_assert(MIRROR_LAYOUT_SUM == MIRROR_LAYOUT,
               "a record of the ledger log has changed: change MIRROR_MAGIC and MIRROR_LAYOUT");

static const nsec STAY = 10 * NSEC_S; /* all workers start, and each finds the KV of its own */

/* The log grows to so much, or to so many times what the last turn wrote, before it is written anew. */
enum { LOG_LEAST = 1 << 20, LOG_FACTOR = 2 };

static bool
wanted(const struct row *r)
{
    return r->named && !(r->submit->flags & RECALL_LOST);
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
        .ack_window = r->ack_window,
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

/* Whose the last n tokens are: of the output that said them, or all. How many pieces. */
static uint32_t
last_pieces(const struct row *r, uint32_t n)
{
    return r->out && n != row_n_tokens(r) ? 1 : pieces_n(r);
}

static void
put_pieces(const struct row *r, uint32_t n, uint32_t n_text, uint32_t n_pieces, char *to)
{
    for (uint32_t i = 0, from = pieces_n(r) - n_pieces; i < n_pieces; i++) {
        struct row_piece one = pieces_at(r, from + i);

        if (n != row_n_tokens(r)) one.n = n, one.n_text = n_text;
        memcpy(to + i * sizeof one, &one, sizeof one);
    }
}

static bool
put_tokens(struct daemon *d, const struct row *r, uint32_t n, uint32_t n_text)
{
    uint32_t n_pieces = n || n_text ? last_pieces(r, n) : 0;
    bool lp = r->submit->flags & SUBMIT_LOGPROBS;
    uint32_t first = row_n_tokens(r) - n, lp_first = MAX(first, r->lp_first);
    uint32_t n_lp = lp ? first + n - lp_first : 0, each = 8 * r->submit->logprobs;
    struct kept_tokens *k;
    char *to;

    if (!n && !n_text) return true;
    k = mirror_reserve(&d->mirror, KEPT_TOKENS,
                       (uint32_t)sizeof *k + 4 * n + n_lp * (4 + each) + n_text +
                           n_pieces * (uint32_t)sizeof(struct row_piece));
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
        .n_pieces = n_pieces,
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
    put_pieces(r, n, n_text, n_pieces, to + n_text);
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
        .home = r->held ? r->worker + 1 : r->home,
    };
    mirror_commit(&d->mirror);
    return true;
}

static bool
put_end(struct daemon *d, const struct row *r)
{
    uint32_t outputs = r->out ? r->submit->n * (uint32_t)sizeof *r->out : 0;
    struct kept_end *k = mirror_reserve(&d->mirror, KEPT_END, (uint32_t)sizeof *k + outputs);

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
    if (outputs) memcpy(k + 1, r->out, outputs);
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
put_rid(struct daemon *d, const struct row *r)
{
    struct kept_rid *k = mirror_reserve(&d->mirror, KEPT_RID, sizeof *k);

    if (!k) return false;
    *k = (struct kept_rid){ r->id, r->rid };
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
recall_rid(struct daemon *d, struct row *r)
{
    if (may_write(d, r)) after(d, put_rid(d, r));
}

void
recall_gone(struct daemon *d, struct row *r)
{
    bool written;

    if (!may_write(d, r)) return;
    written = put_gone(d, r);
    r->noted = false;
    after(d, written);
}

void
recall_new(struct daemon *d)
{
    struct row *r;

    if (!d->mirror.base) return;
    if (d->mirror_void && !ledger_n(d->ledger)) d->mirror_void = !write_anew(d);
    if (d->noted_id == ledger_last_id(d->ledger)) return;
    /* They wait anywhere among the others; rows that came back from a dead worker are known. */
    for (r = ledger_last_queued(d->ledger, NULL); r && !d->mirror_void;
         r = ledger_last_queued(d->ledger, r)) {
        if (r->id <= d->noted_id || !wanted(r)) continue;
        r->noted = true;
        after(d,
              put_row(d, r) && put_tokens(d, r, row_n_tokens(r), 0)); /* it may begin with some */
    }
    if (!d->mirror_void) after(d, put_ids(d));
    d->noted_id = ledger_last_id(d->ledger);
}

/* ---- the next lagand */

struct reading {
    struct daemon *d;
    uint32_t n_dropped;
    struct err first; /* why */
};

static int
on_record(void *arg, uint16_t type, const void *data, uint32_t n)
{
    struct reading *g = arg;
    struct err e;

    if (recall_record(g->d->ledger, g->d->config, type, data, n, &e) < 0 && !g->n_dropped++)
        g->first = e;
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
        r->stay_until = d->now + STAY;
        r->left = d->now + d->config->o.idle_timeout; /* so long its client may take to find us */
        r->resumed += r->n_said > 0;
        d->n_suspects += blame_suspect(r);
        admission_hold(d, r);
        if (r->no_resume && r->home)
            row_end(d, r, LAGAN_E_WORKER_LOST, "lagand was started anew and resume is false");
        else if (!r->out && row_n_tokens(r) >= r->submit->max_tokens)
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
        struct reading g = { .d = d };

        mirror_read(d->mirror.base, MIRROR_PAGE + 2 * d->mirror.half, on_record, &g, &e);
        if (g.n_dropped)
            log_warn("ledger's mirror: %u records are dropped, the first: %s", g.n_dropped,
                     g.first.text);
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
