/* normalizer.c - see normalizer.h.
 *
 * For the Unicode forms, characters are decomposed one by one, ordered here and composed by
 * utf8proc. The ordering of utf8proc is quadratic in the length of a run of marks, which a client
 * chooses. */
#include "worker/text/normalizer.h"

#include "worker/text/chars.h"
#include "worker/text/charsmap.h"
#include "worker/text/json_section.h"
#include "worker/text/pattern.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum kind { FORM, LOWERCASE, STRIP, STRIP_ACCENTS, REPLACE, PREPEND, PRECOMPILED };

struct normal_step {
    enum kind kind;
    bool compat, compose; /* FORM */
    bool left, right;     /* STRIP */
    struct pattern pattern;
    char *content; /* REPLACE, PREPEND */
    struct charsmap map;
};

/* ---- parsing */

struct config {
    char type[64];
    bool left, right, has_content;
    struct pattern pattern;
    char content[PATTERN_TEXT];
    struct json map, list; /* their first event is read */
};

static int MUST_USE
read_config(struct json *j, struct config *c, struct err *e)
{
    int more;

    TRY(json_section_object(j, "normalizer", e));
    while ((more = json_section_key(j, e)) > 0) {
        struct json *keep = json_is(j, "precompiled_charsmap") ? &c->map
                            : json_is(j, "normalizers")        ? &c->list
                                                               : NULL;

        if (keep) {
            TRY(json_next(j, e));
            *keep = *j;
            TRY(json_skip(j, e));
        } else if (json_is(j, "type")) {
            TRY(json_section_text(j, "normalizer: type", c->type, sizeof c->type, e));
        } else if (json_is(j, "strip_left")) {
            TRY(json_section_bool(j, "normalizer: strip_left", &c->left, e));
        } else if (json_is(j, "strip_right")) {
            TRY(json_section_bool(j, "normalizer: strip_right", &c->right, e));
        } else if (json_is(j, "pattern")) {
            TRY(pattern_read(&c->pattern, "normalizer", j, e));
        } else if (json_is(j, "content") || json_is(j, "prepend")) {
            TRY(json_section_text(j, "normalizer: content", c->content, sizeof c->content, e));
            c->has_content = true;
        } else {
            TRY(json_skip(j, e));
        }
    }
    return more;
}

static int MUST_USE
read_form(struct normal_step *s, const struct config *c)
{
    static const struct {
        const char *type;
        bool compat, compose;
    } forms[] = {
        { "NFC", false, true },
        { "NFD", false, false },
        { "NFKC", true, true },
        { "NFKD", true, false },
    };

    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        if (strcmp(c->type, forms[i].type)) continue;
        *s = (struct normal_step){ .compat = forms[i].compat, .compose = forms[i].compose };
        return 1;
    }
    return 0;
}

static int MUST_USE
read_step(struct normal_step *s, struct config *c, struct err *e)
{
    if (read_form(s, c)) return 0;
    if (strcmp(c->type, "Lowercase") == 0) {
        s->kind = LOWERCASE;
    } else if (strcmp(c->type, "StripAccents") == 0) {
        s->kind = STRIP_ACCENTS;
    } else if (strcmp(c->type, "Strip") == 0) {
        s->kind = STRIP;
        s->left = c->left;
        s->right = c->right;
    } else if (strcmp(c->type, "Precompiled") == 0) {
        s->kind = PRECOMPILED;
        if (!c->map.p || c->map.kind != JSON_STRING || c->map.escaped)
            return err_set(e, -EBADMSG, "normalizer: Precompiled has no precompiled_charsmap");
        return charsmap_open(&s->map, c->map.text, c->map.text_len, e);
    } else if (strcmp(c->type, "Replace") == 0 || strcmp(c->type, "Prepend") == 0) {
        s->kind = c->type[0] == 'R' ? REPLACE : PREPEND;
        s->pattern = c->pattern;
        c->pattern = (struct pattern){ 0 };
        if (!c->has_content || (s->kind == REPLACE && !s->pattern.code && !s->pattern.text))
            return err_set(e, -EBADMSG, "normalizer: %s is not complete", c->type);
        if (s->pattern.may_be_empty)
            return err_set(e, -ENOTSUP,
                           "normalizer: Replace with a pattern that matches the empty string");
        s->content = strdup(c->content);
        if (!s->content) return err_set(e, -ENOMEM, "normalizer");
    } else {
        return err_set(e, -ENOTSUP, "normalizer %s is not served yet", c->type);
    }
    return 0;
}

static int MUST_USE read_steps(struct normal *m, struct json *j, int depth, struct err *e);

static int MUST_USE
read_sequence(struct normal *m, struct config *c, int depth, struct err *e)
{
    int more;

    if (depth == 4) return err_set(e, -ENOTSUP, "normalizer: Sequences nested four deep");
    if (!c->list.p) return err_set(e, -EBADMSG, "normalizer: an empty Sequence");
    TRY(json_section_array(&c->list, "normalizer: normalizers", e));
    while ((more = json_section_element(&c->list, e)) > 0)
        TRY(read_steps(m, &c->list, depth + 1, e));
    return more;
}

static int
read_steps(struct normal *m, struct json *j, int depth, struct err *e)
{
    struct config c = { 0 };
    int r = read_config(j, &c, e);

    if (r == 0 && strcmp(c.type, "Sequence") == 0) {
        r = read_sequence(m, &c, depth, e);
    } else if (r == 0 && m->n == NORMAL_MAX_STEPS) {
        r = err_set(e, -ENOTSUP, "normalizer: more than %d steps", NORMAL_MAX_STEPS);
    } else if (r == 0) {
        struct normal_step *s = &m->step[m->n++];

        r = read_step(s, &c, e);
        m->moves_first |= s->kind != PREPEND && s->kind != LOWERCASE &&
                          !(s->kind == REPLACE && s->content && *s->content);
    }
    pattern_free(&c.pattern);
    return r;
}

int
normalizer_open(struct normal *m, struct json *j, struct err *e)
{
    if (j->kind == JSON_NULL) return 0;
    m->step = calloc(NORMAL_MAX_STEPS, sizeof *m->step);
    return m->step ? read_steps(m, j, 0, e) : err_set(e, -ENOMEM, "normalizer");
}

void
normalizer_free(struct normal *m)
{
    for (uint32_t i = 0; i < m->n; i++) {
        pattern_free(&m->step[i].pattern);
        charsmap_free(&m->step[i].map);
        free(m->step[i].content);
    }
    free(m->step);
    text_buffer_free(&m->buffer[0]);
    text_buffer_free(&m->buffer[1]);
    text_buffer_free(&m->wide);
    *m = (struct normal){ 0 };
}

/* ---- running */

static bool
is_ascii(const char *text, size_t n)
{
    unsigned char any = 0;

    for (size_t i = 0; i < n; i++) any |= (unsigned char)text[i];
    return any < 0x80;
}

static int MUST_USE
put_char(struct text_buffer *r, int32_t c)
{
    TRY(text_buffer_grow(r, 4));
    r->n += (size_t)utf8proc_encode_char(c, (utf8proc_uint8_t *)r->p + r->n);
    return 0;
}

/* Stable counting sort of the marks between two starters by combining class. spare must be empty.
 */
static int MUST_USE
order_marks(int32_t *c, size_t n, struct text_buffer *spare)
{
    uint32_t at[256] = { 0 }, sum = 0;
    int32_t *to;
    bool sorted = true;

    for (size_t i = 0; i < n; i++) {
        at[(uint8_t)utf8proc_get_property(c[i])->combining_class]++;
        sorted &= i == 0 || utf8proc_get_property(c[i - 1])->combining_class <=
                                utf8proc_get_property(c[i])->combining_class;
    }
    if (sorted) return 0;
    TRY(text_buffer_grow(spare, n * sizeof *to));
    to = (int32_t *)(void *)spare->p;
    for (size_t k = 0; k < 256; k++) {
        uint32_t count = at[k];

        at[k] = sum;
        sum += count;
    }
    for (size_t i = 0; i < n; i++)
        to[at[(uint8_t)utf8proc_get_property(c[i])->combining_class]++] = c[i];
    memcpy(c, to, n * sizeof *c);
    return 0;
}

static int MUST_USE
unicode_form(const struct normal_step *s, struct text_buffer *wide, const char *text, size_t n,
             struct text_buffer *r)
{
    const utf8proc_option_t options = UTF8PROC_DECOMPOSE | (s->compat ? UTF8PROC_COMPAT : 0);
    size_t len, marks = 0, n_wide = 0;
    int32_t *c;

    wide->n = 0;
    for (size_t i = 0; i < n; i += len) {
        int32_t one[32];
        utf8proc_ssize_t k = utf8proc_decompose_char(char_at(text, n, i, &len), one, ARRAY_LEN(one),
                                                     options, NULL);

        check(k >= 0 && k <= (utf8proc_ssize_t)ARRAY_LEN(one)); /* 18 at most */
        TRY(text_buffer_put(wide, (const char *)one, (size_t)k * sizeof *one));
    }
    TRY(text_buffer_grow(wide, 1));
    c = (int32_t *)(void *)wide->p;
    n_wide = wide->n / sizeof *c;
    for (size_t i = 0; i <= n_wide; i++) {
        if (i < n_wide && utf8proc_get_property(c[i])->combining_class) continue;
        if (i - marks > 1) TRY(order_marks(c + marks, i - marks, r));
        marks = i + 1;
    }
    if (s->compose)
        n_wide = (size_t)utf8proc_normalize_utf32(c, (utf8proc_ssize_t)n_wide,
                                                  UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    for (size_t i = 0; i < n_wide; i++) TRY(put_char(r, c[i]));
    return 0;
}

static int MUST_USE
lowercase(const char *text, size_t n, struct text_buffer *r)
{
    size_t len;

    for (size_t i = 0; i < n; i += len) {
        int32_t c = char_at(text, n, i, &len);

        /* U+0130 is the only character whose lower case has two characters. */
        if (c == 0x130)
            TRY(text_buffer_put(r, "i\xcc\x87", 3));
        else
            TRY(put_char(r, utf8proc_tolower(c)));
    }
    return 0;
}

static int MUST_USE
strip_accents(const char *text, size_t n, struct text_buffer *r)
{
    size_t len;

    for (size_t i = 0; i < n; i += len)
        if (!char_is_mark(char_at(text, n, i, &len))) TRY(text_buffer_put(r, text + i, len));
    return 0;
}

static int MUST_USE
replace(const struct normal_step *s, const char *text, size_t n, struct text_buffer *r,
        struct err *e)
{
    size_t done = 0, start, end;
    int found = 0;

    while (done < n && (found = pattern_find(&s->pattern, text, n, done, &start, &end, e)) > 0) {
        TRY(text_buffer_put(r, text + done, start - done));
        TRY(text_buffer_put(r, s->content, strlen(s->content)));
        done = end;
    }
    TRY(found);
    return text_buffer_put(r, text + done, n - done);
}

static void
strip(const struct normal_step *s, const char **text, size_t *n)
{
    size_t len;

    while (s->left && *n && char_is_space(char_at(*text, *n, 0, &len))) {
        *text += len;
        *n -= len;
    }
    while (s->right && *n && char_is_space(char_before(*text, *n, &len))) *n -= len;
}

int
normalizer_run(struct normal *m, const char **text, size_t *n, struct err *e)
{
    uint32_t next = 0;

    for (uint32_t i = 0; i < m->n; i++) {
        const struct normal_step *s = &m->step[i];
        struct text_buffer *to = &m->buffer[next];
        int r = 0;

        to->n = 0;
        if (s->kind == STRIP) {
            strip(s, text, n);
            continue;
        }
        if (*n == 0 || ((s->kind == FORM || s->kind == STRIP_ACCENTS) && is_ascii(*text, *n)))
            continue;
        switch (s->kind) {
        case FORM:
            r = unicode_form(s, &m->wide, *text, *n, to);
            break;
        case LOWERCASE:
            r = lowercase(*text, *n, to);
            break;
        case STRIP_ACCENTS:
            r = strip_accents(*text, *n, to);
            break;
        case REPLACE:
            r = replace(s, *text, *n, to, e);
            break;
        case PREPEND:
            r = text_buffer_put(to, s->content, strlen(s->content));
            if (r == 0) r = text_buffer_put(to, *text, *n);
            break;
        case PRECOMPILED:
            r = charsmap_run(&s->map, *text, *n, to);
            break;
        case STRIP:
            break;
        }
        if (r == -ENOMEM)
            return err_set(e, r, "normalizer: out of memory for a text of %zu bytes", *n);
        TRY(r);
        *text = to->p;
        *n = to->n;
        next ^= 1;
    }
    return 0;
}
