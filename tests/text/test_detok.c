#include "worker/text/detok.h"

#include "base/utf8.h"
#include "tests/test.h"
#include "tests/text/golden.h"

#include <stdio.h>

enum { TEXT_MAX = 4096, MAX_IDS = 256 };

static struct tokenizer *t; /* bpe_bart: 512 pieces, 256 of them single bytes */
static token_id byte_id[256];

static int
open_bart(void **state)
{
    (void)state;
    if (tokenizer_open(&t, golden_path("tests/data/tokenizers/bpe_bart"), NULL) < 0) return -1;
    for (token_id id = 0; (uint32_t)id < tokenizer_size(t); id++) {
        uint32_t n;
        bool special;
        const char *p = tokenizer_piece(t, id, &n, &special);

        if (p && n == 1) byte_id[(unsigned char)*p] = id;
    }
    return 0;
}

static int
close_bart(void **state)
{
    (void)state;
    t = tokenizer_close(t);
    return 0;
}

static bool
is_utf8(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        int k = utf8_at(s + i, n - i);

        if (k <= 0) return false;
        i += (size_t)k;
    }
    return true;
}

/* Adds ids one by one; each output must be complete characters. Returns the total length. */
static int
stream(struct detok *d, const token_id *ids, int n, char *text, bool *stopped)
{
    int len = 0;

    *stopped = false;
    for (int i = 0; i < n && !*stopped; i++) {
        char buf[TEXT_MAX];
        int k = detok_add(d, ids[i], buf, sizeof buf, stopped);

        assert_true(k >= 0);
        assert_true(is_utf8(buf, (size_t)k));
        memcpy(text + len, buf, (size_t)k);
        len += k;
    }
    return len;
}

static int
finish(struct detok *d, char *text)
{
    char buf[TEXT_MAX];
    int k = detok_end(d, buf, sizeof buf);

    assert_true(k >= 0);
    memcpy(text, buf, (size_t)k);
    return k;
}

static int
ids_of_bytes(const char *s, token_id *ids)
{
    int n = (int)strlen(s);

    for (int i = 0; i < n; i++) ids[i] = byte_id[(unsigned char)s[i]];
    return n;
}

static void
only_complete_characters_are_returned(void **state)
{
    static const char text[] = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z";
    static const int ready[] = { 1, 0, 2, 0, 0, 3, 0, 0, 0, 4, 1 };
    token_id ids[16];
    struct detok d;
    bool stopped;

    (void)state;
    detok_init(&d, t, false);
    for (int i = 0, n = ids_of_bytes(text, ids); i < n; i++) {
        char buf[TEXT_MAX];

        assert_int_equal(detok_add(&d, ids[i], buf, sizeof buf, &stopped), ready[i]);
        assert_memory_equal(buf, text + i + 1 - ready[i], (size_t)ready[i]);
    }
    assert_int_equal(finish(&d, (char[TEXT_MAX]){ 0 }), 0);
}

static void
invalid_bytes_become_one_replacement_per_maximal_subpart(void **state)
{
    static const struct {
        const char *bytes, *text;
    } cases[] = {
        { "a\xff"
          "b",
          "a\xef\xbf\xbd"
          "b" },
        { "\xe2\x82"
          "b",
          "\xef\xbf\xbd"
          "b" },
        { "\xe2\x82\xe2\x82\xac", "\xef\xbf\xbd\xe2\x82\xac" },
        { "\xf0\x9f\x98\xff", "\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
        { "x\xf0\x9f", "x\xef\xbf\xbd" },
        { "\xc3", "\xef\xbf\xbd" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        token_id ids[16];
        char text[TEXT_MAX], whole[64];
        struct detok d;
        bool stopped;
        int n = ids_of_bytes(cases[i].bytes, ids), len;

        detok_init(&d, t, false);
        len = stream(&d, ids, n, text, &stopped);
        len += finish(&d, text + len);
        assert_int_equal(len, strlen(cases[i].text));
        assert_memory_equal(text, cases[i].text, (size_t)len);
        assert_int_equal(tokenizer_decode(t, ids, (uint32_t)n, false, whole, sizeof whole), len);
        assert_memory_equal(text, whole, (size_t)len);
    }
}

static void
special_tokens_are_skipped_unless_requested(void **state)
{
    const token_id ids[] = { byte_id['a'], 2, byte_id['b'], -1, 100000 };
    char text[TEXT_MAX];
    struct detok d;
    bool stopped;

    (void)state;
    detok_init(&d, t, false);
    assert_int_equal(stream(&d, ids, 5, text, &stopped), 2);
    assert_memory_equal(text, "ab", 2);
    detok_init(&d, t, true);
    assert_int_equal(stream(&d, ids, 5, text, &stopped), 6);
    assert_memory_equal(text, "a</s>b", 6);
}

static void
possible_stop_prefix_is_held_back(void **state)
{
    token_id ids[32];
    char buf[TEXT_MAX];
    struct detok d;
    bool stopped;

    (void)state;
    detok_init(&d, t, false);
    assert_int_equal(detok_stop(&d, "STOP", 4), 0);
    for (int i = 0, n = ids_of_bytes("aSTxSSTOPb", ids); i < n; i++) {
        static const char *const out[] = { "a", "", "", "STx", "", "S", "", "", "", "" };
        int k = detok_add(&d, ids[i], buf, sizeof buf, &stopped);

        assert_int_equal(k, strlen(out[i]));
        assert_memory_equal(buf, out[i], (size_t)k);
        assert_int_equal(stopped, i >= 8);
    }
    assert_int_equal(finish(&d, buf), 0);
}

static void
held_text_is_returned_at_the_end(void **state)
{
    token_id ids[8];
    char text[TEXT_MAX];
    struct detok d;
    bool stopped;

    (void)state;
    detok_init(&d, t, false);
    assert_int_equal(detok_stop(&d, "\n\nEnd", 5), 0);
    assert_int_equal(stream(&d, ids, ids_of_bytes("a\n\nE\xc3", ids), text, &stopped), 1);
    assert_int_equal(finish(&d, text), 6);
    assert_memory_equal(text, "\n\nE\xef\xbf\xbd", 6);
    assert_int_equal(finish(&d, text), 0);
}

static void
invalid_stop_strings_are_rejected(void **state)
{
    char longest[257];
    struct detok d;

    (void)state;
    memset(longest, 'x', sizeof longest);
    detok_init(&d, t, false);
    assert_int_equal(detok_stop(&d, "", 0), -EINVAL);
    assert_int_equal(detok_stop(&d, longest, 257), -EINVAL);
    assert_int_equal(detok_stop(&d, "\x80", 1), -EINVAL);
    assert_int_equal(detok_stop(&d, "\xc3", 1), -EINVAL);
    for (int i = 0; i < DETOK_MAX_STOPS; i++) assert_int_equal(detok_stop(&d, longest, 256), 0);
    assert_int_equal(detok_stop(&d, "x", 1), -ENOSPC);
}

static void
too_small_buffer_leaves_the_state_unchanged(void **state)
{
    char buf[TEXT_MAX];
    struct detok d, was;
    bool stopped;

    (void)state;
    detok_init(&d, t, false);
    was = d;
    assert_int_equal(detok_add(&d, byte_id['a'], buf, DETOK_HELD, &stopped), -EMSGSIZE);
    assert_int_equal(detok_end(&d, buf, DETOK_HELD - 1), -EMSGSIZE);
    assert_memory_equal(&d, &was, sizeof d);
}

/* Reference: decodes everything, then searches for stops. */
static int
decode_and_search(const struct detok *stops, const token_id *ids, int n, char *text, bool *stopped)
{
    int len = tokenizer_decode(t, ids, (uint32_t)n, stops->keep_special, text, TEXT_MAX);

    assert_true(len >= 0);
    *stopped = false;
    for (int end = 1; end <= len; end++)
        for (int begin = 0; begin < end; begin++)
            for (uint32_t i = 0; i < stops->n_stop; i++)
                if (stops->stop_len[i] == (uint32_t)(end - begin) &&
                    memcmp(text + begin, stops->stop[i], (size_t)(end - begin)) == 0) {
                    *stopped = true;
                    return begin;
                }
    return len;
}

static int
random_ids(token_id *ids)
{
    static const char letters[] = "aabbc \xc3\xa9\xe2\x82\xac";
    int n = (int)test_below(40);

    for (int i = 0; i < n; i++)
        ids[i] = test_below(8) ? byte_id[(unsigned char)letters[test_below(sizeof letters - 1)]]
                               : (token_id)test_below(tokenizer_size(t));
    return n;
}

static void
random_stops(struct detok *d, char stop[4][16])
{
    static const char *const parts[] = { "a",           "b", "c", " ", "\xc3\xa9", "\xe2\x82\xac",
                                         "\xef\xbf\xbd" };

    detok_init(d, t, test_below(2));
    for (uint32_t i = test_below(5); i > 0; i--) {
        char *s = stop[i - 1];

        *s = '\0';
        for (uint32_t k = 1 + test_below(4); k > 0; k--)
            strcat(s, parts[test_below(ARRAY_LEN(parts))]);
        assert_int_equal(detok_stop(d, s, (uint32_t)strlen(s)), 0);
    }
}

static void
any_stream_equals_the_decoded_text_before_its_stop(void **state)
{
    int n_stopped = 0;

    (void)state;
    test_seed();
    for (int round = 0; round < 20000; round++) {
        token_id ids[MAX_IDS];
        char stop[4][16], got[TEXT_MAX], want[TEXT_MAX];
        struct detok d;
        bool stopped, want_stopped;
        int n = random_ids(ids), len, want_len;

        random_stops(&d, stop);
        want_len = decode_and_search(&d, ids, n, want, &want_stopped);
        len = stream(&d, ids, n, got, &stopped);
        len += finish(&d, got + len);
        assert_int_equal(len, want_len);
        assert_memory_equal(got, want, (size_t)len);
        /* A stop may also be completed by the U+FFFD of an incomplete character at the end. */
        assert_true(stopped == want_stopped || (d.stopped && want_stopped));
        n_stopped += stopped;
    }
    assert_in_range(n_stopped, 2000, 18000); /* both outcomes occur */
}

static void
replay_of_delivered_tokens_restores_the_state(void **state)
{
    (void)state;
    test_seed();
    for (int round = 0; round < 5000; round++) {
        token_id ids[MAX_IDS];
        char stop[4][16], whole[TEXT_MAX], lost[TEXT_MAX], rest[TEXT_MAX];
        struct detok d, again;
        bool stopped, lost_stopped;
        int n = random_ids(ids), cut = (int)test_below((uint32_t)n + 1), len, before, after;

        random_stops(&d, stop);
        again = d;
        len = stream(&d, ids, n, whole, &stopped);
        before = stream(&again, ids, cut, lost, &lost_stopped);
        after = lost_stopped ? 0 : stream(&again, ids + cut, n - cut, rest, &lost_stopped);
        assert_int_equal(before + after, len);
        assert_int_equal(lost_stopped, stopped);
        assert_memory_equal(whole, lost, (size_t)before);
        assert_memory_equal(whole + before, rest, (size_t)after);
    }
}

/* The id of a piece as written in the file. */
static token_id
id_of(const struct tokenizer *x, const char *piece)
{
    for (token_id id = 0; (uint32_t)id < tokenizer_size(x); id++) {
        uint32_t n;
        bool special;
        const char *p = tokenizer_piece(x, id, &n, &special);

        if (p && n == strlen(piece) && memcmp(p, piece, n) == 0) return id;
    }
    fail_msg("no piece \"%s\"", piece);
    return -1;
}

/* Pieces and the expected output after each. */
struct steps {
    const char *piece[8], *out[8], *end;
};

static void
check_steps(const char *base, const struct steps *steps, size_t n_steps)
{
    struct tokenizer *bart = t;
    char below[128];

    snprintf(below, sizeof below, "tests/data/tokenizers/%s", base);
    assert_int_equal(tokenizer_open(&t, golden_path(below), NULL), 0);
    for (size_t s = 0; s < n_steps; s++) {
        struct detok d;
        char buf[TEXT_MAX];
        bool stopped;

        detok_init(&d, t, false);
        for (int i = 0; steps[s].piece[i]; i++) {
            int n = detok_add(&d, id_of(t, steps[s].piece[i]), buf, sizeof buf, &stopped);

            assert_int_equal(n, strlen(steps[s].out[i]));
            assert_memory_equal(buf, steps[s].out[i], (size_t)n);
        }
        assert_int_equal(finish(&d, buf), strlen(steps[s].end));
        assert_memory_equal(buf, steps[s].end, strlen(steps[s].end));
    }
    tokenizer_close(t);
    t = bart;
}

#define MARK "\xe2\x96\x81"

static void
byte_tokens_become_characters_or_replacements(void **state)
{
    static const struct steps steps[] = {
        { { "a", "<0xE2>", "<0x82>", "<0xAC>", "b" }, { "a", "", "", "\xe2\x82\xac", "b" }, "" },
        { { "<0x0A>", "<0xE2>", "<0x82>", "b" }, { "\n", "", "", UTF8_BAD UTF8_BAD "b" }, "" },
        { { "<0xFF>", "<0xC3>", "<0x41>" }, { UTF8_BAD, "", UTF8_BAD "A" }, "" },
        { { "a", "<0xF0>", "<0x9F>", "<0x98>" }, { "a", "", "", "" }, UTF8_BAD UTF8_BAD UTF8_BAD },
    };

    (void)state;
    check_steps("spm_gemma", steps, ARRAY_LEN(steps));
    check_steps("spm_llama2", steps, ARRAY_LEN(steps));
}

static void
leading_space_is_removed_once(void **state)
{
    static const struct steps llama[] = {
        { { MARK "t", MARK "t" }, { "t", " t" }, "" },
        { { MARK, MARK, "t" }, { "", " ", "t" }, "" },
        { { "<s>", MARK, "t" }, { "", "", "t" }, "" },
        { { "t", MARK "t" }, { "t", " t" }, "" },
    };
    static const struct steps gemma[] = {
        { { MARK "t", MARK "t" }, { " t", " t" }, "" },
    };
    static const struct steps t5[] = {
        { { MARK "the", MARK "the" }, { "the", " the" }, "" },
        { { MARK, MARK, "t" }, { "", " ", "t" }, "" },
        { { "</s>", MARK, "t" }, { "", "", "t" }, "" },
        { { "t", MARK }, { "t", " " }, "" },
    };

    (void)state;
    check_steps("spm_llama2", llama, ARRAY_LEN(llama));
    check_steps("spm_gemma", gemma, ARRAY_LEN(gemma));
    check_steps("spm_t5", t5, ARRAY_LEN(t5));
    check_steps("spm_mbart", t5, ARRAY_LEN(t5));
}

static int
any_ids(token_id *ids)
{
    int n = (int)test_below(40);

    for (int i = 0; i < n; i++) ids[i] = (token_id)test_below(tokenizer_size(t));
    return n;
}

/* As any_stream_equals_the_decoded_text_before_its_stop for the other decoders, with a replay at
 * each position. */
static void
every_decoder_streams_text_up_to_the_stop(void **state)
{
    static const char *const bases[] = { "spm_gemma", "spm_llama2", "spm_mbart", "spm_t5" };
    struct tokenizer *bart = t;

    (void)state;
    test_seed();
    for (size_t b = 0; b < ARRAY_LEN(bases); b++) {
        int n_stopped = 0;
        char below[128];

        snprintf(below, sizeof below, "tests/data/tokenizers/%s", bases[b]);
        assert_int_equal(tokenizer_open(&t, golden_path(below), NULL), 0);
        for (int round = 0; round < 4000; round++) {
            token_id ids[MAX_IDS];
            char stop[4][16], got[TEXT_MAX], want[TEXT_MAX];
            struct detok d, again;
            bool stopped, want_stopped;
            int n = any_ids(ids), cut = (int)test_below((uint32_t)n + 1), len, want_len;

            random_stops(&d, stop);
            again = d;
            want_len = decode_and_search(&d, ids, n, want, &want_stopped);
            len = stream(&d, ids, n, got, &stopped);
            len += finish(&d, got + len);
            assert_int_equal(len, want_len);
            assert_memory_equal(got, want, (size_t)len);
            assert_true(stopped == want_stopped || (d.stopped && want_stopped));
            n_stopped += stopped;
            len = stream(&again, ids, cut, got, &stopped);
            if (!stopped) len += stream(&again, ids + cut, n - cut, got + len, &stopped);
            len += finish(&again, got + len);
            assert_int_equal(len, want_len);
            assert_memory_equal(got, want, (size_t)len);
        }
        assert_in_range(n_stopped, 400, 3600);
        tokenizer_close(t);
    }
    t = bart;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_complete_characters_are_returned),
        cmocka_unit_test(invalid_bytes_become_one_replacement_per_maximal_subpart),
        cmocka_unit_test(special_tokens_are_skipped_unless_requested),
        cmocka_unit_test(possible_stop_prefix_is_held_back),
        cmocka_unit_test(held_text_is_returned_at_the_end),
        cmocka_unit_test(invalid_stop_strings_are_rejected),
        cmocka_unit_test(too_small_buffer_leaves_the_state_unchanged),
        cmocka_unit_test(any_stream_equals_the_decoded_text_before_its_stop),
        cmocka_unit_test(byte_tokens_become_characters_or_replacements),
        cmocka_unit_test(leading_space_is_removed_once),
        cmocka_unit_test(every_decoder_streams_text_up_to_the_stop),
        cmocka_unit_test(replay_of_delivered_tokens_restores_the_state),
    };

    return cmocka_run_group_tests(tests, open_bart, close_bart);
}
