/* normalizer.h - the "normalizer" of tokenizer.json: changes text before it is split into words.
 *
 * Supported: NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Replace, Prepend, Precompiled,
 * and Sequence of these. The time is proportional to the length of the text, also for long runs of
 * combining marks, which a client could send to block other requests. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "base/json.h"
#include "worker/text/text_buffer.h"

enum { NORMAL_MAX_STEPS = 8 };

struct normal_step;

struct normal {
    struct normal_step *step; /* [n] */
    uint32_t n;
    struct text_buffer buffer[2]; /* each step reads one buffer and writes the other */
    struct text_buffer wide;      /* the text as code points (int32_t), for NFC to NFKD */
};

/* Reads the value of "normalizer" that j's last event begins. -ENOTSUP: unsupported, named in e. */
int normalizer_open(struct normal *m, struct json *j, struct err *e) MUST_USE;
void normalizer_free(struct normal *m);
bool normalizer_shrinks(const struct normal *m); /* false: no text becomes shorter */

/* Replaces *text (UTF-8, *n bytes) by the normalised text, in m's memory until the next call. */
int normalizer_run(struct normal *m, const char **text, size_t *n, struct err *e) MUST_USE;
