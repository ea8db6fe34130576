/* test_hello.c - HELLO and connections that break before its answer: each is greeted, and once.
 *
 * The other side is a socket of our own that knows of ZMTP just enough to be connected to, so that a
 * connection ends in the instant in which libzmq has told of it and not yet taken it away.
 */
#include "client/client.h"
#include "tests/client/asking.h"
#include "tests/test.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BREAKS = 300, WAIT_MS = 20000 };

static bool
receive(int fd, uint8_t *to, size_t n)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    ssize_t r = 1;

    for (; n && r > 0; to += r, n -= (size_t)r) r = poll(&p, 1, WAIT_MS) == 1 ? read(fd, to, n) : 0;
    return n == 0;
}

/* The next frame that is no command. false: none came. */
static bool
receive_message(int fd)
{
    uint8_t head[2], body[255];

    do {
        if (!receive(fd, head, 2) || !receive(fd, body, head[1])) return false;
    } while (head[0] & 4);
    return head[0] == 0;
}

static bool
shake_hands(int fd)
{
    static const uint8_t ready[] = "\4\x1c\5READY\13Socket-Type\0\0\0\6ROUTER";
    uint8_t hello[64] = { 0xff, [9] = 0x7f, 3, 0, 'N', 'U', 'L', 'L' }, theirs[64];

    return write(fd, hello, sizeof hello) == sizeof hello && receive(fd, theirs, sizeof theirs) &&
           write(fd, ready, sizeof ready - 1) == sizeof ready - 1;
}

/* Every other connection ends as soon as it stands, or a little later; those between are held until a HELLO comes. */
static int
break_and_listen(int listener)
{
    for (uint32_t i = 0; i < BREAKS; i++) {
        int fd = accept(listener, NULL, NULL);

        if (fd < 0 || !shake_hands(fd)) return 2;
        if (i % 2 && !receive_message(fd)) return 1;
        if (i % 2 == 0) usleep(i % 16 * 20);
        close(fd);
    }
    return 0;
}

static void
a_hello_that_was_lost_with_its_connection_is_said_again_to_the_next_one(void **state)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), status;
    struct lagan_event ev = { sizeof ev };
    struct lagan *c;
    pid_t pid;

    (void)state;
    mock_dir(&mock);
    snprintf(at.sun_path, sizeof at.sun_path, "%s/api.sock", mock.dir);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listener, 8), 0);
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(break_and_listen(listener));
    }
    assert_int_equal(lagan_open(&c, mock.endpoint, 0), 0);
    while (waitpid(pid, &status, WNOHANG) == 0) assert_int_equal(lagan_next(c, &ev, 1), 0);
    assert_int_equal(status, 0);
    lagan_close(c);
    close(listener);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(
            a_hello_that_was_lost_with_its_connection_is_said_again_to_the_next_one, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
