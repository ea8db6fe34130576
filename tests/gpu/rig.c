/* rig.c - see rig.h. */
#include "tests/gpu/rig.h"

#include "gpu/fp.h"
#include "tests/test.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void
rig_open(struct rig *r, const char *isa, uint32_t threads)
{
    struct gpu_options o = { .device = "cpu", .isa = isa };
    struct err e = { 0 };

    memset(r, 0, sizeof *r);
    if (gpu_open(&r->gpu, &o, &e) < 0) fail_msg("%s", e.text);
    r->op = gpu_ops(r->gpu);
    if (r->op->lane_open(r->gpu, threads, &r->lane, &e) < 0) fail_msg("%s", e.text);
}

void
rig_close(struct rig *r)
{
    r->op->lane_close(r->lane);
    gpu_close(r->gpu);
    for (unsigned i = 0; i < r->n_owned; i++) free(r->owned[i]);
    memset(r, 0, sizeof *r);
}

void
rig_wait(struct rig *r)
{
    struct pollfd p = { .fd = r->op->lane_fd(r->lane), .events = POLLIN };

    assert_int_equal(r->op->lane_mark(r->lane, ++r->step), 0);
    while (r->op->lane_done(r->lane) < r->step) {
        uint64_t n;

        assert_true(poll(&p, 1, 60000) == 1);
        assert_true(read(p.fd, &n, sizeof n) == sizeof n);
    }
}

void *
rig_bytes(struct rig *r, size_t bytes)
{
    void *p = malloc(bytes + 1);

    assert_non_null(p);
    assert_true(r->n_owned < ARRAY_LEN(r->owned));
    memset(p, 0xff, bytes + 1);
    return r->owned[r->n_owned++] = p;
}

float
rig_normal(void)
{
    int sum = 0;

    for (int i = 0; i < 4; i++) sum += (int)test_below(65536) - 32768;
    return (float)sum / 37837.0f; /* 4 uniforms' standard deviation */
}

struct tensor
rig_output(struct rig *r, uint32_t rows, uint32_t cols, uint32_t stride)
{
    struct tensor t = tensor_2d(rig_bytes(r, (size_t)rows * stride * 4), DT_F32, rows, cols);

    t.stride = stride;
    return t;
}

struct tensor
rig_tensor(struct rig *r, enum dtype type, uint32_t rows, uint32_t cols, uint32_t stride, float std)
{
    struct tensor t = tensor_2d(rig_bytes(r, dtype_bytes(type, (size_t)rows * stride)), type, rows,
                                cols);

    t.stride = stride;
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t j = 0; j < cols; j++) {
            size_t n = (size_t)i * stride + j;
            float x = rig_normal() * std;

            if (type == DT_F32)
                ((float *)t.data)[n] = x;
            else
                ((uint16_t *)t.data)[n] = type == DT_BF16 ? bf16_of_float(x) : f16_of_float(x);
        }
    return t;
}

double
at(struct tensor t, uint32_t row, uint32_t col)
{
    size_t n = (size_t)row * t.stride + col;

    if (t.dtype == DT_F32) return ((const float *)t.data)[n];
    return t.dtype == DT_BF16 ? float_of_bf16(((const uint16_t *)t.data)[n])
                              : float_of_f16(((const uint16_t *)t.data)[n]);
}

bool
same_bits(struct tensor a, struct tensor b)
{
    assert_int_equal(a.dim[0], b.dim[0]);
    assert_int_equal(a.dim[1], b.dim[1]);
    for (uint32_t i = 0; i < a.dim[0]; i++)
        for (uint32_t j = 0; j < a.dim[1]; j++) {
            float x = (float)at(a, i, j), y = (float)at(b, i, j);

            if (bits_of_float(x) == bits_of_float(y) || (x != x && y != y)) continue;
            print_error("[%u, %u]: %.9g and %.9g\n", i, j, (double)x, (double)y);
            return false;
        }
    return true;
}

void
rig_paged(struct rig *r, struct paged *p, enum dtype t, uint32_t n_seats, uint32_t max_pos,
          uint32_t tpb, uint32_t n_kv_heads, uint32_t head_dim)
{
    uint32_t n_entries = CEIL_DIV(max_pos, tpb), n = n_seats * n_entries;
    uint32_t bytes = (uint32_t)ROUND_UP(dtype_bytes(t, (size_t)n_kv_heads * tpb * head_dim), 128);

    p->n_seats = n_seats;
    p->n_entries = n_entries;
    p->table = rig_bytes(r, n * sizeof(slice_id));
    p->view = (struct kv_view){ .base = rig_bytes(r, (size_t)bytes * 2 * n),
                                .table = p->table,
                                .table_stride = n_entries,
                                .slice_bytes = bytes,
                                .n_parts = 2,
                                .tokens_per_block = tpb,
                                .n_kv_heads = n_kv_heads,
                                .head_dim = head_dim,
                                .dtype = t,
                                .k_scale = 1,
                                .v_scale = 1 };
    for (uint32_t i = 0; i < n; i++) p->table[i] = 2 * i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = test_below(i);
        slice_id s = p->table[i - 1];

        p->table[i - 1] = p->table[j];
        p->table[j] = s;
    }
}
