/* frontend.h - the doors: ZeroMQ ROUTER sockets at DIR/api.sock and DIR/ctl.sock, and one at api.tcp.
 *
 * Bytes in: bounded, decoded, refused or passed on. Bytes out: never blocking, and never more under way
 * to one client than 4 MiB. A frame that cannot be understood is answered, not punished; a client that
 * is gone is noticed by ZeroMQ's monitor, when it is written to, or by its silence. What a client may cost is
 * in the README.
 *
 * frontend_open.c opens them, frontend.c moves frames, frontend_in.c is what a frame leads to.
 */
#ifndef DAEMON_FRONTEND_H
#define DAEMON_FRONTEND_H

#include "base/base.h"
#include "base/err.h"
#include "daemon/connections.h"
#include "daemon/daemon.h"
#include "daemon/session.h"
#include "daemon/zap.h"
#include "ipc/msg.h"

struct frontend {
    void *socket[N_DOORS], *monitor[N_DOORS];
    sd_event_source *source[N_DOORS], *on_monitor[N_DOORS];
    bool look[N_DOORS], news; /* something may have come; a connection may have begun or ended */
    struct connections *connections; /* but the operators' */
    nsec full_said;                  /* when it was last said that they are as many as may be */
    struct zap *zap;
    struct curve_file keys;
    msgpack_sbuffer ping;
};

/* Bind all. -EADDRINUSE, -EEXIST, -EACCES: where and why. */
int front_open(struct daemon *d, struct err *e) MUST_USE;
int front_keys(struct daemon *d, struct err *e) MUST_USE; /* read api.keys, also once more */
void front_close(struct daemon *d);

/* When there is news: connections that have begun, and ended. *more: some are left. */
void front_watch(struct daemon *d, bool *more);
/* Take what has come, within a budget: how many frames. *more: some are left. */
uint32_t front_pump(struct daemon *d, bool *more);

/* Begin a message in d->out: the caller packs n_keys entries and sends before the next one begins. */
msgpack_packer front_begin(struct daemon *d, uint32_t type, uint64_t rid, uint32_t n_keys);
/* One frame to a client. 0, -EAGAIN: too much is under way to it; -EHOSTUNREACH: it is gone. */
int front_send(struct daemon *d, struct client *c, const void *frame, size_t n) MUST_USE;
/* d->out, of which there may be much: it waits sooner. */
int front_send_chunk(struct daemon *d, struct client *c) MUST_USE;
int front_ping(struct daemon *d, struct client *c);
void front_pong(struct daemon *d, struct client *c, uint64_t t); /* it has read so many bytes */
/* End its connection, whatever it has not read. */
void front_cut(struct daemon *d, struct client *c);
/* One whose connection has ended as far as we know. true: it has, and the client is dropped. */
bool front_look(struct daemon *d, struct client *c);
/* An ERROR message: code of enum lagan_reason. Result as front_send(). */
int front_error(struct daemon *d, struct client *c, uint64_t rid, uint32_t code, uint32_t delivered,
                const char *fmt, ...) PRINTF_LIKE(6, 7);
/* REPLY {result: ...}: begin, then the caller packs one value into *p, then end. */
void front_reply(struct daemon *d, uint64_t rid, msgpack_packer *p);
void front_reply_end(struct daemon *d, struct client *c);

/* d->out as an answer that nothing waits for: a client that cannot take it has lost it. */
void front_answer(struct daemon *d, struct client *c);
/* A refusal that no request stands behind. */
#define FRONT_REFUSE(d, c, rid, code, ...) \
    do { \
        (d)->n_refused++; \
        (void)front_error(d, c, rid, code, 0, __VA_ARGS__); \
    } while (0)

/* What one frame of a client leads to; the frame has been received whole. */
void front_frame(struct daemon *d, struct client *c, const void *frame, size_t n);

#endif
