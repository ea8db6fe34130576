/* history.h - what clients were told, held against the rules: every accepted request gets its tokens
 * once each, in order, and exactly one end.
 *
 * Pure: events go in, the first rule that was broken comes out as a sentence. A request's tokens follow
 * from its seed (mock.h), so that a wrong token is seen where it arrives.
 */
#ifndef TESTS_TORTURE_HISTORY_H
#define TESTS_TORTURE_HISTORY_H

#include "base/base.h"

struct told { /* one request */
    uint64_t id, seed;
    uint32_t max_tokens, n; /* n: tokens so far */
    bool used, ended;
};

struct history {
    struct told *told; /* [cap]: open addressing by id; at most half of it used */
    uint32_t cap, n_used;
    uint64_t allowed; /* bit LAGAN_E_*: errors a request may end with */
    bool lax;         /* of a worker that lies: tokens, ends and their number may be any */
    uint64_t n_open, n_accepted, n_done, n_failed, n_tokens;
    char why[240]; /* the first broken rule; empty: none */
};

/* At most so many open at once; of those that have ended as many are remembered. -ENOMEM. */
int history_open(struct history *h, uint32_t max_open) MUST_USE;
void history_close(struct history *h);

/* Each returns false from the first broken rule on. */
bool history_accepted(struct history *h, uint64_t id, uint64_t seed, uint32_t max_tokens);
bool history_tokens(struct history *h, uint64_t id, uint32_t first, const int32_t *token,
                    uint32_t n);
bool history_done(struct history *h, uint64_t id, uint32_t reason, uint32_t n_tokens);
bool history_failed(struct history *h, uint64_t id, uint32_t code);
/* Nothing is under way any more: everything has ended. */
bool history_settled(struct history *h);

#endif
