/* opt.h - parses and prints the settings of a program, which a table of options describes.
 *
 * The settings of a program are one struct. A row of the table has the position of a value in the
 * struct, its type, its range and its sentence. The same rows parse the command line (--key=value,
 * --key value, --flag), configuration files and --set KEY=VALUE, and they print --help, the manual
 * and the configuration in use with the origin of each value.
 *
 * Keys are lower case with '.' and '_' ("kv.tokens_per_block"); on the command line '-' may replace
 * '_'. Values: BYTES take 512, 64KiB, 1.5GiB, 64MB; NSEC take 250ms, 3s, 10min; BOOL takes
 * true|false|yes|no|1|0; ENUM takes one of the choices.
 *
 * Error sentences name the origin ("lagan.yaml:12", "--set"), the key, the value and the valid
 * values. */
#pragma once
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
/* The fields have these C types, in the order of opt_type: bool, uint32_t, uint64_t, double,
 * uint64_t, nsec, uint32_t (index of the choice), char[size] (NUL-terminated copy), int32_t. */

enum {
    OPT_RESTART = 1, /* a change needs a worker restart */
    OPT_HIDDEN = 2,  /* absent from help, manual and suggestions */
    OPT_AUTO = 4,    /* numbers: "auto" is accepted and stored as 0; min must be above 0 */
    OPT_POW2 = 8,    /* numbers: must be a power of two */
    OPT_REPEAT = 16, /* STR: may be repeated; the values are joined with newlines */
    OPT_BARE = 32    /* numbers: --key without =VALUE is accepted and means 0 */
};

struct opt {
    const char *key; /* NULL ends the table */
    enum opt_type type;
    size_t offset, size; /* size: bytes of the array of OPT_STR */
    const char *def;     /* default, as text; NULL: "" or 0 */
    const char *choices; /* OPT_ENUM: "off|auto|fixed" */
    /* numbers: valid range; max 0: no upper limit; both 0: range of the type */
    double min, max;
    unsigned flags;
    const char *arg; /* placeholder in --help: "N", "DIR", "KEY=VALUE" */
    const char *sentence;
};

/* The members offset and size of a row, for a field of struct s. */
#define OPT_AT(s, field) offsetof(struct s, field), sizeof(((struct s *)0)->field)

/* Returns the row with this key of len bytes; NULL: none. */
const struct opt *opt_find(const struct opt *table, const char *key, size_t len);

/* Writes the defaults of all rows into the struct *to. Aborts if a default does not parse. */
void opt_defaults(const struct opt *table, void *to);

/* Sets one key in the struct *to. where: origin of the value, for the error sentence. -ENOENT:
 * unknown key, the sentence suggests one. -EINVAL: invalid value. *to is unchanged on failure. */
int opt_set(const struct opt *table, void *to, const char *key, const char *value,
            const char *where, struct err *e) MUST_USE;

/* opt_set() for an option of a command line. *given: bit i is set when row i (of at most 64) was
 * set; initially 0. -EINVAL also if a row without OPT_REPEAT gets a second, different value. */
int opt_give(const struct opt *table, void *to, uint64_t *given, const char *key, const char *value,
             struct err *e) MUST_USE;

/* Parses the options in argv from index *at; the first argument without "--", or after "--" alone,
 * ends them. -h is --help. *at becomes the index of the first operand. -EINVAL, -ENOENT. The table
 * must have rows for --help and --version. */
int opt_argv(const struct opt *table, void *to, uint64_t *given, int argc, char **argv, int *at,
             struct err *e) MUST_USE;

/* Writes the value of row o in the struct *from into buf, as opt_set() accepts it; returns buf. */
const char *opt_text(const struct opt *o, const void *from, char *buf, size_t n);

/* How keys are printed. OPT_TYPED: --max-seqs (command line). OPT_KEYS: max_seqs (files, --set). */
enum opt_form { OPT_TYPED, OPT_KEYS };
/* Prints the rows for --help, wrapped at 80 columns: key, placeholder, sentence, [default]. */
void opt_help(const struct opt *table, enum opt_form form, FILE *out);
/* Prints the rows as an mdoc list: key, type, default, range, sentence. */
void opt_manual(const struct opt *table, enum opt_form form, FILE *out);
/* Writes text with all roff control characters escaped. */
void opt_roff(FILE *out, const char *text);
