/* supervisor.h - the state machine of one worker: a table state x event -> action, the causes of
 * death, and the backoff before a restart.
 *
 * Makes no system calls: time and events are arguments, actions are calls of struct super_ops.
 * worker.c owns the process. Only super_event() changes the state. An "incarnation" is one process
 * of the worker, from its spawn to its end.
 *
 *     DOWN -> LOADING -> READY -> DRAINING -> STOPPING -> DOWN        on request
 *                 \________\__________\__> DYING -> BACKOFF -> LOADING   hung or broken
 *                                            \-> LOST                   cannot be killed
 *                  any death ------------------> BACKOFF | LOADING | FAILED
 *
 * A standby has a struct super of its own: LOADING -> STANDBY, then DOWN when its process becomes
 * the worker's process. Deaths and backoff of standby and worker are counted separately. */
#pragma once
#include "base/base.h"

/* state, name of the state in logs and replies */
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
    EV_START,         /* request: start the worker (lagand starts, or an operator asks) */
    EV_STOP,          /* request: finish the open requests, then end */
    EV_RESTART,       /* request: finish the open requests, end, start again */
    EV_REPLACE,       /* request: end now; the replacement continues the open requests */
    EV_READY,         /* the worker has sent READY */
    EV_EXIT,          /* the process has ended; call super_died() first */
    EV_TIMER,         /* super.timer is due */
    EV_BROKEN,        /* the process hangs or made a protocol error; super.suspect is the cause */
    EV_STANDBY_READY, /* a standby has loaded all but the arenas of its worker */
    EV_TAKEN,         /* the process of the standby is now the process of the worker */
    EV_N
};

/* Columns: cause, name, and for struct death: adopt_kv, fault, counts; a sentence for the log. */
#define DEATH_CAUSES(X) \
    X(NONE, "none", 1, 0, 0, "the process is running") \
    X(DRAINED, "drained", 1, 0, 0, "it finished its requests and exited") \
    X(OPERATOR, "operator", 1, 0, 0, "stopped on request") \
    X(KILLED, "killed", 1, 0, 0, "killed from outside, for example by an operator") \
    X(OOM, "oom", 1, 0, 1, "the kernel killed it because memory ran out") \
    X(SILENT, "silent", 1, 0, 1, "its loop stopped without an overdue step") \
    X(OVERDUE, "overdue", 0, 1, 1, "a step exceeded its deadline") \
    X(SIGNAL, "signal", 0, 1, 1, "ended by a signal that its own code caused") \
    X(CHECK, "check", 0, 1, 1, "an internal check failed") \
    X(CORRUPTION, "corruption", 0, 1, 1, "it sent invalid data") \
    X(STORM, "doorbell_storm", 0, 1, 1, "it signalled the doorbell without writing records") \
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

struct death { /* the end of one process */
    enum death_cause cause;
    bool adopt_kv;      /* the replacement may adopt the KV: a stray write was not possible */
    bool fault;         /* own fault: counts against its requests (quarantine.h) and its arenas */
    bool counts;        /* raises the backoff; too many of them make the worker FAILED */
    bool fatal;         /* a restart would end the same way: the worker is FAILED at once */
    bool early;         /* the process was not yet READY or STANDBY */
    int status, signal; /* exit status, or the signal; the other is 0 */
};

struct super_ops {                    /* actions, implemented by worker.c and standby.c */
    int (*spawn)(void *arg);          /* starts a process; 0, or negative errno */
    void (*tell_drain)(void *arg);    /* asks the process to finish its requests and exit */
    void (*kill)(void *arg, int sig); /* sends the signal */
    /* Reads the last records and output of the ended process, then releases its resources. */
    void (*reap)(void *arg, const struct death *d);
    void (*moved)(void *arg, enum super_state from, enum super_state to); /* state has changed */
};

/* A worker that has served is not FAILED if it then finds its model missing or wrong (exit status
 * 78), or too little free memory (71): the directory may be gone for a moment, other programs may
 * need the memory for a moment, and the weights are still in memory. It is started again with the
 * backoff. Otherwise a worker is FAILED at the 10th counted death, or the 5th early one, within 600
 * s. From the 21st restart within 10 s on, restarts are 0.1 s apart. */
enum { SUPER_DEATHS = 10, SUPER_EARLY = 5, SUPER_SPAWNS = 21 };

struct super {
    enum super_state state;
    const struct super_ops *ops;
    void *arg;
    enum super_event event; /* the event that is being handled */
    nsec now;               /* time of that event */
    nsec timer;             /* when EV_TIMER is due; NSEC_NEVER: no timer */
    nsec start_timeout, drain_timeout;
    nsec ready_at;            /* when the worker last became READY, or STANDBY */
    bool was_ready;           /* this incarnation has been READY, or STANDBY */
    bool served;              /* an incarnation with the present settings has been READY */
    bool restart_wanted;      /* spawn again when the process has ended */
    enum death_cause suspect; /* why lagand kills the process; DEATH_NONE: lagand does not */
    struct death death;       /* of the last process that ended */
    uint32_t streak;          /* counted deaths without 60 s of service between them */
    uint32_t n_spawned, n_counted, n_early; /* times ever added to the rings below */
    /* Rings of times: of restarts after a death, of counted deaths, of early counted deaths. */
    nsec spawned[SUPER_SPAWNS], counted[SUPER_DEATHS], early[SUPER_EARLY];
    uint64_t random;
};

void super_init(struct super *s, const struct super_ops *ops, void *arg, uint64_t seed);
/* Runs the action of the table for ev in the present state; no effect if the table has none. */
void super_event(struct super *s, enum super_event ev, nsec now);
/* Sets s->death from the end that the kernel reports: code is si_code (CLD_*), status is si_status.
 * has_panic: a failed check left a panic message. oom: a SIGKILL came from the kernel, because
 * memory ran out (oom.h). EV_EXIT then changes the state. */
void super_died(struct super *s, int code, int status, bool has_panic, bool oom);
/* Kills a process that hangs or made a protocol error: EV_BROKEN with that cause of death. A later
 * call with another cause does not replace the first cause. */
void super_broken(struct super *s, enum death_cause cause, nsec now);
/* Extends the wait for a killed process by `late`: time in which it or lagand did not run. */
void super_discount(struct super *s, nsec late);

const char *super_state_name(enum super_state s);
const char *death_name(enum death_cause c);
const char *death_sentence(enum death_cause c);
/* Returns the delay before the restart that follows `streak` counted deaths: 0 after the first,
 * then 0.1 s, doubled with each death up to 30 s, each changed at random by up to 25 %. */
nsec super_backoff(uint32_t streak, uint64_t random);
