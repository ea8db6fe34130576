/* vocab.c - implements vocab.h: one block of bytes that has all pieces, and one hash table of token
 * ids with open addressing that finds them. Both grow only while tokenizer.json is read. */
#include "worker/text/vocab.h"

#include "base/array.h"

#include <ctype.h>
#include <stdio.h>

/* Returns the byte for which character c stands in GPT-2's table, or -1. Printable characters of
 * Latin-1 stand for themselves; the characters from U+0100 on stand for the other 68 bytes. */
static int
byte_of(uint32_t c)
{
    if ((c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff))
        return (int)c;
    if (c < 0x100 || c > 0x143) return -1;
    c -= 0x100;
    if (c < 0x21) return (int)c;
    c -= 0x21;
    if (c < 0xa1 - 0x7f) return (int)(c + 0x7f);
    return 0xad;
}

int
vocab_unwrite(const struct vocab *v, char *s, size_t n)
{
    int len = 0;

    if (!v->byte_level) return (int)n;
    /* Pass 0 checks, pass 1 writes. Characters of more than 2 bytes are not in the table: -1. */
    for (int pass = 0; pass < 2; pass++) {
        len = 0;
        for (size_t i = 0; i < n; len++) {
            unsigned char a = (unsigned char)s[i];
            uint32_t c = a;

            if (a >= 0xe0) return -1;
            if (a >= 0xc0) c = (uint32_t)(a & 0x1f) << 6 | ((unsigned char)s[i + 1] & 0x3f);
            if (byte_of(c) < 0) return -1;
            i += a >= 0xc0 ? 2 : 1;
            if (pass) s[len] = (char)byte_of(c);
        }
    }
    return len;
}

static uint64_t
hash(const char *s, size_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325); /* FNV-1a, then mixed so that low bits are good */

    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * UINT64_C(0x100000001b3);
    return h ^ h >> 29;
}

static uint32_t
slot_of(const struct vocab *v, const char *s, size_t n)
{
    uint32_t i = (uint32_t)hash(s, n) & (v->n_slots - 1);

    for (; v->slot[i]; i = (i + 1) & (v->n_slots - 1)) {
        const struct piece *p = &v->piece[v->slot[i] - 1];

        if (p->len == n && memcmp(v->bytes + p->at, s, n) == 0) break;
    }
    return i;
}

static int MUST_USE
more_slots(struct vocab *v)
{
    uint32_t *old = v->slot, n = v->n_slots, more = n ? n * 2 : 1024, *slot;

    if (v->n_used < n / 2) return 0;
    slot = calloc(more, sizeof *slot);
    if (!slot) return -ENOMEM;
    v->slot = slot;
    v->n_slots = more;
    for (uint32_t i = 0; i < n; i++) {
        const struct piece *p;

        if (!old[i]) continue;
        p = &v->piece[old[i] - 1];
        v->slot[slot_of(v, v->bytes + p->at, p->len)] = old[i];
    }
    free(old);
    return 0;
}

static int MUST_USE
grow(struct vocab *v, uint32_t id, size_t n)
{
    uint32_t cap = v->cap;

    TRY(array_grow(&v->bytes, &v->cap_bytes, v->n_bytes + n, UINT32_MAX, 1));
    TRY(array_grow(&v->piece, &v->cap, id + 1, VOCAB_MAX_ID, sizeof *v->piece));
    memset(v->piece + cap, 0, (v->cap - cap) * sizeof *v->piece);
    return more_slots(v);
}

/* Marks p as a byte token if its text has the form "<0x0A>". */
static void
mark_byte(const struct vocab *v, struct piece *p)
{
    const char *s = v->bytes + p->at;

    if (v->byte_level || p->len != 6 || memcmp(s, "<0x", 3) || s[5] != '>') return;
    if (!isxdigit((unsigned char)s[3]) || !isxdigit((unsigned char)s[4])) return;
    p->is_byte = true;
    p->byte = (uint8_t)strtoul(s + 3, NULL, 16); /* ends at '>' */
}

int
vocab_add(struct vocab *v, token_id id, const char *s, size_t n, bool findable, struct err *e)
{
    struct piece *p;
    int len;

    if (id < 0 || id >= VOCAB_MAX_ID)
        return err_set(e, -EBADMSG, "token id %d is not in 0 to %d", id, VOCAB_MAX_ID - 1);
    if (grow(v, (uint32_t)id, n) < 0)
        return err_set(e, -ENOMEM, "no host memory for the vocabulary");
    p = &v->piece[id];
    if (p->there)
        return err_set(e, -EBADMSG, "token id %d belongs to \"%.*s\" and another token", id,
                       (int)MIN(n, (size_t)64), s);
    *p = (struct piece){ .at = v->n_bytes, .len = (uint32_t)n };
    memcpy(v->bytes + p->at, s, n);
    len = vocab_unwrite(v, v->bytes + p->at, n);
    if (len >= 0) p->len = (uint32_t)len;
    if (len >= 0 && findable) {
        uint32_t slot = slot_of(v, v->bytes + p->at, (size_t)len);

        if (v->slot[slot])
            return err_set(e, -EBADMSG, "\"%.*s\" has the two ids %u and %d",
                           (int)MIN(n, (size_t)64), s, v->slot[slot] - 1, id);
        v->slot[slot] = (uint32_t)id + 1;
        v->n_used++;
    }
    p->there = true;
    mark_byte(v, p);
    v->n_bytes += p->len;
    v->n = MAX(v->n, (uint32_t)id + 1);
    v->longest = MAX(v->longest, p->len);
    return 0;
}

token_id
vocab_find(const struct vocab *v, const char *bytes, size_t n)
{
    return v->n_slots ? (token_id)v->slot[slot_of(v, bytes, n)] - 1 : -1;
}

void
vocab_bytes(const struct vocab *v, token_id of_byte[256])
{
    for (unsigned c = 0; c < 256; c++) {
        char byte = (char)c, name[8];

        snprintf(name, sizeof name, "<0x%02X>", c);
        of_byte[c] = v->byte_level ? vocab_find(v, &byte, 1) : vocab_find(v, name, 6);
    }
}

const struct piece *
vocab_piece(const struct vocab *v, token_id id)
{
    if (id < 0 || (uint32_t)id >= v->n || !v->piece[id].there) return NULL;
    return &v->piece[id];
}

bool
vocab_is_sound(const struct vocab *v)
{
    uint32_t used = 0;

    if (v->n > VOCAB_MAX_ID || v->n_slots & (v->n_slots - 1)) return false;
    for (uint32_t i = 0; i < v->n; i++) {
        const struct piece *p = &v->piece[i];

        if (p->len > v->longest || p->len > v->n_bytes || p->at > v->n_bytes - p->len) return false;
    }
    for (uint32_t i = 0; i < v->n_slots; i++) {
        if (v->slot[i] > v->n) return false;
        used += v->slot[i] != 0;
    }
    return v->longest < VOCAB_MAX_PIECE && used == v->n_used && used <= v->n_slots / 2;
}

void
vocab_free(struct vocab *v)
{
    free(v->bytes);
    free(v->piece);
    free(v->slot);
    *v = (struct vocab){ 0 };
}
