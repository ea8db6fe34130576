/* pre_tokenizer.c - see pre_tokenizer.h.
 *
 * A step replaces spaces by a mark (Metaspace), prepends a prefix, splits by a pattern and passes
 * each piece to the next step. Steps are nested by recursion, one level for each step, so each step
 * has its own buffer. */
#include "worker/text/pre_tokenizer.h"

#include "base/utf8.h"
#include "worker/text/json_section.h"
#include "worker/text/pattern.h"
#include "worker/text/text_buffer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The pattern of ByteLevel, from GPT-2. */
static const char gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* What becomes of a match: a separate piece, removed, part of the previous or next piece, or one
 * piece with adjacent matches. */
enum behavior { ISOLATED, REMOVED, MERGED_PREVIOUS, MERGED_NEXT, CONTIGUOUS };

enum prepend { NEVER, ALWAYS, FIRST };

struct pretok_step {
    bool cuts; /* splits by the pattern */
    struct pattern pattern;
    enum behavior behavior;
    bool invert; /* swaps matches and the text between them */
    enum prepend prepend;
    char prefix[5]; /* prepended to a piece that does not begin with it */
    bool marks;     /* prefix also replaces each space */
    struct text_buffer buffer;
};

/* ---- parsing */

struct config {
    char type[64], behavior[32], replacement[8], scheme[16];
    bool prefix, no_prefix, regex, invert, no_split, individual;
    struct pattern pattern;
    struct json list; /* of Sequence; its first event is read */
};

static int MUST_USE
read_key(struct json *j, struct config *c, struct err *e)
{
    bool yes;

    if (json_is(j, "type"))
        return json_section_text(j, "pre_tokenizer: type", c->type, sizeof c->type, e);
    if (json_is(j, "use_regex"))
        return json_section_bool(j, "pre_tokenizer: use_regex", &c->regex, e);
    if (json_is(j, "invert")) return json_section_bool(j, "pre_tokenizer: invert", &c->invert, e);
    if (json_is(j, "pattern")) return pattern_read(&c->pattern, "pre_tokenizer", j, e);
    if (json_is(j, "behavior"))
        return json_section_text(j, "pre_tokenizer: behavior", c->behavior, sizeof c->behavior, e);
    if (json_is(j, "replacement"))
        return json_section_text(j, "pre_tokenizer: replacement", c->replacement,
                                 sizeof c->replacement, e);
    if (json_is(j, "prepend_scheme"))
        return json_section_text(j, "pre_tokenizer: prepend_scheme", c->scheme, sizeof c->scheme,
                                 e);
    if (json_is(j, "individual_digits"))
        return json_section_bool(j, "pre_tokenizer: individual_digits", &c->individual, e);
    if (json_is(j, "add_prefix_space")) {
        TRY(json_section_bool(j, "pre_tokenizer: add_prefix_space", &c->prefix, e));
        c->no_prefix = j->kind == JSON_FALSE;
        return 0;
    }
    if (json_is(j, "split")) {
        TRY(json_section_bool(j, "pre_tokenizer: split", &yes, e));
        c->no_split = j->kind == JSON_FALSE;
        return 0;
    }
    if (json_is(j, "pretokenizers")) {
        TRY(json_next(j, e));
        c->list = *j;
    }
    return json_skip(j, e);
}

static int MUST_USE
read_behavior(struct pretok_step *s, const char *name, struct err *e)
{
    static const char *const names[] = { "Isolated", "Removed", "MergedWithPrevious",
                                         "MergedWithNext", "Contiguous" };

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(name, names[i])) continue;
        s->behavior = (enum behavior)i;
        if (i > REMOVED && s->pattern.may_be_empty)
            return err_set(e, -ENOTSUP,
                           "pre_tokenizer: %s with a pattern that matches the empty string", name);
        return 0;
    }
    return err_set(e, -ENOTSUP, "pre_tokenizer: Split behavior %s is not served yet", name);
}

/* Older files have only add_prefix_space instead of prepend_scheme. */
static int MUST_USE
read_metaspace(struct pretok *p, struct pretok_step *s, const struct config *c, struct err *e)
{
    size_t n = strlen(c->replacement);

    if (n == 0 || utf8_at(c->replacement, n) != (int)n)
        return err_set(e, -EBADMSG, "pre_tokenizer: replacement is not one character");
    memcpy(s->prefix, c->replacement, n + 1);
    s->marks = true;
    if (strcmp(c->scheme, "always") == 0 || !*c->scheme)
        s->prepend = ALWAYS;
    else if (strcmp(c->scheme, "first") == 0)
        s->prepend = FIRST;
    else if (strcmp(c->scheme, "never"))
        return err_set(e, -ENOTSUP, "pre_tokenizer: prepend_scheme %s", c->scheme);
    if (c->no_prefix) {
        if (*c->scheme && s->prepend != NEVER)
            return err_set(e, -EBADMSG,
                           "pre_tokenizer: add_prefix_space does not match prepend_scheme");
        s->prepend = NEVER;
    }
    if (s->prepend == FIRST && p->n > 1)
        return err_set(e, -ENOTSUP,
                       "pre_tokenizer: prepend_scheme first behind another step is not served yet");
    p->first_only |= s->prepend == FIRST;
    s->cuts = !c->no_split;
    s->behavior = MERGED_NEXT;
    return s->cuts ? pattern_string(&s->pattern, "pre_tokenizer", s->prefix, e) : 0;
}

static int MUST_USE
read_step(struct pretok *p, struct pretok_step *s, struct config *c, struct err *e)
{
    s->pattern = c->pattern;
    c->pattern = (struct pattern){ 0 };
    s->cuts = true;
    if (strcmp(c->type, "ByteLevel") == 0) {
        p->byte_level = true;
        s->prefix[0] = ' ';
        s->prepend = c->prefix ? ALWAYS : NEVER;
        s->cuts = c->regex;
        return s->cuts ? pattern_regex(&s->pattern, "pre_tokenizer", gpt2, e) : 0;
    }
    if (strcmp(c->type, "Split") == 0) {
        if (!s->pattern.code && !s->pattern.text)
            return err_set(e, -EBADMSG, "pre_tokenizer: a Split without pattern");
        s->invert = c->invert;
        return read_behavior(s, c->behavior, e);
    }
    if (strcmp(c->type, "Metaspace") == 0) return read_metaspace(p, s, c, e);
    if (strcmp(c->type, "WhitespaceSplit") == 0) {
        s->pattern.kind = PATTERN_SPACE;
        s->behavior = REMOVED;
        return 0;
    }
    if (strcmp(c->type, "Digits") == 0) {
        s->pattern.kind = PATTERN_NUMBER;
        s->behavior = c->individual ? ISOLATED : CONTIGUOUS;
        return 0;
    }
    return err_set(e, -ENOTSUP, "pre_tokenizer type %s is not served yet", c->type);
}

static int MUST_USE read_steps(struct pretok *p, struct json *j, int depth, struct err *e);

static int MUST_USE
read_sequence(struct pretok *p, struct config *c, int depth, struct err *e)
{
    int more;

    if (depth == 4) return err_set(e, -ENOTSUP, "pre_tokenizer: Sequences nested four deep");
    if (!c->list.p) return err_set(e, -EBADMSG, "pre_tokenizer: an empty Sequence");
    TRY(json_section_array(&c->list, "pre_tokenizer: pretokenizers", e));
    while ((more = json_section_element(&c->list, e)) > 0)
        TRY(read_steps(p, &c->list, depth + 1, e));
    return more;
}

static int
read_steps(struct pretok *p, struct json *j, int depth, struct err *e)
{
    /* Older files have no use_regex; absent means true. */
    struct config c = { .regex = true };
    int r = json_section_object(j, "pre_tokenizer", e), more = 0;

    while (r == 0 && (more = json_section_key(j, e)) > 0) r = read_key(j, &c, e);
    if (r == 0) r = more;
    if (r == 0 && strcmp(c.type, "Sequence") == 0)
        r = read_sequence(p, &c, depth, e);
    else if (r == 0 && p->byte_level)
        r = err_set(e, -ENOTSUP, "pre_tokenizer: %s after ByteLevel is not served yet", c.type);
    else if (r == 0 && p->n == PRETOK_MAX_STEPS)
        r = err_set(e, -ENOTSUP, "pre_tokenizer: more than %d steps", PRETOK_MAX_STEPS);
    else if (r == 0)
        r = read_step(p, &p->step[p->n++], &c, e);
    pattern_free(&c.pattern);
    return r;
}

int
pre_tokenizer_open(struct pretok *p, struct json *j, struct err *e)
{
    p->step = calloc(PRETOK_MAX_STEPS, sizeof *p->step);
    if (!p->step) return err_set(e, -ENOMEM, "pre_tokenizer");
    return j->kind == JSON_NULL ? 0 : read_steps(p, j, 0, e);
}

void
pre_tokenizer_free(struct pretok *p)
{
    for (uint32_t i = 0; i < p->n; i++) {
        pattern_free(&p->step[i].pattern);
        text_buffer_free(&p->step[i].buffer);
    }
    free(p->step);
    *p = (struct pretok){ 0 };
}

/* ---- running */

struct walk {
    struct pretok *p;
    bool first;
    pre_tokenizer_word *on_word;
    void *arg;
    struct err *e;
};

/* The piece that is assembled from matches and the text between them. */
struct piece {
    const char *text;
    size_t begin, end;
    bool there, match;
};

static int MUST_USE run_step(const struct walk *w, uint32_t i, const char *text, size_t n);

static int MUST_USE
pass_on(const struct walk *w, uint32_t i, struct piece *p)
{
    bool there = p->there && p->end > p->begin;

    p->there = false;
    return there ? run_step(w, i + 1, p->text + p->begin, p->end - p->begin) : 0;
}

/* Adds the next part of the text, a match or not, to the current piece, or begins a new piece. */
static int MUST_USE
add_part(const struct walk *w, uint32_t i, struct piece *p, size_t begin, size_t end, bool match)
{
    const struct pretok_step *s = &w->p->step[i];
    bool joins = false;

    match ^= s->invert;
    if (s->behavior == MERGED_PREVIOUS) joins = match && !p->match;
    if (s->behavior == MERGED_NEXT) joins = !match && p->match;
    if (s->behavior == CONTIGUOUS) joins = match == p->match;
    if (p->there && joins) {
        p->end = end;
    } else {
        TRY(pass_on(w, i, p));
        p->begin = begin;
        p->end = end;
        p->there = s->behavior != REMOVED || !match;
    }
    p->match = match;
    return 0;
}

/* Writes marks for spaces and the prefix. */
static int MUST_USE
write_over(const struct walk *w, struct pretok_step *s, const char **text, size_t *n)
{
    size_t mark = strlen(s->prefix), from = 0;
    bool starts = *n >= mark && memcmp(*text, s->prefix, mark) == 0;

    if (s->marks) starts |= **text == ' ';
    s->buffer.n = 0;
    if (!starts && (s->prepend == ALWAYS || (s->prepend == FIRST && w->first)))
        TRY(text_buffer_put(&s->buffer, s->prefix, mark));
    else if (!s->marks)
        return 0;
    while (s->marks && from < *n) {
        const char *space = memchr(*text + from, ' ', *n - from);

        if (!space) break;
        TRY(text_buffer_put(&s->buffer, *text + from, (size_t)(space - *text) - from));
        TRY(text_buffer_put(&s->buffer, s->prefix, mark));
        from = (size_t)(space - *text) + 1;
    }
    TRY(text_buffer_put(&s->buffer, *text + from, *n - from));
    *text = s->buffer.p;
    *n = s->buffer.n;
    return 0;
}

static int
run_step(const struct walk *w, uint32_t i, const char *text, size_t n)
{
    struct pretok_step *s;
    size_t done = 0, from = 0, start = 0, end = 0;
    struct piece piece = { 0 };
    int found = 0;

    if (i == w->p->n) return w->on_word(w->arg, text, n, w->e);
    s = &w->p->step[i];
    if ((s->marks || s->prepend) && write_over(w, s, &text, &n) < 0)
        return err_set(w->e, -ENOMEM, "pre_tokenizer: out of memory for a text of %zu bytes", n);
    if (!s->cuts) return run_step(w, i + 1, text, n);
    piece.text = text;
    while (from < n && (found = pattern_find(&s->pattern, text, n, from, &start, &end, w->e)) > 0) {
        if (start > done) TRY(add_part(w, i, &piece, done, start, false));
        TRY(add_part(w, i, &piece, start, end, true));
        done = end;
        from = end;
        if (start == end) /* an empty match splits; the search continues after the next character */
            do from++;
            while (from < n && ((unsigned char)text[from] & 0xc0) == 0x80);
    }
    TRY(found);
    if (n > done) TRY(add_part(w, i, &piece, done, n, false));
    return pass_on(w, i, &piece);
}

int
pre_tokenizer_run(struct pretok *p, const char *text, size_t n, bool first,
                  pre_tokenizer_word *word, void *arg, struct err *e)
{
    const struct walk w = { p, first, word, arg, e };

    return n ? run_step(&w, 0, text, n) : 0;
}
