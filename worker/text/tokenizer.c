/* tokenizer.c - implements tokenizer.h: encodes and decodes with the parts of a tokenizer. */
#include "worker/text/tokenizer.h"

#include "base/file.h"
#include "base/utf8.h"
#include "worker/text/json_section.h"
#include "worker/text/tokenizer_parts.h"

int
tokenizer_open(struct tokenizer **ret, const char *dir, struct err *e)
{
    CLEAN(tokenizer_close_at) struct tokenizer *t = calloc(1, sizeof *t);
    CLEAN(file_free_at) char *text = NULL;
    size_t n = 0;
    int r;

    if (!t) return err_set(e, -ENOMEM, "no host memory for the tokenizer");
    TRY(file_read(&text, &n, dir, "tokenizer.json", SECTION_FILE_MAX, e));
    r = tokenizer_json_read(t, text, n, e);
    if (r < 0) return err_while(e, r, "%s/tokenizer.json", dir);
    vocab_cache_hash_of(text, n, t->document);
    *ret = TAKE(t);
    return 0;
}

void
tokenizer_parts_free(struct tokenizer *t)
{
    vocab_free(&t->vocab);
    added_tokens_free(&t->added);
    normalizer_free(&t->normal);
    pre_tokenizer_free(&t->pretok);
    bpe_free(&t->bpe);
    unigram_free(&t->unigram);
    text_buffer_free(&t->config);
}

struct tokenizer *
tokenizer_close(struct tokenizer *t)
{
    if (!t) return NULL;
    vocab_cache_unmap(t);
    tokenizer_parts_free(t);
    free(t);
    return NULL;
}

uint32_t
tokenizer_size(const struct tokenizer *t)
{
    return t->vocab.n;
}

uint32_t
tokenizer_longest(const struct tokenizer *t)
{
    return decoder_longest(&t->decoder, t->vocab.longest);
}

uint64_t
tokenizer_max_text(const struct tokenizer *t, uint32_t n)
{
    bool all_kept = t->vocab.byte_level || (t->bpe.unk >= 0 && !t->bpe.fuse_unk);

    for (uint32_t i = 0; i < t->added.n; i++)
        if (t->added.token[i].lstrip || t->added.token[i].rstrip) return UINT64_MAX;
    if (t->is_unigram || !(all_kept || bpe_has_all_bytes(&t->bpe)) ||
        normalizer_shrinks(&t->normal) || pre_tokenizer_drops(&t->pretok))
        return UINT64_MAX;
    return (uint64_t)n * MAX(t->vocab.longest, 4u); /* an unknown character has at most 4 bytes */
}

/* ---- encoding */

struct out {
    struct tokenizer *t;
    token_id *ids;
    uint32_t n, cap;
};

static int MUST_USE
too_many(const struct out *o, struct err *e)
{
    return err_set(e, -EMSGSIZE, "the text has more than %u tokens", o->cap);
}

static int MUST_USE
put(struct out *o, token_id id, struct err *e)
{
    if (o->n == o->cap) return too_many(o, e);
    o->ids[o->n++] = id;
    return 0;
}

static int
put_word(void *arg, const char *word, size_t n, struct err *e)
{
    struct out *o = arg;
    struct tokenizer *t = o->t;
    token_id *ids = o->ids + o->n;
    uint32_t cap = o->cap - o->n;
    int r = t->is_unigram ? unigram_word(&t->unigram, &t->vocab, word, n, ids, cap)
                          : bpe_word(&t->bpe, &t->vocab, word, n, ids, cap);

    if (r == -EMSGSIZE) return too_many(o, e);
    if (r < 0) return err_set(e, r, "cannot encode a word of %zu bytes: %s", n, strerror(-r));
    o->n += (uint32_t)r;
    return 0;
}

/* Encodes a text, except that added tokens are searched of one kind only (added_tokens.h). If
 * `normalized` is false, the text between the tokens found is normalised and encoded by a call with
 * `normalized` true. begins: the text is the beginning of the text that the client sent. */
static int MUST_USE
put_text(struct out *o, bool normalized, bool begins, const char *text, size_t n, struct err *e)
{
    struct added_walk w = { .text = n ? text : "", .n = n };
    token_id id;

    do {
        const char *gap;
        size_t gap_len;
        bool first;

        id = added_tokens_next(&o->t->added, normalized, &w, &gap, &gap_len);
        first = begins && gap == text;
        if (normalized) {
            TRY(pre_tokenizer_run(&o->t->pretok, gap, gap_len, first, put_word, o, e));
        } else if (gap_len) {
            TRY(normalizer_run(&o->t->normal, &gap, &gap_len, e));
            TRY(put_text(o, true, first, gap, gap_len, e));
        }
        if (id >= 0) TRY(put(o, id, e));
    } while (id >= 0);
    return 0;
}

int
tokenizer_encode(struct tokenizer *t, const char *text, size_t n, bool bare, token_id *ids,
                 uint32_t cap, struct err *e)
{
    struct out o = { t, ids, 0, cap };
    size_t valid = utf8_valid(text, n);

    if (valid < n) return err_set(e, -EILSEQ, "the text is not UTF-8 at byte %zu", valid);
    if (!bare)
        for (uint32_t i = 0; i < t->post.n_before; i++) TRY(put(&o, t->post.before[i], e));
    TRY(put_text(&o, false, true, text, n, e));
    if (!bare)
        for (uint32_t i = 0; i < t->post.n_after; i++) TRY(put(&o, t->post.after[i], e));
    return (int)o.n;
}

/* ---- decoding */

const char *
tokenizer_piece(const struct tokenizer *t, token_id id, uint32_t *n, bool *special)
{
    const struct piece *p = vocab_piece(&t->vocab, id);

    if (!p) return NULL;
    *n = p->len;
    *special = p->special;
    return t->vocab.bytes + p->at;
}

void
tokenizer_decode_add(const struct tokenizer *t, struct decoding *s, token_id id, bool keep_special,
                     decode_sink *sink, void *arg)
{
    const struct piece *p = vocab_piece(&t->vocab, id);

    if (p && (!p->special || keep_special)) decoder_add(&t->decoder, s, &t->vocab, p, sink, arg);
}

void
tokenizer_decode_end(const struct tokenizer *t, struct decoding *s, decode_sink *sink, void *arg)
{
    decoder_end(&t->decoder, s, sink, arg);
}

struct text {
    char *buf;
    size_t cap, len;
    bool full;
};

static void
append(void *arg, const char *s, uint32_t n)
{
    struct text *t = arg;

    t->full |= t->cap - t->len <= n; /* including the NUL */
    if (t->full) return;
    memcpy(t->buf + t->len, s, n);
    t->len += n;
}

int
tokenizer_piece_bytes(const struct tokenizer *t, token_id id, char *buf, size_t cap)
{
    const struct piece *p = vocab_piece(&t->vocab, id);
    struct text text = { buf, cap, 0, cap == 0 || cap > INT32_MAX };

    if (p && !text.full) decoder_piece(&t->decoder, &t->vocab, p, append, &text);
    return text.full ? -EMSGSIZE : (int)text.len;
}

int
tokenizer_decode(const struct tokenizer *t, const token_id *ids, uint32_t n, bool keep_special,
                 char *buf, size_t cap)
{
    struct text text = { buf, cap, 0, false };
    struct decoding s = { 0 };

    if (cap == 0 || cap > INT32_MAX) return -EMSGSIZE;
    for (uint32_t i = 0; i < n && !text.full; i++)
        tokenizer_decode_add(t, &s, ids[i], keep_special, append, &text);
    tokenizer_decode_end(t, &s, append, &text);
    if (text.full) return -EMSGSIZE;
    buf[text.len] = '\0';
    return (int)text.len;
}
