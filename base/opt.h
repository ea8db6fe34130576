/* opt.h - a table of options: parser, --help, config keys and manual text from one row each.
 *
 * A program's settings are one plain struct; a row says where in it a value lives, how it is
 * written, what it may be and one sentence for people. The same rows read the command line
 * (--key=value, --key value, --flag), a configuration file's keys and --set KEY=VALUE, print
 * --help, the merged configuration with where each value came from, and the manual's text.
 *
 * Spelling: keys are lower case with '.' and '_' ("kv.tokens_per_block"); on the command line '-'
 * may stand for '_'. Values: BYTES take 512, 64KiB, 1.5GiB, 64MB; NSEC take 250ms, 3s, 10min;
 * BOOL takes true|false|yes|no|1|0; ENUM the words of its choices, separated by '|'.
 *
 * Every error names where ("lagan.yaml:12", "--set"), the key, the value and what would be right.
 */
#ifndef BASE_OPT_H
#define BASE_OPT_H

#include "base/base.h"
#include "base/err.h"

#include <stdio.h>

enum opt_type {
    OPT_BOOL,
    OPT_U32,
    OPT_U64,
    OPT_F64,
    OPT_BYTES,
    OPT_NSEC,
    OPT_ENUM,
    OPT_STR,
    OPT_I32
};
/* where they live: bool · uint32_t · uint64_t · double · uint64_t · nsec · uint32_t (index of the
 * choice) · char[size], copied, always ended with NUL · int32_t */

enum {
    OPT_RESTART = 1, /* needs a worker restart */
    OPT_HIDDEN = 2,  /* in no help, no manual, no suggestion */
    OPT_AUTO = 4,    /* numbers: the word "auto" is 0, and 0 is allowed whatever min says */
    OPT_POW2 = 8,    /* numbers: a power of two */
    OPT_REPEAT = 16  /* STR: may be given again; the values are joined by newlines */
};

struct opt {
    const char *key; /* NULL ends the table */
    enum opt_type type;
    size_t offset, size; /* size: OPT_STR's array */
    const char *def;     /* as written; NULL: "" or 0 */
    const char *choices; /* OPT_ENUM: "off|auto|fixed" */
    double min, max; /* numbers, both inclusive; both 0: the type's own; max 0: no upper limit */
    unsigned flags;
    const char *arg; /* "N", "DIR", "KEY=VALUE" in --help */
    const char *sentence;
};

/* Rows: OPT(struct, field, OPT_U32, "max_num_seqs", "256", min, max, "N", "sentence"). */
#define OPT_AT(s, field) offsetof(struct s, field), sizeof(((struct s *)0)->field)

const struct opt *opt_find(const struct opt *table, const char *key, size_t len);

/* Write every default into *to. The table's defaults parse, or this checks. */
void opt_defaults(const struct opt *table, void *to);

/* Set one key. -ENOENT: no such key (the sentence names the nearest one, if one is near). -EINVAL: the
 * value. On failure *to is as it was. */
int opt_set(const struct opt *table, void *to, const char *key, const char *value,
            const char *where, struct err *e) MUST_USE;

/* The same for a command line. *given: a bit for each row (64 at most) that it has set, 0 at first. -EINVAL also for
 * another value of such a row, unless it is OPT_REPEAT. */
int opt_give(const struct opt *table, void *to, uint64_t *given, const char *key, const char *value,
             struct err *e) MUST_USE;

/* Read argv from index *at on, as long as arguments begin with "--"; "--" ends it. Leaves *at at the
 * first operand. -EINVAL, -ENOENT with the sentence. --help and --version are the caller's rows. */
int opt_argv(const struct opt *table, void *to, uint64_t *given, int argc, char **argv, int *at,
             struct err *e) MUST_USE;

/* A value as it would be written, into buf; returns buf. */
const char *opt_text(const struct opt *o, const void *from, char *buf, size_t n);

/* As people write them: --max-seqs on a command line, max_seqs in a file and behind --set. */
enum opt_form { OPT_TYPED, OPT_KEYS };
void opt_help(const struct opt *table, enum opt_form form, FILE *out); /* aligned at 80 columns */
/* mdoc list: key, type, default, range, sentence. */
void opt_manual(const struct opt *table, enum opt_form form, FILE *out);
/* A piece of text in a manual, whatever is in it. */
void opt_roff(FILE *out, const char *text);

#endif
