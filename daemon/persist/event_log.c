/* event_log.c - see event_log.h. */
#include "daemon/persist/event_log.h"

#include "base/block_name.h"
#include "base/utf8.h"
#include "daemon/config/options.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAGIC "LAGANHS\2" /* the last byte is the version of the layout */

struct page { /* content of the memfd */
    char magic[8];
    int64_t pid;           /* pid of the lagand that writes it */
    uint64_t cache_key[4]; /* random; of it the names of KV blocks are made */
    struct tally {
        char model[64];
        uint32_t restarts;
    } tally[MAX_WORKERS];
    struct event event[EVENT_LOG_EVENTS];
    struct death_entry dead[EVENT_LOG_DEATHS];
};

struct event_log {
    struct page *page;
    int fd;
    int64_t former;            /* pid of the previous lagand; 0: none */
    uint64_t n_events, n_dead; /* events and deaths ever added */
};

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

/* ---- the memfd */

static int
make(void)
{
    int fd = memfd_create("lagand:history", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0) return -1;
    if (ftruncate(fd, sizeof(struct page)) == 0 && fallocate(fd, 0, 0, sizeof(struct page)) == 0 &&
        fcntl(fd, F_ADD_SEALS, SEALS) == 0)
        return fd;
    close(fd);
    return -1;
}

static struct page *
map(int fd)
{
    void *p = mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    return p == MAP_FAILED ? NULL : p;
}

/* Maps the memfd of a previous lagand. NULL: fd is not such a memfd, or has another layout. */
static struct page *
map_former(int fd)
{
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;
    struct page *p;

    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
        return NULL; /* a shrinking file would cause SIGBUS */
    if (fstat(fd, &st) < 0 || st.st_size != sizeof *p) return NULL;
    p = map(fd);
    if (!p || !memcmp(p->magic, MAGIC, sizeof p->magic)) return p;
    munmap(p, sizeof *p);
    return NULL;
}

#define ENDS(field) (memchr(field, 0, sizeof(field)) != NULL)

/* Returns true if e is a complete and valid event for index slot of the ring. */
static bool
event_is_valid(const struct event *e, uint32_t slot)
{
    return e->number && e->number < UINT64_MAX / 2 && (e->number - 1) % EVENT_LOG_EVENTS == slot &&
           ENDS(e->kind) && ENDS(e->subject) && ENDS(e->text);
}

/* The same for a death. */
static bool
death_is_valid(const struct death_entry *x, uint32_t slot)
{
    bool holds = x->number && x->number < UINT64_MAX / 2 &&
                 (x->number - 1) % EVENT_LOG_DEATHS == slot && ENDS(x->worker) && ENDS(x->cause) &&
                 ENDS(x->how) && ENDS(x->panic) && ENDS(x->frames) && x->n_lines <= LOG_LINES;

    for (uint32_t i = 0; holds && i < x->n_lines; i++) holds = ENDS(x->line[i]);
    return holds;
}

/* Validates what a previous lagand left in the memfd: clears invalid entries. */
static void
take_over(struct event_log *h)
{
    struct page *p = h->page;

    h->former = p->pid;
    for (uint32_t i = 0; i < EVENT_LOG_EVENTS; i++) {
        if (!event_is_valid(&p->event[i], i)) p->event[i].number = 0;
        h->n_events = MAX(h->n_events, p->event[i].number);
    }
    for (uint32_t i = 0; i < EVENT_LOG_DEATHS; i++) {
        if (!death_is_valid(&p->dead[i], i)) p->dead[i].number = 0;
        h->n_dead = MAX(h->n_dead, p->dead[i].number);
    }
    for (uint32_t i = 0; i < MAX_WORKERS; i++) p->tally[i].model[sizeof p->tally[i].model - 1] = 0;
}

struct event_log *
event_log_new(int fd)
{
    struct event_log *h = calloc(1, sizeof *h);

    if (!h) return NULL;
    h->fd = fd;
    h->page = fd < 0 ? NULL : map_former(fd);
    if (h->page) {
        take_over(h);
    } else {
        if (fd >= 0) close(fd);
        h->fd = make();
        h->page = h->fd < 0 ? NULL : map(h->fd);
        if (!h->page) return event_log_free(h);
        if (getrandom(h->page->cache_key, sizeof h->page->cache_key, 0) < 0)
            return event_log_free(h);
        memcpy(h->page->magic, MAGIC, sizeof h->page->magic);
    }
    h->page->pid = getpid();
    return h;
}

struct event_log *
event_log_free(struct event_log *h)
{
    if (!h) return NULL;
    if (h->page) munmap(h->page, sizeof *h->page);
    if (h->fd >= 0) close(h->fd);
    free(h);
    return NULL;
}

int
event_log_fd(const struct event_log *h)
{
    return h->fd;
}

void
event_log_cache_key(const struct daemon *d, uint32_t model, uint64_t ret[4])
{
    const char *name = d->config->model[model].keys.name;

    memset(ret, 0, 4 * sizeof ret[0]);
    if (!d->event_log) return; /* in tests without a loop */
    for (int i = 0; i < 4; i += 2)
        block_name(d->event_log->page->cache_key + i, name, strlen(name), ret + i);
}

int64_t
event_log_previous_pid(const struct event_log *h)
{
    return h->former;
}

/* ---- events */

static int64_t
now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Stores an entry's number, in order with other stores: 0 before a rewrite, the number after it. */
static void
put_number(uint64_t *at, uint64_t n)
{
    atomic_signal_fence(memory_order_seq_cst);
    *(volatile uint64_t *)at = n;
    atomic_signal_fence(memory_order_seq_cst);
}

void
event_log_add(struct daemon *d, const char *kind, const char *subject, const char *fmt, ...)
{
    struct event_log *h = d->event_log;
    struct event *e;
    va_list ap;

    if (!h) return; /* in tests without a loop */
    e = &h->page->event[h->n_events++ % EVENT_LOG_EVENTS];
    put_number(&e->number, 0);
    e->at_ms = now_ms();
    snprintf(e->kind, sizeof e->kind, "%s", kind);
    snprintf(e->subject, sizeof e->subject, "%s", subject);
    va_start(ap, fmt);
    vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    e->text[utf8_valid(e->text, strlen(e->text))] = 0; /* a cut character, or invalid bytes */
    put_number(&e->number, h->n_events);
}

const struct event *
event_log_event(const struct event_log *h, uint64_t number)
{
    uint64_t oldest = h->n_events > EVENT_LOG_EVENTS ? h->n_events - EVENT_LOG_EVENTS + 1 : 1;

    for (number = MAX(number, oldest); number <= h->n_events; number++) {
        const struct event *e = &h->page->event[(number - 1) % EVENT_LOG_EVENTS];

        if (e->number == number) return e; /* else the entry was incomplete */
    }
    return NULL;
}

uint64_t
event_log_next(const struct event_log *h)
{
    return h->n_events + 1;
}

/* ---- deaths */

void
event_log_death(struct daemon *d, const struct death_entry *death)
{
    struct event_log *h = d->event_log;
    struct death_entry *x;

    if (!h) return; /* in tests without a loop */
    x = &h->page->dead[h->n_dead++ % EVENT_LOG_DEATHS];
    put_number(&x->number, 0);
    *x = *death;
    x->number = 0;
    x->at_ms = now_ms();
    put_number(&x->number, h->n_dead);
}

const struct death_entry *
event_log_dead(const struct event_log *h, uint32_t back)
{
    uint64_t least = h->n_dead > EVENT_LOG_DEATHS ? h->n_dead - EVENT_LOG_DEATHS : 0;

    for (uint64_t n = h->n_dead; n > least; n--) {
        const struct death_entry *x = &h->page->dead[(n - 1) % EVENT_LOG_DEATHS];

        if (x->number == n && back-- == 0) return x;
    }
    return NULL;
}

/* ---- restarts */

uint32_t
event_log_restarts(struct daemon *d, uint32_t worker, const char *model)
{
    struct tally *t;

    if (!d->event_log) return 0; /* in tests without a loop */
    t = &d->event_log->page->tally[worker];
    if (strcmp(t->model, model)) t->restarts = 0;
    snprintf(t->model, sizeof t->model, "%s", model);
    return t->restarts;
}

void
event_log_set_restarts(struct daemon *d, uint32_t worker, uint32_t n)
{
    if (d->event_log) d->event_log->page->tally[worker].restarts = n;
}
