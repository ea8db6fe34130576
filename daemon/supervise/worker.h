/* worker.h - a worker as the other parts of lagand see it: facts, life cycle, rings, ranks.
 *
 * A struct worker lives as long as lagand; its processes (incarnations) follow one another. The
 * struct is private to daemon/supervise: worker_struct.h. */
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
    bool retired;   /* a reload has removed it: it stops, and is hidden when it is down */
    pid_t pid;      /* 0: no process */
    uint64_t epoch; /* of the present or last incarnation; 0: none yet */
    enum death_cause last_death;
    int last_status;      /* exit status of the last process; 0: a signal ended it */
    uint32_t restarts;    /* unrequested ends, also under previous lagands */
    char why_before[320]; /* `why` of the process before, until this one is READY; "": none */
    char why[320];        /* last line printed at level err, or the cause of the end */
    char low_memory[320]; /* sentence about an OOM kill; "": none lately (oom.h) */
    uint64_t load_done, load_total; /* bytes of weights: loaded, to load */
    uint32_t vocab;                 /* from its own READY: another worker may have an older model */
    char device[64];       /* from its READY, as "cpu (2 cores, avx2)"; "": not ready yet */
    nsec start_took;       /* duration of the last start, from spawn to READY */
    uint64_t prefill_rate; /* highest rate measured so far, in prompt tokens/s */
    struct stats stats;    /* as of the last worker_look() or worker_tick() */
    struct stats former;   /* counters of previous incarnations */
    struct control_channel *control; /* NULL: none */
};
const struct worker_info *worker_info(const struct worker *w);
struct daemon *worker_daemon(const struct worker *w);
void worker_look(struct worker *w); /* updates info.stats and worker_steps() */
struct step_log;
const struct step_log *worker_steps(const struct worker *w); /* step_log.h: its last steps */

/* Totals of a worker's open requests, which request/dispatch.c and worker_notify.c change. */
struct worker_requests {
    uint32_t n, n_seqs;     /* requests; their outputs or beams */
    uint64_t tokens;        /* their prompt and output tokens that may still be computed */
    uint32_t alone;         /* request that runs alone because it is suspected, or REQUEST_NONE */
    uint32_t sending;       /* request whose SUBMIT is partly written, or REQUEST_NONE */
    uint32_t sent_bytes;    /* bytes written of the SUBMIT of `sending` */
    uint32_t n_notices_due; /* requests whose CANCEL or SUSPEND did not fit into the ring yet */
};
struct worker_requests *worker_requests(struct worker *w);

/* ---- life cycle */

/* Allocates d->worker[index] with its standby and other ranks, without processes. */
int worker_make(struct daemon *d, uint32_t index, uint32_t model, struct err *e) MUST_USE;
struct worker *worker_free(struct worker *w);
void worker_event(struct worker *w, enum super_event ev);
/* Sends EV_STOP because lagand stops; the open requests of w have drain_timeout to finish. */
void worker_stop(struct worker *w, nsec drain_timeout);
/* For a reload: stops w for good, or starts a retired w again. */
void worker_retire(struct worker *w, bool retired);
/* For a reload, before EV_REPLACE: the settings of the model of w have changed. */
void worker_new_settings(struct worker *w);
void worker_take_timeouts(struct worker *w); /* start_timeout and shutdown_timeout of the options */
/* Kills the worker because lagand exits, and reads its remaining records; starts no replacement. */
void worker_end(struct worker *w);
/* Checks heartbeat, step deadline, timers and doorbell storms; called every 0.25 s. late: 0, or if
 * lagand or the host did not run, the time since the last call in excess of 0.25 s, which does not
 * count as silence. */
void worker_tick(struct worker *w, nsec now, nsec late);
nsec worker_timer(const struct worker *w); /* when the next EV_TIMER of w or its standby is due */

enum super_state worker_state(const struct worker *w);
const char *worker_standby(const struct worker *w); /* standby_stage() of the standby of w */
bool worker_open(const struct worker *w);    /* READY and not being killed: may get requests */
bool worker_over(const struct worker *w);    /* down, failed or lost: has no process to come */
bool worker_hidden(const struct worker *w);  /* retired and down: no reply or metric names it */
bool worker_returns(const struct worker *w); /* gets requests now, or after a restart */
/* Handle the worker's records READY (vocab: its vocabulary size; device: name of n bytes, below
 * READY_DEVICE) and PHASE (bytes of weights). */
void worker_ready(struct worker *w, uint32_t vocab, const char *device, size_t n);
void worker_loading(struct worker *w, uint64_t done, uint64_t total);

/* ---- rings */

/* Reads at most 1024 records or 256 KiB of the response ring, and messages of the control channels
 * of w and its standby. Returns true if there are more. */
bool worker_receive(struct worker *w);
/* Reads every complete record of a worker that has ended. */
void worker_receive_rest(struct worker *w);
/* Reserves a record in the request ring of w; arguments and result as ring_reserve(). -EBADMSG: the
 * ring is corrupt, and w is killed. -EPIPE: w has ended or is being killed. */
int worker_reserve(struct worker *w, uint16_t type, uint16_t flags, uint32_t n, uint32_t spare,
                   void **to) MUST_USE;
void worker_publish(struct worker *w);
uint32_t worker_max_record(const struct worker *w); /* bytes that fit into one record */
/* Arms the doorbell before lagand sleeps. Returns false if records have arrived meanwhile. */
bool worker_sleep(struct worker *w);
void worker_wake(struct worker *w);                      /* disarms the doorbell */
const struct step_trace *worker_trace(struct worker *w); /* NULL: w has no process */

/* ---- ranks of a rank group */

struct worker *worker_rank(struct worker *w, uint32_t rank); /* rank 0: w. NULL: no such rank */
struct arenas *worker_arenas(struct worker *w);              /* arenas of the process of w only */
