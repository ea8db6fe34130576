/* tokenizer_json.c - reads tokenizer.json ("the document") into the parts of a tokenizer.
 *
 * One pass over the document finds its sections; they are then read in the order of their
 * dependencies: normalizer, pre_tokenizer, decoder and post_processor ("small"), which decide
 * whether the vocabulary is byte-level; then vocabulary, merges or scores, added tokens. Everything
 * unsupported is rejected here, so encoding rejects only invalid input. */
#include "base/array.h"
#include "worker/text/json_section.h"
#include "worker/text/tokenizer_parts.h"

/* The small sections. The vocabulary cache stores their JSON. */
enum { NORMALIZER, PRETOK, POST, DECODER, N_SMALL };

/* The sections, as values or as scanners at their first event (json.h). Absent: p is NULL. */
struct sections {
    struct json small[N_SMALL], added, vocab, merges;
    char model[64], unk[256], prefix[64], suffix[64];
    bool ignore_merges, dropout, byte_fallback, fuse_unk;
    token_id unk_id;
};

/* Sets *(bool *)dropout to whether dropout is used; null and 0 mean that it is not. */
static int MUST_USE
read_dropout(void *dropout, struct json *j, struct err *e)
{
    double p = 0;

    TRY(json_next(j, e));
    if (j->kind != JSON_NULL && (j->kind != JSON_NUMBER || json_f64(j, &p) < 0))
        return err_set(e, -EBADMSG, "dropout is not a number");
    *(bool *)dropout = p > 0 || p < 0;
    return 0;
}

static int MUST_USE
read_unk_id(void *id, struct json *j, struct err *e)
{
    uint64_t v;

    TRY(json_next(j, e));
    if (j->kind == JSON_NULL) return 0;
    if (j->kind != JSON_NUMBER || json_u64(j, &v) < 0 || v >= VOCAB_MAX_ID)
        return err_set(e, -EBADMSG, "unk_id is not a token id");
    *(token_id *)id = (token_id)v;
    return 0;
}

static const struct section_field model_fields[] = {
    SECTION(TEXT, sections, "type", model),
    SECTION(BOOL, sections, "ignore_merges", ignore_merges),
    SECTION(BOOL, sections, "byte_fallback", byte_fallback),
    SECTION(BOOL, sections, "fuse_unk", fuse_unk),
    SECTION(TEXT, sections, "unk_token", unk),
    { "unk_id", SECTION_READ, offsetof(struct sections, unk_id), 0, read_unk_id },
    { "dropout", SECTION_READ, offsetof(struct sections, dropout), 0, read_dropout },
    SECTION(TEXT, sections, "continuing_subword_prefix", prefix),
    SECTION(TEXT, sections, "end_of_word_suffix", suffix),
    SECTION(VALUE, sections, "vocab", vocab),
    SECTION(VALUE, sections, "merges", merges),
    { NULL },
};

static int MUST_USE
read_model(void *sections, struct json *j, struct err *e)
{
    int r;

    TRY(json_next(j, e));
    r = json_section_read(j, "its value", model_fields, sections, e);
    return r < 0 ? err_while(e, r, "model") : 0;
}

/* The document's keys; others, such as "truncation" and "padding" of training, are ignored. */
static const struct section_field document_fields[] = {
    [NORMALIZER] = SECTION(VALUE, sections, "normalizer", small[NORMALIZER]),
    [PRETOK] = SECTION(VALUE, sections, "pre_tokenizer", small[PRETOK]),
    [POST] = SECTION(VALUE, sections, "post_processor", small[POST]),
    [DECODER] = SECTION(VALUE, sections, "decoder", small[DECODER]),
    SECTION(VALUE, sections, "added_tokens", added),
    { "model", SECTION_READ, 0, 0, read_model },
    { NULL },
};

static int MUST_USE
find_sections(struct sections *s, const char *text, size_t n, struct err *e)
{
    struct json j;

    *s = (struct sections){ .unk_id = -1 };
    json_open(&j, text, n);
    TRY(json_next(&j, e));
    TRY(json_section_read(&j, "the document", document_fields, s, e));
    TRY(json_next(&j, e)); /* only white space may follow */
    for (int i = 0; i < N_SMALL; i++)
        if (!s->small[i].p) s->small[i].kind = JSON_NULL;
    return 0;
}

/* Writes a document that has only the small sections, for the vocabulary cache. */
static int MUST_USE
put_config(struct text_buffer *r, const struct sections *s)
{
    TRY(text_buffer_put(r, "{", 1));
    for (int i = 0; i < N_SMALL; i++) {
        struct json at = s->small[i];
        const char *begin;

        if (at.kind != JSON_OBJECT) continue;
        begin = at.p - 1; /* the brace has been read */
        TRY(json_skip(&at, NULL));
        TRY(text_buffer_put(r, r->n > 1 ? ",\"" : "\"", r->n > 1 ? 2 : 1));
        TRY(text_buffer_put(r, document_fields[i].key, strlen(document_fields[i].key)));
        TRY(text_buffer_put(r, "\":", 2));
        TRY(text_buffer_put(r, begin, (size_t)(at.p - begin)));
    }
    return text_buffer_put(r, "}", 1);
}

static int MUST_USE
read_model_kind(struct tokenizer *t, const struct sections *s, struct err *e)
{
    t->is_unigram = strcmp(s->model, "Unigram") == 0;
    if (*s->model && !t->is_unigram && strcmp(s->model, "BPE"))
        return err_set(e, -ENOTSUP, "model type %s is not served yet", s->model);
    if (*s->prefix || *s->suffix)
        return err_set(e, -ENOTSUP,
                       "model.continuing_subword_prefix and end_of_word_suffix are not served yet");
    if (s->dropout)
        return err_set(e, -ENOTSUP, "model.dropout makes tokens random, which is not served");
    if (!s->vocab.p || (!t->is_unigram && !s->merges.p))
        return err_set(e, -EBADMSG, "model has no vocab%s", t->is_unigram ? "" : " or no merges");
    return 0;
}

static int MUST_USE
check_kinds(const struct tokenizer *t, struct err *e)
{
    if (t->pretok.byte_level != t->decoder.byte_level)
        return err_set(
            e, -ENOTSUP,
            "only one of pre_tokenizer and decoder is ByteLevel; it is served only in both");
    if (t->pretok.byte_level && t->is_unigram)
        return err_set(e, -ENOTSUP, "model type Unigram with ByteLevel is not served yet");
    if (t->pretok.first_only && t->normal.n)
        return err_set(
            e, -ENOTSUP,
            "pre_tokenizer: prepend_scheme \"first\" with a normalizer is not served yet");
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
            return err_set(e, -EBADMSG, "model.vocab has a token longer than %zu bytes",
                           sizeof piece - 1);
        TRY(json_section_id(&j, "model.vocab: a value", &id, e));
        TRY(vocab_add(v, id, piece, (size_t)n, true, e));
    }
    return more;
}

/* Reads the vocabulary of a Unigram model, [["<unk>", 0.0], ...], in the order of the ids. */
static int MUST_USE
read_scores(struct unigram *u, struct vocab *v, struct json j, struct err *e)
{
    char piece[VOCAB_MAX_PIECE];
    uint32_t cap = 0;
    int more;

    TRY(json_section_array(&j, "model.vocab", e));
    while ((more = json_section_element(&j, e)) > 0) {
        int n = array_grow(&u->score, &cap, u->n + 1, UINT32_MAX, sizeof *u->score);

        if (n < 0) return err_set(e, n, "no host memory for the scores of %u tokens", u->n + 1);
        TRY(json_section_array(&j, "an element of model.vocab", e));
        n = json_section_piece(&j, piece, sizeof piece);
        if (n < 0)
            return err_set(e, -EBADMSG, "model.vocab: token %u is no string of at most %zu bytes",
                           u->n, sizeof piece - 1);
        TRY(json_next(&j, e));
        if (j.kind != JSON_NUMBER || json_f64(&j, &u->score[u->n]) < 0)
            return err_set(e, -EBADMSG, "model.vocab: token %u has no score", u->n);
        TRY(vocab_add(v, (token_id)u->n, piece, (size_t)n, true, e));
        u->n++;
        TRY(json_next(&j, e));
        if (j.kind != JSON_ARRAY_END)
            return err_set(e, -EBADMSG, "model.vocab: token %u has more than a text and a score",
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
    /* A byte-level vocabulary has a token for every byte, so no character is unknown. */
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

/* If r is an error, puts the name of the section before its message in e. Returns r. */
static int MUST_USE
in_section(int section, int r, struct err *e)
{
    return r < 0 ? err_while(e, r, "%s", document_fields[section].key) : 0;
}

static int MUST_USE
read_small(struct tokenizer *t, struct sections *s, struct err *e)
{
    struct json *j = s->small;

    TRY(in_section(NORMALIZER, normalizer_open(&t->normal, &j[NORMALIZER], e), e));
    TRY(in_section(PRETOK, pre_tokenizer_open(&t->pretok, &j[PRETOK], e), e));
    TRY(in_section(DECODER, decoder_open(&t->decoder, &j[DECODER], e), e));
    TRY(in_section(POST, post_processor_open(&t->post, &j[POST], e), e));
    return check_kinds(t, e);
}

/* Prepares all parts of t for encoding, after they have been read. */
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
    struct sections s;

    TRY(find_sections(&s, text, n, e));
    TRY(read_model_kind(t, &s, e));
    if (put_config(&t->config, &s) < 0) return err_set(e, -ENOMEM, "no host memory for tokenizer");
    TRY(read_small(t, &s, e));
    t->vocab.byte_level = t->pretok.byte_level;
    TRY(t->is_unigram ? read_unigram(t, &s, e) : read_bpe(t, &s, e));
    if (s.added.p) TRY(added_tokens_open(&t->added, &t->vocab, &t->normal, s.added, e));
    return prepare(t, e);
}

int
tokenizer_json_reopen(struct tokenizer *t, const char *text, size_t n, struct err *e)
{
    struct sections s;

    TRY(find_sections(&s, text, n, e));
    TRY(read_small(t, &s, e));
    return prepare(t, e);
}
