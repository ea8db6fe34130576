#include "gateway/http/http_internal.h"

#include <stdio.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

/* An iteration of the loop is short, so that other sources are served: events, or timeouts, and
 * then changed connections have MAX_TIME each. */
enum { MAX_EVENTS = 64 };
#define MAX_TIME (2 * NSEC_MS)
enum { MAX_ROUNDS = 32 }; /* of accept at the end: more than a backlog holds */
#define LISTENER_EVENT UINT32_MAX
#define MIN_PERIOD (10 * NSEC_MS)
#define MAX_PERIOD (250 * NSEC_MS)

/* Calls conn_update() for connections that changed, for none twice. */
static void
update_changed(struct http *h)
{
    struct http_exchange *last = TAILQ_LAST(&h->changed, exchange_list), *x;
    nsec until = clock_now() + MAX_TIME;
    bool is_last = !last;

    while (!is_last && (x = TAILQ_FIRST(&h->changed))) {
        is_last = x == last || clock_now() >= until;
        TAILQ_REMOVE(&h->changed, x, in_changed);
        x->is_changed = false;
        conn_update(x);
    }
}

static void
begin_iteration(struct http *h)
{
    h->now = clock_now();
    h->in_dispatch = true;
}

static void
end_iteration(struct http *h)
{
    update_changed(h);
    h->in_dispatch = false;
    sd_event_source_set_enabled(h->on_changed,
                                TAILQ_EMPTY(&h->changed) ? SD_EVENT_OFF : SD_EVENT_ONESHOT);
}

/* ---- timeouts */

static nsec
timeout_of(const struct http *h, enum wait_class wait)
{
    const struct http_limits *l = &h->limits;

    switch (wait) {
    case WAIT_HEAD:
        return l->header_timeout;
    case WAIT_IDLE:
        return l->idle_timeout;
    case WAIT_BODY:
        return l->body_timeout;
    case WAIT_WRITE:
        return l->write_timeout;
    case WAIT_LINGER:
        return HTTP_LINGER;
    default:
        return NSEC_NEVER;
    }
}

/* Timeouts are looked at with a fixed period: 1/8 of the shortest, 10 to 250 ms. */
static nsec
timer_period(const struct http *h)
{
    nsec shortest = NSEC_NEVER;

    for (enum wait_class w = 0; w < N_WAIT; w++) shortest = MIN(shortest, timeout_of(h, w));
    return MAX(MIN(shortest / 8, MAX_PERIOD), MIN_PERIOD);
}

static int
start_timer(struct http *h, nsec after)
{
    TRY(sd_event_source_set_time_relative(h->on_timer, (uint64_t)(after / NSEC_US)));
    return sd_event_source_set_enabled(h->on_timer, SD_EVENT_ONESHOT);
}

static void
watch_listeners(struct http *h, int op)
{
    for (uint32_t i = 0; i < h->n_listeners; i++) {
        struct epoll_event ev = { .events = EPOLLIN };

        ev.data.u64 = (uint64_t)LISTENER_EVENT << 32 | i;
        if (h->listener[i].fd >= 0) epoll_ctl(h->epoll, op, h->listener[i].fd, &ev);
    }
}

static int
on_timer(sd_event_source *s, uint64_t usec, void *ctx)
{
    struct http *h = ctx;
    bool in_time = true;

    (void)s, (void)usec;
    begin_iteration(h);
    for (enum wait_class w = 0; w < N_WAIT; w++) {
        struct http_exchange *x;

        while (in_time && (x = TAILQ_FIRST(&h->class[w])) &&
               h->now - x->since >= timeout_of(h, w)) {
            conn_expire(x);
            in_time = clock_now() < h->now + MAX_TIME;
        }
    }
    if (h->accept_is_delayed) {
        h->accept_is_delayed = false;
        watch_listeners(h, EPOLL_CTL_ADD);
    }
    end_iteration(h);
    return h->n_used ? start_timer(h, in_time ? timer_period(h) : 0) : 0;
}

/* ---- events */

static void
dispatch(struct http *h, const struct epoll_event *ev)
{
    uint32_t index = (uint32_t)ev->data.u64, generation = (uint32_t)(ev->data.u64 >> 32);

    if (generation == LISTENER_EVENT) {
        if (h->accept_is_delayed) return;
        listener_accept(h, &h->listener[index]);
        if (h->accept_is_delayed) watch_listeners(h, EPOLL_CTL_DEL);
    } else if (h->slot[index].state != CONN_FREE && h->slot[index].generation == generation)
        conn_event(&h->slot[index], ev->events);
}

static int
on_epoll(sd_event_source *s, int fd, uint32_t revents, void *ctx)
{
    struct http *h = ctx;
    struct epoll_event ev[MAX_EVENTS];
    int n = epoll_wait(fd, ev, MAX_EVENTS, 0);

    (void)s, (void)revents;
    begin_iteration(h);
    /* An event that is left is reported again. */
    for (int i = 0; i < n; i++) {
        dispatch(h, &ev[i]);
        if (clock_now() >= h->now + MAX_TIME) break;
    }
    end_iteration(h);
    if (h->n_used || h->accept_is_delayed) {
        int on = SD_EVENT_OFF;

        sd_event_source_get_enabled(h->on_timer, &on);
        if (on == SD_EVENT_OFF) return start_timer(h, timer_period(h));
    }
    return 0;
}

static int
on_changed(sd_event_source *s, void *ctx)
{
    struct http *h = ctx;

    (void)s;
    begin_iteration(h);
    end_iteration(h);
    return 0;
}

/* ---- open, close */

static int
open_listeners(struct http *h, const char *const *listen, uint32_t n_listen, const int *fds,
               uint32_t n_fds, struct err *e)
{
    uint32_t n = n_fds ? n_fds : n_listen;

    if (n > HTTP_MAX_LISTEN)
        return err_set(e, -EINVAL, "%u listen addresses are too many; at most %d", n,
                       HTTP_MAX_LISTEN);
    for (uint32_t i = 0; i < n; i++) {
        struct listener *l = &h->listener[i];

        l->fd = -1;
        h->n_listeners = i + 1;
        if (n_fds)
            TRY(listener_adopt(l, fds[i], e));
        else
            TRY(listener_open(l, listen[i], e));
    }
    return 0;
}

static int
watch(struct http *h)
{
    h->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (h->epoll < 0) return -errno;
    watch_listeners(h, EPOLL_CTL_ADD);
    TRY(sd_event_add_io(h->loop, &h->on_epoll, h->epoll, EPOLLIN, on_epoll, h));
    TRY(sd_event_add_defer(h->loop, &h->on_changed, on_changed, h));
    TRY(sd_event_source_set_enabled(h->on_changed, SD_EVENT_OFF));
    TRY(sd_event_add_time_relative(h->loop, &h->on_timer, CLOCK_MONOTONIC, 0, 0, on_timer, h));
    return sd_event_source_set_enabled(h->on_timer, SD_EVENT_OFF);
}

static struct http *
http_new(sd_event *loop, const struct http_limits *limits, const struct http_handler *handler)
{
    struct http *h = calloc(1, sizeof *h);

    if (!h) return NULL;
    h->loop = loop;
    h->limits = *limits;
    h->handler = *handler;
    h->epoll = -1;
    h->max_input = HTTP_INPUT_BYTES;
    TAILQ_INIT(&h->changed);
    TAILQ_INIT(&h->unused);
    for (enum wait_class w = 0; w < N_WAIT; w++) TAILQ_INIT(&h->class[w]);
    h->listens = true;
    h->n_slots = limits->connections + HTTP_SPARE;
    h->slot = calloc(h->n_slots, sizeof *h->slot);
    h->addresses = map_new(h->n_slots);
    if (!h->slot || !h->addresses) {
        map_free(h->addresses);
        free(h->slot);
        free(h);
        return NULL;
    }
    for (uint32_t i = h->n_slots; i-- > 0;) TAILQ_INSERT_HEAD(&h->unused, &h->slot[i], in_class);
    if (getrandom(&h->id_state, sizeof h->id_state, GRND_NONBLOCK) < 0)
        h->id_state = (uint64_t)clock_now() ^ (uint64_t)getpid() << 40;
    return h;
}

int
http_open(struct http **ret, sd_event *loop, const char *const *listen, uint32_t n_listen,
          const int *fds, uint32_t n_fds, const struct http_limits *limits,
          const struct http_handler *handler, struct err *e)
{
    struct http *h = http_new(loop, limits, handler);
    int r;

    if (!h)
        return err_set(e, -ENOMEM, "no memory for %u connections (max_connections)",
                       limits->connections);
    r = open_listeners(h, listen, n_listen, fds, n_fds, e);
    if (r == 0) {
        r = watch(h);
        if (r < 0) err_set(e, r, "cannot watch the listening sockets: %s", strerror(-r));
    }
    if (r < 0) {
        http_close(h);
        return r;
    }
    *ret = h;
    return 0;
}

void
http_close(struct http *h)
{
    if (!h) return;
    h->in_dispatch = true; /* no update follows */
    for (uint32_t i = 0; i < h->n_slots; i++)
        if (h->slot[i].state != CONN_FREE) conn_close(&h->slot[i], "closed");
    for (uint32_t i = 0; i < h->n_listeners; i++) listener_close(&h->listener[i]);
    sd_event_source_disable_unref(h->on_epoll);
    sd_event_source_disable_unref(h->on_changed);
    sd_event_source_disable_unref(h->on_timer);
    if (h->epoll >= 0) close(h->epoll);
    map_free(h->addresses);
    free(h->slot);
    free(h);
}

void
http_stop_listening(struct http *h)
{
    struct http_exchange *x;

    h->listens = false;
    begin_iteration(h);
    for (uint32_t i = 0; i < h->n_listeners; i++) {
        struct listener *l = &h->listener[i];

        /* The kernel resets waiting connections of a closed socket: they are served. */
        for (int n = 0; n < MAX_ROUNDS && l->is_shared && listener_accept(h, l); n++) continue;
        listener_close(l);
    }
    end_iteration(h);
    while ((x = TAILQ_FIRST(&h->class[WAIT_IDLE]))) conn_close(x, "closed");
}

void
http_set_limits(struct http *h, const struct http_limits *limits)
{
    h->limits = *limits;
    h->limits.connections = MIN(limits->connections, h->n_slots - HTTP_SPARE);
}

const char *
http_address(const struct http *h, uint32_t listener)
{
    return listener < h->n_listeners ? h->listener[listener].address : NULL;
}

struct http_counts
http_counts(const struct http *h)
{
    struct http_counts c = h->counts;

    c.connections = h->n_used;
    c.idle = h->n_class[WAIT_IDLE];
    c.reading = h->n_class[WAIT_HEAD] + h->n_class[WAIT_BODY];
    return c;
}

/* ---- the request of an exchange */

enum http_method
http_method(const struct http_exchange *x)
{
    return x->head.method;
}

struct http_text
http_path(const struct http_exchange *x)
{
    return (struct http_text){ x->head_text + x->head.path_at, x->head.path_n };
}

struct http_text
http_query(const struct http_exchange *x)
{
    return (struct http_text){ x->head.query_n ? x->head_text + x->head.query_at : NULL,
                               x->head.query_n };
}

struct http_text
http_body(const struct http_exchange *x)
{
    return (struct http_text){ x->in, x->body.n };
}

struct http_text
http_field(const struct http_exchange *x, const char *name, uint32_t nth)
{
    return head_field(&x->head, x->head_text, name, nth);
}

const char *
http_request_id(const struct http_exchange *x)
{
    return x->id;
}

const char *
http_peer(const struct http_exchange *x)
{
    return x->peer;
}

void
http_set_user(struct http_exchange *x, void *user)
{
    x->user = user;
}

void *
http_user(const struct http_exchange *x)
{
    return x->user;
}
