/* tokenizer.c - see tokenizer.h.
 *
 * Opening finds the sections of tokenizer.json in one pass over it and then reads them in the order in
 * which they need each other: vocabulary, added tokens, merges, the rest. What is not served is refused
 * there, so that encoding has nothing left to refuse but its input.
 */
#include "worker/text/tokenizer.h"

#include "base/json.h"
#include "worker/text/added.h"
#include "worker/text/bpe.h"
#include "worker/text/doc.h"
#include "worker/text/post.h"
#include "worker/text/pretok.h"
#include "worker/text/utf8.h"
#include "worker/text/vocab.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MAX = 256 << 20 }; /* the largest published ones are under 40 MB */

struct tokenizer {
    struct vocab vocab;
    struct added added;
    struct pretok pretok;
    struct bpe bpe;
    struct post post;
};

/* Sections by the event that begins them; p is NULL where there is none. */
struct sections {
    struct json added, normalizer, pretok, post, decoder, vocab, merges;
    char model[64];
    bool model_type, ignore_merges, affix;
};

static int MUST_USE
keep(struct json *at, struct json *j, struct err *e)
{
    TRY(json_next(j, e));
    *at = *j;
    return json_skip(j, e);
}

static int MUST_USE
find_model(struct sections *s, struct json *j, struct err *e)
{
    char affix[64];
    int more;

    TRY(json_next(j, e));
    TRY(doc_object(j, "model", e));
    while ((more = doc_key(j, e)) > 0) {
        if (json_is(j, "type")) {
            TRY(doc_text(j, "model.type", s->model, sizeof s->model, e));
            s->model_type = true;
        } else if (json_is(j, "ignore_merges")) {
            TRY(doc_bool(j, "model.ignore_merges", &s->ignore_merges, e));
        } else if (json_is(j, "continuing_subword_prefix") || json_is(j, "end_of_word_suffix")) {
            TRY(doc_text(j, "model: an affix", affix, sizeof affix, e));
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

/* "truncation" and "padding" are training leftovers that every server switches off: not read. */
static int MUST_USE
find_sections(struct sections *s, struct json *j, struct err *e)
{
    int more;

    TRY(json_next(j, e));
    TRY(doc_object(j, "the document", e));
    while ((more = doc_key(j, e)) > 0) {
        if (json_is(j, "added_tokens"))
            TRY(keep(&s->added, j, e));
        else if (json_is(j, "normalizer"))
            TRY(keep(&s->normalizer, j, e));
        else if (json_is(j, "pre_tokenizer"))
            TRY(keep(&s->pretok, j, e));
        else if (json_is(j, "post_processor"))
            TRY(keep(&s->post, j, e));
        else if (json_is(j, "decoder"))
            TRY(keep(&s->decoder, j, e));
        else if (json_is(j, "model"))
            TRY(find_model(s, j, e));
        else
            TRY(json_skip(j, e));
    }
    TRY(more);
    TRY(json_next(j, e)); /* nothing but space may follow */
    return 0;
}

/* The type of a section that is one object, "" when there is none. */
static int MUST_USE
type_of(struct json j, const char *where, char *type, size_t room, struct err *e)
{
    int more;

    type[0] = '\0';
    if (!j.p || j.kind == JSON_NULL) return 0;
    TRY(doc_object(&j, where, e));
    while ((more = doc_key(&j, e)) > 0) {
        if (json_is(&j, "type"))
            TRY(doc_text(&j, where, type, room, e));
        else
            TRY(json_skip(&j, e));
    }
    return more;
}

static int MUST_USE
refuse_other_kinds(const struct sections *s, struct err *e)
{
    char type[64];

    if (s->model_type && strcmp(s->model, "BPE") != 0)
        return err_set(e, -ENOTSUP, "model type %s is not served yet", s->model);
    TRY(type_of(s->normalizer, "normalizer", type, sizeof type, e));
    if (s->normalizer.p && s->normalizer.kind != JSON_NULL)
        return err_set(e, -ENOTSUP, "normalizer %s is not served yet", type);
    if (s->affix)
        return err_set(e, -ENOTSUP,
                       "model.continuing_subword_prefix, end_of_word_suffix are not served yet");
    TRY(type_of(s->decoder, "decoder", type, sizeof type, e));
    if (strcmp(type, "ByteLevel") != 0)
        return err_set(e, -ENOTSUP, "decoder %s is not served yet", type[0] ? type : "null");
    if (!s->vocab.p || !s->merges.p) return err_set(e, -EBADMSG, "model has no vocab or no merges");
    return 0;
}

static int MUST_USE
read_vocab(struct vocab *v, struct json j, struct err *e)
{
    char piece[4096];
    token_id id;
    int more;

    TRY(doc_object(&j, "model.vocab", e));
    while ((more = doc_key(&j, e)) > 0) {
        int n = json_unescape(&j, piece, sizeof piece);

        if (n < 0)
            return err_set(e, -EBADMSG, "model.vocab has a piece of over %zu bytes",
                           sizeof piece - 1);
        TRY(doc_id(&j, "model.vocab: a value", &id, e));
        TRY(vocab_add(v, id, piece, (size_t)n, e));
    }
    return more;
}

static int MUST_USE
check_ids(const struct tokenizer *t, struct err *e)
{
    for (uint32_t i = 0; i < t->post.n_before + t->post.n_after; i++) {
        token_id id = i < t->post.n_before ? t->post.before[i]
                                           : t->post.after[i - t->post.n_before];

        if (!vocab_piece(&t->vocab, id))
            return err_set(e, -EBADMSG, "post_processor: there is no token %d", id);
    }
    return 0;
}

static int MUST_USE
read_all(struct tokenizer *t, const char *text, size_t n, struct err *e)
{
    struct sections s = { 0 };
    struct json j;

    json_open(&j, text, n);
    TRY(find_sections(&s, &j, e));
    TRY(refuse_other_kinds(&s, e));
    TRY(read_vocab(&t->vocab, s.vocab, e));
    if (s.added.p) TRY(added_open(&t->added, &t->vocab, s.added, e));
    TRY(bpe_open(&t->bpe, &t->vocab, s.merges, e));
    t->bpe.ignore_merges = s.ignore_merges;
    s.pretok.kind = s.pretok.p ? s.pretok.kind : JSON_NULL;
    TRY(pretok_open(&t->pretok, &s.pretok, e));
    s.post.kind = s.post.p ? s.post.kind : JSON_NULL;
    TRY(post_open(&t->post, &s.post, e));
    return check_ids(t, e);
}

static int MUST_USE
read_file(const char *path, char **text, size_t *n, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC), r = 0;
    struct stat st;
    size_t done = 0;
    ssize_t got = 1;

    if (fd < 0) return err_set(e, -errno, "%s: %s", path, strerror(errno));
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > FILE_MAX)
        r = err_set(e, -EBADMSG, "%s: not a file of at most 256 MiB", path);
    else if (!(*text = malloc((size_t)st.st_size + 1)))
        r = err_set(e, -ENOMEM, "%s", path);
    while (r == 0 && got > 0 && done < (size_t)st.st_size) {
        got = read(fd, *text + done, (size_t)st.st_size - done);
        if (got < 0)
            r = err_set(e, -errno, "%s: %s", path, strerror(errno));
        else
            done += (size_t)got;
    }
    close(fd);
    *n = done;
    return r;
}

static void
free_text(char **text)
{
    free(*text);
}

int
tokenizer_open(struct tokenizer **ret, const char *dir, struct err *e)
{
    CLEAN(tokenizer_close_at) struct tokenizer *t = calloc(1, sizeof *t);
    CLEAN(free_text) char *text = NULL;
    char path[4096];
    size_t n = 0;
    int r;

    if (!t) return err_set(e, -ENOMEM, "tokenizer");
    if ((size_t)snprintf(path, sizeof path, "%s/tokenizer.json", dir) >= sizeof path)
        return err_set(e, -ENAMETOOLONG, "%.64s...: the path is too long", dir);
    TRY(read_file(path, &text, &n, e));
    r = read_all(t, text, n, e);
    if (r < 0) return err_while(e, r, "%s", path);
    *ret = TAKE(t);
    return 0;
}

struct tokenizer *
tokenizer_close(struct tokenizer *t)
{
    if (!t) return NULL;
    vocab_free(&t->vocab);
    added_free(&t->added);
    pretok_free(&t->pretok);
    bpe_free(&t->bpe);
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
    return t->vocab.longest;
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
    return err_set(e, -EMSGSIZE, "the text is more than %u tokens", o->cap);
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
    int r = bpe_word(&o->t->bpe, &o->t->vocab, word, n, o->ids + o->n, o->cap - o->n);

    if (r == -EMSGSIZE) return too_many(o, e);
    if (r < 0) return err_set(e, r, "a word of %zu bytes: %s", n, strerror(-r));
    o->n += (uint32_t)r;
    return 0;
}

/* Cut added tokens of one kind out, and hand the text between them on. */
static int MUST_USE
put_text(struct out *o, bool normalized, const char *text, size_t n, struct err *e)
{
    struct added_walk w = { .text = text, .n = n };
    const char *gap;
    size_t gap_len;
    token_id id;

    do {
        id = added_next(&o->t->added, normalized, &w, &gap, &gap_len);
        if (normalized)
            TRY(pretok_run(&o->t->pretok, gap, gap_len, put_word, o, e));
        else
            TRY(put_text(o, true, gap, gap_len, e));
        if (id >= 0) TRY(put(o, id, e));
    } while (id >= 0);
    return 0;
}

int
tokenizer_encode(struct tokenizer *t, const char *text, size_t n, bool bare, token_id *ids,
                 uint32_t cap, struct err *e)
{
    struct out o = { t, ids, 0, cap };

    for (size_t i = 0; i < n;) {
        int k = utf8_at(text + i, n - i);

        if (k <= 0) return err_set(e, -EILSEQ, "the text is not UTF-8 at byte %zu", i);
        i += (size_t)k;
    }
    if (!bare)
        for (uint32_t i = 0; i < t->post.n_before; i++) TRY(put(&o, t->post.before[i], e));
    TRY(put_text(&o, false, text, n, e));
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

static bool
append(char *buf, size_t cap, size_t *len, const char *s, uint32_t n)
{
    if (cap - *len <= n) return false; /* the NUL, too */
    memcpy(buf + *len, s, n);
    *len += n;
    return true;
}

int
tokenizer_decode(const struct tokenizer *t, const token_id *ids, uint32_t n, bool keep_special,
                 char *buf, size_t cap)
{
    struct utf8_part part = { 0 };
    size_t len = 0;
    char out[6];

    if (cap == 0 || cap > INT32_MAX) return -EMSGSIZE;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bytes;
        bool special;
        const char *p = tokenizer_piece(t, ids[i], &bytes, &special);

        if (!p || (special && !keep_special)) continue;
        for (uint32_t b = 0; b < bytes; b++)
            if (!append(buf, cap, &len, out, utf8_feed(&part, p[b], out))) return -EMSGSIZE;
    }
    if (!append(buf, cap, &len, out, utf8_end(&part, out))) return -EMSGSIZE;
    buf[len] = '\0';
    return (int)len;
}
