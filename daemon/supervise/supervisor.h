/* supervisor.h - the life cycle of one worker: state x event table, causes of death, backoff.
 *
 * Without system calls: time and events are arguments, actions are calls of struct super_ops.
 * worker.c owns the process. Only super_event() changes the state.
 *
 *     DOWN -> LOADING -> READY -> DRAINING -> STOPPING -> DOWN        on request
 *                 \________\__________\__> DYING -> BACKOFF -> LOADING   hung or broken
 *                                            \-> LOST                   cannot be killed
 *                  any death ------------------> BACKOFF | LOADING | FAILED
 *
 * A standby has a struct super of its own: LOADING -> STANDBY, and DOWN when its process becomes
 * the process of the worker. Its deaths and its backoff are counted apart from those of the worker.
 */
#pragma once

#include "base/base.h"

/* state, its name in output */
#define SUPER_STATES(X) \
    X(DOWN, "down") \
    X(LOADING, "loading") \
    X(READY, "ready") \
    X(STANDBY, "standby") \
    X(DRAINING, "draining") \
    X(STOPPING, "stopping") \
    X(DYING, "dying") \
    X(LOST, "lost") \
    X(BACKOFF, "backoff") \
    X(FAILED, "failed")

enum super_state {
#define X(id, name) SUPER_##id,
    SUPER_STATES(X)
#undef X
        SUPER_N_STATES
};

enum super_event {
    EV_START,         /* start: at start-up, or by an operator */
    EV_STOP,          /* finish the open requests, then end */
    EV_RESTART,       /* finish the open requests, end, start again */
    EV_REPLACE,       /* end now; the replacement continues the open requests */
    EV_READY,         /* the worker has sent READY */
    EV_EXIT,          /* the process has ended; call super_died() first */
    EV_TIMER,         /* super.timer is due */
    EV_BROKEN,        /* hung, or protocol error; the cause is super.suspect */
    EV_STANDBY_READY, /* a standby has loaded all but the arenas of its worker */
    EV_TAKEN,         /* the process of the standby is now the process of the worker */
    EV_N
};

/* cause, name, KV may be adopted, own fault (a strike for requests and arenas), counts towards
 * backoff and FAILED, sentence. Log, metrics and `workers list` use the table. */
#define DEATH_CAUSES(X) \
    X(NONE, "none", 1, 0, 0, "the process is running") \
    X(DRAINED, "drained", 1, 0, 0, "it finished its requests and exited") \
    X(OPERATOR, "operator", 1, 0, 0, "stopped on request") \
    X(KILLED, "killed", 1, 0, 0, \
      "killed from outside (an operator, or the kernel because of low memory)") \
    X(SILENT, "silent", 1, 0, 1, "its loop stopped without an overdue step") \
    X(OVERDUE, "overdue", 0, 1, 1, "a step exceeded its deadline") \
    X(SIGNAL, "signal", 0, 1, 1, "ended by a signal that its own code caused") \
    X(CHECK, "check", 0, 1, 1, "an internal check failed") \
    X(CORRUPTION, "corruption", 0, 1, 1, "it sent invalid data") \
    X(STORM, "bell_storm", 0, 1, 1, "it signalled the doorbell without writing records") \
    X(DEVICE, "device", 0, 1, 1, "the device failed") \
    X(EXITED, "exited", 0, 1, 1, "it exited without being asked to") \
    X(LOST, "device_lost", 0, 0, 1, "the device does not respond; its memory is lost") \
    X(CONFIG, "config", 0, 0, 1, "its configuration is wrong") \
    X(START, "start", 0, 0, 1, "it could not start")

enum death_cause {
#define X(id, name, adopt, fault, counts, sentence) DEATH_##id,
    DEATH_CAUSES(X)
#undef X
        DEATH_N
};

struct death {
    enum death_cause cause;
    bool adopt_kv;      /* no stray write is possible */
    bool fault;         /* its own: a strike for requests and arenas; verify the weights */
    bool counts;        /* towards backoff and FAILED */
    bool fatal;         /* a restart would end the same way: FAILED at once */
    bool early;         /* before it was READY or STANDBY */
    int status, signal; /* exit status, or the signal; the other is 0 */
};

struct super_ops {
    int (*spawn)(void *arg);       /* 0, or negative errno */
    void (*tell_drain)(void *arg); /* request: finish and exit */
    void (*kill)(void *arg, int sig);
    void (*reap)(void *arg, const struct death *d); /* read rings and output, release */
    void (*moved)(void *arg, enum super_state from, enum super_state to);
};

enum { SUPER_DEATHS = 10, SUPER_EARLY = 5, SUPER_SPAWNS = 21 };

struct super {
    enum super_state state;
    const struct super_ops *ops;
    void *arg;
    enum super_event event; /* the current one */
    nsec now;               /* its time */
    nsec timer;             /* when EV_TIMER is due; NSEC_NEVER: not */
    nsec start_timeout, drain_timeout;
    nsec ready_at;            /* when it last became READY, or STANDBY */
    bool was_ready;           /* this incarnation */
    bool restart_wanted;      /* start again when it has ended */
    enum death_cause suspect; /* why lagand kills it */
    struct death death;       /* the last one */
    uint32_t streak;          /* counted deaths without 60 s of service between them */
    uint32_t n_spawned, n_counted, n_early;
    nsec spawned[SUPER_SPAWNS], counted[SUPER_DEATHS], early[SUPER_EARLY]; /* rings of times */
    uint64_t random;
};

void super_init(struct super *s, const struct super_ops *ops, void *arg, uint64_t seed);
void super_event(struct super *s, enum super_event ev, nsec now);
/* The end as reported by the kernel: si_code CLD_*, si_status. has_panic: a failed check left a
 * panic message. */
void super_died(struct super *s, int code, int status, bool has_panic);
/* Ends the worker: EV_BROKEN with that cause. Only the first cause has an effect. */
void super_broken(struct super *s, enum death_cause cause, nsec now);
/* Extends the wait for the end of a killed process by late: time in which lagand did not run, or
 * the process was starved. */
void super_discount(struct super *s, nsec late);

const char *super_state_name(enum super_state s);
const char *death_name(enum death_cause c);
const char *death_sentence(enum death_cause c);
/* Delay before spawn number streak + 1: 0 after the first counted death, then 0.1 s x 2^k up to 30
 * s, each +-25 %. */
nsec super_backoff(uint32_t streak, uint64_t random);
