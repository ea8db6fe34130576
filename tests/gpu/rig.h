/* rig.h - a device, a lane and random tensors, for the tests of gpu/.
 *
 * Every buffer a rig hands out is poisoned with NaN before it is filled, ends against nothing in
 * particular, and lives until rig_close(). A failure to open or to queue fails the test.
 */
#ifndef TESTS_GPU_RIG_H
#define TESTS_GPU_RIG_H

#include "gpu/gpu.h"

struct rig {
    struct gpu *gpu;
    const struct gpu_ops *op;
    struct lane *lane;
    uint64_t step;
    void *owned[4096];
    unsigned n_owned;
};

void rig_open(struct rig *r, const char *isa, uint32_t threads);
void rig_close(struct rig *r);
void rig_wait(struct rig *r); /* until everything queued is done */

void *rig_bytes(struct rig *r, size_t bytes); /* 0xff: NaN in every float type */
float rig_normal(void);                       /* roughly N(0, 1) */
/* [rows, cols] with that stride, random values times std; poison between rows. */
struct tensor rig_tensor(struct rig *r, enum dtype t, uint32_t rows, uint32_t cols, uint32_t stride,
                         float std);
struct tensor rig_output(struct rig *r, uint32_t rows, uint32_t cols, uint32_t stride);
double at(struct tensor t, uint32_t row, uint32_t col); /* a float tensor's element */

/* Whether the two have the same bits, NaN equal to NaN; prints the first place that differs. */
bool same_bits(struct tensor a, struct tensor b);

/* A sequence cache of one group: K and V of n_seats sequences, blocks scattered over the base. */
struct paged {
    struct kv_view view;
    uint32_t n_seats, n_entries;
    slice_id *table;
};
void rig_paged(struct rig *r, struct paged *p, enum dtype t, uint32_t n_seats, uint32_t max_pos,
               uint32_t tpb, uint32_t n_kv_heads, uint32_t head_dim);

#endif
