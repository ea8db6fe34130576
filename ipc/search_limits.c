/* search_limits.c - see search_limits.h. */
#include "ipc/search_limits.h"

#include "include/lagan_wire.h"

int
search_limits_check(uint64_t n_tokens, uint32_t logprobs, uint32_t vocab, struct err *e)
{
    uint64_t best = logprobs ? n_tokens * (4 + 8 * (uint64_t)logprobs) : 0,
             logits = n_tokens * vocab * sizeof(float);

    if (best > LAGAN_MAX_SEARCH_LOGPROBS)
        return err_set(e, -EMSGSIZE,
                       "logprobs %u of %llu tokens of all beams need %llu bytes; a beam search may "
                       "keep %u; lower logprobs, beams or max_tokens",
                       logprobs, (unsigned long long)n_tokens, (unsigned long long)best,
                       LAGAN_MAX_SEARCH_LOGPROBS);
    if (logits > LAGAN_MAX_SEARCH_LOGITS)
        return err_set(e, -EMSGSIZE,
                       "the logits of %llu tokens of all beams need %llu bytes; a beam search may "
                       "keep %u; lower beams or max_tokens",
                       (unsigned long long)n_tokens, (unsigned long long)logits,
                       LAGAN_MAX_SEARCH_LOGITS);
    return 0;
}
