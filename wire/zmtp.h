/* zmtp.h - lagand's ZeroMQ for local sockets: a ROUTER of ZMTP 3 (RFC 37), mechanism NULL.
 *
 * Accepts the peers that a ROUTER of libzmq accepts, except ZMTP 1 and 2 (before 2013). Every
 * protocol violation ends the connection, whereas libzmq ignores some.
 *
 *     greeting   64 bytes: ff, 8 spare, 7f, version (>= 3), minor, mechanism (20), 32 spare
 *     frame      flags, length (1 byte; with ZMTP_LONG 8 bytes, big endian), that many bytes
 *     message    frames, all but the last with ZMTP_MORE
 *     command    a frame with ZMTP_COMMAND: length of the name, name, body. READY {Socket-Type} is
 *                first. From 3.1 on PING {time to live, 2 bytes; context} may come at any time;
 *                PONG {context} returns at most 16 bytes of it. Other commands are ignored.
 *
 * The peer may be hostile: bytes arrive in parts of any size, and memory is allocated for received
 * bytes only, never for an announced length. A frame that is complete in one part is not copied.
 * The frames of a multi-frame message are counted and dropped: no message of lagand has several. */
#pragma once
#include "base/base.h"

enum zmtp_flag { ZMTP_MORE = 1, ZMTP_LONG = 2, ZMTP_COMMAND = 4 };
enum { ZMTP_GREETING = 64, ZMTP_CONTEXT = 16, ZMTP_HEAD = 9 };
enum { ZMTP_HELLO = ZMTP_GREETING + 2 + 28 };
enum { ZMTP_PONG = 2 + 5 + ZMTP_CONTEXT, ZMTP_PING = 2 + 5 + 2 };

/* The receiving half of a connection. Initial value: {0}. */
struct zmtp {
    enum zmtp_state {
        ZMTP_GREETED,
        ZMTP_SHAKEN,
        ZMTP_OPEN
    } state;    /* the peer must send next: GREETED: its greeting; SHAKEN: READY; OPEN: any frame */
    bool given; /* body was returned to the caller and is freed by the next call */
    /* The peer's greeting is 3.1 or later, so it knows PING. An older peer (libzmq 4.1) would pass
     * a PING to its application. */
    bool pings;
    uint8_t n_head, head[ZMTP_GREETING]; /* received bytes of the greeting or of a frame's head */
    uint32_t size, got;                  /* length of the current frame; bytes of it received */
    uint32_t n_frames, before; /* complete frames of the current message, and their bytes */
    uint8_t *body;             /* [capacity]: got bytes of a frame that arrived in several parts */
    uint32_t capacity;
};

struct zmtp_item {
    enum zmtp_what { ZMTP_NOTHING, ZMTP_READY, ZMTP_MESSAGE, ZMTP_PINGED } what;
    const uint8_t *p; /* MESSAGE with one frame: its bytes; PINGED: the context */
    uint32_t n;
    uint32_t n_frames; /* MESSAGE: number of its frames */
};

/* Consumes the first of n > 0 received bytes p, up to the end of one item: READY, a message or
 * PING. Returns the number of bytes consumed, at least 1; item->what is ZMTP_NOTHING if no item is
 * complete. item->p is in p or in memory that zmtp_done() and the next call free. most: limit of a
 * message or command in bytes. -EPROTO: the bytes are not ZMTP 3 with mechanism NULL. -EMSGSIZE: a
 * message is longer than most. -ENOMEM. After a failure only zmtp_close() may be called. */
int zmtp_take(struct zmtp *z, uint32_t most, const uint8_t *p, uint32_t n,
              struct zmtp_item *item) MUST_USE;
void zmtp_done(struct zmtp *z); /* frees the memory of the last item */
/* Returns how many bytes of the current frame have not arrived; 0: no frame, or length unknown. */
uint32_t zmtp_missing(const struct zmtp *z);
void zmtp_close(struct zmtp *z); /* frees all memory and resets *z to {0} */

/* Writes the greeting and READY that start a connection: those of lagand, a ROUTER, or those of a
 * client, a DEALER of ZMTP 3.0, which has no PING. */
void zmtp_hello(uint8_t hello[ZMTP_HELLO], bool client);
/* Writes the head of a message of n bytes; returns the length of the head. */
uint32_t zmtp_head(uint8_t head[ZMTP_HEAD], uint32_t n);
/* Writes a PING and returns its length. It allows the peer to close the connection if it receives
 * nothing for ttl / 10 seconds. zmtp_pong() writes the reply to a PING with this context. */
uint32_t zmtp_ping(uint8_t frame[ZMTP_PING], uint16_t ttl);
uint32_t zmtp_pong(uint8_t frame[ZMTP_PONG], const uint8_t *context, uint32_t n);
