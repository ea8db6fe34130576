/* fd_channel.c - see fd_channel.h.
 *
 * The descriptors of a message are counted, and closed or owned, before the message is validated,
 * because the kernel has already installed them in our table. */
#include "ipc/fd_channel.h"

#include "base/failpoint.h"

#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_FDS = 8 }; /* of a message; valid is 1, and the kernel closes those beyond 8 */

void
fd_channel_host(char ret[FD_CHANNEL_NAME], uint32_t i)
{
    check(i < FD_CHANNEL_HOSTS);
    snprintf(ret, FD_CHANNEL_NAME, "host%u", i);
}

int
fd_channel_pair(int ret[2], struct err *e)
{
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ret) < 0) {
        return err_set(e, -errno, "fd channel: cannot create a socket pair: %s", strerror(errno));
    }
    return 0;
}

static bool
good_name(const char name[FD_CHANNEL_NAME])
{
    size_t n = strnlen(name, FD_CHANNEL_NAME);

    return n > 0 && n < FD_CHANNEL_NAME &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_.-") == n;
}

int
fd_channel_give(int sock, const struct fd_channel_note *note, int fd, struct err *e)
{
    struct fd_channel_note copy = *note;
    struct iovec v = { &copy, sizeof copy };
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = { .bytes = { 0 } };
    struct msghdr m = {
        .msg_iov = &v,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof control.bytes,
    };
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);

    check(good_name(note->name) && fd >= 0);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    if (sendmsg(sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
        int code = errno == ECONNRESET ? -EPIPE : -errno;

        return err_set(e, code, "fd channel: cannot send the descriptor of %s: %s", note->name,
                       strerror(-code));
    }
    FP(fd_passed);
    return 0;
}

/* Stores the descriptors of a message in fd[]. Returns their number. */
static uint32_t
collect(struct msghdr *m, int fd[MAX_FDS])
{
    uint32_t n = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        size_t bytes = c->cmsg_len - CMSG_LEN(0);

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        for (size_t i = 0; i + sizeof(int) <= bytes && n < MAX_FDS; i += sizeof(int)) {
            memcpy(&fd[n++], CMSG_DATA(c) + i, sizeof(int));
        }
    }
    return n;
}

int
fd_channel_take(int sock, struct fd_channel_note *note, int *fd, struct err *e)
{
    struct fd_channel_note got;
    struct iovec v = { &got, sizeof got };
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MAX_FDS * sizeof(int))];
    } control;
    struct msghdr m = {
        .msg_iov = &v,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof control.bytes,
    };
    int fds[MAX_FDS];
    const char *wrong = NULL;
    uint32_t n_fds;
    ssize_t n;

    do n = recvmsg(sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) return 0;
    if (n < 0 && errno == ECONNRESET) return err_set(e, -EPIPE, "fd channel: closed by the peer");
    if (n < 0) return err_set(e, -errno, "fd channel: cannot receive: %s", strerror(errno));
    n_fds = collect(&m, fds);
    /* recvmsg() returns 0 for an empty message as for the end of the stream. */
    if (n == 0 && n_fds == 0) return err_set(e, -EPIPE, "fd channel: closed by the peer");
    if (n_fds == 0 && m.msg_flags & MSG_CTRUNC) {
        return err_set(e, -EMFILE,
                       "fd channel: a descriptor could not be received, because this process has "
                       "too many open");
    }
    if (n != sizeof got || m.msg_flags & MSG_TRUNC) {
        wrong = "it has not the size of a note";
    } else if (n_fds != 1 || m.msg_flags & MSG_CTRUNC) {
        wrong = n_fds ? "it has several descriptors" : "it has no descriptor";
    } else if (!good_name(got.name)) {
        wrong = "it has no valid arena name";
    }
    if (wrong) {
        while (n_fds) close(fds[--n_fds]);
        return err_set(e, -EBADMSG, "fd channel: the peer sent a malformed message: %s", wrong);
    }
    *note = got;
    *fd = fds[0];
    return 1;
}
