/* worker.h - struct worker: the process, rings, health and open requests of one worker. */
#pragma once

#include "base/base.h"
#include "daemon/daemon.h"
#include "daemon/persist/event_log.h"
#include "daemon/supervise/arenas.h"
#include "daemon/supervise/cpu_starvation.h"
#include "daemon/supervise/supervisor.h"
#include "ipc/channel.h"
#include "ipc/stat.h"

#include <sys/types.h>

struct control_channel;

struct worker {
    struct daemon *d;
    char name[16]; /* "w0" */
    uint32_t index, model;
    struct super super;
    struct arenas arenas;
    uint64_t epoch;         /* of the present or last incarnation; 0: none yet */
    uint64_t last_epoch;    /* the last number in use, also by standbys */
    struct worker *standby; /* NULL: it is one itself */
    struct worker *of;      /* the worker of this standby; NULL: it is a worker */
    bool prepare_sent;      /* to a standby: open the device, map the weights */
    struct worker *lead;    /* rank 0 of its rank group; NULL: it is rank 0, or alone */
    uint32_t rank, n_others;
    struct worker *other[MAX_RANKS - 1]; /* ranks from 1 on: rank_group.h */
    struct end {                         /* of the first process of a rank group that ended */
        bool known, has_panic;
        int code, status;
        nsec at;
    } end;

    /* while there is a process */
    bool alive;
    pid_t pid;
    struct channel channel;
    int fd_channel_sock, log;
    sd_event_source *on_exit, *on_doorbell, *on_fd_channel, *on_log, *on_no_end, *on_calm;
    struct control_channel *control;
    nsec spawned_at, heartbeat_at;
    uint64_t heartbeat; /* hb_count at its last change, at heartbeat_at */
    nsec deadline;      /* of its step */
    nsec discount;      /* time since then in which lagand or the worker could not run */
    struct cpu_starvation starved;
    bool warned, asked;         /* silent: logged; SIGUSR2 sent for a panic message */
    nsec doorbell_closed_at;    /* 0: open */
    nsec fd_channel_closed_at;  /* 0: open */
    uint32_t n_signals;         /* events of the doorbell */
    uint64_t signalled_records; /* n_records at the last event */
    uint64_t storm_signals, storm_records, n_records; /* at the last check; records ever */
    nsec storm_at;

    /* open requests */
    uint32_t n_requests, n_seqs; /* n_seqs: outputs or beams */
    uint64_t tokens;
    uint32_t alone;         /* a suspect that runs alone, or REQUEST_NONE */
    uint32_t sending;       /* request whose SUBMIT is partly written, or REQUEST_NONE */
    uint32_t sent_bytes;    /* of that SUBMIT */
    uint32_t n_notices_due; /* requests whose CANCEL or SUSPEND did not fit into the ring */
    bool full;              /* the request ring was full in this loop iteration */
    bool protocol_error;    /* its records are not read any more */

    uint32_t vocab; /* from its own READY: another worker may have an older model */
    uint64_t load_done, load_total;
    uint32_t restarts;
    nsec ready_at, start_took; /* start_took: last time from spawn to READY */
    uint64_t rate, taken_in;   /* best prefill rate, tokens/s; the counter at rate_at */
    nsec rate_at;
    char why[240]; /* last line at level err, or the cause of its end */
    struct stats stats;
    struct stats former; /* counters of previous incarnations */

    char line[LOG_LINE]; /* incomplete line from its pipe */
    size_t n_line;
    char last_line[LOG_LINES][LOG_LINE];
    uint32_t n_lines;
};

int worker_make(struct daemon *d, uint32_t index, uint32_t model, struct err *e) MUST_USE;
struct worker *worker_free(struct worker *w);

/* Shared with standby.c: the spawn and kill callbacks of supervisor.h, and a struct worker without
 * a process. */
int worker_spawn(void *arg);
void worker_kill(void *arg, int sig);
struct worker *worker_new(struct daemon *d, uint32_t index, uint32_t model, const char *name,
                          const struct super_ops *ops);
void worker_look(struct worker *w); /* updates stats */

/* For rank_group.c: adds the event sources of the process. */
int worker_watch(struct worker *w, struct err *e);
/* For rank_group.c: all processes of w have ended. code: CLD_*. has_panic: a failed check left a
 * panic message. */
void worker_ended(struct worker *w, int code, int status, bool has_panic);

/* lagand exits: kills the worker and reads its remaining records, without a replacement. */
void worker_end(struct worker *w);

void worker_event(struct worker *w, enum super_event ev);
/* Protocol error or hung: logs one line and kills the worker. */
void worker_broken(struct worker *w, enum death_cause cause, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
/* Every 0.25 s: heartbeat, deadlines, timers, doorbell storms. late: further time in which lagand
 * or the host did not run. */
void worker_tick(struct worker *w, nsec now, nsec late);
/* For rank_group.c: time since the last tick that does not count as silence; at least late. */
nsec worker_discount(struct worker *w, nsec now, nsec late);
nsec worker_timer(const struct worker *w); /* the earlier one of it and of its standby */
bool worker_open(const struct worker *w);  /* may get requests */
bool worker_over(const struct worker *w);  /* down, failed or lost */
