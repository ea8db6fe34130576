/* history.h - what happened, for those who ask later: events, and the dead with their last words.
 *
 * Two rings of fixed size: the oldest is forgotten. Events are numbered from 1, so that who asks again
 * with the next number misses none, or sees that some are gone. The journal has more, and for longer.
 *
 * They lie in a memfd that outlives lagand, with how often each worker was started anew: who asks the
 * lagand after this one learns why there is another. Each entry's number is stored last, and taken away before
 * it is written anew: a kill at any instruction leaves those that are whole.
 */
#ifndef DAEMON_HISTORY_H
#define DAEMON_HISTORY_H

#include "base/base.h"
#include "daemon/worker.h"

enum { HISTORY_EVENTS = 1024, HISTORY_DEATHS = 32 };

struct event {
    uint64_t number; /* 0: there is none */
    int64_t at_ms;   /* wall clock */
    char kind[12];   /* "lagand", "worker", "death", "request", "client", "operator" */
    char who[16];    /* a worker's name, or "" */
    char text[240];
};

struct dead {        /* a worker that was not asked to end */
    uint64_t number; /* from 1; 0: there is none */
    int64_t at_ms;
    char worker[16], cause[32], how[96], words[400];
    uint64_t epoch;
    int64_t pid;
    uint32_t n_rows, n_lines;
    char line[LOG_LINES][LOG_LINE]; /* the last it said */
};

struct history;

/* fd: a former lagand's, ours now, or -1. Of it every entry that can be true is kept; NULL: no memory. */
struct history *history_new(int fd) MUST_USE;
struct history *history_free(struct history *h);
int history_fd(const struct history *h);         /* for the next one; it stays ours */
int64_t history_former(const struct history *h); /* pid of who wrote it before us; 0: nobody */
void history_add(struct daemon *d, const char *kind, const char *who, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* An event of that number, or the oldest there is after it. NULL: there is none yet. */
const struct event *history_event(const struct history *h, uint64_t number);
uint64_t history_next(const struct history *h); /* the number of the one to come */
/* Call it while its rows and its words are there. how: its exit or signal. */
void history_death(struct worker *w, const struct death *death, const char *how, const char *words);
const struct dead *history_dead(const struct history *h,
                                uint32_t back); /* 0: the last; NULL: none */
/* w->restarts as of a worker of that number and model before it, and noted for one after it. */
void history_restarts(struct worker *w);
void history_restarted(const struct worker *w);

#endif
