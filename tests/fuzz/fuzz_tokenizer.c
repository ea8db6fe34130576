/* fuzz_tokenizer.c - a hostile tokenizer.json is rejected with a sentence, or gives a correct
 * tokenizer.
 *
 * Input: a byte of flags, a length and that many choices for a text, then the document, or (BUILT)
 * choices that build an almost valid document. A tokenizer that opens must encode any text equally
 * into a buffer of exactly the needed size, and fail if the buffer is one entry shorter. Words must
 * give the tokens of simple references that merge pair by pair or try every piece at every
 * position. Decoded text must be whole characters, also as a stream, within the size that detok.h
 * states. If bytes are tokens and no other rule changes the text, decoding must return the text.
 */
#include "tests/fuzz/fuzz.h"

#include "base/utf8.h"
#include "worker/text/detok.h"
#include "worker/text/tokenizer.h"
#include "worker/text/tokenizer_parts.h"

#include <math.h>
#include <stdio.h>

enum { BUILT = 1, PLAIN = 2, MAX_DOC = 1 << 15, MAX_TEXT = 256, REF_TEXT = 48, MAX_IDS = 4096 };

/* ---- a document that is almost right */

struct doc {
    char *p;
    size_t n;
};

static void
put(struct doc *d, const char *s)
{
    size_t len = strlen(s);

    if (d->n + len >= MAX_DOC) return;
    memcpy(d->p + d->n, s, len);
    d->n += len;
}

#define PUT(d, ...) \
    do { \
        char put_text[512]; \
        snprintf(put_text, sizeof put_text, __VA_ARGS__); \
        put(d, put_text); \
    } while (0)

static const char *const letters[] = {
    "a", "b", "c", "\xe2\x96\x81", "\xc3\xa9", "\xf0\x9f\x98\x80", "A", "1"
};
static const char *const others[] = { " ",         "  ",      "\n",
                                      "e\xcc\x81", "</s>",    "\xe1\x84\x80\xe1\x85\xa1",
                                      "<0x41>",    "\xcc\xa3" };

/* A piece of one to four letters, by a byte. */
static void
piece(char buf[64], uint32_t choice)
{
    buf[0] = '\0';
    for (uint32_t i = 0; i <= choice >> 6; i++) strcat(buf, letters[choice >> i & 7]);
}

static void
put_base64(struct doc *d, const uint8_t *p, size_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) |
                     (i + 2 < n ? p[i + 2] : 0);
        char four[5] = { digit[v >> 18], digit[v >> 12 & 63], digit[v >> 6 & 63], digit[v & 63],
                         0 };

        put(d, four);
    }
}

/* A trie in which some letters lead to texts that mostly are there. */
static void
put_charsmap(struct doc *d, struct in *in)
{
    static const char from[] = "abcA1";
    uint32_t blob[1 + 512 + 8] = { 512 * 4 };
    uint32_t *unit = blob + 1;

    memcpy(blob + 513, "b\0c a\0\xc3\xa9\0", 9);
    for (int i = 0; i < 5; i++) {
        uint32_t how = byte(in), c = (uint32_t)from[i];

        if (how & 1) continue;
        unit[c] = c | 1u << 8 | (how & 64 ? byte(in) << 14 : 0x100u << 10);
        unit[0x100 ^ c] = 1u << 31 | (how & 128 ? byte(in) << (how >> 2 & 15) : how >> 1 & 7);
    }
    put(d, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"");
    put_base64(d, (const uint8_t *)blob, sizeof blob);
    put(d, "\"}");
}

static void
put_normalizer(struct doc *d, struct in *in)
{
    static const char *const kinds[] = {
        "null",
        "{\"type\":\"NFC\"}",
        "{\"type\":\"NFKD\"}",
        "{\"type\":\"Lowercase\"}",
        "{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true}",
        "{\"type\":\"StripAccents\"}",
        "{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"}",
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}",
        "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"[ab]+\"},\"content\":\"c\"}",
    };
    uint32_t n = byte(in) % 4, kind = byte(in) % (ARRAY_LEN(kinds) + 1);

    if (n == 0) {
        PUT(d, "\"normalizer\":%s,", kinds[kind % ARRAY_LEN(kinds)]);
        return;
    }
    put(d, "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    for (uint32_t i = 0; i < n; i++) {
        put(d, i ? "," : "");
        if (kind == ARRAY_LEN(kinds)) {
            put_charsmap(d, in);
        } else {
            put(d, kind ? kinds[kind] : kinds[1]);
        }
        kind = byte(in) % (ARRAY_LEN(kinds) + 1);
    }
    put(d, "]},");
}

static void
put_pretok(struct doc *d, struct in *in, bool level)
{
    static const char *const behaviors[] = { "Isolated", "Removed", "MergedWithPrevious",
                                             "MergedWithNext", "Contiguous" };
    static const char *const schemes[] = { "always", "first", "never" };
    static const char *const patterns[] = { "{\"String\":\" \"}", "{\"Regex\":\"\\\\s+\"}",
                                            "{\"Regex\":\"\\\\w\"}", "{\"String\":\"ab\"}",
                                            "{\"Regex\":\"b?\"}" };
    uint32_t n = byte(in) % 4;

    put(d, "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (uint32_t i = 0; i < n; i++) {
        uint32_t how = byte(in);

        put(d, i ? "," : "");
        if (how % 4 == 0)
            PUT(d, "{\"type\":\"Split\",\"pattern\":%s,\"behavior\":\"%s\",\"invert\":%s}",
                patterns[how / 4 % 5], behaviors[byte(in) % 5], how & 128 ? "true" : "false");
        else if (how % 4 == 1)
            PUT(d,
                "{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"%"
                "s\",\"split\":%s}",
                schemes[how / 4 % 3], how & 128 ? "true" : "false");
        else
            PUT(d, "{\"type\":\"%s\",\"individual_digits\":%s}",
                how % 4 == 2 ? "Digits" : "WhitespaceSplit", how & 128 ? "true" : "false");
    }
    if (level)
        PUT(d, "%s{\"type\":\"ByteLevel\",\"add_prefix_space\":%s", n ? "," : "",
            byte(in) & 1 ? "true" : "false");
    if (level) PUT(d, ",\"use_regex\":%s}", byte(in) & 1 ? "true" : "false");
    put(d, "]},");
}

static void
put_decoder(struct doc *d, struct in *in, bool level)
{
    static const char *const decoders[] = {
        "{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"always\"}",
        "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
        "\"\xe2\x96\x81\"},"
        "\"content\":\" "
        "\"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \","
        "\"start\":1,\"stop\":0}]}",
        "{\"type\":\"Fuse\"}",
        "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},"
        "\"content\":\"much longer than it was\"},{\"type\":\"ByteFallback\"}]}",
    };

    PUT(d, "\"decoder\":%s,", level ? "{\"type\":\"ByteLevel\"}" : decoders[byte(in) % 4]);
}

static void
put_added(struct doc *d, struct in *in, uint32_t n_vocab)
{
    static const char *const flags[] = { "lstrip", "rstrip", "single_word", "special" };
    uint32_t n = byte(in) % 4;

    put(d, "\"added_tokens\":[");
    for (uint32_t i = 0; i < n; i++) {
        char text[64];
        uint32_t how = byte(in);

        piece(text, byte(in) | 0x40);
        PUT(d, "%s{\"id\":%u,\"content\":\"%s%u\",\"normalized\":%s", i ? "," : "", n_vocab + i,
            text, how & 1, how & 2 ? "true" : "false");
        for (int k = 0; k < 4; k++)
            if (how & 4u << k) PUT(d, ",\"%s\":true", flags[k]);
        put(d, "}");
    }
    put(d, "],");
}

/* How byte-level vocabularies write a byte. */
static void
letter_of(char buf[4], unsigned b)
{
    unsigned c = b;

    if (b < 0x21)
        c = 0x100 + b;
    else if (b >= 0x7f && b <= 0xa0)
        c = 0x121 + b - 0x7f;
    else if (b == 0xad)
        c = 0x143;
    if (c < 0x80)
        snprintf(buf, 4, "%c", (char)c);
    else
        snprintf(buf, 4, "%c%c", (char)(0xc0 | c >> 6), (char)(0x80 | (c & 0x3f)));
}

/* The ids so far are all there is; merges of pieces that are there make pieces that are added. */
static uint32_t
put_bpe(struct doc *d, struct in *in, bool level)
{
    static char made[24][160], part[2][64];
    struct doc merges = { malloc(MAX_DOC), 0 };
    uint32_t n = 0, n_made = 0;

    check(merges.p);
    put(d, "\"model\":{\"type\":\"BPE\",");
    if (!level) PUT(d, "\"byte_fallback\":%s,", byte(in) & 1 ? "true" : "false");
    if (!level) PUT(d, "\"fuse_unk\":%s,", byte(in) & 1 ? "true" : "false");
    if (!level) PUT(d, "\"unk_token\":%s,", byte(in) & 1 ? "\"<unk>\"" : "null");
    PUT(d, "\"ignore_merges\":%s,\"vocab\":{\"<unk>\":0,\"</s>\":1",
        byte(in) & 1 ? "true" : "false");
    for (n = 2; n < 258; n++) {
        char one[8];

        if (level)
            letter_of(one, n - 2);
        else
            snprintf(one, sizeof one, "<0x%02X>", n - 2);
        PUT(d, ",\"%s%s\":%u", one[0] == '"' || (level && one[0] == '\\') ? "\\" : "", one, n);
    }
    for (uint32_t i = 0; i < 8 && !level; i++)
        if (byte(in) < 224) PUT(d, ",\"%s\":%u", letters[i], n++);
    if (byte(in) & 1) { /* one that is longer than most, by itself */
        put(d, ",\"");
        for (int i = 0; i < 96; i++) put(d, "a");
        PUT(d, "\":%u", n++);
    }
    for (uint32_t i = byte(in) % 24; i > 0; i--) {
        bool known = false;

        for (int k = 0; k < 2; k++) {
            uint32_t choice = byte(in);

            if (n_made && choice & 128)
                snprintf(part[k], sizeof part[k], "%.63s", made[choice % n_made]);
            else
                snprintf(part[k], sizeof part[k], "%s", letters[level ? choice % 3 : choice % 8]);
        }
        snprintf(made[n_made], sizeof made[n_made], "%s%s", part[0], part[1]);
        for (uint32_t k = 0; k < n_made; k++) known |= strcmp(made[k], made[n_made]) == 0;
        if (!known) PUT(d, ",\"%s\":%u", made[n_made], n++);
        PUT(&merges, "%s[\"%s\",\"%s\"]", merges.n ? "," : "", part[0], part[1]);
        n_made += !known;
    }
    put(d, "},\"merges\":[");
    merges.p[merges.n] = '\0';
    put(d, merges.p);
    put(d, "]}}");
    free(merges.p);
    return n;
}

static uint32_t
put_unigram(struct doc *d, struct in *in)
{
    uint32_t n = 2;

    PUT(d, "\"model\":{\"type\":\"Unigram\",\"unk_id\":%u,", byte(in) % 16 ? 0 : byte(in));
    PUT(d, "\"byte_fallback\":%s,\"vocab\":[[\"<unk>\",0],[\"</s>\",0]",
        byte(in) & 1 ? "true" : "false");
    if (byte(in) & 1)
        for (; n < 258; n++) PUT(d, ",[\"<0x%02X>\",0]", n - 2);
    for (uint32_t i = byte(in) % 32; i > 0; i--, n++) {
        char text[64];

        piece(text, byte(in));
        PUT(d, ",[\"%s\",-%u", text, byte(in) % 8);
        PUT(d, ".%u]", byte(in) % 10);
    }
    put(d, "]}}");
    return n;
}

static size_t
build(struct in *in, char *text, bool plain)
{
    struct doc d = { text, 0 };
    uint32_t kind = byte(in) % 3, ids = byte(in);
    bool level = kind == 0;

    put(&d, "{");
    if (!plain) put_normalizer(&d, in);
    if (plain && level)
        put(&d, "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},");
    else if (!plain)
        put_pretok(&d, in, level);
    put_decoder(&d, in, level);
    if (!plain) put_added(&d, in, 400 + ids);
    if (ids & 1)
        PUT(&d,
            "\"post_processor\":{\"type\":\"RobertaProcessing\",\"cls\":[\"</"
            "s>\",%u],\"sep\":[\"<unk>\",0]},",
            ids / 2 % 4);
    if (kind == 2)
        put_unigram(&d, in);
    else
        put_bpe(&d, in, level);
    return d.n;
}

/* ---- the refs */

/* Merge pair by pair: the lowest rank, the leftmost of equals. */
static int
merge_slowly(const struct tokenizer *t, token_id *ids, int n)
{
    for (;;) {
        const struct merge *best = NULL;
        int at = 0;

        for (int i = 0; i + 1 < n; i++)
            for (uint32_t k = 0; k < t->bpe.n_slots; k++) {
                const struct merge *m = &t->bpe.merge[k];

                if (m->rank == UINT32_MAX || m->pair >> 32 != (uint32_t)ids[i] ||
                    (uint32_t)m->pair != (uint32_t)ids[i + 1] || (best && m->rank >= best->rank))
                    continue;
                best = m;
                at = i;
            }
        if (!best) return n;
        ids[at] = best->made;
        memmove(ids + at + 1, ids + at + 2, (size_t)(--n - at - 1) * sizeof *ids);
    }
}

static void
compare_bpe(struct tokenizer *t, const char *word, size_t n)
{
    token_id got[MAX_IDS], want[MAX_IDS];
    int n_want = 0, n_got;
    size_t len;

    for (size_t i = 0; i < n; i += len) {
        token_id id;

        len = t->vocab.byte_level ? 1 : (size_t)utf8_at(word + i, n - i);
        id = vocab_find(&t->vocab, word + i, len);
        if (id < 0) return; /* bytes and unknowns: the oracle's cases have them */
        want[n_want++] = id;
    }
    if (t->bpe.ignore_merges && vocab_find(&t->vocab, word, n) >= 0) return;
    n_want = merge_slowly(t, want, n_want);
    n_got = bpe_word(&t->bpe, &t->vocab, word, n, got, MAX_IDS);
    check(n_got == n_want && memcmp(got, want, (size_t)n_got * sizeof *got) == 0);
}

/* The best sum of scores of all ways to cut word, every piece tried at every place. */
static void
compare_unigram(struct tokenizer *t, const char *word, size_t n)
{
    double best[REF_TEXT + 1], sum = 0, least = INFINITY;
    token_id got[MAX_IDS];
    int n_got = unigram_word(&t->unigram, &t->vocab, word, n, got, MAX_IDS);
    size_t len, at = 0;

    check(n_got > 0);
    for (uint32_t id = 0; id < t->unigram.n; id++) least = fmin(least, t->unigram.score[id]);
    for (size_t i = 1; i <= n; i++) best[i] = -INFINITY;
    best[0] = 0;
    for (size_t i = 0; i < n; i += len) {
        bool covered = false;

        len = (size_t)utf8_at(word + i, n - i);
        for (uint32_t id = 0; id < t->unigram.n; id++) {
            const struct piece *p = vocab_piece(&t->vocab, (token_id)id);

            if (p->len == 0 || p->len > n - i || memcmp(t->vocab.bytes + p->at, word + i, p->len))
                continue;
            best[i + p->len] = fmax(best[i + p->len], best[i] + t->unigram.score[id]);
            covered |= p->len == len;
        }
        if (!covered) best[i + len] = fmax(best[i + len], best[i] + least - 10);
    }
    /* Only where each token is a piece of the word does its sum say which way was gone. */
    for (int i = 0; i < n_got; i++) {
        const struct piece *p = vocab_piece(&t->vocab, got[i]);

        if (got[i] == t->unigram.unk || p->len > n - at ||
            memcmp(t->vocab.bytes + p->at, word + at, p->len))
            return;
        at += p->len;
        sum += t->unigram.score[got[i]];
    }
    check(at == n && fabs(sum - best[n]) <= 1e-9 * (1 + fabs(sum)));
}

/* ---- guarantees */

static void
stream_is_whole(const struct tokenizer *t, const token_id *ids, int n, const char *want, int n_want)
{
    size_t cap = DETOK_HELD + 3 * (size_t)tokenizer_longest(t);
    char *buf = malloc(cap); /* exactly the size that detok.h states */
    struct detok d;
    bool stopped;
    int len = 0;

    check(buf);
    detok_init(&d, t, true);
    for (int i = 0; i <= n; i++) {
        int k = i < n ? detok_add(&d, ids[i], buf, cap, &stopped) : detok_end(&d, buf, cap);

        check(k >= 0 && k <= n_want - len && memcmp(buf, want + len, (size_t)k) == 0);
        for (int b = 0; b < k;) {
            int u = utf8_at(buf + b, (size_t)(k - b));

            check(u > 0);
            b += u;
        }
        len += k;
    }
    check(len == n_want);
    free(buf);
}

static void
examine(struct tokenizer *t, const char *text, size_t n, struct in *choices, bool plain)
{
    static token_id ids[MAX_IDS], random[32];
    static char back[1 << 20], word[REF_TEXT];
    struct err e = { 0 };
    int n_ids = tokenizer_encode(t, text, n, plain, ids, MAX_IDS, &e), len;
    token_id *exact;

    check(vocab_is_sound(&t->vocab) && added_tokens_is_sound(&t->added, &t->vocab));
    check(t->is_unigram ? unigram_is_sound(&t->unigram, &t->vocab)
                        : bpe_is_sound(&t->bpe, &t->vocab));
    if (n_ids < 0) {
        check((n_ids == -EINVAL || n_ids == -EMSGSIZE) && *e.text);
        return;
    }
    exact = malloc(((size_t)n_ids + !n_ids) * sizeof *exact);
    check(exact);
    check(tokenizer_encode(t, text, n, plain, exact, (uint32_t)n_ids, NULL) == n_ids);
    check(memcmp(exact, ids, (size_t)n_ids * sizeof *ids) == 0);
    if (n_ids)
        check(tokenizer_encode(t, text, n, plain, exact, (uint32_t)n_ids - 1, NULL) == -EMSGSIZE);
    free(exact);
    for (int i = 0; i < n_ids; i++) check(vocab_piece(&t->vocab, ids[i]));
    len = tokenizer_decode(t, ids, (uint32_t)n_ids, true, back, sizeof back);
    check(len >= 0);
    if (plain && t->vocab.byte_level) check((size_t)len == n && memcmp(back, text, n) == 0);
    for (size_t i = 0; i < ARRAY_LEN(random); i++)
        random[i] = (token_id)((byte(choices) * 7 + i) % (tokenizer_size(t) + 2));
    len = tokenizer_decode(t, random, ARRAY_LEN(random), true, back, sizeof back);
    if (len >= 0) stream_is_whole(t, random, ARRAY_LEN(random), back, len);
    if (n && n <= sizeof word)
        t->is_unigram ? compare_unigram(t, text, n) : compare_bpe(t, text, n);
    n = 0;
    for (size_t i = 0; i < ARRAY_LEN(random); i++) {
        const struct piece *p = vocab_piece(&t->vocab, random[i]);

        if (!p || p->is_byte || p->special || n + p->len > sizeof word) continue;
        memcpy(word + n, t->vocab.bytes + p->at, p->len);
        n += p->len;
    }
    if (n) t->is_unigram ? compare_unigram(t, word, n) : compare_bpe(t, word, n);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char doc[MAX_DOC], text[MAX_TEXT * 8];
    struct in in = { data, data + size }, choices;
    uint32_t flags = byte(&in), n_choices = byte(&in) % 64;
    struct tokenizer *t = calloc(1, sizeof *t);
    struct err e = { 0 };
    size_t len, n = 0;
    char *exact;
    int r;

    check(t);
    choices = in;
    for (uint32_t i = 0; i < n_choices; i++) {
        uint32_t c = byte(&in);
        const char *s = c & 8 ? others[c % 8] : letters[c % 8];

        for (uint32_t k = 0; k <= c >> 6; k++) {
            memcpy(text + n, s, strlen(s));
            n += strlen(s);
        }
    }
    if (flags & BUILT) {
        len = build(&in, doc, flags & PLAIN);
    } else {
        len = (size_t)(in.end - in.p) < MAX_DOC ? (size_t)(in.end - in.p) : MAX_DOC;
        memcpy(doc, in.p, len);
    }
    exact = malloc(len + !len); /* so that one byte too far is seen */
    check(exact);
    memcpy(exact, doc, len);
    r = tokenizer_json_read(t, exact, len, &e);
    free(exact);
    if (r < 0)
        check((r == -EBADMSG || r == -ENOTSUP || r == -EMSGSIZE) && e.code == r && *e.text);
    else
        examine(t, text, n, &choices, flags & BUILT && flags & PLAIN);
    tokenizer_close(t);
    return 0;
}
