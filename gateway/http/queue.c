#include "gateway/http/http_internal.h"

void
queue_changed(struct http_exchange *x)
{
    struct http *h = x->http;

    if (x->is_changed) return;
    x->is_changed = true;
    TAILQ_INSERT_TAIL(&h->changed, x, in_changed);
    if (!h->in_dispatch) sd_event_source_set_enabled(h->on_changed, SD_EVENT_ONESHOT);
}

void
queue_wait(struct http_exchange *x, enum wait_class wait)
{
    struct http *h = x->http;

    TAILQ_REMOVE(&h->class[x->wait], x, in_class);
    h->n_class[x->wait]--;
    x->wait = wait;
    x->since = h->now;
    TAILQ_INSERT_TAIL(&h->class[wait], x, in_class);
    h->n_class[wait]++;
}
