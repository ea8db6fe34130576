/* test_failpoint.c - tests of base/failpoint.h. */
#include "base/failpoint.h"
#include "tests/test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static struct fp_board *board;
static char path[] = "/tmp/lagan-failpoint-XXXXXX";

static int
make_board(void **state)
{
    int fd = mkstemp(path);

    (void)state;
    if (fd < 0 || ftruncate(fd, sizeof *board) < 0) return -1;
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    setenv("LAGAN_FP", path, 1);
    return board == MAP_FAILED ? -1 : 0;
}

static int
drop_board(void **state)
{
    (void)state;
    munmap(board, sizeof *board);
    return unlink(path);
}

/* Runs this program again; main() passes one failpoint 5 times. */
static int
run(const char *as_worker)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
        if (as_worker) setenv("LAGAN_EPOCH", as_worker, 1);
        execl("/proc/self/exe", "test_failpoint", "pass", NULL);
        _exit(126);
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    if (WIFSTOPPED(status)) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        return 256 + SIGSTOP;
    }
    return WIFSIGNALED(status) ? 256 + WTERMSIG(status) : WEXITSTATUS(status);
}

static struct fp_slot *
arm(enum fp_side side, enum fp_action action, uint32_t left)
{
    struct fp_slot *s = &board->slot[side][FP_ring_reserved];

    memset(board, 0, sizeof *board);
    atomic_store(&s->action, action);
    atomic_store(&s->left, left);
    return s;
}

static void
armed_failpoint_fires_at_the_nth_pass(void **state)
{
    static const int ends[FP_ACTIONS] = { [FP_KILL] = 256 + SIGKILL,
                                          [FP_ABORT] = 256 + SIGABRT,
                                          [FP_STOP] = 256 + SIGSTOP,
                                          [FP_EXIT] = FP_EXIT_STATUS };

    (void)state;
    for (enum fp_action a = FP_KILL; a < FP_ACTIONS; a++) {
        struct fp_slot *s = arm(FP_LAGAND, a, 3);

        assert_int_equal(run(NULL), ends[a]);
        assert_int_equal(atomic_load(&s->hits), a == FP_DELAY ? 5 : 3);
        assert_int_equal(atomic_load(&s->fired), 1);
    }
}

static void
failpoint_fires_once_and_not_in_the_replacement(void **state)
{
    struct fp_slot *s = arm(FP_LAGAND, FP_KILL, 7);

    (void)state;
    assert_int_equal(run(NULL), 0);
    assert_int_equal(run(NULL), 256 + SIGKILL);
    assert_int_equal(run(NULL), 0);
    assert_int_equal(atomic_load(&s->hits), 12);
}

static void
worker_has_its_own_failpoints(void **state)
{
    struct fp_slot *s = arm(FP_WORKER, FP_KILL, 1);

    (void)state;
    assert_int_equal(run(NULL), 0);
    assert_int_equal(atomic_load(&s->hits), 0);
    assert_int_equal(run("1"), 256 + SIGKILL);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(armed_failpoint_fires_at_the_nth_pass),
        cmocka_unit_test(failpoint_fires_once_and_not_in_the_replacement),
        cmocka_unit_test(worker_has_its_own_failpoints),
    };

    (void)argv;
    if (argc > 1) {
        for (int i = 0; i < 5; i++) FP(ring_reserved);
        return 0;
    }
    return cmocka_run_group_tests(tests, make_board, drop_board);
}
