/* scenario_state.h - the state and the command tables of a running scenario. */
#pragma once
#include "base/opt.h"
#include "sim/scenario.h"
#include "sim/sim_worker.h"

enum { STAGE_ACTORS = 256, STAGE_HOLDERS = 64, STAGE_LINES = 4000, STAGE_BLOCKS = 4096 };

struct actor { /* a request of the scenario */
    char name[28];
    struct sim_request *r; /* token[]: prompt, then generated tokens */
    bool ended;            /* and reaped */
    bool follows;          /* its name follows the previous request's: r3 after r2 */
};

struct scenario_seq; /* of scenario_kv.c */
struct scenario_command;

struct scenario {
    const struct script *s;
    const struct script_line *l; /* the current command */
    struct sim_config st;
    bool ran;  /* a command has run: settings are no longer allowed */
    bool open; /* the worker is open */
    struct sim_worker w;
    struct actor actor[STAGE_ACTORS];
    uint32_t n_actors;
    const struct scenario_command *commands; /* sched_commands or kv_commands */
    const struct scenario_command *command;  /* the current command's row in it */
    uint32_t it;                             /* number of iterations so far */
    struct scenario_seq *holder[STAGE_HOLDERS];
    uint32_t n_holders;
    uint64_t step;                            /* step number of kv_commands */
    slice_id block[MAX_GROUPS][STAGE_BLOCKS]; /* in order of first appearance */
    uint32_t n_blocks[MAX_GROUPS];
    uint64_t next_event;
    uint64_t name[STAGE_BLOCKS][2]; /* block names in order of first appearance */
    uint32_t n_names;
    char **line; /* output lines of the current command */
    uint32_t n_lines;
    char text[8192]; /* the unfinished last output line */
};

struct scenario_command {
    const char *name, *operands; /* operands "" without opts: no operands */
    const struct opt *opts;      /* options after the operands; NULL: none */
    const char *sentence;
    int (*act)(struct scenario *g, struct err *e);
    /* NULL, or called by act() for each sequence h that the line names, with its slot; n: number of
     * positions to treat as written. */
    int (*each)(struct scenario *g, struct scenario_seq *h, uint32_t slot, uint32_t n,
                struct err *e);
};
extern const struct scenario_command sched_commands[]; /* scenario_sched.c; name NULL ends it */
extern const struct scenario_command kv_commands[];    /* scenario_kv.c */

/* stage_append() adds text to the last line of the output, stage_end() ends the line, and
 * stage_print() does both. */
void stage_end(struct scenario *g);
void stage_append(struct scenario *g, const char *fmt, ...) PRINTF_LIKE(2, 3);
void stage_print(struct scenario *g, const char *fmt, ...) PRINTF_LIKE(2, 3);
