/* worker.h - a worker as the other parts of lagand see it: facts, life cycle, rings, ranks.
 *
 * struct worker is private to daemon/supervise: worker_struct.h.
 */
#pragma once

#include "base/base.h"
#include "daemon/daemon.h"
#include "daemon/supervise/arenas.h"
#include "daemon/supervise/supervisor.h"
#include "ipc/stat.h"

#include <sys/types.h>

struct control_channel;

/* What other parts may read. Only daemon/supervise changes it. */
struct worker_info {
    char name[16]; /* "w0" */
    uint32_t index, model;
    pid_t pid;                      /* 0: no process */
    uint64_t epoch;                 /* of the present or last incarnation; 0: none yet */
    uint32_t restarts;              /* after unrequested ends */
    char why[240];                  /* last line at level err, or the cause of its end */
    uint64_t load_done, load_total; /* bytes of weights */
    uint32_t vocab;                 /* from its own READY: another worker may have an older model */
    nsec start_took;                /* last time from spawn to READY */
    uint64_t prefill_rate;          /* the best one, tokens/s */
    struct stats stats;             /* as of worker_look() */
    struct stats former;            /* counters of previous incarnations */
    struct control_channel *control; /* NULL: none */
};
const struct worker_info *worker_info(const struct worker *w);
struct daemon *worker_daemon(const struct worker *w);
void worker_look(struct worker *w); /* updates info.stats */

/* The open requests of a worker, changed by request/dispatch.c; n_notices_due by
 * request/worker_notify.c. */
struct worker_requests {
    uint32_t n, n_seqs; /* n_seqs: outputs or beams */
    uint64_t tokens;
    uint32_t alone;         /* a suspect that runs alone, or REQUEST_NONE */
    uint32_t sending;       /* request whose SUBMIT is partly written, or REQUEST_NONE */
    uint32_t sent_bytes;    /* of that SUBMIT */
    uint32_t n_notices_due; /* requests whose CANCEL or SUSPEND did not fit into the ring */
};
struct worker_requests *worker_requests(struct worker *w);

/* ---- life cycle */

/* Makes d->worker[index], without a process. */
int worker_make(struct daemon *d, uint32_t index, uint32_t model, struct err *e) MUST_USE;
struct worker *worker_free(struct worker *w);
void worker_event(struct worker *w, enum super_event ev);
/* lagand stops: EV_STOP. The open requests have drain_timeout to finish. */
void worker_stop(struct worker *w, nsec drain_timeout);
/* lagand exits: kills the worker and reads its remaining records, without a replacement. */
void worker_end(struct worker *w);
/* Every 0.25 s: heartbeat, deadlines, timers, doorbell storms. late: further time in which lagand
 * or the host did not run. */
void worker_tick(struct worker *w, nsec now, nsec late);
nsec worker_timer(const struct worker *w); /* the earlier one of it and of its standby */

enum super_state worker_state(const struct worker *w);
const struct death *worker_death(const struct worker *w); /* the last one */
/* Stage of its standby: the name of the state, "driver up", or "" if there is none. */
const char *worker_standby(const struct worker *w);
bool worker_open(const struct worker *w);    /* may get requests */
bool worker_over(const struct worker *w);    /* down, failed or lost */
bool worker_returns(const struct worker *w); /* will get requests, now or after a restart */
/* The worker has sent READY; PHASE. */
void worker_ready(struct worker *w, uint32_t vocab);
void worker_loading(struct worker *w, uint64_t done, uint64_t total);

/* ---- rings */

/* Reads at most 1024 records or 256 KiB of the response ring, and messages of the control channels
 * of w and its standby. Returns true if there are more. */
bool worker_receive(struct worker *w);
/* Reads every complete record of a worker that has ended. For reap() and tests. */
void worker_receive_rest(struct worker *w);
/* ring_reserve() in the request ring; -EBADMSG also kills the worker. -EPIPE: it has ended or is
 * killed. */
int worker_reserve(struct worker *w, uint16_t type, uint16_t flags, uint32_t n, uint32_t spare,
                   void **to) MUST_USE;
void worker_publish(struct worker *w);
uint32_t worker_max_record(const struct worker *w); /* bytes that fit into one record */
/* Arms the doorbell. Returns false if there are records meanwhile. */
bool worker_sleep(struct worker *w);
void worker_wake(struct worker *w);                      /* disarms it */
const struct step_trace *worker_trace(struct worker *w); /* NULL: no shared memory */

/* ---- ranks of a rank group */

struct worker *worker_rank(struct worker *w, uint32_t rank); /* 0: w itself. NULL: no such rank */
struct arenas *worker_arenas(struct worker *w);              /* of this rank; see arenas.h */
