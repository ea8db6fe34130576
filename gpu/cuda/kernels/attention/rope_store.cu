/* rope_store.cu - rotates q and k, stores k and v; see rope_store.h. The work is divided into
 * items. An item is one head of a row: the q heads, then the k heads, then the v heads. A group of
 * lanes has one item. Each lane has a pair of runs of N adjacent elements (16 bytes); the two runs
 * are rotated together, so that rotating needs no exchange between lanes:
 *
 *     0 ........ rot/2 ........ rot ........................ head_dim
 *     [ lane 0 1 2 ][ 0 1 2    ][ lane 3 3 4 4 5 5 ...        ]
 *       first         its pair    not rotated
 *
 * The norm's sum is a tree over the group. head_dim 128 in bf16: 8 lanes per item, 4 items per
 * warp. Heads that are not divisible in this way, or not aligned, have a warp per item, with N = 1.
 */
#include "gpu/cuda/kernels/attention/rope_store.h"

#include "gpu/cuda/kernels/base/kv_address.cuh"
#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/vec.cuh"

namespace {

constexpr uint32_t THREADS = 256;
constexpr uint32_t MAX_PIECES = 8; /* pairs per lane if N = 1: head_dim 512 */

struct rope_args {
    struct rope_store s;
    const int32_t *pos;
    const uint32_t *slot;
    uint32_t n_tokens, n_items; /* of a row */
    uint32_t n_q, n_k;          /* q heads and k heads among the items; the rest are v */
    uint32_t rot, group;        /* lanes per item */
    uint32_t *fault;
};

enum what { ITEM_Q, ITEM_K, ITEM_V };

/* Finds the first elements *a and *b of the two runs of pair u. The pair is rotated if *a is below
 * rot / 2. */
template <int N>
__device__ __forceinline__ void
pieces(uint32_t u, uint32_t rot, uint32_t *a, uint32_t *b)
{
    uint32_t half = rot / 2;

    if (u * N < half) {
        *a = u * N;
        *b = half + u * N;
    } else {
        *a = rot + (u * N - half) * 2;
        *b = *a + N;
    }
}

/* Address of a key or value head in the cache. */
__device__ __forceinline__ void *
kv_element(const struct kv_view &v, slice_id at, uint32_t pos, uint32_t head, bool value)
{
    char *key = v.dtype == DT_F32    ? (char *)kv_key<float>(v, at, pos, head)
                : v.dtype == DT_E4M3 ? (char *)kv_key<uint8_t>(v, at, pos, head)
                                     : (char *)kv_key<uint16_t>(v, at, pos, head);

    return key + (value ? kv_value_offset(v) : 0);
}

/* Stores N elements, in the cache or in place. */
template <int N>
__device__ __forceinline__ void
keep(enum dtype t, void *p, size_t at, const float (&v)[N])
{
    if (t == DT_E4M3)
        store<N>((__nv_fp8_e4m3 *)p + at, v);
    else
        store_as<N>(t, p, at, v);
}

/* The kernel. PIECES: pairs per lane, 1 unless N is 1. */
template <typename T, int N, int PIECES>
__global__ void
__launch_bounds__(THREADS) rope_store(const __grid_constant__ struct rope_args a)
{
    const struct rope_store &s = a.s;
    const uint32_t d = s.head_dim, lane = threadIdx.x % a.group;
    const uint32_t index = (blockIdx.x * THREADS + threadIdx.x) / a.group;
    const uint32_t row = index / a.n_items, item = index % a.n_items;
    const enum what what = item < a.n_q ? ITEM_Q : item < a.n_q + a.n_k ? ITEM_K : ITEM_V;
    const uint32_t head = item - (what == ITEM_Q ? 0 : what == ITEM_K ? a.n_q : a.n_q + a.n_k);
    const struct tensor &from = what == ITEM_Q ? s.q : what == ITEM_K ? s.k : s.v;
    const struct tensor &norm = what == ITEM_Q ? s.q_norm : s.k_norm;
    float x[PIECES][2][N], sum = 0;
    uint32_t first[PIECES], second[PIECES];
    bool mine[PIECES][2];
    slice_id at = SLICE_NONE;

    join_previous();
    bool there = row < a.n_tokens;
    T *head_of_row = there ? (T *)row_at(from, row) + (size_t)head * d : NULL;

    UNROLL for (int p = 0; p < PIECES; p++) {
        uint32_t u = lane + p * a.group;

        pieces<N>(u, a.rot, &first[p], &second[p]);
        mine[p][0] = there && first[p] < d;
        mine[p][1] = there && second[p] < d;
        UNROLL for (int j = 0; j < N; j++) x[p][0][j] = x[p][1][j] = 0;
        if (mine[p][0]) load<N>(x[p][0], head_of_row + first[p]);
        if (mine[p][1]) load<N>(x[p][1], head_of_row + second[p]);
    }

    uint32_t slot = there ? a.slot[row] : SLOT_NONE, pos = there ? (uint32_t)a.pos[row] : 0;
    bool stores = what != ITEM_Q && s.kv.base;

    if (there && stores) {
        if (slot == SLOT_NONE)
            there = false;
        else if (pos >> kv_block_shift(s.kv) < s.kv.table_stride)
            at = kv_slice(s.kv, slot, pos);
        if (there && at == SLICE_NONE) {
            *a.fault = 1;
            there = false;
        }
    }
    if (what != ITEM_V && s.cos_sin.data && pos >= s.cos_sin.dim[0]) {
        if (there && slot != SLOT_NONE) *a.fault = 1;
        there = false;
    }
    const bool norms = what == ITEM_V ? s.v_norm : norm.data != NULL;

    if (norms) { /* lanes of a warp may differ: group_sum(), a shuffle, must stay outside */
        UNROLL for (int p = 0; p < PIECES; p++)
            UNROLL for (int j = 0; j < N; j++)
                sum = fmaf(x[p][1][j], x[p][1][j], fmaf(x[p][0][j], x[p][0][j], sum));
    }
    if (s.q_norm.data || s.k_norm.data || s.v_norm) sum = group_sum(sum, a.group);
    if (!there) return;
    if (norms) {
        float k = 1.0f / __fsqrt_rn(add_rn(sum / (float)d, s.norm_eps));

        UNROLL for (int p = 0; p < PIECES; p++)
            UNROLL for (int part = 0; part < 2; part++) {
                float w[N];

                if (!mine[p][part]) continue;
                if (what != ITEM_V)
                    load_as<N>(w, norm.dtype, norm.data, part ? second[p] : first[p]);
                UNROLL for (int j = 0; j < N; j++) {
                    x[p][part][j] = mul_rn(x[p][part][j], k);
                    if (what != ITEM_V)
                        x[p][part][j] = mul_rn(x[p][part][j], add_rn(w[j], s.norm_plus));
                }
            }
    }
    if (what != ITEM_V && s.cos_sin.data) {
        const float *cs = (const float *)row_at(s.cos_sin, pos);

        UNROLL for (int p = 0; p < PIECES; p++) {
            uint32_t u = lane + p * a.group;
            float c[N], sn[N];

            if (u * N >= a.rot / 2) continue;
            load<N>(c, cs + u * N);
            load<N>(sn, cs + a.rot / 2 + u * N);
            UNROLL for (int j = 0; j < N; j++) {
                float v = x[p][0][j], w = x[p][1][j];

                x[p][0][j] = fmaf(v, c[j], -mul_rn(w, sn[j]));
                x[p][1][j] = fmaf(w, c[j], mul_rn(v, sn[j]));
            }
        }
    }

    enum dtype type = stores ? s.kv.dtype : from.dtype;
    void *to = stores ? kv_element(s.kv, at, pos, head, what == ITEM_V) : head_of_row;

    UNROLL for (int p = 0; p < PIECES; p++) {
        if (mine[p][0]) keep<N>(type, to, first[p], x[p][0]);
        if (mine[p][1]) keep<N>(type, to, second[p], x[p][1]);
    }
}

template <typename T>
cudaError_t
queue(const struct k_launch *l, struct rope_args &a)
{
    constexpr uint32_t N = 16 / sizeof(T);
    const struct rope_store &s = a.s;
    const struct kv_view &kv = s.kv;
    uint32_t d = s.head_dim, pairs = d / (2 * N), half = a.rot / 2;
    bool whole = d % (2 * N) == 0 && half % N == 0 && pairs <= 32 && rows_fit(s.q, N) &&
                 rows_fit(s.k, N) && rows_fit(s.v, N) && rows_fit(s.cos_sin, N) &&
                 rows_fit(s.q_norm, N) && rows_fit(s.k_norm, N);
    uint64_t threads;

    if (kv.base)
        whole = whole && (uintptr_t)kv.base % 16 == 0 && kv.slice_bytes % 16 == 0 &&
                d * (kv.dtype == DT_E4M3 ? 1 : float_bytes(kv.dtype)) % 16 == 0;
    a.group = 32;
    while (whole && a.group / 2 >= pairs) a.group /= 2;
    threads = (uint64_t)a.n_tokens * a.n_items * a.group;
    if (threads > UINT32_MAX - THREADS) return cudaErrorInvalidValue;
    dim3 grid((uint32_t)((threads + THREADS - 1) / THREADS));

    if (whole) return launch(rope_store<T, N, 1>, grid, THREADS, 0, l->st, a);
    if (d > 2 * 32 * MAX_PIECES) return cudaErrorInvalidValue;
    return launch(rope_store<T, 1, MAX_PIECES>, grid, THREADS, 0, l->st, a);
}

bool
one_row(struct tensor *w)
{
    w->dim[0] = 1;
    return !w->data || is_float(w->dtype);
}

} /* namespace */

cudaError_t
k_rope_store(const struct k_launch *l, const struct rope_store *s, struct step_tokens r)
{
    struct rope_args a = {};
    enum dtype type = s->q.data ? s->q.dtype : s->k.dtype;
    bool rotates = s->cos_sin.data, stores = s->kv.base && s->k.data;

    a.s = *s;
    a.pos = r.pos;
    a.slot = r.slot;
    a.n_tokens = r.n_tokens;
    a.rot = rotates ? s->cos_sin.dim[1] : 0;
    a.fault = l->fault;
    /* Items that are neither normalized nor rotated nor stored are skipped. */
    a.n_q = s->q.data && (rotates || s->q_norm.data) ? s->n_heads : 0;
    a.n_k = s->k.data && (rotates || s->k_norm.data || stores) ? s->n_kv_heads : 0;
    a.n_items = a.n_q + a.n_k + (stores && s->kv.n_parts != 1 ? s->n_kv_heads : 0);
    if (!stores) a.s.kv.base = NULL;
    if (!one_row(&a.s.q_norm) || !one_row(&a.s.k_norm)) return cudaErrorInvalidValue;
    if (s->k.data && s->k.dtype != type) return cudaErrorInvalidValue;
    if (stores && ((!is_float(s->kv.dtype) && s->kv.dtype != DT_E4M3) ||
                   (s->kv.n_parts != 1 && s->v.dtype != type)))
        return cudaErrorInvalidValue;
    if (!is_float(type) || (rotates && s->cos_sin.dtype != DT_F32)) return cudaErrorInvalidValue;
    if (a.n_tokens == 0 || a.n_items == 0 || s->head_dim == 0) return cudaSuccess;
    WITH_FLOAT(T, type, return queue<T>(l, a));
    return cudaSuccess;
}
