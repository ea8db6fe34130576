/* scenario_state.h - the state and the commands of a running scenario; for sim/scenario*.c. */
#pragma once

#include "base/opt.h"
#include "sim/scenario.h"
#include "sim/sim_worker.h"

enum { STAGE_ACTORS = 256, STAGE_HOLDERS = 64, STAGE_LINES = 4000, STAGE_BLOCKS = 4096 };

struct actor { /* a request of the scenario */
    char name[28];
    struct sim_request *r; /* token[]: prompt, then generated tokens */
    bool ended;            /* and reaped */
    bool follows;          /* named after the request before it: r3 after r2 */
};

struct scenario_seq; /* of scenario_kv.c */
struct scenario_command;

struct scenario_state {
    const struct script *s;
    const struct script_line *l; /* the current command */
    struct sim_config st;
    bool open; /* the worker is open; settings come before */
    struct sim_worker w;
    struct actor actor[STAGE_ACTORS];
    uint32_t n_actors;
    const struct scenario_command *commands; /* the table in use: scheduler or KV manager */
    const struct scenario_command *command;  /* the current row of it */
    uint32_t it;                             /* iterations so far */
    struct scenario_seq *holder[STAGE_HOLDERS];
    uint32_t n_holders;
    uint64_t step;                            /* of the commands on the KV manager */
    slice_id block[MAX_GROUPS][STAGE_BLOCKS]; /* in order of first appearance */
    uint32_t n_blocks[MAX_GROUPS];
    uint64_t next_event;
    uint64_t name[STAGE_BLOCKS][2]; /* block names in order of first appearance */
    uint32_t n_names;
    char **line; /* output of the command */
    uint32_t n_lines;
    char text[8192]; /* the unfinished last line of it */
};

struct scenario_command {
    const char *name, *operands; /* operands "" and no opts: the line has one word */
    const struct opt *opts;      /* after the operands; NULL: none */
    const char *sentence;
    int (*act)(struct scenario_state *g, struct err *e);
    /* NULL, or of each sequence that the line names; n: positions to treat as written. */
    int (*each)(struct scenario_state *g, struct scenario_seq *h, uint32_t slot, uint32_t n,
                struct err *e);
};
extern const struct scenario_command sched_commands[]; /* scenario_sched.c; name NULL ends it */
extern const struct scenario_command kv_commands[];    /* scenario_kv.c */

/* stage_append() adds text to the last line of the output, stage_end() ends the line, and
 * stage_print() does both. */
void stage_end(struct scenario_state *g);
void stage_append(struct scenario_state *g, const char *fmt, ...) PRINTF_LIKE(2, 3);
void stage_print(struct scenario_state *g, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Looks up the requests named by the words from `from` on, up to the first option key, into to[],
 * at most STAGE_ACTORS. Returns their number, or -EINVAL. */
int actors_named(struct scenario_state *g, uint32_t from, struct actor **to,
                 struct err *e) MUST_USE;
struct actor *actor_find(struct scenario_state *g, const char *name);
