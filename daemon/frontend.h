/* frontend.h - the doors: DIR/api.sock and DIR/ctl.sock, which are local.h's, and at api.tcp a ROUTER of libzmq's.
 *
 * Bytes in: bounded, decoded, refused or passed on. Bytes out: never blocking, and never more under way
 * to one client than 4 MiB. A frame that cannot be understood is answered, not punished; a client that
 * is gone is noticed by its socket, when it is written to, or by its silence. What a client may cost is
 * in the README.
 *
 * frontend_open.c opens them, frontend.c moves frames, tcp.c those of tcp, frontend_in.c is what a frame leads to.
 */
#ifndef DAEMON_FRONTEND_H
#define DAEMON_FRONTEND_H

#include "base/base.h"
#include "base/err.h"
#include "daemon/connections.h"
#include "daemon/daemon.h"
#include "daemon/local.h"
#include "daemon/session.h"
#include "daemon/store.h"
#include "wire/curve.h"
#include "wire/msg.h"

struct tcp;

struct frontend {
    struct local *local;
    sd_event_source *on_local;
    struct tcp *tcp;                 /* NULL: nothing is served there */
    struct connections *connections; /* but the operators' */
    bool some_over;                  /* a client is hung_up or over */
    nsec full_said;                  /* when it was last said that they are as many as may be */
    struct curve_file keys;
    msgpack_sbuffer ping;
    bool given; /* api.sock is systemd's: it stays when we go */
};

/* Whose message it is, as its door knows it. */
struct caller {
    enum front_door door;
    const void *id; /* of its connection */
    size_t id_len;
    int fd;
    uid_t uid;       /* of this host */
    const char *key; /* tcp: its public one, as its connection has proved */
};

#define FRONT_SOCKET "api.sock" /* as systemd/lagand.socket names it */

/* Bind all, but a socket for clients that systemd has opened, or a former lagand was given. -EADDRINUSE, -EEXIST,
 * -EACCES: where and why. */
int front_open(struct daemon *d, struct store *given, struct err *e) MUST_USE;
int front_keys(struct daemon *d, struct err *e) MUST_USE; /* read api.keys */
/* Once more, if there are any: who is not in the file any more has no place here. Negative: they are as they were. */
int front_keys_again(struct daemon *d, struct err *e) MUST_USE;
void front_close(struct daemon *d);

/* What a client's user may have, by the keys as they were read last. false: there its key, or its name, is not. */
bool front_permit(struct daemon *d, struct client *c);

/* Take what has come, within a budget: how many frames. *more: some are left. */
uint32_t front_pump(struct daemon *d, bool *more);
void front_awake(struct daemon *d); /* something may have come, an event has said so or not */
void front_flush(struct daemon *d); /* at the end of a turn: what was sent on this host leaves */
void front_tick(struct daemon *d);
/* A connection has begun that counts; and make room by ending one that has said nothing. */
void front_begun(struct daemon *d, int fd);
void front_cut_silent(struct daemon *d, int fd);
/* A message has come: its frame, or that there are several. */
void front_take(struct daemon *d, const struct caller *from, const void *frame, size_t n,
                bool several);

/* Begin a message in d->out: the caller packs n_keys entries and sends before the next one begins. */
msgpack_packer front_begin(struct daemon *d, uint32_t type, uint64_t rid, uint32_t n_keys);
/* One frame to a client. 0, -EAGAIN: too much is under way to it; -EHOSTUNREACH: it is gone, all that it said is heard. */
int front_send(struct daemon *d, struct client *c, const void *frame, size_t n) MUST_USE;
/* Of chunks there may be much, and they wait sooner: 0, or -EAGAIN. Before one is made, which takes as long as sending it. */
int front_room(struct daemon *d, struct client *c) MUST_USE;
/* d->out, for which there was room. */
int front_send_chunk(struct daemon *d, struct client *c) MUST_USE;
int front_ping(struct daemon *d, struct client *c);
void front_pong(struct daemon *d, struct client *c, uint64_t t); /* it has read so many bytes */
/* End its connection, whatever it has not read. */
void front_cut(struct daemon *d, struct client *c);
/* A connection over tcp has ended, by its number; that may be another's already, so its client is asked, front_look():
 * one that is not there cannot be. Where that was known before it is dropped: true. */
void front_hung_up(struct daemon *d, int fd);
bool front_look(struct daemon *d, struct client *c);
/* All that came over tcp has been heard: front_look() for all who were not there. */
void front_heard(struct daemon *d);
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
