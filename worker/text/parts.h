/* parts.h - what a tokenizer is made of; for tokenizer.c, document.c and cache.c. */
#ifndef TEXT_PARTS_H
#define TEXT_PARTS_H

#include "worker/text/added.h"
#include "worker/text/bpe.h"
#include "worker/text/decode.h"
#include "worker/text/normal.h"
#include "worker/text/post.h"
#include "worker/text/pretok.h"
#include "worker/text/room.h"
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
    uint64_t document[2]; /* what it holds, hashed (cache.h) */
    void *map;            /* NULL, or the file that the arrays lie in */
    size_t map_bytes;
};

void parts_free(struct tokenizer *t); /* all but t itself and its map, which is gone before */

#endif
