/* listen.c - opens and closes the listeners: sockets, socket files and keys; see frontend.h. */
#include "base/log.h"
#include "daemon/config/options.h"
#include "daemon/config/runtime_dir.h"
#include "daemon/net/frontend.h"
#include "daemon/net/tcp_server.h"

#include <grp.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

/* Descriptors that connections of clients cannot use: OWN_FILES for lagand itself, WORKER_FILES for
 * each process of a worker with its standby and its arenas; together at least FILES_LEAST. */
enum { OWN_FILES = 96, WORKER_FILES = 32, FILES_LEAST = 256 };
enum { OPERATORS = 64 }; /* limit of connections at ctl.sock */
/* Connections accepted at api.sock above the limit until frontend.c closes an idle one for each. */
enum { UNACCEPTED = 64 };

static const struct listener {
    const char *name, *group;
} listeners[] = {
    [LISTENER_API] = { FRONTEND_SOCKET, "lagan" }, [LISTENER_CTL] = { "ctl.sock", "lagan-admin" }
};

static int
on_local(sd_event_source *s, int fd, uint32_t revents, void *arg)
{
    (void)s;
    (void)fd;
    (void)revents;
    unix_server_look(arg);
    return 0;
}

/* Lets the owner and, if it exists, the group connect to the socket file at path. */
static int
permit(const char *path, const char *group, struct err *e)
{
    struct group *g = getgrnam(group);

    if (chmod(path, 0660) < 0) return err_set(e, -errno, "%s: %s", path, strerror(errno));
    if (g && chown(path, (uid_t)-1, g->gr_gid) < 0 && errno != EPERM)
        return err_set(e, -errno, "%s: %s", path, strerror(errno));
    return 0;
}

/* Returns the socket api.sock that systemd opened at the right path; -1: lagand binds its own. */
static int
given_socket(struct daemon *d, struct fdstore *given)
{
    int fd = fdstore_take(given, FRONTEND_SOCKET);
    char path[RUNTIME_PATH];
    struct stat st;

    if (fd < 0) return -1;
    runtime_dir_path(d->runtime, FRONTEND_SOCKET, path);
    d->frontend->given = sd_is_socket_unix(fd, SOCK_STREAM, 1, path, 0) > 0 &&
                         lstat(path, &st) == 0 && S_ISSOCK(st.st_mode);
    if (d->frontend->given) return fd;
    log_warn("the inherited socket is not bound to the file %s; binding a new one", path);
    close(fd);
    return -1;
}

static int
open_listener(struct daemon *d, enum listener_id listener, uint32_t most, struct err *e)
{
    const struct listener *at = &listeners[listener];
    char path[RUNTIME_PATH];

    TRY(runtime_dir_vacate(d->runtime, at->name, e));
    runtime_dir_path(d->runtime, at->name, path);
    TRY(unix_server_listen(d->frontend->local, listener, path, most, e));
    return permit(path, at->group, e);
}

int
listen_read_keys(struct daemon *d, struct err *e)
{
    const struct options *o = &d->config->o;
    static struct curve_file keys;

    TRY(curve_read(&keys, o->keys, e));
    if (!*keys.secret)
        return err_set(e, -EINVAL, "%s has no secret key; `laganctl keygen` makes one", o->keys);
    if (!keys.n_peers)
        log_warn("%s: the file has no client keys; no client can connect over tcp", o->keys);
    d->frontend->keys = keys;
    explicit_bzero(&keys, sizeof keys);
    return 0;
}

/* Returns api.max_connections, or the number of descriptors beside the reserved ones if lower. */
static uint32_t
most_connections(const struct daemon *d)
{
    uint32_t asked = d->config->o.max_connections, most = asked, own = OWN_FILES;
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) < 0) return asked;
    for (uint32_t i = 0; i < d->config->n_models; i++) {
        const struct model_options *k = &d->config->model[i].keys;

        own += WORKER_FILES * k->workers * MAX(k->tensor_parallel, 1u);
    }
    own = MAX(own, (uint32_t)FILES_LEAST);
    if (files.rlim_cur < asked + own)
        most = files.rlim_cur > own ? (uint32_t)files.rlim_cur - own : 1;
    if (most < asked)
        log_warn(
            "api.max_connections is %u, but the limit of open files is %llu; accepting at most %u "
            "connections",
            asked, (unsigned long long)files.rlim_cur, most);
    return most;
}

int
listen_open(struct daemon *d, struct fdstore *given, struct err *e)
{
    struct frontend *f = d->frontend = calloc(1, sizeof *f);
    uint32_t most = most_connections(d) + UNACCEPTED;
    int fd, r;

    if (!f) return err_set(e, -ENOMEM, "no host memory for the state of api.sock and ctl.sock");
    msgpack_sbuffer_init(&f->ping);
    f->connections = connections_new(most - UNACCEPTED);
    f->local = unix_server_open(LAGAN_MAX_FRAME);
    if (!f->connections || !f->local)
        return err_set(e, -errno, "cannot create the server of api.sock and ctl.sock: %s",
                       strerror(errno));
    fd = given_socket(d, given);
    TRY(fd >= 0 ? unix_server_adopt(f->local, LISTENER_API, fd, most, e)
                : open_listener(d, LISTENER_API, most, e));
    TRY(open_listener(d, LISTENER_CTL, OPERATORS, e));
    r = sd_event_add_io(d->event, &f->on_local, unix_server_fd(f->local), EPOLLIN, on_local,
                        f->local);
    if (r < 0) return err_set(e, r, "cannot watch the sockets of clients: %s", strerror(-r));
    if (!*d->config->o.tcp) return 0;
    TRY(listen_read_keys(d, e));
    f->tcp = tcp_server_open(d, &f->keys, e);
    return f->tcp ? 0 : e->code;
}

void
listen_close(struct daemon *d)
{
    struct frontend *f = d->frontend;
    bool bound[ARRAY_LEN(listeners)];
    char path[RUNTIME_PATH];

    if (!f) return;
    for (uint32_t i = 0; i < ARRAY_LEN(listeners); i++)
        bound[i] = f->local && unix_server_listener(f->local, i) >= 0 &&
                   !(i == LISTENER_API && f->given);
    sd_event_source_disable_unref(f->on_local);
    /* At a re-exec libzmq gets time to send the reply to `daemon reexec`. */
    tcp_server_close(f->tcp, d->reexec_requested);
    unix_server_close(f->local);
    for (uint32_t i = 0; i < ARRAY_LEN(listeners); i++) {
        runtime_dir_path(d->runtime, listeners[i].name, path);
        if (bound[i]) unlink(path); /* the file of a socket that systemd opened stays */
    }
    msgpack_sbuffer_destroy(&f->ping);
    explicit_bzero(&f->keys, sizeof f->keys);
    connections_free(f->connections);
    free(f);
    d->frontend = NULL;
}
