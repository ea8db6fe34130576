/* test_outbox.c - the outbox moves whole records, in order, and never exceeds its size. */
#include "worker/io/outbox.h"

#include "tests/test.h"

#include <sys/mman.h>

enum { LOG2 = 12, TYPES = 3 };

struct ends {
    struct shm mine, peer; /* memfds of writer and reader */
    struct ring w, r;
    struct outbox o;
};

static const uint32_t max_len[TYPES] = { 0, 4096, 4096 };

static int
setup(void **state)
{
    static struct ends s;
    const uint8_t id[16] = { 1 };
    struct err e;

    memset(&s, 0, sizeof s);
    *state = &s;
    if (shm_make(&s.mine, SHM_D, 0, 1, id, LOG2, &e) < 0) return -1;
    if (shm_make(&s.peer, SHM_D, 0, 1, id, LOG2, &e) < 0) return -1;
    ring_writer(&s.w, &s.mine, &s.peer);
    if (ring_reader(&s.r, &s.peer, &s.mine, max_len, TYPES) < 0) return -1;
    return outbox_open(&s.o, 64 << 10, &e);
}

static int
teardown(void **state)
{
    struct ends *s = *state;

    outbox_close(&s->o);
    ring_done(&s->r);
    ring_done(&s->w);
    shm_close(&s->mine);
    shm_close(&s->peer);
    return 0;
}

static void
record_of_several_parts_arrives_whole_and_padded(void **state)
{
    struct ends *s = *state;
    struct ring_record rec;

    outbox_begin(&s->o, 1);
    outbox_add(&s->o, "abc", 3);
    assert_int_equal(outbox_size(&s->o), 8);
    outbox_add(&s->o, "12345678", 8);
    outbox_end(&s->o);
    assert_int_equal(outbox_flush(&s->o, &s->w), 1);
    assert_true(outbox_empty(&s->o));
    assert_int_equal(ring_peek(&s->r, &rec), 0); /* not visible before it is published */
    ring_publish(&s->w);
    assert_int_equal(ring_peek(&s->r, &rec), 1);
    assert_int_equal(rec.type, 1);
    assert_int_equal(rec.len, 16);
    assert_memory_equal(rec.data, "abc\0\0\0\0\00012345678", 16);
}

static void
records_that_do_not_fit_wait_in_order(void **state)
{
    struct ends *s = *state;
    struct ring_record rec;
    uint32_t want = 0, sent = 0;
    char bytes[400] = { 0 };

    for (uint32_t i = 0; i < 40; i++) {
        memcpy(bytes, &i, sizeof i);
        outbox_put(&s->o, 2, bytes, sizeof bytes);
    }
    assert_int_equal(outbox_flush(&s->o, &s->w), 1);
    assert_false(outbox_empty(&s->o));
    assert_int_equal(outbox_flush(&s->o, &s->w), 0); /* full: no record moves */
    assert_true(outbox_need(&s->o) > ring_free_bytes(&s->w) || outbox_need(&s->o) >= sizeof bytes);
    while (want < 40) {
        ring_publish(&s->w);
        while (ring_peek(&s->r, &rec) == 1) {
            uint32_t got;

            memcpy(&got, rec.data, sizeof got);
            assert_int_equal(got, want++);
        }
        ring_release(&s->r);
        assert_true(outbox_flush(&s->o, &s->w) >= 0);
        assert_true(++sent < 100);
    }
    assert_true(outbox_empty(&s->o));
    assert_int_equal(outbox_need(&s->o), 0);
}

/* A beam search may send 64 MiB of logits at its end, and several may end in one step. */
static void
memory_of_many_records_is_returned(void **state)
{
    enum { BYTES = 400, MANY = 80 << 20 };
    static const char bytes[BYTES];
    struct ends *s = *state;
    struct ring_record rec;
    unsigned char resident;
    struct outbox o;
    struct err e;
    char *last;

    assert_int_equal(outbox_open(&o, MANY + BYTES + 64, &e), 0);
    while (o.used < MANY) outbox_put(&o, 2, bytes, BYTES);
    last = o.base + ROUND_UP((size_t)MANY - 4096, (size_t)4096);
    assert_int_equal(mincore(last, 4096, &resident), 0);
    assert_true(resident & 1);
    while (!outbox_empty(&o)) {
        assert_true(outbox_flush(&o, &s->w) >= 0);
        ring_publish(&s->w);
        while (ring_peek(&s->r, &rec) == 1) assert_int_equal(rec.len, BYTES);
        ring_release(&s->r);
    }
    assert_int_equal(mincore(last, 4096, &resident), 0);
    assert_false(resident & 1);
    outbox_close(&o);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(record_of_several_parts_arrives_whole_and_padded, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(records_that_do_not_fit_wait_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(memory_of_many_records_is_returned, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
