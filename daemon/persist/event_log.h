/* event_log.h - the last events and deaths of workers, kept across restarts of lagand.
 *
 * Two rings of fixed size; the oldest entry is overwritten. Events are numbered from 1, so that a
 * reader that asks for the next number sees all of them, or sees that some are lost. The journal
 * has more.
 *
 * The rings are in a memfd that outlives lagand, with the number of restarts of each worker. The
 * number of an entry is stored last and cleared before the entry is rewritten: a kill at any
 * instruction leaves only whole entries. */
#pragma once

#include "base/base.h"
#include "daemon/daemon.h"

enum { EVENT_LOG_EVENTS = 1024, EVENT_LOG_DEATHS = 32 };
enum { LOG_LINES = 20, LOG_LINE = 400 }; /* last output of a worker: lines, bytes of a line */

struct event {
    uint64_t number;  /* 0: empty */
    int64_t at_ms;    /* wall clock */
    char kind[12];    /* "lagand", "worker", "death", "request", "client", "operator" */
    char subject[16]; /* a worker's name, or "" */
    char text[240];
};

/* An unrequested end of a worker. All strings end with a NUL. */
struct death_entry {
    uint64_t number; /* from 1; 0: empty. Set by event_log_death(). */
    int64_t at_ms;   /* wall clock. Set by event_log_death(). */
    char worker[16], cause[32], how[96], panic[400];
    uint64_t epoch;
    int64_t pid;
    uint32_t n_requests, n_lines;
    char line[LOG_LINES][LOG_LINE]; /* its last output, oldest first */
};

struct event_log;

/* fd: the memfd of a previous lagand, or -1. Owns fd. Keeps its valid entries. NULL: no memory. */
struct event_log *event_log_new(int fd) MUST_USE;
struct event_log *event_log_free(struct event_log *h);
int event_log_fd(const struct event_log *h);               /* for the next lagand; h keeps it */
int64_t event_log_previous_pid(const struct event_log *h); /* previous lagand; 0: none */
void event_log_add(struct daemon *d, const char *kind, const char *subject, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* The event of that number, or the oldest one after it. NULL: none yet. */
const struct event *event_log_event(const struct event_log *h, uint64_t number);
uint64_t event_log_next(const struct event_log *h); /* number of the next event */
/* Copies x, with the next number and the present time. d->event_log NULL: no effect. */
void event_log_death(struct daemon *d, const struct death_entry *x);
/* The entry `back` entries before the last one (0: the last). NULL: none. */
const struct death_entry *event_log_dead(const struct event_log *h, uint32_t back);

/* Restarts of the worker of that index, under this lagand and previous ones; 0 if the index had
 * another model before. */
uint32_t event_log_restarts(struct daemon *d, uint32_t worker, const char *model);
void event_log_set_restarts(struct daemon *d, uint32_t worker, uint32_t n);
