/* fixture.h - a device, a lane and random tensors, for the tests of gpu/ on any device.
 *
 * A test program says fixture_args() first: it runs on the CPU, or with `--device cuda` on a GPU. What
 * a fixture hands out lies on the device: an op may be given its address, the host may not touch it.
 * Every buffer has a ref on the host (on the CPU device: itself) that HOST() and at() find. So a
 * test
 *
 *     makes buffers, fills HOST(p)     the refs
 *     fixture_send()                       refs -> device; nothing may be queued then
 *     queues ops
 *     fixture_wait()                       done; what is looked at from now on comes back
 *     looks at at(), HOST(p)
 *
 * Every buffer is poisoned with NaN before it is filled, ends against nothing in particular, and
 * lives until fixture_close(). On a GPU the program has one device, lane and arena for all its fixtures,
 * and a look fails the test when something was written behind the buffer; on the CPU a fixture has its
 * own, and a sanitizer looks. A failure to open or to queue fails the test.
 */
#ifndef TESTS_GPU_FIXTURE_H
#define TESTS_GPU_FIXTURE_H

#include "gpu/gpu.h"

struct fixture {
    struct gpu *gpu;
    const struct gpu_ops *op;
    struct lane *lane;
    uint64_t step;
    enum dtype act; /* of activations, and of matrices on a GPU */
    void *owned[4096];
    unsigned n_owned;
};

/* --device, --kernel op=name, --dtype fp32|bf16|fp16, --invariant, --libs DIR, --part UNITS (of a
 * GPU, the last ones), --plain, --only PATTERN (of a test's name). Anything else ends the program
 * with a sentence. */
void fixture_args(int argc, char **argv);
bool fixture_cuda(void);
int fixture_rounds(
    int n); /* n random cases, or the part of them that --rounds asks for: under a sanitizer */
void fixture_invariant(
    void); /* every device opened from now on keeps a row's bits from its company */

/* For every test of a program: what a failed one before it has left open is closed. */
int fixture_begin(void **state);
/* For every program: a device asks its library in a thread of its own, which exit() would not wait
 * for. */
int fixture_end(void **state);
#define fixture_test(f) cmocka_unit_test_setup(f, fixture_begin)

void fixture_open(struct fixture *r, const char *isa, uint32_t threads); /* both mean the CPU */
void open_any(struct fixture *r);                                        /* any of these */
void fixture_close(struct fixture *r);
void fixture_send(struct fixture *r);
void fixture_wait(struct fixture *r); /* until everything queued is done */

void *fixture_bytes(struct fixture *r, size_t bytes); /* 0xff: NaN in every float type */
void *fixture_copy(struct fixture *r, const void *from, size_t bytes); /* the same, filled */
void *fixture_host(const void *p); /* the ref of device memory; any other address is its own */
#define HOST(p) ((__typeof__(p))fixture_host(p))

float fixture_normal(void);                    /* roughly N(0, 1) */
uint32_t between(uint32_t low, uint32_t high); /* both may come */
bool wide(void); /* whether the shape is to be one for whole tiles: on a GPU every other */
/* A matrix's dtype: any on the CPU, that of the fixture's activations on a GPU; and one for norms and
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
struct tensor fixture_twice(struct fixture *r, struct tensor t); /* the same content once more */
/* A GPU's alone: no ref, any content, gigabytes of it. */
struct tensor fixture_device(struct fixture *r, enum dtype t, uint32_t rows, uint32_t cols);
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
void fixture_paged(struct fixture *r, struct paged *p, enum dtype t, uint32_t n_slots,
                   uint32_t max_pos, uint32_t tpb, uint32_t n_kv_heads, uint32_t head_dim);
/* The same with blocks that have no ref. */
void fixture_paged_device(struct fixture *r, struct paged *p, enum dtype t, uint32_t n_slots,
                          uint32_t max_pos, uint32_t tpb, uint32_t n_kv_heads, uint32_t head_dim);
/* Random values for K and V of positions first .. first + n. */
void fixture_fill_kv(struct paged *p, uint32_t slot, uint32_t first, uint32_t n);

#endif
