/* frontend.h - receives frames from all clients and sends frames to them, over DIR/api.sock and
 * DIR/ctl.sock (unix_server.h) and over api.tcp (tcp_server.h).
 *
 * listen.c opens the listeners. frontend.c polls both servers and passes each whole frame to
 * d->events->frame(). Sends never block, and a client has at most 4 MiB of unread messages. After
 * an invalid frame, which gets an ERROR, the connection stays open. lagand detects that a client is
 * lost when its socket ends, at a send, or by the idle timeout. README.md has a client's limits. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "daemon/daemon.h"
#include "daemon/net/connections.h"
#include "daemon/net/session.h"
#include "daemon/net/unix_server.h"
#include "daemon/persist/fdstore.h"
#include "wire/curve.h"
#include "wire/msg.h"

struct tcp_server;

struct frontend {
    struct unix_server *local;
    sd_event_source *on_local;
    struct tcp_server *tcp;          /* NULL: api.tcp is not configured */
    struct connections *connections; /* all except connections of operators (ctl.sock) */
    bool some_disconnected;          /* a client has socket_closed or disconnected set */
    nsec full_logged_at;             /* when the limit of connections was last logged */
    struct curve_file keys;
    msgpack_sbuffer ping;
    bool given; /* systemd opened api.sock, whose file stays when lagand exits */
};

/* Sender of a message, as its listener identifies it. */
struct caller {
    enum listener_id listener;
    const void *id; /* id_len bytes: ZeroMQ routing id, or peer number of unix_server.h */
    size_t id_len;
    int fd;          /* socket of the connection */
    uid_t uid;       /* uid of the process on AF_UNIX sockets */
    const char *key; /* tcp: the authenticated public key */
};

#define FRONTEND_SOCKET "api.sock" /* as systemd/lagand.socket names it */

/* Allocates d->frontend and opens all listeners; api.sock comes from `given` if systemd opened it.
 * -EADDRINUSE: a process listens on a socket. -EEXIST: a file is in the way. */
int listen_open(struct daemon *d, struct fdstore *given, struct err *e) MUST_USE;
int listen_read_keys(struct daemon *d, struct err *e) MUST_USE; /* reads the file api.keys */
/* Reads api.keys again and drops clients whose key was removed. Returns 1 if the keys have changed,
 * else 0. On failure the old keys stay. */
int frontend_reload_keys(struct daemon *d, struct err *e) MUST_USE;
void listen_close(struct daemon *d);

/* Sets the limits of c's user from the keys. Returns false if its key was removed or renamed. */
bool frontend_authorize(struct daemon *d, struct client *c);

/* Handles received frames within a budget and returns their number; sets *more if some are left. */
uint32_t frontend_pump(struct daemon *d, bool *more);
/* Makes the next frontend_pump() poll all sockets, not only those that had an event. */
void frontend_look(struct daemon *d);
/* Closes connection fd, which may belong to no client yet. */
void frontend_disconnect_fd(struct daemon *d, int fd);

/* Starts a message in d->out. The caller packs n_keys keys with values, then sends it. */
msgpack_packer frontend_begin(struct daemon *d, uint32_t type, uint64_t rid, uint32_t n_keys);
/* Sends a frame to c. -EAGAIN: c has too many unread bytes. -EHOSTUNREACH: c is disconnected. */
int frontend_send(struct daemon *d, struct client *c, const void *frame, size_t n) MUST_USE;
/* Returns 0 if a CHUNK may be sent to c, else -EAGAIN: unread CHUNKs may use 1/4 of the limit of
 * unread bytes. Call it before a CHUNK is encoded, because encoding costs as much as sending. */
int frontend_check_space(struct daemon *d, struct client *c) MUST_USE;
/* Sends the CHUNK in d->out, for which frontend_check_space() returned 0. */
int frontend_send_chunk(struct daemon *d, struct client *c) MUST_USE;
/* Sends PING with t, the number of bytes sent so far. A PONG with t: c has read all t bytes. */
int frontend_ping(struct daemon *d, struct client *c);
void frontend_pong(struct daemon *d, struct client *c, uint64_t t);
/* Closes the connection of c; its unread messages are lost. */
void frontend_disconnect(struct daemon *d, struct client *c);
/* Sends PING to tcp client c, whose connection may have ended. If libzmq does not know the routing
 * id of c, at this and at the previous send, drops c and returns true. */
bool frontend_probe(struct daemon *d, struct client *c);
/* Sends ERROR for request rid (0: for the connection). code: enum lagan_reason; delivered: how many
 * tokens c has got. Returns as frontend_send(). */
int frontend_error(struct daemon *d, struct client *c, uint64_t rid, uint32_t code,
                   uint32_t delivered, const char *fmt, ...) PRINTF_LIKE(6, 7);
/* As frontend_error(), with the length of the prompt and of the model, if the latter is known. */
int frontend_error_length(struct daemon *d, struct client *c, uint64_t rid, uint32_t code,
                          uint32_t delivered, const struct prompt_length *length,
                          const char *message);
/* Starts a REPLY in d->out; the caller packs one value into *p, calls frontend_send_or_drop(). */
void frontend_reply(struct daemon *d, uint64_t rid, msgpack_packer *p);
/* Sends d->out, a reply that lagand does not repeat: c loses it if c has too many unread bytes. */
void frontend_send_or_drop(struct daemon *d, struct client *c);
/* Refuses message rid with an ERROR and counts it. */
#define FRONTEND_REFUSE(d, c, rid, code, ...) \
    do { \
        (d)->n_refused++; \
        (void)frontend_error(d, c, rid, code, 0, __VA_ARGS__); \
    } while (0)
