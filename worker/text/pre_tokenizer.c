/* pre_tokenizer.c - reads the "pre_tokenizer" of tokenizer.json and applies it (pre_tokenizer.h).
 *
 * A step replaces spaces by a mark (Metaspace), prepends a prefix, splits the text by a pattern,
 * and passes each piece to the next step by recursion, so each step has its own buffer. */
#include "worker/text/pre_tokenizer.h"

#include "base/utf8.h"
#include "worker/text/json_section.h"
#include "worker/text/pattern.h"
#include "worker/text/text_buffer.h"

/* The pattern of ByteLevel, from GPT-2. */
static const char gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* What a step does with a match of its pattern: makes it a separate piece, removes it, adds it to
 * the previous or next piece, or makes one piece of adjacent matches. */
enum behavior { ISOLATED, REMOVED, MERGED_PREVIOUS, MERGED_NEXT, CONTIGUOUS };

enum prepend { NEVER, ALWAYS, FIRST };

struct pretok_step {
    bool cuts; /* splits by the pattern */
    struct pattern pattern;
    enum behavior behavior;
    bool invert; /* matches and the text between them change their roles */
    enum prepend prepend;
    char prefix[5]; /* text to prepend to a piece that does not begin with it */
    bool marks;     /* each space is replaced by prefix */
    struct text_buffer buffer;
};

/* ---- parsing */

struct config {
    char type[64], behavior[32], replacement[8], scheme[16];
    bool regex, invert, individual;
    int8_t prefix, split; /* SECTION_SIGN */
    struct pattern pattern;
    struct json list;
};

static void
config_done(struct config *c)
{
    pattern_free(&c->pattern);
}

static const struct section_field fields[] = {
    SECTION(TEXT, config, "type", type),
    SECTION(TEXT, config, "behavior", behavior),
    SECTION(TEXT, config, "replacement", replacement),
    SECTION(TEXT, config, "prepend_scheme", scheme),
    SECTION(BOOL, config, "use_regex", regex),
    SECTION(BOOL, config, "invert", invert),
    SECTION(BOOL, config, "individual_digits", individual),
    SECTION(SIGN, config, "add_prefix_space", prefix),
    SECTION(SIGN, config, "split", split),
    { "pattern", SECTION_READ, offsetof(struct config, pattern), 0, pattern_read },
    SECTION(VALUE, config, "pretokenizers", list),
    { NULL },
};

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
                           "Split behavior %s with a pattern that matches \"\" is not served yet",
                           name);
        return 0;
    }
    return err_set(e, -ENOTSUP, "Split behavior %s is not served yet", name);
}

/* Reads a Metaspace step. Older files have add_prefix_space instead of prepend_scheme. */
static int MUST_USE
read_metaspace(struct pretok *p, struct pretok_step *s, const struct config *c, struct err *e)
{
    size_t n = strlen(c->replacement);

    if (n == 0 || utf8_at(c->replacement, n) != (int)n)
        return err_set(e, -EBADMSG, "replacement is not one character");
    memcpy(s->prefix, c->replacement, n + 1);
    s->marks = true;
    if (strcmp(c->scheme, "always") == 0 || !*c->scheme)
        s->prepend = ALWAYS;
    else if (strcmp(c->scheme, "first") == 0)
        s->prepend = FIRST;
    else if (strcmp(c->scheme, "never"))
        return err_set(e, -ENOTSUP, "prepend_scheme %s is not served yet", c->scheme);
    if (c->prefix < 0) {
        if (*c->scheme && s->prepend != NEVER)
            return err_set(e, -EBADMSG, "add_prefix_space is false, but prepend_scheme is %s",
                           c->scheme);
        s->prepend = NEVER;
    }
    if (s->prepend == FIRST && p->n > 1)
        return err_set(e, -ENOTSUP, "prepend_scheme \"first\" is served only in the first step");
    p->first_only |= s->prepend == FIRST;
    s->cuts = c->split >= 0;
    s->behavior = MERGED_NEXT;
    return s->cuts ? pattern_string(&s->pattern, s->prefix, e) : 0;
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
        s->prepend = c->prefix > 0 ? ALWAYS : NEVER;
        s->cuts = c->regex;
        return s->cuts ? pattern_regex(&s->pattern, gpt2, e) : 0;
    }
    if (strcmp(c->type, "Split") == 0) {
        if (!s->pattern.code && !s->pattern.text)
            return err_set(e, -EBADMSG, "a Split has no pattern");
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
    return err_set(e, -ENOTSUP, "type %s is not served yet", c->type);
}

static int MUST_USE
read_steps(void *arg, struct json *j, int depth, struct err *e)
{
    /* use_regex is true by default, because older files do not have the key. */
    CLEAN(config_done) struct config c = { .regex = true };
    struct pretok *p = arg;

    TRY(json_section_read(j, "its value", fields, &c, e));
    if (strcmp(c.type, "Sequence") == 0)
        return json_section_sequence(c.list, depth, read_steps, p, e);
    if (p->byte_level) return err_set(e, -ENOTSUP, "%s after ByteLevel is not served yet", c.type);
    if (p->n == PRETOK_MAX_STEPS)
        return err_set(e, -ENOTSUP, "more than %d pre-tokenizers in a sequence are not supported",
                       PRETOK_MAX_STEPS);
    return read_step(p, &p->step[p->n++], &c, e);
}

int
pre_tokenizer_open(struct pretok *p, struct json *j, struct err *e)
{
    p->step = calloc(PRETOK_MAX_STEPS, sizeof *p->step);
    if (!p->step) return err_set(e, -ENOMEM, "no host memory for the steps of the pre-tokenizer");
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

/* The piece that a step is assembling from matches and the text between them. */
struct piece {
    const char *text;
    size_t begin, end; /* range of text */
    bool there;        /* the piece exists */
    bool match;        /* the last part that was added was a match */
};

static int MUST_USE run_step(const struct walk *w, uint32_t i, const char *text, size_t n);

static int MUST_USE
pass_on(const struct walk *w, uint32_t i, struct piece *p)
{
    bool there = p->there && p->end > p->begin;

    p->there = false;
    return there ? run_step(w, i + 1, p->text + p->begin, p->end - p->begin) : 0;
}

/* Adds the next part of the text, which is a match or the text between two matches, to the current
 * piece, or passes this piece on and begins a new one. */
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

/* Replaces *text by a copy in s->buffer with the step's prefix and with marks instead of spaces. */
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

bool
pre_tokenizer_drops(const struct pretok *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->step[i].cuts && p->step[i].behavior == REMOVED) return true;
    return false;
}

int
pre_tokenizer_run(struct pretok *p, const char *text, size_t n, bool first,
                  pre_tokenizer_word *word, void *arg, struct err *e)
{
    const struct walk w = { p, first, word, arg, e };

    return n ? run_step(&w, 0, text, n) : 0;
}
