/* golden.h - reading tests/data/tokenizers and writing broken copies of a tokenizer. */
#ifndef TESTS_TEXT_GOLDEN_H
#define TESTS_TEXT_GOLDEN_H

#include "base/base.h"

#include <stddef.h>

enum { GOLDEN_TEXT = 4096, GOLDEN_IDS = 2048 };

struct golden_case {
    char text[GOLDEN_TEXT], decoded[GOLDEN_TEXT], decoded_keep[GOLDEN_TEXT];
    char decoded_class[GOLDEN_TEXT]; /* with ids_class: by the pipeline of transformers' class */
    int text_len, decoded_len, decoded_keep_len, decoded_class_len;
    token_id ids[GOLDEN_IDS], ids_bare[GOLDEN_IDS], ids_class[GOLDEN_IDS];
    int n_ids, n_bare, n_class;
};

/* A path below the source tree; the last sixteen results stay valid. */
const char *golden_path(const char *below);

/* A whole file, NUL-ended; the caller frees it. */
char *golden_read(const char *path, size_t *n);

/* Call each() for every case of a tokenizer's folder; the number of cases. */
uint32_t golden_each(const char *dir, void (*each)(const struct golden_case *c, void *arg),
                     void *arg);

/* A new directory with text as its tokenizer.json; golden_remove() takes both away. */
void golden_make(char dir[64], const char *text, size_t n);
void golden_remove(const char *dir);

#endif
