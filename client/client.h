/* client.h - inside liblagan: one connection, its open requests, what came and was not taken yet.
 *
 * client.c has the socket: connect, HELLO, send, receive, pings, loss. submit.c has requests going out,
 * event.c turns frames into events, call.c is lagan_call(). Everything runs in the caller's thread,
 * inside its calls; libzmq's own thread only moves bytes.
 */
#ifndef CLIENT_CLIENT_H
#define CLIENT_CLIENT_H

#include "base/clock.h"
#include "include/lagan.h"
#include "ipc/msg.h"

#include <zmq.h>

enum {
    CLIENT_MAX_NODES = 1 << 20, /* of a frame from lagand: a long list of requests fits */
    CLIENT_MAX_OUT = 4096,      /* frames that wait for a connection */
};

#define CLIENT_ACK_AFTER (500 * NSEC_MS) /* a chunk that was taken is acknowledged by then */

struct frame { /* received; m points into z */
    struct frame *next;
    zmq_msg_t z;
    struct msg m;
};
void frame_free(struct frame *f);
CLEAN_FUNC(struct frame, frame_free)

struct out { /* to be sent once there is a connection */
    struct out *next;
    size_t n;
    char body[];
};

struct row { /* an open request; rows are in the order of rid */
    uint64_t rid;
    uint64_t taken, acked; /* chunk numbers: given to the caller, told to lagand */
    uint32_t win;
};

struct lagan {
    struct lagan *self; /* so that lagan_fd() of a const connection can note that it is watched */
    void *ctx, *sock, *mon;
    char endpoint[256];
    char why[320];

    /* the wake-up for event loops, see client_rearm() */
    int epoll, more, timer;
    bool watched, more_set;
    nsec timer_at;

    /* the connection's life */
    bool hello_sent, welcome;
    uint8_t instance[16];
    char state[32];   /* of lagand, as WELCOME said */
    nsec heard, sent; /* last frame in, last frame out */
    nsec ping_at;     /* the first PING since something was heard; 0: none */
    nsec apart_since; /* no connection since then, while not welcome */
    nsec ack_at;      /* when waiting ACKs go out at the latest; 0: none wait */
    bool losing;      /* give every open request its ERROR, then LOST */
    bool refused;     /* lagand does not speak with us; why says so */
    char lost_why[240];
    uint32_t lost_code;

    uint64_t next_rid;
    struct row *rows;
    uint32_t n_rows, max_rows;
    uint64_t call_rid; /* lagan_call() waits for this rid; 0: none */
    struct frame *call_frame;

    struct frame *first, **last; /* came while lagan_call() waited */
    struct out *out_first, **out_last;
    uint32_t n_out;

    struct frame *now; /* the frame of the event given last */
    uint32_t next_output;
    int32_t *ids; /* aligned copies of what the frame holds as bytes */
    float *logprob;
    struct lagan_top *top;
    size_t max_ids, max_logprob, max_top;
};

/* client.c */
int client_fail(struct lagan *c, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);
int client_send(struct lagan *c, const msgpack_sbuffer *b); /* 0, -EAGAIN, -ENOMEM */
/* Receive, look after the connection. 1: *ret is a CHUNK, DONE or ERROR for an open request (or NULL:
 * the awaited call is answered or lost, or losing is set). 0: nothing within wait. */
int client_step(struct lagan *c, struct frame **ret, nsec until);
void client_rearm(struct lagan *c);
struct row *client_row(struct lagan *c, uint64_t rid); /* NULL: not open */
void client_close_row(struct lagan *c, uint64_t rid);
void client_ack(struct lagan *c, bool all); /* send what is due; all: whatever waits */
void client_lose(struct lagan *c, uint32_t code, const char *why);

/* call.c */
int client_pack_json(msgpack_packer *p, const char *text, size_t n, struct err *e);
char *client_json_text(const msgpack_object *o); /* NULL: no memory; free() it */

#endif
