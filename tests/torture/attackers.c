/* attackers.c - see attackers.h. Attacks with many connections or partial frames speak ZMTP
 * directly: 64 bytes of greeting, READY, then frames of flags, length, bytes.
 */
#include "tests/torture/attackers.h"

#include "base/rng.h"
#include "include/lagan_wire.h"
#include "tests/test.h"
#include "wire/msg.h"

#include <endian.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

static pid_t attackers[ATTACKERS];

/* ---- with ZeroMQ */

static void *
dial(const char *path, int hwm)
{
    static void *zmq;
    char endpoint[160];
    int zero = 0;
    void *s;

    if (!zmq) zmq = zmq_ctx_new();
    s = zmq_socket(zmq, ZMQ_DEALER);
    if (!s) _exit(1);
    snprintf(endpoint, sizeof endpoint, "ipc://%s", path);
    zmq_setsockopt(s, ZMQ_LINGER, &zero, sizeof zero);
    zmq_setsockopt(s, ZMQ_RCVHWM, &hwm, sizeof hwm);
    zmq_connect(s, endpoint);
    return s;
}

/* Submits a request for many tokens with log-probabilities and a large ack window. */
static msgpack_sbuffer
long_request(uint64_t rid)
{
    static const int32_t ids[3] = { 1, 2, 3 };
    msgpack_sbuffer b;
    msgpack_packer p;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_SUBMIT, rid, 4);
    msg_key(&p, "ids"), msg_bin(&p, ids, sizeof ids);
    msg_key(&p, "max_tokens"), msgpack_pack_uint32(&p, 100000);
    msg_key(&p, "ack_window"), msgpack_pack_int(&p, LAGAN_MAX_ACK_WINDOW);
    msg_key(&p, "logprobs"), msgpack_pack_int(&p, 20);
    return b;
}

void
attack_never_read(const char *path, uint64_t seed)
{
    void *s[8];

    (void)seed;
    for (int i = 0; i < 8; i++) {
        s[i] = dial(path, 1);
        for (uint64_t rid = 0; rid < 64; rid++) {
            msgpack_sbuffer b = long_request(rid);

            zmq_send(s[i], b.data, b.size, 0);
            msgpack_sbuffer_destroy(&b);
        }
    }
    poll(NULL, 0, 1500);
    for (int i = 0; i < 8; i++) zmq_close(s[i]);
}

void
attack_pings(const char *path, uint64_t seed)
{
    void *s = dial(path, 0);
    char spare[64];

    (void)seed;
    for (int i = 0; i < 100000; i++) {
        zmq_send(s, "\x94\x01\x0c\x05\x80", 5, 0);
        while (zmq_recv(s, spare, sizeof spare, ZMQ_DONTWAIT) >= 0) continue;
    }
    zmq_close(s);
}

void
attack_nonsense(const char *path, uint64_t seed)
{
    void *s = dial(path, 1);

    for (int i = 0; i < 100000; i++) {
        char junk[64];

        for (size_t k = 0; k < sizeof junk; k++) {
            junk[k] = (char)rng_below(&seed, 256);
        }
        if (i % 2) memcpy(junk, "\x94\x01\x03", 3);
        zmq_send(s, junk, rng_below(&seed, sizeof junk), 0);
    }
    zmq_close(s);
}

static void
send_large(const char *path, const void *frame, size_t n)
{
    void *s = dial(path, 1);

    for (int i = 0; i < 20; i++) zmq_send(s, frame, n, 0);
    zmq_close(s);
}

void
attack_large(const char *path, uint64_t seed)
{
    char *frame = calloc(1, LAGAN_MAX_FRAME);

    (void)seed;
    memcpy(frame, "\x94\x01\x03\x05\x81\xa3ids\xdd\x00\xff\xff\x00", 14);
    send_large(path, frame, LAGAN_MAX_FRAME);
    free(frame);
}

void
attack_large_good(const char *path, uint64_t seed)
{
    uint32_t n = LAGAN_MAX_LIST, rest;
    char *frame = calloc(1, LAGAN_MAX_FRAME), *at = frame + 8;

    (void)seed;
    memcpy(frame, "\x94\x01\x03\x05\x82\xa1x\xdd", 8); /* a list under an ignored key, */
    for (int i = 0; i < 4; i++) *at++ = (char)(n >> (24 - 8 * i));
    memcpy(at += n, "\xa3ids\xc6", 5); /* and a prompt longer than any model accepts */
    at += 5;
    rest = (uint32_t)(LAGAN_MAX_FRAME - (at + 4 - frame)) & ~3u;
    for (int i = 0; i < 4; i++) *at++ = (char)(rest >> (24 - 8 * i));
    send_large(path, frame, (size_t)(at - frame) + rest);
    free(frame);
}

/* ---- ZMTP without a library */

/* Connects. stage 0: sends no byte, 1: half of the greeting, 2: greeting and READY. -1: refused. */
static int
connect_raw(const char *path, int stage)
{
    static const char ready[] = "\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06"
                                "DEALER";
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM, 0), r;
    struct timeval timeout = { .tv_sec = 2 };
    char greeting[64] = { (char)0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 1, 'N', 'U', 'L', 'L' };
    char theirs[64];

    if (fd < 0) return -1;
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    do r = connect(fd, (struct sockaddr *)&a, sizeof a);
    while (r < 0 && errno == EAGAIN && poll(NULL, 0, 1) == 0);
    if (r == 0 && stage) r = send(fd, greeting, stage == 1 ? 32 : 64, MSG_NOSIGNAL) < 0;
    if (r == 0 && stage == 2)
        r = recv(fd, theirs, sizeof theirs, MSG_WAITALL) != sizeof theirs ||
            send(fd, ready, sizeof ready - 1, MSG_NOSIGNAL) < 0;
    if (r == 0) return fd;
    close(fd);
    return -1;
}

static void
send_short(int fd, const void *frame, size_t n)
{
    char head[2] = { 0, (char)n };

    if (send(fd, head, 2, MSG_NOSIGNAL | MSG_MORE) == 2 &&
        send(fd, frame, n, MSG_NOSIGNAL) == (ssize_t)n)
        return;
    shutdown(fd, SHUT_RDWR);
}

static bool
send_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t r = send(fd, p, n, MSG_NOSIGNAL);

        if (r <= 0) return false;
        p += r;
        n -= (size_t)r;
    }
    return true;
}

void
attack_never_read_any(const char *path, uint64_t seed)
{
    msgpack_sbuffer b = long_request(1);
    int fd[400];

    (void)seed;
    for (int i = 0; i < 400; i++) {
        fd[i] = connect_raw(path, 2);
        send_short(fd[i], b.data, b.size);
    }
    poll(NULL, 0, 1500);
    for (int i = 0; i < 400; i++) close(fd[i]);
    msgpack_sbuffer_destroy(&b);
}

void
attack_parts(const char *path, uint64_t seed)
{
    const uint32_t n = htobe32(LAGAN_MAX_FRAME);
    char head[9] = { 2 }; /* long frame and its length */
    char *frame = calloc(1, LAGAN_MAX_FRAME);
    int fd[250];

    (void)seed;
    memcpy(head + 5, &n, sizeof n);
    for (int i = 0; i < 250; i++) {
        fd[i] = connect_raw(path, 2);
        if (fd[i] < 0) continue;
        send_short(fd[i], "\x94\x01\x01\x00\x80", 5);
        if (send_all(fd[i], head, sizeof head)) send_all(fd[i], frame, LAGAN_MAX_FRAME - 1);
    }
    poll(NULL, 0, 500);
    for (int i = 0; i < 250; i++) close(fd[i]);
    free(frame);
}

void
attack_endless(const char *path, uint64_t seed)
{
    char part[9 + 65536] = "\x03\0\0\0\0\0\x01\0"; /* more, long, 64 KiB */
    int fd = connect_raw(path, 2);

    (void)seed;
    while (fd >= 0 && send_all(fd, part, sizeof part)) continue;
    close(fd);
}

void
attack_asks(const char *path, uint64_t seed)
{
    static const char call[] = "\x00\x18\x94\x01\x0f\x05\x82\xa4verb\xa7metrics\xa4"
                               "args\x80";
    enum { AT_ONCE = 100, BYTES = sizeof call - 1 };
    char many[AT_ONCE * BYTES], spare[65536];
    int fd = connect_raw(path, 2);

    (void)seed;
    for (size_t i = 0; i < AT_ONCE; i++) memcpy(many + i * BYTES, call, BYTES);
    while (fd >= 0 && send_all(fd, many, sizeof many))
        while (recv(fd, spare, sizeof spare, MSG_DONTWAIT) > 0) continue;
    close(fd);
}

void
attack_crowd(const char *path, uint64_t seed)
{
    enum { MANY = 5000, OWN_FILES = 32 };
    static int fd[MANY];
    struct rlimit files;
    int n;

    (void)seed;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    n = (int)MIN((rlim_t)MANY, files.rlim_cur - OWN_FILES);
    for (int i = 0; i < n; i++) {
        fd[i] = connect_raw(path, i % 3);
        if (fd[i] >= 0 && i % 3 == 2) send_short(fd[i], "\x94\x01\x01\x00\x80", 5);
    }
    poll(NULL, 0, 300);
    for (int i = 0; i < n; i++) close(fd[i]);
}

void
attack_spin(const char *path, uint64_t seed)
{
    (void)path;
    for (volatile uint64_t i = seed; i < seed + 1000000; i++) continue;
}

/* ---- processes */

void
attack_begin(attack_fn *how, const char *path)
{
    for (uint32_t i = 0; i < ATTACKERS; i++) {
        attackers[i] = fork();
        assert_true(attackers[i] >= 0);
        if (attackers[i]) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        check(sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){ 0 }) == 0);
        for (uint64_t seed = i + 1;; seed += 100) how(path, seed);
    }
}

void
attack_check(void)
{
    for (uint32_t i = 0; i < ATTACKERS; i++)
        if (attackers[i]) assert_int_equal(waitpid(attackers[i], NULL, WNOHANG), 0);
}

void
attack_end(void)
{
    for (uint32_t i = 0; i < ATTACKERS; i++) {
        if (!attackers[i]) continue;
        kill(attackers[i], SIGKILL);
        waitpid(attackers[i], NULL, 0);
        attackers[i] = 0;
    }
}
