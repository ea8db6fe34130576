/* test_body.c - bodies of requests: lengths, chunks and what is refused. */
#include "gateway/http/body.h"

#include "tests/test.h"

static const struct http_limits limits = { .body_bytes = 4096 };

struct row {
    const char *in;
    size_t n;
    int r;           /* 1: complete; 0: more bytes are needed; -EPROTO */
    int status;      /* of a refusal */
    const char *out; /* the decoded body */
    size_t used;     /* bytes that belong to it */
};

#define BYTES(text) text, sizeof(text) - 1

/* clang-format off */
static const struct row chunked[] = {
    { BYTES("0\r\n\r\n"), 1, 0, "", 5 },
    { BYTES("00000000\r\n\r\n"), 1, 0, "", 12 },
    { BYTES("3\r\nabc\r\n0\r\n\r\n"), 1, 0, "abc", 13 },
    { BYTES("3\r\nabc\r\n0\r\n\r\nGET / HTTP/1.1\r\n"), 1, 0, "abc", 13 },
    { BYTES("1\r\na\r\n00A\r\n0123456789\r\n0\r\n\r\n"), 1, 0, "a0123456789", 28 },
    { BYTES("a\r\n\r\n0\r\n\r\n\r\nx\r\n0\r\n\r\n"), 1, 0, "\r\n0\r\n\r\n\r\nx", 20 },
    { BYTES(""), 0, 0, "", 0 },
    { BYTES("3"), 0, 0, "", 1 },
    { BYTES("3\r\nab"), 0, 0, "ab", 5 },
    { BYTES("3\r\nabc\r\n0\r\n\r"), 0, 0, "abc", 12 },
    { BYTES("0x2\r\nab\r\n"), -EPROTO, 400, "", 0 },
    { BYTES("-1\r\n"), -EPROTO, 400, "", 0 },
    { BYTES("+1\r\n"), -EPROTO, 400, "", 0 },
    { BYTES(" 1\r\n"), -EPROTO, 400, "", 0 },
    { BYTES("1 \r\n"), -EPROTO, 400, "", 0 },
    { BYTES("\r\n"), -EPROTO, 400, "", 0 },
    { BYTES("g\r\n"), -EPROTO, 400, "", 0 },
    { BYTES("\0\r\n"), -EPROTO, 400, "", 0 },
    { BYTES("ffffffffffffffff\r\n"), -EPROTO, 400, "", 0 },
    { BYTES("000000001\r\na"), -EPROTO, 400, "", 0 },
    { BYTES("1;ext=1\r\na\r\n"), -EPROTO, 400, "", 0 },
    { BYTES("1;\r\na\r\n"), -EPROTO, 400, "", 0 },
    { BYTES("1\na\n"), -EPROTO, 400, "", 0 },
    { BYTES("1\r\r\n"), -EPROTO, 400, "", 0 },
    { BYTES("1\r\na\n"), -EPROTO, 400, "a", 0 },
    { BYTES("1\r\na\rb"), -EPROTO, 400, "a", 0 },
    { BYTES("1\r\nab\r\n"), -EPROTO, 400, "a", 0 },
    { BYTES("1\r\na0\r\n\r\n"), -EPROTO, 400, "a", 0 },
    { BYTES("0\r\nTrailer: x\r\n\r\n"), -EPROTO, 400, "", 0 },
    { BYTES("0\r\n\n"), -EPROTO, 400, "", 0 },
    { BYTES("0\r\n\rX"), -EPROTO, 400, "", 0 },
    { BYTES("1001\r\n"), -EPROTO, 413, "", 0 },
    { BYTES("ffffffff\r\n"), -EPROTO, 413, "", 0 },
    { BYTES("3\r\nabc\r\nffe\r\n"), -EPROTO, 413, "abc", 0 },
};

static const struct row lengths[] = {   /* of 5 bytes */
    { BYTES("abcde"), 1, 0, "abcde", 5 },
    { BYTES("abcdefgh"), 1, 0, "abcde", 5 },
    { BYTES("a\0b\r\n"), 1, 0, "a\0b\r\n", 5 },
    { BYTES("abcd"), 0, 0, "abcd", 4 },
    { BYTES(""), 0, 0, "", 0 },
};
/* clang-format on */

/* Decodes in place, first bytes at first, then `each` bytes at a time, as conn.c does. */
static int
decode(const struct http_head *h, const struct row *row, size_t first, size_t each, char *out,
       size_t *n_out, size_t *used, struct http_fault *f)
{
    struct http_body b;
    char in[256];
    size_t at = 0, raw = 0, end = 0; /* out: in[0 .. end); not decoded: in[raw ..) */
    int r;

    body_init(&b, h);
    *used = 0;
    for (size_t n = MIN(first, row->n);; n = MIN(each, row->n - at)) {
        size_t one_used, one_out;

        memcpy(in + raw, row->in + at, n);
        at += n;
        r = body_decode(&b, in + raw, n, &one_used, in + end, &one_out, &limits, f);
        *used += one_used;
        end += one_out;
        assert_int_equal(b.n, end);
        assert_int_equal(b.is_complete, r == 1);
        if (r || at == row->n) break;
        assert_int_equal(one_used, n);
        raw = end;
    }
    memcpy(out, in, end);
    *n_out = end;
    return r;
}

static void
check_rows(const struct http_head *h, const struct row *rows, size_t n_rows)
{
    for (size_t i = 0; i < n_rows; i++) {
        const struct row *row = &rows[i];

        for (size_t first = 0; first <= row->n; first++) {
            for (int step = 0; step < 2; step++) {
                struct http_fault f = { .status = 0 };
                char out[256];
                size_t n, used;
                int r = decode(h, row, first, step ? 1 : row->n, out, &n, &used, &f);

                if (r != row->r || f.status != row->status || memcmp(out, row->out, n))
                    fail_msg("%s in pieces of %zu: %d, status %d %s, body %.*s", row->in, first, r,
                             f.status, f.status ? f.sentence : "", (int)n, out);
                if (r == 0 || r == 1) assert_int_equal(used, row->used);
            }
        }
    }
}

static void
chunks_are_decoded_or_refused_however_they_arrive(void **state)
{
    const struct http_head h = { .is_chunked = true };

    (void)state;
    check_rows(&h, chunked, ARRAY_LEN(chunked));
}

static void
a_body_ends_at_its_length(void **state)
{
    const struct http_head h = { .has_length = true, .length = 5 };

    (void)state;
    check_rows(&h, lengths, ARRAY_LEN(lengths));
}

static void
a_request_without_a_body_is_complete_at_once(void **state)
{
    const struct http_head h = { .has_length = true };
    struct http_body b;

    (void)state;
    body_init(&b, &h);
    assert_true(b.is_complete);
}

static void
the_sum_of_chunks_may_reach_the_limit(void **state)
{
    const struct http_head h = { .is_chunked = true };
    struct http_body b;
    struct http_fault f;
    char out[2048], data[2048] = "800\r\n";
    size_t used, n;

    (void)state;
    body_init(&b, &h);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(body_decode(&b, "800\r\n", 5, &used, out, &n, &limits, &f), 0);
        assert_int_equal(body_decode(&b, data, 2048, &used, out, &n, &limits, &f), 0);
        assert_int_equal(n, 2048);
        assert_int_equal(body_decode(&b, "\r\n", 2, &used, out, &n, &limits, &f), 0);
    }
    assert_int_equal(body_decode(&b, "0\r\n\r\n", 5, &used, out, &n, &limits, &f), 1);
    body_init(&b, &h);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(body_decode(&b, "800\r\n", 5, &used, out, &n, &limits, &f), 0);
        assert_int_equal(body_decode(&b, data, 2048, &used, out, &n, &limits, &f), 0);
        assert_int_equal(body_decode(&b, "\r\n", 2, &used, out, &n, &limits, &f), 0);
    }
    assert_int_equal(body_decode(&b, "1\r\n", 3, &used, out, &n, &limits, &f), -EPROTO);
    assert_int_equal(f.status, 413);
}

static void
slow_bodies_are_found_after_10_s(void **state)
{
    struct http_rate r = { .since = 5 };

    (void)state;
    assert_true(body_rate_count(&r, 5, 1, 1024));
    assert_true(body_rate_count(&r, 5 + 9 * NSEC_S, 1, 1024));
    assert_false(body_rate_count(&r, 5 + 10 * NSEC_S, 100000, 1024));
    r = (struct http_rate){ .since = 5 };
    assert_true(body_rate_count(&r, 5 + NSEC_S, 10240, 1024));
    assert_true(body_rate_count(&r, 5 + 11 * NSEC_S, 1, 1024));
    assert_true(body_rate_count(&r, 5 + 20 * NSEC_S, 1, 1024));
    assert_false(body_rate_count(&r, 5 + 21 * NSEC_S, 1, 1024));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_are_decoded_or_refused_however_they_arrive),
        cmocka_unit_test(a_body_ends_at_its_length),
        cmocka_unit_test(a_request_without_a_body_is_complete_at_once),
        cmocka_unit_test(the_sum_of_chunks_may_reach_the_limit),
        cmocka_unit_test(slow_bodies_are_found_after_10_s),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
