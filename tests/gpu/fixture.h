/* fixture.h - a device, a lane and random tensors, for tests of gpu/ on any device.
 *
 * A test program calls fixture_args() first: it runs on the CPU or, with `--device cuda`, on a GPU.
 * Buffers of a fixture are device memory: ops may use the address, the host may not. Every buffer
 * has a ref on the host (on the CPU device: the buffer itself), which HOST() and at() return. A
 * test
 *
 *     makes buffers, fills HOST(p)     writes the refs
 *     fixture_send()                   copies refs to the device; nothing may be queued
 *     queues ops
 *     fixture_wait()                   waits; reads below see the results
 *     reads at(), HOST(p)
 *
 * Every buffer is poisoned with NaN before it is filled and lives until fixture_close(). On a GPU
 * all fixtures of a program share one device, lane and arena, and a read fails the test if the
 * poison after the buffer was overwritten. On the CPU each fixture has its own, and sanitizers
 * check bounds. A failure to open or to queue fails the test.
 */
#pragma once
#include "gpu/gpu.h"

struct fixture {
    struct gpu *gpu;
    const struct gpu_ops *op;
    struct lane *lane;
    uint64_t step;
    enum dtype act; /* dtype of activations, and of matrices on a GPU */
    void *owned[4096];
    unsigned n_owned;
};

/* --device, --kernel op=name, --dtype fp32|bf16|fp16, --invariant, --libs DIR, --part UNITS (of a
 * GPU, the last ones), --plain, --only PATTERN (of a test's name). Anything else ends the program
 * with a message. */
void fixture_args(int argc, char **argv);
bool fixture_cuda(void);
int fixture_rounds(
    int n); /* n random cases, or the share of them given by --rounds, for sanitizers */
void fixture_invariant(void); /* devices opened from now on are batch-invariant */

/* Setup of every test: closes what a failed test has left open. */
int fixture_begin(void **state);
/* Teardown of every program: waits for the device's library thread, which exit() would not. */
int fixture_end(void **state);
#define fixture_test(f) cmocka_unit_test_setup(f, fixture_begin)

/* isa, threads: CPU only */
void fixture_open(struct fixture *r, const char *isa, uint32_t threads);
void open_any(struct fixture *r); /* with random isa and threads */
void fixture_close(struct fixture *r);
void fixture_send(struct fixture *r);
void fixture_wait(struct fixture *r); /* waits until all queued work is done */

void *fixture_bytes(struct fixture *r, size_t bytes); /* 0xff: NaN in every float type */
void *fixture_copy(struct fixture *r, const void *from, size_t bytes); /* the same, filled */
/* the ref of device memory; other addresses are returned unchanged */
void *fixture_host(const void *p);
#define HOST(p) ((__typeof__(p))fixture_host(p))

float fixture_normal(void);                    /* roughly N(0, 1) */
uint32_t between(uint32_t low, uint32_t high); /* both inclusive */
bool wide(void); /* whether to choose a shape for whole tiles: every other on a GPU */
/* A matrix's dtype: any on the CPU, the activations' on a GPU. Below: a dtype for norms and
 * biases. */
enum dtype fixture_weight(const struct fixture *r);
enum dtype fixture_vector(const struct fixture *r);
/* [rows, cols] with that stride, random values times std; poison between rows. */
struct tensor fixture_tensor(struct fixture *r, enum dtype t, uint32_t rows, uint32_t cols,
                             uint32_t stride, float std);
struct tensor fixture_empty(struct fixture *r, enum dtype t, uint32_t rows, uint32_t cols,
                            uint32_t stride);
struct tensor fixture_output(struct fixture *r, uint32_t rows, uint32_t cols,
                             uint32_t stride);                   /* of activations */
struct tensor fixture_twice(struct fixture *r, struct tensor t); /* a copy */
/* GPU only: gigabytes without a ref, any content. */
struct tensor fixture_device(struct fixture *r, enum dtype t, uint32_t rows, uint32_t cols);
double at(struct tensor t, uint32_t row, uint32_t col); /* a float tensor's element */
void set(struct tensor t, uint32_t row, uint32_t col, float x);
double rounding(enum dtype t); /* maximum relative error of one rounding to nearest */

/* Whether the two have the same bits, NaN equal to NaN; prints the first place that differs. */
bool same_bits(struct tensor a, struct tensor b);

/* A KV cache of one group: K and V of n_slots sequences, in scattered blocks. */
struct paged {
    struct kv_view view;
    uint32_t n_slots, n_entries;
    slice_id *table;
};
void fixture_paged(struct fixture *r, struct paged *p, enum dtype t, uint32_t n_slots,
                   uint32_t max_pos, uint32_t tpb, uint32_t n_kv_heads, uint32_t head_dim);
/* The same with blocks that have no ref. */
void fixture_paged_device(struct fixture *r, struct paged *p, enum dtype t, uint32_t n_slots,
                          uint32_t max_pos, uint32_t tpb, uint32_t n_kv_heads, uint32_t head_dim);
/* Random values for K and V of positions first .. first + n. */
void fixture_fill_kv(struct paged *p, uint32_t slot, uint32_t first, uint32_t n);
