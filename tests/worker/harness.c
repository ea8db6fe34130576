/* harness.c - see harness.h. */
#include "tests/worker/harness.h"

#include "ipc/heritage.h"
#include "tests/test.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEADLINE_MS = 30000, MAX_ARGS = 16 };

static const char *device = "cpu";

void
harness_args(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--device")) device = argv[i + 1];
        if (!strcmp(argv[i], "--only")) cmocka_set_test_filter(argv[i + 1]);
    }
}

bool
harness_on_gpu(void)
{
    return strcmp(device, "cpu") != 0;
}

static uint32_t ring_log2 = 20;

void
harness_ring(uint32_t log2)
{
    ring_log2 = log2;
}

void
harness_start(struct harness *p, const char *model, const char *const *option,
              const struct harness_arenas *left)
{
    const uint8_t id[16] = { 7 };
    struct heritage h = { .epoch = 9, .n = 4 };
    int doorbell, fd_pair[2], from[4];
    char names[256], epoch[64], path[1100], exe[1100], on[64];
    static const char *const of_gpu[] = { "--numerics=invariant", "--kv.memory=64MiB",
                                          "--kv.tokens_per_block=16" };
    char *argv[MAX_ARGS] = { exe, path, on };
    uint32_t n = 3;
    const char *top = getenv("srcdir");
    struct err e;

    memset(p, 0, sizeof *p);
    assert_int_equal(channel_make(&p->channel, 0, 9, id, 20, ring_log2, &doorbell, &e), 0);
    assert_int_equal(fd_channel_pair(fd_pair, &e), 0);
    p->fd_channel = fd_pair[0];
    for (uint32_t i = 0; left && i < left->n; i++)
        assert_int_equal(fd_channel_give(p->fd_channel, &left->note[i], left->fd[i], &e), 0);
    from[0] = p->channel.d.fd;
    from[1] = p->channel.w.fd;
    from[2] = doorbell;
    from[3] = fd_pair[1];
    for (int i = 0; i < 4; i++) {
        static const char *const name[] = { "d", "w", "doorbell", "fd_channel" };

        snprintf(h.at[i].name, sizeof h.at[i].name, "%s", name[i]);
        h.at[i].fd = from[i];
    }
    assert_true(heritage_env(&h, names, sizeof names) >= 0);
    snprintf(epoch, sizeof epoch, "LAGAN_EPOCH=9");
    snprintf(path, sizeof path, "--path=%s%s%s",
             *model == '/' ? ""
             : top         ? top
                           : ".",
             *model == '/' ? "" : "/", model);
    snprintf(on, sizeof on, "--device=%s", device);
    for (; *option && n < MAX_ARGS - 4; option++) argv[n++] = (char *)(uintptr_t)*option;
    assert_null(*option);
    for (uint32_t i = 0; harness_on_gpu() && i < ARRAY_LEN(of_gpu); i++) {
        size_t key = strcspn(of_gpu[i], "=");
        uint32_t k = 3;

        while (k < n && strncmp(argv[k], of_gpu[i], key + 1)) k++;
        argv[k] = (char *)(uintptr_t)of_gpu[i]; /* replaces the test's option */
        n = MAX(n, k + 1);
    }
    test_program(exe, sizeof exe, "lagan-worker");
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (p->pid == 0) {
        char *const env[] = { names, epoch, NULL };

        for (int i = 0; i < 4; i++) from[i] = fcntl(from[i], F_DUPFD, 64);
        for (int i = 0; i < 4; i++) dup2(from[i], HERITAGE_FIRST + i);
        for (int i = HERITAGE_FIRST + 4; i < 256; i++) close(i);
        execve(exe, argv, env);
        _exit(127);
    }
    close(doorbell);
    close(fd_pair[1]);
}

const struct ring_record *
harness_next(struct harness *p)
{
    for (int waited = 0; waited < DEADLINE_MS; waited += 1000) {
        struct pollfd f = { .fd = p->channel.doorbell.fd, .events = POLLIN };
        int r = ring_peek(&p->channel.in, &p->rec);

        assert_true(r >= 0);
        channel_release(&p->channel);
        if (r > 0) return &p->rec;
        if (channel_sleep(&p->channel) > 0) poll(&f, 1, 1000);
        doorbell_wake(&p->channel.doorbell);
        if (doorbell_drain(&p->channel.doorbell) == -EPIPE &&
            ring_peek(&p->channel.in, &p->rec) == 0)
            return NULL;
    }
    fail_msg("the worker sent no record for %d s", DEADLINE_MS / 1000);
    return NULL;
}

uint32_t
harness_finish(struct harness *p, uint32_t *n_tokens)
{
    const struct ring_record *r;

    while ((r = harness_next(p)) && r->type == REC_STEP) {
    }
    assert_non_null(r);
    assert_int_equal(r->type, REC_FINISH);
    *n_tokens = ((const struct rec_finish *)r->data)->n_tokens;
    return ((const struct rec_finish *)r->data)->reason;
}

void
harness_wait_ready(struct harness *p, struct rec_ready *ready)
{
    const struct ring_record *r;

    while ((r = harness_next(p)) && r->type == REC_PHASE) {
    }
    assert_non_null(r);
    assert_int_equal(r->type, REC_READY);
    memcpy(ready, r->data, sizeof *ready);
}

void
harness_submit(struct harness *p, const struct rec_submit *s, const void *tails, uint32_t bytes)
{
    char *to;

    assert_int_equal(
        ring_reserve(&p->channel.out, REC_SUBMIT, 0, (uint32_t)sizeof *s + bytes, 0, (void **)&to),
        0);
    memcpy(to, s, sizeof *s);
    memcpy(to + sizeof *s, tails, bytes);
    channel_publish(&p->channel);
}

void
harness_suspend(struct harness *p, uint32_t row, bool suspend)
{
    struct rec_notice rec = { .ledger_index = row, .gen = 1, .flags = suspend };
    void *to;

    assert_int_equal(ring_reserve(&p->channel.out, REC_SUSPEND, 0, sizeof rec, 0, &to), 0);
    memcpy(to, &rec, sizeof rec);
    channel_publish(&p->channel);
}

int
harness_wait_exit(struct harness *p)
{
    int status = 0;

    for (int i = 0; i < DEADLINE_MS; i++) {
        if (waitpid(p->pid, &status, WNOHANG) == p->pid) return status;
        usleep(1000);
    }
    kill(p->pid, SIGKILL);
    waitpid(p->pid, &status, 0);
    fail_msg("the worker did not exit");
    return status;
}

void
harness_kill(struct harness *p, struct harness_arenas *left)
{
    struct err e;

    kill(p->pid, SIGKILL);
    harness_wait_exit(p);
    memset(left, 0, sizeof *left);
    while (left->n < HARNESS_ARENAS &&
           fd_channel_take(p->fd_channel, &left->note[left->n], &left->fd[left->n], &e) > 0)
        left->n++;
}

void
harness_close_left(struct harness_arenas *left)
{
    while (left->n) close(left->fd[--left->n]);
}

void
harness_close(struct harness *p)
{
    close(p->fd_channel);
    channel_close(&p->channel);
}
