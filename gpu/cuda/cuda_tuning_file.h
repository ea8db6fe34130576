/* cuda_tuning_file.h - the table of measured matmul algorithms on disk: gpu_options.tuned.
 *
 * A text file of sections, one a machine (library version, driver, SMs, name of the GPU): what was
 * measured on another is of no use here and stays in the file as it is. A row is a shape, the algorithm
 * in the library's own 64 bytes, and the times that spoke for it. Pure: no device, no library.
 *
 *     machine 130101 13000 132 NVIDIA H200
 *     bf16 bf16 6144 4096 64 16 0 0 13.91 15.20 2f00...
 *     in   out  n    k    rows align epilogue fixed us heuristic_us algorithm
 *
 * rows is a bucket (cuda_blas.c); 0 stands for every number of rows, where fixed is 1. Not thread-safe:
 * tuned_put() and tuned_save() while nobody looks.
 */
#ifndef CUDA_CUDA_TUNING_FILE_H
#define CUDA_CUDA_TUNING_FILE_H

#include "base/err.h"
#include "gpu/gpu.h"

enum { TUNED_MAX = 4096, TUNED_BYTES = 64 };

struct tuned_machine {
    uint64_t library; /* cublasLtGetVersion() */
    int32_t driver;
    uint32_t sms; /* of the lane: a share has rows of its own */
    char gpu[64];
};

/* A matmul as the library sees it; no padding, so that it can be compared and hashed as bytes. */
struct tuned_key {
    uint32_t n, k, rows;
    uint8_t in, out;  /* enum dtype */
    uint8_t align;    /* bytes that every row of every operand is aligned to: 2, 4, 8, 16 */
    uint8_t epilogue; /* 1: a bias of y's dtype; 2: beta; 3: both */
    uint8_t fixed;    /* 1: no split sums, for gpu_options.invariant */
    uint8_t zero[3];
};
_Static_assert(sizeof(struct tuned_key) == 20, "a key has padding");

struct tuned {
    struct tuned_key key;
    uint8_t algorithm[TUNED_BYTES];
    float us, heuristic_us;
};

struct tuned_table;

/* A file that is not there is an empty table; path NULL too. -EBADMSG names the line. */
int tuned_open(struct tuned_table **ret, const char *path, const struct tuned_machine *m,
               struct err *e) MUST_USE;
void tuned_close(struct tuned_table *t);
/* NULL: not measured. Valid until the next tuned_put(). */
const struct tuned *tuned_find(const struct tuned_table *t, const struct tuned_key *k);
uint32_t tuned_count(const struct tuned_table *t);
/* In place of the row of that key. -ENOSPC. */
int tuned_put(struct tuned_table *t, const struct tuned *row) MUST_USE;
/* The file is replaced in one step, other machines' sections as they were; rows that others have saved for ours since
 * come into the table first. Of two that save in the same moment one may lose the other's last row, whose next save
 * brings it back. -EBADMSG as above; where it cannot be written whole the old file stays. */
int tuned_save(struct tuned_table *t, const char *path, struct err *e) MUST_USE;

#endif
