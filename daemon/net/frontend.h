/* frontend.h - all clients: DIR/api.sock and DIR/ctl.sock (unix_server.h), and api.tcp
 * (tcp_server.h).
 *
 * listen.c opens the listeners. frontend.c polls both servers and passes each whole frame up
 * through d->events->frame(). Sends never block, and a client has at most 4 MiB of unread messages.
 * An invalid frame gets an ERROR; its connection stays open. A lost client is detected by its
 * socket, at a send, or by the idle timeout. README.md has the limits of a client. */
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
    struct tcp_server *tcp;          /* NULL: nothing is served there */
    struct connections *connections; /* without those of operators */
    bool some_disconnected;          /* a client is socket_closed or disconnected */
    nsec full_logged_at;             /* when the limit of connections was last logged */
    struct curve_file keys;
    msgpack_sbuffer ping;
    bool given; /* systemd opened api.sock: it stays when lagand exits */
};

/* Sender of a message, as its listener knows it. */
struct caller {
    enum listener_id listener;
    const void *id; /* of its connection */
    size_t id_len;
    int fd;
    uid_t uid;       /* not tcp */
    const char *key; /* tcp: the authenticated public key */
};

#define FRONTEND_SOCKET "api.sock" /* as systemd/lagand.socket names it */

/* Opens all listeners; api.sock comes from `given` if systemd opened it. -EADDRINUSE, -EEXIST,
 * -EACCES. */
int listen_open(struct daemon *d, struct fdstore *given, struct err *e) MUST_USE;
int listen_read_keys(struct daemon *d, struct err *e) MUST_USE; /* reads api.keys */
/* Reads api.keys again and drops clients whose key was removed. On failure the old keys stay. */
int frontend_reload_keys(struct daemon *d, struct err *e) MUST_USE;
void listen_close(struct daemon *d);

/* Sets the limits of a client's user from the keys. Returns false if its key or name was removed.
 */
bool frontend_authorize(struct daemon *d, struct client *c);

/* Reads frames within a budget and returns their number. *more is set if some are left. */
uint32_t frontend_pump(struct daemon *d, bool *more);
void frontend_look(struct daemon *d); /* the next frontend_pump() asks all sockets */
/* Closes a connection that has sent no frame. */
void frontend_disconnect_fd(struct daemon *d, int fd);

/* Starts a message in d->out. The caller packs n_keys entries, then sends it. */
msgpack_packer frontend_begin(struct daemon *d, uint32_t type, uint64_t rid, uint32_t n_keys);
/* Sends one frame. -EAGAIN: the client has too many unread bytes. -EHOSTUNREACH: it is gone, and
 * all its frames were read. */
int frontend_send(struct daemon *d, struct client *c, const void *frame, size_t n) MUST_USE;
/* Returns 0 if a CHUNK may be sent, else -EAGAIN: chunks have 1/4 of the limit. Call it before
 * encoding a chunk, which costs as much as sending it. */
int frontend_check_space(struct daemon *d, struct client *c) MUST_USE;
/* Sends d->out after frontend_check_space() returned 0. */
int frontend_send_chunk(struct daemon *d, struct client *c) MUST_USE;
int frontend_ping(struct daemon *d, struct client *c);
void frontend_pong(struct daemon *d, struct client *c, uint64_t t); /* read: t bytes */
/* Closes its connection; unread messages are lost. */
void frontend_disconnect(struct daemon *d, struct client *c);
/* Sends PING to a tcp client whose connection may have ended. Returns true if libzmq has no such
 * peer for the second time: the client has been dropped. */
bool frontend_probe(struct daemon *d, struct client *c);
/* Sends ERROR; code: enum lagan_reason. Returns as frontend_send(). */
int frontend_error(struct daemon *d, struct client *c, uint64_t rid, uint32_t code,
                   uint32_t delivered, const char *fmt, ...) PRINTF_LIKE(6, 7);
/* Starts REPLY {result: ...}: the caller packs one value into *p, then calls
 * frontend_send_or_drop(). */
void frontend_reply(struct daemon *d, uint64_t rid, msgpack_packer *p);
/* Sends d->out, a reply that is not repeated: a client with too many unread bytes loses it. */
void frontend_send_or_drop(struct daemon *d, struct client *c);
/* ERROR for a message that is refused. */
#define FRONTEND_REFUSE(d, c, rid, code, ...) \
    do { \
        (d)->n_refused++; \
        (void)frontend_error(d, c, rid, code, 0, __VA_ARGS__); \
    } while (0)
