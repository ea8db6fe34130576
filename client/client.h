/* client.h - internals of liblagan: one connection, its open requests, received frames.
 *
 * open.c makes connections; client.c runs them: HELLO, send, receive, pings, loss; transport.h
 * carries frames; submit.c sends requests; resume.c moves requests to another connection;
 * event.c converts frames to events; call.c is lagan_call(). All code runs in the caller's
 * thread, inside the caller's calls. */
#pragma once
#include "base/clock.h"
#include "client/endpoint.h"
#include "client/transport.h"
#include "include/lagan.h"
#include "wire/curve.h"
#include "wire/msg.h"

enum {
    CLIENT_MAX_NODES = 1 << 20, /* MessagePack values in a frame from lagand: for long lists */
    CLIENT_MAX_OUT = 4096,      /* maximum number of frames queued for sending */
};

/* lagand gets an ACK within this time after the caller has read a chunk */
#define CLIENT_ACK_AFTER (500 * NSEC_MS)
#define CLIENT_CONNECT_TIMEOUT (10 * NSEC_S) /* without WELCOME by then, tries another transport */

/* Converts a timeout in milliseconds from now to a time; below 0: NSEC_NEVER. */
static inline nsec
client_until(int timeout_ms)
{
    return timeout_ms < 0 ? NSEC_NEVER : clock_after(clock_now(), timeout_ms * (nsec)NSEC_MS);
}

struct frame { /* a received frame; m points into bytes */
    struct frame *next;
    struct msg m;
    char bytes[];
};
/* Copies and decodes n bytes. *ret: the frame, also after -EBADMSG. -ENOMEM. */
int frame_new(struct frame **ret, const void *bytes, size_t n, struct err *e) MUST_USE;
void frame_free(struct frame *f);
CLEAN_FUNC(struct frame, frame_free)

struct out { /* a frame that is queued until it can be sent on a connection */
    struct out *next;
    uint64_t call; /* rid if the frame is a CALL, else 0 */
    size_t n;
    char body[];
};

struct open_request { /* an element of struct lagan.requests, which is sorted by rid */
    uint64_t rid;
    uint64_t taken, acked; /* number of the last chunk returned to the caller; acknowledged */
    uint32_t ack_window;

    /* The keys as submitted, packed, without deadline_ms and generated_ids: n_plain bytes, then up
     * to n_body bytes the key prompt_logprobs, which a SUBMIT with delivered tokens omits. */
    char *body;
    size_t n_plain, n_body;
    uint32_t n_plain_keys, n_prompt_keys;
    nsec deadline;        /* NSEC_NEVER: no deadline */
    uint64_t seed;        /* the seed that lagand chose, if the request has none */
    uint64_t accepted_at; /* UNIX time in seconds of the first ACCEPT; 0: unknown */
    bool gave_seed, has_seed, no_resume, several_outputs; /* several_outputs: n > 1 */

    /* Delivered to the caller: n_ids tokens of output 0, log-probabilities of n_prompt_have. */
    int32_t *ids;
    uint32_t n_ids, max_ids, n_prompt_have;
    uint64_t n_values[LAGAN_N_TENSORS]; /* number of delivered values of each tensor */
    uint64_t n_text;                    /* bytes of text of all outputs since the last SUBMIT */
    uint32_t n_more;                    /* number of delivered tokens of the other outputs */
    bool ack_held;                      /* the caller wants no ACK: lagan_ack_hold() */
    bool text_incomplete;               /* lagand has not sent the text of the last tokens yet */

    /* accepted: some lagand sent ACCEPT; known_to_lagand: the present one has the request */
    bool accepted, known_to_lagand, cancelled;
    bool done_started;   /* some events of its DONE were delivered */
    msgpack_sbuffer end; /* `end` of the last CHUNK: the output entry that DONE will have */
    uint32_t n_tries;    /* number of SUBMITs since the last new token */
    nsec retry_at;       /* time to submit the rejected request again; 0: not rejected */
    nsec rejected_since; /* first rejection because no worker serves the model; 0: none */
};

struct lagan {
    struct lagan *self;          /* lets lagan_fd(), whose argument is const, set watched */
    void *ctx;                   /* of libzmq; NULL: the endpoint is not tcp */
    struct transport *transport; /* NULL: it is opened at try_at */
    char endpoint[CLIENT_ENDPOINT];
    char server_key[CURVE_KEY + 1], public_key[CURVE_KEY + 1], secret_key[CURVE_KEY + 1];
    char errmsg[320];

    /* wake-up for event loops, see client_rearm() */
    int epoll, more, timer;
    bool watched, more_set;
    nsec timer_at;

    /* State of the present connection. Every connection has a new transport. */
    bool hello_sent, welcome;
    nsec try_at; /* before WELCOME: time to make a transport, or to replace the present one */
    nsec wait;   /* delay before the next transport is made */
    uint8_t session[16]; /* random, sent in every HELLO; identifies our requests to lagand */
    char state[32];      /* state of lagand, from WELCOME */
    char features[1024]; /* names of WELCOME, each behind a space, and a space; "": no WELCOME */
    nsec received, sent; /* time of the last received and of the last sent frame */
    nsec ping_at;        /* time of the first PING since the last received frame; 0: none */
    nsec disconnected_since; /* while welcome is false: time of the loss of the connection */
    nsec reconnect_timeout;  /* how long requests wait for a new connection */
    bool was_welcome;        /* there was a WELCOME, on this or an earlier connection */
    uint32_t n_breaks, n_transports; /* lost connections; transports made */
    uint64_t resume_rid;             /* rid of a RESUME without a REPLY; 0: none */
    nsec ack_at;                     /* latest time to send pending ACKs; 0: none pending */
    bool reporting_loss;   /* lagan_next() must end every request, then report DISCONNECTED */
    bool rejected;         /* lagand rejects us; errmsg has the reason */
    bool key_rejected;     /* rejected, because lagand does not know our key */
    bool connected;        /* libzmq has made a tcp connection, with or without WELCOME */
    bool handshake_failed; /* and its last CURVE handshake has failed; lost_why says so */
    char lost_why[240];
    uint32_t lost_code;

    uint64_t next_rid;
    struct open_request *requests;
    uint32_t n_requests, max_requests;
    nsec retry_at;     /* not later than any retry_at of a request; NSEC_NEVER: none */
    uint64_t ack_rid;  /* request with half a window of unacknowledged chunks; 0: none */
    uint64_t call_rid; /* lagan_call() waits for this rid; 0: none */
    /* Calls of lagan_start_call() that have no event yet: their rids; the first n_lost_calls
     * of them were lost with a connection. reply: JSON text of the last REPLY event. */
    uint64_t *calls;
    uint32_t n_calls, n_lost_calls, max_calls;
    char *reply;
    struct frame *call_frame;

    struct frame *first, **last; /* queue: received during lagan_call(), or made by us */
    bool own_frame_queued;       /* a frame made by the library is queued */
    struct out *out_first, **out_last;
    uint32_t n_out;

    struct frame *current; /* the frame into which the last event points */
    uint32_t next_output;  /* current is a DONE: index of the output of the next event */
    int32_t *ids;          /* aligned copies of the bins in current */
    float *logprob, *values;
    struct lagan_top_logprob *top;
    size_t max_ids, max_logprob, max_top, max_values;
};

/* client.c */
/* Stores the sentence for lagan_errmsg() and returns code. */
int client_fail(struct lagan *c, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Starts a message in the empty buffer b; the caller then packs n_keys keys with values. */
msgpack_packer client_begin(msgpack_sbuffer *b, uint32_t type, uint64_t rid, uint32_t n_keys);
int client_pack_ids(msgpack_packer *p, const int32_t *ids,
                    size_t n); /* as a bin of i32 LE; -ENOMEM */
int client_send_cancel(struct lagan *c, uint64_t rid);
int client_send(struct lagan *c, const msgpack_sbuffer *b); /* or queues; 0, -EAGAIN, -ENOMEM */
int client_send_call(struct lagan *c, const msgpack_sbuffer *b, uint64_t rid);
void client_unsend_call(struct lagan *c, uint64_t rid); /* removes a queued CALL */
/* Returns true if a connection was lost and the next one has no WELCOME yet. */
bool client_disconnected(const struct lagan *c);
/* Receives frames and maintains the connection until the time `until`, then returns 0. Returns 1
 * earlier: *ret is a CHUNK, DONE or ERROR of an open request; or *ret is NULL: the call of
 * lagan_call() was answered or lost, resume.c queued a frame, or client_lose() was called. */
int client_step(struct lagan *c, struct frame **ret, nsec until);
void client_rearm(struct lagan *c); /* makes lagan_fd() readable if there is work */
struct open_request *client_find(struct lagan *c, uint64_t rid); /* NULL: not open */
void client_close_request(struct lagan *c, uint64_t rid);
bool client_is_call(const struct lagan *c, uint64_t rid); /* of lagan_start_call() */
void client_close_call(struct lagan *c, uint64_t rid);
/* Sends the ACK of ack_rid; all: of every request with unacknowledged chunks. */
void client_ack(struct lagan *c, bool all);
/* Makes lagan_next() end all open requests with this error; drops the frames not sent yet. */
void client_lose(struct lagan *c, uint32_t code, const char *why);
void client_drop_out(struct lagan *c);
/* The queue of received frames that lagan_next() has not returned yet. */
void client_queue_received(struct lagan *c, struct frame *f);
struct frame *client_take_received(struct lagan *c); /* NULL: empty */
void client_drop_received(struct lagan *c);

/* call.c */
/* Converts a REPLY's result to JSON text, which the caller frees. NULL: no memory. */
char *client_reply_text(const struct msg *m);

/* open.c */
/* Stores the sentence for lagan_errmsg(NULL) of this thread and returns code. */
int client_fail_unconnected(int code, const char *fmt, ...) PRINTF_LIKE(2, 3);
int client_open_transport(struct lagan *c);

/* resume.c */
void client_pack_submit(const struct open_request *r, msgpack_sbuffer *b);
void client_resume(struct lagan *c);                       /* after a new WELCOME: sends RESUME */
void client_resumed(struct lagan *c, const struct msg *m); /* handles REPLY to RESUME */
/* Handles an ERROR with this code. Returns true and schedules another SUBMIT if the present lagand
 * has refused a request, for lack of space or workers, that an earlier lagand had accepted. */
bool client_retries(struct lagan *c, struct open_request *r, uint32_t code);
/* Ends a request with LAGAN_E_CANCELLED that waits to be submitted again. */
void client_cancelled(struct lagan *c, struct open_request *r);
nsec client_retry_at(const struct lagan *c);  /* time of the next client_retry() */
void client_retry(struct lagan *c, nsec now); /* submits requests whose retry_at has come */
