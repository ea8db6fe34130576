/* lagand_fixture.c - see lagand_fixture.h. */
#include "tests/daemon/lagand_fixture.h"

#include "base/clock.h"
#include "tests/daemon/fake.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

/* Timeout of every wait: only a hang takes that long, even on a busy machine. */
enum { MAX_ARGS = 32, TIMEOUT_MS = 30000 };

/* ---- lagand */

static bool
is_among(const char *const *args, const char *option)
{
    while (args && *args && strcmp(*args, option)) args++;
    return args && *args;
}

static void
become_lagand(const struct lagand_fixture *r, const char *const *args)
{
    char lagand[600], worker[600];
    const char *const ours[][2] = { { "--runtime-dir", r->run },
                                    { "--model", r->model },
                                    { "--worker", worker },
                                    { "--device", "cpu" } };
    const char *argv[MAX_ARGS] = { lagand, "--foreground" };
    int n = 2, log = open(r->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    char *plain[MAX_ARGS];

    test_program(lagand, sizeof lagand, "lagand");
    test_program(worker, sizeof worker, "tests/daemon/fake_worker");
    for (size_t i = 0; i < ARRAY_LEN(ours); i++) {
        /* The test sets it, or its file does. */
        if (is_among(args, ours[i][0]) || (i % 2 && is_among(args, "--config"))) continue;
        argv[n++] = ours[i][0];
        argv[n++] = ours[i][1];
    }
    while (args && *args && n < MAX_ARGS - 1) argv[n++] = *args++;
    argv[n] = NULL;
    memcpy(plain, argv, sizeof plain);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(log, 1);
    dup2(log, 2);
    execv(lagand, plain);
    _exit(126);
}

static struct lagand_fixture *started; /* a failed test leaves no process */

void
lagand_start(struct lagand_fixture *r, const char *mode, const char *const *args)
{
    started = r;
    if (!*r->dir) {
        strcpy(r->dir, "/tmp/lagand-test-XXXXXX");
        assert_non_null(mkdtemp(r->dir));
        snprintf(r->run, sizeof r->run, "%s/run", r->dir);
        snprintf(r->log, sizeof r->log, "%s/log", r->dir);
        systemd_open(&r->systemd, r->dir);
        r->zmq = zmq_ctx_new();
    }
    snprintf(r->model, sizeof r->model, "%s/%s", r->dir, mode);
    mkdir(r->model, 0700);
    r->pid = systemd_fork(&r->systemd);
    if (r->pid == 0) become_lagand(r, args);
}

void
lagand_crash(struct lagand_fixture *r, const char *mode, const char *const *args)
{
    assert_int_equal(kill(r->pid, SIGKILL), 0);
    assert_int_equal(lagand_wait(r, 5000), 256 + SIGKILL);
    lagand_start(r, mode, args);
}

bool
lagand_notified(struct lagand_fixture *r, const char *word, int ms)
{
    nsec until = clock_now() + (ms ? MAX(ms, TIMEOUT_MS) : 0) * NSEC_MS;

    for (;;) {
        if (systemd_notified(&r->systemd, word)) return true;
        if (clock_now() >= until || waitpid(r->pid, NULL, WNOHANG | WNOWAIT) > 0) return false;
        poll(NULL, 0, 2);
    }
}

/* Returns the content of the log; "": there is none. */
static const char *
log_text(const struct lagand_fixture *r)
{
    static char text[1 << 20];
    FILE *f = fopen(r->log, "r");

    text[f ? fread(text, 1, sizeof text - 1, f) : 0] = 0;
    if (f) fclose(f);
    return text;
}

int
lagand_count(struct lagand_fixture *r, const char *words)
{
    int n = 0;

    for (const char *at = log_text(r); (at = strstr(at, words)); at++) n++;
    return n;
}

bool
lagand_logged(struct lagand_fixture *r, const char *words, int ms)
{
    nsec until = clock_now() + (ms ? MAX(ms, TIMEOUT_MS) : 0) * NSEC_MS;

    do {
        if (strstr(log_text(r), words)) return true;
        poll(NULL, 0, 10);
    } while (clock_now() < until);
    return false;
}

static void
print_log(struct lagand_fixture *r)
{
    char line[512];
    FILE *f = fopen(r->log, "r");

    while (f && fgets(line, sizeof line, f)) fprintf(stderr, "    %s", line);
    if (f) fclose(f);
}

void
lagand_ready(struct lagand_fixture *r)
{
    if (lagand_notified(r, "READY=1", 8000)) return;
    print_log(r);
    fail_msg("lagand is not ready");
}

void
lagand_begin(struct lagand_fixture *r, const char *mode, const char *const *args)
{
    lagand_start(r, mode, args);
    lagand_ready(r);
}

int
lagand_wait(struct lagand_fixture *r, int ms)
{
    nsec until = clock_now() + (ms < 1000 ? ms : MAX(ms, TIMEOUT_MS)) * NSEC_MS;
    int status;

    while (waitpid(r->pid, &status, WNOHANG) != r->pid) {
        if (clock_now() >= until) return -1;
        poll(NULL, 0, 5);
    }
    r->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

uint32_t
lagand_n_workers(const struct lagand_fixture *r)
{
    DIR *d = opendir("/proc");
    uint32_t n = 0;

    for (struct dirent *f; (f = readdir(d));) {
        char path[300], line[4096] = "";
        FILE *c;

        if (*f->d_name < '0' || *f->d_name > '9') continue;
        snprintf(path, sizeof path, "/proc/%s/cmdline", f->d_name);
        c = fopen(path, "r");
        if (!c) continue;
        for (size_t i = 0, k = fread(line, 1, sizeof line - 1, c); i < k; i++) {
            if (!line[i]) line[i] = ' ';
        }
        fclose(c);
        n += strstr(line, "fake_worker --worker") && strstr(line, r->dir);
    }
    closedir(d);
    return n;
}

void
lagand_await_workers(const struct lagand_fixture *r, uint32_t n)
{
    nsec until = clock_now() + TIMEOUT_MS * NSEC_MS;
    uint32_t is;

    while ((is = lagand_n_workers(r)) != n) {
        if (clock_now() >= until) fail_msg("%u processes, not %u", is, n);
        poll(NULL, 0, 5);
    }
}

int
lagand_stop(struct lagand_fixture *r)
{
    char path[128];
    int code;

    assert_int_equal(kill(r->pid, SIGTERM), 0);
    code = lagand_wait(r, TIMEOUT_MS);
    if (code) print_log(r);
    assert_int_equal(lagand_n_workers(r), 0);
    snprintf(path, sizeof path, "%s/api.sock", r->run);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_not_equal(access(r->run, F_OK), 0); /* lagand made it */
    return code;
}

void
lagand_clean(struct lagand_fixture *r)
{
    char command[128];

    if (!*r->dir) return;
    if (r->pid > 0) {
        print_log(r);
        kill(r->pid, SIGKILL);
        waitpid(r->pid, NULL, 0);
    }
    systemd_close(&r->systemd);
    dealers_close();
    zmq_ctx_term(r->zmq);
    snprintf(command, sizeof command, "rm -rf '%s'", r->dir);
    if (system(command)) fprintf(stderr, "%s: not removed\n", r->dir);
    memset(r, 0, sizeof *r);
}

int
lagand_tear_down(void **state)
{
    (void)state;
    if (started) lagand_clean(started);
    return 0;
}

/* ---- clients */

enum { MAX_DEALERS = 64 };
static struct dealer *dealers[MAX_DEALERS]; /* open connections, closed after a failed test */

struct dealer {
    void *socket;
    zmq_msg_t frame;
    bool has_frame;
    struct msg msg;
};

struct dealer *
dealer_open_small(struct lagand_fixture *r, const char *listener, int frames)
{
    struct dealer *c = calloc(1, sizeof *c);
    char endpoint[160];
    int zero = 0, bytes = frames * 64, never = -1;

    assert_non_null(c);
    snprintf(endpoint, sizeof endpoint, "ipc://%s/%s", r->run, listener);
    c->socket = zmq_socket(r->zmq, ZMQ_DEALER);
    zmq_setsockopt(c->socket, ZMQ_LINGER, &zero, sizeof zero);
    zmq_setsockopt(c->socket, ZMQ_SNDHWM, &zero, sizeof zero);
    zmq_setsockopt(c->socket, ZMQ_RCVHWM, &frames, sizeof frames);
    if (frames) zmq_setsockopt(c->socket, ZMQ_RCVBUF, &bytes, sizeof bytes);
    if (frames) zmq_setsockopt(c->socket, ZMQ_RECONNECT_IVL, &never, sizeof never);
    assert_int_equal(zmq_connect(c->socket, endpoint), 0);
    for (int i = 0; i < MAX_DEALERS; i++) {
        if (dealers[i]) continue;
        dealers[i] = c;
        return c;
    }
    fail_msg("more than %d clients", MAX_DEALERS);
    return NULL;
}

static void
forget(struct dealer *c)
{
    if (!c->has_frame) return;
    msg_done(&c->msg);
    zmq_msg_close(&c->frame);
    c->has_frame = false;
}

struct dealer *
dealer_open(struct lagand_fixture *r, const char *listener)
{
    return dealer_open_small(r, listener, 0);
}

void
dealer_close(struct dealer *c)
{
    for (int i = 0; i < MAX_DEALERS; i++) {
        if (dealers[i] == c) dealers[i] = NULL;
    }
    forget(c);
    zmq_close(c->socket);
    free(c);
}

void
dealers_close(void)
{
    for (int i = 0; i < MAX_DEALERS; i++) {
        if (dealers[i]) dealer_close(dealers[i]);
    }
}

void
send_bytes(struct dealer *c, const void *p, size_t n)
{
    assert_int_equal(zmq_send(c->socket, p, n, 0), n);
}

void
send_keys(struct dealer *c, uint32_t type, uint64_t rid, const struct key *keys, uint32_t n)
{
    msgpack_sbuffer b;
    msgpack_packer p;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, type, rid, n);
    for (uint32_t i = 0; i < n; i++) {
        msg_key(&p, keys[i].key);
        if (!strcmp(keys[i].key, "ids")) {
            int32_t *ids = calloc((size_t)keys[i].v + 1, 4);

            for (int64_t k = 0; k < keys[i].v; k++) ids[k] = (int32_t)(k % (FAKE_VOCAB - 1));
            msg_bin(&p, ids, (size_t)keys[i].v * 4);
            free(ids);
        } else if (keys[i].v == FALSE_KEY) {
            msgpack_pack_false(&p);
        } else {
            msgpack_pack_int64(&p, keys[i].v);
        }
    }
    send_bytes(c, b.data, b.size);
    msgpack_sbuffer_destroy(&b);
}

void
call(struct dealer *c, uint64_t rid, const char *verb, const char *key, const char *value)
{
    msgpack_sbuffer b;
    msgpack_packer p;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_CALL, rid, 2);
    msg_key(&p, "verb");
    msg_text(&p, verb);
    msg_key(&p, "args");
    msgpack_pack_map(&p, key ? 1 : 0);
    if (key) {
        msg_key(&p, key);
        msg_text(&p, value);
    }
    send_bytes(c, b.data, b.size);
    msgpack_sbuffer_destroy(&b);
}

bool
silent(struct dealer *c, int ms)
{
    zmq_pollitem_t p = { .socket = c->socket, .events = ZMQ_POLLIN };

    return zmq_poll(&p, 1, ms) == 0;
}

const struct msg *
receive(struct dealer *c, int ms)
{
    struct err e;

    forget(c);
    if (silent(c, MAX(ms, TIMEOUT_MS))) fail_msg("no frame within %d ms", TIMEOUT_MS);
    zmq_msg_init(&c->frame);
    assert_true(zmq_msg_recv(&c->frame, c->socket, 0) >= 0);
    if (msg_decode(&c->msg, zmq_msg_data(&c->frame), zmq_msg_size(&c->frame), &e) < 0) {
        fail_msg("lagand sent an invalid message: %s", e.text);
    }
    c->has_frame = true;
    return &c->msg;
}

const struct msg *
receive_type(struct dealer *c, uint32_t type, int ms)
{
    const struct msg *m = receive(c, ms);

    if (m->type != type) {
        fail_msg("received type %u, expected %u: %s", m->type, type, text_of(&m->map, "message"));
    }
    return m;
}

uint32_t
open_requests(struct dealer *c, uint64_t rid)
{
    const struct msg *m;

    call(c, rid, "status", NULL, NULL);
    m = receive_type(c, LAGAN_MSG_REPLY, TIMEOUT_MS);
    return (uint32_t)number(msg_get(&m->map, "result"), "requests");
}

uint64_t
number(const msgpack_object *map, const char *key)
{
    uint64_t v;

    if (msg_u64(map, key, &v) < 0) fail_msg("there is no number %s", key);
    return v;
}

const char *
text_of(const msgpack_object *map, const char *key)
{
    static char text[4][512];
    static unsigned at;
    struct msg_span s = { "", 0 };

    at = (at + 1) % 4;
    msg_str(map, key, &s);
    snprintf(text[at], sizeof text[at], "%.*s", (int)MIN(s.n, 500u), s.p);
    return text[at];
}

void
receive_error(struct dealer *c, uint64_t rid, uint32_t code, const char *words, int ms)
{
    const struct msg *m = receive_type(c, LAGAN_MSG_ERROR, ms);

    if (m->rid != rid || number(&m->map, "code") != code ||
        !strstr(text_of(&m->map, "message"), words)) {
        fail_msg("rid %llu, %s: \"%s\"; expected rid %llu, %s: \"%s\"", (unsigned long long)m->rid,
                 text_of(&m->map, "reason_name"), text_of(&m->map, "message"),
                 (unsigned long long)rid, msg_reason(code, NULL), words);
    }
    assert_string_equal(text_of(&m->map, "reason_name"), msg_reason(code, NULL));
}

void
submit(struct dealer *c, uint64_t rid, uint32_t n_ids, uint32_t max_tokens, uint64_t seed)
{
    SEND(c, LAGAN_MSG_SUBMIT, rid, { "ids", n_ids }, { "max_tokens", max_tokens },
         { "seed", (int64_t)seed });
    assert_int_equal(receive_type(c, LAGAN_MSG_ACCEPT, 5000)->rid, rid);
}

uint32_t
take_chunk(const struct msg *m, uint32_t at, uint64_t seed)
{
    struct msg_span t, s;
    uint32_t n;

    assert_int_equal(number(&m->map, "i"), at);
    assert_int_equal(number(&m->map, "o"), 0);
    assert_int_equal(msg_str(&m->map, "t", &t), 0);
    assert_int_equal(msg_str(&m->map, "s", &s), 0);
    n = t.n / 4;
    assert_int_equal(s.n, n);
    for (uint32_t i = 0; i < n; i++) {
        int32_t id;

        memcpy(&id, t.p + 4 * i, 4);
        assert_int_equal(id, fake_token(seed, at + i));
        assert_int_equal(s.p[i], fake_letter(id));
    }
    return at + n;
}

uint32_t
take_all(struct dealer *c, uint64_t rid, uint32_t max_tokens, uint64_t seed)
{
    uint32_t at = 0, n = 0;

    for (;;) {
        const struct msg *m = receive(c, 5000);

        if (m->type == LAGAN_MSG_PING) continue;
        assert_int_equal(m->rid, rid);
        if (m->type == LAGAN_MSG_DONE) break;
        if (m->type != LAGAN_MSG_CHUNK) fail_msg("%s", text_of(&m->map, "message"));
        assert_int_equal(number(&m->map, "n"), ++n);
        at = take_chunk(m, at, seed);
        SEND(c, LAGAN_MSG_ACK, rid, { "n", n });
    }
    assert_int_equal(at, max_tokens);
    return n;
}
