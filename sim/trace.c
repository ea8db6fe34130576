/* trace.c - reads a trace file: see trace.h. */
#include "sim/trace.h"

#include "base/json.h"

#include <stdio.h>

struct trace {
    FILE *f;
    char *path, *line; /* [TRACE_MAX_LINE] */
    uint64_t number;
    nsec last;
};

int
trace_open(struct trace **ret, const char *path, struct err *e)
{
    CLEAN(trace_close_at) struct trace *t = calloc(1, sizeof *t);

    if (!t || !(t->path = strdup(path)) || !(t->line = malloc(TRACE_MAX_LINE)))
        return err_set(e, -ENOMEM, "out of memory for %s", path);
    t->f = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    if (!t->f) return err_set(e, -errno, "%s: %s", path, strerror(errno));
    *ret = TAKE(t);
    return 0;
}

struct trace *
trace_close(struct trace *t)
{
    if (t) {
        if (t->f && t->f != stdin) fclose(t->f);
        free(t->path);
        free(t->line);
    }
    free(t);
    return NULL;
}

/* Stores the value of `key` in *to; skips unknown keys. */
static int
take_value(struct json *j, const char *key, struct trace_line *to, struct err *e)
{
    static const struct {
        const char *key;
        size_t at;
        bool wide;
    } whole[] = {
        { "isl", offsetof(struct trace_line, isl), false },
        { "osl", offsetof(struct trace_line, osl), false },
        { "prefix_len", offsetof(struct trace_line, prefix_len), false },
        { "client", offsetof(struct trace_line, client), false },
        { "lora", offsetof(struct trace_line, lora), false },
        { "prefix_id", offsetof(struct trace_line, prefix_id), true },
        { "session", offsetof(struct trace_line, session), true },
    };
    double real;

    TRY(json_next(j, e));
    for (size_t i = 0; i < ARRAY_LEN(whole); i++) {
        uint64_t v;

        if (strcmp(key, whole[i].key) != 0) continue;
        if (j->kind != JSON_NUMBER || json_u64(j, &v) < 0 || (!whole[i].wide && v > 1 << 24))
            return err_set(e, -EBADMSG, "%s must be a whole number from 0 to %s", key,
                           whole[i].wide ? "2^64 - 1" : "2^24");
        memcpy((char *)to + whole[i].at, &v, whole[i].wide ? 8 : 4);
        return 0;
    }
    if (strcmp(key, "encdec") == 0) {
        to->encdec = j->kind == JSON_TRUE;
        return 0;
    }
    if (strcmp(key, "arrival_s") != 0 && strcmp(key, "priority") != 0) return json_skip(j, e);
    if (j->kind != JSON_NUMBER || json_f64(j, &real) < 0 || real < 0 || real > 1e9)
        return err_set(e, -EBADMSG, "%s must be a number from 0 to 1e9", key);
    if (*key == 'p') {
        to->priority = (float)(real > 1 ? 1 : real);
    } else {
        to->arrival = (nsec)(real * 1e9);
    }
    return 0;
}

static int
read_line(const char *text, size_t n, struct trace_line *to, struct err *e)
{
    struct json j;
    char key[32];

    *to = (struct trace_line){ .prefix_id = TRACE_NONE, .session = TRACE_NONE, .priority = 0.5f };
    json_open(&j, text, n);
    TRY(json_next(&j, e));
    if (j.kind != JSON_OBJECT) return err_set(e, -EBADMSG, "the line is not a JSON object");
    for (;;) {
        TRY(json_next(&j, e));
        if (j.kind == JSON_OBJECT_END) break;
        if (json_unescape(&j, key, sizeof key) < 0) key[0] = 0;
        TRY(take_value(&j, key, to, e));
    }
    if (to->isl == 0 || to->osl == 0)
        return err_set(e, -EBADMSG, "isl and osl are required and must be at least 1");
    return 0;
}

/* Reads the next line, without its line end, into t->line. 1: a line; 0: end of file. */
static int
next_text(struct trace *t, size_t *n, struct err *e)
{
    int c;

    t->number++;
    for (*n = 0; (c = getc_unlocked(t->f)) != EOF && c != '\n'; t->line[(*n)++] = (char)c)
        if (*n == TRACE_MAX_LINE)
            return err_set(e, -EBADMSG, "the line is longer than %d bytes", TRACE_MAX_LINE);
    if (ferror(t->f)) return err_set(e, -EIO, "cannot read the trace file: %m");
    return c != EOF || *n > 0;
}

int
trace_next(struct trace *t, struct trace_line *ret, struct err *e)
{
    size_t n;
    int r;

    do {
        r = next_text(t, &n, e);
    } while (r > 0 && n == 0);
    if (r == 0) return 0;
    if (r > 0) r = read_line(t->line, n, ret, e);
    if (r == 0 && ret->arrival < t->last)
        r = err_set(e, -EBADMSG, "arrival_s is lower than in the line before");
    if (r < 0) return err_while(e, r, "%s:%llu", t->path, (unsigned long long)t->number);
    t->last = ret->arrival;
    return 1;
}
