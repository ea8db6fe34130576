/* print.c - prints errors, tables, JSON, numbers and progress; see ctl.h. */
#include "ctl/ctl.h"

#include "base/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

enum { TABLE_MAX_COLUMNS = 16 };

volatile sig_atomic_t ctl_signal;

int
ctl_fail(int code, const char *fmt, ...)
{
    va_list ap;

    fflush(stdout);
    fputs("laganctl: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    return code;
}

int
ctl_need_utf8(const char *option, const char *value)
{
    if (!value[utf8_valid(value, strlen(value))]) return 0;
    return ctl_fail(CTL_USAGE, "--%s: the text is not UTF-8", option);
}

int
ctl_worst(int worst, int code)
{
    if (!code || !worst) return worst ? worst : code;
    return worst == code ? code : CTL_FAILED;
}

int
command_usage(const struct command *c)
{
    if (*c->operands) return ctl_fail(CTL_USAGE, "usage: laganctl %s %s", c->words, c->operands);
    return ctl_fail(CTL_USAGE, "%s takes no argument (see `laganctl %s --help`)", c->words,
                    c->words);
}

/* ---- tables */

struct table {
    const struct column *columns;
    size_t n_columns, n_cells, max_cells;
    size_t width[TABLE_MAX_COLUMNS];
    bool right[TABLE_MAX_COLUMNS];
    char **cell;
};

/* Returns the width of a text in characters: UTF-8 continuation bytes take no column. */
static size_t
columns_of(const char *s)
{
    size_t n = 0;

    for (; *s; s++) n += (*s & 0xc0) != 0x80;
    return n;
}

static void
add_cell(struct table *t, char *text)
{
    size_t column = t->n_cells % t->n_columns;

    if (t->n_cells == t->max_cells) {
        t->max_cells = 2 * t->max_cells + 64;
        t->cell = realloc(t->cell, t->max_cells * sizeof *t->cell);
        check(t->cell);
    }
    check(text);
    /* Names may contain control characters; they must not break the line or set colours. */
    for (char *s = text; *s; s++)
        if ((unsigned char)*s < ' ' || *s == 0x7f) *s = ' ';
    t->width[column] = MAX(t->width[column], columns_of(text));
    t->cell[t->n_cells++] = text;
}

struct table *
table_new(const struct column *columns)
{
    struct table *t = calloc(1, sizeof *t);

    check(t);
    t->columns = columns;
    while (columns[t->n_columns].head) t->n_columns++;
    check(t->n_columns <= TABLE_MAX_COLUMNS);
    for (size_t i = 0; i < t->n_columns; i++) add_cell(t, strdup(columns[i].head));
    return t;
}

void
table_cell(struct table *t, bool right, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;

    va_start(ap, fmt);
    check(vasprintf(&text, fmt, ap) >= 0);
    va_end(ap);
    t->right[t->n_cells % t->n_columns] = right;
    add_cell(t, text);
}

void
cell_word(struct table *t, const json_t *o, const char *key)
{
    table_cell(t, false, "%s", json_word(o, key));
}

void
cell_number(struct table *t, const json_t *o, const char *key)
{
    table_cell(t, true, "%lld", json_number(o, key));
}

void
cell_bytes(struct table *t, const json_t *o, const char *key)
{
    char buf[32];

    table_cell(t, true, "%s", text_bytes(buf, sizeof buf, (double)json_number(o, key)));
}

void
table_row(struct table *t, const json_t *o)
{
    for (size_t i = 0; i < t->n_columns; i++) t->columns[i].cell(t, o, t->columns[i].key);
}

void
table_print(struct table *t)
{
    for (size_t i = 0; i < t->n_cells; i++) {
        size_t column = i % t->n_columns, pad = t->width[column] - columns_of(t->cell[i]);
        bool last = column + 1 == t->n_columns;

        if (t->right[column]) printf("%*s", (int)pad, "");
        fputs(t->cell[i], stdout);
        if (!last && !t->right[column]) printf("%*s", (int)pad, "");
        fputs(last ? "\n" : "  ", stdout);
        free(t->cell[i]);
    }
    free(t->cell);
    free(t);
}

void
print_table(const struct column *columns, const json_t *rows)
{
    struct table *t = table_new(columns);
    const json_t *o;
    size_t i;

    json_array_foreach(rows, i, o) table_row(t, o);
    table_print(t);
}

/* ---- JSON */

void
print_json(const json_t *o)
{
    json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(15));
    putchar('\n');
}

const char *
json_word(const json_t *o, const char *key)
{
    const char *s = json_string_of(o, key);

    return *s ? s : "-";
}

const char *
json_string_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : "";
}

long long
json_number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    return json_is_real(v) ? (long long)json_real_value(v) : json_integer_value(v);
}

json_t *
json_measured(double v)
{
    char buf[32];

    snprintf(buf, sizeof buf, "%.6g", v);
    return json_real(strtod(buf, NULL));
}

double
json_real_number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

void
print_json_string(FILE *out, const char *s, size_t n)
{
    putc('"', out);
    for (size_t i = 0; i < n; i++) {
        unsigned char ch = (unsigned char)s[i];

        if (ch == '"' || ch == '\\')
            fprintf(out, "\\%c", ch);
        else if (ch == '\n')
            fputs("\\n", out);
        else if (ch < 0x20 || ch == 0x7f)
            fprintf(out, "\\u%04x", ch);
        else
            putc(ch, out);
    }
    putc('"', out);
}

void
print_float(FILE *out, float v)
{
    char buf[32];
    int digits;

    if (!isfinite(v)) { /* JSON has no NaN and no infinity */
        fputs("null", out);
        return;
    }
    for (digits = 6; digits <= 9; digits++) {
        snprintf(buf, sizeof buf, "%.*g", digits, (double)v);
        if (strtof(buf, NULL) == v) break;
    }
    fputs(buf, out);
}

const char *
text_bytes(char *buf, size_t n, double bytes)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    size_t u = 0;

    while (bytes >= 1024 && u + 1 < ARRAY_LEN(units)) bytes /= 1024, u++;
    snprintf(buf, n, u && bytes < 100 ? "%.1f %s" : "%.0f %s", bytes, units[u]);
    return buf;
}

const char *
text_duration(char *buf, size_t n, double seconds)
{
    long s = (long)seconds;

    if (seconds < 1)
        snprintf(buf, n, "%.0f ms", seconds * 1000);
    else if (s < 60)
        snprintf(buf, n, "%.1f s", seconds);
    else if (s < 3600)
        snprintf(buf, n, "%ldm%02lds", s / 60, s % 60);
    else if (s < 86400)
        snprintf(buf, n, "%ldh%02ldm", s / 3600, s / 60 % 60);
    else
        snprintf(buf, n, "%ldd%02ldh", s / 86400, s / 3600 % 24);
    return buf;
}

void
progress_line(const char *fmt, ...)
{
    static bool drawn;
    va_list ap;

    if (!isatty(2)) return;
    if (fmt || drawn) fputs("\r\033[K", stderr);
    drawn = fmt != NULL;
    if (!fmt) return;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fflush(stderr);
}

/* Prints the progress: on a terminal a bar that is drawn again, elsewhere a line for each 10 %. */
void
progress(const char *what, double done, double total, nsec since)
{
    static int tenth = -1;
    char have[32], all[32], rate[32];
    double seconds = (double)(clock_now() - since) / (double)NSEC_S;
    int part;

    if (total <= 0) {
        progress_line(NULL);
        return;
    }
    part = (int)(MIN(done / total, 1.0) * 30);
    text_bytes(have, sizeof have, done);
    text_bytes(all, sizeof all, total);
    text_bytes(rate, sizeof rate, seconds > 0 ? done / seconds : 0);
    if (isatty(2)) {
        progress_line("loading %s  [%.*s%*s] %s of %s  %s/s ", what, part,
                      "##############################", 30 - part, "", have, all, rate);
    } else if (part / 3 > tenth) {
        tenth = part / 3;
        fprintf(stderr, "loading %s: %d %%, %s of %s, %s/s\n", what, tenth * 10, have, all, rate);
    }
}

int
parse_ids(const char *s, int32_t **ret, size_t *n, struct err *e)
{
    /* an id and its comma take at least 2 bytes */
    int32_t *ids = malloc((strlen(s) / 2 + 1) * sizeof *ids);
    size_t at = 0;
    const char *p = s;

    if (!ids) return err_set(e, -ENOMEM, "out of memory for the list of token ids");
    while (*p) {
        char *end;
        long v = strtol(p, &end, 10);

        if (end == p || (*end && *end != ',') || (*end == ',' && !end[1]) || v < INT32_MIN ||
            v > INT32_MAX) {
            free(ids);
            return err_set(e, -EINVAL, "'%.20s' is not a token id; write ids as 1,2,3", p);
        }
        ids[at++] = (int32_t)v;
        p = *end ? end + 1 : end;
    }
    *ret = ids;
    *n = at;
    return 0;
}
