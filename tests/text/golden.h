/* golden.h - reads tests/data/tokenizers and writes modified copies of a tokenizer. */
#pragma once
#include "base/base.h"

enum { GOLDEN_TEXT = 4096, GOLDEN_IDS = 2048 };

struct golden_case {
    char text[GOLDEN_TEXT], decoded[GOLDEN_TEXT], decoded_keep[GOLDEN_TEXT];
    /* with ids_class: decoded by the class of transformers */
    char decoded_class[GOLDEN_TEXT];
    int text_len, decoded_len, decoded_keep_len, decoded_class_len;
    token_id ids[GOLDEN_IDS], ids_bare[GOLDEN_IDS], ids_class[GOLDEN_IDS];
    int n_ids, n_bare, n_class;
};

/* A path below the source tree; the last 16 results stay valid. */
const char *golden_path(const char *below);

/* Reads a whole file, NUL-terminated; the caller frees it. */
char *golden_read(const char *path, size_t *n);

/* Calls each() for every case in the folder of a tokenizer; returns the number of cases. */
uint32_t golden_each(const char *dir, void (*each)(const struct golden_case *c, void *arg),
                     void *arg);

/* Creates a directory with text as its tokenizer.json; golden_remove() removes both. */
void golden_make(char dir[64], const char *text, size_t n);
void golden_remove(const char *dir);
