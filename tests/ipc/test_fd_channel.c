/* test_fd_channel.c - tests of ipc/fd_channel.h: one note with one descriptor; malformed messages
 * leave no descriptor open. */
#include "tests/test.h"

#include "ipc/fd_channel.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static int sock[2], arena, n_open;
static struct err e;
static const struct fd_channel_note note = { .name = "weights",
                                             .bytes = 4096,
                                             .fingerprint = { 1, 2 },
                                             .version = 3,
                                             .flags = FD_CHANNEL_COMPLETE };

static int
descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static int
setup(void **state)
{
    (void)state;
    assert_int_equal(fd_channel_pair(sock, &e), 0);
    arena = memfd_create("arena", MFD_CLOEXEC);
    assert_int_equal(ftruncate(arena, 4096), 0);
    n_open = descriptors();
    return 0;
}

static int
teardown(void **state)
{
    (void)state;
    close(sock[0]);
    close(sock[1]);
    close(arena);
    return 0;
}

static void
descriptor_arrives_with_its_note(void **state)
{
    struct fd_channel_note got;
    struct stat a, b;
    int fd;

    (void)state;
    assert_int_equal(fd_channel_give(sock[0], &note, arena, &e), 0);
    assert_int_equal(fd_channel_take(sock[1], &got, &fd, &e), 1);
    assert_memory_equal(&got, &note, sizeof note);
    assert_int_equal(fstat(arena, &a), 0);
    assert_int_equal(fstat(fd, &b), 0);
    assert_int_equal(a.st_ino, b.st_ino);
    assert_int_not_equal(fd, arena);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    close(fd);
    assert_int_equal(fd_channel_take(sock[1], &got, &fd, &e), 0);
}

static void
messages_pass_in_both_directions_in_order(void **state)
{
    struct fd_channel_note n = note, got;
    int fd;

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        n.version = i;
        assert_int_equal(fd_channel_give(sock[1], &n, arena, &e), 0);
    }
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(fd_channel_take(sock[0], &got, &fd, &e), 1);
        assert_int_equal(got.version, i);
        close(fd);
    }
}

static void
empty_channel_is_not_an_error(void **state)
{
    struct fd_channel_note got;
    int fd = -7;

    (void)state;
    assert_int_equal(fd_channel_take(sock[1], &got, &fd, &e), 0);
    assert_int_equal(fd, -7);
}

static void
closed_peer_is_reported(void **state)
{
    struct fd_channel_note got;
    int fd;

    (void)state;
    close(sock[0]);
    assert_int_equal(fd_channel_take(sock[1], &got, &fd, &e), -EPIPE);
    assert_int_equal(fd_channel_give(sock[1], &note, arena, &e), -EPIPE);
    sock[0] = dup(sock[1]);
}

static void
peer_that_does_not_read_does_not_block_the_sender(void **state)
{
    int r;

    (void)state;
    do r = fd_channel_give(sock[0], &note, arena, &e);
    while (r == 0);
    assert_int_equal(r, -EAGAIN);
    assert_non_null(strstr(e.text, "cannot send the descriptor of weights"));
}

/* Sends a malformed message. */
static void
forge(const void *bytes, size_t n, int n_fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(32 * sizeof(int))];
    } control = { .bytes = { 0 } };
    struct iovec v = { (void *)(uintptr_t)bytes, n };
    struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };

    if (n_fds) {
        struct cmsghdr *c;
        int fds[32];

        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int));
        c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int));
        for (int i = 0; i < n_fds; i++) fds[i] = arena;
        memcpy(CMSG_DATA(c), fds, (size_t)n_fds * sizeof(int));
    }
    assert_int_equal(sendmsg(sock[0], &m, MSG_DONTWAIT), (ssize_t)n);
}

static void
expect_malformed(const char *why)
{
    struct fd_channel_note got;
    int fd = -7;

    assert_int_equal(fd_channel_take(sock[1], &got, &fd, &e), -EBADMSG);
    assert_non_null(strstr(e.text, why));
    assert_int_equal(fd, -7);
    assert_int_equal(descriptors(), n_open);
}

static void
descriptors_of_a_malformed_message_are_closed(void **state)
{
    uint8_t large[100] = { 0 };
    struct fd_channel_note bad = note;

    (void)state;
    memcpy(large, &note, sizeof note);
    forge(&note, sizeof note - 1, 1);
    expect_malformed("size");
    forge(large, sizeof note + 1, 1);
    expect_malformed("size");
    forge(large, sizeof large, 3);
    expect_malformed("size");
    forge(large, 1, 0);
    expect_malformed("size");
    forge(large, 0, 1);
    expect_malformed("size");
    forge(&note, sizeof note, 0);
    expect_malformed("no descriptor");
    forge(&note, sizeof note, 2);
    expect_malformed("several descriptors");
    forge(&note, sizeof note, 32);
    expect_malformed("several descriptors");
    memset(bad.name, 'a', sizeof bad.name);
    forge(&bad, sizeof bad, 1);
    expect_malformed("name");
    memset(bad.name, 0, sizeof bad.name);
    forge(&bad, sizeof bad, 1);
    expect_malformed("name");
    memcpy(bad.name, "a\nb", 4);
    forge(&bad, sizeof bad, 1);
    expect_malformed("name");
    /* The stream still works. */
    assert_int_equal(fd_channel_give(sock[0], &note, arena, &e), 0);
    assert_int_equal(fd_channel_take(sock[1], &bad, &n_open, &e), 1);
    close(n_open);
}

static void
empty_message_ends_the_stream(void **state)
{
    struct fd_channel_note got;
    int fd;

    (void)state;
    forge("", 0, 0);
    assert_int_equal(fd_channel_take(sock[1], &got, &fd, &e), -EPIPE);
}

static void
full_descriptor_table_is_our_own_error(void **state)
{
    struct rlimit old, none;
    struct fd_channel_note got;
    int fd, r;

    (void)state;
    assert_int_equal(fd_channel_give(sock[0], &note, arena, &e), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    none = old;
    none.rlim_cur = 3; /* every descriptor number is in use */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    r = fd_channel_take(sock[1], &got, &fd, &e);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(r, -EMFILE);
}

int
main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(descriptor_arrives_with_its_note),
        T(messages_pass_in_both_directions_in_order),
        T(empty_channel_is_not_an_error),
        T(closed_peer_is_reported),
        T(peer_that_does_not_read_does_not_block_the_sender),
        T(descriptors_of_a_malformed_message_are_closed),
        T(empty_message_ends_the_stream),
        T(full_descriptor_table_is_our_own_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
