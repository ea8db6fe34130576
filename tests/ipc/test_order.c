/* test_order.c - the memory orders of ring.c and doorbell.c, on a machine that reorders all that
 * C11 allows.
 *
 * An x86 processor hides a missing release or acquire. So this test compiles both files with
 * atomics of its own. Each side has its own image of the shared memory. A store reaches the other
 * side's image late: at a fence(seq_cst) of the storing side, or at a random time. The bytes of
 * the ring arrive only if the store of the tail is a release and the load of it an acquire. The
 * test then weakens one order at a time; each must lead to a lost wake-up or an invalid record.
 *
 * Not modelled: a load that is executed late (the release of the head). */
#include "base/failpoint.h"
#include "ipc/doorbell.h"
#include "ipc/ring.h"
#include "tests/test.h"

#include <stdio.h>
#include <unistd.h>

enum { LOG2 = 12, CAP = 1 << LOG2, MAX_LEN = CAP / 8 - RING_HEADER, EPOCH = 3, TYPE = 1 };
enum { PRODUCER, CONSUMER };
enum { QUEUE = 64, RECORDS = 40, ROUNDS = 400 };

/* A weakened order. */
enum fault { NO_FAULT, TAIL_STORE_RELAXED, TAIL_LOAD_RELAXED, NO_RING_FENCE, NO_SLEEP_FENCE };

struct late_store {
    uint64_t offset, value;
    bool release;
    uint8_t bytes[CAP]; /* of the ring at this store */
};

/* A side: shm[side] is its own memory, shm[!side] its image of the other's. */
static struct side {
    struct shm shm[2];
    struct late_store queue[QUEUE]; /* stores that the other side does not see yet */
    uint32_t n;
    uint8_t arrived[CAP]; /* bytes of the producer's ring, seen after the next acquire */
    struct doorbell doorbell;
    bool asleep, fenced_ring; /* fenced_ring: executes doorbell_ring(), not doorbell_sleep() */
} side[2];

static struct ring out, in;
static enum fault fault;
static int now; /* the side that executes */

static void
flush(int from)
{
    struct side *s = &side[from], *to = &side[!from];

    for (uint32_t i = 0; i < s->n; i++) {
        const struct late_store *q = &s->queue[i];

        if (q->release) memcpy(to->arrived, q->bytes, CAP);
        memcpy((char *)to->shm[from].base + q->offset, &q->value, sizeof q->value);
    }
    s->n = 0;
}

static void
late_store(_Atomic uint64_t *at, uint64_t value, memory_order order)
{
    struct side *s = &side[now];
    struct late_store *q = &s->queue[s->n++];

    assert_true(s->n <= QUEUE);
    if (fault == TAIL_STORE_RELAXED && at == &shm_ctl(&s->shm[now])->tail)
        order = memory_order_relaxed;
    q->offset = (uint64_t)((uintptr_t)at - (uintptr_t)s->shm[now].base);
    q->value = value;
    q->release = now == PRODUCER && order != memory_order_relaxed;
    if (q->release) memcpy(q->bytes, shm_ring(&s->shm[PRODUCER]), CAP);
    memcpy((void *)(uintptr_t)at, &value, sizeof value);
    if (s->n == QUEUE) flush(now);
}

static uint64_t
late_load(const _Atomic uint64_t *at, memory_order order)
{
    struct side *s = &side[now];
    uint64_t value;

    if (fault == TAIL_LOAD_RELAXED) order = memory_order_relaxed;
    if (now == CONSUMER && order != memory_order_relaxed)
        memcpy(shm_ring(&s->shm[PRODUCER]), s->arrived, CAP);
    memcpy(&value, (const void *)(uintptr_t)at, sizeof value);
    return value;
}

static void
late_fence(memory_order order)
{
    if (order != memory_order_seq_cst) return;
    if (fault == NO_RING_FENCE && side[now].fenced_ring) return;
    if (fault == NO_SLEEP_FENCE && !side[now].fenced_ring) return;
    flush(now);
}

#undef atomic_load_explicit
#undef atomic_store_explicit
#undef atomic_thread_fence
#define atomic_load_explicit(at, order) late_load(at, order)
#define atomic_store_explicit(at, value, order) late_store(at, value, order)
#define atomic_thread_fence(order) late_fence(order)
#include "ipc/doorbell.c" /* NOLINT(bugprone-suspicious-include) */
#include "ipc/ring.c"     /* NOLINT(bugprone-suspicious-include) */

static void
set_up(void)
{
    static const uint8_t id[16] = { 7 };
    static const uint32_t max_len[TYPE + 1] = { 0, UINT32_MAX };
    struct err e;
    int fd[2];

    assert_int_equal(doorbell_pair(fd, &e), 0);
    for (int i = 0; i < 2; i++) {
        struct side *s = &side[i];

        memset(s, 0, sizeof *s);
        for (int k = 0; k < 2; k++)
            assert_int_equal(shm_make(&s->shm[k], SHM_D, 0, EPOCH, id, LOG2, &e), 0);
        doorbell_init(&s->doorbell, fd[i], &s->shm[i], &s->shm[!i]);
    }
    ring_writer(&out, &side[PRODUCER].shm[PRODUCER], &side[PRODUCER].shm[CONSUMER]);
    assert_int_equal(ring_reader(&in, &side[CONSUMER].shm[CONSUMER], &side[CONSUMER].shm[PRODUCER],
                                 max_len, TYPE + 1),
                     0);
}

static void
tear_down(void)
{
    ring_done(&in);
    ring_done(&out);
    for (int i = 0; i < 2; i++) {
        close(side[i].doorbell.fd);
        for (int k = 0; k < 2; k++) shm_close(&side[i].shm[k]);
    }
}

static bool
has_space(void *arg)
{
    (void)arg;
    return ring_space_freed(&out);
}

static bool
has_records(void *arg)
{
    (void)arg;
    return !ring_empty(&in);
}

static void
fall_asleep(bool for_space, bool (*ready)(void *))
{
    struct side *s = &side[now];

    s->fenced_ring = false;
    s->asleep = doorbell_sleep(&s->doorbell, for_space, ready, NULL) == 1;
    if (!s->asleep) doorbell_wake(&s->doorbell);
}

/* Returns true if the side is awake; a byte in its socket wakes it. */
static bool
awake(void)
{
    struct side *s = &side[now];
    char byte;

    if (s->asleep && recv(s->doorbell.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1) {
        s->asleep = false;
        doorbell_set_readable(&s->doorbell);
        doorbell_wake(&s->doorbell);
    }
    s->fenced_ring = true;
    return !s->asleep;
}

/* Writes up to 3 records from *n on. */
static void
produce(uint32_t *n)
{
    now = PRODUCER;
    if (!awake() || *n == RECORDS) return;
    for (uint32_t i = 1 + test_below(3); i > 0 && *n < RECORDS; i--) {
        uint32_t len = 4 + test_below(MAX_LEN - 4);
        void *p;

        if (ring_reserve(&out, TYPE, 0, len, 0, &p) < 0) break;
        memset(p, (int)*n, len);
        ++*n;
    }
    ring_publish(&out);
    doorbell_ring(&side[PRODUCER].doorbell);
    if (out.full) fall_asleep(true, has_space);
}

/* Reads all records that the consumer sees. Returns false if one is not as it was written. */
static bool
consume(uint32_t *n)
{
    struct ring_record r;
    int got;

    now = CONSUMER;
    if (!awake()) return true;
    while ((got = ring_peek(&in, &r)) == 1) {
        for (uint32_t i = 0; i < r.len; i++)
            if (((const uint8_t *)r.data)[i] != (uint8_t)*n) return false;
        ++*n;
    }
    ring_release(&in);
    doorbell_ring_space(&side[CONSUMER].doorbell);
    if (got == 0) fall_asleep(false, has_records);
    return got == 0;
}

/* Sends RECORDS records. Returns what went wrong, or NULL. */
static const char *
exchange(void)
{
    uint32_t sent = 0, received = 0, idle = 0;

    while (received < RECORDS) {
        uint32_t before = sent + received;

        if (test_below(2)) {
            produce(&sent);
        } else if (!consume(&received)) {
            return "a record is not as it was written";
        }
        for (int i = 0; i < 2; i++)
            if (test_below(4) == 0) flush(i);
        idle = sent + received == before ? idle + 1 : 0;
        if (idle > 300) return "a wake-up was lost";
    }
    return NULL;
}

/* Returns the number of exchanges until one failed, at most ROUNDS; *why: what went wrong. */
static uint32_t
rounds_until_found(enum fault planted, const char **why)
{
    uint32_t n = 0;

    *why = NULL;
    fault = planted;
    while (!*why && n < ROUNDS) {
        set_up();
        *why = exchange();
        tear_down();
        n++;
    }
    return n;
}

static void
the_orders_in_use_lose_no_wake_up_and_no_record(void **state)
{
    const char *why;

    (void)state;
    rounds_until_found(NO_FAULT, &why);
    if (why) fail_msg("%s", why);
}

static void
each_weakened_order_is_found(void **state)
{
    static const struct {
        enum fault fault;
        const char *name, *why;
    } list[] = {
        { TAIL_STORE_RELAXED, "the store of the tail is relaxed", "a record" },
        { TAIL_LOAD_RELAXED, "the load of the tail is relaxed", "a record" },
        { NO_RING_FENCE, "doorbell_ring() has no fence", "a wake-up" },
        { NO_SLEEP_FENCE, "doorbell_sleep() has no fence", "a wake-up" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(list); i++) {
        const char *why;
        uint32_t n = rounds_until_found(list[i].fault, &why);

        if (!why || strncmp(why, list[i].why, strlen(list[i].why)))
            fail_msg("%s: %s", list[i].name, why ? why : "not found");
        print_message("%s: %s, in exchange %u\n", list[i].name, why, n);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_orders_in_use_lose_no_wake_up_and_no_record),
        cmocka_unit_test(each_weakened_order_is_found),
    };

    return cmocka_run_group_tests(tests, test_seed_group, NULL);
}
