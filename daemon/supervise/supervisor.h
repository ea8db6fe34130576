/* supervisor.h - the life of one worker: state x event, causes of death, backoff.
 *
 * Pure: time and events come in as arguments, what must happen goes out through struct super_ops.
 * The driver (worker.c) owns the process; here is only what follows from what. super_event() is the
 * one place where the state changes.
 *
 *     DOWN -> LOADING -> READY -> DRAINING -> STOPPING -> DOWN        as wanted
 *                 \________\__________\__> DYING -> BACKOFF -> LOADING   hung or broken: we killed it
 *                                            \-> LOST                    it cannot be killed
 *                  any death ------------------> BACKOFF | LOADING | FAILED
 *
 * A standby has a table of its own, the same one: LOADING -> STANDBY, and DOWN when its process has become
 * the worker's. So its deaths count and back off by themselves, and none of them is a worker's.
 */
#ifndef DAEMON_SUPERVISE_SUPERVISOR_H
#define DAEMON_SUPERVISE_SUPERVISOR_H

#include "base/base.h"

/* state, word for people, may requests be given to it */
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
#define X(name, word) SUPER_##name,
    SUPER_STATES(X)
#undef X
        SUPER_N_STATES
};

enum super_event {
    EV_START,   /* wanted: at start-up, or by an operator */
    EV_STOP,    /* not wanted any more: finish what it has */
    EV_AGAIN,   /* restart: finish, then start anew */
    EV_REPLACE, /* start anew now: what is open goes on in the next one */
    EV_READY,   /* the worker says that it serves */
    EV_EXIT,    /* its pidfd is readable; super_died() first */
    EV_TIMER,   /* super.timer has come */
    EV_BROKEN,  /* hung or not to be believed; super.suspect says what */
    EV_WAITS,   /* a standby says that it has all but what a worker leaves */
    EV_TAKEN,   /* its process is the worker's now */
    EV_N
};

/* cause, word, adopt KV, its own fault (blames requests, strikes arenas), counts towards backoff and
 * FAILED, sentence. Journal, metrics and `workers list` use it. */
#define DEATH_CAUSES(X) \
    X(NONE, "none", 1, 0, 0, "it is alive") \
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
    X(EXITED, "exited", 0, 1, 1, "it exited without an order") \
    X(LOST, "device_lost", 0, 0, 1, "the device does not answer; its memory is lost") \
    X(CONFIG, "config", 0, 0, 1, "its configuration is wrong") \
    X(START, "start", 0, 0, 1, "it could not start")

enum death_cause {
#define X(name, word, adopt, fault, counts, sentence) DEATH_##name,
    DEATH_CAUSES(X)
#undef X
        DEATH_N
};

struct death {
    enum death_cause cause;
    bool adopt_kv;      /* nobody wild has written to it */
    bool fault;         /* its own: blames requests, strikes arenas, weights are to be verified */
    bool counts;        /* towards backoff and FAILED */
    bool fatal;         /* the same would happen again: FAILED at once */
    bool early;         /* before it was READY or STANDBY */
    int status, signal; /* exit status, or the signal; the other is 0 */
};

struct super_ops {
    int (*spawn)(void *arg);                        /* 0, or negative: it could not be made */
    void (*tell_drain)(void *arg);                  /* finish and leave */
    void (*kill)(void *arg, int sig);               /* to the process */
    void (*reap)(void *arg, const struct death *d); /* reaped: read its rings and words, answer */
    void (*moved)(void *arg, enum super_state from, enum super_state to);
};

enum { SUPER_DEATHS = 10, SUPER_EARLY = 5, SUPER_SPAWNS = 21 };

struct super {
    enum super_state state;
    const struct super_ops *ops;
    void *arg;
    nsec now;   /* of the event being worked on */
    nsec timer; /* when EV_TIMER is due; NSEC_NEVER */
    nsec start_timeout, drain_timeout;
    nsec ready_at;            /* when it last became READY, or STANDBY */
    bool was_ready, again;    /* this incarnation; start anew when it has left */
    enum death_cause suspect; /* why we kill it */
    struct death death;       /* the last one */
    uint32_t streak;          /* counted deaths without a good minute between */
    uint32_t n_spawned, n_counted, n_early;
    nsec spawned[SUPER_SPAWNS], counted[SUPER_DEATHS], early[SUPER_EARLY]; /* rings of instants */
    uint64_t random;
};

void super_init(struct super *s, const struct super_ops *ops, void *arg, uint64_t seed);
void super_event(struct super *s, enum super_event ev, nsec now);
/* What the kernel says of the end: si_code CLD_*, si_status. words: it left last words of a check. */
void super_died(struct super *s, int code, int status, bool words);
/* The worker must go because of that: EV_BROKEN with the cause. Once; a second cause changes nothing. */
void super_broken(struct super *s, enum death_cause cause, nsec now);
/* The end of one that was killed may come so much later: we stood still, or it had no processor to die. */
void super_discount(struct super *s, nsec late);

const char *super_state_word(enum super_state s);
const char *death_word(enum death_cause c);
const char *death_sentence(enum death_cause c);
/* How long to wait before spawn number streak + 1: 0 after the first counted death, then 0.1 s x 2^k
 * up to 30 s, a quarter more or less. */
nsec super_backoff(uint32_t streak, uint64_t random);

#endif
