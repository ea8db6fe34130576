/* pattern.h - what a Split or a Replace looks for: a regular expression, a string, or one character of
 * a class.
 *
 * Regular expressions are PCRE2's with Unicode properties; \s means White_Space and \w takes marks, as in
 * the reference's engine. What the two read differently is refused.
 */
#ifndef TEXT_PATTERN_H
#define TEXT_PATTERN_H

#include "base/base.h"
#include "base/err.h"
#include "base/json.h"

enum { PATTERN_TEXT = 4096 };

struct pattern {
    enum { PATTERN_REGEX, PATTERN_STRING, PATTERN_SPACE, PATTERN_NUMBER } kind;
    struct pcre2_real_code_8 *code;
    struct pcre2_real_match_data_8 *match;
    char *text; /* PATTERN_STRING */
    size_t len;
    bool may_be_empty; /* what matches */
};

/* where names the place for the sentence, here and below. -ENOTSUP: PCRE2 does not take it. */
int pattern_regex(struct pattern *p, const char *where, const char *regex, struct err *e) MUST_USE;
int pattern_string(struct pattern *p, const char *where, const char *text, struct err *e) MUST_USE;
/* {"Regex": ...} or {"String": ...}: reads the value that comes next. */
int pattern_read(struct pattern *p, const char *where, struct json *j, struct err *e) MUST_USE;
void pattern_free(struct pattern *p); /* zeroed: nothing */

/* The first match of text[n] that begins at from or later: 1 with it in *start and *end, 0 without;
 * -EINVAL: the expression gave up. */
int pattern_find(const struct pattern *p, const char *text, size_t n, size_t from, size_t *start,
                 size_t *end, struct err *e) MUST_USE;

#endif
