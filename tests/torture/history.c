/* history.c - see history.h. */
#include "tests/torture/history.h"

#include "include/lagan_wire.h"
#include "tests/torture/mock.h"

#include <stdarg.h>
#include <stdio.h>

int
history_open(struct history *h, uint32_t max_open)
{
    *h = (struct history){ .cap = 16 };
    while (h->cap < 4 * max_open) h->cap *= 2;
    h->request = calloc(h->cap, sizeof *h->request);
    return h->request ? 0 : -ENOMEM;
}

void
history_close(struct history *h)
{
    free(h->request);
    *h = (struct history){ 0 };
}

static bool PRINTF_LIKE(2, 3) broken(struct history *h, const char *fmt, ...)
{
    va_list ap;

    if (*h->why) return false;
    va_start(ap, fmt);
    vsnprintf(h->why, sizeof h->why, fmt, ap);
    va_end(ap);
    return false;
}

/* Returns the entry of a request, or the free entry for it. */
static struct followed_request *
place(struct history *h, uint64_t id)
{
    uint32_t i = (uint32_t)(id * UINT64_C(0x9e3779b97f4a7c15) >> 32);

    while (h->request[i & (h->cap - 1)].used && h->request[i & (h->cap - 1)].id != id) i++;
    return &h->request[i & (h->cap - 1)];
}

/* Returns the request of an event; it must be accepted and not ended. */
static struct followed_request *
open_one(struct history *h, uint64_t id, const char *event)
{
    struct followed_request *t = place(h, id);

    if (!t->used) {
        broken(h, "request %llu: %s, and it was never accepted", (unsigned long long)id, event);
        return NULL;
    }
    if (t->ended) {
        broken(h, "request %llu: %s after its end", (unsigned long long)id, event);
        return NULL;
    }
    return t;
}

/* Removes ended requests when their entries are needed. */
static void
forget_ended(struct history *h)
{
    struct followed_request *old = h->request;

    h->request = calloc(h->cap, sizeof *h->request);
    check(h->request);
    h->n_used = 0;
    for (uint32_t i = 0; i < h->cap; i++) {
        if (!old[i].used || old[i].ended) continue;
        *place(h, old[i].id) = old[i];
        h->n_used++;
    }
    free(old);
    check(h->n_used < h->cap / 2);
}

bool
history_accepted(struct history *h, uint64_t id, uint64_t seed, uint32_t max_tokens)
{
    struct followed_request *t = place(h, id);

    if (t->used) return broken(h, "request %llu: accepted twice", (unsigned long long)id);
    if (h->n_used == h->cap / 2) {
        forget_ended(h);
        t = place(h, id);
    }
    *t =
        (struct followed_request){ .id = id, .seed = seed, .max_tokens = max_tokens, .used = true };
    h->n_used++;
    h->n_open++;
    h->n_accepted++;
    return !*h->why;
}

bool
history_tokens(struct history *h, uint64_t id, uint32_t first, const int32_t *token, uint32_t n)
{
    struct followed_request *t = open_one(h, id, "tokens");

    if (!t) return false;
    if (first != t->n)
        return broken(h, "request %llu: position %u comes after %u tokens", (unsigned long long)id,
                      first, t->n);
    if (n > t->max_tokens - t->n)
        return broken(h, "request %llu: more than its %u tokens", (unsigned long long)id,
                      t->max_tokens);
    for (uint32_t i = 0; i < n && !h->lax; i++)
        if (token[i] != mock_token(t->seed, first + i))
            return broken(h, "request %llu: token %d at %u, not %d", (unsigned long long)id,
                          token[i], first + i, mock_token(t->seed, first + i));
    t->n += n;
    h->n_tokens += n;
    return !*h->why;
}

static void
end(struct history *h, struct followed_request *t)
{
    t->ended = true;
    h->n_open--;
}

bool
history_done(struct history *h, uint64_t id, uint32_t reason, uint32_t n_tokens)
{
    struct followed_request *t = open_one(h, id, "DONE");

    if (!t) return false;
    if (reason != LAGAN_FINISH_LENGTH && !h->lax)
        return broken(h, "request %llu: finished for reason %u", (unsigned long long)id, reason);
    if ((t->n != t->max_tokens && !h->lax) || n_tokens != t->n)
        return broken(h, "request %llu: DONE says %u tokens, %u of %u came", (unsigned long long)id,
                      n_tokens, t->n, t->max_tokens);
    end(h, t);
    h->n_done++;
    return !*h->why;
}

bool
history_failed(struct history *h, uint64_t id, uint32_t code)
{
    struct followed_request *t = open_one(h, id, "ERROR");

    if (!t) return false;
    if (code >= 64 || (!(h->allowed >> code & 1) && !h->lax))
        return broken(h, "request %llu: failed with code %u after %u tokens",
                      (unsigned long long)id, code, t->n);
    end(h, t);
    h->n_failed++;
    return !*h->why;
}

bool
history_settled(struct history *h)
{
    for (uint32_t i = 0; i < h->cap; i++)
        if (h->request[i].used && !h->request[i].ended)
            return broken(h, "request %llu: no end, %u of %u tokens",
                          (unsigned long long)h->request[i].id, h->request[i].n,
                          h->request[i].max_tokens);
    return !*h->why;
}
