/* client.h - inside liblagan: one connection, its open requests, what came and was not taken yet.
 *
 * open.c makes connections, client.c has their life: HELLO, send, receive, pings, loss. submit.c has requests going out,
 * resume.c takes them over to another connection, event.c turns frames into events, call.c is
 * lagan_call(). Everything runs in the caller's thread,
 * inside its calls; libzmq's own thread only moves bytes.
 */
#ifndef CLIENT_CLIENT_H
#define CLIENT_CLIENT_H

#include "base/clock.h"
#include "include/lagan.h"
#include "wire/curve.h"
#include "wire/msg.h"

#include <zmq.h>

enum {
    CLIENT_MAX_NODES = 1 << 20, /* of a frame from lagand: a long list of requests fits */
    CLIENT_MAX_OUT = 4096,      /* frames that wait for a connection */
};

#define CLIENT_ACK_AFTER (500 * NSEC_MS)   /* a chunk that was taken is acknowledged by then */
#define CLIENT_STANDS_WITHIN (10 * NSEC_S) /* a connection, or another is tried */

struct frame { /* received; m points into z */
    struct frame *next;
    zmq_msg_t z;
    struct msg m;
};
void frame_free(struct frame *f);
CLEAN_FUNC(struct frame, frame_free)

struct out { /* to be sent once there is a connection */
    struct out *next;
    uint64_t call; /* rid of the CALL that it is; 0: it is none */
    size_t n;
    char body[];
};

struct row { /* an open request; rows are in the order of rid */
    uint64_t rid;
    uint64_t taken, acked; /* chunk numbers: given to the caller, told to lagand */
    uint32_t ack_window;

    /* what it was asked with: the packed keys, prompt_logprobs last; the deadline and, when it has one
     * from lagand, the seed beside them */
    char *body;
    size_t n_plain, n_body;
    uint32_t n_plain_keys, n_prompt_keys;
    nsec deadline;                                /* NSEC_NEVER: none */
    uint64_t seed;                                /* the one lagand chose, when none was given */
    bool gave_seed, has_seed, no_resume, several; /* several: outputs */

    /* what the caller has of it: output 0 */
    int32_t *ids;
    uint32_t n_ids, max_ids, n_prompt_have;
    uint64_t n_values[LAGAN_N_TENSORS]; /* of each tensor */
    uint64_t n_text;                    /* since it was submitted last, of all outputs */
    uint32_t n_more;                    /* tokens of other outputs */
    bool ragged;                        /* its tokens and its text do not end together */

    bool accepted, here, cancelled; /* accepted once; by the lagand we talk to */
    bool over;                      /* its DONE is being given */
    msgpack_sbuffer end; /* what its DONE will say of the output, once the last token is here */
    uint32_t n_tries;    /* submitted again without a new token since */
    nsec retry_at;       /* it was refused then: when to try again; 0: not */
    nsec refused_since;  /* by a lagand that cannot serve it; 0: not */
};

struct lagan {
    struct lagan *self; /* so that lagan_fd() of a const connection can note that it is watched */
    void *ctx, *sock, *mon;
    char endpoint[256];
    char server_key[CURVE_KEY + 1], public_key[CURVE_KEY + 1], secret_key[CURVE_KEY + 1];
    char why[320];

    /* the wake-up for event loops, see client_rearm() */
    int epoll, more, timer;
    bool watched, more_set;
    nsec timer_at;

    /* the connection's life: a socket has one, and goes with it */
    bool hello_sent, welcome;
    nsec try_at; /* before HELLO: when there is to be another socket, or this one is given up */
    nsec wait;   /* between tries */
    uint8_t session[16]; /* ours, in every HELLO: lagand knows our requests by it */
    uint8_t instance[16];
    char state[32];   /* of lagand, as WELCOME said */
    nsec heard, sent; /* last frame in, last frame out */
    nsec ping_at;     /* the first PING since something was heard; 0: none */
    nsec apart_since; /* no connection since then, while not welcome */
    nsec patience;    /* so long may requests wait for a new one */
    bool was_welcome; /* on some connection */
    uint32_t n_breaks, n_sockets;
    uint64_t resume_rid; /* of the RESUME that is not answered yet; 0: none */
    nsec ack_at;         /* when waiting ACKs go out at the latest; 0: none wait */
    bool losing;         /* give every open request its ERROR, then LOST */
    bool refused;        /* lagand does not speak with us; why says so */
    bool denied;         /* because it does not know our key */
    char lost_why[240];
    uint32_t lost_code;

    uint64_t next_rid;
    struct row *rows;
    uint32_t n_rows, max_rows;
    uint64_t call_rid; /* lagan_call() waits for this rid; 0: none */
    struct frame *call_frame;

    struct frame *first, **last; /* came while lagan_call() waited, or of our own making */
    bool came;                   /* one of our own has */
    struct out *out_first, **out_last;
    uint32_t n_out;

    struct frame *now; /* the frame of the event given last */
    uint32_t next_output;
    int32_t *ids; /* aligned copies of what the frame holds as bytes */
    float *logprob, *values;
    struct lagan_top_logprob *top;
    size_t max_ids, max_logprob, max_top, max_values;
};

/* client.c */
int client_fail(struct lagan *c, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);
int client_send(struct lagan *c, const msgpack_sbuffer *b); /* 0, -EAGAIN, -ENOMEM */
int client_send_call(struct lagan *c, const msgpack_sbuffer *b, uint64_t rid);
void client_unsend_call(struct lagan *c, uint64_t rid); /* if it still waits for a connection */
bool client_apart(const struct lagan *c); /* the connection broke: RESUME will say what is open */
/* Receive, look after the connection. 1: *ret is a CHUNK, DONE or ERROR for an open request (or NULL:
 * the awaited call is answered or lost, c->first has grown, or losing is set). 0: nothing by then. */
int client_step(struct lagan *c, struct frame **ret, nsec until);
void client_rearm(struct lagan *c);
struct row *client_row(struct lagan *c, uint64_t rid); /* NULL: not open */
void client_close_row(struct lagan *c, uint64_t rid);
void client_ack(struct lagan *c, bool all); /* send what is due; all: whatever waits */
void client_lose(struct lagan *c, uint32_t code, const char *why);

void client_drop_out(struct lagan *c);

/* open.c */
int client_open_socket(struct lagan *c);
void client_close_socket(struct lagan *c);

/* resume.c */
void client_pack_submit(const struct row *r, msgpack_sbuffer *b);
void client_resume(
    struct lagan *c); /* WELCOME came on a new connection: tell lagand of every row */
void client_resumed(struct lagan *c, const struct msg *m); /* its answer */
/* Was this a refusal of a request that had been accepted before? Then it is tried again later. */
bool client_retries(struct lagan *c, struct row *r, uint32_t code);
void client_cancelled(struct lagan *c, struct row *r); /* one that waits to be tried again */
nsec client_retry_at(const struct lagan *c);           /* NSEC_NEVER: nothing waits */
void client_retry(struct lagan *c, nsec now);

/* call.c */
int client_pack_json(msgpack_packer *p, const char *text, size_t n, struct err *e);
char *client_json_text(const msgpack_object *o); /* NULL: no memory; free() it */

#endif
