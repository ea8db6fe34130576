/* history.h - what happened, for those who ask later: events, and the dead with their last words.
 *
 * Two rings of fixed size: the oldest is forgotten. Events are numbered from 1, so that who asks again
 * with the next number misses none, or sees that some are gone. The journal has more, and for longer.
 */
#ifndef DAEMON_HISTORY_H
#define DAEMON_HISTORY_H

#include "base/base.h"
#include "daemon/worker.h"

enum { HISTORY_EVENTS = 1024, HISTORY_DEATHS = 32 };

struct event {
    uint64_t number;
    int64_t at_ms; /* wall clock */
    char kind[12]; /* "lagand", "worker", "death", "request", "client", "operator" */
    char who[16];  /* a worker's name, or "" */
    char text[240];
};

struct dead { /* a worker that was not asked to end */
    int64_t at_ms;
    char worker[16], how[96], words[400];
    const char *cause;
    uint64_t epoch;
    int64_t pid;
    uint32_t n_rows, n_lines;
    char line[LOG_LINES][LOG_LINE]; /* the last it said */
};

struct history;

struct history *history_new(void) MUST_USE;
struct history *history_free(struct history *h);
void history_add(struct daemon *d, const char *kind, const char *who, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* An event of that number, or the oldest there is after it. NULL: there is none yet. */
const struct event *history_event(const struct history *h, uint64_t number);
/* Call it while its rows and its words are there. how: its exit or signal. */
void history_death(struct worker *w, const struct death *death, const char *how, const char *words);
const struct dead *history_dead(const struct history *h,
                                uint32_t back); /* 0: the last; NULL: none */

#endif
