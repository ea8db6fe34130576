/* connect.c - connects to lagand, calls verbs, maps errors to exit codes; see ctl.h. */
#include "ctl/ctl.h"

#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "config.h"

enum { OPEN_MS = 5000, CALL_MS = 30000 };

int
ctl_exit_of(uint32_t reason)
{
    switch (reason) {
    case LAGAN_E_INVALID_REQUEST:
        return CTL_USAGE;
    case LAGAN_E_QUEUE_FULL:
        return CTL_QUEUE_FULL;
    case LAGAN_E_UNAUTHORIZED:
        return CTL_NO_PERMISSION;
    case LAGAN_E_NOT_FOUND:
    case LAGAN_E_MODEL_NOT_FOUND:
        return CTL_NOT_FOUND;
    case LAGAN_E_DRAINING:
    case LAGAN_E_DEVICE_LOST:
        return CTL_UNAVAILABLE;
    case LAGAN_E_DEADLINE:
        return CTL_TIMEOUT;
    case LAGAN_E_CONFIGURATION:
        return CTL_CONFIG;
    case LAGAN_E_UNSUPPORTED:
        return CTL_REFUSED;
    default:
        return CTL_FAILED;
    }
}

int
ctl_exit_of_line(uint32_t reason)
{
    return reason == LAGAN_E_INVALID_REQUEST ? CTL_FAILED : ctl_exit_of(reason);
}

int
sibling_path(char *buf, size_t n, const char *program)
{
    static const char *const places[] = { "", "../sbin/", "../bin/", "../libexec/lagan/" };
    char self[1024], *slash;
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);

    if (len < 0) return -ENOENT;
    self[len] = '\0';
    slash = strrchr(self, '/');
    if (!slash) return -ENOENT;
    *slash = '\0';
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        if ((size_t)snprintf(buf, n, "%s/%s%s", self, places[i], program) >= n) return -ENOENT;
        if (!access(buf, X_OK)) return 0;
    }
    if ((size_t)snprintf(buf, n, PKGLIBEXECDIR "/%s", program) < n && !access(buf, X_OK)) return 0;
    return -ENOENT;
}

/* Returns 0 if a process listens on the socket of an ipc endpoint, else the negative errno of
 * connect(). libzmq does not report this error; it keeps trying to connect. */
static int
probe(const char *endpoint)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    int fd, r;

    if (strncmp(endpoint, "ipc://", 6) || endpoint[6] == '@') return 0;
    if (strlen(endpoint + 6) >= sizeof at.sun_path) return -ENAMETOOLONG;
    strcpy(at.sun_path, endpoint + 6);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -errno;
    r = connect(fd, (struct sockaddr *)&at, sizeof at) < 0 && errno != EAGAIN ? -errno : 0;
    close(fd);
    return r;
}

/* Writes ipc://DIR/ctl.sock into buf for ipc://DIR/api.sock or ipc://DIR/ctl.sock. Returns false
 * for other endpoints, which have no ctl.sock. */
static bool
ctl_endpoint(const char *api, char *buf, size_t n)
{
    size_t len = strlen(api);

    if (len < 9 || (strcmp(api + len - 9, "/api.sock") && strcmp(api + len - 9, "/ctl.sock")))
        return false;
    return (size_t)snprintf(buf, n, "%.*s/ctl.sock", (int)(len - 9), api) < n;
}

bool
ctl_listens(const struct ctl *ctl)
{
    char endpoint[sizeof ctl->endpoint];

    return ctl_endpoint(ctl->endpoint, endpoint, sizeof endpoint) && probe(endpoint) == 0;
}

bool
ctl_may_listen(const struct ctl *ctl)
{
    int r = probe(ctl->endpoint);

    return r != -ENOENT && r != -ECONNREFUSED;
}

int
ctl_connect(struct ctl *ctl, struct lagan **ret, bool privileged)
{
    char endpoint[sizeof ctl->endpoint];
    const char *file;
    int r;

    snprintf(endpoint, sizeof endpoint, "%s", ctl->endpoint);
    if (privileged && !ctl_endpoint(ctl->endpoint, endpoint, sizeof endpoint))
        return ctl_fail(CTL_REFUSED,
                        "this command needs ctl.sock on lagand's host, not %s: use --connect "
                        "ipc://DIR/ctl.sock, where DIR is lagand's runtime directory",
                        ctl->endpoint);
    r = probe(endpoint);
    file = strrchr(endpoint, '/');
    if (r == -EACCES || r == -EPERM)
        return ctl_fail(CTL_NO_PERMISSION, "this user may not use %s; members of the group %s may",
                        endpoint, file && !strcmp(file, "/ctl.sock") ? "lagan-admin" : "lagan");
    if (r < 0)
        return ctl_fail(CTL_UNREACHABLE,
                        "no lagand at %s: %s; start one, name its socket with --connect, or use "
                        "--spawn MODEL_DIR",
                        endpoint, strerror(-r));
    if (!strncmp(endpoint, "tcp://", 6) && !*ctl->o.keys)
        return ctl_fail(CTL_USAGE,
                        "%s needs --keys FILE; `laganctl keygen --help` describes the file",
                        endpoint);
    r = lagan_open_keys(ret, endpoint, *ctl->o.keys ? ctl->o.keys : NULL, OPEN_MS);
    if (r == -EACCES) return ctl_fail(CTL_NO_PERMISSION, "%s", lagan_errmsg(NULL));
    if (r == -EPROTONOSUPPORT) return ctl_fail(CTL_USAGE, "--connect: %s", lagan_errmsg(NULL));
    /* errors in the key file */
    if (*ctl->o.keys && (r == -ENOENT || r == -EINVAL || r == -E2BIG))
        return ctl_fail(CTL_CONFIG, "%s", lagan_errmsg(NULL));
    return r < 0 ? ctl_fail(CTL_UNREACHABLE, "%s", lagan_errmsg(NULL)) : 0;
}

/* Returns true for verbs that are called on ctl.sock: verbs for operators, and verbs that act on
 * the requests of all clients on ctl.sock, but only on those of the caller on api.sock. */
static bool
needs_ctl_sock(const char *verb)
{
    static const char *const verbs[] = { "requests list", "cancel",
#define X(id, name, operators, args, result) operators ? name : "",
                                         LAGAN_VERBS(X)
#undef X
    };
    size_t i = 0;

    while (i < ARRAY_LEN(verbs) && strcmp(verb, verbs[i])) i++;
    return i < ARRAY_LEN(verbs);
}

int
ctl_call(struct ctl *ctl, const char *verb, json_t *args, char **reply)
{
    char *text = args ? json_dumps(args, JSON_COMPACT) : NULL;
    struct lagan *c = ctl->api, *own = NULL;
    uint32_t code = 0;
    int r = 0;

    json_decref(args);
    if (needs_ctl_sock(verb)) {
        r = ctl_connect(ctl, &own, /* privileged= */ true);
        c = own;
    }
    if (r == 0) {
        r = lagan_call(c, verb, text, reply, &code, CALL_MS);
        if (r < 0 && ctl_signal)
            r = 128 + ctl_signal;
        else if (r == -EREMOTEIO && ctl->line)
            r = ctl_fail(ctl_exit_of_line(code), "%s: line %zu: %s", ctl->file, ctl->line,
                         lagan_errmsg(c));
        else if (r == -EREMOTEIO)
            r = ctl_fail(ctl_exit_of(code), "%s", lagan_errmsg(c));
        else if (r == -ETIMEDOUT)
            r = ctl_fail(CTL_TIMEOUT, "%s", lagan_errmsg(c));
        else if (r < 0)
            r = ctl_fail(r == -ECONNRESET ? CTL_UNREACHABLE : CTL_FAILED, "%s", lagan_errmsg(c));
    }
    lagan_close(own);
    free(text);
    return r;
}

int
ctl_ask(struct ctl *ctl, const char *verb, json_t *args, bool json, json_t **ret)
{
    char *reply = NULL;
    int r = ctl_call(ctl, verb, args, &reply);

    *ret = NULL;
    if (r) return r;
    if (json)
        puts(reply);
    else
        *ret = json_loads(reply, JSON_DECODE_ANY, NULL);
    free(reply);
    if (!json && !*ret) return ctl_fail(CTL_FAILED, "the reply of lagand to %s is not JSON", verb);
    return 0;
}
