/* api_fixture.h - the API between a pretended HTTP server and a pretended lagand.
 *
 * The fixture defines the functions of gateway/http/http.h and the lagan_set_...() functions: a
 * request of HTTP is a struct, a request of lagand is the list of its keys as text. Only
 * move_clock() moves the clock. */
#pragma once
#include "gateway/api/api_internal.h"
#include "include/lagan_wire.h"

#include <stdio.h>

enum { MAX_SENT = 4096 };
#define WALL 1764000000u

/* A pretended exchange of HTTP. */
struct http_exchange {
    enum http_method method;
    const char *path, *query, *body, *headers; /* headers: "Name: value\n" lines; NULL: none */
    size_t body_n;
    void *user;
    /* the response */
    int status;
    char content_type[64];
    struct out fields, sent; /* NUL-terminated by the fixture */
    size_t space;            /* of the output buffer: http_write() takes that much */
    bool started, ended, cut, is_gone;
    uint32_t n_reads; /* calls of request() */
};

/* What lagand got: a SUBMIT, or a call. */
struct sent {
    uint64_t id;
    char *verb; /* NULL: a SUBMIT */
    char *text; /* "key=value" lines in the order of arrival, or args */
    bool cancelled, held;
};

struct api_fixture {
    struct api *api;
    struct api_config config;
    struct http_handler http;
    nsec now;
    struct api_model models[3];
    uint32_t n_models;
    bool connected, draining;
    int tenant;      /* result of tenant() */
    int submit_code; /* result of submit() and call() if negative */
    struct sent sent[MAX_SENT];
    uint32_t n_sent;
    struct api_summary last; /* of the last ended(); the texts may be gone */
    char last_reason[32];
    uint32_t n_ended;
};

/* One model "m" with chat, 100 tokens in the vocabulary and max_len 1000; "e" is an encoder-decoder
 * model, absent unless n_models is 2. */
void api_fixture_open(struct api_fixture *f);
void api_fixture_close(struct api_fixture *f);
void api_fixture_forget(struct api_fixture *f); /* empties f->sent; no request is open */

/* Runs a request until request() returns 0. The caller passes the result to ask_done(). */
struct http_exchange *ask(struct api_fixture *f, enum http_method method, const char *path,
                          const char *body);
struct http_exchange *ask_bytes(struct api_fixture *f, const char *path, const char *headers,
                                const char *body, size_t n);
void ask_gone(struct api_fixture *f, struct http_exchange *x); /* the client leaves */
void ask_done(struct api_fixture *f, struct http_exchange *x); /* ends and frees it */
void move_clock(struct api_fixture *f, nsec by);

/* Events of the request or call number i of `sent`. */
void send_tokens(struct api_fixture *f, uint32_t i, uint32_t output, const char *text,
                 const token_id *ids, uint32_t n);
void send_event(struct api_fixture *f, uint32_t i, struct lagan_event ev);
void send_output(struct api_fixture *f, uint32_t i, uint32_t output, uint32_t reason,
                 uint32_t n_tokens, uint32_t n_prompt);
void send_done(struct api_fixture *f, uint32_t i);
void send_error(struct api_fixture *f, uint32_t i, uint32_t reason, const char *message);
void send_reply(struct api_fixture *f, uint32_t i, const char *json);
