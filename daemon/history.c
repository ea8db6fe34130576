/* history.c - see history.h. */
#include "daemon/history.h"

#include "ipc/msg.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct history {
    struct event event[HISTORY_EVENTS];
    struct dead dead[HISTORY_DEATHS];
    uint64_t n_events, n_dead; /* ever */
};

struct history *
history_new(void)
{
    return calloc(1, sizeof(struct history));
}

struct history *
history_free(struct history *h)
{
    free(h);
    return NULL;
}

static int64_t
now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void
history_add(struct daemon *d, const char *kind, const char *who, const char *fmt, ...)
{
    struct history *h = d->history;
    struct event *e;
    va_list ap;

    if (!h) return; /* tests without a loop */
    e = &h->event[h->n_events++ % HISTORY_EVENTS];
    e->number = h->n_events;
    e->at_ms = now_ms();
    snprintf(e->kind, sizeof e->kind, "%s", kind);
    snprintf(e->who, sizeof e->who, "%s", who);
    va_start(ap, fmt);
    vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    for (size_t n = strlen(e->text); !msg_utf8(e->text, n);) e->text[--n] = 0; /* cut, or theirs */
}

const struct event *
history_event(const struct history *h, uint64_t number)
{
    uint64_t oldest = h->n_events > HISTORY_EVENTS ? h->n_events - HISTORY_EVENTS + 1 : 1;

    number = MAX(number, oldest);
    return number > h->n_events ? NULL : &h->event[(number - 1) % HISTORY_EVENTS];
}

void
history_death(struct worker *w, const struct death *death, const char *how, const char *words)
{
    struct history *h = w->d->history;
    struct dead *x;

    history_add(w->d, "death", w->name, "pid %d, %s: %s, %s", (int)w->pid, death_word(death->cause),
                how, death_sentence(death->cause));
    if (!h) return;
    x = &h->dead[h->n_dead++ % HISTORY_DEATHS];
    *x = (struct dead){ .at_ms = now_ms(),
                        .cause = death_word(death->cause),
                        .epoch = w->epoch,
                        .pid = w->pid,
                        .n_rows = w->n_rows,
                        .n_lines = MIN(w->n_lines, (uint32_t)LOG_LINES) };
    snprintf(x->worker, sizeof x->worker, "%s", w->name);
    snprintf(x->how, sizeof x->how, "%s", how);
    snprintf(x->words, sizeof x->words, "%s", words);
    for (uint32_t i = 0; i < x->n_lines; i++)
        memcpy(x->line[i], w->last_line[(w->n_lines - x->n_lines + i) % LOG_LINES], LOG_LINE);
}

const struct dead *
history_dead(const struct history *h, uint32_t back)
{
    if (back >= HISTORY_DEATHS || back >= h->n_dead) return NULL;
    return &h->dead[(h->n_dead - 1 - back) % HISTORY_DEATHS];
}
