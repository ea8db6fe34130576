/* latency.c - see latency.h. A token has the time of the loop iteration that received it. */
#include "daemon/request/latency.h"

#include "daemon/ledger/histograms.h"

/* A beam search sends the tokens that all beams share at irregular times. */
static bool
is_search(const struct request *r)
{
    return request_n_seqs(r) > MAX(r->submit->n, 1u);
}

void
latency_tokens(struct daemon *d, struct request *r, uint32_t output, uint32_t n)
{
    uint32_t model = r->terms.model;
    nsec *last = r->outputs.each ? &r->outputs.each[output].token_at : &r->latency.token_at;

    if (!r->latency.first_token) {
        r->latency.first_token = d->now;
        /* A request that was restored by this lagand may have had its first token before. */
        if (!r->dispatch.resumed)
            histogram_add(d, model, HISTOGRAM_time_to_first_token_seconds,
                          d->now - r->terms.accepted);
    }
    for (uint32_t i = 0; *last && i < n && !is_search(r); i++)
        histogram_add(d, model, HISTOGRAM_inter_token_latency_seconds, (d->now - *last) / n);
    *last = d->now;
}

void
latency_finish(struct daemon *d, struct request *r, const struct rec_finish *f)
{
    uint32_t model = r->terms.model;
    nsec start = f->scheduled_ns, first = r->latency.first_token;

    if (f->reason >= LAGAN_FINISH_CANCELLED) return;
    histogram_add(d, model, HISTOGRAM_e2e_request_latency_seconds, d->now - r->terms.accepted);
    histogram_add(d, model, HISTOGRAM_request_prompt_tokens, f->n_prompt_tokens);
    histogram_add(d, model, HISTOGRAM_request_generation_tokens, r->outputs.n_received);
    /* Not of a resumed request, whose first step may have run after its first token. */
    if (r->dispatch.resumed || start < r->terms.accepted || start > first) return;
    histogram_add(d, model, HISTOGRAM_request_queue_time_seconds, start - r->terms.accepted);
    histogram_add(d, model, HISTOGRAM_request_prefill_time_seconds, first - start);
}
