/* scenario.h - reads and runs scenario files: commands, each followed by its expected output.
 *
 *     # C-09. Where two might run out of blocks, one runs after the other.
 *     group full max 10
 *     limits seqs 2 len 90
 *
 *     request r0..r1 prompt 10 new 80
 *     run
 *     | 0..79 r0
 *     | 80..159 r1
 *     | 160 idle
 *
 * Words are separated by blanks; a word that begins with '#' starts a comment. A line that begins
 * with '|' is a line that the command above must print, blanks at both ends ignored. A command
 * without such lines must print nothing. The parser knows no command names; scenario_run.c does.
 */
#pragma once
#include "base/base.h"
#include "base/err.h"

#include <stdio.h>

enum {
    SCRIPT_MAX_WORDS = 32,
    SCRIPT_MAX_WORD = 400,
    SCRIPT_MAX_LINES = 4000,
    SCRIPT_MAX_BYTES = 1 << 20
};

struct script_line {
    const char *file;
    uint32_t number; /* line number in the file, from 1 */
    uint32_t n_words;
    char *words[SCRIPT_MAX_WORDS];
    uint32_t first_want, n_want; /* the command's expected lines: index in script.want[] */
};

struct script {
    char *text; /* storage of words and expected lines */
    const char *name;
    struct script_line *line;
    char **want;
    uint32_t n_lines, n_wants;
};

/* Parses the text of a scenario; it is copied, but name must outlive the script. -EINVAL: e has
 * "NAME:LINE: ...". -EFBIG: the text is longer than SCRIPT_MAX_BYTES or _LINES. */
int script_parse(struct script **ret, const char *name, const char *text, size_t n,
                 struct err *e) MUST_USE;
int script_read(struct script **ret, const char *path, struct err *e) MUST_USE;
struct script *script_free(struct script *s);
CLEAN_FUNC(struct script, script_free)

/* Sets an error that begins with file and line of l; returns -EINVAL. */
int script_err(const struct script_line *l, struct err *e, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Parses the words of the line from index `at` on as "key value" pairs of the table into *to. */
struct opt;
int script_pairs(const struct script_line *l, uint32_t at, const struct opt *table, void *to,
                 struct err *e) MUST_USE;

/* Parses "r0..r3" or "r7": the letters into name, the numbers into first and last. */
bool script_names(const char *word, char name[16], uint32_t *first, uint32_t *last);
/* Parses a list such as "0..8,9,50*3" (50*3: 50 three times) into at most max numbers. Returns
 * their count. -EINVAL: the word has another form; -EMSGSIZE: more than max numbers. */
int script_numbers(const char *word, int64_t *to, uint32_t max) MUST_USE;

/* Runs a scenario and compares its output with the expected lines. 0: equal. 1: different; missing
 * lines (-) and unexpected lines (+) are printed to out. Negative: the scenario is invalid. */
int script_run(const struct script *s, FILE *out, struct err *e) MUST_USE;
void script_print_commands(FILE *out);
