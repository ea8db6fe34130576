/* cuda_tuning_file.h - the table of measured matmul algorithms on disk: gpu_options.tuning_file.
 *
 * A text file of sections, one a machine (library version, driver, SMs, name of the GPU): what was
 * measured on another is of no use here and stays in the file as it is. A row is a shape, the
 * algorithm in the library's own 64 bytes, and the times that spoke for it. Pure: no device, no
 * library.
 *
 *     machine 130101 13000 132 NVIDIA H200
 *     bf16 bf16 6144 4096 64 16 0 0 13.91 15.20 2f00...
 *     in   out  n    k    rows align epilogue fixed us heuristic_us algorithm
 *
 * rows is a bucket (cuda_blas.c); 0 stands for every number of rows, where fixed is 1. Not
 * thread-safe: tuning_put() and tuning_save() while nobody looks.
 */
#ifndef CUDA_CUDA_TUNING_FILE_H
#define CUDA_CUDA_TUNING_FILE_H

#include "base/err.h"
#include "gpu/gpu.h"

enum { TUNING_MAX = 4096, TUNING_BYTES = 64 };

struct tuning_machine {
    uint64_t library; /* cublasLtGetVersion() */
    int32_t driver;
    uint32_t sms; /* of the lane: a share has rows of its own */
    char gpu[64];
};

/* A matmul as the library sees it; no padding, so that it can be compared and hashed as bytes. */
struct tuning_key {
    uint32_t n, k, rows;
    uint8_t in, out;  /* enum dtype */
    uint8_t align;    /* bytes that every row of every operand is aligned to: 2, 4, 8, 16 */
    uint8_t epilogue; /* 1: a bias of y's dtype; 2: beta; 3: both */
    uint8_t fixed;    /* 1: no split sums, for gpu_options.invariant */
    uint8_t zero[3];
};
_Static_assert(sizeof(struct tuning_key) == 20, "a key has padding");

struct tuning_row {
    struct tuning_key key;
    uint8_t algorithm[TUNING_BYTES];
    float us, heuristic_us;
};

struct tuning_table;

/* A file that is not there is an empty table; path NULL too. -EBADMSG names the line. */
int tuning_open(struct tuning_table **ret, const char *path, const struct tuning_machine *m,
                struct err *e) MUST_USE;
void tuning_close(struct tuning_table *t);
/* NULL: not measured. Valid until the next tuning_put(). */
const struct tuning_row *tuning_find(const struct tuning_table *t, const struct tuning_key *k);
uint32_t tuning_count(const struct tuning_table *t);
/* In place of the row of that key. -ENOSPC. */
int tuning_put(struct tuning_table *t, const struct tuning_row *row) MUST_USE;
/* The file is replaced in one step, other machines' sections as they were; rows that others have
 * saved for ours since come into the table first. Of two that save in the same moment one may lose
 * the other's last row, whose next save brings it back. -EBADMSG as above; where it cannot be
 * written whole the old file stays. */
int tuning_save(struct tuning_table *t, const char *path, struct err *e) MUST_USE;

#endif
