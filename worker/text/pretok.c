/* pretok.c - see pretok.h.
 *
 * A step is: put a space in front (ByteLevel's add_prefix_space), then cut by a pattern, then hand each
 * piece to the next step. Steps nest by recursion, as deep as there are steps, so each has a match block
 * of its own.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "worker/text/pretok.h"

#include "worker/text/doc.h"

#include <errno.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ByteLevel's own, from GPT-2. */
static const char gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

enum behavior { ISOLATED, REMOVED };

struct pretok_step {
    pcre2_code *code; /* NULL: the piece stays whole */
    pcre2_match_data *match;
    enum behavior behavior;
    bool invert; /* what matches and what does not change places */
    bool space;  /* a space goes in front of a piece that begins with none */
    char *room;  /* the piece with its space */
    size_t cap;
};

/* Copy a pattern with \s and \S spelled out. -EMSGSIZE: room is too small. -ENOTSUP: a class within a
 * class, which the reference's engine joins and PCRE2 would read as characters. */
static int MUST_USE
spell_out(const char *p, char *to, size_t room)
{
    static const char white[] = "\\x{9}-\\x{d}\\x{85}\\p{Z}";
    size_t n = 0;
    bool class = false;

    for (; *p; p++) {
        char out[64] = { *p, '\0' };

        if (*p == '\\' && p[1]) {
            p++;
            if (*p == 's')
                snprintf(out, sizeof out, class ? "%s" : "[%s]", white);
            else if (*p == 'S' && !class)
                snprintf(out, sizeof out, "[^%s]", white);
            else
                snprintf(out, sizeof out, "\\%c", *p);
        } else if (*p == '[') {
            if (class && p[1] != ':') return -ENOTSUP;
            class = true;
        } else if (*p == ']') {
            class = false;
        }
        if (n + strlen(out) >= room) return -EMSGSIZE;
        memcpy(to + n, out, strlen(out));
        n += strlen(out);
    }
    to[n] = '\0';
    return 0;
}

static int MUST_USE
compile(struct pretok_step *s, const char *pattern, struct err *e)
{
    char text[8192];
    PCRE2_SIZE at;
    int code, r = spell_out(pattern, text, sizeof text);

    if (r < 0)
        return err_set(e, r, "pre_tokenizer: pattern %s",
                       r == -EMSGSIZE ? "is too long" : "has a class within a class");
    s->code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code,
                            &at, NULL);
    if (!s->code) {
        PCRE2_UCHAR said[128];

        pcre2_get_error_message(code, said, sizeof said);
        return err_set(e, -ENOTSUP, "pre_tokenizer: pattern at \"%.32s\": %s", text + at,
                       (const char *)said);
    }
    /* Where memory may not be made executable this fails, and matching is only slower. */
    (void)pcre2_jit_compile(s->code, PCRE2_JIT_COMPLETE);
    s->match = pcre2_match_data_create_from_pattern(s->code, NULL);
    return s->match ? 0 : err_set(e, -ENOMEM, "pre_tokenizer");
}

static int MUST_USE
read_pattern(struct json *j, char *pattern, size_t room, struct err *e)
{
    int more;

    TRY(json_next(j, e));
    TRY(doc_object(j, "pre_tokenizer: pattern", e));
    while ((more = doc_key(j, e)) > 0) {
        if (!json_is(j, "Regex"))
            return err_set(e, -ENOTSUP, "pre_tokenizer: Split by a %.*s is not served yet",
                           (int)MIN(j->text_len, (size_t)32), j->text);
        TRY(doc_text(j, "pre_tokenizer: Regex", pattern, room, e));
    }
    return more;
}

struct config {
    char type[64], behavior[32], pattern[4096];
    bool prefix, regex, invert;
    struct json list; /* Sequence's, with its first event read */
};

static int MUST_USE
read_config(struct json *j, struct config *c, struct err *e)
{
    int more;

    /* use_regex came after the first files without it: absent is true. */
    *c = (struct config){ .regex = true };
    TRY(doc_object(j, "pre_tokenizer", e));
    while ((more = doc_key(j, e)) > 0) {
        if (json_is(j, "type")) {
            TRY(doc_text(j, "pre_tokenizer: type", c->type, sizeof c->type, e));
        } else if (json_is(j, "add_prefix_space")) {
            TRY(doc_bool(j, "pre_tokenizer: add_prefix_space", &c->prefix, e));
        } else if (json_is(j, "use_regex")) {
            TRY(doc_bool(j, "pre_tokenizer: use_regex", &c->regex, e));
        } else if (json_is(j, "invert")) {
            TRY(doc_bool(j, "pre_tokenizer: invert", &c->invert, e));
        } else if (json_is(j, "behavior")) {
            TRY(doc_text(j, "pre_tokenizer: behavior", c->behavior, sizeof c->behavior, e));
        } else if (json_is(j, "pattern")) {
            TRY(read_pattern(j, c->pattern, sizeof c->pattern, e));
        } else if (json_is(j, "pretokenizers")) {
            TRY(json_next(j, e));
            c->list = *j;
            TRY(json_skip(j, e));
        } else {
            TRY(json_skip(j, e));
        }
    }
    return more;
}

static int MUST_USE read_steps(struct pretok *p, struct json *j, int depth, struct err *e);

static int MUST_USE
read_sequence(struct pretok *p, struct config *c, int depth, struct err *e)
{
    int more;

    if (depth == 4) return err_set(e, -ENOTSUP, "pre_tokenizer: Sequences nested four deep");
    if (!c->list.p) return err_set(e, -EBADMSG, "pre_tokenizer: a Sequence of nothing");
    TRY(doc_array(&c->list, "pre_tokenizer: pretokenizers", e));
    while ((more = doc_element(&c->list, e)) > 0) TRY(read_steps(p, &c->list, depth + 1, e));
    return more;
}

static int MUST_USE
read_steps(struct pretok *p, struct json *j, int depth, struct err *e)
{
    struct pretok_step *s = &p->step[p->n];
    struct config c;

    TRY(read_config(j, &c, e));
    if (strcmp(c.type, "Sequence") == 0) return read_sequence(p, &c, depth, e);
    if (p->ends)
        return err_set(e, -ENOTSUP, "pre_tokenizer: %s after ByteLevel is not served yet", c.type);
    if (p->n == PRETOK_MAX_STEPS)
        return err_set(e, -ENOTSUP, "pre_tokenizer: more than %d steps", PRETOK_MAX_STEPS);
    if (strcmp(c.type, "ByteLevel") == 0) {
        p->n++;
        p->ends = true;
        s->space = c.prefix;
        return c.regex ? compile(s, gpt2, e) : 0;
    }
    if (strcmp(c.type, "Split") != 0)
        return err_set(e, -ENOTSUP, "pre_tokenizer type %s is not served yet", c.type);
    if (strcmp(c.behavior, "Isolated") != 0 && strcmp(c.behavior, "Removed") != 0)
        return err_set(e, -ENOTSUP, "pre_tokenizer: Split behavior %s is not served yet",
                       c.behavior);
    p->n++;
    s->behavior = c.behavior[0] == 'R' ? REMOVED : ISOLATED;
    s->invert = c.invert;
    return compile(s, c.pattern, e);
}

int
pretok_open(struct pretok *p, struct json *j, struct err *e)
{
    p->step = calloc(PRETOK_MAX_STEPS + 1, sizeof *p->step);
    if (!p->step) return err_set(e, -ENOMEM, "pre_tokenizer");
    if (j->kind != JSON_NULL) TRY(read_steps(p, j, 0, e));
    if (!p->ends)
        return err_set(e, -ENOTSUP,
                       "pre_tokenizer does not end with ByteLevel: other kinds are not served yet");
    return 0;
}

void
pretok_free(struct pretok *p)
{
    for (uint32_t i = 0; i < p->n; i++) {
        pcre2_code_free(p->step[i].code);
        pcre2_match_data_free(p->step[i].match);
        free(p->step[i].room);
    }
    free(p->step);
    *p = (struct pretok){ 0 };
}

struct walk {
    struct pretok *p;
    pretok_word *word;
    void *arg;
    struct err *e;
};

static int MUST_USE run_step(const struct walk *w, uint32_t i, const char *text, size_t n);

/* 1 with the next match in *start and *end, 0 without. */
static int MUST_USE
find(const struct pretok_step *s, const char *text, size_t n, size_t from, size_t *start,
     size_t *end, struct err *e)
{
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(s->match);
    int r = pcre2_match(s->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, s->match, NULL);
    PCRE2_UCHAR said[128];

    /* Compiled patterns have a small stack of their own; the interpreter takes its from the heap. */
    if (r == PCRE2_ERROR_JIT_STACKLIMIT)
        r = pcre2_match(s->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                        s->match, NULL);
    if (r == PCRE2_ERROR_NOMATCH) return 0;
    if (r < 0) {
        pcre2_get_error_message(r, said, sizeof said);
        return err_set(e, -EINVAL, "text cannot be cut into words at byte %zu: %s", from,
                       (const char *)said);
    }
    *start = at[0];
    *end = at[1];
    return 1;
}

/* A piece between two cuts, if there is anything in it and the step keeps its kind. */
static int MUST_USE
hand_on(const struct walk *w, uint32_t i, const char *text, size_t n, bool matched)
{
    const struct pretok_step *s = &w->p->step[i];

    if (n == 0 || (s->behavior == REMOVED && matched != s->invert)) return 0;
    return run_step(w, i + 1, text, n);
}

static int MUST_USE
with_space(struct pretok_step *s, const char **text, size_t *n)
{
    if (s->cap < *n + 1) {
        size_t cap = MAX(*n + 1, s->cap * 2 + 4096);
        char *room = realloc(s->room, cap);

        if (!room) return -ENOMEM;
        s->room = room;
        s->cap = cap;
    }
    s->room[0] = ' ';
    memcpy(s->room + 1, *text, *n);
    *text = s->room;
    ++*n;
    return 0;
}

static int
run_step(const struct walk *w, uint32_t i, const char *text, size_t n)
{
    struct pretok_step *s;
    size_t done = 0, from = 0, start = 0, end = 0;
    int found = 0;

    if (i == w->p->n) return w->word(w->arg, text, n, w->e);
    s = &w->p->step[i];
    if (s->space && text[0] != ' ' && with_space(s, &text, &n) < 0)
        return err_set(w->e, -ENOMEM, "pre_tokenizer");
    if (!s->code) return run_step(w, i + 1, text, n);
    while (from < n && (found = find(s, text, n, from, &start, &end, w->e)) > 0) {
        TRY(hand_on(w, i, text + done, start - done, false));
        TRY(hand_on(w, i, text + start, end - start, true));
        done = end;
        from = end;
        if (start ==
            end) /* an empty match cuts, and the search goes on behind the next character */
            do from++;
            while (from < n && ((unsigned char)text[from] & 0xc0) == 0x80);
    }
    TRY(found);
    return hand_on(w, i, text + done, n - done, false);
}

int
pretok_run(struct pretok *p, const char *text, size_t n, pretok_word *word, void *arg,
           struct err *e)
{
    const struct walk w = { p, word, arg, e };

    return n ? run_step(&w, 0, text, n) : 0;
}
