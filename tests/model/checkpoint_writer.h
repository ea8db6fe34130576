/* checkpoint_writer.h - writes test checkpoints: a directory with config.json and small safetensors
 * files. */
#pragma once
#include "base/base.h"

struct ckpt {
    char dir[64];
    char header[8192];
    uint8_t data[1 << 16];
    size_t header_len, n;
};

void ckpt_open(struct ckpt *c);
void ckpt_close(struct ckpt *c); /* removes the directory */

/* Adds a tensor [rows, cols], or [cols] if rows is 0, with elements from ckpt_value(). dtype:
 * "F32", "BF16" or "F16". */
void ckpt_add(struct ckpt *c, const char *name, const char *dtype, uint32_t rows, uint32_t cols);
/* Writes the file and starts the next one. Its data starts at a multiple of 64 bytes plus `off` (a
 * multiple of 8). */
void ckpt_write(struct ckpt *c, const char *file, size_t off);
void ckpt_text(struct ckpt *c, const char *file, const char *text);
void ckpt_bytes(struct ckpt *c, const char *file, const void *p, size_t n);
/* Discards the added tensors. */
void ckpt_clear(struct ckpt *c);

/* Element i of a tensor, exact in every dtype. */
float ckpt_value(const char *name, size_t i);

/* A safetensors file in memory: header length, header, n bytes of data. Sets *ret_n; the caller
 * frees it. */
uint8_t *ckpt_raw(const char *header, size_t n, size_t *ret_n);
