/* rig.h - a device, a lane and random tensors, for the tests of gpu/ on any device.
 *
 * A test program says rig_args() first: it runs on the CPU, or with `--device cuda` on a GPU. What a rig
 * hands out lies on the device: an op may be given its address, the host may not touch it. Every buffer
 * has a ref on the host (on the CPU device: itself) that HOST() and at() find. So a test
 *
 *     makes buffers, fills HOST(p)     the refs
 *     rig_send()                       refs -> device; nothing may be queued then
 *     queues ops
 *     rig_wait()                       done; what is looked at from now on comes back
 *     looks at at(), HOST(p)
 *
 * Every buffer is poisoned with NaN before it is filled, ends against nothing in particular, and lives
 * until rig_close(). On a GPU the program has one device, lane and arena for all its rigs, and a look
 * fails the test when something was written behind the buffer; on the CPU a rig has its own, and a
 * sanitizer looks. A failure to open or to queue fails the test.
 */
#ifndef TESTS_GPU_RIG_H
#define TESTS_GPU_RIG_H

#include "gpu/gpu.h"

struct rig {
    struct gpu *gpu;
    const struct gpu_ops *op;
    struct lane *lane;
    uint64_t step;
    enum dtype act; /* of activations, and of matrices on a GPU */
    void *owned[4096];
    unsigned n_owned;
};

/* --device, --kernel op=name, --dtype fp32|bf16|fp16, --invariant, --libs DIR, --part UNITS (of a GPU, the last ones), --plain,
 * --only PATTERN (of a test's name). Anything else ends the program with a sentence. */
void rig_args(int argc, char **argv);
bool rig_cuda(void);
int rig_rounds(
    int n); /* n random cases, or the part of them that --rounds asks for: under a sanitizer */
void rig_invariant(void); /* every device opened from now on keeps a row's bits from its company */

/* For every test of a program: what a failed one before it has left open is closed. */
int rig_begin(void **state);
/* For every program: a device asks its library in a thread of its own, which exit() would not wait for. */
int rig_end(void **state);
#define rig_test(f) cmocka_unit_test_setup(f, rig_begin)

void rig_open(struct rig *r, const char *isa, uint32_t threads); /* both mean the CPU */
void open_any(struct rig *r);                                    /* any of these */
void rig_close(struct rig *r);
void rig_send(struct rig *r);
void rig_wait(struct rig *r); /* until everything queued is done */

void *rig_bytes(struct rig *r, size_t bytes);                  /* 0xff: NaN in every float type */
void *rig_copy(struct rig *r, const void *from, size_t bytes); /* the same, filled */
void *rig_host(const void *p); /* the ref of device memory; any other address is its own */
#define HOST(p) ((__typeof__(p))rig_host(p))

float rig_normal(void);                        /* roughly N(0, 1) */
uint32_t between(uint32_t low, uint32_t high); /* both may come */
bool wide(void); /* whether the shape is to be one for whole tiles: on a GPU every other */
/* A matrix's dtype: any on the CPU, that of the rig's activations on a GPU; and one for norms and biases. */
enum dtype rig_weight(const struct rig *r);
enum dtype rig_vector(const struct rig *r);
/* [rows, cols] with that stride, random values times std; poison between rows. */
struct tensor rig_tensor(struct rig *r, enum dtype t, uint32_t rows, uint32_t cols, uint32_t stride,
                         float std);
struct tensor rig_empty(struct rig *r, enum dtype t, uint32_t rows, uint32_t cols, uint32_t stride);
struct tensor rig_output(struct rig *r, uint32_t rows, uint32_t cols,
                         uint32_t stride);               /* of activations */
struct tensor rig_twice(struct rig *r, struct tensor t); /* the same content once more */
/* A GPU's alone: no ref, any content, gigabytes of it. */
struct tensor rig_device(struct rig *r, enum dtype t, uint32_t rows, uint32_t cols);
double at(struct tensor t, uint32_t row, uint32_t col); /* a float tensor's element */
void set(struct tensor t, uint32_t row, uint32_t col, float x);
double rounding(enum dtype t); /* what one rounding to nearest may lose, relative */

/* Whether the two have the same bits, NaN equal to NaN; prints the first place that differs. */
bool same_bits(struct tensor a, struct tensor b);

/* A sequence cache of one group: K and V of n_slots sequences, blocks scattered over the base. */
struct paged {
    struct kv_view view;
    uint32_t n_slots, n_entries;
    slice_id *table;
};
void rig_paged(struct rig *r, struct paged *p, enum dtype t, uint32_t n_slots, uint32_t max_pos,
               uint32_t tpb, uint32_t n_kv_heads, uint32_t head_dim);
/* The same with blocks that have no ref. */
void rig_paged_device(struct rig *r, struct paged *p, enum dtype t, uint32_t n_slots,
                      uint32_t max_pos, uint32_t tpb, uint32_t n_kv_heads, uint32_t head_dim);
/* Random values for K and V of positions first .. first + n. */
void rig_fill_kv(struct paged *p, uint32_t slot, uint32_t first, uint32_t n);

#endif
