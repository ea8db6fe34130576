/* test_hostile.c - clients that mean harm, each kind for a while: lagand serves the others, whose answers
 * are checked, and its memory stays under a bound. How long the others wait is printed, not asserted. */
#include "base/clock.h"
#include "tests/daemon/fake.h"
#include "tests/daemon/rig.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

enum { REQUESTS = 200, TOKENS = 8, MAX_ATTACKERS = 8 };
/* ZeroMQ keeps up to 64 frames of a connection until we take them (daemon/README.md): of large ones a GiB. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MOST_MIB = 4000, MOST_LARGE_MIB = 6000 }; /* what is freed stays with them for a while */
#else
enum { MOST_MIB = 400, MOST_LARGE_MIB = 2 * 1024 + MOST_MIB };
#endif
static unsigned most_mib = MOST_MIB, n_requests = REQUESTS;

static struct rig r;
static pid_t attackers[MAX_ATTACKERS];
static uint32_t n_attackers;

static void
call_off(void)
{
    while (n_attackers) {
        kill(attackers[--n_attackers], SIGKILL);
        waitpid(attackers[n_attackers], NULL, 0);
    }
}

static int
tear_down(void **state)
{
    (void)state;
    call_off();
    rig_clean(&r);
    return 0;
}

/* ---- the others */

static int
by_size(const void *a, const void *b)
{
    nsec x = *(const nsec *)a, y = *(const nsec *)b;

    return x < y ? -1 : x > y;
}

static unsigned long
most_memory(void)
{
    char path[64], line[256];
    unsigned long kib = 0;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/status", (int)r.pid);
    f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %lu", &kib) == 1) break;
    if (f) fclose(f);
    return kib;
}

/* One request after the other, to its end. */
static void
serve_the_others(const char *what)
{
    static nsec took[REQUESTS];
    struct dealer *c = dial(&r, "api.sock");

    for (uint64_t i = 0; i < n_requests; i++) {
        nsec since = clock_now();

        submit(c, i + 1, 3, TOKENS, i);
        take_all(c, i + 1, TOKENS, i);
        took[i] = clock_now() - since;
    }
    hang_up(c);
    for (uint32_t i = 0; i < n_attackers; i++) /* they have not given up */
        assert_int_equal(waitpid(attackers[i], NULL, WNOHANG), 0);
    qsort(took, n_requests, sizeof *took, by_size);
    fprintf(stderr, "%-22s p50 %5lld us  p99 %6lld us  lagand at most %lu MiB\n", what,
            (long long)(took[n_requests / 2] / NSEC_US),
            (long long)(took[n_requests * 99 / 100] / NSEC_US), most_memory() >> 10);
    assert_in_range(most_memory() >> 10, 0, most_mib);
}

/* ---- the attackers: processes of their own */

static void
attack(void (*how)(void *zmq, const char *api, uint64_t seed))
{
    char api[160];
    pid_t pid;

    snprintf(api, sizeof api, "ipc://%s/api.sock", r.run);
    assert_true(n_attackers < MAX_ATTACKERS);
    pid = fork();
    if (pid == 0) {
        void *zmq = zmq_ctx_new();

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setpriority(PRIO_PROCESS, 0, 19);
        zmq_ctx_set(zmq, ZMQ_MAX_SOCKETS, 4096);
        for (uint64_t seed = n_attackers + 1;; seed += 100) how(zmq, api, seed);
    }
    attackers[n_attackers++] = pid;
}

static void *
connect_to(void *zmq, const char *api, int hwm)
{
    void *s = zmq_socket(zmq, ZMQ_DEALER);
    int zero = 0;

    if (!s) _exit(1);
    zmq_setsockopt(s, ZMQ_LINGER, &zero, sizeof zero);
    zmq_setsockopt(s, ZMQ_RCVHWM, &hwm, sizeof hwm);
    zmq_connect(s, api);
    return s;
}

static void
send_submit(void *s, uint64_t rid, uint32_t n_tokens)
{
    static const int32_t ids[3] = { 1, 2, 3 };
    msgpack_sbuffer b;
    msgpack_packer p;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_SUBMIT, rid, 4);
    msg_key(&p, "ids"), msg_bin(&p, ids, sizeof ids);
    msg_key(&p, "max_tokens"), msgpack_pack_uint32(&p, n_tokens);
    msg_key(&p, "win"), msgpack_pack_int(&p, LAGAN_MAX_WIN);
    msg_key(&p, "logprobs"), msgpack_pack_int(&p, 20);
    zmq_send(s, b.data, b.size, 0);
    msgpack_sbuffer_destroy(&b);
}

/* 64 long requests on each of 8 connections, and not a frame is read; BYE and again. */
static void
never_read(void *zmq, const char *api, uint64_t seed)
{
    void *s[8];

    (void)seed;
    for (int i = 0; i < 8; i++) {
        s[i] = connect_to(zmq, api, 1);
        for (uint64_t rid = 0; rid < 64; rid++) send_submit(s[i], rid, 100000);
    }
    poll(NULL, 0, 1500);
    for (int i = 0; i < 8; i++) zmq_close(s[i]);
}

static void
flood_pings(void *zmq, const char *api, uint64_t seed)
{
    void *s = connect_to(zmq, api, 0);
    char spare[64];

    (void)seed;
    for (int i = 0; i < 100000; i++) {
        zmq_send(s, "\x94\x01\x0c\x05\x80", 5, 0);
        while (zmq_recv(s, spare, sizeof spare, ZMQ_DONTWAIT) >= 0) continue;
    }
    zmq_close(s);
}

static void
flood_nonsense(void *zmq, const char *api, uint64_t seed)
{
    void *s = connect_to(zmq, api, 1);
    uint64_t x = seed;

    for (int i = 0; i < 100000; i++) {
        char junk[64];

        for (size_t k = 0; k < sizeof junk; k++) {
            x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
            junk[k] = (char)(x >> 56);
        }
        if (i % 2) memcpy(junk, "\x94\x01\x03", 3);
        zmq_send(s, junk, x >> 32 & 63, 0);
    }
    zmq_close(s);
}

/* Frames as large as may be: one is good MessagePack to its last byte, with a list that is too long. */
static void
flood_large(void *zmq, const char *api, uint64_t seed)
{
    void *s = connect_to(zmq, api, 1);
    char *frame = calloc(1, LAGAN_MAX_FRAME);

    (void)seed;
    memcpy(frame, "\x94\x01\x03\x05\x81\xa3ids\xdd\x00\xff\xff\x00", 14);
    for (int i = 0; i < 20; i++) zmq_send(s, frame, LAGAN_MAX_FRAME, 0);
    free(frame);
    zmq_close(s);
}

/* 600 at a time that come and say HELLO, and 600 that say nothing at all; gone without a word. */
static void
crowd(void *zmq, const char *api, uint64_t seed)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    void *s[600];
    int fd[600];

    (void)seed;
    snprintf(a.sun_path, sizeof a.sun_path, "%s", api + 6);
    for (int i = 0; i < 600; i++) {
        s[i] = connect_to(zmq, api, 1);
        zmq_send(s[i], "\x94\x01\x01\x00\x80", 5, 0);
        fd[i] = socket(AF_UNIX, SOCK_STREAM, 0);
        if (connect(fd[i], (struct sockaddr *)&a, sizeof a) < 0) poll(NULL, 0, 1);
    }
    poll(NULL, 0, 300);
    for (int i = 0; i < 600; i++) {
        zmq_close(s[i]);
        close(fd[i]);
    }
}

/* ---- each of them */

static uint64_t
counted(const char *what)
{
    struct dealer *c = dial(&r, "ctl.sock");
    uint64_t n;

    call(c, 1, "status", NULL, NULL);
    n = number(msg_get(&hear_type(c, LAGAN_MSG_REPLY, 30000)->map, "result"), what);
    hang_up(c);
    return n;
}

static void
the_others_are_served_and_memory_is_bounded(void **state)
{
    static const struct {
        const char *what;
        void (*how)(void *zmq, const char *api, uint64_t seed);
        const char *counter; /* by which lagand shows that they were there */
        uint32_t least;
    } t[] = { { "never read", never_read, "accepted", REQUESTS + 64 },
              { "flood of pings", flood_pings, "clients", 1 },
              { "flood of nonsense", flood_nonsense, "refused", 1000 },
              { "flood of 16 MiB frames", flood_large, "refused", 10 },
              { "1,200 connections", crowd, "clients", 100 } };

    (void)state;
    rig_start(&r, "good", (const char *const[]){ "--api.ack-timeout", "1s", NULL });
    rig_ready(&r);
    serve_the_others("quiet");
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        uint64_t before = counted(t[i].counter);
        nsec until = clock_now() + 30 * NSEC_S;

        if (t[i].how == flood_large) most_mib = MOST_LARGE_MIB; /* what was most stays so */
        n_requests = t[i].how == flood_large ? REQUESTS / 10 : REQUESTS; /* they take their time */
        attack(t[i].how);
        attack(t[i].how);
        poll(NULL, 0, 300);
        serve_the_others(t[i].what);
        while (counted(t[i].counter) < before + t[i].least && clock_now() < until)
            poll(NULL, 0, 20);
        assert_true(counted(t[i].counter) >= before + t[i].least);
        call_off();
    }
    poll(NULL, 0, 500);
    serve_the_others("quiet again");
    assert_int_equal(rig_stop(&r), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_others_are_served_and_memory_is_bounded, tear_down),
    };

    return cmocka_run_group_tests_name("hostile", tests, NULL, NULL);
}
