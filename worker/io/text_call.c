/* text_call.c - executes TEXT records (text calls), which convert between text and token ids. */
#include "include/lagan_wire.h"
#include "ipc/channel.h"
#include "ipc/records.h"
#include "worker/io/intake.h"
#include "worker/io/outbox.h"
#include "worker/io/record_tail.h"
#include "worker/io/text_thread.h"
#include "worker/model/model.h"
#include "worker/text/tokenizer.h"

#include <stdio.h>

_Static_assert((int)REQUEST_TOKENIZE == TEXT_TOKENIZE && (int)REQUEST_RENDER == TEXT_RENDER,
               "enum request_kind has the values of enum text_op");

void
text_call_done(struct worker *w, struct worker_request *r)
{
    struct rec_text_done d = { .call = r->ledger_index, .gen = r->gen, .reason = r->reason };
    char *tail;

    if (!d.reason) {
        d.n_ids = r->kind == REQUEST_TOKENIZE || r->kind == REQUEST_ID_BYTES ? r->n_ids : 0;
        d.text_bytes = r->kind == REQUEST_TOKENIZE ? 0 : r->n_text;
        if (d.n_ids * sizeof(token_id) + d.text_bytes + sizeof d >
            w->channel->out.max_rec - RING_HEADER) {
            d.reason = LAGAN_E_TOO_LONG;
            d.n_ids = d.text_bytes = 0;
            snprintf(r->why, sizeof r->why, "the result is too long for one message; send less");
        }
    }
    if (d.reason) d.text_bytes = (uint32_t)strlen(r->why);
    outbox_begin(w->outbox, REC_TEXT_DONE);
    outbox_add(w->outbox, &d, sizeof d);
    tail = outbox_add(w->outbox, NULL, d.n_ids * sizeof(token_id) + d.text_bytes);
    memcpy(tail, r->ids, d.n_ids * sizeof(token_id));
    memcpy(tail + d.n_ids * sizeof(token_id), d.reason ? r->why : r->text, d.text_bytes);
    outbox_end(w->outbox);
    request_give(w->requests, r);
}

/* Sets r->reason and r->why if the text call c must be refused. */
static void
check_call(const struct worker *w, struct worker_request *r, const struct rec_text *c,
           const token_id *ids)
{
    uint32_t i = 0, vocab = w->model->shape.vocab;

    if (!w->tokenizer) {
        r->reason = LAGAN_E_UNSUPPORTED;
        snprintf(r->why, sizeof r->why, "%s", w->why_no_text);
        return;
    }
    if (c->n_ids > w->requests->max_ids || c->text_bytes > w->requests->max_text_bytes) {
        r->reason = LAGAN_E_TOO_LONG;
        snprintf(r->why, sizeof r->why, "a command is limited to %u ids or %u bytes of text",
                 w->requests->max_ids, w->requests->max_text_bytes);
        return;
    }
    vocab = MAX(vocab, tokenizer_size(w->tokenizer));
    if (r->kind == REQUEST_DETOKENIZE || r->kind == REQUEST_ID_BYTES)
        while (i < c->n_ids && (uint32_t)ids[i] < vocab) i++;
    else
        i = c->n_ids;
    if (i == c->n_ids) return;
    r->reason = LAGAN_E_INVALID_REQUEST;
    snprintf(r->why, sizeof r->why, "ids[%u] is %d, the vocabulary has %u tokens", i, ids[i],
             vocab);
}

int
text_call(struct worker *w, const void *data, size_t n, struct err *e)
{
    struct rec_text c;
    struct record_tail t = record_tail(data, n);
    const void *p = record_tail_take(&t, sizeof c);
    const token_id *ids;
    const char *text;
    struct worker_request *r;

    if (!p) return record_tail_corrupt(e, "TEXT is shorter than its header");
    memcpy(&c, p, sizeof c);
    if ((uint64_t)c.n_ids * sizeof *ids + c.text_bytes > t.left || c.op < TEXT_TOKENIZE ||
        c.op > TEXT_RENDER)
        return record_tail_corrupt(e, "TEXT is shorter than its ids and text, or op is unknown");
    ids = (const token_id *)(const void *)t.p;
    text = t.p + (size_t)c.n_ids * sizeof *ids;
    r = request_take(w->requests);
    if (!r) {
        struct rec_text_done d = { .call = c.call, .gen = c.gen, .reason = LAGAN_E_QUEUE_FULL };

        outbox_put(w->outbox, REC_TEXT_DONE, &d, sizeof d);
        return 0;
    }
    r->state = REQUEST_TEXT;
    r->kind = (enum request_kind)c.op;
    r->ledger_index = c.call;
    r->gen = c.gen;
    r->bare = c.flags & 1;
    r->chat = c.flags & 2;
    check_call(w, r, &c, ids);
    if (r->reason) {
        text_call_done(w, r);
        return 0;
    }
    if (c.n_ids) memcpy(r->ids, ids, c.n_ids * sizeof *ids);
    if (c.text_bytes) memcpy(r->text, text, c.text_bytes);
    r->n_ids = c.n_ids;
    r->n_text = c.text_bytes;
    text_thread_give(w->text, r);
    return 0;
}
