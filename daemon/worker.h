/* worker.h - one worker as lagand sees it: process, rings, health, what it has in hand. */
#ifndef DAEMON_WORKER_H
#define DAEMON_WORKER_H

#include "base/base.h"
#include "daemon/arenas.h"
#include "daemon/daemon.h"
#include "daemon/starved.h"
#include "daemon/supervisor.h"
#include "ipc/channel.h"
#include "ipc/stat.h"

#include <sys/types.h>

enum { LOG_LINES = 20, LOG_LINE = 400 };

struct control;

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
    struct worker *other[MAX_RANKS - 1]; /* of a worker, the ranks from 1 on: group.h */
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
    struct control *control;
    nsec spawned_at, beat_at;
    uint64_t beat; /* hb_count when it last moved, at beat_at */
    nsec deadline,
        excuse; /* of its step; time that passed while we stood still, or it could not run */
    struct starved starved;
    bool warned, asked;         /* silent: told people; asked for its last words */
    nsec bell_lost;             /* since when its end of the bell is shut; 0: open */
    nsec hand_lost;             /* its end of hand */
    uint32_t n_partition;       /* events of its bell */
    uint64_t partition_records; /* records at the last of them */
    uint64_t storm_bells, storm_records, n_records; /* at the last look; records ever */
    nsec storm_at;

    /* what it has in hand */
    uint32_t n_rows, n_seqs; /* requests; sequences of them: outputs or beams */
    uint64_t tokens;
    uint32_t alone;       /* a suspect that is to run alone, ROW_NONE */
    uint32_t sending;     /* row whose SUBMIT is under way, ROW_NONE */
    uint32_t sent_bytes;  /* of it */
    uint32_t n_words_due; /* rows with a cancel or a pause that found no room */
    bool full;            /* its request ring had no room this turn */
    bool lied;            /* it has broken a rule: nothing that it says is read any more */

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

/* For standby.c, which has the same hands: supervisor.h's spawn and kill; an empty struct; what it printed to
 * the end; all of its process given back. */
int worker_spawn(void *arg);
void worker_kill(void *arg, int sig);
struct worker *worker_new(struct daemon *d, uint32_t index, uint32_t model, const char *name,
                          const struct super_ops *ops);
void worker_last_lines(struct worker *w);
void worker_look(struct worker *w); /* stats: as they are now */
void worker_release(struct worker *w);

/* For group.c too: watched, its pid where a lagand after us looks for it, its black box. It has ended, all of it: as
 * the kernel said. */
/* In the fd store. */
void worker_pid_name(uint32_t index, uint32_t rank, char *buf, size_t n);
int worker_watch(struct worker *w, struct err *e);
void worker_note_pid(const struct worker *w);
void worker_forget_pid(const struct worker *w);
void worker_read_last_words(struct worker *w, char *ret, size_t n_ret);
void worker_ended(struct worker *w, int code, int status, bool words);
void worker_end_process(struct worker *w);

/* Kill it and hear what it had said; nothing follows from its end. lagand is leaving. */
void worker_end(struct worker *w);

void worker_event(struct worker *w, enum super_event ev);
/* It cannot be believed, or does not answer: said in one line, killed. */
void worker_broken(struct worker *w, enum death_cause cause, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
/* A quarter of a second has passed: heartbeat, deadlines, timers, bell storms. late: so much more than
 * that, because we or the machine stood still. */
void worker_tick(struct worker *w, nsec now, nsec late);
/* For group.c: of the time since the last tick, what its process cannot be blamed for; at least late. */
nsec worker_excused(struct worker *w, nsec now, nsec late);
nsec worker_timer(const struct worker *w); /* of its supervisor, and of its standby's */
bool worker_open(const struct worker *w);  /* may be given requests */
bool worker_over(const struct worker *w);  /* down, failed or lost: nothing is to be awaited */

#endif
