/* added.c - see added.h.
 *
 * Tokens are sorted by bytes, so those that continue the text alike are neighbours: reading one more
 * byte of the text narrows the range, and the first of a range is the token that ends there. The walk's
 * strange cases (a token behind an rstrip one that began inside the stripped space) are those of
 * tokenizers' find_matches.
 */
#include "worker/text/added.h"

#include "worker/text/doc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static int
by_kind_then_bytes(const void *x, const void *y)
{
    const struct added_token *a = x, *b = y;
    int d;

    if (a->normalized != b->normalized) return a->normalized - b->normalized;
    d = memcmp(a->text, b->text, MIN(a->len, b->len));
    return d ? d : (a->len > b->len) - (a->len < b->len);
}

/* One element; its text ends up in *text, NUL-ended. */
static int MUST_USE
read_token(struct json *j, struct added_token *t, bool *special, char *text, size_t room,
           struct err *e)
{
    bool single_word = false;
    int more;

    *t = (struct added_token){ .id = -1, .normalized = true };
    *special = false;
    text[0] = '\0';
    TRY(doc_object(j, "an element of added_tokens", e));
    while ((more = doc_key(j, e)) > 0) {
        if (json_is(j, "id"))
            TRY(doc_id(j, "added_tokens: id", &t->id, e));
        else if (json_is(j, "content"))
            TRY(doc_text(j, "added_tokens: content", text, room, e));
        else if (json_is(j, "lstrip"))
            TRY(doc_bool(j, "added_tokens: lstrip", &t->lstrip, e));
        else if (json_is(j, "rstrip"))
            TRY(doc_bool(j, "added_tokens: rstrip", &t->rstrip, e));
        else if (json_is(j, "normalized"))
            TRY(doc_bool(j, "added_tokens: normalized", &t->normalized, e));
        else if (json_is(j, "special"))
            TRY(doc_bool(j, "added_tokens: special", special, e));
        else if (json_is(j, "single_word"))
            TRY(doc_bool(j, "added_tokens: single_word", &single_word, e));
        else
            TRY(json_skip(j, e));
    }
    TRY(more);
    t->len = strlen(text);
    if (t->id < 0 || t->len == 0)
        return err_set(e, -EBADMSG, "an added token has no id or no content");
    if (single_word)
        return err_set(e, -ENOTSUP, "added token \"%.64s\": single_word is not served yet", text);
    return 0;
}

/* In the vocabulary it may stand already, as itself. */
static int MUST_USE
enter(struct vocab *v, const struct added_token *t, bool special, struct err *e)
{
    const struct piece *p = vocab_piece(v, t->id);

    if (p) {
        char copy[4096];
        int n;

        memcpy(copy, t->text, t->len);
        n = vocab_unwrite(copy, t->len);
        if (n < 0) n = (int)t->len;
        if (p->len != (uint32_t)n || memcmp(v->bytes + p->at, copy, (size_t)n) != 0)
            return err_set(e, -EBADMSG, "added token \"%.64s\" has id %d, which is another's",
                           t->text, t->id);
    } else {
        TRY(vocab_add(v, t->id, t->text, t->len, e));
    }
    v->piece[t->id].special |= special;
    return 0;
}

int
added_open(struct added *a, struct vocab *v, struct json list, struct err *e)
{
    char text[4096];
    uint32_t cap = 0;
    int more;

    TRY(doc_array(&list, "added_tokens", e));
    while ((more = doc_element(&list, e)) > 0) {
        struct added_token *t;
        bool special;

        if (a->n == cap) {
            cap = cap ? cap * 2 : 64;
            t = realloc(a->token, cap * sizeof *t);
            if (!t) return err_set(e, -ENOMEM, "added tokens");
            a->token = t;
        }
        t = &a->token[a->n];
        TRY(read_token(&list, t, &special, text, sizeof text, e));
        t->text = strdup(text);
        if (!t->text) return err_set(e, -ENOMEM, "added tokens");
        a->n++;
        TRY(enter(v, t, special, e));
    }
    TRY(more);
    if (a->n) qsort(a->token, a->n, sizeof *a->token, by_kind_then_bytes);
    for (uint32_t i = 0; i < a->n; i++) {
        const struct added_token *t = &a->token[i];
        unsigned char c = (unsigned char)t->text[0];

        if (!a->by_byte[t->normalized][c].end) a->by_byte[t->normalized][c].first = i;
        a->by_byte[t->normalized][c].end = i + 1;
    }
    return 0;
}

void
added_free(struct added *a)
{
    for (uint32_t i = 0; i < a->n; i++) free(a->token[i].text);
    free(a->token);
    *a = (struct added){ 0 };
}

/* The longest token of one kind that begins at p, or NULL. */
static const struct added_token *
longest_at(const struct added *a, bool normalized, const char *p, size_t left)
{
    uint32_t first = a->by_byte[normalized][(unsigned char)*p].first;
    uint32_t end = a->by_byte[normalized][(unsigned char)*p].end;
    const struct added_token *best = NULL;

    for (size_t len = 1; first < end; len++) {
        unsigned char c;
        uint32_t lo, hi;

        if (a->token[first].len == len) best = &a->token[first++];
        if (len == left) break;
        c = (unsigned char)p[len];
        for (lo = first, hi = end; lo < hi;) {
            uint32_t mid = lo + (hi - lo) / 2;

            if ((unsigned char)a->token[mid].text[len] < c)
                lo = mid + 1;
            else
                hi = mid;
        }
        first = lo;
        for (hi = end; lo < hi;) {
            uint32_t mid = lo + (hi - lo) / 2;

            if ((unsigned char)a->token[mid].text[len] <= c)
                lo = mid + 1;
            else
                hi = mid;
        }
        end = lo;
    }
    return best;
}

/* Unicode's White_Space, which is what \s means to the reference here. */
static bool
is_space(int32_t c)
{
    utf8proc_category_t k;

    if ((c >= 9 && c <= 13) || c == 0x85) return true;
    k = utf8proc_category(c);
    return k == UTF8PROC_CATEGORY_ZS || k == UTF8PROC_CATEGORY_ZL || k == UTF8PROC_CATEGORY_ZP;
}

static size_t
space_before(const char *text, size_t at, size_t floor)
{
    while (at > floor) {
        size_t back = 1;
        utf8proc_int32_t c;

        while (((unsigned char)text[at - back] & 0xc0) == 0x80) back++;
        utf8proc_iterate((const utf8proc_uint8_t *)text + at - back, (utf8proc_ssize_t)back, &c);
        if (!is_space(c)) break;
        at -= back;
    }
    return MAX(at, floor);
}

static size_t
space_behind(const char *text, size_t at, size_t n)
{
    while (at < n) {
        utf8proc_int32_t c;
        utf8proc_ssize_t len = utf8proc_iterate((const utf8proc_uint8_t *)text + at,
                                                (utf8proc_ssize_t)(n - at), &c);

        if (!is_space(c)) break;
        at += (size_t)len;
    }
    return at;
}

token_id
added_next(const struct added *a, bool normalized, struct added_walk *w, const char **gap,
           size_t *gap_len)
{
    for (; w->at < w->n; w->at++) {
        const struct added_token *t = longest_at(a, normalized, w->text + w->at, w->n - w->at);
        size_t start = w->at, stop;

        if (!t) continue;
        stop = w->at + t->len;
        w->at = stop;
        if (t->lstrip) start = space_before(w->text, start, MIN(w->from, start));
        if (t->rstrip) stop = space_behind(w->text, stop, w->n);
        *gap = w->text + w->from;
        *gap_len = start > w->from ? start - w->from : 0;
        w->from = stop;
        return t->id;
    }
    *gap = w->text + w->from;
    *gap_len = w->n - w->from;
    w->from = w->n;
    return -1;
}
