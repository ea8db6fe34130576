/* pattern.h - finds matches of the pattern of a Split or a Replace: a regular expression, a string,
 * or a character class.
 *
 * Regular expressions are compiled with PCRE2 and Unicode properties; \s means White_Space and \w
 * includes marks, as in the engine of the tokenizers library. Syntax that PCRE2 and that engine
 * read differently is rejected. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "base/json.h"

enum { PATTERN_TEXT = 4096 };

struct pattern {
    enum { PATTERN_REGEX, PATTERN_STRING, PATTERN_SPACE, PATTERN_NUMBER } kind;
    struct pcre2_real_code_8 *code;
    struct pcre2_real_match_data_8 *match;
    char *text; /* PATTERN_STRING: the string, len bytes */
    size_t len;
    bool may_be_empty; /* the pattern can match the empty string */
};

/* Make a pattern of a regular expression (-ENOTSUP: PCRE2 rejects it) or of a string. */
int pattern_regex(struct pattern *p, const char *regex, struct err *e) MUST_USE;
int pattern_string(struct pattern *p, const char *text, struct err *e) MUST_USE;
/* Implements section_field.read: reads {"Regex": ...} or {"String": ...} into a struct pattern. */
int pattern_read(void *pattern, struct json *j, struct err *e) MUST_USE;
void pattern_free(struct pattern *p); /* accepts a zeroed struct */

/* Finds the first match in text[n] that begins at `from` or later. Returns 1 with *start and *end,
 * 0 if there is none, -EINVAL if a limit of the matcher was exceeded. */
int pattern_find(const struct pattern *p, const char *text, size_t n, size_t from, size_t *start,
                 size_t *end, struct err *e) MUST_USE;
