/* tokenizer_parts.h - struct tokenizer, for tokenizer.c, tokenizer_json.c and vocab_cache.c. */
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
    bool is_unigram; /* otherwise BPE */
    struct post post;
    struct decoder decoder;
    struct text_buffer config; /* the small sections of the document, as a JSON document */
    uint64_t document[2];      /* hash of the document (vocab_cache.c) */
    void *map;                 /* the mapped cache file that has the arrays, or NULL */
    size_t map_bytes;
};

/* Reads tokenizer.json into t, which must be zeroed; on failure it is partly built. -ENOTSUP:
 * unsupported kind, named in the sentence. -EBADMSG: malformed. */
int tokenizer_json_read(struct tokenizer *t, const char *text, size_t n, struct err *e) MUST_USE;
/* The same for a t whose arrays are loaded already, from the small sections that
 * tokenizer_json_read() stored in t->config. */
int tokenizer_json_reopen(struct tokenizer *t, const char *text, size_t n, struct err *e) MUST_USE;

void vocab_cache_hash_of(const void *text, size_t n, uint64_t hash[2]); /* XXH3, 128 bits */
void vocab_cache_unmap(struct tokenizer *t);

/* Frees everything except t itself and its map, which must be unmapped before. */
void tokenizer_parts_free(struct tokenizer *t);
