/* normalizer.c - reads the "normalizer" of tokenizer.json and applies its steps (normalizer.h).
 *
 * For NFC, NFD, NFKC and NFKD, utf8proc decomposes and composes characters, but this file orders
 * combining marks, because utf8proc's ordering is quadratic in the length of a run of marks, which
 * a client chooses. */
#include "worker/text/normalizer.h"

#include "worker/text/chars.h"
#include "worker/text/charsmap.h"
#include "worker/text/json_section.h"
#include "worker/text/pattern.h"

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
    struct json map, list;
};

static void
config_done(struct config *c)
{
    pattern_free(&c->pattern);
}

static int MUST_USE
read_content(void *config, struct json *j, struct err *e)
{
    struct config *c = config;

    c->has_content = true;
    return json_section_text(j, "content", c->content, sizeof c->content, e);
}

static const struct section_field fields[] = {
    SECTION(TEXT, config, "type", type),
    SECTION(BOOL, config, "strip_left", left),
    SECTION(BOOL, config, "strip_right", right),
    { "pattern", SECTION_READ, offsetof(struct config, pattern), 0, pattern_read },
    { "content", SECTION_READ, 0, 0, read_content },
    { "prepend", SECTION_READ, 0, 0, read_content },
    SECTION(VALUE, config, "precompiled_charsmap", map),
    SECTION(VALUE, config, "normalizers", list),
    { NULL },
};

static int MUST_USE
read_step(struct normal_step *s, struct config *c, struct err *e)
{
    static const struct {
        const char *type;
        struct normal_step step;
    } types[] = {
        { "NFC", { FORM, .compose = true } },
        { "NFD", { FORM } },
        { "NFKC", { FORM, .compat = true, .compose = true } },
        { "NFKD", { FORM, .compat = true } },
        { "Lowercase", { LOWERCASE } },
        { "StripAccents", { STRIP_ACCENTS } },
        { "Strip", { STRIP } },
        { "Precompiled", { PRECOMPILED } },
        { "Replace", { REPLACE } },
        { "Prepend", { PREPEND } },
    };
    size_t i = 0;

    while (i < ARRAY_LEN(types) && strcmp(c->type, types[i].type)) i++;
    if (i == ARRAY_LEN(types)) return err_set(e, -ENOTSUP, "%s is not served yet", c->type);
    *s = types[i].step;
    s->left = c->left;
    s->right = c->right;
    if (s->kind == PRECOMPILED) {
        if (!c->map.p || c->map.kind != JSON_STRING || c->map.escaped)
            return err_set(e, -EBADMSG, "Precompiled has no precompiled_charsmap");
        return charsmap_open(&s->map, c->map.text, c->map.text_len, e);
    }
    if (s->kind != REPLACE && s->kind != PREPEND) return 0;
    s->pattern = c->pattern;
    c->pattern = (struct pattern){ 0 };
    if (!c->has_content || (s->kind == REPLACE && !s->pattern.code && !s->pattern.text))
        return err_set(e, -EBADMSG, "%s has no pattern or no content", c->type);
    if (s->pattern.may_be_empty)
        return err_set(e, -ENOTSUP,
                       "Replace with a pattern that matches the empty string is not served yet");
    s->content = strdup(c->content);
    return s->content ? 0 : err_set(e, -ENOMEM, "no host memory for a replacement text");
}

static int MUST_USE
read_steps(void *arg, struct json *j, int depth, struct err *e)
{
    CLEAN(config_done) struct config c = { 0 };
    struct normal *m = arg;
    struct normal_step *s;

    TRY(json_section_read(j, "its value", fields, &c, e));
    if (strcmp(c.type, "Sequence") == 0)
        return json_section_sequence(c.list, depth, read_steps, m, e);
    if (m->n == NORMAL_MAX_STEPS)
        return err_set(e, -ENOTSUP, "more than %d normalizers in a sequence are not supported",
                       NORMAL_MAX_STEPS);
    s = &m->step[m->n++];
    TRY(read_step(s, &c, e));
    return 0;
}

int
normalizer_open(struct normal *m, struct json *j, struct err *e)
{
    if (j->kind == JSON_NULL) return 0;
    m->step = calloc(NORMAL_MAX_STEPS, sizeof *m->step);
    return m->step ? read_steps(m, j, 0, e) : err_set(e, -ENOMEM, "no host memory for the steps");
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

/* Sorts the n marks at c, which follow each other in the text, by combining class; marks of equal
 * class keep their order. A counting sort, in the memory of spare, which must be empty. */
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

bool
normalizer_shrinks(const struct normal *m)
{
    for (uint32_t i = 0; i < m->n; i++) {
        const struct normal_step *s = &m->step[i];
        bool longer = s->kind == REPLACE && s->pattern.kind == PATTERN_STRING &&
                      strlen(s->content) >= s->pattern.len;

        if (s->kind != PREPEND && !longer) return true;
    }
    return false;
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
