/* ctl.h - laganctl: what the commands share.
 *
 * main.c reads the command line and finds the command; a command talks to lagand through liblagan
 * and returns an exit code. Every failure is one sentence on standard error, said where it is known.
 */
#ifndef CTL_CTL_H
#define CTL_CTL_H

#include "base/clock.h"
#include "base/err.h"
#include "base/opt.h"
#include "include/lagan.h"
#include "include/lagan_wire.h"

#include <jansson.h>
#include <signal.h>

/* Of every lagan program; systemd and scripts rely on the numbers. */
#define EXIT_CODES(X) \
    X(0, OK, "success") \
    X(1, FAILED, "the command failed; the message says why") \
    X(2, USAGE, "the command line has errors") \
    X(3, UNREACHABLE, "no lagand answers at the endpoint") \
    X(4, NOT_FOUND, "no such worker, model or request") \
    X(5, REFUSED, "refused because of a policy, the present state or the version") \
    X(6, TIMEOUT, "a timeout passed") \
    X(7, DEGRADED, "lagand works, but a part of it has failed") \
    X(69, UNAVAILABLE, "lagand accepts no requests: it drains, or a device is lost") \
    X(75, QUEUE_FULL, "the queue is full; try again later") \
    X(77, NO_PERMISSION, "this user is not allowed to do that") \
    X(78, CONFIG, "the configuration has errors")

enum ctl_exit {
#define X(number, name, sentence) CTL_##name = number,
    EXIT_CODES(X)
#undef X
};

struct ctl_opts { /* before the command */
    char connect[256], keys[1024], spawn[1024], device[64];
    char set[16384]; /* one a line */
    bool help, version, manual;
};

struct ctl {
    struct ctl_opts o;
    struct lagan *api; /* open while a command runs that wants it */
    char endpoint[256];
    /* what is asked for stands in this line of it, which refusals name; line 0: nowhere */
    const char *file;
    size_t line;
};

struct command {
    const char *words; /* "workers list" */
    const char *operands, *sentence, *examples;
    const struct opt *opts;                             /* NULL: only --json and --help */
    int (*run)(struct ctl *ctl, int argc, char **argv); /* argv[0]: the last word of the command */
    bool alone;                                         /* needs no lagand */
};
extern const struct command commands[]; /* ended by words NULL */

/* help.c: --help, --help of a command, and laganctl(1) in mdoc. */
void help(void);
void command_help(const struct command *c);
void manual(void);

/* fail.c */
extern volatile sig_atomic_t
    ctl_signal; /* SIGINT or SIGTERM once one of them was received; else 0 */
/* Prints "laganctl: " and the sentence on standard error. Returns code. */
int ctl_fail(int code, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Prints which operands the command takes. Returns CTL_USAGE. */
int command_usage(const struct command *c);

/* main.c */
extern const struct opt global_opts[];
/* Options and operands in any order; operands move to the front of argv, their number is returned, or
 * -1 after the sentence was said. help is printed, and then -2 returned. */
int command_args(const struct command *c, void *to, int argc, char **argv);

/* connect.c */
int ctl_connect(struct ctl *ctl, struct lagan **ret, bool privileged); /* 0 or an exit code */
bool ctl_answers(const struct ctl *ctl); /* somebody is behind the privileged door; says nothing */
int ctl_call(struct ctl *ctl, const char *verb, json_t *args, bool privileged, char **reply);
/* The same; the answer is printed where JSON is wanted, and *ret, to be freed, otherwise. NULL: all is done. */
int ctl_ask(struct ctl *ctl, const char *verb, json_t *args, bool privileged, bool json,
            json_t **ret);
int ctl_exit_of(uint32_t reason);                           /* an error's number to an exit code */
int sibling_path(char *buf, size_t n, const char *program); /* 0, -ENOENT */

/* spawn.c: a private lagand around a command. */
int spawn_run(struct ctl *ctl, int (*run)(struct ctl *ctl, void *arg), void *arg);
/* spawn.c: what lagan-worker --inspect says of a model's directory; free(*line). Else it was said why not. */
int spawn_look(const struct ctl *ctl, const char *dir, char **line);
/* spawn.c: what lagand --check says of a configuration file (NULL: where it is looked for), and the exit code. */
int spawn_check(const char *file);

/* generate.c */
extern struct opt generate_opts[]; /* filled by generate_start() */
void generate_start(void);
int cmd_generate(struct ctl *ctl, int argc, char **argv);

/* bench.c */
extern const struct opt bench_opts[];
int cmd_bench(struct ctl *ctl, int argc, char **argv);

/* chat.c */
extern struct opt chat_opts[]; /* filled by chat_start() */
void chat_start(void);
int cmd_chat(struct ctl *ctl, int argc, char **argv);

/* model.c */
int cmd_model_list(struct ctl *ctl, int argc, char **argv);
int cmd_model_verify(struct ctl *ctl, int argc, char **argv);

/* history.c */
extern const struct opt events_opts[];
int cmd_events(struct ctl *ctl, int argc, char **argv);
int cmd_panic(struct ctl *ctl, int argc, char **argv);
int cmd_metrics(struct ctl *ctl, int argc, char **argv);

/* keygen.c */
int cmd_keygen(struct ctl *ctl, int argc, char **argv);

/* flush.c */
int cmd_kv_flush(struct ctl *ctl, int argc, char **argv);

/* top.c */
extern const struct opt top_opts[];
int cmd_top(struct ctl *ctl, int argc, char **argv);

/* tune.c */
int cmd_tune(struct ctl *ctl, int argc, char **argv);

/* split.c */
int cmd_split_show(struct ctl *ctl, int argc, char **argv);
int cmd_split_auto(struct ctl *ctl, int argc, char **argv);
int cmd_split_off(struct ctl *ctl, int argc, char **argv);
int cmd_split_set(struct ctl *ctl, int argc, char **argv);

/* print.c */
struct table; /* columns that line up */
struct table *table_new(const char *const *heads, size_t n_columns);
void table_cell(struct table *t, bool right, const char *fmt, ...) PRINTF_LIKE(3, 4);
void table_print(struct table *t, FILE *out);            /* frees it */
const char *json_word(const json_t *o, const char *key); /* a string of it, or "-" */
long long json_number(const json_t *o, const char *key); /* cut to a whole one, or 0 */
void print_json_string(FILE *out, const char *s, size_t n);
void print_float(FILE *out, float v); /* shortest that reads back as the same float */
const char *text_bytes(char *buf, size_t n, double bytes);
const char *text_duration(char *buf, size_t n, double seconds);
void progress(const char *what, double done, double total, nsec since); /* total 0: over */

/* print.c: also the other way, comma separated ids */
int parse_ids(const char *s, int32_t **ret, size_t *n, struct err *e) MUST_USE; /* free(*ret) */

#endif
