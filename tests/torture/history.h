/* history.h - checks what clients received: every accepted request gets each token once, in order,
 * and exactly one end.
 *
 * Pure: takes events and returns the first broken rule as a sentence. A request's tokens follow
 * from its seed (mock.h), so a wrong token is detected on arrival.
 */
#pragma once
#include "base/base.h"

struct followed_request { /* one request */
    uint64_t id, seed;
    uint32_t max_tokens, n; /* n: tokens so far */
    bool used, ended;
};

struct history {
    struct followed_request *request; /* [cap] open addressing by id; at most half is used */
    uint32_t cap, n_used;
    uint64_t allowed; /* bit LAGAN_E_*: errors that may end a request */
    bool lax;         /* for a malicious worker: any tokens, ends and counts */
    uint64_t n_open, n_accepted, n_done, n_failed, n_tokens;
    char why[240]; /* first broken rule; empty: none */
};

/* max_open: requests open at once; as many ended ones are remembered. -ENOMEM. */
int history_open(struct history *h, uint32_t max_open) MUST_USE;
void history_close(struct history *h);

/* Each returns false from the first broken rule on. */
bool history_accepted(struct history *h, uint64_t id, uint64_t seed, uint32_t max_tokens);
bool history_tokens(struct history *h, uint64_t id, uint32_t first, const int32_t *token,
                    uint32_t n);
bool history_done(struct history *h, uint64_t id, uint32_t reason, uint32_t n_tokens);
bool history_failed(struct history *h, uint64_t id, uint32_t code);
/* Checks that every request has ended. */
bool history_settled(struct history *h);
