/* attend_decode_ring_sm90.cu - decode attention by TMA and wgmma; see attend_decode_ring_sm90.h.
 * attend_decode_sm90_schedule.cuh defines unit, piece, share and column.
 *
 * At most one thread block per SM. One warp starts TMA copies of tiles of KEYS keys and of their
 * values into a ring in shared memory. Two warpgroups use the tiles alternately:
 *
 *     scores    S^T [keys, 8] = K Q^T         K: K-major, as stored
 *     values    O^T [head dim, 8] += V^T P^T  V: M-major, as stored
 *
 * The eight columns are the columns of a unit: heads, or rows of a segment that see the same keys.
 * The consumer threads load no keys or values. Another warp loads Q of the next piece meanwhile.
 * Each warpgroup has its own softmax state until a piece ends; then the two states are merged in
 * shared memory (attend_decode_sm90_combine.cuh).
 */
#include "gpu/cuda/kernels/attention/attend_decode_ring_sm90.h"

#include "gpu/cuda/kernels/attention/attend_decode_sm90_combine.cuh"
#include "gpu/cuda/kernels/attention/kv_tma_sm90.cuh"
#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/sm90.cuh"
#include "gpu/cuda/kernels/base/vec.cuh"

using namespace attend_one;
using namespace sm90;

namespace {

template <typename T_, int D_> struct shape {
    using T = T_;
    static constexpr int D = D_, GROUPS = 2, CONSUMERS = 128 * GROUPS, THREADS = CONSUMERS + 64;
    static constexpr int KEYS = D == 64 ? 128 : 64,
                         BYTES = KEYS * D * 2; /* bytes of a tile of K, or of V */
    /* Maximum tiles in the ring, K and V together; each warpgroup uses the same number of them. */
    static constexpr int MOST = (192 << 10) / BYTES / (2 * GROUPS) * (2 * GROUPS);
    static constexpr int M = KEYS / 64, HALVES = D / 64; /* 64-row wgmmas per S^T; per O^T */
};

constexpr int BUFFERS = 2; /* buffers that pieces use alternately to merge states */

enum { SYNC_ALL = 1, SYNC_GROUP = 2 }; /* named barriers */

template <class S> struct shared_mem {
    struct alignas(1024) {
        unsigned char q[2][S::HALVES * 1024];         /* [D / 64][8][64], swizzled */
        unsigned char weight[S::GROUPS][S::M * 1024]; /* P^T: [KEYS / 64][8][64], swizzled */
    } t;
    float group_o[BUFFERS][S::GROUPS][HEADS][S::D + 4];
    float group_max[BUFFERS][S::GROUPS][HEADS], warp_sum[BUFFERS][S::GROUPS][4][HEADS];
    float peak[S::GROUPS][4][HEADS];
    uint64_t full[S::MOST], empty[S::MOST], q_full[2], q_empty[2];
    bool last;
    /* The ring: tiles K, V, K, ..., each [KEYS / 8][D / 64][8][64], swizzled. An entry is always
     * used by the same warpgroup, which therefore sees every phase of the entry's barriers. */
    alignas(1024) unsigned char slot[S::MOST][S::BYTES];
};

/* Whether `mine` is true in any thread of the warpgroup; a barrier of its 128 threads. */
__device__ __forceinline__ bool
any_of_group(uint32_t name, bool mine)
{
    int any;

    asm volatile("{\n.reg .pred p, q;\nsetp.ne.b32 p, %1, 0;\n"
                 "barrier.cta.red.or.pred q, %2, 128, p;\nselp.b32 %0, 1, 0, q;\n}"
                 : "=r"(any)
                 : "r"((int)mine), "r"(name)
                 : "memory");
    return any;
}

/* ---- producer ---- */

/* Returns the tensor coordinates of this lane's copy: box_tokens keys of the tile. Slice -1, for
 * which TMA loads zeros: the unit sees none of these keys, or the lane has no copy. */
template <class S>
__device__ __forceinline__ struct box
find_box(const struct job &j, const struct place &p, uint32_t box_tokens)
{
    int32_t first = p.tile * S::KEYS + (int32_t)(threadIdx.x % 32 * box_tokens);
    struct box b = { 0, 0, -1 };

    if (threadIdx.x % 32 >= S::KEYS / box_tokens || first >= p.high ||
        first + (int32_t)box_tokens <= p.low)
        return b;
    uint32_t token = (uint32_t)first & ((1u << j.shift) - 1);

    b.slice =
        (int32_t)j.a.kv.table[(size_t)p.slot * j.a.kv.table_stride + ((uint32_t)first >> j.shift)];
    b.row = S::D == 64 ? (int)token : 0;
    b.group = S::D == 64 ? (int)p.kv_head : (int)(((p.kv_head << j.shift) + token) / 8);
    return b;
}

template <class S>
__device__ __forceinline__ void
fetch(struct shared_mem<S> &s, const struct job &j, struct place p, uint32_t slots,
      uint32_t box_tokens, const CUtensorMap *k, const CUtensorMap *v)
{
    const uint32_t lane = threadIdx.x % 32, offset = lane * box_tokens * S::D * 2;
    const bool brings = lane < S::KEYS / box_tokens;
    struct box b = find_box<S>(j, p, box_tokens);
    uint32_t slot = 0, phase = 1;

    for (;;) {
        const bool more = p.tile + 1 < p.stop || p.left > 0;
        struct box ahead = b; /* the next box, looked up before waiting */

        if (more) {
            step<S::KEYS>(j, p);
            ahead = find_box<S>(j, p, box_tokens);
        }
        UNROLL for (int i = 0; i < 2; i++) {
            const uint32_t full = smem(&s.full[slot + i]);

            barrier_wait(smem(&s.empty[slot + i]), phase);
            if (lane == 0) barrier_expect(full, S::BYTES);
            __syncwarp();
            if (brings)
                tma_load(smem(s.slot[slot + i]) + offset, i ? v : k, full, 0, b.row, 0, b.group,
                         b.slice);
        }
        if (!more) break;
        b = ahead;
        slot += 2;
        if (slot == slots) slot = 0, phase ^= 1;
    }
}

/* The Q warp: loads Q of every piece of the block into two alternating buffers. */
template <class S>
__device__ __forceinline__ void
bring_q(struct shared_mem<S> &s, const struct job &j, struct place p)
{
    constexpr uint32_t VECS = S::D / 8, EACH = HEADS * VECS / 32;
    const uint32_t lane = threadIdx.x % 32;

    for (uint32_t piece = 0;; piece++) {
        const uint32_t rows = columns(j, p);
        uint4 q[EACH];

        UNROLL for (uint32_t i = 0; i < EACH; i++) {
            uint32_t row = (lane + 32 * i) / VECS, vec = (lane + 32 * i) % VECS;

            q[i] = make_uint4(0, 0, 0, 0);
            if (row < rows)
                q[i] = *(const uint4 *)((const char *)j.a.q.data +
                                        (begin_of(j, p, j.a.q, row) + vec * 8) * 2);
        }
        barrier_wait(smem(&s.q_empty[piece % 2]), piece / 2 % 2 ^ 1);
        UNROLL for (uint32_t i = 0; i < EACH; i++) {
            uint32_t row = (lane + 32 * i) / VECS, vec = (lane + 32 * i) % VECS;

            *(uint4 *)(s.t.q[piece % 2] + vec / 8 * 1024 + row * 128 + (vec % 8 ^ row) * 16) = q[i];
        }
        async_fence();
        barrier_arrive(smem(&s.q_full[piece % 2]));
        if (p.left == 0) break;
        p.tile = p.stop - 1;
        step<S::KEYS>(j, p);
    }
}

/* ---- scores, softmax, values ---- */

/* Softmax state of a warpgroup. Lane 4 g + i of warp w has, for columns 2 i and 2 i + 1: the
 * largest score (equal in the whole warpgroup), the sum of the weights of its own keys, and in o[h]
 * the weighted values of elements 64 h + 16 w + g and 64 h + 16 w + g + 8. */
template <class S> struct state {
    float max[2], sum[2], o[S::HALVES][4];

    __device__ __forceinline__ void clear()
    {
        max[0] = max[1] = -INFINITY;
        sum[0] = sum[1] = 0;
        UNROLL for (int h = 0; h < S::HALVES; h++)
            for (int i = 0; i < 4; i++) o[h][i] = 0;
    }
};

/* Converts q.k in x to base-2 scores, -inf if hidden. first: position of the thread's first key. */
template <class S>
__device__ __forceinline__ void
shape_scores(const struct job &j, const struct place &p, float (&x)[S::M][4], int32_t first)
{
    const struct attend &a = j.a;

    UNROLL for (int m = 0; m < S::M; m++)
        UNROLL for (int i = 0; i < 4; i++) {
            int32_t key = first + m * 64 + i / 2 * 8;

            x[m][i] *= j.before;
            if (a.softcap != 0) /* tanh x = 1 - 2 / (e^2x + 1) */
                x[m][i] = j.after * (1 - __fdividef(2, exp2_fast(2 * LOG2E * x[m][i]) + 1));
            if (a.bias) {
                int32_t reach = (int32_t)a.bias_reach;
                uint32_t row = min(p.part * HEADS + threadIdx.x % 4 * 2 + i % 2, j.group - 1);
                float bias = a.bias[(size_t)(p.kv_head * j.group + row) * (2 * reach + 1) + reach +
                                    max(-reach, min(reach, key - p.pos))];

                x[m][i] = fmaf(bias, LOG2E, x[m][i]);
            }
            if (key < p.low || key >= p.high) x[m][i] = -INFINITY;
        }
}

/* Raises st.max to the warpgroup's largest `top` and rescales the state's sums and values to it. */
template <class S>
__device__ __forceinline__ void
raise(struct shared_mem<S> &s, uint32_t group, struct state<S> &st, float (&top)[2])
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;

    UNROLL for (int h = 0; h < 2; h++) {
        for (int d = 4; d < 32; d *= 2) top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], d));
        if (lane < 4) s.peak[group][warp][2 * lane + h] = top[h];
    }
    named_sync(SYNC_GROUP + group, 128);
    UNROLL for (int h = 0; h < 2; h++) {
        float keep;

        top[h] = st.max[h];
        for (int w = 0; w < 4; w++) top[h] = fmaxf(top[h], s.peak[group][w][lane % 4 * 2 + h]);
        keep = exp2_fast(st.max[h] - top[h]);
        st.max[h] = top[h];
        st.sum[h] *= keep;
        UNROLL for (int n = 0; n < S::HALVES; n++) {
            st.o[n][h] *= keep;
            st.o[n][h + 2] *= keep;
        }
    }
}

/* Stores two transposed 8 x 8 matrices; lanes 0 to 15 pass the addresses of their rows. */
__device__ __forceinline__ void
store_turned(uint32_t at, uint32_t a, uint32_t b)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(at), "r"(a),
                 "r"(b)
                 : "memory");
}

/* Adds one tile to the warpgroup's state: scores, softmax weights, values. */
template <class S>
__device__ __forceinline__ void
take_tile(struct shared_mem<S> &s, const struct job &j, const struct place &p, uint32_t group,
          uint32_t slot, uint32_t phase, uint32_t q_slot, struct state<S> &st)
{
    using T = typename S::T;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int32_t first = p.tile * S::KEYS, low = p.low - first, high = p.high - first;
    const uint64_t k = tile_desc(same(smem(s.slot[slot])), S::D * 16, 16),
                   v = tile_desc(same(smem(s.slot[slot + 1])), S::D * 16, 1024),
                   q = tile_desc(same(smem(s.t.q[q_slot])), 1024, 16),
                   weight = tile_desc(same(smem(s.t.weight[group])), 1024, 16);
    float x[S::M][4], top[2] = { -INFINITY, -INFINITY };

    barrier_wait(smem(&s.full[slot]), phase);
    UNROLL for (int m = 0; m < S::M; m++) pin(x[m]);
    wgmma_begin();
    UNROLL for (int m = 0; m < S::M; m++)
        UNROLL for (int n = 0; n < S::D / 16; n++)
            wgmma_ss<T, 8>(x[m], k + (m * 128 * S::D + n / 4 * 1024 + n % 4 * 32) / 16,
                              q + (n / 4 * 1024 + n % 4 * 32) / 16, n > 0);
    wgmma_commit();
    wgmma_wait<0>();
    UNROLL for (int m = 0; m < S::M; m++) pin(x[m]);
    barrier_arrive_warp(smem(&s.empty[slot]));

    shape_scores<S>(j, p, x, first + (int32_t)(warp * 16 + lane / 4));
    UNROLL for (int m = 0; m < S::M; m++)
        UNROLL for (int i = 0; i < 4; i++) top[i % 2] = fmaxf(top[i % 2], x[m][i]);
    if (any_of_group(SYNC_GROUP + group, top[0] - st.max[0] > SLACK || top[1] - st.max[1] > SLACK))
        raise<S>(s, group, st, top);
    UNROLL for (int m = 0; m < S::M; m++) {
        uint32_t row = lane % 8, vec = warp * 2 + lane / 8 % 2;

        UNROLL for (int i = 0; i < 4; i++) {
            /* While a column has seen no key its max is -inf, and -inf - -inf would be NaN. */
            x[m][i] = x[m][i] == -INFINITY ? 0 : exp2_fast(x[m][i] - st.max[i % 2]);
            st.sum[i % 2] += x[m][i];
        }
        store_turned(smem(s.t.weight[group]) + m * 1024 + row * 128 + (vec ^ row) * 16,
                     pack<T>(x[m][0], x[m][1]), pack<T>(x[m][2], x[m][3]));
    }
    barrier_wait(smem(&s.full[slot + 1]), phase);
    if (low > 0 || high < S::KEYS)
        zero_values<S::KEYS, S::D>(s.slot[slot + 1], low, high, threadIdx.x % 128);
    async_fence();
    named_sync(SYNC_GROUP + group, 128);
    UNROLL for (int h = 0; h < S::HALVES; h++) pin(st.o[h]);
    wgmma_begin();
    UNROLL for (int n = 0; n < S::KEYS / 16; n++)
        UNROLL for (int h = 0; h < S::HALVES; h++)
            wgmma_ss<T, 8, true>(st.o[h], v + (n * 32 * S::D + h * 1024) / 16,
                             weight + (n / 4 * 1024 + n % 4 * 32) / 16, true);
    wgmma_commit();
    wgmma_wait<0>();
    UNROLL for (int h = 0; h < S::HALVES; h++) pin(st.o[h]);
    barrier_arrive_warp(smem(&s.empty[slot + 1]));
}

/* Merges the two warpgroups' states of a piece and finishes the piece. */
template <class S>
__device__ __forceinline__ void
end_piece(struct shared_mem<S> &s, const struct job &j, const struct place &p,
          const struct shares &shares, uint32_t group, uint32_t buffer, struct state<S> &st)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4;
    const uint32_t rows = columns(j, p);
    /* racecheck (compute-sanitizer) reports false races at a named barrier that the warpgroups
     * reach a different number of times, unless each use executes it twice (gpu/cuda/README.md). */
    auto sync = [] {
        named_sync(SYNC_ALL, S::CONSUMERS);
        named_sync(SYNC_ALL, S::CONSUMERS);
    };

    UNROLL for (uint32_t h = 0; h < 2; h++) {
        const uint32_t row = lane % 4 * 2 + h;

        for (int d = 4; d < 32; d *= 2) st.sum[h] += __shfl_xor_sync(~0u, st.sum[h], d);
        if (row >= rows) continue;
        if (g == 0) {
            s.warp_sum[buffer][group][warp][row] = st.sum[h];
            if (warp == 0) s.group_max[buffer][group][row] = st.max[h];
        }
        UNROLL for (int n = 0; n < S::HALVES; n++) {
            float *o = &s.group_o[buffer][group][row][n * 64 + warp * 16 + g];

            o[0] = st.o[n][h];
            o[8] = st.o[n][h + 2];
        }
    }
    st.clear();
    sync();
    finish_piece<typename S::T, S::D, S::CONSUMERS, S::GROUPS>(
        j, p, shares, s.last,
        [&](int k, uint32_t row, uint32_t at, float2 &end, float4 &o) {
            const float(&sum)[4][HEADS] = s.warp_sum[buffer][k];

            end = make_float2(s.group_max[buffer][k][row],
                              (sum[0][row] + sum[1][row]) + (sum[2][row] + sum[3][row]));
            o = *(const float4 *)&s.group_o[buffer][k][row][at];
        },
        sync);
}

template <class S>
__device__ __forceinline__ void
consume(struct shared_mem<S> &s, const struct job &j, const struct shares &shares, struct place p,
        uint32_t slots)
{
    const uint32_t group = same(threadIdx.x / 128);
    uint32_t slot = 0, phase = 0, next_group = 0, piece = 0;
    struct state<S> st;

    st.clear();
    barrier_wait(smem(&s.q_full[0]), 0);
    for (;;) {
        const bool ends = p.tile + 1 == p.stop, more = !ends || p.left > 0;

        if (next_group == group) take_tile<S>(s, j, p, group, slot, phase, piece % 2, st);
        if (++next_group == S::GROUPS) next_group = 0;
        slot += 2;
        if (slot == slots) slot = 0, phase ^= 1;
        if (ends) {
            barrier_arrive_warp(smem(&s.q_empty[piece % 2]));
            end_piece<S>(s, j, p, shares, group, piece % BUFFERS, st);
            piece++;
        }
        if (!more) break;
        step<S::KEYS>(j, p);
        if (ends) barrier_wait(smem(&s.q_full[piece % 2]), piece / 2 % 2);
    }
}

template <class S>
__global__ void
__launch_bounds__(S::THREADS, 1)
    attend_ring(const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v,
                const __grid_constant__ struct job j, uint32_t slots, uint32_t box_tokens)
{
    extern __shared__ unsigned char raw[];
    struct shared_mem<S> &s = *(struct shared_mem<S> *)(raw + (-smem(raw) & 1023));
    const uint32_t warp = same(threadIdx.x / 32);
    struct shares shares;
    struct place p;

    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < slots; i++) {
            barrier_init(smem(&s.full[i]), 1);
            barrier_init(smem(&s.empty[i]), 4);
        }
        for (int i = 0; i < 2; i++) {
            barrier_init(smem(&s.q_full[i]), 32);
            barrier_init(smem(&s.q_empty[i]), 4 * S::GROUPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        tma_prefetch(&k);
        tma_prefetch(&v);
    }
    __syncthreads();
    join_previous();
    if (!find_share<S::KEYS>(j, shares, p)) return;
    if (warp < 4 * S::GROUPS)
        consume<S>(s, j, shares, p, slots);
    else if (warp == 4 * S::GROUPS)
        fetch<S>(s, j, p, slots, box_tokens, &k, &v);
    else
        bring_q<S>(s, j, p);
}

/* ---- host side ---- */

/* From this many SMs on the later candidates of attend are as fast or faster. */
constexpr uint32_t FEW = 96;

/* Bytes of the ring of one SM, all in flight. From 40 SMs on 128 KiB each make 5 MB; more bytes
 * only queue up in memory and delay kernels on the other SMs. */
uint32_t
ring_bytes(uint32_t sms)
{
    return sms < 40 ? 192 << 10 : 128 << 10;
}

template <class S>
cudaError_t
start(const struct k_launch *l, struct job j)
{
    constexpr size_t shared_mem_bytes = sizeof(struct shared_mem<S>) + 1024;
    static const cudaError_t raised = cudaFuncSetAttribute(
        attend_ring<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_mem_bytes);
    const uint32_t box = MIN(j.a.kv.tokens_per_block, (uint32_t)S::KEYS);
    const uint32_t slots = MIN(ring_bytes(l->sms) / S::BYTES, (uint32_t)S::MOST);
    CUtensorMap k, v;

    static_assert(shared_mem_bytes <= 227 * 1024, "more than an SM has");
    if (raised != cudaSuccess) return raised;
    if (!share_among(j, l->sms, l) || !encoder() || !make_kv_maps<S::D>(&k, &v, &j.a.kv, box))
        return cudaErrorInvalidValue;
    return launch(attend_ring<S>, j.most, S::THREADS,
                  shared_mem_bytes - (S::MOST - slots) * S::BYTES, l->st, k, v, j, slots, box);
}

} /* namespace */

cudaError_t
k_attend_decode_ring_sm90(const struct k_launch *l, const struct attend *a, struct step_tokens r)
{
    struct job j = {};

    if (l->sms >= FEW || r.n_segments < 2 || r.n_tokens == 0 || a->k.data ||
        (a->kv.table && a->kv.tokens_per_block < 8) || !make_job(j, l, a, r))
        return cudaErrorInvalidValue;
    return with_head_dim(a->q.dtype, a->head_dim, [&](auto type, auto dim) {
        return start<shape<decltype(type), decltype(dim)::value>>(l, j);
    });
}
