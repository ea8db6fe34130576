/* test_channel.c - tests of ipc/channel.h from both ends. */
#include "tests/test.h"

#include "ipc/channel.h"
#include "ipc/records.h"

#include <dirent.h>
#include <unistd.h>

static const uint8_t id[16] = { 3 }, other_id[16] = { 4 };
static struct channel l, peer;
static struct err e;
static int doorbell;

static int
descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static int
setup(void **state)
{
    (void)state;
    assert_int_equal(channel_make(&l, 2, 5, id, 12, 13, &doorbell, &e), 0);
    return 0;
}

static int
teardown(void **state)
{
    (void)state;
    channel_close(&l);
    return 0;
}

static void
send_and_expect(struct channel *from, struct channel *to, uint16_t type, uint32_t len)
{
    struct ring_record rec;
    void *p;

    assert_int_equal(ring_reserve(&from->out, type, 0, len, 0, &p), 0);
    memset(p, 0x5a, len);
    ring_publish(&from->out);
    assert_int_equal(ring_peek(&to->in, &rec), 1);
    assert_int_equal(rec.type, type);
    assert_int_equal(rec.len, len);
    ring_release(&to->in);
}

static void
every_record_type_passes_in_its_direction(void **state)
{
    (void)state;
    assert_int_equal(channel_attach(&peer, dup(l.d.fd), dup(l.w.fd), doorbell, 5, &e), 0);
    send_and_expect(&l, &peer, REC_SUBMIT, sizeof(struct rec_submit) + 200);
    send_and_expect(&l, &peer, REC_CANCEL, sizeof(struct rec_notice));
    send_and_expect(&l, &peer, REC_DRAIN, 0);
    send_and_expect(&l, &peer, REC_SUSPEND, sizeof(struct rec_notice));
    send_and_expect(&l, &peer, REC_TEXT, 300);
    send_and_expect(&peer, &l, REC_READY, sizeof(struct rec_ready) + 64);
    send_and_expect(&peer, &l, REC_STEP, 900);
    send_and_expect(&peer, &l, REC_FINISH, sizeof(struct rec_finish));
    send_and_expect(&peer, &l, REC_REJECT, sizeof(struct rec_reject) + 200);
    send_and_expect(&peer, &l, REC_PHASE, sizeof(struct rec_phase));
    send_and_expect(&peer, &l, REC_PROMPT_LOGPROBS, 900);
    send_and_expect(&peer, &l, REC_TEXT_DONE, 900);
    send_and_expect(&peer, &l, REC_KV_EVENTS, 900);
    channel_close(&peer);
}

static void
record_type_of_the_other_direction_is_corruption(void **state)
{
    struct ring_record rec;
    void *p;

    (void)state;
    assert_int_equal(channel_attach(&peer, dup(l.d.fd), dup(l.w.fd), doorbell, 5, &e), 0);
    assert_int_equal(ring_reserve(&l.out, REC_KV_EVENTS, 0, 8, 0, &p), 0);
    ring_publish(&l.out);
    assert_int_equal(ring_peek(&peer.in, &rec), -EBADMSG);
    channel_close(&peer);
}

static void
each_ring_has_the_requested_size(void **state)
{
    struct channel d;
    int b;

    (void)state;
    assert_int_equal(l.out.cap, 1 << 12);
    assert_int_equal(l.in.cap, 1 << 13);
    assert_int_equal(channel_make(&d, 0, 1, id, 0, 0, &b, &e), 0);
    assert_int_equal(d.out.cap, 1 << SHM_RING_LOG2_D);
    assert_int_equal(d.in.cap, 1 << SHM_RING_LOG2_W);
    channel_close(&d);
    close(b);
}

static void
memfds_of_two_workers_or_daemons_are_rejected(void **state)
{
    struct channel o;
    int b, n;

    (void)state;
    assert_int_equal(channel_make(&o, 1, 5, id, 12, 12, &b, &e), 0);
    n = descriptors();
    assert_int_equal(channel_attach(&peer, dup(l.d.fd), dup(o.w.fd), dup(b), 5, &e), -EBADMSG);
    assert_non_null(strstr(e.text, "belong to workers 2 and 1"));
    assert_int_equal(descriptors(), n);
    channel_close(&o);
    close(b);
    assert_int_equal(channel_make(&o, 2, 5, other_id, 12, 12, &b, &e), 0);
    assert_int_equal(channel_attach(&peer, dup(l.d.fd), dup(o.w.fd), dup(b), 5, &e), -EBADMSG);
    channel_close(&o);
    close(b);
    close(doorbell);
}

static void
failed_attach_closes_the_descriptors(void **state)
{
    int n = descriptors();

    (void)state;
    assert_int_equal(channel_attach(&peer, dup(l.d.fd), dup(l.w.fd), dup(doorbell), 6, &e),
                     -EBADMSG);
    assert_int_equal(channel_attach(&peer, dup(l.w.fd), dup(l.d.fd), dup(doorbell), 5, &e),
                     -EBADMSG);
    assert_int_equal(channel_attach(&peer, dup(l.d.fd), dup(l.d.fd), dup(doorbell), 5, &e),
                     -EBADMSG);
    assert_int_equal(descriptors(), n);
    close(doorbell);
}

static void
close_is_idempotent(void **state)
{
    int n = descriptors();

    (void)state;
    channel_close(&l);
    channel_close(&l);
    assert_int_equal(descriptors(), n - 3);
    close(doorbell);
}

/* Both ends are in this process and have separate descriptors. */
static void
plans_and_replies_pass_between_ranks(void **state)
{
    struct channel made, rank0, rank1;
    int ring[2], n;

    (void)state;
    n = descriptors();
    assert_int_equal(channel_make_plan(&made, 2, 5, id, ring, &e), 0);
    assert_int_equal(channel_attach_leader(&rank0, dup(made.d.fd), dup(made.w.fd), ring[0], 5, &e),
                     0);
    assert_int_equal(channel_attach_rank(&rank1, dup(made.d.fd), dup(made.w.fd), ring[1], 5, &e),
                     0);
    for (unsigned type = PLAN_KV; type <= PLAN_MORE; type++)
        send_and_expect(&rank0, &rank1, type, 24);
    send_and_expect(&rank0, &rank1, PLAN_STEP, 512 << 10);
    send_and_expect(&rank1, &rank0, REPLY_JOIN, 16 << 10);
    send_and_expect(&rank1, &rank0, REPLY_LEFT, 32);
    send_and_expect(&rank1, &rank0, REPLY_READY, 8);
    assert_true(rank0.d.mine && !rank0.w.mine && rank1.w.mine && !rank1.d.mine);
    assert_true(!made.d.mine && !made.w.mine);
    channel_close(&rank0);
    channel_close(&rank1);
    channel_close(&made);
    assert_int_equal(descriptors(), n);
}

static void
plan_ring_of_another_epoch_is_rejected_by_both_ends(void **state)
{
    struct channel made, end;
    int ring[2], n;

    (void)state;
    assert_int_equal(channel_make_plan(&made, 2, 5, id, ring, &e), 0);
    n = descriptors();
    assert_int_equal(
        channel_attach_leader(&end, dup(made.d.fd), dup(made.w.fd), dup(ring[0]), 6, &e), -EBADMSG);
    assert_string_equal(e.text, "shared memory P: the value of header field epoch is invalid");
    assert_int_equal(channel_attach_rank(&end, dup(made.w.fd), dup(made.d.fd), dup(ring[1]), 5, &e),
                     -EBADMSG);
    assert_int_equal(descriptors(), n);
    close(ring[0]);
    close(ring[1]);
    channel_close(&made);
}

int
main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(every_record_type_passes_in_its_direction),
        T(record_type_of_the_other_direction_is_corruption),
        T(each_ring_has_the_requested_size),
        T(memfds_of_two_workers_or_daemons_are_rejected),
        T(failed_attach_closes_the_descriptors),
        T(close_is_idempotent),
        T(plans_and_replies_pass_between_ranks),
        T(plan_ring_of_another_epoch_is_rejected_by_both_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
