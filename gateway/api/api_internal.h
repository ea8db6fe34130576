/* api_internal.h - structs that the files of gateway/api share.
 *
 * An exchange is one HTTP request and its response. It has one prompt for each request of lagand,
 * and each prompt has n choices; choices are numbered prompt by prompt. An exchange lives from
 * head() to gone() of the HTTP server. http_respond(), http_end() and http_cut() may call gone(),
 * so the functions that end a response come last and their caller does not use the exchange again.
 *
 * A request or a call of lagand that is open has an entry in api->open, found by its number. */
#pragma once
#include "base/map.h"
#include "base/rng.h"
#include "gateway/api/api.h"
#include "gateway/api/body.h"
#include "gateway/api/metrics.h"
#include "gateway/api/pieces.h"

enum {
    API_MAX_OPEN = 1 << 16,     /* requests and calls of lagand */
    API_READ_BYTES = 128 << 10, /* bytes of a body that are read in one loop iteration */
    API_PIECE = 16 << 10,       /* bytes that are given to http_write() at once */
    API_AUTO_TOKENS = 4096,     /* default_max_tokens auto, with the policy no_evict */
    API_COMPLETION_TOKENS = 16, /* OpenAI's default of /v1/completions */
    API_DISCONNECT_MS = 2000    /* after a kill of the gateway its requests end that soon */
};

/* The part of one output that the client does not have yet; without `stream` all of it. */
struct choice {
    struct out text;
    struct out tokens; /* records: struct lagan_top_logprob [n][1 + n_top], if `keep_tokens` */
    /* The last record is kept back: it may be an end token, which has no log-probability in the
     * response and is known only at the end of the output. */
    bool held;
    bool end_token;        /* the output has ended, and the last record is an end token */
    uint32_t n_new;        /* tokens since the last event of the stream */
    uint32_t n_characters; /* of the tokens that left: text_offset of the next one */
    nsec last;             /* its last tokens arrived */
    bool started;          /* its first event was written */
    bool ended, end_sent;
    const char *finish; /* finish_reason */
    struct out stop;    /* value of stop_reason as JSON; empty: absent */
};

/* One request of lagand. */
struct prompt {
    uint32_t open; /* in api->open; API_MAX_OPEN: none */
    bool done;
    uint64_t id;
    struct lagan_request *request; /* until it is submitted */
    struct out text;               /* the prompt for `echo` */
    struct out ids;                /* the prompt's ids as JSON, where they are known */
    uint32_t n_ids;                /* of ids */
    struct out tokens;             /* of the PROMPT event, as choice.tokens */
    uint32_t n_prompt_tokens, cached;
    struct out values; /* /v1/embeddings: double[cols] sums */
    uint32_t n_rows;
};

struct exchange {
    struct exchange *next, *prev;
    struct api *a;
    struct http_exchange *x;
    const struct route *route;
    struct body *body; /* until the requests are submitted */
    uint32_t tenant;
    nsec begun, first_token, written; /* written: the last byte of the stream */
    struct api_model model;           /* a copy; name "": none yet */
    char asked[257];                  /* the model's name as the client wrote it */
    char user[129];
    char id[48];
    uint64_t created;
    void *reading;           /* state of prompts_read() and messages_read(), of the body's memory */
    struct out messages;     /* for lagand */
    struct out decoder_text; /* decoder_prompt, until its ids are known */
    char target_lang[65];    /* "": none */
    uint32_t n_prompts, n;   /* n: outputs of a prompt */
    struct prompt *prompt;
    struct choice *choice; /* [n_prompts * n] */
    uint32_t n_done;       /* prompts */

    bool stream, include_usage, usage_in_events, logprobs, keep_tokens, token_ids, names_as_ids,
        echo, hide_output, has_stop;
    bool prompt_logprobs, base64;
    uint32_t n_top, n_prompt_top, interval;
    uint32_t set_max_tokens;       /* X-Lagan-Max-Tokens; 0: the client gave it */
    struct vocabulary *vocabulary; /* texts of tokens; NULL: not needed */
    bool waits;                    /* for the vocabulary, or for lagand's metrics */
    uint32_t n_prepared;           /* prompts whose ids and text are known */
    struct out fields;             /* header lines of the response */

    struct out out; /* written from `sent` on */
    size_t sent;
    size_t prefix;   /* bytes of `head` */
    struct out head; /* of each event, up to "index": */
    bool started, blocked, ending;
    /* a call of a verb for this exchange: its entry, and the function that reads its result */
    uint32_t call;
    void (*replied)(struct exchange *e, const char *json);

    /* for log and metrics */
    int status;
    const char *reason;
    uint32_t prompt_tokens, n_tokens, cached, resumed; /* of ended outputs */
    uint32_t n_received;                               /* tokens of all outputs */
};

struct open {
    struct exchange *e; /* NULL: free, or the entry belongs to a->metrics or a->pieces */
    uint32_t prompt;    /* of e; OPEN_CALL: e->replied gets the result */
    uint32_t next_free;
    uint32_t tenant;
    uint64_t id;
    void (*result)(struct api *a, void *owner, const struct lagan_event *ev); /* instead of e */
    void *owner;
};
#define OPEN_CALL UINT32_MAX
#define JSON_TYPE "application/json"

struct api {
    struct api_config c;
    struct api_backend b;
    struct exchange *first; /* all exchanges */
    uint32_t n_exchanges;
    const struct http *http; /* for its counts; NULL: none */
    struct map *map;         /* key_of(tenant, id) -> entry of open */
    struct open *open;
    uint32_t first_free;
    nsec now, due; /* due: no ping and no header is due before */
    uint64_t wall;
    uint64_t random;
    bool draining;
    struct pieces *pieces; /* all vocabularies */
    struct metrics *metrics;
    size_t read_bytes; /* API_READ_BYTES; tests change it */
};

/* One route. */
struct route {
    enum http_method method;
    const char *path; /* ends with '*': the rest of the path is a name */
    const char *name; /* in metrics and log */
    unsigned fields;  /* ON_...; 0: no body */
    bool open;        /* no key is needed */
    /* Without body: responds. With a body: called when all fields are read, and again while it
     * returns 1. 0: the response is given, or requests are submitted. -EINVAL with *f, -ENOMEM. */
    int (*run)(struct exchange *e, struct fault *f);
    /* Responds when all requests of lagand have ended, without `stream`. NULL: shape_whole() */
    void (*respond)(struct exchange *e);
    /* Reads a TENSOR event; NULL: there is none. */
    void (*tensor)(struct exchange *e, struct prompt *p, const struct lagan_event *ev);
};

/* route.c */
const struct route *route_find(enum http_method method, struct http_text path, bool *other_method);
/* Writes "GET, HEAD, OPTIONS", of the path "*" the methods of all routes. */
void route_allowed(struct out *o, struct http_text path);

/* exchange.c: life of an exchange */
struct exchange *exchange_new(struct api *a, struct http_exchange *x, const struct route *r);
void exchange_free(struct exchange *e);
void exchange_forget(struct exchange *e); /* cancels its open requests and calls */
/* Responds with status 200; empties o. Comes last. */
void exchange_respond(struct exchange *e, const char *type, struct out *o);
/* Ends the response with an error: as status and body, or as the last event of a stream. */
void exchange_fail(struct exchange *e, const struct fault *f);
void exchange_fail_memory(struct exchange *e);
/* Closes the connection without an end of the response. Comes last. */
void exchange_cut(struct exchange *e, const char *reason);
void exchange_new_id(struct exchange *e, const char *prefix);
/* Adds X-Lagan-Ignored and others to e->fields and frees the body. */
void exchange_close_body(struct exchange *e);

/* submit.c: requests and calls of lagand */
int exchange_prompts(struct exchange *e, uint32_t n_prompts, uint32_t n) MUST_USE;
int exchange_submit(struct exchange *e, struct fault *f) MUST_USE;
int exchange_call(struct exchange *e, const char *verb, struct out *args,
                  void (*replied)(struct exchange *e, const char *json), struct fault *f) MUST_USE;
int api_call(struct api *a, uint32_t tenant, const char *verb, const char *args,
             void (*result)(struct api *a, void *owner, const struct lagan_event *ev), void *owner,
             struct err *e) MUST_USE;

/* models.c */
int models_check_aliases(const char *aliases, struct err *e) MUST_USE;
/* Returns the served models, *n of them, if requests are served now, else NULL with *f. */
const struct api_model *models_reach(const struct api *a, uint32_t *n, struct fault *f);
/* Returns the model of this name or alias among m[n]; NULL: none. */
const struct api_model *model_find(const struct api *a, const struct api_model *m, uint32_t n,
                                   struct http_text name);
/* Fills *f with the names of m[n] and returns -EINVAL. */
int model_missing(const struct api_model *m, uint32_t n, struct http_text name, struct fault *f);
/* Fills e->model and e->asked from field `model`. */
int model_select(struct exchange *e, struct fault *f) MUST_USE;
int models_run(struct exchange *e, struct fault *f) MUST_USE;
int model_run(struct exchange *e, struct fault *f) MUST_USE;

/* chat.c, completions.c, embeddings.c, tokens.c, health.c, metrics.c */
int chat_run(struct exchange *e, struct fault *f) MUST_USE;
int completions_run(struct exchange *e, struct fault *f) MUST_USE;
int embeddings_run(struct exchange *e, struct fault *f) MUST_USE;
void embeddings_tensor(struct exchange *e, struct prompt *p, const struct lagan_event *ev);
void embeddings_respond(struct exchange *e);
int tokenize_run(struct exchange *e, struct fault *f) MUST_USE;
int detokenize_run(struct exchange *e, struct fault *f) MUST_USE;
int template_run(struct exchange *e, struct fault *f) MUST_USE;
int health_run(struct exchange *e, struct fault *f) MUST_USE;
int generate_run(struct exchange *e, struct fault *f) MUST_USE;
void health_respond(struct exchange *e); /* {"status":"ok"} */
int live_run(struct exchange *e, struct fault *f) MUST_USE;
int version_run(struct exchange *e, struct fault *f) MUST_USE;
int metrics_run(struct exchange *e, struct fault *f) MUST_USE;

/* sampling.c: the fields that chat and completions share, to the keys of lagand */
/* n: outputs of a prompt. */
int sampling_read(struct exchange *e, uint32_t *n, struct fault *f) MUST_USE;
int sampling_request(struct exchange *e, struct prompt *p, struct fault *f) MUST_USE;
/* The result of a lagan_set_...() as a fault of field `param`. */
int set_result(int r, const char *param, struct fault *f) MUST_USE;

/* prepare.c: asks lagand for what the response needs (texts of tokens; ids or text of a prompt),
 * then submits the requests */
int prepare(struct exchange *e, struct fault *f) MUST_USE;
/* Sets the first tokens of the decoder of all requests. */
int prepare_decoder(struct exchange *e, const token_id *ids, size_t n, struct fault *f) MUST_USE;
bool prepare_needs_ids(const struct exchange *e); /* the response has the ids, or their number */
/* Goes on with the exchanges that wait for v. */
void prepare_go_on(struct api *a, const struct vocabulary *v);
/* Returns whether an exchange uses v. */
bool prepare_uses(const struct api *a, const struct vocabulary *v);

/* prompts.c: the fields that hold a text, texts, token ids or lists of token ids */
struct text_or_ids {
    struct http_text text; /* p NULL: ids */
    const token_id *ids;
    uint32_t n_ids;
};
/* Reads at most about a->read_bytes bytes of a field. Returns 0 with *ret, 1: call again, -EINVAL
 * with *f, -ENOMEM. The result lives as long as the body. */
int prompts_read(struct exchange *e, enum field field, const struct text_or_ids **ret, uint32_t *n,
                 struct fault *f) MUST_USE;
/* Reads a list of at most `most` token ids into ids. Returns their number, or -EINVAL with *f. */
int ids_read(const struct exchange *e, enum field field, token_id *ids, uint32_t most,
             struct fault *f) MUST_USE;
/* messages.c: checks field `messages` and writes what the chat template gets to e->messages; in
 * parts, as prompts_read() */
int messages_read(struct exchange *e, struct fault *f) MUST_USE;

/* events.c: lagand's events to the response */
void events_fail(struct exchange *e, const struct fault *f); /* of a stream that has begun */
void events_take(struct exchange *e, struct prompt *p, const struct lagan_event *ev);
void events_writable(struct exchange *e);
/* Opens a stream whose status is due, or writes a ping that is due. Returns when to come again. */
nsec events_iterate(struct exchange *e);

/* shape.c: the JSON of chat and completions */
/* Returns the number of records of c that leave now; *logprobs: of these, with an entry. */
size_t shape_records(const struct exchange *e, const struct choice *c, size_t *logprobs);
void shape_whole(struct exchange *e, struct out *o);
void shape_head(struct exchange *e); /* fills e->head */
void shape_first(struct exchange *e, struct choice *c, uint32_t index, struct out *o);
void shape_delta(struct exchange *e, struct choice *c, uint32_t index, struct out *o);
void shape_end(struct exchange *e, struct choice *c, uint32_t index, struct out *o);
void shape_usage(struct exchange *e, struct out *o); /* the last event before [DONE] */
