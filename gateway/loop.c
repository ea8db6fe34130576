/* loop.c - see loop.h.
 *
 * sd-event waits for sockets, liblagan, timers and signals. Before the handlers of an event the API
 * gets the time; after them it writes what is due, and finish_iteration() reports that the gateway
 * is ready and exits after the last request of a stop. */
#include "gateway/loop.h"

#include "base/log.h"
#include "gateway/api/api.h"
#include "gateway/backend.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>

#include "config.h"

/* After shutdown_timeout the errors of ended streams have this time to leave. */
#define LAST_WORDS NSEC_S
/* Connections that were accepted last have this time to send a request. */
#define FIRST_WORDS (500 * NSEC_MS)
/* Connections wait this long for lagand at the start, instead of getting 503. */
#define FIRST_WAIT NSEC_S

struct gateway {
    struct gateway_config *config;
    int argc;
    char **argv;
    sd_event *event;
    sd_event_source *timer;
    struct backend *backend;
    struct api *api;
    struct http *http;
    nsec started, stop_at; /* stop_at: time at which open requests are ended; 0: not stopping */
    nsec first_words_at;   /* stopping: time at which connections without a request are closed */
    bool ready, announced, drained;
    uint32_t n_listeners;
};

/* ---- configuration */

static struct api_config
api_settings(const struct gateway_config *c)
{
    return (struct api_config){
        .aliases = c->aliases,
        .default_max_tokens = c->max_tokens,
        .max_prompts = c->max_prompts,
        .max_n = c->max_n,
        .header_hold = c->header_hold,
        .sse_ping = c->sse_ping,
        .strict = c->strict,
        .open_metrics = true,
        .open_health = true,
        .version = PACKAGE_VERSION,
    };
}

/* Names a changed setting that a reload cannot apply, and keeps the value in force. */
static void
keep(char *new, const char *old, const char *key)
{
    if (strcmp(new, old)) log_warn("reload: %s has changed; it needs a restart", key);
    strcpy(new, old);
}

static int
on_hangup(sd_event_source *s, const struct signalfd_siginfo *si, void *arg)
{
    static struct gateway_config new, old;
    static struct problems problems;
    struct gateway *g = arg;
    struct api_config settings;
    struct http_limits limits;
    bool usage;
    struct err e;

    (void)s;
    (void)si;
    old = *g->config;
    if (gateway_config_read(&new, g->argc, g->argv, &problems, &usage) < 0) {
        for (uint32_t i = 0; i < problems.n; i++) log_err("reload: %s", problems.text[i]);
        log_err("reload: the configuration has errors; the former one stays in force");
        return 0;
    }
    keep(new.listen_text, old.listen_text, "listen");
    keep(new.lagand, old.lagand, "lagand");
    keep(new.lagand_keys, old.lagand_keys, "lagand_keys");
    if (new.max_connections > old.max_connections) {
        log_warn("reload: max_connections was raised; that needs a restart");
        new.max_connections = old.max_connections;
    }
    *g->config = new;
    settings = api_settings(g->config);
    if (api_configure(g->api, &settings, &e) < 0) {
        *g->config = old;
        log_err("reload: %s; the former configuration stays in force", e.text);
        return 0;
    }
    limits = gateway_limits(g->config);
    if (g->http) http_set_limits(g->http, &limits);
    log_level_set(log_level_choice(g->config->log_level));
    log_info("the configuration was read again");
    return 0;
}

/* ---- start and stop */

static void
announce(struct gateway *g)
{
    for (uint32_t i = 0; i < g->n_listeners; i++) {
        const char *address = http_address(g->http, i);

        printf("%s%s\n", strncmp(address, "unix:", 5) ? "http://" : "", address);
    }
    fflush(stdout);
    g->announced = true;
}

/* Reports that the gateway is ready: when lagand has answered, or after start_wait. */
static void
report_ready(struct gateway *g, nsec now)
{
    bool connected = backend_connected(g->backend);

    if (connected && g->config->announce && !g->announced) announce(g);
    if (g->ready || (!connected && now < clock_after(g->started, g->config->start_wait))) return;
    g->ready = true;
    sd_notifyf(0, "READY=1\nSTATUS=%s", connected ? "serving" : "lagand is not there yet");
}

static int
on_signal(sd_event_source *s, const struct signalfd_siginfo *si, void *arg)
{
    struct gateway *g = arg;
    nsec time = g->config->shutdown_timeout;

    (void)s;
    if (!g->http) return sd_event_exit(g->event, 0);
    if (g->stop_at) {
        log_warn("second signal %u: exiting without waiting for open requests", si->ssi_signo);
        return sd_event_exit(g->event, 0);
    }
    log_info("signal %u: stopping, %u open requests have %.0f s to finish", si->ssi_signo,
             http_counts(g->http).exchanges, (double)time / NSEC_S);
    sd_notifyf(0, "STOPPING=1\nSTATUS=stopping\nEXTEND_TIMEOUT_USEC=%llu",
               (unsigned long long)((MIN(time, 86400 * NSEC_S) + 5 * NSEC_S) / NSEC_US));
    backend_set_draining(g->backend);
    http_stop_listening(g->http);
    g->stop_at = clock_after(clock_now(), time);
    g->first_words_at = clock_after(clock_now(), MIN(time, FIRST_WORDS));
    return 0;
}

/* Exits when no request is open and none is being read; after stop_at, ends the requests that are
 * open. Returns when to call it again. */
static nsec
continue_stopping(struct gateway *g, nsec now)
{
    struct http_counts n = http_counts(g->http);
    bool late = now >= g->stop_at;

    if ((!n.exchanges && (!n.reading || now >= g->first_words_at)) || (late && g->drained)) {
        sd_event_exit(g->event, 0);
        return NSEC_NEVER;
    }
    if (!n.exchanges) return g->first_words_at;
    if (!late) return g->stop_at;
    api_drain(g->api);
    g->drained = true;
    g->stop_at = clock_after(now, LAST_WORDS);
    return g->stop_at;
}

/* ---- the loop */

/* Runs after the handlers of an event: what is due, readiness, stop; sets the timer. */
static void
finish_iteration(struct gateway *g)
{
    nsec now = clock_now(), next = api_iterate(g->api, now, (uint64_t)time(NULL));

    report_ready(g, now);
    if (!g->ready) next = MIN(next, clock_after(g->started, g->config->start_wait));
    if (g->stop_at) next = MIN(next, continue_stopping(g, now));
    if (next != NSEC_NEVER)
        sd_event_source_set_time(g->timer, (uint64_t)(MAX(next, now) / NSEC_US));
    sd_event_source_set_enabled(g->timer, next == NSEC_NEVER ? SD_EVENT_OFF : SD_EVENT_ONESHOT);
}

static int
run_loop(struct gateway *g)
{
    int r = 0;

    while (r >= 0 && sd_event_get_state(g->event) != SD_EVENT_FINISHED) {
        finish_iteration(g);
        r = sd_event_prepare(g->event);
        if (r == 0) r = sd_event_wait(g->event, UINT64_MAX);
        api_iterate(g->api, clock_now(), (uint64_t)time(NULL)); /* the time of the handlers */
        if (r > 0) r = sd_event_dispatch(g->event);
    }
    return MIN(r, 0);
}

static int
on_time(sd_event_source *s, uint64_t usec, void *arg)
{
    (void)s;
    (void)usec;
    (void)arg;
    return 0; /* the timer only wakes the loop */
}

static int
open_event(struct gateway *g, struct err *e)
{
    sigset_t mask;
    int r;

    /* Blocks the signals, because sd-event reads them from a signalfd. */
    sigemptyset(&mask);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGHUP);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    signal(SIGPIPE, SIG_IGN);
    r = sd_event_new(&g->event);
    if (r >= 0) r = sd_event_add_signal(g->event, NULL, SIGTERM, on_signal, g);
    if (r >= 0) r = sd_event_add_signal(g->event, NULL, SIGINT, on_signal, g);
    if (r >= 0) r = sd_event_add_signal(g->event, NULL, SIGHUP, on_hangup, g);
    if (r >= 0)
        r = sd_event_add_time(g->event, &g->timer, CLOCK_MONOTONIC, 0, NSEC_MS / NSEC_US, on_time,
                              g);
    /* sd-event notifies systemd's watchdog at half of its period, while the loop runs. */
    if (r >= 0) r = sd_event_set_watchdog(g->event, true);
    return r < 0 ? err_set(e, r, "cannot create the event loop: %s", strerror(-r)) : 0;
}

/* Checks a listening socket from systemd: other hosts must not reach it. */
static int
check_socket(int fd, struct err *e)
{
    union {
        struct sockaddr a;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } at;
    socklen_t n = sizeof at;
    bool local;

    memset(&at, 0, sizeof at);
    if (getsockname(fd, &at.a, &n) < 0)
        return err_set(e, -EINVAL, "descriptor %d from systemd is no socket: %s", fd,
                       strerror(errno));
    local = at.a.sa_family == AF_UNIX ||
            (at.a.sa_family == AF_INET && ntohl(at.v4.sin_addr.s_addr) >> 24 == 127) ||
            (at.a.sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&at.v6.sin6_addr));
    if (local) return 0;
    return err_set(
        e, -EINVAL,
        "ListenStream= of lagan-gateway.socket: other hosts can reach the address, which "
        "needs API keys, and this version has none; use 127.0.0.1 or a unix socket");
}

/* Waits until lagand is reachable, at most FIRST_WAIT. */
static int
await_lagand(struct gateway *g)
{
    nsec until = g->started + FIRST_WAIT, now;
    int r = 0;

    while (r >= 0 && (now = clock_now()) < until && !backend_connected(g->backend) &&
           sd_event_get_state(g->event) != SD_EVENT_FINISHED)
        r = sd_event_run(g->event, (uint64_t)((until - now) / NSEC_US));
    return r;
}

static int
open_http(struct gateway *g, struct err *e)
{
    struct http_limits limits = gateway_limits(g->config);
    struct http_handler handler = api_handler(g->api);
    int fds[HTTP_MAX_LISTEN], n_fds = sd_listen_fds(/* unset_environment= */ 1);

    n_fds = MAX(n_fds, 0);
    if (n_fds > HTTP_MAX_LISTEN)
        return err_set(e, -EINVAL, "systemd passed %d sockets; the limit is %d", n_fds,
                       HTTP_MAX_LISTEN);
    for (int i = 0; i < n_fds; i++) {
        fds[i] = SD_LISTEN_FDS_START + i;
        TRY(check_socket(fds[i], e));
    }
    g->n_listeners = n_fds ? (uint32_t)n_fds : g->config->n_addresses;
    TRY(http_open(&g->http, g->event, g->config->address, g->config->n_addresses, fds,
                  (uint32_t)n_fds, &limits, &handler, e));
    api_set_http(g->api, g->http);
    return 0;
}

static int
open_parts(struct gateway *g, struct err *e)
{
    struct api_config settings = api_settings(g->config);
    struct api_backend functions;
    int r;

    g->started = clock_now();
    if (getrandom(&settings.id_seed, sizeof settings.id_seed, 0) != sizeof settings.id_seed)
        return err_set(e, -EIO, "cannot get random bytes (getrandom): %s", strerror(errno));
    TRY(open_event(g, e));
    TRY(backend_open(&g->backend, g->event, g->config, e));
    functions = backend_functions(g->backend);
    TRY(api_new(&g->api, &settings, &functions, e));
    backend_set_api(g->backend, g->api);
    r = await_lagand(g);
    if (r < 0) return err_set(e, r, "the event loop failed: %s", strerror(-r));
    return sd_event_get_state(g->event) == SD_EVENT_FINISHED ? 0 : open_http(g, e);
}

int
gateway_run(struct gateway_config *c, int argc, char **argv, struct err *e)
{
    static struct gateway g;
    int r;

    g.config = c;
    g.argc = argc;
    g.argv = argv;
    r = open_parts(&g, e);
    if (r == 0) {
        for (uint32_t i = 0; i < g.n_listeners; i++)
            log_info("listening on %s", http_address(g.http, i));
        r = run_loop(&g);
        if (r < 0) err_set(e, r, "the event loop failed: %s", strerror(-r));
    }
    http_close(g.http);
    g.api = api_free(g.api);
    g.backend = backend_close(g.backend);
    sd_event_source_unref(g.timer);
    sd_event_unref(g.event);
    return r;
}
