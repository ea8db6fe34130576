/* cuda_tuning_file.h - the table of measured matmul algorithms and its file
 * (gpu_options.tuning_file).
 *
 * The file is text with one section per machine (library version, driver, SMs, GPU name). Sections
 * of other machines are kept unchanged. A row has a shape, the algorithm as 64 bytes of the
 * library, and two measured times. Uses no device and no library.
 *
 *     machine 130101 13000 132 NVIDIA H200
 *     bf16 bf16 6144 4096 64 16 0 0 13.91 15.20 2f00...
 *     in   out  n    k    rows align epilogue fixed us heuristic_us algorithm
 *
 * `rows` is a bucket (cuda_blas.h), or 0 for all numbers of rows if fixed is 1. us is the time of
 * the algorithm, heuristic_us the time of the first algorithm that the library proposes. Not
 * thread-safe: tuning_put() and tuning_save() exclude all other calls.
 */
#pragma once
#include "base/err.h"
#include "gpu/gpu.h"

enum { TUNING_MAX = 4096, TUNING_BYTES = 64 };

struct tuning_machine {
    uint64_t library; /* cublasLtGetVersion() */
    int32_t driver;
    uint32_t sms; /* SMs of the lane; a part of a device has its own rows */
    char gpu[64];
};

/* What an algorithm depends on. No padding: keys are compared and hashed as bytes. */
struct tuning_key {
    uint32_t n, k, rows;
    uint8_t in, out;  /* enum dtype */
    uint8_t align;    /* alignment of every row of every operand: 2, 4, 8 or 16 bytes */
    uint8_t epilogue; /* 1: bias with the dtype of y; 2: beta; 3: both */
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

/* Opens a table and reads the rows of machine m from the file. A missing file, or path NULL, gives
 * an empty table. -EBADMSG: a line is invalid; the message has its number. */
int tuning_open(struct tuning_table **ret, const char *path, const struct tuning_machine *m,
                struct err *e) MUST_USE;
void tuning_close(struct tuning_table *t);
/* Returns the row of a matmul, valid until the next tuning_put(); NULL: it was not measured. */
const struct tuning_row *tuning_find(const struct tuning_table *t, const struct tuning_key *k);
uint32_t tuning_count(const struct tuning_table *t);
/* Adds a row, or replaces the row with the same key. -ENOSPC: the table is full. */
int tuning_put(struct tuning_table *t, const struct tuning_row *row) MUST_USE;
/* Replaces the file atomically; sections of other machines are kept. First reads rows that other
 * processes have saved for this machine. Of two simultaneous saves one may lose the last row of the
 * other; the next save adds it again. -EBADMSG: as tuning_open(). If the file cannot be written
 * completely, the old file stays. */
int tuning_save(struct tuning_table *t, const char *path, struct err *e) MUST_USE;
