#include "gateway/http/http_internal.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* NOT_SENT: bytes that the kernel takes beyond those in flight; a slow reader is noticed early.
 * KEEP_IDLE, KEEP_INTERVAL, KEEP_PROBES: a host that vanished is noticed after 60 + 6 * 10 s, also
 * while a response is awaited and nothing is written. */
enum {
    BACKLOG = 1024,
    MAX_ACCEPTS = 64,
    NOT_SENT = 64 << 10,
    KEEP_IDLE = 60,
    KEEP_INTERVAL = 10,
    KEEP_PROBES = 6
};

/* ---- listeners */

static void
set_options(int fd)
{
    static const struct {
        int level, name, value;
    } options[] = {
        { IPPROTO_TCP, TCP_NODELAY, 1 },
        { IPPROTO_TCP, TCP_NOTSENT_LOWAT, NOT_SENT },
        { SOL_SOCKET, SO_KEEPALIVE, 1 },
        { IPPROTO_TCP, TCP_KEEPIDLE, KEEP_IDLE },
        { IPPROTO_TCP, TCP_KEEPINTVL, KEEP_INTERVAL },
        { IPPROTO_TCP, TCP_KEEPCNT, KEEP_PROBES },
    };

    /* Accepted sockets inherit them. A unix socket has none. */
    for (uint32_t i = 0; i < ARRAY_LEN(options); i++)
        setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(int));
}

/* Writes an address as "127.0.0.1:8000", "[::1]:8000", "unix:PATH", "unix". */
static void
print_address(const struct sockaddr *a, socklen_t n, bool port, char *buf, size_t size)
{
    char ip[INET6_ADDRSTRLEN];

    if (a->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)a;

        inet_ntop(AF_INET, &in->sin_addr, ip, sizeof ip);
        snprintf(buf, size, port ? "%s:%u" : "%s", ip, ntohs(in->sin_port));
    } else if (a->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)a;

        inet_ntop(AF_INET6, &in->sin6_addr, ip, sizeof ip);
        snprintf(buf, size, port ? "[%s]:%u" : "%s", ip, ntohs(in->sin6_port));
    } else {
        const struct sockaddr_un *un = (const struct sockaddr_un *)a;
        int path = (int)(n > offsetof(struct sockaddr_un, sun_path)
                             ? n - offsetof(struct sockaddr_un, sun_path)
                             : 0);

        snprintf(buf, size, port ? "unix:%.*s" : "unix", path, un->sun_path);
    }
}

static int
cannot(const char *where, int code, const char *why, struct err *e)
{
    return err_set(e, code, "cannot listen at %.120s: %s%s", where, why,
                   code == -EADDRINUSE ? "; another program uses this address" : "");
}

int
listener_adopt(struct listener *l, int fd, struct err *e)
{
    union {
        struct sockaddr any;
        struct sockaddr_storage storage;
    } a;
    socklen_t n = sizeof a, size = sizeof(int);
    int listens = 0;

    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) < 0 || !listens)
        return err_set(e, -EINVAL, "file descriptor %d is no listening socket", fd);
    if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0 || getsockname(fd, &a.any, &n) < 0)
        return err_set(e, -errno, "file descriptor %d: %s", fd, strerror(errno));
    set_options(fd);
    print_address(&a.any, n, /* port= */ true, l->address, sizeof l->address);
    l->fd = fd;
    return 0;
}

/* Removes a socket file that no program listens at. */
static void
remove_stale(const struct sockaddr_un *a)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct stat st;

    if (fd < 0) return;
    if (connect(fd, (const struct sockaddr *)a, sizeof *a) < 0 && errno == ECONNREFUSED &&
        lstat(a->sun_path, &st) == 0 && S_ISSOCK(st.st_mode))
        unlink(a->sun_path);
    close(fd);
}

static int
listen_unix(struct listener *l, const char *where, struct err *e)
{
    const char *path = where + strlen("unix:");
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    mode_t mask;
    int fd, r;

    if (!*path || strlen(path) >= sizeof a.sun_path)
        return cannot(where, -EINVAL, "a path has 1 to 107 bytes", e);
    memcpy(a.sun_path, path, strlen(path) + 1);
    remove_stale(&a);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return cannot(where, -errno, strerror(errno), e);
    mask = umask(0117); /* the socket file has mode 0660 from the start */
    r = bind(fd, (struct sockaddr *)&a, sizeof a) < 0 ? -errno : 0;
    umask(mask);
    if (r == 0) {
        l->path = strdup(path);
        r = !l->path ? -ENOMEM : listen(fd, BACKLOG) < 0 ? -errno : 0;
    }
    if (r < 0) {
        close(fd);
        return cannot(where, r, strerror(-r), e);
    }
    return listener_adopt(l, fd, e);
}

/* Opens a listening socket at the first address of the list that the host has. */
static int
listen_at(const struct addrinfo *list)
{
    int code = -EADDRNOTAVAIL, on = 1;

    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (fd < 0) {
            code = -errno;
            continue;
        }
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on); /* several instances */
        if (a->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
        if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) return fd;
        code = -errno;
        close(fd);
    }
    return code;
}

int
listener_open(struct listener *l, const char *where, struct err *e)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV },
                    *list;
    char host[256], *port;
    size_t n;
    int r;

    *l = (struct listener){ .fd = -1 };
    if (!strncmp(where, "unix:", 5)) return listen_unix(l, where, e);
    if (snprintf(host, sizeof host, "%s", where) >= (int)sizeof host || !strrchr(host, ':'))
        return cannot(where, -EINVAL, "the form is HOST:PORT, [V6]:PORT or unix:PATH", e);
    port = strrchr(host, ':');
    *port++ = 0;
    n = strlen(host);
    if (n > 1 && *host == '[' && host[n - 1] == ']')
        memmove(host, host + 1, n), host[n - 2] = 0;
    else if (strchr(host, ':'))
        return cannot(where, -EINVAL, "an IPv6 address stands in [ ]", e);
    if (!*host || !*port)
        return cannot(where, -EINVAL, "the form is HOST:PORT, [V6]:PORT or unix:PATH", e);
    r = getaddrinfo(host, port, &hints, &list);
    if (r) return cannot(where, -EINVAL, gai_strerror(r), e);
    r = listen_at(list);
    freeaddrinfo(list);
    if (r < 0) return cannot(where, r, strerror(-r), e);
    l->is_shared = true;
    return listener_adopt(l, r, e);
}

void
listener_close(struct listener *l)
{
    if (l->fd >= 0) close(l->fd);
    if (l->path) unlink(l->path);
    free(l->path);
    l->path = NULL;
    l->fd = -1;
}

/* ---- accept */

union address {
    struct sockaddr any;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
    struct sockaddr_storage storage;
};

/* An IPv4 client of a socket that serves both families has an IPv4 address. */
static void
unmap(union address *a)
{
    struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = a->in6.sin6_port };

    if (a->any.sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&a->in6.sin6_addr)) return;
    memcpy(&in.sin_addr, a->in6.sin6_addr.s6_addr + 12, sizeof in.sin_addr);
    a->in = in;
}

/* A number for the address of a peer, without its port; 0 for a unix socket. Addresses of IPv6 are
 * counted by their /64. */
static uint64_t
key_of(const struct sockaddr *a)
{
    uint64_t key = 0;

    if (a->sa_family == AF_INET)
        key = UINT64_C(1) << 63 | ((const struct sockaddr_in *)a)->sin_addr.s_addr;
    else if (a->sa_family == AF_INET6) {
        memcpy(&key, &((const struct sockaddr_in6 *)a)->sin6_addr, sizeof key);
        key |= 1; /* never 0 */
    }
    return key;
}

static bool
close_oldest(struct http *h, enum wait_class wait)
{
    struct http_exchange *x = TAILQ_FIRST(&h->class[wait]);

    if (x) conn_close(x, "timeout");
    return x != NULL;
}

/* Makes a place for one more connection. False: all connections have a request. */
static bool
make_place(struct http *h)
{
    uint32_t most = h->limits.connections;

    if (h->n_class[WAIT_HEAD] >= MAX(most - CEIL_DIV(most, 8), 1u)) close_oldest(h, WAIT_HEAD);
    return h->n_used - h->n_class[WAIT_LINGER] < most || close_oldest(h, WAIT_IDLE) ||
           close_oldest(h, WAIT_HEAD);
}

/* Counts a connection of an address. False: the address has as many as it may. */
static bool
count_address(struct http *h, uint64_t key)
{
    uint32_t n;

    if (!h->addresses || !key) return true;
    n = map_take(h->addresses, key);
    n = n == MAP_NONE ? 1 : n + 1;
    (void)!map_put(h->addresses, key, n);
    return !h->limits.connections_per_address || n <= h->limits.connections_per_address;
}

static void
open_accepted(struct http *h, int fd, const struct sockaddr *a, socklen_t n)
{
    bool has_place = make_place(h), may;
    uint64_t key = key_of(a);
    struct http_exchange *x;
    struct http_fault f;
    char peer[48];

    if (TAILQ_EMPTY(&h->unused)) close_oldest(h, WAIT_LINGER);
    print_address(a, n, /* port= */ false, peer, sizeof peer);
    x = conn_open(h, fd, peer, key);
    if (!x) {
        close(fd);
        return;
    }
    may = count_address(h, key);
    if (has_place && may) return;
    http_fault_set(&f, 503, may ? "max_connections" : "max_connections_per_address", "%s",
                   may ? "all connections of this server have a request; try again later"
                       : "this address has as many connections as it may have");
    conn_fault(x, &f);
    conn_update(x);
}

bool
listener_accept(struct http *h, struct listener *l)
{
    union address a;

    for (uint32_t i = 0; i < MAX_ACCEPTS; i++) {
        socklen_t n = sizeof a;
        int fd = accept4(l->fd, &a.any, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd >= 0) {
            unmap(&a);
            open_accepted(h, fd, &a.any, n);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            /* No descriptor is free: a silent connection is closed, or accept is delayed. */
            if (!close_oldest(h, WAIT_LINGER) && !close_oldest(h, WAIT_IDLE) &&
                !close_oldest(h, WAIT_HEAD)) {
                h->accept_is_delayed = true;
                return false;
            }
        } else if (errno == EAGAIN || errno == EBADF)
            return false;
    }
    return true;
}
