/* fair_queue.h - order of requests of several clients: deficit round robin, computed at arrival.
 *
 * Each round grants every client with open requests a quantum of tokens. A request gets a fairness
 * tag: the number of the round in which its client has been granted all tokens requested so far.
 * The tag does not change, so lists sorted by tag stay sorted. Tokens that were requested and not
 * used are credited to the client. A client without open requests accumulates no credit. Clients
 * whose numbers are equal modulo FAIR_QUEUE_CLIENTS share their quantum. */
#pragma once

#include "base/base.h"

enum { FAIR_QUEUE_CLIENTS = 2048 };

struct fair_queue {
    uint64_t quantum; /* tokens for each client and round; 0: all tags are 0 (order of arrival) */
    uint64_t now;     /* highest tag that was scheduled */
    struct fair_queue_client {
        uint64_t spent; /* tokens requested, in units where round r ends at r * quantum */
        uint64_t tag;   /* last tag of the client */
        uint32_t n_open;
    } client[FAIR_QUEUE_CLIENTS];
};

/* Returns the tag of a request of the client for this number of tokens. fair_queue_end() must
 * follow. */
uint64_t fair_queue_give(struct fair_queue *t, uint32_t client, uint64_t tokens) MUST_USE;
/* a request with this tag is scheduled */
void fair_queue_take(struct fair_queue *t, uint64_t tag);
/* Changes the token count of a request from had to has; its tag is unchanged. */
void fair_queue_change(struct fair_queue *t, uint32_t client, uint64_t had, uint64_t has);
void fair_queue_end(struct fair_queue *t, uint32_t client, uint64_t unused);
