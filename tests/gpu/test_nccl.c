/* test_nccl.c - finding NCCL, errors if it is missing, and messages between ranks. Needs no GPU and
 * no NCCL: fakes of the library (fake_nccl.c) are built beside this program.
 */
#include "base/clock.h"
#include "gpu/cuda/cuda_nccl.h"
#include "gpu/cuda/cuda_rendezvous.h"
#include "gpu/gpu.h"
#include "tests/test.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[3][1024];
enum { WHOLE, HALF, OLD };

static int
find_fakes(void **state)
{
    static const char *const name[] = { "whole", "half", "old" };
    char path[900];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(name); i++) {
        snprintf(path, sizeof path, "tests/gpu/fake_nccl/%s", name[i]);
        test_program(folder[i], sizeof folder[i], path);
    }
    return 0;
}

static void
the_library_is_loaded_from_the_named_folder(void **state)
{
    struct nccl n;
    struct nccl_id id = { { 0 } };
    struct err e = { 0 };

    (void)state;
    if (nccl_open(&n, folder[WHOLE], &e) < 0) fail_msg("%s", e.text);
    assert_int_equal(n.version, 22809);
    assert_int_equal(n.GetUniqueId(&id), NCCL_OK);
    assert_int_equal(id.bytes[0], 'n');
    nccl_close(&n);
}

static void
an_nccl_error_has_the_message_of_the_library(void **state)
{
    struct nccl n;
    struct err e = { 0 };

    (void)state;
    if (nccl_open(&n, folder[WHOLE], &e) < 0) fail_msg("%s", e.text);
    assert_int_equal(nccl_err(&n, NCCL_OK, "a communicator", &e), 0);
    assert_int_equal(nccl_err(&n, 3, "a communicator", &e), -EIO);
    assert_string_equal(e.text, "NCCL failed (a communicator): internal error: a rank is a fake");
    nccl_close(&n);
}

static void
a_missing_library_names_the_folders_searched(void **state)
{
    struct nccl n;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(nccl_open(&n, "/nowhere", &e), -ENOENT);
    assert_non_null(strstr(e.text, "found no libnccl.so.2 with the needed functions in /nowhere"));
    assert_int_equal(nccl_open(&n, folder[HALF], &e), -ENOENT);
    assert_null(n.library);
}

static void
a_too_old_nccl_is_refused_with_both_versions(void **state)
{
    struct nccl n;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(nccl_open(&n, folder[OLD], &e), -ENOTSUP);
    assert_non_null(strstr(e.text, "NCCL has version code 21403; tensor parallelism needs"));
    assert_null(n.library);
}

static int
shared(void)
{
    int fd = memfd_create("group", MFD_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)GPU_GROUP_BYTES), 0);
    return fd;
}

static int
rank_1(int fd)
{
    nsec until = clock_now() + 20 * NSEC_S;
    struct rendezvous m = { 0 };
    char id[128];
    struct err e;

    if (rendezvous_open(&m, 1, 2, fd, &e) < 0) return 1;
    if (rendezvous_wait(&m, 3, RENDEZVOUS_ID, 0, id, sizeof id, until, &e) < 0) return 2;
    for (int i = 0; i < 128; i++)
        if (id[i] != (char)(i * 3)) return 3;
    rendezvous_post(&m, 3, RENDEZVOUS_READY, id, 4);
    rendezvous_close(&m);
    return 0;
}

static void
a_rendezvous_message_reaches_the_other_process(void **state)
{
    nsec until = clock_now() + 20 * NSEC_S;
    struct rendezvous m = { 0 };
    int fd = shared(), status;
    char id[128], back[4];
    struct err e = { 0 };
    pid_t pid;

    (void)state;
    fflush(NULL);
    pid = fork();
    if (pid == 0) _exit(rank_1(fd));
    assert_int_equal(rendezvous_open(&m, 0, 2, fd, &e), 0);
    usleep(20000);
    for (int i = 0; i < 128; i++) id[i] = (char)(i * 3);
    rendezvous_post(&m, 3, RENDEZVOUS_ID, id, sizeof id);
    if (rendezvous_wait(&m, 3, RENDEZVOUS_READY, 1, back, sizeof back, until, &e) < 0)
        fail_msg("%s", e.text);
    assert_memory_equal(back, id, sizeof back);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    rendezvous_close(&m);
    close(fd);
}

static void
a_missing_rank_is_named_after_the_timeout(void **state)
{
    struct rendezvous m = { 0 };
    int fd = shared();
    struct err e = { 0 };

    (void)state;
    assert_int_equal(rendezvous_open(&m, 0, 3, fd, &e), 0);
    rendezvous_post(&m, 0, RENDEZVOUS_READY, NULL, 0);
    assert_int_equal(rendezvous_wait(&m, 0, RENDEZVOUS_READY, 0, NULL, 0, clock_now(), &e), 0);
    assert_int_equal(
        rendezvous_wait(&m, 0, RENDEZVOUS_READY, 2, NULL, 0, clock_now() + NSEC_MS, &e),
        -ETIMEDOUT);
    assert_non_null(strstr(e.text, "rank 2 of 3 has not sent that it is ready; see the"));
    rendezvous_close(&m);
    close(fd);
}

static void
group_memory_of_another_size_is_refused(void **state)
{
    int fd = memfd_create("group", MFD_CLOEXEC);
    struct rendezvous m = { 0 };
    struct err e = { 0 };

    (void)state;
    assert_int_equal(rendezvous_open(&m, 0, 2, fd, &e), -EINVAL);
    assert_non_null(strstr(e.text, "has 0 bytes"));
    assert_int_equal(rendezvous_open(&m, 0, 2, -1, &e), -EBADF);
    close(fd);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_library_is_loaded_from_the_named_folder),
        cmocka_unit_test(an_nccl_error_has_the_message_of_the_library),
        cmocka_unit_test(a_missing_library_names_the_folders_searched),
        cmocka_unit_test(a_too_old_nccl_is_refused_with_both_versions),
        cmocka_unit_test(a_rendezvous_message_reaches_the_other_process),
        cmocka_unit_test(a_missing_rank_is_named_after_the_timeout),
        cmocka_unit_test(group_memory_of_another_size_is_refused),
    };

    return cmocka_run_group_tests(tests, find_fakes, NULL);
}
