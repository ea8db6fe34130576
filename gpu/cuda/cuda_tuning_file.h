/* cuda_tuning_file.h - the file of measured matmul algorithms: gpu_options.tuning_file.
 *
 * A text file with one section per machine (library version, driver, SMs, GPU name). Sections of
 * other machines are kept unchanged. A row has a shape, the algorithm in the library's 64 bytes,
 * and the two times that were measured. Pure: no device, no library.
 *
 *     machine 130101 13000 132 NVIDIA H200
 *     bf16 bf16 6144 4096 64 16 0 0 13.91 15.20 2f00...
 *     in   out  n    k    rows align epilogue fixed us heuristic_us algorithm
 *
 * rows is a bucket (cuda_blas.c), or 0 for all numbers of rows if fixed is 1. Not thread-safe:
 * tuning_put() and tuning_save() exclude all other calls.
 */
#pragma once

#include "base/err.h"
#include "gpu/gpu.h"

enum { TUNING_MAX = 4096, TUNING_BYTES = 64 };

struct tuning_machine {
    uint64_t library; /* cublasLtGetVersion() */
    int32_t driver;
    uint32_t sms; /* of the lane: a part of the device has its own rows */
    char gpu[64];
};

/* A matmul as the library sees it; without padding, because keys are compared and hashed as
 * bytes. */
struct tuning_key {
    uint32_t n, k, rows;
    uint8_t in, out;  /* enum dtype */
    uint8_t align;    /* alignment of every row of every operand: 2, 4, 8 or 16 bytes */
    uint8_t epilogue; /* 1: a bias with y's dtype; 2: beta; 3: both */
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

/* A missing file, or path NULL, gives an empty table. -EBADMSG: the message has the line number. */
int tuning_open(struct tuning_table **ret, const char *path, const struct tuning_machine *m,
                struct err *e) MUST_USE;
void tuning_close(struct tuning_table *t);
/* NULL: not measured. Valid until the next tuning_put(). */
const struct tuning_row *tuning_find(const struct tuning_table *t, const struct tuning_key *k);
uint32_t tuning_count(const struct tuning_table *t);
/* Replaces the row with that key. -ENOSPC: the table is full. */
int tuning_put(struct tuning_table *t, const struct tuning_row *row) MUST_USE;
/* Replaces the file atomically and keeps the sections of other machines. First reads rows that
 * other processes have saved for this machine. Of two simultaneous saves one may lose the other's
 * last row; the next save adds it again. -EBADMSG as above. If the file cannot be written
 * completely, the old file stays. */
int tuning_save(struct tuning_table *t, const char *path, struct err *e) MUST_USE;
