/* session.h - fixed tables of the connected clients and of the users to which the clients belong.
 *
 * A client is one connection, found by its "id": the ZeroMQ routing id, or the peer number of
 * unix_server.h. A user is a uid of this host, or the name of a key over tcp. */
#pragma once
#include "base/base.h"
#include "daemon/daemon.h"
#include "daemon/ledger/ledger.h"
#include "wire/curve.h"

#include <sys/queue.h>

enum { MAX_ROUTING_ID = 255, MAX_USERS = 256, USER_NAME = 47 };
enum listener_id { LISTENER_API, LISTENER_CTL, LISTENER_TCP, N_LISTENERS };
#define CLIENT_NONE UINT32_MAX

/* A user: limits of the open requests of all its clients together. */
struct user {
    char name[USER_NAME + 1];             /* "uid:1000", "key:alice" */
    uint32_t n_clients, n_open, max_open; /* clients; open requests and their limit */
    uint64_t tokens, max_tokens; /* of prompts and still to generate; their limit, 0: none */
    /* lagand's CPU time for large frames and commands of the user, less the share that the user may
     * use (SHARE in messages.c) of the time until cpu_time_at. */
    nsec cpu_time, cpu_time_at;
};

struct client {
    uint32_t handle; /* table index and generation; never used again for another client */
    bool used;
    enum listener_id listener;
    uint8_t id_len, id[MAX_ROUTING_ID];
    nsec received_at;            /* time of the last message of any type */
    TAILQ_ENTRY(client) by_time; /* list ordered by received_at, the longest-idle client first */
    struct user *user;
    char key[CURVE_KEY + 1]; /* tcp: the public key */
    int fd;                  /* socket of the connection */
    uint64_t cookie;         /* tcp: the kernel's cookie of that socket; 0: unknown */
    bool ending;             /* is being closed; gets its final messages despite unread bytes */
    uint64_t ending_bytes;   /* value of `sent` after the final messages */
    nsec close_at;           /* when to close even if final messages are unread; 0: not waiting */
    bool socket_closed;      /* tcp: the socket has ended; a PING will check the routing id */
    bool disconnected;       /* tcp: libzmq does not know `id`; dropped after its queued frames */
    bool bye_sent;           /* was silent and got BYE; the next tick closes the connection */
    bool ping_pending;       /* a PING was sent whose PONG tells the number of bytes read */
    uint64_t sent, read;     /* bytes sent to the client; bytes that it is known to have read */
    bool has_session;
    struct session_id session;
    bool superseded; /* another connection resumed the session: SUBMIT is refused on this one */
    uint32_t n_open; /* requests without DONE or ERROR */
};

struct sessions;

/* Finds a user by name, or adds it, and counts one more client. NULL: the table is full. */
struct user *session_user(struct sessions *s, const char *name);
/* A request stores the number of its user. session_user_number() returns the number of a user,
 * session_user_at() the user that has a number. */
uint32_t session_user_number(const struct sessions *s, const struct user *u);
struct user *session_user_at(struct sessions *s, uint32_t number);

struct sessions *sessions_new(uint64_t seed) MUST_USE;
struct sessions *sessions_free(struct sessions *s);

/* Returns the client of an id, added if new. If the table is full, drops the longest-idle client
 * without open requests; *gone is its handle, else CLIENT_NONE. NULL: no client can be dropped. */
struct client *session_of(struct sessions *s, enum listener_id listener, const void *id,
                          size_t id_len, nsec now, uint32_t *gone);
/* Returns the client of an id; NULL: unknown. */
struct client *session_at(struct sessions *s, enum listener_id listener, const void *id,
                          size_t id_len);
struct client *session_find(struct sessions *s, uint32_t handle); /* NULL: was dropped */
void session_drop(struct sessions *s, struct client *c);
/* Returns the number of c in the fair queues, from 1; tcp clients with one key share a number. */
uint16_t session_flow(const struct sessions *s, const struct client *c);
uint32_t session_n(const struct sessions *s);
/* Returns the longest-idle client without open requests that is not an operator; NULL: none. */
struct client *session_idle(struct sessions *s);
/* Iterates over all clients: returns the next from index *at on and advances *at; NULL: the end. */
struct client *session_next(struct sessions *s, uint32_t *at);
