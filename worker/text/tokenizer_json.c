/* tokenizer_json.c - see tokenizer_json.h.
 *
 * One pass over the document finds the sections; they are then read in the order of their
 * dependencies: the small ones first, which decide whether pieces are bytes; then vocabulary,
 * merges or scores, added tokens, the template. Everything unsupported is rejected here, so
 * encoding rejects only invalid input. */
#include "worker/text/tokenizer_json.h"

#include "worker/text/json_section.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The small sections, which the vocabulary cache stores unchanged. */
enum { NORMALIZER, PRETOK, POST, DECODER, N_SMALL };
static const char *const small_names[N_SMALL] = { "normalizer", "pre_tokenizer", "post_processor",
                                                  "decoder" };

/* The first event of each section; p is NULL if the section is absent. */
struct sections {
    struct json small[N_SMALL], added, vocab, merges;
    const char *small_end[N_SMALL];
    char model[64], unk[256];
    bool ignore_merges, affix, dropout, byte_fallback, fuse_unk;
    token_id unk_id;
};

static int MUST_USE
keep(struct json *at, struct json *j, struct err *e)
{
    TRY(json_next(j, e));
    *at = *j;
    return json_skip(j, e);
}

/* null, 0 and 0.0 mean none. */
static int MUST_USE
read_dropout(struct json *j, bool *dropout, struct err *e)
{
    double p = 0;

    TRY(json_next(j, e));
    if (j->kind != JSON_NULL && (j->kind != JSON_NUMBER || json_f64(j, &p) < 0))
        return err_set(e, -EBADMSG, "model.dropout is not a number");
    *dropout = p > 0 || p < 0;
    return 0;
}

static int MUST_USE
read_unk_id(struct json *j, token_id *id, struct err *e)
{
    uint64_t v;

    TRY(json_next(j, e));
    if (j->kind == JSON_NULL) return 0;
    if (j->kind != JSON_NUMBER || json_u64(j, &v) < 0 || v >= VOCAB_MAX_ID)
        return err_set(e, -EBADMSG, "model.unk_id is not a token id");
    *id = (token_id)v;
    return 0;
}

static int MUST_USE
find_model(struct sections *s, struct json *j, struct err *e)
{
    char affix[64];
    int more;

    TRY(json_next(j, e));
    TRY(json_section_object(j, "model", e));
    while ((more = json_section_key(j, e)) > 0) {
        if (json_is(j, "type")) {
            TRY(json_section_text(j, "model.type", s->model, sizeof s->model, e));
        } else if (json_is(j, "ignore_merges")) {
            TRY(json_section_bool(j, "model.ignore_merges", &s->ignore_merges, e));
        } else if (json_is(j, "byte_fallback")) {
            TRY(json_section_bool(j, "model.byte_fallback", &s->byte_fallback, e));
        } else if (json_is(j, "fuse_unk")) {
            TRY(json_section_bool(j, "model.fuse_unk", &s->fuse_unk, e));
        } else if (json_is(j, "unk_token")) {
            TRY(json_section_text(j, "model.unk_token", s->unk, sizeof s->unk, e));
        } else if (json_is(j, "unk_id")) {
            TRY(read_unk_id(j, &s->unk_id, e));
        } else if (json_is(j, "dropout")) {
            TRY(read_dropout(j, &s->dropout, e));
        } else if (json_is(j, "continuing_subword_prefix") || json_is(j, "end_of_word_suffix")) {
            TRY(json_section_text(j, "model: an affix", affix, sizeof affix, e));
            s->affix |= affix[0] != '\0';
        } else if (json_is(j, "vocab")) {
            TRY(keep(&s->vocab, j, e));
        } else if (json_is(j, "merges")) {
            TRY(keep(&s->merges, j, e));
        } else {
            TRY(json_skip(j, e));
        }
    }
    return more;
}

/* "truncation" and "padding" come from training and are ignored, because every server disables
 * them. */
static int MUST_USE
find_section(struct sections *s, struct json *j, struct err *e)
{
    for (int i = 0; i < N_SMALL; i++) {
        if (!json_is(j, small_names[i])) continue;
        TRY(keep(&s->small[i], j, e));
        s->small_end[i] = j->p;
        return 0;
    }
    if (json_is(j, "added_tokens")) return keep(&s->added, j, e);
    if (json_is(j, "model")) return find_model(s, j, e);
    return json_skip(j, e);
}

static int MUST_USE
find_sections(struct sections *s, struct json *j, struct err *e)
{
    int more;

    TRY(json_next(j, e));
    TRY(json_section_object(j, "the document", e));
    while ((more = json_section_key(j, e)) > 0) TRY(find_section(s, j, e));
    TRY(more);
    TRY(json_next(j, e)); /* only white space may follow */
    for (int i = 0; i < N_SMALL; i++)
        if (!s->small[i].p) s->small[i].kind = JSON_NULL;
    return 0;
}

/* Writes the small sections that are present as a document. */
static int MUST_USE
put_config(struct text_buffer *r, const struct sections *s)
{
    TRY(text_buffer_put(r, "{", 1));
    for (int i = 0; i < N_SMALL; i++) {
        const char *begin;

        if (s->small[i].kind != JSON_OBJECT) continue;
        begin = s->small[i].p - 1; /* the brace has been read */
        TRY(text_buffer_put(r, r->n > 1 ? ",\"" : "\"", r->n > 1 ? 2 : 1));
        TRY(text_buffer_put(r, small_names[i], strlen(small_names[i])));
        TRY(text_buffer_put(r, "\":", 2));
        TRY(text_buffer_put(r, begin, (size_t)(s->small_end[i] - begin)));
    }
    return text_buffer_put(r, "}", 1);
}

static int MUST_USE
read_model_kind(struct tokenizer *t, const struct sections *s, struct err *e)
{
    t->is_unigram = strcmp(s->model, "Unigram") == 0;
    if (*s->model && !t->is_unigram && strcmp(s->model, "BPE"))
        return err_set(e, -ENOTSUP, "model type %s is not served yet", s->model);
    if (s->affix)
        return err_set(e, -ENOTSUP,
                       "model.continuing_subword_prefix, end_of_word_suffix are not served yet");
    if (s->dropout)
        return err_set(e, -ENOTSUP, "model.dropout makes tokens random, which is not served");
    if (!s->vocab.p || (!t->is_unigram && !s->merges.p))
        return err_set(e, -EBADMSG, "model has no vocab or no merges");
    return 0;
}

static int MUST_USE
check_kinds(const struct tokenizer *t, struct err *e)
{
    if (t->pretok.byte_level != t->decoder.byte_level)
        return err_set(e, -ENOTSUP,
                       "pre_tokenizer and decoder: only one of them is ByteLevel, which is not "
                       "served yet");
    if (t->pretok.byte_level && t->is_unigram)
        return err_set(e, -ENOTSUP, "model type Unigram with ByteLevel is not served yet");
    if (t->pretok.first_only && t->normal.n)
        return err_set(e, -ENOTSUP,
                       "pre_tokenizer: prepend_scheme first with a normalizer is not served yet");
    return 0;
}

static int MUST_USE
read_vocab(struct vocab *v, struct json j, struct err *e)
{
    char piece[VOCAB_MAX_PIECE];
    token_id id;
    int more;

    TRY(json_section_object(&j, "model.vocab", e));
    while ((more = json_section_key(&j, e)) > 0) {
        int n = json_unescape(&j, piece, sizeof piece);

        if (n < 0)
            return err_set(e, -EBADMSG, "model.vocab has a piece of over %zu bytes",
                           sizeof piece - 1);
        TRY(json_section_id(&j, "model.vocab: a value", &id, e));
        TRY(vocab_add(v, id, piece, (size_t)n, true, e));
    }
    return more;
}

/* Unigram: [["<unk>", 0.0], ...], in the order of the ids. */
static int MUST_USE
read_scores(struct unigram *u, struct vocab *v, struct json j, struct err *e)
{
    char piece[VOCAB_MAX_PIECE];
    uint32_t cap = 0;
    int more;

    TRY(json_section_array(&j, "model.vocab", e));
    while ((more = json_section_element(&j, e)) > 0) {
        int n;

        if (u->n == cap) {
            double *score;

            cap = cap * 2 + 512;
            score = realloc(u->score, cap * sizeof *score);
            if (!score) return err_set(e, -ENOMEM, "vocabulary");
            u->score = score;
        }
        TRY(json_section_array(&j, "an element of model.vocab", e));
        TRY(json_next(&j, e));
        n = j.kind == JSON_STRING ? json_unescape(&j, piece, sizeof piece) : -1;
        if (n < 0)
            return err_set(e, -EBADMSG, "model.vocab: token %u is not a piece of at most %zu bytes",
                           u->n, sizeof piece - 1);
        TRY(json_next(&j, e));
        if (j.kind != JSON_NUMBER || json_f64(&j, &u->score[u->n]) < 0)
            return err_set(e, -EBADMSG, "model.vocab: token %u has no score", u->n);
        TRY(vocab_add(v, (token_id)u->n, piece, (size_t)n, true, e));
        u->n++;
        TRY(json_next(&j, e));
        if (j.kind != JSON_ARRAY_END)
            return err_set(e, -EBADMSG, "model.vocab: token %u has more than a piece and a score",
                           u->n - 1);
    }
    return more;
}

static int MUST_USE
read_unigram(struct tokenizer *t, const struct sections *s, struct err *e)
{
    TRY(read_scores(&t->unigram, &t->vocab, s->vocab, e));
    if (s->unk_id < 0) return err_set(e, -ENOTSUP, "model.unk_id null is not served yet");
    if ((uint32_t)s->unk_id >= t->unigram.n)
        return err_set(e, -EBADMSG, "model.unk_id %d is not in model.vocab", s->unk_id);
    t->unigram.unk = s->unk_id;
    t->unigram.byte_fallback = s->byte_fallback;
    return unigram_open(&t->unigram, &t->vocab, e);
}

static int MUST_USE
read_bpe(struct tokenizer *t, const struct sections *s, struct err *e)
{
    TRY(read_vocab(&t->vocab, s->vocab, e));
    TRY(bpe_open(&t->bpe, &t->vocab, s->merges, e));
    t->bpe.ignore_merges = s->ignore_merges;
    t->bpe.byte_fallback = s->byte_fallback;
    t->bpe.fuse_unk = s->fuse_unk;
    t->bpe.unk = -1;
    /* if every byte is a token, no character is unknown */
    if (!*s->unk || t->vocab.byte_level) return 0;
    t->bpe.unk = vocab_find(&t->vocab, s->unk, strlen(s->unk));
    if (t->bpe.unk < 0)
        return err_set(e, -EBADMSG, "model.unk_token \"%.64s\" is not in model.vocab", s->unk);
    return 0;
}

static int MUST_USE
check_ids(const struct tokenizer *t, struct err *e)
{
    for (uint32_t i = 0; i < t->post.n_before + t->post.n_after; i++) {
        token_id id = i < t->post.n_before ? t->post.before[i]
                                           : t->post.after[i - t->post.n_before];

        if (!vocab_piece(&t->vocab, id))
            return err_set(e, -EBADMSG, "post_processor: token %d does not exist", id);
    }
    return 0;
}

static int MUST_USE
read_small(struct tokenizer *t, struct sections *s, struct err *e)
{
    TRY(normalizer_open(&t->normal, &s->small[NORMALIZER], e));
    TRY(pre_tokenizer_open(&t->pretok, &s->small[PRETOK], e));
    TRY(decoder_open(&t->decoder, &s->small[DECODER], e));
    TRY(post_processor_open(&t->post, &s->small[POST], e));
    return check_kinds(t, e);
}

/* Prepares the parts for use when all are complete. */
static int MUST_USE
prepare(struct tokenizer *t, struct err *e)
{
    TRY(check_ids(t, e));
    added_tokens_prepare(&t->added);
    return t->is_unigram ? unigram_prepare(&t->unigram, &t->vocab, e)
                         : bpe_prepare(&t->bpe, &t->vocab, e);
}

int
tokenizer_json_read(struct tokenizer *t, const char *text, size_t n, struct err *e)
{
    struct sections s = { .unk_id = -1 };
    struct json j;

    json_open(&j, text, n);
    TRY(find_sections(&s, &j, e));
    TRY(read_model_kind(t, &s, e));
    if (put_config(&t->config, &s) < 0) return err_set(e, -ENOMEM, "tokenizer");
    TRY(read_small(t, &s, e));
    t->vocab.byte_level = t->pretok.byte_level;
    TRY(t->is_unigram ? read_unigram(t, &s, e) : read_bpe(t, &s, e));
    if (s.added.p) TRY(added_tokens_open(&t->added, &t->vocab, &t->normal, s.added, e));
    return prepare(t, e);
}

int
tokenizer_json_reopen(struct tokenizer *t, const char *text, size_t n, struct err *e)
{
    struct sections s = { .unk_id = -1 };
    struct json j;

    json_open(&j, text, n);
    TRY(find_sections(&s, &j, e));
    TRY(read_small(t, &s, e));
    return prepare(t, e);
}
