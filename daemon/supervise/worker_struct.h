/* worker_struct.h - struct worker, private to daemon/supervise: process, rings, health, output. */
#pragma once

#include "daemon/persist/event_log.h"
#include "daemon/supervise/cpu_starvation.h"
#include "daemon/supervise/worker.h"
#include "ipc/channel.h"

struct worker {
    struct worker_info info;
    struct worker_requests requests;
    struct daemon *d;
    struct super super;
    struct arenas arenas;
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
    struct channel channel;
    int fd_channel_sock, log;
    sd_event_source *on_exit, *on_doorbell, *on_fd_channel, *on_log, *on_no_end, *on_calm;
    nsec spawned_at, heartbeat_at;
    uint64_t heartbeat; /* hb_count at its last change, at heartbeat_at */
    nsec deadline;      /* of its step */
    nsec discount;      /* time since then in which lagand or the worker could not run */
    struct cpu_starvation starved;
    bool warned, asked;        /* silent: logged; SIGUSR2 sent for a panic message */
    nsec fd_channel_closed_at; /* 0: open */

    /* rings: worker_rings.c */
    bool protocol_error;                              /* its records are not read any more */
    nsec doorbell_closed_at;                          /* 0: open */
    uint32_t n_signals;                               /* events of the doorbell */
    uint64_t signalled_records;                       /* n_records at the last event */
    uint64_t storm_signals, storm_records, n_records; /* at the last check; records ever */
    nsec storm_at;

    uint64_t prompt_tokens; /* the counter at rate_at; see measure() */
    nsec rate_at;

    char line[LOG_LINE]; /* incomplete line from its pipe */
    size_t n_line;
    char last_line[LOG_LINES][LOG_LINE];
    uint32_t n_lines;
};

/* For standby.c: the spawn and kill callbacks of supervisor.h, and a struct worker without a
 * process. */
int worker_spawn(void *arg);
void worker_kill(void *arg, int sig);
struct worker *worker_new(struct daemon *d, uint32_t index, uint32_t model, const char *name,
                          const struct super_ops *ops);

/* For rank_group.c: adds the event sources of the process. */
int worker_watch(struct worker *w, struct err *e);
/* For rank_group.c: all processes of w have ended. code: CLD_*. has_panic: a failed check left a
 * panic message. */
void worker_ended(struct worker *w, int code, int status, bool has_panic);
/* For rank_group.c: time since the last tick that does not count as silence; at least late. */
nsec worker_discount(struct worker *w, nsec now, nsec late);

/* worker_rings.c: handler of sd-event for the doorbell (arg: the struct worker), the check of
 * worker_tick() for doorbell storms, and DRAIN, with which the worker finishes its requests. */
int worker_on_doorbell(sd_event_source *s, int fd, uint32_t revents, void *arg);
void worker_check_storm(struct worker *w, nsec now);
void worker_send_drain(struct worker *w);
