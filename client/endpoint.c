/* endpoint.c - checks the text of an endpoint, and says why there is no connection to it. */
#include "client/client.h"

#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PROBE_MS = 1000 };

int
client_check_endpoint(struct lagan *c, const char *endpoint)
{
    const char *port = strrchr(endpoint, ':');
    bool tcp = !strncmp(endpoint, "tcp://", 6), ipc = !strncmp(endpoint, "ipc://", 6);
    bool has_port = port && port[1] && !port[1 + strspn(port + 1, "0123456789")];

    if (strlen(endpoint) >= sizeof c->endpoint)
        return client_fail(c, -ENAMETOOLONG, "the endpoint has %zu bytes; the maximum is %zu",
                           strlen(endpoint), sizeof c->endpoint - 1);
    if ((ipc && endpoint[6]) || (tcp && has_port && port > endpoint + 6)) return 0;
    if (tcp)
        return client_fail(c, -EPROTONOSUPPORT,
                           "the endpoint \"%.100s\" has no port; expected tcp://HOST:PORT",
                           endpoint);
    if (*endpoint == '/')
        return client_fail(c, -EPROTONOSUPPORT,
                           "\"%.100s\" is a path; the endpoint of that socket is ipc://%.100s",
                           endpoint, endpoint);
    if (!strncmp(endpoint, "http", 4))
        return client_fail(c, -EPROTONOSUPPORT,
                           "\"%.100s\": lagand does not speak HTTP; an endpoint is ipc://PATH or "
                           "tcp://HOST:PORT",
                           endpoint);
    if (has_port && !strstr(endpoint, "://"))
        return client_fail(
            c, -EPROTONOSUPPORT,
            "\"%.100s\" is not an endpoint; expected tcp://%.100s and a file of keys", endpoint,
            endpoint);
    return client_fail(c, -EPROTONOSUPPORT,
                       "\"%.100s\" is not an endpoint; expected ipc://PATH or tcp://HOST:PORT",
                       endpoint);
}

/* Connects to an address for at most PROBE_MS. Returns 0 or the negative errno of connect(). */
static int
probe(const struct addrinfo *a)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0;
    socklen_t n = sizeof error;

    if (fd < 0) return -errno;
    if (connect(fd, a->ai_addr, a->ai_addrlen) < 0) error = errno;
    if (error == EINPROGRESS) {
        struct pollfd p = { .fd = fd, .events = POLLOUT };

        error = ETIMEDOUT;
        if (poll(&p, 1, PROBE_MS) == 1 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) < 0)
            error = errno;
    }
    close(fd);
    return -error;
}

/* Explains a tcp endpoint to which libzmq has made no connection. Returns 0 if connect() works. */
static int
explain_tcp(struct lagan *c)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    struct addrinfo *all = NULL;
    char host[sizeof c->endpoint], *port, *at = host;
    int r;

    snprintf(host, sizeof host, "%s", c->endpoint + 6);
    port = strrchr(host, ':');
    *port++ = '\0';
    if (*host == '[' && port - host > 2) { /* an IPv6 address */
        at = host + 1;
        port[-2] = '\0';
    }
    r = getaddrinfo(at, port, &hints, &all);
    if (r)
        return client_fail(c, -EHOSTUNREACH, "the host name %.100s cannot be resolved: %s", at,
                           gai_strerror(r));
    r = -ETIMEDOUT;
    for (const struct addrinfo *a = all; a && r < 0; a = a->ai_next) r = probe(a);
    freeaddrinfo(all);
    return r < 0 ? client_fail(c, r, "cannot connect to %.180s: %s", c->endpoint, strerror(-r)) : 0;
}

int
client_explain_silence(struct lagan *c, int timeout_ms)
{
    bool tcp = !strncmp(c->endpoint, "tcp://", 6);

    if (c->handshake_failed) return client_fail(c, -EACCES, "%s", c->lost_why);
    if (tcp && !c->connected) TRY(explain_tcp(c));
    return client_fail(c, -ETIMEDOUT, "lagand at %s sent no WELCOME within %d ms%s", c->endpoint,
                       timeout_ms,
                       tcp && c->connected ? "; the connection was accepted: is api.tcp of lagand "
                                             "at that port?"
                                           : "");
}
