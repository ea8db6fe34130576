/* test_worker.c - the worker program alone, with the test in lagand's place at the rings.
 *
 * What lagand's own tests prove with a worker that lies, this proves from the other side: READY says
 * what the model is, records in give records out, a corrupt ring ends it with words, and so does lagand's
 * going away.
 */
#include "include/lagan_wire.h"
#include "ipc/hand.h"
#include "ipc/heritage.h"
#include "ipc/link.h"
#include "ipc/records.h"
#include "tests/test.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEADLINE_MS = 20000 };

struct played {
    struct link link;
    int hand;
    pid_t pid;
    struct ring_record rec;
};

static char exe[1100];

static void
start(struct played *p, const char *model, const char *option)
{
    const uint8_t id[16] = { 7 };
    struct heritage h = { .epoch = 9, .n = 4 };
    int bell, hand[2], from[4];
    char names[256], epoch[64], path[1100];
    const char *top = getenv("srcdir");
    struct err e;

    memset(p, 0, sizeof *p);
    assert_int_equal(link_make(&p->link, 0, 9, id, 20, 20, &bell, &e), 0);
    assert_int_equal(hand_pair(hand, &e), 0);
    p->hand = hand[0];
    from[0] = p->link.d.fd;
    from[1] = p->link.w.fd;
    from[2] = bell;
    from[3] = hand[1];
    for (int i = 0; i < 4; i++) {
        static const char *const name[] = { "d", "w", "bell", "hand" };

        snprintf(h.at[i].name, sizeof h.at[i].name, "%s", name[i]);
        h.at[i].fd = from[i];
    }
    assert_true(heritage_env(&h, names, sizeof names) >= 0);
    snprintf(epoch, sizeof epoch, "LAGAN_EPOCH=9");
    snprintf(path, sizeof path, "--path=%s/%s", top ? top : ".", model);
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (p->pid == 0) {
        char *const argv[] = { exe,
                               path,
                               (char *)(uintptr_t) "--device=cpu",
                               (char *)(uintptr_t) "--kv.memory=4MiB",
                               (char *)(uintptr_t) "--max_num_seqs=4",
                               (char *)(uintptr_t) "--threads=1",
                               (char *)(uintptr_t)option,
                               NULL };
        char *const env[] = { names, epoch, NULL };

        for (int i = 0; i < 4; i++) from[i] = fcntl(from[i], F_DUPFD, 64);
        for (int i = 0; i < 4; i++) dup2(from[i], HERITAGE_FIRST + i);
        for (int i = HERITAGE_FIRST + 4; i < 256; i++) close(i);
        execve(exe, argv, env);
        _exit(127);
    }
    close(bell);
    close(hand[1]);
}

/* The next record, whatever it is. NULL: the worker is gone. */
static const struct ring_record *
next(struct played *p)
{
    for (int waited = 0; waited < DEADLINE_MS; waited += 1000) {
        struct pollfd f = { .fd = p->link.bell.fd, .events = POLLIN };
        int r = ring_peek(&p->link.in, &p->rec);

        assert_true(r >= 0);
        ring_release(&p->link.in);
        bell_ring(&p->link.bell);
        if (r > 0) return &p->rec;
        if (bell_sleep(&p->link.bell, link_ready, &p->link)) poll(&f, 1, 1000);
        bell_wake(&p->link.bell);
        if (bell_drain(&p->link.bell) == -EPIPE && ring_peek(&p->link.in, &p->rec) == 0)
            return NULL;
    }
    fail_msg("the worker said nothing for %d s", DEADLINE_MS / 1000);
    return NULL;
}

static void
wait_ready(struct played *p, struct rec_ready *ready)
{
    const struct ring_record *r;

    while ((r = next(p)) && r->type == REC_PHASE) {
    }
    assert_non_null(r);
    assert_int_equal(r->type, REC_READY);
    memcpy(ready, r->data, sizeof *ready);
}

static void
submit(struct played *p, uint32_t row, const int32_t *ids, uint32_t n, uint32_t max_tokens)
{
    struct rec_submit s = {
        .row = row,
        .gen = 1,
        .id = 1000 + row,
        .n_prompt = n,
        .max_tokens = max_tokens,
        .top_p = 1,
        .repetition = 1,
        .priority = 0.5f,
        .forced_bos = -2,
        .forced_eos = -2,
        .n_eos = 0xffff,
        .flags = SUBMIT_IGNORE_EOS,
    };
    uint32_t bytes = ROUND_UP(n * 4, 8);
    char *to;

    assert_int_equal(
        ring_reserve(&p->link.out, REC_SUBMIT, 0, (uint32_t)sizeof s + bytes, 0, (void **)&to), 0);
    memcpy(to, &s, sizeof s);
    memset(to + sizeof s, 0, bytes);
    memcpy(to + sizeof s, ids, n * 4);
    ring_publish(&p->link.out);
    bell_ring(&p->link.bell);
}

static int
wait_exit(struct played *p)
{
    int status = 0;

    for (int i = 0; i < 1000; i++) {
        if (waitpid(p->pid, &status, WNOHANG) == p->pid) return status;
        usleep(10000);
    }
    kill(p->pid, SIGKILL);
    waitpid(p->pid, &status, 0);
    fail_msg("the worker did not end");
    return status;
}

static void
a_request_gives_its_tokens_in_order_and_one_finish(void **state)
{
    const int32_t ids[] = { 1, 5, 9 };
    struct played p;
    struct rec_ready ready;
    const struct ring_record *r;
    uint32_t tokens = 0;
    void *drain;
    int status;

    (void)state;
    start(&p, "tests/data/golden/llama2", "--dtype=fp32");
    wait_ready(&p, &ready);
    assert_int_equal(ready.vocab, 320);
    assert_int_equal(ready.max_len, 256);
    assert_int_equal(ready.max_source, 0);
    assert_int_equal(ready.has_text, 0);
    submit(&p, 3, ids, 3, 12);
    while ((r = next(&p)) && r->type == REC_STEP) {
        struct rec_step s;
        struct rec_out o;
        int32_t token;

        memcpy(&s, r->data, sizeof s);
        assert_int_equal(s.n_ent, 1);
        memcpy(&o, (const char *)r->data + sizeof s, sizeof o);
        memcpy(&token, (const char *)r->data + sizeof s + sizeof o, sizeof token);
        assert_int_equal(o.row, 3);
        assert_int_equal(o.gen, 1);
        assert_int_equal(o.first, tokens);
        assert_int_equal(o.n_tokens, 1);
        assert_true(token >= 0 && token < 320);
        tokens++;
    }
    assert_int_equal(tokens, 12);
    assert_non_null(r);
    assert_int_equal(r->type, REC_FINISH);
    assert_int_equal(((const struct rec_finish *)r->data)->reason, LAGAN_FINISH_LENGTH);
    assert_int_equal(((const struct rec_finish *)r->data)->n_tokens, 12);

    assert_int_equal(ring_reserve(&p.link.out, REC_DRAIN, 0, 0, 0, &drain), 0);
    ring_publish(&p.link.out);
    bell_ring(&p.link.bell);
    status = wait_exit(&p);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    close(p.hand);
    link_close(&p.link);
}

static void
arenas_come_up_the_hand_socket_complete(void **state)
{
    struct played p;
    struct rec_ready ready;
    struct hand_note note;
    struct err e;
    bool kv = false;
    int fd;

    (void)state;
    start(&p, "tests/data/golden/llama2", "--dtype=fp32");
    wait_ready(&p, &ready);
    while (hand_take(p.hand, &note, &fd, &e) > 0) {
        assert_true(note.flags & HAND_COMPLETE);
        assert_true(note.bytes > 0);
        if (!strcmp(note.name, "kv")) kv = note.bytes == ready.kv_bytes;
        close(fd);
    }
    assert_true(kv);
    kill(p.pid, SIGKILL);
    wait_exit(&p);
    close(p.hand);
    link_close(&p.link);
}

static void
a_corrupt_request_ring_ends_the_worker_and_says_so(void **state)
{
    const int32_t ids[] = { 1 };
    struct played p;
    struct rec_ready ready;
    int status;

    (void)state;
    start(&p, "tests/data/golden/llama2", "--dtype=fp32");
    wait_ready(&p, &ready);
    submit(&p, 1, ids, 1, 0); /* no token asked for: lagand never writes that */
    status = wait_exit(&p);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 70);
    close(p.hand);
    link_close(&p.link);
}

static void
a_worker_whose_lagand_is_gone_ends(void **state)
{
    struct played p;
    struct rec_ready ready;
    int status;

    (void)state;
    start(&p, "tests/data/golden/llama2", "--dtype=fp32");
    wait_ready(&p, &ready);
    close(p.hand);
    link_close(&p.link); /* the bell hangs up */
    status = wait_exit(&p);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void
a_signal_leaves_last_words(void **state)
{
    struct played p;
    struct rec_ready ready;
    int status;

    (void)state;
    start(&p, "tests/data/golden/llama2", "--dtype=fp32");
    wait_ready(&p, &ready);
    kill(p.pid, SIGUSR2); /* a report that is asked for does not stand in the way of the last one */
    for (int i = 0; i < 1000 && atomic_load(&shm_words(&p.link.w)->state) != 2; i++) usleep(10000);
    assert_int_equal(shm_words(&p.link.w)->signal, SIGUSR2);
    kill(p.pid, SIGSEGV);
    status = wait_exit(&p);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(atomic_load(&shm_words(&p.link.w)->state), 2);
    assert_int_equal(shm_words(&p.link.w)->signal, SIGSEGV);
    assert_true(shm_words(&p.link.w)->n_frames > 2);
    close(p.hand);
    link_close(&p.link);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_gives_its_tokens_in_order_and_one_finish),
        cmocka_unit_test(arenas_come_up_the_hand_socket_complete),
        cmocka_unit_test(a_corrupt_request_ring_ends_the_worker_and_says_so),
        cmocka_unit_test(a_worker_whose_lagand_is_gone_ends),
        cmocka_unit_test(a_signal_leaves_last_words),
    };
    ssize_t n = readlink("/proc/self/exe", exe, 1000);
    char *tests_at;

    exe[n > 0 ? n : 0] = 0;
    tests_at = strstr(exe, "/tests/worker/");
    if (!tests_at) return 99;
    strcpy(tests_at, "/lagan-worker");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
