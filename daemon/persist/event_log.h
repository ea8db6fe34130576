/* event_log.h - what happened, for those who ask later: events, and the dead with their last words.
 *
 * Two rings of fixed size: the oldest is forgotten. Events are numbered from 1, so that who asks again
 * with the next number misses none, or sees that some are gone. The journal has more, and for longer.
 *
 * They lie in a memfd that outlives lagand, with how often each worker was started anew: who asks the
 * lagand after this one learns why there is another. Each entry's number is stored last, and taken away before
 * it is written anew: a kill at any instruction leaves those that are whole.
 */
#ifndef DAEMON_PERSIST_EVENT_LOG_H
#define DAEMON_PERSIST_EVENT_LOG_H

#include "base/base.h"
#include "daemon/daemon.h"

enum { EVENT_LOG_EVENTS = 1024, EVENT_LOG_DEATHS = 32 };
enum { LOG_LINES = 20, LOG_LINE = 400 }; /* last output of a worker: lines, bytes of a line */

struct event {
    uint64_t number; /* 0: there is none */
    int64_t at_ms;   /* wall clock */
    char kind[12];   /* "lagand", "worker", "death", "request", "client", "operator" */
    char who[16];    /* a worker's name, or "" */
    char text[240];
};

/* A worker that has ended without an order. All strings end with a NUL. */
struct death_entry {
    uint64_t number; /* from 1; 0: there is none. Set by event_log_death(). */
    int64_t at_ms;   /* wall clock. Set by event_log_death(). */
    char worker[16], cause[32], how[96], words[400];
    uint64_t epoch;
    int64_t pid;
    uint32_t n_rows, n_lines;
    char line[LOG_LINES][LOG_LINE]; /* its last output, oldest first */
};

struct event_log;

/* fd: a former lagand's, ours now, or -1. Of it every entry that can be true is kept; NULL: no memory. */
struct event_log *event_log_new(int fd) MUST_USE;
struct event_log *event_log_free(struct event_log *h);
int event_log_fd(const struct event_log *h); /* for the next one; it stays ours */
int64_t event_log_previous_pid(
    const struct event_log *h); /* pid of who wrote it before us; 0: nobody */
void event_log_add(struct daemon *d, const char *kind, const char *who, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* An event of that number, or the oldest there is after it. NULL: there is none yet. */
const struct event *event_log_event(const struct event_log *h, uint64_t number);
uint64_t event_log_next(const struct event_log *h); /* the number of the one to come */
/* Copies x, with the next number and the present time. d->event_log NULL: no effect. */
void event_log_death(struct daemon *d, const struct death_entry *x);
/* The entry that was written `back` entries before the last one (0: the last). NULL: none. */
const struct death_entry *event_log_dead(const struct event_log *h, uint32_t back);

/* The number of restarts of the worker of that index, of this lagand and of former ones; 0 if the
 * index had another model before. */
uint32_t event_log_restarts(struct daemon *d, uint32_t worker, const char *model);
void event_log_set_restarts(struct daemon *d, uint32_t worker, uint32_t n);

#endif
