/* frontend.h - the listeners: DIR/api.sock and DIR/ctl.sock, which are unix_server.h's, and at api.tcp a ROUTER of libzmq's.
 *
 * Bytes in: bounded, decoded, refused or passed on. Bytes out: never blocking, and never more under way
 * to one client than 4 MiB. A frame that cannot be understood is answered, not punished; a client that
 * is gone is noticed by its socket, when it is written to, or by its silence. What a client may cost is
 * in the README.
 *
 * listen.c opens the listeners. frontend.c polls unix_server.c and tcp_server.c for events and passes each
 * whole frame up: d->events->frame().
 */
#ifndef DAEMON_NET_FRONTEND_H
#define DAEMON_NET_FRONTEND_H

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
    struct connections *connections; /* but the operators' */
    bool some_over;                  /* a client is hung_up or over */
    nsec full_said;                  /* when it was last said that they are as many as may be */
    struct curve_file keys;
    msgpack_sbuffer ping;
    bool given; /* api.sock is systemd's: it stays when we go */
};

/* Whose message it is, as its listener knows it. */
struct caller {
    enum listener_id listener;
    const void *id; /* of its connection */
    size_t id_len;
    int fd;
    uid_t uid;       /* of this host */
    const char *key; /* tcp: its public one, as its connection has proved */
};

#define FRONTEND_SOCKET "api.sock" /* as systemd/lagand.socket names it */

/* Bind all, but a socket for clients that systemd has opened, or a former lagand was given. -EADDRINUSE, -EEXIST,
 * -EACCES: where and why. */
int listen_open(struct daemon *d, struct fdstore *given, struct err *e) MUST_USE;
int listen_read_keys(struct daemon *d, struct err *e) MUST_USE; /* read api.keys */
/* Once more, if there are any: who is not in the file any more has no place here. Negative: they are as they were. */
int frontend_reload_keys(struct daemon *d, struct err *e) MUST_USE;
void listen_close(struct daemon *d);

/* What a client's user may have, by the keys as they were read last. false: there its key, or its name, is not. */
bool frontend_authorize(struct daemon *d, struct client *c);

/* Take what has come, within a budget: how many frames. *more: some are left. */
uint32_t frontend_pump(struct daemon *d, bool *more);
void frontend_look(struct daemon *d);  /* something may have come, an event has said so or not */
void frontend_flush(struct daemon *d); /* at the end of a turn: what was sent on this host leaves */
void frontend_tick(struct daemon *d);
/* Closes a connection of which no frame has come. */
void frontend_cut_silent(struct daemon *d, int fd);

/* Begin a message in d->out: the caller packs n_keys entries and sends before the next one begins. */
msgpack_packer frontend_begin(struct daemon *d, uint32_t type, uint64_t rid, uint32_t n_keys);
/* One frame to a client. 0, -EAGAIN: too much is under way to it; -EHOSTUNREACH: it is gone, all that it said is heard. */
int frontend_send(struct daemon *d, struct client *c, const void *frame, size_t n) MUST_USE;
/* Of chunks there may be much, and they wait sooner: 0, or -EAGAIN. Before one is made, which takes as long as sending it. */
int frontend_room(struct daemon *d, struct client *c) MUST_USE;
/* d->out, for which there was room. */
int frontend_send_chunk(struct daemon *d, struct client *c) MUST_USE;
int frontend_ping(struct daemon *d, struct client *c);
void frontend_pong(struct daemon *d, struct client *c, uint64_t t); /* it has read so many bytes */
/* End its connection, whatever it has not read. */
void frontend_cut(struct daemon *d, struct client *c);
/* Asks a client whose connection over tcp may have ended whether it is there (PING). true: it is not,
 * and this was known before: it has been dropped. */
bool frontend_probe(struct daemon *d, struct client *c);
/* An ERROR message: code of enum lagan_reason. Result as frontend_send(). */
int frontend_error(struct daemon *d, struct client *c, uint64_t rid, uint32_t code,
                   uint32_t delivered, const char *fmt, ...) PRINTF_LIKE(6, 7);
/* REPLY {result: ...}: begin, then the caller packs one value into *p, then end. */
void frontend_reply(struct daemon *d, uint64_t rid, msgpack_packer *p);
void frontend_reply_end(struct daemon *d, struct client *c);

/* d->out as an answer that nothing waits for: a client that cannot take it has lost it. */
void frontend_answer(struct daemon *d, struct client *c);
/* A refusal that no request stands behind. */
#define FRONTEND_REFUSE(d, c, rid, code, ...) \
    do { \
        (d)->n_refused++; \
        (void)frontend_error(d, c, rid, code, 0, __VA_ARGS__); \
    } while (0)

#endif
