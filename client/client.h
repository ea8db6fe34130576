/* client.h - internals of liblagan: one connection, its open requests, received frames.
 *
 * open.c makes connections; client.c runs them: HELLO, send, receive, pings, loss; submit.c sends
 * requests; resume.c moves requests to another connection; event.c converts frames to events;
 * call.c is lagan_call(). All code runs in the caller's thread, inside the caller's calls; the
 * thread of libzmq only moves bytes. */
#pragma once

#include "base/clock.h"
#include "include/lagan.h"
#include "wire/curve.h"
#include "wire/msg.h"

#include <zmq.h>

enum {
    /* of a frame from lagand: enough for a long list of requests */
    CLIENT_MAX_NODES = 1 << 20,
    CLIENT_MAX_OUT = 4096, /* frames queued for sending */
};

/* a chunk that was read is acknowledged within this time */
#define CLIENT_ACK_AFTER (500 * NSEC_MS)
#define CLIENT_CONNECT_TIMEOUT (10 * NSEC_S) /* otherwise another connection is tried */

/* A timeout in ms as a time; below 0: never. */
static inline nsec
client_until(int timeout_ms)
{
    return timeout_ms < 0 ? NSEC_NEVER : clock_after(clock_now(), timeout_ms * (nsec)NSEC_MS);
}

struct frame { /* a received frame; m points into z */
    struct frame *next;
    zmq_msg_t z;
    struct msg m;
};
void frame_free(struct frame *f);
CLEAN_FUNC(struct frame, frame_free)

struct out { /* a frame to be sent once there is a connection */
    struct out *next;
    uint64_t call; /* rid if it is a CALL, else 0 */
    size_t n;
    char body[];
};

struct open_request { /* an open request; requests are sorted by rid */
    uint64_t rid;
    uint64_t taken, acked; /* chunk numbers: returned to the caller; acknowledged to lagand */
    uint32_t ack_window;

    /* The request as submitted: packed keys, prompt_logprobs last. Stored separately: the deadline,
     * and the seed if lagand chose it. */
    char *body;
    size_t n_plain, n_body;
    uint32_t n_plain_keys, n_prompt_keys;
    nsec deadline; /* NSEC_NEVER: none */
    uint64_t seed; /* the seed that lagand chose, if none was given */
    bool gave_seed, has_seed, no_resume, several_outputs; /* more than 1 output */

    /* delivered to the caller: output 0 */
    int32_t *ids;
    uint32_t n_ids, max_ids, n_prompt_have;
    uint64_t n_values[LAGAN_N_TENSORS]; /* delivered values of each tensor */
    uint64_t n_text;                    /* bytes of text of all outputs since the last SUBMIT */
    uint32_t n_more;                    /* delivered tokens of other outputs */
    bool text_incomplete;               /* the delivered text ends before the delivered tokens */

    bool accepted, known_to_lagand,
        cancelled;       /* accepted: by any lagand; known_to_lagand: by the current one */
    bool done_started;   /* events of its DONE are being delivered */
    msgpack_sbuffer end; /* entry of DONE for the output, once the last token has arrived */
    uint32_t n_tries;    /* SUBMITs since the last new token */
    nsec retry_at;       /* rejected after an accept: time of the next try; 0: none */
    nsec rejected_since; /* first rejection by a lagand without a worker for it; 0: none */
};

struct lagan {
    struct lagan *self; /* lets lagan_fd() of a const connection set watched */
    void *ctx, *sock, *mon;
    char endpoint[256];
    char server_key[CURVE_KEY + 1], public_key[CURVE_KEY + 1], secret_key[CURVE_KEY + 1];
    char errmsg[320];

    /* wake-up for event loops, see client_rearm() */
    int epoll, more, timer;
    bool watched, more_set;
    nsec timer_at;

    /* Life of the connection; each has its own socket. */
    bool hello_sent, welcome;
    nsec try_at;             /* before WELCOME: when to make another socket or to close this one */
    nsec wait;               /* delay between tries */
    uint8_t session[16];     /* random, sent in every HELLO; identifies our requests to lagand */
    char state[32];          /* of lagand, from WELCOME */
    nsec received, sent;     /* time of the last frame received and sent */
    nsec ping_at;            /* time of the first PING since the last received frame; 0: none */
    nsec disconnected_since; /* disconnected since this time, while welcome is false */
    nsec reconnect_timeout;  /* how long requests wait for a new connection */
    bool was_welcome;        /* there was a WELCOME on some connection */
    uint32_t n_breaks, n_sockets;
    uint64_t resume_rid; /* of the unanswered RESUME; 0: none */
    nsec ack_at;         /* latest time to send pending ACKs; 0: none pending */
    bool reporting_loss; /* end every open request with ERROR, then report DISCONNECTED */
    bool rejected;       /* lagand rejects us; errmsg has the reason */
    bool key_rejected;   /* because lagand does not know our key */
    char lost_why[240];
    uint32_t lost_code;

    uint64_t next_rid;
    struct open_request *requests;
    uint32_t n_requests, max_requests;
    uint64_t call_rid; /* lagan_call() waits for this rid; 0: none */
    struct frame *call_frame;

    struct frame *first, **last; /* received during lagan_call(), or made by the library */
    bool own_frame_queued;       /* a frame made by the library is queued */
    struct out *out_first, **out_last;
    uint32_t n_out;

    struct frame *current; /* frame of the last event */
    uint32_t next_output;
    int32_t *ids; /* aligned copies of the byte lists of the frame */
    float *logprob, *values;
    struct lagan_top_logprob *top;
    size_t max_ids, max_logprob, max_top, max_values;
};

/* client.c */
int client_fail(struct lagan *c, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Starts a message in an empty buffer; the caller packs n_keys entries. */
msgpack_packer client_begin(msgpack_sbuffer *b, uint32_t type, uint64_t rid, uint32_t n_keys);
int client_pack_ids(msgpack_packer *p, const int32_t *ids, size_t n); /* bin of i32 LE; -ENOMEM */
int client_send_cancel(struct lagan *c, uint64_t rid);
int client_send(struct lagan *c, const msgpack_sbuffer *b); /* returns 0, -EAGAIN, -ENOMEM */
int client_send_call(struct lagan *c, const msgpack_sbuffer *b, uint64_t rid);
void client_unsend_call(struct lagan *c, uint64_t rid); /* if it was not sent yet */
/* the connection is lost; RESUME will report all open requests */
bool client_disconnected(const struct lagan *c);
/* Receives frames and maintains the connection. Returns 1: *ret is a CHUNK, DONE or ERROR of an
 * open request; *ret is NULL if the awaited call was answered or lost, c->first has a new frame, or
 * the loss is to be reported. Returns 0: nothing until the time `until`. */
int client_step(struct lagan *c, struct frame **ret, nsec until);
void client_rearm(struct lagan *c);
struct open_request *client_find(struct lagan *c, uint64_t rid); /* NULL: not open */
void client_close_request(struct lagan *c, uint64_t rid);
/* sends ACKs that are due; all: also pending ones */
void client_ack(struct lagan *c, bool all);
void client_lose(struct lagan *c, uint32_t code, const char *why);
void client_drop_out(struct lagan *c);
/* The queue of received frames that lagan_next() has not returned yet. */
void client_queue_received(struct lagan *c, struct frame *f);
struct frame *client_take_received(struct lagan *c); /* NULL: empty */
void client_drop_received(struct lagan *c);

/* open.c */
int client_open_socket(struct lagan *c);
void client_close_socket(struct lagan *c);

/* resume.c */
void client_pack_submit(const struct open_request *r, msgpack_sbuffer *b);
void client_resume(struct lagan *c); /* after a WELCOME: sends RESUME with every request */
void client_resumed(struct lagan *c, const struct msg *m); /* handles the REPLY to RESUME */
/* Returns true, and schedules a retry, if lagand rejected a request that was accepted before. */
bool client_retries(struct lagan *c, struct open_request *r, uint32_t code);
/* cancels a request that waits for a retry */
void client_cancelled(struct lagan *c, struct open_request *r);
nsec client_retry_at(const struct lagan *c); /* NSEC_NEVER: no request waits */
void client_retry(struct lagan *c, nsec now);
