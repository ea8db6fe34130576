/* utf8.h - reads bytes that may be UTF-8, and assembles bytes to complete characters.
 *
 * Malformed bytes become U+FFFD by "maximal subparts" (Unicode 15, 3.9), as in Rust's lossy strings
 * and the reference's decoders. */
#pragma once

#include "base/base.h"

#include <string.h>

#define UTF8_BAD "\xef\xbf\xbd"

/* Examines text[n], n > 0. Returns k > 0: a character of k bytes. k < 0: -k malformed bytes. 0: all
 * n bytes are a valid incomplete character. */
static inline int
utf8_at(const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text;
    unsigned char lo = 0x80, hi = 0xbf;
    int len;

    if (p[0] < 0x80) return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4) return -1;
    len = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (p[0] == 0xe0) lo = 0xa0;
    if (p[0] == 0xed) hi = 0x9f;
    if (p[0] == 0xf0) lo = 0x90;
    if (p[0] == 0xf4) hi = 0x8f;
    for (int i = 1; i < len; i++) {
        if ((size_t)i == n) return 0;
        if (p[i] < lo || p[i] > hi) return -i;
        lo = 0x80;
        hi = 0xbf;
    }
    return len;
}

/* An incomplete character. Zeroed: empty. */
struct utf8_part {
    char byte[4];
    uint32_t n;
};

/* Adds a byte and writes the characters that are complete now to out; returns their length. A byte
 * that ends a malformed sequence may itself begin or be a character, so out gets at most two. */
static inline uint32_t
utf8_feed(struct utf8_part *u, char byte, char out[6])
{
    uint32_t len = 0;
    int k;

    u->byte[u->n++] = byte;
    while (u->n && (k = utf8_at(u->byte, u->n)) != 0) {
        uint32_t took = (uint32_t)(k < 0 ? -k : k);

        memcpy(out + len, k < 0 ? UTF8_BAD : u->byte, k < 0 ? 3 : took);
        len += k < 0 ? 3 : took;
        u->n -= took;
        memmove(u->byte, u->byte + took, u->n);
    }
    return len;
}

/* Ends the text: an incomplete character becomes U+FFFD. */
static inline uint32_t
utf8_end(struct utf8_part *u, char out[6])
{
    uint32_t len = u->n ? 3 : 0;

    memcpy(out, UTF8_BAD, len);
    u->n = 0;
    return len;
}
