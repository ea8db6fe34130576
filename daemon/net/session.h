/* session.h - fixed table of clients, found by the id of their connection (ZeroMQ's routing id, or
 * the peer number of unix_server.h), and of the users they belong to. */
#pragma once

#include "base/base.h"
#include "daemon/daemon.h"
#include "daemon/ledger/ledger.h"
#include "wire/curve.h"

#include <sys/queue.h>

enum { MAX_ROUTING_ID = 255, MAX_USERS = 256, USER_NAME = 47 };
enum listener_id { LISTENER_API, LISTENER_CTL, LISTENER_TCP, N_LISTENERS };
#define CLIENT_NONE UINT32_MAX

/* A user owns clients and limits what their open requests take together. */
struct user {
    char name[USER_NAME + 1]; /* "uid:1000", "key:alice" */
    uint32_t n_clients, n_open, max_open;
    uint64_t tokens, max_tokens; /* of prompts and still to generate; max 0: no limit */
    /* Spent on large frames and commands, less a share of the time since cpu_time_at. */
    nsec cpu_time, cpu_time_at;
};

struct client {
    uint32_t handle; /* index and generation: never used again for another client */
    bool used;
    enum listener_id listener;
    uint8_t id_len, id[MAX_ROUTING_ID];
    nsec received_at;            /* last message of any type */
    TAILQ_ENTRY(client) by_time; /* of received_at, the longest-idle client first */
    struct user *user;
    char key[CURVE_KEY + 1]; /* tcp: the public key */
    int fd;                  /* of its connection */
    uint64_t cookie;         /* tcp: the kernel's cookie of that socket; 0: unknown */
    bool ending;             /* its final messages are sent regardless of unread bytes */
    uint64_t ending_bytes;   /* value of `sent` after the final messages */
    nsec close_at;           /* when to close it if these are unread; 0: not waiting */
    bool socket_closed;      /* tcp: the socket has ended; check with PING */
    bool disconnected;       /* libzmq has no such peer; drop after its queued frames */
    bool ping_pending;       /* the PONG will tell how much it has read */
    uint64_t sent, read;     /* bytes; read: the last known value */
    bool has_session;
    struct session_id session;
    bool superseded; /* another connection resumed its session: no SUBMIT is accepted here */
    uint32_t n_open; /* requests without DONE or ERROR */
};

struct sessions;

/* Finds a user by name, or adds it. NULL: the table is full. A request refers to a user by number.
 */
struct user *session_user(struct sessions *s, const char *name);
uint32_t session_user_number(const struct sessions *s, const struct user *u);
struct user *session_user_at(struct sessions *s, uint32_t number);

struct sessions *sessions_new(uint64_t seed) MUST_USE;
struct sessions *sessions_free(struct sessions *s);

/* The client of an id, added if new. If the table is full, the longest-idle client without open
 * requests is dropped, and *gone is its handle. NULL: every client has open requests. */
struct client *session_of(struct sessions *s, enum listener_id listener, const void *id,
                          size_t id_len, nsec now, uint32_t *gone);
/* The client of an id; NULL: unknown. */
struct client *session_at(struct sessions *s, enum listener_id listener, const void *id,
                          size_t id_len);
struct client *session_find(struct sessions *s, uint32_t handle); /* NULL: dropped */
void session_drop(struct sessions *s, struct client *c);
/* Its number in fair queues, from 1: the number of its key, or of its connection. */
uint16_t session_flow(const struct sessions *s, const struct client *c);
uint32_t session_n(const struct sessions *s);
/* The longest-idle client without open requests that is not an operator; NULL: none. */
struct client *session_idle(struct sessions *s);
/* Iterates over all clients: the first one at or after *at; NULL at the end. */
struct client *session_next(struct sessions *s, uint32_t *at);
