/* api.h - OpenAI's routes: HTTP requests to lagand's requests, lagand's events to responses.
 *
 * The API knows no socket and no connection to lagand: gateway/http calls the functions of
 * api_handler(), and struct api_backend is what the API asks of lagand. gateway/backend.c
 * implements the backend with liblagan; unit tests implement it with a recorded lagand.
 *
 * Threads: one. Time: the caller passes it (api_iterate()), so that tests have a clock of their
 * own. */
#pragma once
#include "gateway/http/http.h"
#include "include/lagan.h"

#include <stdio.h>

struct api;

/* Facts of one served model, from lagand's verb `models`. */
struct api_model {
    char name[257];
    uint32_t max_len, vocabulary;
    bool encoder_decoder, chat, ready, no_evict; /* chat: the model has a chat template */
    bool developer;       /* the chat template has the role developer beside system */
    uint64_t since;       /* UNIX time in seconds */
    uint64_t fingerprint; /* of weights, dtype and numerics */
    /* from generation_config.json; a value that is absent there is OpenAI's default */
    double temperature, top_p, min_p, repetition_penalty;
    uint32_t top_k;
};

/* What the log has of one request of POST, at its end; never a prompt, an output or a key. */
struct api_summary {
    const char *request_id, *peer, *user, *model, *route; /* user: field `user`; "": none */
    uint32_t tenant;
    int status; /* of HTTP; 0: the client left before it was sent */
    /* finish_reason, or code of the error; "disconnected": the client left; else of an incomplete
     * response, why it ended (gone() of struct http_handler) */
    const char *reason;
    uint32_t prompt_tokens, tokens, cached, resumed;
    nsec first_token, total; /* since the head was read; first_token 0: there was none */
    bool stream;
};

struct api_backend {
    void *ctx;
    /* One request has ended: for the log. */
    void (*ended)(void *ctx, const struct api_summary *s);
    /* Returns the tenant of a request by its key, or a negative value: -EACCES, no or unknown key
     * (-EPERM: two different keys). Tenants are numbered from 0. */
    int (*tenant)(void *ctx, const struct http_exchange *x);
    /* Submits r. Events of *id arrive through api_event(). -ENOTCONN: lagand is not reachable. */
    int (*submit)(void *ctx, uint32_t tenant, const struct lagan_request *r, uint64_t *id,
                  struct err *e);
    void (*cancel)(void *ctx, uint32_t tenant, uint64_t id);
    /* Starts a call of a verb; the result arrives as a REPLY or ERROR event of *id. */
    int (*call)(void *ctx, uint32_t tenant, const char *verb, const char *args, uint64_t *id,
                struct err *e);
    /* Keeps the tokens of all requests of a tenant from being acknowledged, or ends that. */
    void (*hold)(void *ctx, uint32_t tenant, uint64_t id, bool hold);
    /* Returns the served models, *n of them; valid until the next iteration. connected: lagand is
     * reachable. */
    const struct api_model *(*models)(void *ctx, uint32_t *n, bool *connected, bool *draining);
};

struct api_config {
    const char *aliases;         /* lines "ALIAS NAME" */
    uint64_t default_max_tokens; /* 0: auto; UINT64_MAX: what fits */
    uint32_t max_prompts, max_n;
    nsec header_hold, sse_ping;
    bool strict, open_metrics, open_health;
    uint64_t id_seed;    /* of random ids */
    const char *version; /* "0.1.0" */
};

/* config is copied, but not its texts, which must live as long as the API. -ENOMEM, -EINVAL. */
int api_new(struct api **ret, const struct api_config *c, const struct api_backend *b,
            struct err *e) MUST_USE;
struct api *api_free(struct api *a);
CLEAN_FUNC(struct api, api_free)
/* Replaces the configuration; running requests keep the former one. id_seed and version are
 * ignored. The former texts may be freed afterwards. Errors as for api_new(); then the former
 * configuration stays. */
int api_configure(struct api *a, const struct api_config *c, struct err *e) MUST_USE;
struct http_handler api_handler(struct api *a);
/* Tells the server whose counts /metrics has. */
void api_set_http(struct api *a, const struct http *h);
/* One event of lagand for a request or call of this tenant. */
void api_event(struct api *a, uint32_t tenant, const struct lagan_event *ev);
/* Sets the time of the API: called at the start of each loop iteration, before events and requests.
 * Writes due pings and held headers. wall: UNIX time in seconds. Returns when it wants to be called
 * again at the latest; NSEC_NEVER: at the next event. */
nsec api_iterate(struct api *a, nsec now, uint64_t wall);
/* Prints the sections FIELDS, HEADERS and ERRORS of lagan-gateway(8) in mdoc. */
void api_manual(FILE *out);
/* Ends all open exchanges with the error `draining`; new ones get 503. */
void api_drain(struct api *a);
