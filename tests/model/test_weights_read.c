/* test_weights_read.c - reading pieces of checkpoint files with threads. */
#include "gpu/fp.h"
#include "tests/model/tiny_model.h"
#include "tests/test.h"
#include "worker/model/weights_read.h"

static struct err e;

/* Element i of values at any byte. */
static float
loose_element(const void *p, enum dtype t, size_t i)
{
    uint16_t half;
    float x;

    if (t == DT_F32) {
        memcpy(&x, (const char *)p + i * sizeof x, sizeof x);
        return x;
    }
    memcpy(&half, (const char *)p + i * sizeof half, sizeof half);
    return float_of_bf16(half);
}

/* Threads read out of order; pieces are returned in order with correct contents. */
static void
pieces_are_returned_in_order_with_several_readers(void **state)
{
    enum { VALUES = 700001, PIECES = 61, EACH = VALUES / PIECES };
    static const enum dtype wanted[] = { DT_F32, DT_BF16 };
    const char *header =
        "{\"pad\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,6]},"
        "\"t\":{\"dtype\":\"F32\",\"shape\":[700001],\"data_offsets\":[6,2800010]}}";
    struct ckpt c;
    size_t n;
    uint8_t *raw = ckpt_raw(header, 2800010, &n);
    const uint8_t *data = raw + n - 2800010 + 6;

    (void)state;
    ckpt_open(&c);
    for (size_t i = 0; i < VALUES; i++) {
        float x = (float)(i % 251) - 100;

        memcpy(raw + n - 2800010 + 6 + i * sizeof x, &x, sizeof x);
    }
    ckpt_bytes(&c, "model.safetensors", raw, n);
    for (unsigned w = 0; w < ARRAY_LEN(wanted); w++) {
        struct model m = { .gpu = toy_gpu, .op = gpu_ops(toy_gpu) };
        struct read_piece piece[PIECES];
        struct reading *r = NULL;

        assert_int_equal(safetensors_open(&m.files, c.dir, &e), 0);
        for (uint32_t i = 0; i < PIECES; i++)
            piece[i] = (struct read_piece){ safetensors_find(m.files, "t"), i * (uint64_t)EACH,
                                            i % 7 ? EACH : 1 + i, wanted[w] };
        assert_int_equal(weights_read_start(&r, &m, c.dir, piece, PIECES, &e), 0);
        for (uint32_t i = 0; i < PIECES; i++) {
            const void *host;

            if (i >= READ_BEHIND) weights_read_release(r, i + 1 - READ_BEHIND);
            assert_int_equal(weights_read_next(r, &host, &e), 0);
            for (size_t k = 0; k < piece[i].n; k++) {
                float want, got;

                memcpy(&want, data + (piece[i].first + k) * sizeof want, sizeof want);
                got = loose_element(host, wanted[w], k);
                if (got != want) fail_msg("piece %u, element %zu is %g", i, k, (double)got);
            }
        }
        weights_read_stop(r);
        safetensors_close(m.files);
    }
    free(raw);
    ckpt_close(&c);
}

/* The file disappears or changes between reading header and data. */
static void
file_that_changes_during_reading_is_an_error(void **state)
{
    struct model m = { .gpu = toy_gpu, .op = gpu_ops(toy_gpu) };
    struct read_piece piece;
    struct reading *r = NULL;
    const void *host;
    struct ckpt c;

    (void)state;
    ckpt_open(&c);
    toy_add(&c, "", "BF16", "BF16", NULL);
    ckpt_write(&c, "model.safetensors", 8);
    assert_int_equal(safetensors_open(&m.files, c.dir, &e), 0);
    piece = (struct read_piece){ &m.files->tensor[0], 0, 16, DT_BF16 };
    ckpt_text(&c, "model.safetensors", "another");
    assert_int_equal(weights_read_start(&r, &m, c.dir, &piece, 1, &e), 0);
    assert_int_equal(weights_read_next(r, &host, &e), -EBADMSG);
    assert_non_null(strstr(e.text, "changed its size while it was read"));
    weights_read_stop(r);
    safetensors_close(m.files);
    ckpt_close(&c);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_returned_in_order_with_several_readers),
        cmocka_unit_test(file_that_changes_during_reading_is_an_error),
    };

    return cmocka_run_group_tests(tests, toy_open_gpu, toy_close_gpu);
}
