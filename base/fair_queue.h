/* fair_queue.h - computes the order of requests of several clients by deficit round robin.
 *
 * In each round every client with open requests is granted a quantum of tokens. A request gets, at
 * its arrival, a fairness tag: the number of the round in which its client has been granted all
 * tokens of its requests so far. Requests run in the order of their tags. A tag never changes, so
 * lists sorted by tag stay sorted. Tokens that a request did not use are credited to its client. A
 * client without open requests accumulates no credit. Clients whose numbers are equal modulo
 * FAIR_QUEUE_CLIENTS share one quantum. */
#pragma once
#include "base/base.h"

enum { FAIR_QUEUE_CLIENTS = 2048 };

struct fair_queue {
    uint64_t quantum; /* tokens per client and round; 0: all tags are 0 (order of arrival) */
    uint64_t now;     /* present round: highest tag of a scheduled request */
    struct fair_queue_client {
        uint64_t spent; /* tokens used in all rounds; r * quantum: rounds 1 to r are used up */
        uint64_t tag;   /* tag of the last request of the client */
        uint32_t n_open;
    } client[FAIR_QUEUE_CLIENTS];
};

/* Counts a new request of the client, which may use this number of tokens, and returns its tag. The
 * caller calls fair_queue_end() when the request ends. */
uint64_t fair_queue_give(struct fair_queue *t, uint32_t client, uint64_t tokens) MUST_USE;
/* Call it when a request is scheduled: a tag above the present round is the new present round. */
void fair_queue_take(struct fair_queue *t, uint64_t tag);
/* Changes the number of tokens counted for a request from had to has; its tag is unchanged. */
void fair_queue_change(struct fair_queue *t, uint32_t client, uint64_t had, uint64_t has);
/* A request of the client has ended; the client is credited its unused tokens. */
void fair_queue_end(struct fair_queue *t, uint32_t client, uint64_t unused);
