/* zmtp.h - ZeroMQ's protocol as lagand speaks it on sockets of this host: ZMTP 3 (RFC 37), as a ROUTER, mechanism NULL.
 * What libzmq's own ROUTER lets pass of those who speak it is let pass here (its ZMTP 1 and 2, of before 2013, are
 * not); what breaks the protocol ends the connection, where libzmq would pass over some of it.
 *
 *     greeting   64 bytes: ff, 8 spare, 7f, version (3 and more), minor, mechanism in 20 bytes, 32 spare
 *     frame      flags, length (one byte; with ZMTP_LONG eight, big endian), so many bytes
 *     message    frames, all but the last with ZMTP_MORE
 *     command    a frame with ZMTP_COMMAND: length of a name, name, the rest. READY comes first, {Socket-Type},
 *                then, from 3.1 on, PING {time to live, 2 bytes; context} at any time, and its PONG {at most 16 bytes of that};
 *                others are passed over
 *
 * The other end is hostile: bytes come in pieces of any size, and what is kept of them is what they were, never
 * what they promise. A frame that lies whole in a piece is not copied. Of a message of several frames nothing is
 * kept, since none of lagan's is one. One thread; pure but for malloc().
 */
#ifndef WIRE_ZMTP_H
#define WIRE_ZMTP_H

#include "base/base.h"

enum zmtp_flag { ZMTP_MORE = 1, ZMTP_LONG = 2, ZMTP_COMMAND = 4 };
enum { ZMTP_GREETING = 64, ZMTP_CONTEXT = 16, ZMTP_HEAD = 9 };
enum { ZMTP_PONG = 2 + 5 + ZMTP_CONTEXT, ZMTP_PING = 2 + 5 + 2 };

/* One connection's incoming half. Begins as {0}. */
struct zmtp {
    enum zmtp_state {
        ZMTP_GREETED,
        ZMTP_SHAKEN,
        ZMTP_OPEN
    } state;    /* what comes next: greeting, READY, anything */
    bool given; /* the body was handed out */
    bool pings; /* of the greeting: it knows PING (3.1; libzmq 4.1 hands one to its program) */
    uint8_t n_head, head[ZMTP_GREETING]; /* of the greeting, or of the frame under way */
    uint32_t size, got;                  /* of that frame, when its head is whole */
    uint32_t n_frames, before; /* of this message: frames that are whole, and their bytes */
    uint8_t *body;             /* [room]: got bytes of a frame that came in pieces */
    uint32_t room;
};

struct zmtp_item {
    enum zmtp_what { ZMTP_NOTHING, ZMTP_READY, ZMTP_MESSAGE, ZMTP_PINGED } what;
    const uint8_t *p; /* MESSAGE of one frame: its bytes; PINGED: the context */
    uint32_t n;
    uint32_t n_frames; /* MESSAGE */
};

/* Take of n > 0 bytes what belongs to at most one item: how many those are, at least one. item->p is valid while p
 * is, and until zmtp_done() or the next call. most: bytes of a message, or of a command.
 * -EPROTO: this is no ZMTP 3 without a mechanism, or broken; -EMSGSIZE: it is longer than may be; -ENOMEM. After
 * these there is nothing but zmtp_close(). */
int zmtp_take(struct zmtp *z, uint32_t most, const uint8_t *p, uint32_t n,
              struct zmtp_item *item) MUST_USE;
void zmtp_done(struct zmtp *z); /* the item has been used: what was kept for it is given back */
/* How many bytes of the frame under way are still to come; 0: none is, or its length is not known yet. */
uint32_t zmtp_missing(const struct zmtp *z);
void zmtp_close(struct zmtp *z); /* and {0} again */

/* What we say: greeting and READY, at once. */
const uint8_t *zmtp_hello(uint32_t *n);
uint32_t zmtp_head(uint8_t head[ZMTP_HEAD],
                   uint32_t n); /* of a message of n bytes; how long the head is */
/* Its sender may be taken for dead when nothing came from us for ttl tenths of a second. */
uint32_t zmtp_ping(uint8_t frame[ZMTP_PING], uint16_t ttl);
uint32_t zmtp_pong(uint8_t frame[ZMTP_PONG], const uint8_t *context, uint32_t n);

#endif
