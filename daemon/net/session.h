/* session.h - who talks to us: a fixed table of clients by the id of their connection: ZeroMQ's, or unix_server.h's number. */
#ifndef DAEMON_NET_SESSION_H
#define DAEMON_NET_SESSION_H

#include "base/base.h"
#include "daemon/daemon.h"
#include "daemon/ledger/ledger.h"
#include "wire/curve.h"

enum { MAX_ROUTING_ID = 255, MAX_USERS = 256, USER_NAME = 47 };
enum listener_id { LISTENER_API, LISTENER_CTL, LISTENER_TCP, N_LISTENERS };
#define CLIENT_NONE UINT32_MAX
#define SESSION_END UINT32_MAX

/* Whom clients belong to, and what their open requests may take together. */
struct user {
    char name[USER_NAME + 1]; /* "uid:1000", "key:alice" */
    uint32_t n_clients, n_open, max_open;
    uint64_t tokens, max_tokens; /* asked and to come; max 0: no limit */
    /* For its large frames and its commands, less a share of the time that has passed since. */
    nsec took, took_at;
};

struct client {
    uint32_t handle; /* index and generation: never the same again for another client */
    bool used;
    enum listener_id listener;
    uint8_t id_len, id[MAX_ROUTING_ID];
    nsec heard;          /* last message of any kind */
    uint32_t next, prev; /* in the order they were heard, SESSION_END at both ends */
    struct user *user;
    char key[CURVE_KEY + 1]; /* tcp: its public one */
    int fd;                  /* of its connection */
    uint64_t cookie;    /* tcp: by which the kernel tells that socket from any other; 0: unknown */
    bool last_words;    /* what is sent now is sent however much is under way; it ends here, */
    uint64_t last_word; /* in bytes sent: */
    nsec cut_at;        /* the connection is cut then if that is not read; 0: nothing to wait for */
    bool hung_up;       /* that connection (tcp) has ended: look again */
    bool over;          /* ZeroMQ knows it too: dropped when what it has said is heard */
    bool asked;         /* a PING is on the way that will tell how much it has read */
    uint64_t sent, read; /* bytes; read: as far as we know */
    bool has_session;
    struct session_id session;
    bool
        left; /* another connection of its session has asked for what is open: here nothing begins */
    uint32_t n_open; /* requests not answered for good */
};

struct sessions;

/* By name, made when it is new. NULL: there are too many. Rows hold users by number. */
struct user *session_user(struct sessions *s, const char *name);
uint32_t session_user_number(const struct sessions *s, const struct user *u);
struct user *session_user_at(struct sessions *s, uint32_t number);

struct sessions *sessions_new(uint64_t seed) MUST_USE;
struct sessions *sessions_free(struct sessions *s);

/* The client behind an id, made when it is new. A full table gives up the one that has been
 * silent longest and has no open request; NULL: there is none. *gone: the handle given up. */
struct client *session_of(struct sessions *s, enum listener_id listener, const void *id,
                          size_t id_len, nsec now, uint32_t *gone);
/* The same, and none is made; NULL: there is none. */
struct client *session_at(struct sessions *s, enum listener_id listener, const void *id,
                          size_t id_len);
struct client *session_find(struct sessions *s, uint32_t handle); /* NULL: gone */
void session_drop(struct sessions *s, struct client *c);
/* Whose turn it takes: a key's, wherever it comes from, or a connection's. From 1. */
uint16_t session_turns(const struct sessions *s, const struct client *c);
uint32_t session_n(const struct sessions *s);
/* Of those with no open request, but operators, the one that is silent longest; NULL: none. */
struct client *session_idle(struct sessions *s);
/* For a walk over all: the used one at or after place *at; NULL at the end. */
struct client *session_next(struct sessions *s, uint32_t *at);

#endif
