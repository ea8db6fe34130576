/* test_cpu_starvation.c - tells starved processes from hung ones. */
#include "daemon/supervise/cpu_starvation.h"

#include "tests/test.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SPINNERS = 8, LOOKS = 8, LOOK_MS = 50 };
static const nsec TIMEOUT = 60 * NSEC_S;

static pid_t child[SPINNERS + 1];
static uint32_t n_children;

/* Pins the process to its first processor. */
static void
stay(void)
{
    cpu_set_t may, one;
    int i = 0;

    assert_int_equal(sched_getaffinity(0, sizeof may, &may), 0);
    while (!CPU_ISSET(i, &may)) i++;
    CPU_ZERO(&one);
    CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
}

static pid_t
begin(bool spins, int nice_by)
{
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid) return child[n_children++] = pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    stay();
    if (nice_by) setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + nice_by);
    if (spins)
        for (;;) {
        }
    for (;;) poll(NULL, 0, -1);
}

static int
end_all(void **state)
{
    (void)state;
    for (; n_children; n_children--) {
        kill(child[n_children - 1], SIGKILL);
        waitpid(child[n_children - 1], NULL, 0);
    }
    return 0;
}

/* Starvation in percent of the interval. */
static uint32_t
share(pid_t pid)
{
    struct cpu_starvation s = { 0 };
    nsec first = clock_now(), last = first, waited = 0;

    assert_int_equal(cpu_starvation_since(&s, pid, first), 0);
    for (int i = 0; i < LOOKS; i++) {
        nsec now, part;

        poll(NULL, 0, LOOK_MS);
        now = clock_now();
        part = cpu_starvation_since(&s, pid, now);
        assert_true(part >= 0 && part <= (now - last) * 9 / 10);
        waited += part;
        last = now;
    }
    return (uint32_t)(waited * 100 / (last - first));
}

/* Waits until all processes run, because their start needs a processor. */
static void
await_share(pid_t pid, uint32_t least, uint32_t most)
{
    nsec until = clock_now() + TIMEOUT;
    uint32_t is;

    do is = share(pid);
    while ((is < least || is > most) && clock_now() < until);
    assert_in_range(is, least, most);
}

static void
sleeping_stopped_or_missing_process_is_not_starved(void **state)
{
    pid_t pid = begin(false, 0);

    (void)state;
    await_share(pid, 0, 0);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    n_children--;
    assert_int_equal(share(pid), 0);
    for (uint32_t i = 0; i < SPINNERS; i++) pid = begin(true, 0);
    kill(pid, SIGSTOP);
    assert_int_equal(waitpid(pid, NULL, WUNTRACED), pid);
    assert_int_equal(share(pid), 0);
}

static void
runnable_process_without_processor_is_starved(void **state)
{
    pid_t pid = begin(true, 19);

    (void)state;
    for (uint32_t i = 0; i < SPINNERS; i++) begin(true, 0);
    await_share(pid, 50, 90);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(sleeping_stopped_or_missing_process_is_not_starved, end_all),
        cmocka_unit_test_teardown(runnable_process_without_processor_is_starved, end_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
