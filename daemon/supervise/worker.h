/* worker.h - one worker as lagand sees it: process, rings, health, what it has in hand. */
#ifndef DAEMON_SUPERVISE_WORKER_H
#define DAEMON_SUPERVISE_WORKER_H

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
    uint64_t last_epoch;    /* that was given, standbys' too */
    struct worker *standby; /* NULL: it is one itself */
    struct worker *of;      /* whose standby it is; NULL: a worker */
    bool begun; /* a standby that was told so: it is to have all but what its worker leaves */
    struct worker *lead; /* the worker that is rank 0 of its group; NULL: it is that, or alone */
    uint32_t rank, n_others;
    struct worker *other[MAX_RANKS - 1]; /* of a worker, the ranks from 1 on: rank_group.h */
    struct end {                         /* of whoever of a group ended first */
        bool known, words;
        int code, status;
        nsec at;
    } end;

    /* while there is a process */
    bool alive;
    pid_t pid;
    struct channel channel;
    int hand, log;
    sd_event_source *on_exit, *on_bell, *on_hand, *on_log, *on_no_end, *on_calm;
    struct control_channel *control;
    nsec spawned_at, beat_at;
    uint64_t beat; /* hb_count when it last moved, at beat_at */
    nsec deadline,
        discount; /* of its step; time that passed while we stood still, or it could not run */
    struct cpu_starvation starved;
    bool warned, asked;         /* silent: told people; asked for its last words */
    nsec bell_lost;             /* since when its end of the bell is shut; 0: open */
    nsec hand_lost;             /* its end of hand */
    uint32_t n_signals;         /* events of its bell */
    uint64_t signalled_records; /* records at the last of them */
    uint64_t storm_bells, storm_records, n_records; /* at the last look; records ever */
    nsec storm_at;

    /* what it has in hand */
    uint32_t n_rows, n_seqs; /* requests; sequences of them: outputs or beams */
    uint64_t tokens;
    uint32_t alone;       /* a suspect that is to run alone, REQUEST_NONE */
    uint32_t sending;     /* row whose SUBMIT is under way, REQUEST_NONE */
    uint32_t sent_bytes;  /* of it */
    uint32_t n_words_due; /* rows with a cancel or a pause that found no room */
    bool full;            /* its request ring had no room this turn */
    bool protocol_error;  /* it has broken a rule: nothing that it says is read any more */

    uint32_t vocab; /* as its own READY said: a sibling's model may be older */
    uint64_t load_done, load_total;
    uint32_t restarts;
    nsec ready_at, start_took; /* from spawn to READY, the last time */
    uint64_t rate, taken_in;   /* prompt tokens a second at best; of its counter, at rate_at */
    nsec rate_at;
    char why[240]; /* the last thing it said at level error, or why it ended */
    struct stats stats;
    struct stats former; /* counters of those that have died */

    char line[LOG_LINE]; /* being read from its pipe */
    size_t n_line;
    char last_line[LOG_LINES][LOG_LINE];
    uint32_t n_lines;
};

int worker_make(struct daemon *d, uint32_t index, uint32_t model, struct err *e) MUST_USE;
struct worker *worker_free(struct worker *w);

/* Shared with standby.c: the spawn and kill callbacks of supervisor.h, and a struct worker without a
 * process. */
int worker_spawn(void *arg);
void worker_kill(void *arg, int sig);
struct worker *worker_new(struct daemon *d, uint32_t index, uint32_t model, const char *name,
                          const struct super_ops *ops);
void worker_look(struct worker *w); /* stats: as they are now */

/* For rank_group.c: watches the process, its rings and its pipes; all processes of w have ended, as the
 * kernel said (code CLD_*). words: there is a panic message of a failed check. */
int worker_watch(struct worker *w, struct err *e);
void worker_ended(struct worker *w, int code, int status, bool words);

/* Kill it and hear what it had said; nothing follows from its end. lagand is leaving. */
void worker_end(struct worker *w);

void worker_event(struct worker *w, enum super_event ev);
/* It cannot be believed, or does not answer: said in one line, killed. */
void worker_broken(struct worker *w, enum death_cause cause, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
/* A quarter of a second has passed: heartbeat, deadlines, timers, bell storms. late: so much more than
 * that, because we or the machine stood still. */
void worker_tick(struct worker *w, nsec now, nsec late);
/* For rank_group.c: of the time since the last tick, what its process cannot be blamed for; at least late. */
nsec worker_discount(struct worker *w, nsec now, nsec late);
nsec worker_timer(const struct worker *w); /* of its supervisor, and of its standby's */
bool worker_open(const struct worker *w);  /* may be given requests */
bool worker_over(const struct worker *w);  /* down, failed or lost: nothing is to be awaited */

#endif
