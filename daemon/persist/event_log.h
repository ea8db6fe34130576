/* event_log.h - the last events of lagand and the last deaths of workers, kept across restarts of
 * lagand for `laganctl events` and `laganctl panic`. The systemd journal has older ones.
 *
 * Events and deaths are two rings of fixed size; a new entry overwrites the oldest. Events are
 * numbered from 1, so that a reader that asks for the next number sees all events, or sees a gap.
 *
 * A memfd that outlives lagand has the rings, the number of restarts of each worker and the key of
 * the names of KV blocks. The number
 * of an entry is cleared before the entry is rewritten and stored after it: if lagand is killed at
 * any instruction, an incomplete entry has no number. */
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

/* An unrequested end of a worker's process. All strings end with a NUL. */
struct death_entry {
    uint64_t number; /* from 1; 0: empty. event_log_death() sets it, and at_ms. */
    int64_t at_ms;   /* wall clock */
    char worker[16], cause[32], how[96], panic[400];
    char frames[400]; /* of the stack, as "lagan-worker+0x1234 libc.so.6+0x3c050"; "": none */
    uint64_t epoch;
    int64_t pid;
    uint32_t n_requests, n_lines;
    char line[LOG_LINES][LOG_LINE]; /* [n_lines], last output of the process, oldest line first */
};

struct event_log;

/* Opens the memfd fd of a previous lagand and keeps its valid entries; creates a new memfd if fd is
 * -1 or has another layout. Owns fd. NULL: no memory. */
struct event_log *event_log_new(int fd) MUST_USE;
struct event_log *event_log_free(struct event_log *h);
/* The seed of the names of KV blocks (base/block_name.h) of a model: different for each model,
 * equal in all lagands that pass on this log. All 0 without a log, in tests. */
void event_log_cache_key(const struct daemon *d, uint32_t model, uint64_t ret[4]);
int event_log_fd(const struct event_log *h); /* the memfd, which h owns, for the next lagand */
int64_t event_log_previous_pid(const struct event_log *h); /* pid of the previous lagand; 0: none */
void event_log_add(struct daemon *d, const char *kind, const char *subject, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* Returns the event with that number, or the first later one that exists. NULL: none yet. */
const struct event *event_log_event(const struct event_log *h, uint64_t number);
uint64_t event_log_next(const struct event_log *h); /* number that the next event will get */
/* Adds a copy of x with the next number and the present time. d->event_log NULL: no effect. */
void event_log_death(struct daemon *d, const struct death_entry *x);
/* Returns the death `back` deaths before the last one (0: the last). NULL: there is none. */
const struct death_entry *event_log_dead(const struct event_log *h, uint32_t back);

/* Returns how often worker `worker` was restarted, also under previous lagands with this model. */
uint32_t event_log_restarts(struct daemon *d, uint32_t worker, const char *model);
void event_log_set_restarts(struct daemon *d, uint32_t worker, uint32_t n);
