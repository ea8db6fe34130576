/* tokenizer_parts.h - struct tokenizer, private to tokenizer.c, tokenizer_json.c, vocab_cache.c. */
#pragma once
#include "worker/text/added_tokens.h"
#include "worker/text/bpe.h"
#include "worker/text/decoder.h"
#include "worker/text/normalizer.h"
#include "worker/text/post_processor.h"
#include "worker/text/pre_tokenizer.h"
#include "worker/text/text_buffer.h"
#include "worker/text/unigram.h"
#include "worker/text/vocab.h"

struct tokenizer {
    struct vocab vocab;
    struct added added;
    struct normal normal;
    struct pretok pretok;
    struct bpe bpe;
    struct unigram unigram;
    bool is_unigram; /* unigram is used, otherwise bpe */
    struct post post;
    struct decoder decoder;
    struct text_buffer config; /* JSON: normalizer, pre_tokenizer, post_processor, decoder */
    uint64_t document[2];      /* hash of tokenizer.json (vocab_cache.c) */
    void *map;                 /* the mapped cache file that has the arrays of all parts, or NULL */
    size_t map_bytes;
};

/* Reads text[n], a tokenizer.json, into t, which must be zeroed; on failure t is partly built.
 * -ENOTSUP: something in it is not supported; the message names it. -EBADMSG: malformed. */
int tokenizer_json_read(struct tokenizer *t, const char *text, size_t n, struct err *e) MUST_USE;
/* Completes t, whose arrays and config, text[n], are from the vocabulary cache. */
int tokenizer_json_reopen(struct tokenizer *t, const char *text, size_t n, struct err *e) MUST_USE;

void vocab_cache_hash_of(const void *text, size_t n, uint64_t hash[2]); /* XXH3, 128 bits */
void vocab_cache_unmap(struct tokenizer *t); /* unmaps t->map, if any, and clears the arrays */

/* Frees everything except t itself and its map, which must be unmapped before. */
void tokenizer_parts_free(struct tokenizer *t);
