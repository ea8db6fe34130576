/* frontend_open.c - the doors: their sockets, files, keys and monitors; see frontend.h. */
#include "base/log.h"
#include "daemon/frontend.h"

#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

/* Of frames that wait to be taken ZeroMQ keeps one more than that for a connection: of the largest 37 MiB. */
enum { SEND_QUEUE = 4096, RECEIVE_QUEUE = 8 };
enum { OWN_FILES = 256 }; /* descriptors that are none of a client's */

static const struct door {
    const char *name, *group;
} doors[N_DOORS] = { [DOOR_API] = { "api.sock", "lagan" },
                     [DOOR_CTL] = { "ctl.sock", "lagan-admin" },
                     [DOOR_TCP] = { NULL, NULL } };

/* The descriptor only wakes the loop; what there is to do the pump finds. */
static int
on_ready(sd_event_source *s, int fd, uint32_t revents, void *arg)
{
    (void)s;
    (void)fd;
    (void)revents;
    *(bool *)arg = true;
    return 0;
}

static int
set(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof value);
}

static int
configure(void *s)
{
    int64_t most = LAGAN_MAX_FRAME;
    int r = zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &most, sizeof most);

    /* MANDATORY: a full or gone peer is an error of the send, not a message that vanishes. */
    r |= set(s, ZMQ_ROUTER_MANDATORY, 1);
    r |= set(s, ZMQ_LINGER, 0);
    r |= set(s, ZMQ_SNDHWM, SEND_QUEUE);
    r |= set(s, ZMQ_RCVHWM, RECEIVE_QUEUE);
    r |= set(s, ZMQ_BACKLOG, 512);
    r |= set(s, ZMQ_HANDSHAKE_IVL, 5000);
    r |= set(s, ZMQ_HEARTBEAT_IVL, 2000);
    r |= set(s, ZMQ_HEARTBEAT_TIMEOUT, 6000);
    r |= set(s, ZMQ_HEARTBEAT_TTL, 6000);
    return r;
}

/* Encrypted, and only for keys of the file. Where nobody answers ZAP's questions this libzmq would let
 * everybody in: so zap_open() comes before the socket is bound, and identify() wants a name of the file. */
static int
configure_tcp(void *s, const struct curve_file *keys)
{
    int r = set(s, ZMQ_CURVE_SERVER, 1);

    r |= zmq_setsockopt(s, ZMQ_CURVE_SECRETKEY, keys->secret, CURVE_KEY + 1);
    r |= zmq_setsockopt(s, ZMQ_ZAP_DOMAIN, ZAP_DOMAIN, strlen(ZAP_DOMAIN));
    r |= set(s, ZMQ_IPV6, 1);
    return r;
}

/* The socket's file: ours, and its group's if there is such a group. */
static int
permit(const char *path, const char *group, struct err *e)
{
    struct group *g = getgrnam(group);

    if (chmod(path, 0660) < 0) return err_set(e, -errno, "%s: %s", path, strerror(errno));
    if (g && chown(path, (uid_t)-1, g->gr_gid) < 0 && errno != EPERM) {
        return err_set(e, -errno, "%s: %s", path, strerror(errno));
    }
    return 0;
}

static int
bind_file(struct daemon *d, void *s, const struct door *door, struct err *e)
{
    char endpoint[340];
    const char *path = endpoint + strlen("ipc://");
    mode_t mask;
    int r;

    TRY(runtime_vacate(&d->runtime, door->name, e));
    snprintf(endpoint, sizeof endpoint, "ipc://%s/%s", d->runtime.dir, door->name);
    mask = umask(0117); /* never open wider than it will be */
    r = zmq_bind(s, endpoint) < 0 ? -errno : 0;
    umask(mask);
    if (r < 0) return err_set(e, r, "%s: cannot be bound: %s", path, zmq_strerror(-r));
    return permit(path, door->group, e);
}

static int
bind_tcp(struct daemon *d, void *s, struct err *e)
{
    const struct options *o = &d->config->o;
    struct frontend *f = d->front;
    char at[300] = "";
    size_t size = sizeof at;

    TRY(front_keys(d, e));
    f->zap = zap_open(d->zmq, d->event, &f->keys, e);
    if (!f->zap) return -EIO;
    if (configure_tcp(s, &f->keys)) {
        return err_set(e, -EIO, "%s: this libzmq has no CURVE: %s", o->tcp, zmq_strerror(errno));
    }
    if (zmq_bind(s, o->tcp) < 0) {
        return err_set(e, -errno, "api.tcp %s: cannot be bound: %s", o->tcp, zmq_strerror(errno));
    }
    zmq_getsockopt(s, ZMQ_LAST_ENDPOINT, at, &size);
    log_info("serving at %s for %u keys", at, f->keys.n_peers);
    return 0;
}

/* A socket's descriptor into the loop; *look says that it had something. */
static int
watch(struct daemon *d, void *s, sd_event_source **ret, bool *look)
{
    size_t size = sizeof(int);
    int fd;

    *look = true; /* there is no edge before it has been found empty */
    if (zmq_getsockopt(s, ZMQ_FD, &fd, &size) < 0) return -errno;
    return sd_event_add_io(d->event, ret, fd, EPOLLIN, on_ready, look);
}

/* What ZeroMQ knows of connections, in a socket of its own. */
static int
open_monitor(struct daemon *d, enum front_door door)
{
    struct frontend *f = d->front;
    char at[32];

    snprintf(at, sizeof at, "inproc://door-%d", (int)door);
    f->monitor[door] = zmq_socket(d->zmq, ZMQ_PAIR);
    /* Without a bound: ZeroMQ's thread would wait for us, and everyone for it. */
    if (!f->monitor[door] || set(f->monitor[door], ZMQ_LINGER, 0) ||
        set(f->monitor[door], ZMQ_RCVHWM, 0) ||
        zmq_socket_monitor(f->socket[door], at, ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED) < 0 ||
        zmq_connect(f->monitor[door], at) < 0)
        return -errno;
    return watch(d, f->monitor[door], &f->on_monitor[door], &f->news);
}

static int
open_door(struct daemon *d, enum front_door door, struct err *e)
{
    struct frontend *f = d->front;
    int r;

    f->socket[door] = zmq_socket(d->zmq, ZMQ_ROUTER);
    if (!f->socket[door] || configure(f->socket[door])) {
        return err_set(e, -EIO, "a socket for clients: %s", zmq_strerror(errno));
    }
    r = open_monitor(d, door);
    if (r < 0) return err_set(e, r, "a monitor for clients: %s", zmq_strerror(-r));
    TRY(door == DOOR_TCP ? bind_tcp(d, f->socket[door], e)
                         : bind_file(d, f->socket[door], &doors[door], e));
    r = watch(d, f->socket[door], &f->source[door], &f->look[door]);
    return r < 0 ? err_set(e, r, "a socket for clients: %s", strerror(-r)) : 0;
}

int
front_keys(struct daemon *d, struct err *e)
{
    const struct options *o = &d->config->o;
    static struct curve_file keys;

    TRY(curve_read(&keys, o->keys, e));
    if (!*keys.secret) {
        return err_set(e, -EINVAL, "%s: there is no secret; laganctl keygen makes one", o->keys);
    }
    if (!keys.n_peers) log_warn("%s: no client is in it, nobody can connect over tcp", o->keys);
    d->front->keys = keys;
    explicit_bzero(&keys, sizeof keys);
    return 0;
}

/* ZeroMQ would try without end to accept what there is no descriptor for. */
static uint32_t
most_connections(const struct daemon *d)
{
    uint32_t asked = d->config->o.max_connections, most = asked;
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) < 0) return asked;
    if (files.rlim_cur < asked + OWN_FILES)
        most = files.rlim_cur > OWN_FILES ? (uint32_t)files.rlim_cur - OWN_FILES : 1;
    if (most < asked)
        log_warn("api.max_connections is %u, and with %llu open files allowed %u are taken", asked,
                 (unsigned long long)files.rlim_cur, most);
    return most;
}

int
front_open(struct daemon *d, struct err *e)
{
    d->front = calloc(1, sizeof *d->front);
    if (!d->front) return err_set(e, -ENOMEM, "front end");
    msgpack_sbuffer_init(&d->front->ping);
    d->front->connections = connections_new(most_connections(d));
    if (!d->front->connections) return err_set(e, -ENOMEM, "front end");
    TRY(open_door(d, DOOR_API, e));
    TRY(open_door(d, DOOR_CTL, e));
    return *d->config->o.tcp ? open_door(d, DOOR_TCP, e) : 0;
}

static void
close_door(struct daemon *d, enum front_door door)
{
    struct frontend *f = d->front;
    char path[340];

    sd_event_source_disable_unref(f->source[door]);
    sd_event_source_disable_unref(f->on_monitor[door]);
    if (f->socket[door]) zmq_socket_monitor(f->socket[door], NULL, 0);
    if (f->monitor[door]) zmq_close(f->monitor[door]);
    if (!f->socket[door]) return;
    /* Its last answer is to the one who told it to begin again. */
    if (d->begin_again) set(f->socket[door], ZMQ_LINGER, 200);
    zmq_close(f->socket[door]);
    if (!doors[door].name) return;
    /* ZeroMQ unlinks behind our back, when it gets to it; then it is there no more. */
    snprintf(path, sizeof path, "%s/%s", d->runtime.dir, doors[door].name);
    unlink(path);
}

void
front_close(struct daemon *d)
{
    struct frontend *f = d->front;

    if (!f) return;
    for (int i = 0; i < N_DOORS; i++) close_door(d, (enum front_door)i);
    zap_close(f->zap);
    msgpack_sbuffer_destroy(&f->ping);
    explicit_bzero(&f->keys, sizeof f->keys);
    connections_free(f->connections);
    free(f);
    d->front = NULL;
}
