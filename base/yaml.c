/* yaml.c - see yaml.h.
 *
 * Recursive functions read libyaml's events. walk.path has the joined keys of the present position;
 * each level of the recursion appends its key and removes it again. */
#include "base/yaml.h"

#include <stdarg.h>
#include <stdio.h>
#include <yaml.h>

enum { MAX_DEPTH = 8, MAX_PATH = 128, MAX_FILE = 1 << 20, MAX_SEEN = 512 };

struct walk {
    yaml_parser_t parser;
    const char *name;    /* file name for errors */
    const char *text;    /* of the file */
    const char *entries; /* key of the list of mappings; NULL: lists are of scalars */
    yaml_key *take;
    void *arg;
    struct problems *p;
    int entry; /* index of the present entry of the list of mappings, or YAML_TOP */
    char path[MAX_PATH];
    struct seen {
        int entry;
        char path[MAX_PATH];
        unsigned line;
    } * seen; /* [n_seen], the keys read so far, to find duplicate keys */
    uint32_t n_seen;
};

void
problem(struct problems *p, const char *fmt, ...)
{
    va_list ap;

    if (p->n == PROBLEMS_MAX) {
        p->n_more++;
        return;
    }
    va_start(ap, fmt);
    vsnprintf(p->text[p->n++], sizeof p->text[0], fmt, ap);
    va_end(ap);
}

static void PRINTF_LIKE(3, 4) wrong(struct walk *w, const yaml_mark_t *m, const char *fmt, ...)
{
    char what[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    problem(w->p, "%s:%zu:%zu: %s", w->name, m->line + 1, m->column + 1, what);
}

/* Returns true if there is a tab in the white space at the begin of a line, counted from 0. */
static bool
has_tab_indent(const char *text, size_t line)
{
    for (; line && text; line--) {
        text = strchr(text, '\n');
        if (text) text++;
    }
    return text && text[strspn(text, " ")] == '\t';
}

static int
next(struct walk *w, yaml_event_t *ev)
{
    const yaml_parser_t *y = &w->parser;
    const char *problem;

    if (yaml_parser_parse(&w->parser, ev)) return 0;
    problem = y->problem ? y->problem : "cannot be read";
    if (has_tab_indent(w->text, y->problem_mark.line))
        wrong(w, &y->problem_mark, "a tab indents this line; YAML allows spaces only");
    else if (y->context && strstr(y->context, "flow"))
        wrong(w, &y->problem_mark, "%s; the %s that begins in line %zu, column %zu is not closed",
              problem, strstr(y->context, "sequence") ? "list [" : "mapping {",
              y->context_mark.line + 1, y->context_mark.column + 1);
    else
        wrong(w, &y->problem_mark, "%s", problem);
    return -EBADMSG;
}

/* Returns true if the key w->path is new in the file; else reports the line where it was before. */
static bool
first_time(struct walk *w, const yaml_mark_t *m)
{
    for (uint32_t i = 0; i < w->n_seen; i++) {
        if (w->seen[i].entry == w->entry && strcmp(w->seen[i].path, w->path) == 0) {
            wrong(w, m, "%s was already set in line %u", w->path, w->seen[i].line);
            return false;
        }
    }
    if (w->n_seen == MAX_SEEN) {
        wrong(w, m, "the file has more than %d keys, which is the limit", MAX_SEEN);
        return false;
    }
    w->seen[w->n_seen] = (struct seen){ .entry = w->entry, .line = (unsigned)m->line + 1 };
    memcpy(w->seen[w->n_seen++].path, w->path, sizeof w->path);
    return true;
}

/* Skips a value whose first event is *ev. */
static int
skip(struct walk *w, const yaml_event_t *ev)
{
    int depth = ev->type == YAML_MAPPING_START_EVENT || ev->type == YAML_SEQUENCE_START_EVENT;

    while (depth) {
        yaml_event_t e;

        TRY(next(w, &e));
        depth += e.type == YAML_MAPPING_START_EVENT || e.type == YAML_SEQUENCE_START_EVENT;
        depth -= e.type == YAML_MAPPING_END_EVENT || e.type == YAML_SEQUENCE_END_EVENT;
        yaml_event_delete(&e);
    }
    return 0;
}

static void
take_scalar(struct walk *w, const yaml_event_t *ev)
{
    const char *value = (const char *)ev->data.scalar.value;
    char where[160];

    snprintf(where, sizeof where, "%.100s:%zu:%zu", w->name, ev->start_mark.line + 1,
             ev->start_mark.column + 1);
    if (strlen(value) != ev->data.scalar.length)
        wrong(w, &ev->start_mark, "the value of %s contains a NUL byte", w->path);
    else if (ev->data.scalar.plain_implicit &&
             (!*value || !strcmp(value, "~") || !strcmp(value, "null")))
        problem(w->p, "%s: %s has no value; to use the default, remove the line", where, w->path);
    else
        w->take(w->arg, w->entry, w->path, value, where, (unsigned)ev->start_mark.line + 1);
}

static int mapping(struct walk *w, int depth);

/* Reads the list of mappings. */
static int
entries(struct walk *w, int depth)
{
    for (int i = 0;; i++) {
        yaml_event_t ev;
        int r = 0;

        TRY(next(w, &ev));
        if (ev.type == YAML_SEQUENCE_END_EVENT) {
            yaml_event_delete(&ev);
            w->entry = YAML_TOP;
            return 0;
        }
        if (ev.type == YAML_MAPPING_START_EVENT) {
            w->entry = i;
            w->path[0] = 0;
            r = mapping(w, depth + 1);
        } else {
            wrong(w, &ev.start_mark, "an entry of %s must be a mapping of keys to values",
                  w->entries);
            r = skip(w, &ev);
        }
        yaml_event_delete(&ev);
        TRY(r);
    }
}

/* Reads a list of scalars: one key with several values. */
static int
scalars(struct walk *w)
{
    for (;;) {
        yaml_event_t ev;
        yaml_event_type_t type;
        int r = 0;

        TRY(next(w, &ev));
        type = ev.type;
        if (type == YAML_SCALAR_EVENT) {
            take_scalar(w, &ev);
        } else if (type != YAML_SEQUENCE_END_EVENT) {
            wrong(w, &ev.start_mark, "an entry of %s must be one value", w->path);
            r = skip(w, &ev);
        }
        yaml_event_delete(&ev);
        if (r < 0 || type == YAML_SEQUENCE_END_EVENT) return r;
    }
}

static void
no_list(struct walk *w, const yaml_event_t *ev)
{
    wrong(w, &ev->start_mark, "%s must be a list whose entries begin with \"- \"", w->path);
}

static int
value(struct walk *w, const yaml_event_t *ev, int depth)
{
    bool list = w->entries && w->entry == YAML_TOP && strcmp(w->path, w->entries) == 0;
    char where[160];

    switch (ev->type) {
    case YAML_SCALAR_EVENT:
        if (list)
            no_list(w, ev);
        else
            take_scalar(w, ev);
        return 0;
    case YAML_MAPPING_START_EVENT:
        if (depth < MAX_DEPTH && !list) return mapping(w, depth + 1);
        if (list)
            no_list(w, ev);
        else
            wrong(w, &ev->start_mark, "the key is nested too deep");
        return skip(w, ev);
    case YAML_SEQUENCE_START_EVENT:
        if (list) return entries(w, depth);
        if (!w->entries) return scalars(w);
        snprintf(where, sizeof where, "%.100s:%zu:%zu", w->name, ev->start_mark.line + 1,
                 ev->start_mark.column + 1);
        w->take(w->arg, w->entry, w->path, NULL, where, (unsigned)ev->start_mark.line + 1);
        return skip(w, ev);
    default:
        wrong(w, &ev->start_mark, "%s is a YAML alias, which is not supported", w->path);
        return 0;
    }
}

/* Reads the pairs of the mapping whose key is w->path, until its end event; restores w->path. */
static int
mapping(struct walk *w, int depth)
{
    size_t prefix = strlen(w->path);

    for (;;) {
        yaml_event_t key, val;
        bool good = false;
        int r;

        w->path[prefix] = 0;
        TRY(next(w, &key));
        if (key.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&key);
            return 0;
        }
        if (key.type == YAML_SCALAR_EVENT) {
            int n = snprintf(w->path + prefix, sizeof w->path - prefix, "%s%s", prefix ? "." : "",
                             (const char *)key.data.scalar.value);

            good = n > 0 && (size_t)n < sizeof w->path - prefix;
            if (!good) wrong(w, &key.start_mark, "there is no such key: the key is too long");
        } else {
            wrong(w, &key.start_mark, "a key must be a word, not a list or a mapping");
            r = skip(w, &key);
            if (r < 0) {
                yaml_event_delete(&key);
                return r;
            }
        }
        r = next(w, &val);
        if (r == 0) {
            /* A mapping may be written twice with different keys in it; another key only once. */
            if (good && val.type != YAML_MAPPING_START_EVENT) good = first_time(w, &key.start_mark);
            r = good ? value(w, &val, depth) : skip(w, &val);
            yaml_event_delete(&val);
        }
        yaml_event_delete(&key);
        TRY(r);
    }
}

static int
document(struct walk *w)
{
    bool has_document = false;

    for (;;) {
        yaml_event_t ev;
        yaml_event_type_t type;
        int r = 0;

        TRY(next(w, &ev));
        type = ev.type;
        if (type == YAML_DOCUMENT_START_EVENT) {
            if (has_document)
                wrong(w, &ev.start_mark, "a second YAML document begins; the file must have one");
            has_document = true;
        } else if (type == YAML_MAPPING_START_EVENT) {
            w->path[0] = 0;
            w->entry = YAML_TOP;
            r = mapping(w, 1);
        } else if (type == YAML_SCALAR_EVENT && !ev.data.scalar.length) {
            /* an empty document is allowed */
        } else if (type == YAML_SCALAR_EVENT || type == YAML_SEQUENCE_START_EVENT ||
                   type == YAML_ALIAS_EVENT) {
            wrong(w, &ev.start_mark, "the file must be a mapping of keys to values");
            r = skip(w, &ev);
        }
        yaml_event_delete(&ev);
        if (r < 0 || type == YAML_STREAM_END_EVENT) return r;
    }
}

static int
read_text(struct walk *w, size_t n)
{
    int r;

    w->seen = calloc(MAX_SEEN, sizeof *w->seen);
    if (!w->seen || !yaml_parser_initialize(&w->parser)) {
        free(w->seen);
        problem(w->p, "%s: out of memory while reading the file", w->name);
        return -ENOMEM;
    }
    yaml_parser_set_input_string(&w->parser, (const unsigned char *)w->text, n);
    r = document(w);
    yaml_parser_delete(&w->parser);
    free(w->seen);
    return r;
}

static void
free_text(char **text)
{
    free(*text);
}

int
yaml_read(const char *path, const char *entries, yaml_key *take, void *arg, struct problems *p)
{
    struct walk w = {
        .name = path, .entries = entries, .take = take, .arg = arg, .p = p, .entry = YAML_TOP
    };
    char *text CLEAN(free_text) = malloc(MAX_FILE);
    FILE *f = fopen(path, "re");
    const char *why = "no memory";
    size_t n = 0;

    if (!f) {
        int r = -errno;

        p->n_denied += r == -EACCES;
        if (r != -ENOENT) problem(p, "%s: %s", path, strerror(-r));
        return r;
    }
    if (text) {
        n = fread(text, 1, MAX_FILE, f);
        why = ferror(f) ? strerror(errno) : n == MAX_FILE ? "the file exceeds 1 MiB" : NULL;
    }
    fclose(f);
    w.text = text;
    if (!why) return read_text(&w, n);
    problem(p, "%s: %s", path, why);
    return -EBADMSG;
}
