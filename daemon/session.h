/* session.h - who talks to us: a fixed table of clients by ZeroMQ routing id. */
#ifndef DAEMON_SESSION_H
#define DAEMON_SESSION_H

#include "base/base.h"
#include "daemon/ledger.h"

enum { MAX_CLIENTS = 1024, MAX_ROUTING_ID = 255 };
enum front_door { DOOR_API, DOOR_CTL, N_DOORS };
#define CLIENT_NONE UINT32_MAX

struct client {
    uint32_t handle; /* index and generation: never the same again for another client */
    bool used;
    enum front_door door;
    uint8_t id_len, id[MAX_ROUTING_ID];
    nsec heard; /* last message of any kind */
    bool has_session;
    struct session_id session;
    uint32_t n_open; /* requests not answered for good */
};

struct sessions;

struct sessions *sessions_new(uint64_t seed) MUST_USE;
struct sessions *sessions_free(struct sessions *s);

/* The client behind a routing id, made when it is new. A full table gives up the one that has been
 * silent longest and has no open request; NULL: there is none. *gone: the handle given up. */
struct client *session_of(struct sessions *s, enum front_door door, const void *id, size_t id_len,
                          nsec now, uint32_t *gone);
struct client *session_find(struct sessions *s, uint32_t handle); /* NULL: gone */
void session_drop(struct sessions *s, struct client *c);
uint32_t session_n(const struct sessions *s);
/* For a walk over all: the used one at or after place *at; NULL at the end. */
struct client *session_next(struct sessions *s, uint32_t *at);

#endif
