/* scenario_state.h - what the commands of a scenario act on, and the commands. For sim/play*.c alone. */
#ifndef SIM_SCENARIO_STATE_H
#define SIM_SCENARIO_STATE_H

#include "base/opt.h"
#include "sim/scenario_run.h"
#include "sim/sim_worker.h"

enum { STAGE_ACTORS = 256, STAGE_HOLDERS = 64, STAGE_LINES = 4000, STAGE_BLOCKS = 4096 };

struct actor { /* a request of the scenario */
    char name[28];
    struct sim_request *r; /* its tokens are the prompt, then what was generated */
    bool ended;            /* and handed back */
    bool follows;          /* the one before it, by name: r3 behind r2 */
};

struct scenario_seq; /* of scenario_kv.c */
struct scenario_command;

struct scenario_state {
    const struct script *s;
    const struct script_line *l; /* the command that is acted out */
    struct sim_config st;
    bool open; /* the worker is: settings come before */
    struct sim_worker w;
    struct actor actor[STAGE_ACTORS];
    uint32_t n_actors;
    const struct scenario_command *commands; /* the table they are of */
    uint32_t it;                             /* iterations so far */
    struct scenario_seq *holder[STAGE_HOLDERS];
    uint32_t n_holders;
    uint64_t step;                            /* of the commands on the KV manager alone */
    slice_id block[MAX_GROUPS][STAGE_BLOCKS]; /* in the order in which they were first seen */
    uint32_t n_blocks[MAX_GROUPS];
    uint64_t next_event,
        name[STAGE_BLOCKS][2]; /* names in the order in which they were first told */
    uint32_t n_names;
    char **line; /* what the command prints */
    uint32_t n_lines;
};

struct scenario_command {
    const char *name, *operands;
    const struct opt *opts; /* after the operands; NULL: none */
    const char *sentence;
    int (*act)(struct scenario_state *g, struct err *e);
};
extern const struct scenario_command sched_commands[]; /* scenario_sched.c; name NULL ends it */
extern const struct scenario_command kv_commands[];    /* scenario_kv.c */

void stage_print(struct scenario_state *g, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* The scenario is wrong at the present line; returns -EINVAL. */
int stage_error(const struct scenario_state *g, struct err *e, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
/* From the word at `from` on, to the first that is a key of the command's options, every word names actors
 * that are there: into to[], at most STAGE_ACTORS. Their number, or -EINVAL. */
int actors_named(struct scenario_state *g, uint32_t from, struct actor **to,
                 struct err *e) MUST_USE;
struct actor *actor_find(struct scenario_state *g, const char *name);

#endif
