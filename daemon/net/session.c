/* session.c - see session.h. */
#include "daemon/net/session.h"

#include "base/fair_queue.h"
#include "base/map.h"

#include <stdio.h>

enum { INDEX_BITS = 10, INDEX_MASK = MAX_CLIENTS - 1 };
_Static_assert(MAX_CLIENTS == 1 << INDEX_BITS, "an index is part of the handle");

struct sessions {
    struct client client[MAX_CLIENTS];
    struct user user[MAX_USERS];
    struct map *by_id;
    uint32_t n, n_ever;           /* clients; entries of client[] used at least once */
    TAILQ_HEAD(, client) by_time; /* the longest-idle client first */
    uint64_t seed;
};

struct sessions *
sessions_new(uint64_t seed)
{
    struct sessions *s = calloc(1, sizeof *s);

    if (!s) return NULL;
    s->seed = seed;
    TAILQ_INIT(&s->by_time);
    s->by_id = map_new(MAX_CLIENTS);
    return s->by_id ? s : sessions_free(s);
}

struct sessions *
sessions_free(struct sessions *s)
{
    if (!s) return NULL;
    map_free(s->by_id);
    free(s);
    return NULL;
}

/* Returns a hash (FNV-1a) of an id. Clients choose ids, so a secret seed prevents collisions. */
static uint64_t
key_of(const struct sessions *s, enum listener_id listener, const uint8_t *id, size_t n)
{
    uint64_t h = (s->seed ^ (uint64_t)listener) * UINT64_C(0x100000001b3);

    for (size_t i = 0; i < n; i++) h = (h ^ id[i]) * UINT64_C(0x100000001b3);
    h = (h ^ h >> 31) * UINT64_C(0xd6e8feb86659fd93);
    return h ^ h >> 32;
}

static struct client *
oldest_idle(struct sessions *s, bool operators)
{
    struct client *c;

    TAILQ_FOREACH(c, &s->by_time, by_time)
    if (!c->n_open && (operators || c->listener != LISTENER_CTL)) return c;
    return NULL;
}

struct client *
session_idle(struct sessions *s)
{
    return oldest_idle(s, false);
}

static struct client *
place(struct sessions *s, uint32_t *gone)
{
    struct client *oldest;

    if (s->n_ever < MAX_CLIENTS) return &s->client[s->n_ever++];
    for (uint32_t i = 0; s->n < MAX_CLIENTS; i++)
        if (!s->client[i].used) return &s->client[i];
    oldest = oldest_idle(s, true);
    if (!oldest) return NULL;
    *gone = oldest->handle;
    session_drop(s, oldest);
    return oldest;
}

struct client *
session_at(struct sessions *s, enum listener_id listener, const void *id, size_t id_len)
{
    uint32_t i = map_find(s->by_id, key_of(s, listener, id, id_len));
    struct client *c = i == MAP_NONE ? NULL : &s->client[i];

    return c && c->listener == listener && c->id_len == id_len && !memcmp(c->id, id, id_len) ? c
                                                                                             : NULL;
}

struct client *
session_of(struct sessions *s, enum listener_id listener, const void *id, size_t id_len, nsec now,
           uint32_t *gone)
{
    struct client *c = session_at(s, listener, id, id_len);
    uint64_t key;
    uint32_t i;

    *gone = CLIENT_NONE;
    if (id_len > MAX_ROUTING_ID) return NULL;
    if (c) {
        c->received_at = now;
        TAILQ_REMOVE(&s->by_time, c, by_time);
        TAILQ_INSERT_TAIL(&s->by_time, c, by_time);
        return c;
    }
    key = key_of(s, listener, id, id_len);
    /* Another id has the same hash, by chance: refuses the new client. */
    if (map_find(s->by_id, key) != MAP_NONE) return NULL;
    c = place(s, gone);
    if (!c) return NULL;
    i = (uint32_t)(c - s->client);
    check(map_put(s->by_id, key, i) == 0);
    *c = (struct client){
        .handle = ((c->handle >> INDEX_BITS) + 1) << INDEX_BITS | i,
        .used = true,
        .listener = listener,
        .id_len = (uint8_t)id_len,
        .received_at = now,
        .fd = -1,
    };
    memcpy(c->id, id, id_len);
    TAILQ_INSERT_TAIL(&s->by_time, c, by_time);
    s->n++;
    return c;
}

struct client *
session_find(struct sessions *s, uint32_t handle)
{
    struct client *c = &s->client[handle & INDEX_MASK];

    return c->used && c->handle == handle ? c : NULL;
}

void
session_drop(struct sessions *s, struct client *c)
{
    check(c->used);
    if (c->user) c->user->n_clients--;
    check(map_take(s->by_id, key_of(s, c->listener, c->id, c->id_len)) != MAP_NONE);
    TAILQ_REMOVE(&s->by_time, c, by_time);
    c->used = false;
    s->n--;
}

struct user *
session_user(struct sessions *s, const char *name)
{
    struct user *empty = NULL;

    for (uint32_t i = 0; i < MAX_USERS; i++) {
        struct user *u = &s->user[i];

        if (!strcmp(u->name, name)) {
            u->n_clients++;
            return u;
        }
        if (!empty && !u->n_clients && !u->n_open) empty = u;
    }
    if (!empty) return NULL;
    *empty = (struct user){ .n_clients = 1 };
    snprintf(empty->name, sizeof empty->name, "%s", name);
    return empty;
}

uint32_t
session_user_number(const struct sessions *s, const struct user *u)
{
    return (uint32_t)(u - s->user);
}

uint16_t
session_flow(const struct sessions *s, const struct client *c)
{
    _Static_assert(MAX_USERS + MAX_CLIENTS < FAIR_QUEUE_CLIENTS,
                   "each client and each user has its own fairness number");
    if (c->listener == LISTENER_TCP) return (uint16_t)(1 + session_user_number(s, c->user));
    return (uint16_t)(1 + MAX_USERS + (c->handle & INDEX_MASK));
}

struct user *
session_user_at(struct sessions *s, uint32_t number)
{
    return &s->user[number];
}

uint32_t
session_n(const struct sessions *s)
{
    return s->n;
}

struct client *
session_next(struct sessions *s, uint32_t *at)
{
    while (*at < s->n_ever) {
        struct client *c = &s->client[(*at)++];

        if (c->used) return c;
    }
    return NULL;
}
