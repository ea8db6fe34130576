/* systemd.c - see systemd.h. */
#include "tests/systemd.h"

#include "tests/test.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void
drop(struct systemd *s, const char *name)
{
    for (uint32_t i = 0; i < s->n_store;) {
        if (strcmp(s->store[i].name, name)) {
            i++;
            continue;
        }
        close(s->store[i].fd);
        s->store[i] = s->store[--s->n_store];
    }
}

/* One datagram: its text into notices, its descriptor into the store. */
static void
take(struct systemd *s, const char *words, int fd)
{
    const char *at = strstr(words, "FDNAME=");
    size_t used = strlen(s->notices);
    char name[SYSTEMD_NAME] = "";

    if (at) snprintf(name, sizeof name, "%.*s", (int)strcspn(at + 7, "\n"), at + 7);
    if (strstr(words, "FDSTOREREMOVE=1")) {
        drop(s, name);
    } else if (strstr(words, "FDSTORE=1")) {
        check(fd >= 0 && s->n_store < SYSTEMD_STORE && strstr(words, "FDPOLL=0"));
        s->store[s->n_store].fd = fd;
        strcpy(s->store[s->n_store++].name, name);
        return;
    } else {
        if (used > sizeof s->notices - 600) used = 0; /* the tests ask only for new notices */
        snprintf(s->notices + used, sizeof s->notices - used, "%s\n", words);
    }
    if (fd >= 0) close(fd);
}

static void *
receive_notices(void *arg)
{
    struct systemd *s = arg;

    for (;;) {
        char words[512], control[CMSG_SPACE(sizeof(int))];
        struct iovec io = { words, sizeof words - 1 };
        struct msghdr m = { .msg_iov = &io,
                            .msg_iovlen = 1,
                            .msg_control = control,
                            .msg_controllen = sizeof control };
        ssize_t n = recvmsg(s->socket, &m, MSG_CMSG_CLOEXEC);
        struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
        int fd = -1;

        if (n <= 0) return NULL; /* shut down */
        words[n] = 0;
        if (c && c->cmsg_type == SCM_RIGHTS) memcpy(&fd, CMSG_DATA(c), sizeof fd);
        pthread_mutex_lock(&s->lock);
        take(s, words, fd);
        pthread_mutex_unlock(&s->lock);
    }
}

void
systemd_open(struct systemd *s, const char *dir)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };

    snprintf(a.sun_path, sizeof a.sun_path, "%s/notify", dir);
    memcpy(s->path, a.sun_path, sizeof s->path);
    s->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(s->socket, (struct sockaddr *)&a, sizeof a), 0);
    setenv("NOTIFY_SOCKET", a.sun_path, 1);
    pthread_mutex_init(&s->lock, NULL);
    assert_int_equal(pthread_create(&s->thread, NULL, receive_notices, s), 0);
}

void
systemd_close(struct systemd *s)
{
    unsetenv("NOTIFY_SOCKET");
    shutdown(s->socket, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->socket);
    unlink(s->path);
    while (s->n_store) close(s->store[--s->n_store].fd);
}

/* Returns after the datagrams sent before are processed: datagrams keep their order. */
static void
catch_up(struct systemd *s)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    char mark[32];
    int n = snprintf(mark, sizeof mark, "MARK=%u", ++s->n_marks);

    memcpy(a.sun_path, s->path, sizeof s->path);
    assert_int_equal(sendto(s->socket, mark, (size_t)n, 0, (struct sockaddr *)&a, sizeof a), n);
    while (!systemd_notified(s, mark)) poll(NULL, 0, 1);
}

static void
pass_store(const struct systemd *s)
{
    static char names[SYSTEMD_STORE * (SYSTEMD_NAME + 1)];
    int parked[SYSTEMD_STORE];
    char number[16];

    names[0] = 0;
    for (uint32_t i = 0; i < s->n_store; i++) {
        parked[i] = fcntl(s->store[i].fd, F_DUPFD_CLOEXEC, 3 + SYSTEMD_STORE);
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ":" : "",
                 s->store[i].name);
    }
    for (uint32_t i = 0; i < s->n_store; i++) dup2(parked[i], 3 + (int)i);
    if (!s->n_store) return;
    snprintf(number, sizeof number, "%d", (int)getpid());
    setenv("LISTEN_PID", number, 1);
    snprintf(number, sizeof number, "%u", s->n_store);
    setenv("LISTEN_FDS", number, 1);
    setenv("LISTEN_FDNAMES", names, 1);
}

pid_t
systemd_fork(struct systemd *s)
{
    pid_t pid;

    catch_up(s);
    pthread_mutex_lock(&s->lock);
    s->notices[0] = 0;
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        pass_store(s);
    else
        pthread_mutex_unlock(&s->lock);
    return pid;
}

bool
systemd_notified(struct systemd *s, const char *word)
{
    bool found;

    pthread_mutex_lock(&s->lock);
    found = strstr(s->notices, word) != NULL;
    pthread_mutex_unlock(&s->lock);
    return found;
}

void
systemd_clear_notices(struct systemd *s)
{
    pthread_mutex_lock(&s->lock);
    s->notices[0] = 0;
    pthread_mutex_unlock(&s->lock);
}

uint32_t
systemd_stored(struct systemd *s, const char *name)
{
    uint32_t n = 0;

    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->n_store; i++)
        n += strncmp(s->store[i].name, name, strlen(name)) == 0;
    pthread_mutex_unlock(&s->lock);
    return n;
}

void
systemd_forget(struct systemd *s, const char *name)
{
    pthread_mutex_lock(&s->lock);
    drop(s, name);
    pthread_mutex_unlock(&s->lock);
}

static void
keep(struct systemd *s, const char *name, int fd)
{
    struct systemd_fd *f = &s->store[s->n_store];

    assert_true(fd >= 0);
    pthread_mutex_lock(&s->lock);
    f->fd = fd;
    snprintf(f->name, sizeof f->name, "%s", name);
    s->n_store++;
    pthread_mutex_unlock(&s->lock);
}

void
systemd_keep(struct systemd *s, const char *name)
{
    keep(s, name, memfd_create("kept", MFD_CLOEXEC));
}

void
systemd_listen(struct systemd *s, const char *name, const char *path)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 128), 0);
    keep(s, name, fd);
}
