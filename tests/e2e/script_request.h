/* script_request.h - a request of a script: collects its events, reads fields by name. */
#pragma once
#include "include/lagan.h"
#include "include/lagan_wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SCRIPT_TOKENS = 5120 }; /* of output 0 */

struct script_request {
    char name[32];
    uint64_t id;
    bool ended;
    uint32_t n_tokens; /* of all outputs */
    uint32_t n;        /* of output 0, like ids, logprob and text */
    int32_t ids[SCRIPT_TOKENS];
    float logprob[SCRIPT_TOKENS];
    char text[8192];
    char finish[32], message[512], stop[LAGAN_MAX_STOP + 1];
    char prompt_ids[1024];
    double prompt_logprob;  /* sum over the prompt without its first token */
    struct lagan_event end; /* the last OUTPUT or ERROR */
};

/* Adds an event of the request. Returns false with a sentence in error, of n bytes, if the event
 * does not continue the output or the output is too long. */
bool script_request_take(struct script_request *r, const struct lagan_event *ev, char *error,
                         size_t n);
/* Writes a field (README.md) as text to value, of n bytes. Returns false for an unknown field. */
bool script_request_field(const struct script_request *r, const char *field, char *value, size_t n);
