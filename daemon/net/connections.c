/* connections.c - see connections.h. */
#include "daemon/net/connections.h"

#include <fcntl.h>
#include <sys/queue.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

struct place {
    uint64_t cookie;
    nsec since;
    uint32_t client; /* handle; CLIENT_NONE: unidentified, and in the list connections.silent */
    TAILQ_ENTRY(place) silent;
    bool open;
};

struct connections {
    struct place *at; /* [n_places], by descriptor */
    uint32_t n_places, n, most;
    TAILQ_HEAD(, place) silent; /* unidentified connections, the oldest first */
};

struct connections *
connections_new(uint32_t most)
{
    struct connections *c = calloc(1, sizeof *c);
    struct rlimit files = { .rlim_cur = 1 << 16 };

    if (!c) return NULL;
    getrlimit(RLIMIT_NOFILE, &files);
    c->most = most;
    c->n_places = (uint32_t)MIN(files.rlim_cur, (rlim_t)1 << 20);
    TAILQ_INIT(&c->silent);
    c->at = calloc(c->n_places, sizeof *c->at); /* the kernel maps a page when it is first used */
    return c->at ? c : connections_free(c);
}

struct connections *
connections_free(struct connections *c)
{
    if (c) free(c->at);
    free(c);
    return NULL;
}

static struct place *
find(const struct connections *c, int fd)
{
    return fd >= 0 && (uint32_t)fd < c->n_places && c->at[fd].open ? &c->at[fd] : NULL;
}

bool
connections_opened(struct connections *c, int fd, nsec now)
{
    if (fd < 0 || (uint32_t)fd >= c->n_places) return false;
    (void)connections_closed(c, fd); /* an earlier connection of fd whose close was not reported */
    c->at[fd] = (struct place){
        .cookie = connections_cookie(fd), .since = now, .client = CLIENT_NONE, .open = true
    };
    TAILQ_INSERT_TAIL(&c->silent, &c->at[fd], silent);
    return ++c->n > c->most;
}

uint32_t
connections_closed(struct connections *c, int fd)
{
    struct place *p = find(c, fd);

    if (!p) return CLIENT_NONE;
    if (p->client == CLIENT_NONE) TAILQ_REMOVE(&c->silent, p, silent);
    p->open = false;
    c->n--;
    return p->client;
}

void
connections_set_client(struct connections *c, int fd, uint32_t handle)
{
    struct place *p = find(c, fd);

    if (!p) return;
    if (p->client == CLIENT_NONE) TAILQ_REMOVE(&c->silent, p, silent);
    p->client = handle;
}

uint32_t
connections_n(const struct connections *c)
{
    return c->n;
}

int
connections_oldest_unidentified(const struct connections *c, nsec *since)
{
    const struct place *p = TAILQ_FIRST(&c->silent);

    if (!p) return -1;
    *since = p->since;
    return (int)(p - c->at);
}

uint64_t
connections_cookie(int fd)
{
    uint64_t cookie = 0;
    socklen_t n = sizeof cookie;

    return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &n) == 0 ? cookie : 0;
}

void
connections_shutdown(struct connections *c, int fd, uint64_t cookie)
{
    struct place *p = find(c, fd);
    int held;

    if (p && p->cookie == cookie) (void)connections_closed(c, fd);
    /* libzmq may have closed fd and the kernel may have reused the number. The cookie is read from
     * a duplicate, which cannot change its socket before the shutdown(). */
    held = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (held < 0) return;
    if (cookie && connections_cookie(held) == cookie) shutdown(held, SHUT_RDWR);
    close(held);
}

void
connections_shutdown_unidentified(struct connections *c, int fd)
{
    const struct place *p = find(c, fd);

    if (p) connections_shutdown(c, fd, p->cookie);
}
