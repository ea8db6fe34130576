/* length.c - see length.h. */
#include "daemon/request/length.h"

void
length_fit(const struct model_facts *f, struct rec_submit *s, uint32_t n_done,
           uint64_t tensor_bytes)
{
    uint32_t prompt = f->max_source ? s->n_decoder : s->n_prompt;
    uint64_t most = f->max_len - MIN(prompt, f->max_len);

    if (!f->known || !(s->flags & SUBMIT_FIT)) return;
    if (!f->max_source && f->max_tokens)
        most = MIN(most, f->max_tokens - MIN((uint64_t)prompt, f->max_tokens));
    if (s->flags & SUBMIT_LOGITS)
        most = MIN(most, tensor_bytes / (4 * (uint64_t)f->vocab * MAX(s->n, 1u)));
    s->max_tokens = (uint32_t)MIN(s->max_tokens, MAX(most, n_done + UINT64_C(1)));
}

struct prompt_length
length_of(const struct model_facts *f, uint32_t n_prompt_tokens)
{
    return (struct prompt_length){ n_prompt_tokens, f->max_source ? f->max_source : f->max_len };
}
