/* utf8.h - finds characters in bytes that may be UTF-8, and assembles single bytes to characters.
 *
 * Malformed bytes are divided into "maximal subparts" (Unicode 15, section 3.9). Each subpart
 * becomes one U+FFFD, as in Rust's from_utf8_lossy() and Hugging Face decoders. */
#pragma once
#include "base/base.h"

#define UTF8_BAD "\xef\xbf\xbd"

/* Examines the start of text[n], n > 0. Returns k > 0: it is a character of k bytes; k < 0: it is a
 * malformed sequence of -k bytes; 0: all n bytes are the valid start of an incomplete character. */
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

/* Returns how many bytes at the start of text[n] are complete valid characters. */
static inline size_t
utf8_valid(const char *text, size_t n)
{
    size_t i = 0;

    for (int k; i < n && (k = utf8_at(text + i, n - i)) > 0;) i += (size_t)k;
    return i;
}

/* The bytes of a character that is not complete yet. All zero: there is none. */
struct utf8_part {
    char byte[4];
    uint32_t n;
};

/* Adds a byte to u and writes the characters that are now complete to out. Returns the number of
 * bytes written. A byte that ends a malformed sequence may itself begin or be a character. each:
 * each byte of a malformed sequence becomes U+FFFD; else the whole sequence becomes one. */
static inline uint32_t
utf8_feed(struct utf8_part *u, char byte, bool each, char out[12])
{
    uint32_t len = 0;
    int k;

    u->byte[u->n++] = byte;
    while (u->n && (k = utf8_at(u->byte, u->n)) != 0) {
        uint32_t took = (uint32_t)(k < 0 ? -k : k);

        if (k > 0) memcpy(out + len, u->byte, took);
        if (k > 0) len += took;
        for (uint32_t i = 0; k < 0 && i < (each ? took : 1); i++, len += 3)
            memcpy(out + len, UTF8_BAD, 3);
        u->n -= took;
        memmove(u->byte, u->byte + took, u->n);
    }
    return len;
}

/* Ends the text: an incomplete character is written to out as a malformed sequence. */
static inline uint32_t
utf8_end(struct utf8_part *u, bool each, char out[12])
{
    uint32_t len = 0;

    for (uint32_t i = 0; i < (each ? u->n : MIN(u->n, 1u)); i++, len += 3)
        memcpy(out + len, UTF8_BAD, 3);
    u->n = 0;
    return len;
}
