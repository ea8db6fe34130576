/* scenario.c - parses scenario files: see scenario.h. scenario_run.c runs them. */
#include "sim/scenario.h"

#include "base/opt.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>

CLEAN_FUNC(FILE, fclose)
CLEAN_FUNC(char, free)

int
script_err(const struct script_line *l, struct err *e, const char *fmt, ...)
{
    char text[200];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(e, -EINVAL, "%s:%u: %s", l->file, l->number, text);
}

struct script *
script_free(struct script *s)
{
    if (s) {
        free(s->text);
        free(s->line);
        free(s->want);
    }
    free(s);
    return NULL;
}

static char *
trim_line(char *line)
{
    size_t n;

    while (*line == ' ' || *line == '\t') line++;
    n = strlen(line);
    while (n > 0 && (line[n - 1] == ' ' || line[n - 1] == '\t')) line[--n] = 0;
    return line;
}

static int
split_words(struct script_line *l, char *line, struct err *e)
{
    for (char *word = strtok_r(line, " \t", &line); word; word = strtok_r(NULL, " \t", &line)) {
        if (*word == '#') break;
        if (l->n_words == SCRIPT_MAX_WORDS)
            return script_err(l, e, "the line has more than %d words", SCRIPT_MAX_WORDS);
        if (strlen(word) > SCRIPT_MAX_WORD)
            return script_err(l, e, "a word has more than %d characters", SCRIPT_MAX_WORD);
        l->words[l->n_words++] = word;
    }
    return 0;
}

static int
add_line(struct script *s, char *line, uint32_t number, struct err *e)
{
    struct script_line *l = &s->line[s->n_lines];

    *l = (struct script_line){ .file = s->name, .number = number, .first_want = s->n_wants };
    for (const char *c = line; *c; c++)
        if (iscntrl((unsigned char)*c) && *c != '\t')
            return script_err(l, e, "byte 0x%02x is not allowed in a text file", (unsigned char)*c);
    line = trim_line(line);
    if (*line == '|') {
        if (s->n_lines == 0) return script_err(l, e, "an expected line must follow a command");
        s->want[s->n_wants++] = trim_line(line + 1);
        s->line[s->n_lines - 1].n_want++;
        return 0;
    }
    TRY(split_words(l, line, e));
    s->n_lines += l->n_words > 0;
    return 0;
}

int
script_parse(struct script **ret, const char *name, const char *text, size_t n, struct err *e)
{
    CLEAN(script_free_at) struct script *s = calloc(1, sizeof *s);
    uint32_t lines = 1;

    if (n > SCRIPT_MAX_BYTES)
        return err_set(e, -EFBIG, "%s: %zu bytes; a scenario may have at most %d", name, n,
                       SCRIPT_MAX_BYTES);
    for (size_t i = 0; i < n; i++) lines += text[i] == '\n';
    if (lines > SCRIPT_MAX_LINES)
        return err_set(e, -EFBIG, "%s: %u lines; a scenario may have at most %d", name, lines,
                       SCRIPT_MAX_LINES);
    if (s) {
        s->name = name;
        s->text = malloc(n + 1);
        s->line = calloc(lines, sizeof s->line[0]);
        s->want = calloc(lines, sizeof s->want[0]);
    }
    if (!s || !s->text || !s->line || !s->want) return err_set(e, -ENOMEM, "%s: no memory", name);
    if (memchr(text, 0, n)) return err_set(e, -EINVAL, "%s: contains a zero byte", name);
    memcpy(s->text, text, n);
    s->text[n] = 0;
    lines = 0;
    for (char *at = s->text, *line; at;) {
        line = strsep(&at, "\n");
        TRY(add_line(s, line, ++lines, e));
    }
    *ret = TAKE(s);
    return 0;
}

int
script_read(struct script **ret, const char *path, struct err *e)
{
    CLEAN(fclose_at) FILE *f = fopen(path, "re");
    CLEAN(free_at) char *text = malloc(SCRIPT_MAX_BYTES + 1);
    size_t n;

    if (!f || !text)
        return err_set(e, f ? -ENOMEM : -errno, "%s: %s", path, strerror(f ? ENOMEM : errno));
    n = fread(text, 1, SCRIPT_MAX_BYTES + 1, f);
    if (ferror(f)) return err_set(e, -EIO, "%s: cannot be read", path);
    return script_parse(ret, path, text, n, e);
}

int
script_pairs(const struct script_line *l, uint32_t at, const struct opt *table, void *to,
             struct err *e)
{
    char where[160];

    snprintf(where, sizeof where, "%.140s:%u", l->file, l->number);
    for (; at < l->n_words; at += 2) {
        if (at + 1 == l->n_words) return script_err(l, e, "%s has no value", l->words[at]);
        TRY(opt_set(table, to, l->words[at], l->words[at + 1], where, e));
    }
    return 0;
}

/* Parses a number of up to 9 digits at *at and moves *at behind it. */
static bool
parse_number(const char **at, uint32_t *ret)
{
    size_t n = strspn(*at, "0123456789");

    if (n == 0 || n > 9) return false;
    *ret = (uint32_t)strtoul(*at, NULL, 10);
    *at += n;
    return true;
}

bool
script_names(const char *word, char name[16], uint32_t *first, uint32_t *last)
{
    size_t n = strspn(word, "abcdefghijklmnopqrstuvwxyz");
    const char *at = word + n;

    if (n == 0 || n >= 16 || !parse_number(&at, first)) return false;
    memcpy(name, word, n);
    name[n] = 0;
    *last = *first;
    if (!*at) return true;
    if (strncmp(at, "..", 2) != 0 || strncmp(at + 2, name, n) != 0) return false;
    at += 2 + n;
    return parse_number(&at, last) && !*at && *last >= *first;
}

int
script_numbers(const char *word, int64_t *to, uint32_t max)
{
    uint32_t n = 0;

    for (const char *at = word;; at++) {
        uint32_t a, b, times = 1;
        int64_t sign = 1;

        if (*at == '-') sign = -1, at++;
        if (!parse_number(&at, &a)) return -EINVAL;
        b = a;
        if (strncmp(at, "..", 2) == 0) {
            at += 2;
            if (sign < 0 || !parse_number(&at, &b) || b < a) return -EINVAL;
        } else if (*at == '*') {
            at++;
            if (!parse_number(&at, &times)) return -EINVAL;
        }
        if ((uint64_t)(b - a + 1) * times > max - n) return -EMSGSIZE;
        for (; times > 0; times--)
            for (uint32_t i = a; i <= b; i++) to[n++] = sign * i;
        if (!*at) return (int)n;
        if (*at != ',') return -EINVAL;
    }
}
