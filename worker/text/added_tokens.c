/* added_tokens.c - reads and finds added tokens (added_tokens.h).
 *
 * Tokens are sorted by bytes, so tokens with a common prefix are a range of the array. The search
 * narrows the range with each byte of the text; the token that equals the prefix is the first of
 * the range. Special cases, such as a token that begins inside space stripped by an earlier token,
 * follow find_matches() of the tokenizers library. */
#include "worker/text/added_tokens.h"

#include "base/array.h"
#include "worker/text/chars.h"
#include "worker/text/json_section.h"

static int
by_kind_then_bytes(const void *x, const void *y, void *arg)
{
    const struct added_token *a = x, *b = y;
    const char *text = arg;
    int d;

    if (a->normalized != b->normalized) return a->normalized - b->normalized;
    d = memcmp(text + a->at, text + b->at, MIN(a->len, b->len));
    return d ? d : (a->len > b->len) - (a->len < b->len);
}

struct element {
    char content[VOCAB_MAX_PIECE];
    bool lstrip, rstrip, normalized, special, single_word;
    token_id id;
};

static const struct section_field fields[] = {
    SECTION(ID, element, "id", id),
    SECTION(TEXT, element, "content", content),
    SECTION(BOOL, element, "lstrip", lstrip),
    SECTION(BOOL, element, "rstrip", rstrip),
    SECTION(BOOL, element, "normalized", normalized),
    SECTION(BOOL, element, "special", special),
    SECTION(BOOL, element, "single_word", single_word),
    { NULL },
};

static int MUST_USE
read_token(struct json *j, struct added_token *t, struct element *m, struct err *e)
{
    *m = (struct element){ .normalized = true, .id = -1 };
    TRY(json_section_read(j, "the token", fields, m, e));
    if (m->id < 0 || !*m->content) return err_set(e, -EBADMSG, "the token has no id or no content");
    *t = (struct added_token){ .id = m->id,
                               .lstrip = m->lstrip,
                               .rstrip = m->rstrip,
                               .single_word = m->single_word,
                               .normalized = m->normalized };
    return 0;
}

/* Adds the token unless v has this id with this text. -EBADMSG: another token has the id or
 * text. */
static int MUST_USE
enter(struct vocab *v, const char *text, token_id id, bool special, struct err *e)
{
    const struct piece *p = vocab_piece(v, id);
    char copy[VOCAB_MAX_PIECE];
    size_t len = strlen(text);
    token_id known;
    int n;

    memcpy(copy, text, len);
    n = vocab_unwrite(v, copy, len);
    known = n < 0 ? -1 : vocab_find(v, copy, (size_t)n);
    if (n < 0) n = (int)len;
    if (known >= 0 ? known != id
                   : p && (p->len != (uint32_t)n || memcmp(v->bytes + p->at, copy, (size_t)n)))
        return err_set(e, -EBADMSG,
                       "added token \"%.64s\" has id %d, but another token has this text or id",
                       text, id);
    if (!p) TRY(vocab_add(v, id, text, len, false, e));
    v->piece[id].special |= special;
    return 0;
}

/* Appends the search text of t to texts: its content, normalised if t->normalized. */
static int MUST_USE
put_text(struct text_buffer *texts, struct added_token *t, struct normal *m, const char *content,
         struct err *e)
{
    size_t n = strlen(content);
    const char *text = content;

    if (t->normalized) TRY(normalizer_run(m, &text, &n, e));
    if (n == 0)
        return err_set(e, -ENOTSUP, "added token \"%.64s\" is empty after normalisation", content);
    t->at = (uint32_t)texts->n;
    t->len = (uint32_t)n;
    return text_buffer_put(texts, text, n) < 0 ? err_set(e, -ENOMEM, "no host memory for tokens")
                                               : 0;
}

int
added_tokens_open(struct added *a, struct vocab *v, struct normal *m, struct json list,
                  struct err *e)
{
    struct text_buffer texts = { 0 };
    struct element element;
    uint32_t cap = 0;
    int r = json_section_array(&list, "added_tokens", e);

    while (r == 0 && (r = json_section_element(&list, e)) > 0) {
        struct added_token *t;

        r = array_grow(&a->token, &cap, a->n + 1, UINT32_MAX, sizeof *t);
        if (r < 0) {
            err_set(e, r, "no host memory for %u added tokens", a->n + 1);
            break;
        }
        t = &a->token[a->n];
        r = read_token(&list, t, &element, e);
        if (r < 0) err_while(e, r, "added_tokens[%u]", a->n);
        if (r == 0) r = put_text(&texts, t, m, element.content, e);
        if (r == 0) r = enter(v, element.content, t->id, element.special, e);
        if (r == 0) a->n++;
    }
    a->text = texts.p;
    a->n_text = (uint32_t)texts.n;
    if (r == 0 && a->n) qsort_r(a->token, a->n, sizeof *a->token, by_kind_then_bytes, a->text);
    for (uint32_t i = 1; r == 0 && i < a->n; i++)
        if (by_kind_then_bytes(&a->token[i - 1], &a->token[i], a->text) == 0)
            r = err_set(e, -EBADMSG, "added tokens %d and %d have the same text",
                        a->token[i - 1].id, a->token[i].id);
    return r;
}

void
added_tokens_prepare(struct added *a)
{
    for (uint32_t i = 0; i < a->n; i++) {
        const struct added_token *t = &a->token[i];
        unsigned char c = (unsigned char)a->text[t->at];

        if (!a->by_byte[t->normalized][c].end) a->by_byte[t->normalized][c].first = i;
        a->by_byte[t->normalized][c].end = i + 1;
    }
}

bool
added_tokens_is_sound(const struct added *a, const struct vocab *v)
{
    for (uint32_t i = 0; i < a->n; i++) {
        const struct added_token *t = &a->token[i];

        if (t->len == 0 || t->len > a->n_text || t->at > a->n_text - t->len) return false;
        if (t->normalized > 1 || !vocab_piece(v, t->id)) return false;
        if (i && by_kind_then_bytes(t - 1, t, a->text) >= 0) return false;
    }
    return true;
}

void
added_tokens_free(struct added *a)
{
    free(a->token);
    free(a->text);
    *a = (struct added){ 0 };
}

/* Returns the first of the sorted tokens [lo, hi) whose byte number `at` is at least c, or hi. */
static uint32_t
first_from(const struct added *a, uint32_t lo, uint32_t hi, size_t at, unsigned c)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;

        if ((unsigned char)a->text[a->token[mid].at + at] < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Returns the longest token of one kind with which the text p[left] begins, or NULL. */
static const struct added_token *
longest_at(const struct added *a, bool normalized, const char *p, size_t left)
{
    uint32_t first = a->by_byte[normalized][(unsigned char)*p].first;
    uint32_t end = a->by_byte[normalized][(unsigned char)*p].end;
    const struct added_token *best = NULL;

    for (size_t len = 1; first < end; len++) {
        unsigned c;

        if (a->token[first].len == len) best = &a->token[first++];
        if (len == left) break;
        c = (unsigned char)p[len];
        first = first_from(a, first, end, len, c);
        end = first_from(a, first, end, len, c + 1);
    }
    return best;
}

static size_t
space_before(const char *text, size_t at, size_t floor)
{
    size_t len;

    while (at > floor && char_is_space(char_before(text, at, &len))) at -= len;
    return MAX(at, floor);
}

static size_t
space_behind(const char *text, size_t at, size_t n)
{
    size_t len;

    while (at < n && char_is_space(char_at(text, n, at, &len))) at += len;
    return at;
}

static bool
inside_a_word(const struct added_walk *w, size_t start, size_t stop)
{
    size_t len;

    return (start > 0 && char_is_word(char_before(w->text, start, &len))) ||
           (stop < w->n && char_is_word(char_at(w->text, w->n, stop, &len)));
}

token_id
added_tokens_next(const struct added *a, bool normalized, struct added_walk *w, const char **gap,
                  size_t *gap_len)
{
    while (w->at < w->n) {
        const struct added_token *t = longest_at(a, normalized, w->text + w->at, w->n - w->at);
        size_t start = w->at, stop;

        if (!t) {
            w->at++;
            continue;
        }
        stop = w->at + t->len;
        w->at = stop;
        if (t->single_word && inside_a_word(w, start, stop)) continue;
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
