/* ctl.h - functions that the commands of laganctl share.
 *
 * main.c parses the command line and finds the command. A command calls lagand through liblagan and
 * returns an exit code. The function that finds a failure prints one sentence on standard error. */
#pragma once
#include "base/clock.h"
#include "base/err.h"
#include "base/opt.h"
#include "include/lagan.h"
#include "include/lagan_wire.h"

#include <jansson.h>
#include <signal.h>

/* Exit codes of every lagan program; systemd units and scripts rely on the numbers. */
#define EXIT_CODES(X) \
    X(0, OK, "success") \
    X(1, FAILED, "the command failed; the message says why") \
    X(2, USAGE, "the command line has errors") \
    X(3, UNREACHABLE, "no lagand is reachable at the endpoint") \
    X(4, NOT_FOUND, "no such worker, model or request") \
    X(5, REFUSED, "refused: not possible in the present state, by a limit, or with this version") \
    X(6, TIMEOUT, "the command did not finish in time") \
    X(7, DEGRADED, "lagand works, but a part of it has failed") \
    X(69, UNAVAILABLE, \
      "lagand serves no requests: it is starting or stopping, or a device is lost") \
    X(75, QUEUE_FULL, "the queue is full; try again later") \
    X(77, NO_PERMISSION, "this user is not allowed to do that") \
    X(78, CONFIG, "the configuration has errors")

enum ctl_exit {
#define X(number, name, sentence) CTL_##name = number,
    EXIT_CODES(X)
#undef X
};

struct ctl_opts { /* values of the options before the command: global_opts */
    char connect[256], keys[1024], spawn[1024], device[64];
    char set[16384]; /* one KEY=VALUE per line */
    bool help, version, manual;
};

struct ctl {
    struct ctl_opts o;
    const struct command *command;
    int argc;
    char **argv; /* operands, or all arguments if command->parses_argv; then NULL */
    bool json;
    void *opts;        /* struct with the values of command->opts */
    bool first_given;  /* the first option of command->opts was given */
    struct lagan *api; /* the connection, open unless command->alone */
    char endpoint[256];
    struct spawn *spawned; /* the private lagand of --spawn; NULL: none */
    /* file and line of the request in a --requests file, for error messages; line 0: none */
    const char *file;
    size_t line;
};

struct command {
    const char *words;    /* "workers list" */
    const char *operands; /* "PREFILL DECODE [WORKER]": an operand in brackets may be absent */
    const char *sentence, *examples;
    const struct opt *opts;       /* options besides --json and --help; NULL: none */
    int (*run)(struct ctl *ctl);  /* returns the exit code */
    const struct column *columns; /* of the table that cmd_list() prints */
    bool alone;                   /* the command needs no connection to lagand */
    bool connects;                /* run() opens ctl->api itself, unless --spawn has opened it */
    bool parses_argv;             /* run() parses the options, not main.c */
};
extern const struct command commands[]; /* the last entry has words NULL */

/* help.c: --help, --help of a command, and laganctl(1) in mdoc. */
void help(void);
void command_help(const struct command *c);
/* Prints the commands that begin with this word; returns false if there is none. */
bool group_help(const char *word);
void manual(void);

/* main.c */
extern const struct opt global_opts[];
int cmd_help(struct ctl *ctl);

/* connect.c */
/* Connects to api.sock, or if privileged to ctl.sock. Returns 0, or an exit code with a message. */
int ctl_connect(struct ctl *ctl, struct lagan **ret, bool privileged);
/* Returns true if lagand listens on ctl.sock; prints no error. */
bool ctl_listens(const struct ctl *ctl);
/* Returns false if the socket of the endpoint is absent or no process listens on it. */
bool ctl_may_listen(const struct ctl *ctl);
/* Calls a verb, on ctl.sock if it is for operators. args: freed by the call; NULL: none. Returns 0
 * and the reply as JSON text in *reply, or an exit code after printing the error. */
int ctl_call(struct ctl *ctl, const char *verb, json_t *args, char **reply);
/* ctl_call(), but if json is true it prints the reply and sets *ret to NULL; else it parses the
 * reply into *ret, which the caller frees. */
int ctl_ask(struct ctl *ctl, const char *verb, json_t *args, bool json, json_t **ret);
/* Returns the exit code for an enum lagan_reason. The request was made from the command line, whose
 * errors are CTL_USAGE, or from a line of a file. */
int ctl_exit_of(uint32_t reason);
int ctl_exit_of_line(uint32_t reason);
/* Returns 0 if the value of an option is UTF-8, else CTL_USAGE with a message. */
int ctl_need_utf8(const char *option, const char *value);
/* Finds a program in the directory of laganctl or in libexec. Returns 0, or -ENOENT. */
int sibling_path(char *buf, size_t n, const char *program);

/* spawn.c: runs a command with a private lagand. */
int spawn_run(struct ctl *ctl, int (*run)(struct ctl *ctl));
/* spawn.c: runs a program of lagan beside the lagand of --spawn, with the standard output and error
 * of laganctl, until the program or lagand ends or a signal arrives; then stops the program.
 * argv[0] is set. Returns the exit code. */
int spawn_beside(const struct ctl *ctl, const char *name, const char **argv);
/* spawn.c: output of lagan-worker --inspect for a model directory; the caller frees *line. Prints
 * the error on failure. */
int spawn_look(const struct ctl *ctl, const char *dir, char **line);
/* spawn.c: runs lagand --check on a file (NULL: default path); returns the exit code. */
int spawn_check(const char *file);

/* generate.c */
extern struct opt generate_opts[]; /* filled by generate_start() */
void generate_start(void);
int cmd_generate(struct ctl *ctl);

/* bench.c */
extern const struct opt bench_opts[];
int cmd_bench(struct ctl *ctl);

/* chat.c */
extern struct opt chat_opts[]; /* filled by chat_start() */
void chat_start(void);
int cmd_chat(struct ctl *ctl);

/* gateway.c */
extern const struct opt spawn_gateway_opts[];
int cmd_gateway(struct ctl *ctl);

/* model.c */
int cmd_model_list(struct ctl *ctl);
int cmd_models(struct ctl *ctl);
int cmd_load(struct ctl *ctl);
int cmd_model_verify(struct ctl *ctl);

/* history.c */
extern const struct opt events_opts[];
int cmd_events(struct ctl *ctl);
int cmd_panic(struct ctl *ctl);
int cmd_metrics(struct ctl *ctl);

/* followed.c */
extern const struct opt follow_opts[];
int cmd_steps(struct ctl *ctl);
int cmd_kv_events(struct ctl *ctl);

/* keygen.c */
int cmd_keygen(struct ctl *ctl);

/* workers.c */
extern const struct opt status_wait_opts[], order_wait_opts[];
int cmd_workers(struct ctl *ctl);
int cmd_status(struct ctl *ctl);
int cmd_order(struct ctl *ctl); /* drain, restart */

/* top.c */
extern const struct opt top_opts[];
int cmd_top(struct ctl *ctl);

/* tune.c */
int cmd_tune(struct ctl *ctl);

/* split.c */
int cmd_split_show(struct ctl *ctl);
int cmd_split_select(struct ctl *ctl); /* split auto, off, set */

/* print.c */
extern volatile sig_atomic_t ctl_signal; /* SIGINT or SIGTERM if received, else 0 */
/* Prints "laganctl: " and the sentence on standard error. Returns code. */
int ctl_fail(int code, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Combines exit codes: 0 if both are 0, CTL_FAILED if two failures differ. */
int ctl_worst(int worst, int code);
/* Prints which operands the command takes. Returns CTL_USAGE. */
int command_usage(const struct command *c);

struct table; /* aligned columns on standard output */
/* A column: its heading, and the function that adds the cell (member key of o) to a row. */
struct column {
    const char *head, *key;
    void (*cell)(struct table *t, const json_t *o, const char *key);
};
struct table *table_new(const struct column *columns); /* last: head NULL */
void table_row(struct table *t, const json_t *o);
void table_cell(struct table *t, bool right, const char *fmt, ...) PRINTF_LIKE(3, 4);
void table_print(struct table *t); /* frees it */
void print_table(const struct column *columns, const json_t *rows);
void cell_word(struct table *t, const json_t *o, const char *key);
void cell_number(struct table *t, const json_t *o, const char *key);
void cell_bytes(struct table *t, const json_t *o, const char *key);
void print_json(const json_t *o);                             /* one line */
const char *json_string_of(const json_t *o, const char *key); /* a string member; "": none */
const char *json_word(const json_t *o, const char *key);      /* the same, but "-" for "" */
/* Returns a number member as an integer; 0: o has no such member. */
long long json_number(const json_t *o, const char *key);
/* Returns a new JSON number with 6 significant digits, for a time or a rate. */
json_t *json_measured(double v);
double json_real_number(const json_t *o, const char *key);
void print_json_string(FILE *out, const char *s, size_t n);
void print_float(FILE *out, float v); /* shortest text that parses to the same float */
const char *text_bytes(char *buf, size_t n, double bytes);
const char *text_duration(char *buf, size_t n, double seconds);
/* Draws one line on standard error again if it is a terminal. NULL: removes the line. */
void progress_line(const char *fmt, ...) PRINTF_LIKE(1, 2);
/* Shows the progress of loading a model in bytes; total 0: ends the display. */
void progress(const char *what, double done, double total, nsec since);

/* print.c: parses comma-separated token ids into *ret, which the caller frees. */
int parse_ids(const char *s, int32_t **ret, size_t *n, struct err *e) MUST_USE;

/* line_reader.c: reads lines of a file, a pipe or standard input without blocking. */
struct line_reader {
    int fd;
    char *buf;
    size_t at, n, max;
    size_t number; /* number of the last line returned, from 1 */
    bool eof;
};

enum { LINE_READER_MAX = 64 << 20 }; /* bytes of one line: 4 million ids */

/* Opens a file; "-": standard input. */
int line_reader_open(struct line_reader *l, const char *path, struct err *e) MUST_USE;
void line_reader_close(struct line_reader *l);
/* Returns 1: *ret is a NUL-terminated line, valid until the next call. Returns 0: the buffer has no
 * complete line; call line_reader_fill(), unless l->eof says that the input has ended. */
int line_reader_next(struct line_reader *l, char **ret);
/* Calls read() once. -EMSGSIZE: a line is longer than LINE_READER_MAX. */
int line_reader_fill(struct line_reader *l, struct err *e) MUST_USE;
/* Waits for the next line with more than white space. Returns 1: *ret is the line; 0: end of input
 * or a signal; -EMSGSIZE, or the error of read(). prompt: printed first; or NULL. */
int line_reader_wait(struct line_reader *l, const char *prompt, char **ret, struct err *e) MUST_USE;
