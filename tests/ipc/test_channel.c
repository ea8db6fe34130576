/* test_channel.c - a worker's pair of rings, from both ends. */
#include "tests/test.h"

#include "ipc/channel.h"
#include "ipc/records.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

static const uint8_t id[16] = { 3 }, other_id[16] = { 4 };
static struct channel l, peer;
static struct err e;
static int bell;

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
    assert_int_equal(channel_make(&l, 2, 5, id, 12, 13, &bell, &e), 0);
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
every_type_of_record_passes_its_way(void **state)
{
    (void)state;
    assert_int_equal(channel_attach(&peer, dup(l.d.fd), dup(l.w.fd), bell, 5, &e), 0);
    send_and_expect(&l, &peer, REC_SUBMIT, sizeof(struct rec_submit) + 200);
    send_and_expect(&l, &peer, REC_CANCEL, sizeof(struct rec_row));
    send_and_expect(&l, &peer, REC_DRAIN, 0);
    send_and_expect(&l, &peer, REC_SUSPEND, sizeof(struct rec_row));
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
a_type_of_the_other_direction_is_corruption(void **state)
{
    struct ring_record rec;
    void *p;

    (void)state;
    assert_int_equal(channel_attach(&peer, dup(l.d.fd), dup(l.w.fd), bell, 5, &e), 0);
    assert_int_equal(ring_reserve(&l.out, REC_KV_EVENTS, 0, 8, 0, &p), 0);
    ring_publish(&l.out);
    assert_int_equal(ring_peek(&peer.in, &rec), -EBADMSG);
    channel_close(&peer);
}

static void
each_direction_has_the_size_it_was_asked_for(void **state)
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
segments_of_two_workers_or_daemons_are_no_pair(void **state)
{
    struct channel o;
    int b, n;

    (void)state;
    assert_int_equal(channel_make(&o, 1, 5, id, 12, 12, &b, &e), 0);
    n = descriptors();
    assert_int_equal(channel_attach(&peer, dup(l.d.fd), dup(o.w.fd), dup(b), 5, &e), -EBADMSG);
    assert_non_null(strstr(e.text, "not a pair: worker 2 and 1"));
    assert_int_equal(descriptors(), n);
    channel_close(&o);
    close(b);
    assert_int_equal(channel_make(&o, 2, 5, other_id, 12, 12, &b, &e), 0);
    assert_int_equal(channel_attach(&peer, dup(l.d.fd), dup(o.w.fd), dup(b), 5, &e), -EBADMSG);
    channel_close(&o);
    close(b);
    close(bell);
}

static void
what_cannot_be_attached_is_closed(void **state)
{
    int n = descriptors();

    (void)state;
    assert_int_equal(channel_attach(&peer, dup(l.d.fd), dup(l.w.fd), dup(bell), 6, &e), -EBADMSG);
    assert_int_equal(channel_attach(&peer, dup(l.w.fd), dup(l.d.fd), dup(bell), 5, &e), -EBADMSG);
    assert_int_equal(channel_attach(&peer, dup(l.d.fd), dup(l.d.fd), dup(bell), 5, &e), -EBADMSG);
    assert_int_equal(descriptors(), n);
    close(bell);
}

static void
closing_twice_is_nothing(void **state)
{
    int n = descriptors();

    (void)state;
    channel_close(&l);
    channel_close(&l);
    assert_int_equal(descriptors(), n - 3);
    close(bell);
}

/* Both ends of one process have descriptors of their own. */
static void
plans_and_answers_pass_between_ranks_and_lagand_reads_neither(void **state)
{
    struct channel made, lead, follower;
    int ring[2], n;

    (void)state;
    n = descriptors();
    assert_int_equal(channel_make_plan(&made, 2, 5, id, ring, &e), 0);
    assert_int_equal(channel_lead(&lead, dup(made.d.fd), dup(made.w.fd), ring[0], 5, &e), 0);
    assert_int_equal(channel_follow(&follower, dup(made.d.fd), dup(made.w.fd), ring[1], 5, &e), 0);
    for (unsigned type = PLAN_KV; type <= PLAN_MORE; type++)
        send_and_expect(&lead, &follower, type, 24);
    send_and_expect(&lead, &follower, PLAN_STEP, 512 << 10);
    send_and_expect(&follower, &lead, ANSWER_JOIN, 16 << 10);
    send_and_expect(&follower, &lead, ANSWER_LEFT, 32);
    send_and_expect(&follower, &lead, ANSWER_READY, 8);
    assert_true(lead.d.mine && !lead.w.mine && follower.w.mine && !follower.d.mine);
    assert_true(!made.d.mine && !made.w.mine);
    channel_close(&lead);
    channel_close(&follower);
    channel_close(&made);
    assert_int_equal(descriptors(), n);
}

static void
a_plan_ring_of_another_time_is_refused_by_both_ends(void **state)
{
    struct channel made, end;
    int ring[2], n;

    (void)state;
    assert_int_equal(channel_make_plan(&made, 2, 5, id, ring, &e), 0);
    n = descriptors();
    assert_int_equal(channel_lead(&end, dup(made.d.fd), dup(made.w.fd), dup(ring[0]), 6, &e),
                     -EBADMSG);
    assert_string_equal(e.text, "P: header field epoch is wrong");
    assert_int_equal(channel_follow(&end, dup(made.w.fd), dup(made.d.fd), dup(ring[1]), 5, &e),
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
        T(every_type_of_record_passes_its_way),
        T(a_type_of_the_other_direction_is_corruption),
        T(each_direction_has_the_size_it_was_asked_for),
        T(segments_of_two_workers_or_daemons_are_no_pair),
        T(what_cannot_be_attached_is_closed),
        T(closing_twice_is_nothing),
        T(plans_and_answers_pass_between_ranks_and_lagand_reads_neither),
        T(a_plan_ring_of_another_time_is_refused_by_both_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
