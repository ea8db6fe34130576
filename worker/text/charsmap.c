/* charsmap.c - decodes and searches the blob of charsmap.h. */
#include "worker/text/charsmap.h"

#include "base/utf8.h"
#include "worker/text/chars.h"

enum { CLUSTER = 6 }; /* bytes; longer clusters are mapped character by character */

static int
sextet(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

int
charsmap_open(struct charsmap *m, const char *base64, size_t n, struct err *e)
{
    uint32_t bits = 0, trie;

    while (n && base64[n - 1] == '=') n--;
    m->blob = calloc(1, n + 1); /* a NUL follows the last text */
    if (!m->blob) return err_set(e, -ENOMEM, "no host memory for precompiled_charsmap");
    for (size_t i = 0; i < n; i++) {
        int six = sextet(base64[i]);

        if (six < 0) return err_set(e, -EBADMSG, "precompiled_charsmap is not base64");
        bits = bits << 6 | (uint32_t)six;
        if (i % 4) m->blob[m->n++] = (uint8_t)(bits >> (6 - 2 * (i % 4)));
    }
    if (m->n < 8)
        return err_set(e, -EBADMSG, "precompiled_charsmap has %zu bytes, less than 8", m->n);
    memcpy(&trie, m->blob, sizeof trie);
    if (trie < 4 || trie % 4 || trie > m->n - 4)
        return err_set(e, -EBADMSG, "precompiled_charsmap, %zu bytes, cannot have a trie of %u",
                       m->n, trie);
    m->n_units = trie / 4;
    m->text_at = 4 + trie;
    if (utf8_valid((const char *)m->blob + m->text_at, m->n - m->text_at) < m->n - m->text_at)
        return err_set(e, -EBADMSG, "precompiled_charsmap: a replacement text is not UTF-8");
    return 0;
}

void
charsmap_free(struct charsmap *m)
{
    free(m->blob);
    *m = (struct charsmap){ 0 };
}

/* Returns unit i of the trie or, if i is out of range, a unit whose label equals no byte. */
static uint32_t
unit(const struct charsmap *m, size_t i)
{
    uint32_t u = 1u << 31;

    if (i < m->n_units) memcpy(&u, m->blob + 4 + 4 * i, sizeof u);
    return u;
}

static size_t
offset(uint32_t u)
{
    return (size_t)(u >> 10) << ((u & 1u << 9) >> 6);
}

/* Returns the blob's offset of the text for the shortest entry with which s[n] begins, or 0. */
static size_t
find(const struct charsmap *m, const char *s, size_t n)
{
    size_t at = offset(unit(m, 0));

    for (size_t i = 0; i < n && s[i]; i++) {
        uint32_t u;

        at ^= (unsigned char)s[i];
        u = unit(m, at);
        if ((u & (1u << 31 | 0xff)) != (unsigned char)s[i]) return 0;
        at ^= offset(u);
        if (u >> 8 & 1) {
            size_t text = m->text_at + (unit(m, at) & ~(1u << 31));

            return text <= m->n && (m->blob[text] & 0xc0) != 0x80 ? text : 0;
        }
    }
    return 0;
}

/* Looks up text[n]. Returns 1 if there is an entry, whose replacement text was appended to r. */
static int MUST_USE
put_entry(const struct charsmap *m, const char *text, size_t n, struct text_buffer *r)
{
    size_t at = find(m, text, n);

    if (!at) return 0;
    TRY(text_buffer_put(r, (const char *)m->blob + at,
                        strnlen((const char *)m->blob + at, m->n - at)));
    return 1;
}

static int MUST_USE
put_cluster(const struct charsmap *m, const char *text, size_t n, struct text_buffer *r)
{
    size_t len;
    int r1 = n < CLUSTER ? put_entry(m, text, n, r) : 0;

    if (r1) return MIN(r1, 0);
    for (size_t i = 0; i < n; i += len) {
        (void)char_at(text, n, i, &len);
        r1 = put_entry(m, text + i, len, r);
        TRY(r1);
        if (r1 == 0) TRY(text_buffer_put(r, text + i, len));
    }
    return 0;
}

int
charsmap_run(const struct charsmap *m, const char *text, size_t n, struct text_buffer *r)
{
    size_t begin = 0, at, len;
    utf8proc_int32_t state = 0;
    int32_t before;

    if (n == 0) return 0;
    before = char_at(text, n, 0, &len);
    for (at = len; at < n; at += len) {
        int32_t c = char_at(text, n, at, &len);
        bool ends = before < 0x80 && c < 0x80 ? !(before == '\r' && c == '\n')
                                              : utf8proc_grapheme_break_stateful(before, c, &state);

        if (before < 0x80 && c < 0x80) state = 0;
        before = c;
        if (!ends) continue;
        TRY(put_cluster(m, text + begin, at - begin, r));
        begin = at;
    }
    return put_cluster(m, text + begin, n - begin, r);
}
