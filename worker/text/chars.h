/* chars.h - classes of Unicode characters: white space, mark, word character, number.
 *
 * They are the classes of Rust's regex crate, which the tokenizers library uses, made from the
 * categories of utf8proc (Unicode 14). Texts must be valid UTF-8. */
#pragma once
#include "base/base.h"

#include <utf8proc.h>

/* Returns the character at text[at], at < n; *len: its number of bytes. */
static inline int32_t
char_at(const char *text, size_t n, size_t at, size_t *len)
{
    utf8proc_int32_t c = (unsigned char)text[at];

    *len = 1;
    if (c >= 0x80)
        *len = (size_t)utf8proc_iterate((const utf8proc_uint8_t *)text + at,
                                        (utf8proc_ssize_t)(n - at), &c);
    return c;
}

/* Returns the character that ends before text[at], at > 0; *len: its number of bytes. */
static inline int32_t
char_before(const char *text, size_t at, size_t *len)
{
    size_t back = 1;

    while (((unsigned char)text[at - back] & 0xc0) == 0x80) back++;
    return char_at(text, at, at - back, len);
}

/* True for White_Space of Unicode, which is \s in a regular expression. */
static inline bool
char_is_space(int32_t c)
{
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
    if (c == 0x85) return true;
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return true;
    default:
        return false;
    }
}

static inline bool
char_is_mark(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);

    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ME;
}

static inline bool
char_is_number(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);

    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

/* True for word characters, \w in a regular expression: Alphabetic, marks, decimal digits,
 * connectors and joiners. The ranges are circled and squared letters, which are Alphabetic but have
 * no letter category. */
static inline bool
char_is_word(int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) ||
               (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
               (c >= 0x1f170 && c <= 0x1f189);
    }
}
