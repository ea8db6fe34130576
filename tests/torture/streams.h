/* streams.h - keeps many clients' requests running and checks every frame with history.h.
 *
 * Uses frames without liblagan, so that no library can hide an error. One thread; blocks only for
 * the time given.
 */
#pragma once
#include "base/base.h"
#include "tests/torture/history.h"
#include "tests/torture/service.h"

enum { STREAM_CLIENTS = 4, STREAMS_MAX = 1024 };

struct stream {
    uint64_t id; /* id and seed of its request; 0: none */
    uint32_t n_chunks;
    nsec last_event; /* time of the last token or of ACCEPT */
    bool accepted, poison;
};

struct streams {
    void *zmq, *socket[STREAM_CLIENTS];
    const char *endpoint, *model; /* model NULL: the only one */
    struct stream stream[STREAMS_MAX];
    uint32_t n, n_open; /* number of streams; running requests */
    uint32_t max_tokens;
    uint64_t last; /* number of the last request */
    nsec pinged;
    struct history history;
    uint64_t n_poisoned, n_resumed;
    nsec worst; /* longest wait of a stream for its next token */
};

void streams_open(struct streams *s, const char *endpoint, uint32_t n, uint32_t max_tokens);
void streams_close(struct streams *s);

/* Takes frames for `ms`. more: first submits a new request in each free stream. Fails the test at
 * the first broken rule. */
void streams_run(struct streams *s, int ms, bool more);
/* Waits until no request runs. Returns false after `ms` by the service's clock. */
bool streams_settle(struct streams *s, struct service *v, int ms);
/* Submits one request in a free stream. poison: its prompt kills its worker; the request may end
 * only with `poisoned`. */
void streams_submit(struct streams *s, bool poison);
/* Reconnects all clients after lagand and its requests have ended. */
void streams_reconnect(struct streams *s);
