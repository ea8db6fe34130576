/* checkpoint_writer.h - a checkpoint made by a test: a directory with a config.json and small safetensors files. */
#ifndef TESTS_MODEL_CHECKPOINT_WRITER_H
#define TESTS_MODEL_CHECKPOINT_WRITER_H

#include "base/base.h"

struct ckpt {
    char dir[64];
    char header[8192];
    uint8_t data[1 << 16];
    size_t header_len, n;
};

void ckpt_open(struct ckpt *c);
void ckpt_close(struct ckpt *c); /* removes the directory */

/* The next tensor of the file being put together, [rows, cols], or [cols] where rows is 0, with
 * ckpt_value() in every element. dtype: "F32", "BF16" or "F16". */
void ckpt_add(struct ckpt *c, const char *name, const char *dtype, uint32_t rows, uint32_t cols);
/* Write it, so that its data begins at a multiple of 64 bytes plus `off` (a multiple of 8), and begin
 * the next. */
void ckpt_write(struct ckpt *c, const char *file, size_t off);
void ckpt_text(struct ckpt *c, const char *file, const char *text);
void ckpt_bytes(struct ckpt *c, const char *file, const void *p, size_t n);
/* Forget what was added. */
void ckpt_clear(struct ckpt *c);

/* Element i of that tensor: exact in every dtype. */
float ckpt_value(const char *name, size_t i);

/* A safetensors file in memory: header length, header, n bytes of data. Length into *ret_n; free(). */
uint8_t *ckpt_raw(const char *header, size_t n, size_t *ret_n);

#endif
