/* cache_pin.h - pins prefixes of the cache for an operator: `laganctl kv pin` and `kv unpin`.
 *
 * The control thread describes a pin and waits; the engine thread makes it between two plans. Pins
 * last until the worker exits or `kv unpin`. worker/kv/kv_reuse.h has the limits.
 */
#pragma once
#include "base/err.h"
#include "worker/worker.h"

#include <pthread.h>
#include <stdatomic.h>

enum { CACHE_PIN_SALT = 512 }; /* bytes: user, 0, cache_salt */

struct cache_pin {
    pthread_mutex_t lock;
    pthread_cond_t finished;
    bool closed;            /* the worker exits: all waits end; used with the lock held */
    _Atomic bool requested; /* set by the control thread, cleared by the engine under the lock */
    /* The control thread writes these before it sets requested. */
    token_id *ids; /* [n_ids] the prefix; owned, from malloc */
    uint32_t n_ids;
    uint32_t unpin; /* number of the pin to remove instead; UINT32_MAX: all; 0: none */
    char salt[CACHE_PIN_SALT];
    size_t salt_bytes;
    /* The engine thread writes these before it clears requested. */
    int result; /* the number of the pin, the number of removed pins, or an error of kv_pin() */
    uint32_t n_tokens;
    struct err why;
};

void cache_pin_open(struct cache_pin *p); /* call before a thread uses p */
/* Makes or removes the requested pin, if any. Engine thread, between two plans. */
void cache_pin_run(struct worker *w);
/* Returns p's fields to fill in. NULL: the engine has not finished an earlier request. */
struct cache_pin *cache_pin_begin(struct cache_pin *p);
void cache_pin_request(struct cache_pin *p); /* then wake the engine thread */
/* Waits. Returns p->result; -ETIMEDOUT: not finished after 5 s; -ECANCELED: the worker exits. */
int cache_pin_wait(struct cache_pin *p, struct err *e) MUST_USE;
void cache_pin_close(struct cache_pin *p); /* ends all waits; any thread */
