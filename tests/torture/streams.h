/* streams.h - many clients' requests kept under way, every frame held against the history's rules.
 *
 * They speak frames and not liblagan, so that nothing between lagand and the rules can mend anything.
 * One thread, never blocks but for the time it is given.
 */
#ifndef TESTS_TORTURE_STREAMS_H
#define TESTS_TORTURE_STREAMS_H

#include "base/base.h"
#include "tests/torture/history.h"
#include "tests/torture/service.h"

enum { STREAM_CLIENTS = 4, STREAMS_MAX = 1024 };

struct stream {
    uint64_t id; /* its request, 0: none; also its seed */
    uint32_t n_chunks;
    nsec heard; /* the last token, or when it was accepted */
    bool accepted, poison;
};

struct streams {
    void *zmq, *socket[STREAM_CLIENTS];
    const char *endpoint, *model; /* NULL: the only one */
    struct stream stream[STREAMS_MAX];
    uint32_t n, n_open; /* streams there are; requests under way */
    uint32_t max_tokens;
    uint64_t last; /* number of the last request */
    nsec pinged;
    struct history history;
    uint64_t n_poisoned, n_resumed;
    nsec worst; /* the longest a stream has waited for its next token */
};

void streams_open(struct streams *s, const char *endpoint, uint32_t n, uint32_t max_tokens);
void streams_close(struct streams *s);

/* Take what has come, for so long; more: put a new request into each free stream first. Fails the test
 * at the first broken rule. */
void streams_turn(struct streams *s, int ms, bool more);
/* Until nothing is under way: true; false: not within so long, by the service's clock. */
bool streams_settle(struct streams *s, struct service *v, int ms);
/* One request into a free stream. poison: its prompt kills the worker that runs it; it may end with
 * `poisoned`, and that alone. */
void streams_submit(struct streams *s, bool poison);
/* lagand is gone and takes its requests with it: connect again, to whoever comes. */
void streams_reconnect(struct streams *s);

#endif
