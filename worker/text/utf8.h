/* utf8.h - one step through bytes that may be UTF-8, and bytes as they come to whole characters.
 *
 * What is ill-formed becomes U+FFFD by "maximal subparts" (Unicode 15, 3.9), as Rust's lossy strings
 * and so the reference's decoders do it.
 */
#ifndef TEXT_UTF8_H
#define TEXT_UTF8_H

#include "base/base.h"

#include <string.h>

#define UTF8_BAD "\xef\xbf\xbd"

/* p[n], n > 0. k > 0: a character of k bytes. k < 0: -k bytes are ill-formed. 0: all n bytes are a good
 * beginning and more may come. */
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

/* The beginning of a character that later bytes may complete. Zeroed: nothing. */
struct utf8_part {
    char byte[4];
    uint32_t n;
};

/* One more byte: what is whole now, well-formed, into out; its length. A byte that ends a bad beginning
 * may begin, or be, the next character: two of them at most come out. */
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

/* Nothing more comes. */
static inline uint32_t
utf8_end(struct utf8_part *u, char out[6])
{
    uint32_t len = u->n ? 3 : 0;

    memcpy(out, UTF8_BAD, len);
    u->n = 0;
    return len;
}

#endif
