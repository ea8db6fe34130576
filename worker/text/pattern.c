/* pattern.c - compiles patterns and finds their matches (pattern.h). */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "worker/text/pattern.h"

#include "worker/text/chars.h"
#include "worker/text/json_section.h"

#include <pcre2.h>
#include <stdio.h>

/* Copies the regular expression p to `to` and replaces \s, \w, \S and \W by character classes.
 * -EMSGSIZE: the buffer is too small. -ENOTSUP: syntax that the engine of the tokenizers library
 * interprets differently: nested classes, \b, \h and similar. */
static int MUST_USE
spell_out(const char *p, char *to, size_t capacity)
{
    static const char white[] = "\\x{9}-\\x{d}\\x{85}\\p{Z}";
    static const char word[] = "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}";
    size_t n = 0;
    bool class = false;

    for (; *p; p++) {
        char out[64] = { *p, '\0' };

        if (*p == '\\' && p[1]) {
            const char *set = *++p == 's' || *p == 'S' ? white
                              : *p == 'w' || *p == 'W' ? word
                                                       : NULL;
            bool others = *p == 'S' || *p == 'W';

            if (strchr("bBhHvVRXNKGCyYOA", *p) || (class && others)) return -ENOTSUP;
            if (set)
                snprintf(out, sizeof out, class ? "%.0s%s" : "[%s%s]", others ? "^" : "", set);
            else
                snprintf(out, sizeof out, "\\%c", *p);
        } else if (*p == '[') {
            if (class) return -ENOTSUP;
            class = true;
        } else if (*p == ']') {
            class = false;
        }
        if (n + strlen(out) >= capacity) return -EMSGSIZE;
        memcpy(to + n, out, strlen(out));
        n += strlen(out);
    }
    to[n] = '\0';
    return 0;
}

int
pattern_regex(struct pattern *p, const char *regex, struct err *e)
{
    char text[2 * PATTERN_TEXT];
    uint32_t empty = 1;
    PCRE2_SIZE at;
    int code, r = spell_out(regex, text, sizeof text);

    if (r < 0)
        return err_set(e, r, "the pattern \"%.64s\" %s", regex,
                       r == -EMSGSIZE
                           ? "is too long"
                           : "has syntax that regex engines interpret differently: a class or \\S "
                             "in a class, \\b, \\h or similar");
    p->kind = PATTERN_REGEX;
    p->code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code,
                            &at, NULL);
    if (!p->code) {
        PCRE2_UCHAR message[128];

        pcre2_get_error_message(code, message, sizeof message);
        return err_set(e, -ENOTSUP, "bad pattern at \"%.32s\": %s", text + at,
                       (const char *)message);
    }
    /* pcre2_jit_compile() fails if memory must not be executable; matching is then slower. */
    (void)pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE);
    (void)pcre2_pattern_info(p->code, PCRE2_INFO_MATCHEMPTY, &empty);
    p->may_be_empty = empty;
    p->match = pcre2_match_data_create_from_pattern(p->code, NULL);
    return p->match ? 0 : err_set(e, -ENOMEM, "no host memory for a pattern");
}

int
pattern_string(struct pattern *p, const char *text, struct err *e)
{
    if (!*text) return err_set(e, -ENOTSUP, "the pattern is an empty string");
    p->kind = PATTERN_STRING;
    p->text = strdup(text);
    p->len = strlen(text);
    return p->text ? 0 : err_set(e, -ENOMEM, "no host memory for a pattern");
}

int
pattern_read(void *pattern, struct json *j, struct err *e)
{
    struct pattern *p = pattern;
    char text[PATTERN_TEXT];
    int more;

    TRY(json_next(j, e));
    TRY(json_section_object(j, "pattern", e));
    while ((more = json_section_key(j, e)) > 0) {
        bool regex = json_is(j, "Regex");

        if (!regex && !json_is(j, "String"))
            return err_set(e, -ENOTSUP, "a pattern of kind %.*s is not served yet",
                           (int)MIN(j->text_len, (size_t)32), j->text);
        if (p->code || p->text) return err_set(e, -EBADMSG, "pattern has both Regex and String");
        TRY(json_section_text(j, "pattern", text, sizeof text, e));
        TRY(regex ? pattern_regex(p, text, e) : pattern_string(p, text, e));
    }
    return more;
}

void
pattern_free(struct pattern *p)
{
    pcre2_code_free(p->code);
    pcre2_match_data_free(p->match);
    free(p->text);
    *p = (struct pattern){ 0 };
}

static int MUST_USE
find_regex(const struct pattern *p, const char *text, size_t n, size_t from, size_t *start,
           size_t *end, struct err *e)
{
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(p->match);
    int r = pcre2_match(p->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, p->match, NULL);
    PCRE2_UCHAR message[128];

    /* If the small stack of JIT code is full, the interpreter matches, because it uses the heap. */
    if (r == PCRE2_ERROR_JIT_STACKLIMIT)
        r = pcre2_match(p->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                        p->match, NULL);
    if (r == PCRE2_ERROR_NOMATCH) return 0;
    if (r < 0) {
        pcre2_get_error_message(r, message, sizeof message);
        return err_set(e, -EINVAL, "the tokenizer's pattern failed at byte %zu of the text: %s",
                       from, (const char *)message);
    }
    *start = at[0];
    *end = at[1];
    return 1;
}

int
pattern_find(const struct pattern *p, const char *text, size_t n, size_t from, size_t *start,
             size_t *end, struct err *e)
{
    size_t len;

    if (p->kind == PATTERN_REGEX) return find_regex(p, text, n, from, start, end, e);
    if (p->kind == PATTERN_STRING) {
        const char *at = p->len == 1 ? memchr(text + from, *p->text, n - from)
                                     : memmem(text + from, n - from, p->text, p->len);

        if (!at) return 0;
        *start = (size_t)(at - text);
        *end = *start + p->len;
        return 1;
    }
    for (; from < n; from += len) {
        int32_t c = char_at(text, n, from, &len);

        if (p->kind == PATTERN_SPACE ? !char_is_space(c) : !char_is_number(c)) continue;
        *start = from;
        *end = from + len;
        return 1;
    }
    return 0;
}
