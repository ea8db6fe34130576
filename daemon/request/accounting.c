/* accounting.c - charges requests to their user, their model's fair queue and api.memory. */
#include "daemon/request/accounting.h"

#include "daemon/config/options.h"
#include "daemon/ledger/outputs.h"
#include "daemon/ledger/request.h"
#include "daemon/request/length.h"

uint64_t
accounting_max_bytes(const struct daemon *d, uint32_t model, const struct rec_submit *s,
                     uint64_t submit_bytes)
{
    enum { TOKEN = 4, TEXT = 12, UNDELIVERED = 16 << 20 };
    const struct model_facts *f = &d->facts[model];
    uint64_t n = f->known ? MIN(s->max_tokens, f->max_len) : s->max_tokens;
    uint64_t each = s->flags & SUBMIT_LOGPROBS ? 4 + 8 * (uint64_t)s->logprobs : 0;
    uint64_t prompt = s->flags & SUBMIT_PROMPT_LOGPROBS ? 8 + 8 * (uint64_t)s->prompt_logprobs : 0;

    n *= s->n;
    if (s->flags & (SUBMIT_ENCODER_OUTPUT | SUBMIT_LOGITS))
        submit_bytes += d->config->o.tensor_bytes;
    return sizeof(struct request) + submit_bytes + n * (TOKEN + TEXT) +
           (s->n > 1 ? n * sizeof(struct stored_span) + s->n * sizeof(struct request_output) : 0) +
           MIN(n * each, (uint64_t)UNDELIVERED) +
           MIN(ledger_prompt_tokens(s) * prompt, (uint64_t)UNDELIVERED);
}

void
accounting_reserve(struct daemon *d, struct request *r)
{
    r->accounting.bytes = accounting_max_bytes(d, r->terms.model, r->submit, r->submit_bytes);
    d->held_bytes += r->accounting.bytes;
}

void
accounting_charge(struct daemon *d, const struct client *c, struct request *r)
{
    uint64_t fair_tag;

    if (r->accounting.charged || r->state == REQUEST_ENDED) return;
    r->accounting.user = session_user_number(d->sessions, c->user);
    r->accounting.charged = true;
    c->user->n_open++;
    c->user->tokens += r->accounting.n_tokens;
    r->submit->client = session_flow(d->sessions, c);
    fair_tag = fair_queue_give(&d->fair_queues[r->terms.model], r->submit->client,
                               r->accounting.n_tokens);
    ledger_set_fair_tag(d->ledger, r, fair_tag);
}

void
accounting_recount(struct daemon *d, struct request *r)
{
    const struct model_facts *f = &d->facts[r->terms.model];
    uint64_t had = r->accounting.n_tokens;

    if (!f->known) return;
    length_fit(f, r->submit, outputs_longest(r), d->config->o.tensor_bytes);
    if (r->submit->absent & ABSENT_beams) r->submit->beams = f->beams;
    r->accounting.n_tokens = ledger_total_tokens(r->submit);
    if (!r->accounting.charged || r->accounting.n_tokens == had) return;
    session_user_at(d->sessions, r->accounting.user)->tokens += r->accounting.n_tokens - had;
    fair_queue_change(&d->fair_queues[r->terms.model], r->submit->client, had,
                      r->accounting.n_tokens);
}

void
accounting_release(struct daemon *d, struct request *r)
{
    struct user *u = session_user_at(d->sessions, r->accounting.user);

    d->held_bytes -= r->accounting.bytes;
    r->accounting.bytes = 0;
    if (!r->accounting.charged) return;
    r->accounting.charged = false;
    u->n_open--;
    u->tokens -= r->accounting.n_tokens;
    fair_queue_end(&d->fair_queues[r->terms.model], r->submit->client, outputs_n_unused(r));
}
