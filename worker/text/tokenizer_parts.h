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
    uint64_t document[2];      /* hash of the document (vocab_cache.h) */
    void *map;                 /* the mapped cache file that has the arrays, or NULL */
    size_t map_bytes;
};

/* Frees everything except t itself and its map, which must be unmapped before. */
void tokenizer_parts_free(struct tokenizer *t);
