/* test_process.c - the output of a worker process: it is read to its end, and its last lines are
 * kept as the reason of a death. */
#include "daemon/config/options.h"
#include "daemon/supervise/process.h"
#include "daemon/supervise/worker_struct.h"
#include "tests/test.h"

#include <fcntl.h>
#include <unistd.h>

static struct config config;
static struct daemon d = { .config = &config };
static struct worker w;

static int
set_up(void **state)
{
    (void)state;
    w = (struct worker){ .d = &d };
    return 0;
}

/* The reason of a death is often at the end of long output. */
static void
output_of_a_dead_worker_is_read_completely(void **state)
{
    static const char line[] = "<7>one of very many lines that lagand has not read\n";
    size_t capacity;
    int pipe_[2];

    (void)state;
    assert_int_equal(pipe2(pipe_, O_CLOEXEC | O_NONBLOCK), 0);
    capacity = (size_t)fcntl(pipe_[1], F_GETPIPE_SZ) - 4096;
    for (size_t n = 0; n + sizeof line < capacity; n += sizeof line - 1)
        assert_int_equal(write(pipe_[1], line, sizeof line - 1), sizeof line - 1);
    assert_int_equal(write(pipe_[1], "<3>this is why", 14), 14);
    close(pipe_[1]);
    w.log = pipe_[0];
    process_read_output(&w);
    assert_string_equal(w.info.why, "this is why");
    assert_string_equal(w.last_line[(w.n_lines - 1) % LOG_LINES], "this is why");
    close(pipe_[0]);
}

static void
last_lines_of_long_output_are_logged(void **state)
{
    static const char line[] = "<3>this is why\n";
    char some[4096];
    int ends[2];

    (void)state;
    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    while (write(ends[1], "\nx\n<7>y\n", 8) == 8) continue;
    assert_int_equal(read(ends[0], some, sizeof some), sizeof some);
    assert_int_equal(write(ends[1], line, sizeof line - 1), sizeof line - 1);
    w.log = ends[0];
    process_read_output(&w);
    assert_in_range(w.n_lines, 20, 256);
    assert_string_equal(w.last_line[(w.n_lines - 1) % LOG_LINES], "this is why");
    assert_string_equal(w.info.why, "this is why");
    close(ends[0]);
    close(ends[1]);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup(name, set_up)
    const struct CMUnitTest tests[] = {
        T(output_of_a_dead_worker_is_read_completely),
        T(last_lines_of_long_output_are_logged),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
