/* ledger_save.c - appends records of changes of the ledger to its log, and rewrites the log. */
#include "daemon/ledger/ledger_save.h"

#include "base/log.h"
#include "daemon/config/options.h"
#include "daemon/ledger/outputs.h"
#include "daemon/ledger/request.h"

#include <unistd.h>

_Static_assert(LEDGER_LOG_LAYOUT_SUM == LOG_FILE_LAYOUT,
               "a ledger log record has a new layout: change LOG_FILE_MAGIC and LOG_FILE_LAYOUT");

/* The log is rewritten when it exceeds both LOG_LEAST bytes and LOG_FACTOR times its size after the
 * last rewrite. */
enum { LOG_LEAST = 1 << 20, LOG_FACTOR = 2 };

static bool
is_saved(const struct request *r)
{
    return r->named && !(r->submit->flags & LEDGER_NOT_SAVED);
}

/* ---- records: each put_ function appends one whole record; false: it does not fit into the log */

static bool
put_request(struct ledger_log *g, const struct request *r)
{
    struct saved_request *k = log_file_reserve(&g->file, SAVED_REQUEST,
                                               (uint32_t)sizeof *k + r->submit_bytes);

    if (!k) return false;
    *k = (struct saved_request){
        .id = r->id,
        .rid = r->rid,
        .session = r->session,
        .accepted = r->terms.accepted,
        .deadline = r->terms.deadline,
        .disconnect_timeout = r->terms.disconnect_timeout,
        .ack_window = r->delivery.ack_window,
        .submit_bytes = r->submit_bytes,
        .n_key = r->n_key,
        .no_resume = r->terms.no_resume,
        .accepted_at = r->terms.accepted_at,
        .n_request_id = (uint8_t)strlen(r->terms.request_id),
    };
    memcpy(k->request_id, r->terms.request_id, k->n_request_id);
    memcpy(k->key, r->key, r->n_key);
    memcpy(k->model, g->config->model[r->terms.model].keys.name, sizeof k->model);
    memcpy(k + 1, r->submit, r->submit_bytes);
    log_file_commit(&g->file);
    return true;
}

/* A span is a run of consecutive tokens of one output. Returns the number of spans to save with the
 * last n tokens: newly received tokens are one span; a rewrite, which saves all tokens, saves all
 * spans. */
static uint32_t
last_spans(const struct request *r, uint32_t n)
{
    return r->outputs.each && n != request_n_tokens(r) ? 1 : outputs_n_spans(r);
}

static void
put_spans(const struct request *r, uint32_t n, uint32_t n_text, uint32_t n_spans, char *to)
{
    for (uint32_t i = 0, from = outputs_n_spans(r) - n_spans; i < n_spans; i++) {
        struct output_span one = outputs_span(r, from + i);

        if (n != request_n_tokens(r)) one.n = n, one.n_text = n_text;
        memcpy(to + i * sizeof one, &one, sizeof one);
    }
}

static bool
put_tokens(struct ledger_log *g, const struct request *r, uint32_t n, uint32_t n_text)
{
    uint32_t n_spans = n || n_text ? last_spans(r, n) : 0;
    bool lp = r->submit->flags & SUBMIT_LOGPROBS;
    uint32_t first = request_n_tokens(r) - n, lp_first = MAX(first, r->outputs.first_logprob);
    uint32_t n_lp = lp ? first + n - lp_first : 0, each = 8 * r->submit->logprobs;
    struct saved_tokens *k;
    char *to;

    if (!n && !n_text) return true;
    k = log_file_reserve(&g->file, SAVED_TOKENS,
                         (uint32_t)sizeof *k + 4 * n + n_lp * (4 + each) + n_text +
                             n_spans * (uint32_t)sizeof(struct output_span));
    if (!k) return false;
    *k = (struct saved_tokens){
        .id = r->id,
        .first = first,
        .n = n,
        .n_text = n_text,
        .lp_first = lp_first,
        .score = r->outputs.score,
        .text_received = r->outputs.n_text_received,
        .text_start_unknown = r->outputs.text_start_unknown,
        .n_spans = n_spans,
    };
    to = (char *)(k + 1);
    if (n) memcpy(to, r->outputs.token.p + (size_t)first * 4, (size_t)n * 4);
    to += (size_t)n * 4;
    if (n_lp) {
        size_t at = lp_first - r->outputs.first_logprob;

        memcpy(to, r->outputs.logprob.p + at * 4, (size_t)n_lp * 4);
        to += (size_t)n_lp * 4;
        if (each) memcpy(to, r->outputs.top.p + at * each, (size_t)n_lp * each);
        to += (size_t)n_lp * each;
    }
    if (n_text) memcpy(to, r->outputs.text.p + (r->outputs.text.n - n_text), n_text);
    put_spans(r, n, n_text, n_spans, to + n_text);
    log_file_commit(&g->file);
    return true;
}

/* Appends a record that consists of the struct of n bytes at p. */
static bool
put_struct(struct ledger_log *g, uint16_t type, const void *p, uint32_t n)
{
    void *to = log_file_reserve(&g->file, type, n);

    if (!to) return false;
    memcpy(to, p, n);
    log_file_commit(&g->file);
    return true;
}

static bool
put_state(struct ledger_log *g, const struct request *r)
{
    const struct saved_state k = {
        .id = r->id,
        .resumed = r->dispatch.resumed,
        .n_stuck = r->suspicion.n_stuck,
        .n_tokens_before = r->suspicion.n_tokens_before,
        .fault_at = r->suspicion.fault_at,
        .n_faults = r->suspicion.n_faults,
        .cleared = r->suspicion.cleared,
        .home = r->dispatch.held ? r->dispatch.worker + 1 : r->dispatch.home,
    };

    return put_struct(g, SAVED_STATE, &k, sizeof k);
}

static bool
put_end(struct ledger_log *g, const struct request *r)
{
    uint32_t outputs = r->outputs.each ? r->submit->n * (uint32_t)sizeof *r->outputs.each : 0;
    struct saved_end *k = log_file_reserve(&g->file, SAVED_END, (uint32_t)sizeof *k + outputs);

    if (!k) return false;
    *k = (struct saved_end){
        .id = r->id,
        .ended = r->result.ended_at,
        .score = r->outputs.score,
        .cached = r->result.cached,
        .adopted = r->result.adopted,
        .recomputed = r->result.recomputed,
        .reason = r->result.reason,
        .stop = r->result.stop,
        .n_prompt_tokens = r->result.n_prompt_tokens,
        .kv_blocks = r->result.kv_blocks,
    };
    memcpy(k->message, r->result.message, sizeof k->message);
    if (outputs) memcpy(k + 1, r->outputs.each, outputs);
    log_file_commit(&g->file);
    return true;
}

static bool
put_unname(struct ledger_log *g, const struct request *r)
{
    return put_struct(g, SAVED_UNNAME, &(struct saved_unname){ r->id },
                      sizeof(struct saved_unname));
}

static bool
put_ids(struct ledger_log *g)
{
    const struct saved_ids k = { ledger_last_id(g->ledger) };

    return put_struct(g, SAVED_IDS, &k, sizeof k);
}

/* Writes the ledger into the other half of the file and makes it the valid one; false: no space. */
static bool
rewrite_log(struct ledger_log *g)
{
    const struct request *r;
    bool ok;

    log_file_switch(&g->file);
    ok = put_ids(g);
    for (uint32_t at = 0; ok && (r = ledger_next(g->ledger, &at));) {
        if (!r->log.logged || !r->named) continue;
        ok = put_request(g, r) &&
             put_tokens(g, r, request_n_tokens(r), (uint32_t)r->outputs.text.n) &&
             put_state(g, r) && (r->state != REQUEST_ENDED || put_end(g, r));
    }
    if (!ok) return false;
    log_file_switched(&g->file);
    g->rewrite_above = MAX((uint64_t)LOG_LEAST, LOG_FACTOR * g->file.at);
    return true;
}

/* Makes both halves of the file invalid, because the ledger does not fit into one half. */
static void
invalidate(struct ledger_log *g)
{
    log_warn("the ledger log is full; a restart of lagand now would lose %u open requests",
             ledger_counts(g->ledger).open);
    log_file_void(&g->file);
    g->invalid = true;
}

static bool
may_write(const struct ledger_log *g, const struct request *r)
{
    return g && g->file.base && !g->invalid && r->log.logged;
}

/* Called after a record: rewrites a log that is too large or full; invalidates it on failure. */
static void
after(struct ledger_log *g, bool written)
{
    if (written && g->file.at <= g->rewrite_above) return;
    if (!rewrite_log(g)) invalidate(g);
}

void
ledger_save_tokens(struct ledger_log *g, const struct request *r, uint32_t n, uint32_t n_text)
{
    if (may_write(g, r)) after(g, put_tokens(g, r, n, n_text));
}

void
ledger_save_state(struct ledger_log *g, const struct request *r)
{
    if (may_write(g, r)) after(g, put_state(g, r));
}

void
ledger_save_end(struct ledger_log *g, const struct request *r)
{
    if (may_write(g, r)) after(g, r->named ? put_end(g, r) : put_unname(g, r));
}

void
ledger_save_rid(struct ledger_log *g, const struct request *r)
{
    const struct saved_rid k = { r->id, r->rid };

    if (may_write(g, r)) after(g, put_struct(g, SAVED_RID, &k, sizeof k));
}

void
ledger_save_unname(struct ledger_log *g, struct request *r)
{
    if (!may_write(g, r)) return;
    r->log.logged = false; /* rewrite_log() skips r from now on */
    after(g, put_unname(g, r));
}

void
ledger_save_new(struct ledger_log *g)
{
    struct request *r;

    if (!g || !g->file.base) return;
    if (g->invalid && !ledger_counts(g->ledger).open) g->invalid = !rewrite_log(g);
    if (g->seen_id == ledger_last_id(g->ledger)) return;
    /* Visits the whole queue, because new requests may be anywhere in it. A request with an id up
     * to seen_id was queued again by the end of its worker and is in the log already. */
    for (r = ledger_last_queued(g->ledger, NULL); r && !g->invalid;
         r = ledger_last_queued(g->ledger, r)) {
        if (r->id <= g->seen_id || !is_saved(r)) continue;
        r->log.logged = true;
        after(g, put_request(g, r) &&
                     put_tokens(g, r, request_n_tokens(r), 0)); /* the client's generated_ids */
    }
    if (!g->invalid) after(g, put_ids(g));
    g->seen_id = ledger_last_id(g->ledger);
}

/* ---- the log */

struct reading {
    struct ledger_log *log;
    uint32_t n_ignored;
    struct err first; /* why the first record was ignored */
};

static int
on_record(void *arg, uint16_t type, const void *data, uint32_t n)
{
    struct reading *i = arg;
    struct err e;

    if (ledger_load_record(i->log->ledger, i->log->config, type, data, n, &e) < 0 &&
        !i->n_ignored++)
        i->first = e;
    return 0;
}

struct ledger_log *
ledger_log_new(struct ledger *l, const struct config *c)
{
    struct ledger_log *g = calloc(1, sizeof *g);

    if (!g) return NULL;
    *g = (struct ledger_log){ .file.fd = -1, .ledger = l, .config = c, .invalid = true };
    return g;
}

struct ledger_log *
ledger_log_free(struct ledger_log *g)
{
    if (g) log_file_close(&g->file);
    free(g);
    return NULL;
}

bool
ledger_log_open(struct ledger_log *g, int fd)
{
    struct reading reading = { .log = g };
    struct err e;

    if (fd >= 0 && log_file_open(&g->file, fd, &e) < 0) {
        log_warn("%s; starting without the requests of the previous lagand", e.text);
        close(fd);
        fd = -1;
    }
    if (fd < 0) {
        if (log_file_create(&g->file, LEDGER_LOG_BYTES, &e) < 0)
            log_warn("%s; no ledger log: a restart of lagand will lose the open requests", e.text);
        return false;
    }
    log_file_read(g->file.base, LOG_FILE_PAGE + 2 * g->file.half, on_record, &reading, &e);
    if (reading.n_ignored)
        log_warn("ledger log: %u invalid records are ignored, the first because: %s",
                 reading.n_ignored, reading.first.text);
    return true;
}

void
ledger_log_start(struct ledger_log *g)
{
    if (!g->file.base) return;
    g->invalid = false;
    g->seen_id = ledger_last_id(g->ledger);
    if (!rewrite_log(g)) invalidate(g);
}

int
ledger_log_fd(const struct ledger_log *g)
{
    return g->file.base ? g->file.fd : -1;
}
