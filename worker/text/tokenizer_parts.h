/* tokenizer_parts.h - what a tokenizer is made of; for tokenizer.c, tokenizer_json.c and vocab_cache.c. */
#ifndef TEXT_TOKENIZER_PARTS_H
#define TEXT_TOKENIZER_PARTS_H

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
    bool is_unigram; /* else BPE */
    struct post post;
    struct decoder decoder;
    struct room config;   /* the small sections of the document, as a document */
    uint64_t document[2]; /* what it holds, hashed (vocab_cache.h) */
    void *map;            /* NULL, or the file that the arrays lie in */
    size_t map_bytes;
};

void tokenizer_parts_free(
    struct tokenizer *t); /* all but t itself and its map, which is gone before */

#endif
