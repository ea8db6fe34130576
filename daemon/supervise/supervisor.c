/* supervisor.c - see supervisor.h.
 *
 * The table state x event -> action is at the end, the actions are before it. */
#include "daemon/supervise/supervisor.h"

#include "base/clock.h"
#include "ipc/exit_code.h"

#include <signal.h>
#include <sys/wait.h>

static const nsec GOOD_TIME = 60 * NSEC_S;       /* a worker READY for this long resets streak */
static const nsec WINDOW = 600 * NSEC_S;         /* window of SUPER_DEATHS and SUPER_EARLY */
static const nsec TERM_GRACE = 5 * NSEC_S;       /* time from SIGTERM to SIGKILL */
static const nsec KILL_GRACE = 10 * NSEC_S;      /* time from SIGKILL to the state LOST */
static const nsec SPAWN_WINDOW = 10 * NSEC_S;    /* after SUPER_SPAWNS restarts in this window, */
static const nsec SPAWN_SPACING = 100 * NSEC_MS; /* a restart is delayed by this time */
static const nsec BACKOFF_FIRST = 100 * NSEC_MS, BACKOFF_MOST = 30 * NSEC_S; /* delays */

static const struct cause_info {
    const char *name;
    bool adopt, fault, counts;
    const char *sentence;
} cause_table[DEATH_N] = {
#define X(id, name, adopt, fault, counts, sentence) { name, adopt, fault, counts, sentence },
    DEATH_CAUSES(X)
#undef X
};

const char *
super_state_name(enum super_state s)
{
    static const char *const names[] = {
#define X(id, name) name,
        SUPER_STATES(X)
#undef X
    };
    check((unsigned)s < ARRAY_LEN(names));
    return names[s];
}

const char *
death_name(enum death_cause c)
{
    check((unsigned)c < DEATH_N);
    return cause_table[c].name;
}

const char *
death_sentence(enum death_cause c)
{
    check((unsigned)c < DEATH_N);
    return cause_table[c].sentence;
}

void
super_init(struct super *s, const struct super_ops *ops, void *arg, uint64_t seed)
{
    *s = (struct super){
        .ops = ops,
        .arg = arg,
        .timer = NSEC_NEVER,
        .start_timeout = NSEC_NEVER,
        .drain_timeout = 30 * NSEC_S,
        .random = seed,
    };
}

nsec
super_backoff(uint32_t streak, uint64_t random)
{
    nsec wait;

    if (streak <= 1) return 0;
    wait = streak > 10 ? BACKOFF_MOST : MIN(BACKOFF_FIRST << (streak - 2), BACKOFF_MOST);
    return MIN(wait * 3 / 4 + (nsec)(random % (uint64_t)(wait / 2)), BACKOFF_MOST);
}

static uint64_t
draw(struct super *s)
{
    s->random = s->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return s->random >> 20;
}

/* Adds now to the ring of `size` times; *n is the number of times ever added. Returns true if the
 * last `size` times, now included, are within the window. */
static bool
too_often(nsec *ring, uint32_t size, uint32_t *n, nsec now, nsec window)
{
    ring[(*n)++ % size] = now;
    return *n >= size && now - ring[*n % size] <= window;
}

/* Returns true if a start ends with this exit status until an operator acts. */
static bool
is_config(int status)
{
    return status == EXIT_CONFIG || status == EXIT_NO_PERMISSION;
}

static enum death_cause
cause_of(const struct super *s, int code, int status, bool has_panic, bool oom)
{
    bool stops = s->state == SUPER_STOPPING;

    if (s->suspect != DEATH_NONE) return s->suspect;
    if (code != CLD_EXITED) {
        if (stops && status == SIGTERM) return DEATH_OPERATOR;
        if (status == SIGKILL) return oom ? DEATH_OOM : DEATH_KILLED;
        return has_panic ? DEATH_CHECK : DEATH_SIGNAL;
    }
    if (status == 0 && (stops || s->state == SUPER_DRAINING)) return DEATH_DRAINED;
    if (is_config(status) && s->served) return DEATH_START;
    if (is_config(status) || status == EXIT_REFUSED) return DEATH_CONFIG;
    if (status == EXIT_DEVICE) return s->was_ready ? DEATH_DEVICE : DEATH_LOST;
    return s->was_ready ? DEATH_EXITED : DEATH_START;
}

void
super_died(struct super *s, int code, int status, bool has_panic, bool oom)
{
    enum death_cause c = cause_of(s, code, status, has_panic, oom);

    s->death = (struct death){
        .cause = c,
        .adopt_kv = cause_table[c].adopt,
        .fault = cause_table[c].fault,
        .counts = cause_table[c].counts,
        .fatal = c == DEATH_CONFIG,
        .early = !s->was_ready,
        .status = code == CLD_EXITED ? status : 0,
        .signal = code == CLD_EXITED ? 0 : status,
    };
}

/* ---- actions: each returns the next state */

static enum super_state
sleep_for(struct super *s, nsec wait)
{
    s->timer = clock_after(s->now, wait);
    return SUPER_BACKOFF;
}

static enum super_state after_death(struct super *s);

static enum super_state
spawn(struct super *s)
{
    s->was_ready = false;
    s->restart_wanted = false;
    s->suspect = DEATH_NONE;
    s->timer = clock_after(s->now, s->start_timeout);
    if (s->ops->spawn(s->arg) == 0) return SUPER_LOADING;
    /* A failed spawn counts as a death before READY. */
    s->death = (struct death){ .cause = DEATH_START, .counts = true, .early = true };
    return after_death(s);
}

/* The worker has served, and what keeps it from starting may pass: memory or files are missing. */
static bool
may_pass(const struct super *s)
{
    return s->served && (is_config(s->death.status) || s->death.status == EXIT_NO_MEMORY);
}

static enum super_state
after_death(struct super *s)
{
    bool failed = s->death.fatal, crowded;

    if (s->death.counts && !may_pass(s)) {
        failed |= too_often(s->counted, SUPER_DEATHS, &s->n_counted, s->now, WINDOW);
        if (s->death.early) failed |= too_often(s->early, SUPER_EARLY, &s->n_early, s->now, WINDOW);
    }
    if (s->death.counts) {
        if (s->was_ready && s->now - s->ready_at >= GOOD_TIME) s->streak = 0;
        s->streak++;
    }
    if (failed) {
        s->timer = NSEC_NEVER;
        return SUPER_FAILED;
    }
    crowded = too_often(s->spawned, SUPER_SPAWNS, &s->n_spawned, s->now, SPAWN_WINDOW);
    if (s->death.counts && s->streak > 1) return sleep_for(s, super_backoff(s->streak, draw(s)));
    /* A failed spawn is not tried again here, because that would recurse. */
    if (crowded || (s->death.cause == DEATH_START && !s->was_ready && s->death.status == 0))
        return sleep_for(s, SPAWN_SPACING);
    return spawn(s);
}

/* Handles that the worker has sent READY, or that a standby has loaded. */
static enum super_state
serve(struct super *s)
{
    s->was_ready = s->served = true;
    s->ready_at = s->now;
    s->timer = NSEC_NEVER;
    return s->event == EV_READY ? SUPER_READY : SUPER_STANDBY;
}

static enum super_state
drain(struct super *s)
{
    s->restart_wanted |= s->event == EV_RESTART;
    s->ops->tell_drain(s->arg);
    s->timer = clock_after(s->now, s->drain_timeout);
    return SUPER_DRAINING;
}

static enum super_state
term(struct super *s)
{
    s->restart_wanted |= s->event == EV_RESTART || s->event == EV_REPLACE;
    s->ops->kill(s->arg, SIGTERM);
    s->timer = clock_after(s->now, TERM_GRACE);
    return SUPER_STOPPING;
}

/* The process is ending already: the event only changes whether the worker starts again. */
static enum super_state
decide(struct super *s)
{
    s->restart_wanted = s->event != EV_STOP;
    return s->state;
}

static enum super_state
kill9(struct super *s)
{
    /* Without a suspect the timer is due: the time to start, or to stop on request, is over. */
    if (s->suspect == DEATH_NONE)
        s->suspect = s->state == SUPER_LOADING ? DEATH_START : DEATH_OPERATOR;
    /* The worker starts again afterwards, unless a stop was requested before. */
    s->restart_wanted |= s->state == SUPER_LOADING || s->state == SUPER_READY ||
                         s->state == SUPER_STANDBY;
    s->ops->kill(s->arg, SIGKILL);
    s->timer = clock_after(s->now, KILL_GRACE);
    return SUPER_DYING;
}

static enum super_state
lose(struct super *s)
{
    s->timer = NSEC_NEVER;
    return SUPER_LOST;
}

static enum super_state
died(struct super *s)
{
    s->ops->reap(s->arg, &s->death);
    return after_death(s);
}

/* Handles the end of a process that was asked to exit, or that lagand killed. */
static enum super_state
reap(struct super *s)
{
    s->ops->reap(s->arg, &s->death);
    s->timer = NSEC_NEVER;
    if (!s->restart_wanted) return SUPER_DOWN;
    return s->death.counts ? after_death(s) : spawn(s);
}

/* The process of a LOST worker has ended after all. The worker becomes FAILED and is not restarted,
 * because the same device problem could prevent the end of the next process too. */
static enum super_state
give_up(struct super *s)
{
    s->ops->reap(s->arg, &s->death);
    return SUPER_FAILED;
}

static enum super_state
rest(struct super *s)
{
    s->timer = NSEC_NEVER;
    return SUPER_DOWN;
}

/* An operator starts the worker: clears the counts of deaths, and with them the backoff. */
static enum super_state
revive(struct super *s)
{
    s->streak = s->n_counted = s->n_early = s->n_spawned = 0;
    return spawn(s);
}

typedef enum super_state action(struct super *s);

/* clang-format off */
static action *const table[SUPER_N_STATES][EV_N] = {
/*                   START   STOP    RESTART REPLACE READY  EXIT     TIMER  BROKEN STANDBY TAKEN */
[SUPER_DOWN]     = { spawn,  NULL,   spawn,  NULL,   NULL,  NULL,    NULL,  NULL,  NULL,   NULL },
[SUPER_LOADING]  = { NULL,   term,   term,   term,   serve, died,    kill9, kill9, serve,  rest },
[SUPER_READY]    = { NULL,   drain,  drain,  term,   NULL,  died,    NULL,  kill9, NULL,   NULL },
[SUPER_STANDBY]  = { NULL,   term,   term,   term,   NULL,  died,    NULL,  kill9, NULL,   rest },
[SUPER_DRAINING] = { decide, decide, decide, NULL,   NULL,  reap,    term,  kill9, NULL,   NULL },
[SUPER_STOPPING] = { decide, decide, decide, NULL,   NULL,  reap,    kill9, kill9, NULL,   NULL },
[SUPER_DYING]    = { decide, decide, decide, NULL,   NULL,  reap,    lose,  NULL,  NULL,   NULL },
[SUPER_LOST]     = { NULL,   NULL,   NULL,   NULL,   NULL,  give_up, NULL,  NULL,  NULL,   NULL },
[SUPER_BACKOFF]  = { spawn,  rest,   revive, revive, NULL,  NULL,    spawn, NULL,  NULL,   NULL },
[SUPER_FAILED]   = { revive, rest,   revive, revive, NULL,  NULL,    NULL,  NULL,  NULL,   NULL },
};
/* clang-format on */

void
super_event(struct super *s, enum super_event ev, nsec now)
{
    enum super_state from = s->state;
    action *act;

    check((unsigned)ev < EV_N && (unsigned)from < SUPER_N_STATES);
    act = table[from][ev];
    if (!act) return;
    s->now = now;
    s->event = ev;
    s->state = act(s);
    if (s->state != from || ev == EV_EXIT) s->ops->moved(s->arg, from, s->state);
}

void
super_broken(struct super *s, enum death_cause cause, nsec now)
{
    if (s->suspect == DEATH_NONE) s->suspect = cause;
    super_event(s, EV_BROKEN, now);
}

void
super_discount(struct super *s, nsec late)
{
    if (s->state == SUPER_DYING) s->timer = clock_after(s->timer, late);
}
