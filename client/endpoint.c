/* endpoint.c - checks the text of an endpoint, and says why there is no connection to it. */
#include "client/endpoint.h"

#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PROBE_MS = 1000 };

int
client_check_endpoint(const char *endpoint, struct err *e)
{
    const char *port = strrchr(endpoint, ':');
    bool tcp = !strncmp(endpoint, "tcp://", 6), ipc = !strncmp(endpoint, "ipc://", 6);
    bool has_port = port && port[1] && !port[1 + strspn(port + 1, "0123456789")];

    if (strlen(endpoint) >= CLIENT_ENDPOINT)
        return err_set(e, -ENAMETOOLONG, "the endpoint has %zu bytes; the maximum is %d",
                       strlen(endpoint), CLIENT_ENDPOINT - 1);
    if ((ipc && endpoint[6]) || (tcp && has_port && port > endpoint + 6)) return 0;
    if (tcp)
        return err_set(e, -EPROTONOSUPPORT,
                       "the endpoint \"%.100s\" has no port; expected tcp://HOST:PORT", endpoint);
    if (*endpoint == '/')
        return err_set(e, -EPROTONOSUPPORT,
                       "\"%.100s\" is a path; the endpoint of that socket is ipc://%.100s",
                       endpoint, endpoint);
    if (!strncmp(endpoint, "http", 4))
        return err_set(e, -EPROTONOSUPPORT,
                       "\"%.100s\": lagand does not speak HTTP; an endpoint is ipc://PATH or "
                       "tcp://HOST:PORT",
                       endpoint);
    if (has_port && !strstr(endpoint, "://"))
        return err_set(e, -EPROTONOSUPPORT,
                       "\"%.100s\" is not an endpoint; expected tcp://%.100s and a file of keys",
                       endpoint, endpoint);
    return err_set(e, -EPROTONOSUPPORT,
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

int
client_explain_tcp(const char *endpoint, struct err *e)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    struct addrinfo *all = NULL;
    char host[CLIENT_ENDPOINT], *port, *at = host;
    int r;

    snprintf(host, sizeof host, "%s", endpoint + 6);
    port = strrchr(host, ':');
    *port++ = '\0';
    if (*host == '[' && port - host > 2) { /* an IPv6 address */
        at = host + 1;
        port[-2] = '\0';
    }
    r = getaddrinfo(at, port, &hints, &all);
    if (r)
        return err_set(e, -EHOSTUNREACH, "the host name %.100s cannot be resolved: %s", at,
                       gai_strerror(r));
    r = -ETIMEDOUT;
    for (const struct addrinfo *a = all; a && r < 0; a = a->ai_next) r = probe(a);
    freeaddrinfo(all);
    return r < 0 ? err_set(e, r, "cannot connect to %.180s: %s", endpoint, strerror(-r)) : 0;
}
