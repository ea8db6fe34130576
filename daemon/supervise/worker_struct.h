/* worker_struct.h - struct worker, private to daemon/supervise: process, rings, health, output.
 * Three kinds share it: a worker, a standby (`of` is set), a rank above 0 (`lead` is set). */
#pragma once
#include "daemon/persist/event_log.h"
#include "daemon/supervise/cpu_starvation.h"
#include "daemon/supervise/step_log.h"
#include "daemon/supervise/worker.h"
#include "ipc/channel.h"

/* Indices of worker.on[]. When a standby's process becomes the worker's, sources up to ON_LOG move
 * with it. ON_NO_END, ON_CALM: timers of fd_channel_ended() and, in standby.c, start_later(). */
enum { ON_EXIT, ON_DOORBELL, ON_FD_CHANNEL, ON_LOG, ON_NO_END, ON_CALM, N_SOURCES };

struct worker {
    struct worker_info info;
    struct worker_requests requests;
    struct daemon *d;
    struct super super;
    struct arenas arenas;
    uint64_t max_kv;        /* limit of the KV memory of its processes, in bytes; 0: none (oom.h) */
    uint64_t last_epoch;    /* last epoch given to a process of this worker or its standby */
    struct worker *standby; /* in a worker: its standby; NULL in a standby, in a rank above 0 */
    struct worker *of;      /* in a standby: its worker; else NULL */
    bool prepare_sent;      /* standby: `begin` was sent, or is sent with the start (standby.h) */
    struct worker *lead;    /* in a rank above 0: rank 0 of its rank group; else NULL */
    uint32_t rank, n_others;
    struct worker *other[MAX_RANKS - 1]; /* [n_others], ranks 1, 2, ...: rank_group.h */
    struct end {                         /* how and when the first process of the group ended */
        bool known, has_panic;
        int code, status;
        nsec at;
    } end;

    /* valid while there is a process */
    bool alive;
    struct channel channel;
    int fd_channel_sock, log;
    sd_event_source *on[N_SOURCES];
    nsec spawned_at, heartbeat_at;
    uint64_t heartbeat; /* last value of shm_ctl.hb_count, which changed at heartbeat_at */
    nsec deadline;      /* last value of shm_ctl.phase_deadline_ns, of the present step or phase */
    nsec discount;      /* time since `deadline` was set in which lagand or w could not run */
    struct cpu_starvation starved;
    bool warned, asked;        /* heartbeat late: logged; SIGUSR2 sent for a panic message */
    nsec fd_channel_closed_at; /* 0: open */

    /* rings: worker_rings.c */
    bool protocol_error;                   /* records of this process are not read any more */
    nsec doorbell_closed_at;               /* 0: open */
    uint32_t n_signals;                    /* events of the doorbell */
    uint64_t n_records;                    /* records read from this process */
    uint64_t signalled_records;            /* n_records at the last event of the doorbell */
    uint64_t storm_signals, storm_records; /* doorbell bytes, n_records at the last storm check */
    nsec storm_at;                         /* time of the last storm check */

    struct step_log *steps; /* NULL in a standby and in a rank above 0 */

    uint64_t prompt_tokens; /* value of STAT_prompt_tokens at rate_at; see measure_rate() */
    nsec rate_at;

    char line[LOG_LINE]; /* [n_line], the incomplete last line from the log pipe */
    size_t n_line;
    char last_line[LOG_LINES][LOG_LINE]; /* ring of the last lines; n_lines were ever added */
    uint32_t n_lines;
};

/* For standby.c: super_ops.spawn and .kill (arg: the struct worker); allocates a struct worker. */
int worker_spawn(void *arg);
void worker_kill(void *arg, int sig);
struct worker *worker_new(struct daemon *d, uint32_t index, uint32_t model, const char *name,
                          const struct super_ops *ops);

/* For rank_group.c: adds the event sources of the process. */
int worker_watch(struct worker *w, struct err *e);
/* For rank_group.c: sends EV_EXIT when all processes of w have ended; arguments as super_died(). */
void worker_ended(struct worker *w, int code, int status, bool has_panic);
/* For rank_group.c: returns how much of the time since the last tick does not count as silence of
 * w: at least `late` (see worker_tick()), more if w was starved of CPU time. */
nsec worker_discount(struct worker *w, nsec now, nsec late);

/* In worker_rings.c: the sd-event handler of the doorbell (arg: the struct worker), the check for
 * doorbell storms that worker_tick() calls, and super_ops.tell_drain, which sends DRAIN. */
int worker_on_doorbell(sd_event_source *s, int fd, uint32_t revents, void *arg);
void worker_check_storm(struct worker *w, nsec now);
void worker_send_drain(void *arg);
