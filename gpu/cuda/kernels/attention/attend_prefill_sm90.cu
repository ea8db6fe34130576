/* attend_prefill_sm90.cu - attention of many rows; see attend_prefill_sm90.h. Persistent thread
 * blocks, at most one per SM: each computes item after item. An item is up to 128 or 192 rows of
 * one segment for one head (attend_prefill_sm90_schedule.cuh). Each warpgroup but the first
 * computes 64 of an item's rows (attend_prefill_sm90_math.cuh):
 *
 *     fetch    item 1    Q | K 5 | K 4, V 5 | K 3, V 4 | ...         item 2   Q | K 7, V 0 | ...
 *     rows     S 5 | softmax 5 | S 4, O += P5 V5 | softmax 4 | S 3, O += P4 V4 | ... |
 *                            ^ queued together; softmax 4 starts when S 4 is done, while P5 V5 runs
 *
 * Key tiles are computed from the last one down, so that tiles with a diagonal come first. The
 * warpgroups queue their products alternately: the softmax of one runs concurrently with the
 * products of another.
 */
#include "gpu/cuda/kernels/attention/attend_prefill_sm90.h"

#include "gpu/cuda/kernels/attention/attend_prefill_sm90_math.cuh"
#include "gpu/cuda/kernels/attention/attend_prefill_sm90_schedule.cuh"
#include "gpu/cuda/kernels/attention/attend_prefill_sm90_tiles.h"
#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/sm90.cuh"
#include "gpu/cuda/kernels/base/vec.cuh"

namespace {

/* What happens to q.k besides scale and hidden keys. PLAIN: nothing. BIASED: the wgmma accumulators
 * start from the biases. CAPPED: softcap, then bias, each if present. */
enum shape { PLAIN, BIASED, CAPPED };

/* A consumer warpgroup: computes its rows of all items of the block. The scores of an item's first
 * tile are computed together with the last values of the previous item. */
template <class T, int D, shape SHAPE>
__device__ void
consume(shared_mem<D> &s, const params &p)
{
    using tile = attend_tile<D>;
    constexpr int KEYS = tile::KEYS, GROUPS = shared_mem<D>::GROUPS, STAGES = tile::STAGES;
    const uint32_t group = same(threadIdx.x / 128 - 1), thread = threadIdx.x % 128;
    const uint32_t lane = thread % 32, row = group * 64 + thread / 32 * 16 + lane / 4;
    const int column = lane % 4 * 2;
    const float mult = SHAPE == CAPPED ? 1 : p.scale;
    const uint32_t own_barrier = FIRST_GROUP + group,
                   next_barrier = FIRST_GROUP + (group + 1) % GROUPS;
    uint32_t n_items = 0, n_q = 0, n_kv = 0; /* items and Qs taken so far; tiles of K used so far */
    uint32_t slot = 0, q_slot = 0;
    float o[D / 2], x[KEYS / 2], keep[2];
    uint32_t y[KEYS / 4], z[D / 4]; /* P; Q if it is kept in registers */
    int t, left;                    /* the current tile; tiles left in the item, including t */
    int hide_to, hide_at; /* a tile not within [hide_to, hide_at) has a key hidden from some row */
    soft f;

    /* Takes the next item that has keys, and its Q. Items without keys get zeros. false: no more
     * items. */
    auto take = [&] {
        for (;; barrier_arrive(smem(&s.item_empty[slot]))) {
            slot = n_items % 2;
            barrier_wait(smem(&s.item_full[slot]), n_items++ / 2 % 2);
            left = same(s.item[slot].n_tiles);
            if (left != 0) break;
            store_zeros<D>(p, s.item[slot], group * 64, thread);
        }
        if (left < 0) return false;
        const struct item &i = s.item[slot];
        const int low_row = i.pos + group * 64;

        t = i.last;
        hide_to = p.window ? low_row + 64 - (int)p.window : 0;
        hide_at = p.causal ? min(low_row + 1, i.n_keys) : i.n_keys;
        q_slot = n_q % tile::Q_SLOTS;
        barrier_wait(smem(&s.q_full[q_slot]), n_q++ / tile::Q_SLOTS % 2);
        if constexpr (tile::Q_REGS) {
            const uint32_t at = smem(s.t.q[q_slot]) + (row - lane / 4) * 128;

            UNROLL for (int j = 0; j < D / 16; j++)
                load_operand(z + 4 * j, at + j / 4 * tile::ROWS * 128, j % 4 * 16);
            barrier_arrive_warp(smem(&s.q_empty[q_slot]));
        }
        return true;
    };
    /* Address of the bias of tile t for the thread's first row and column. */
    auto biases = [&] {
        return find_bias<D>(p, s.bias[slot], t * KEYS - s.item[slot].pos - group * 64) + column -
               (int)(row - group * 64);
    };
    /* Queues x = q k^T of tile t, K number n_kv. */
    auto start_scores = [&] {
        uint32_t stage = n_kv % STAGES;

        if constexpr (tile::Q_REGS)
            queue_scores<T, D, SHAPE == BIASED>(x, z,
                                                tile_desc(same(smem(s.t.k[stage])), D * 16, 16));
        else
            queue_scores<T, D, SHAPE == BIASED>(
                x, tile_desc(same(smem(s.t.q[q_slot]) + group * 64 * 128), 1024, 16),
                tile_desc(same(smem(s.t.k[stage])), D * 16, 16));
    };
    /* Converts q.k in x to softmax weights (cap, bias, hidden keys); updates f and keep. */
    auto finish_scores = [&] {
        const int base = t * KEYS;

        if (SHAPE == CAPPED) shape_scores<KEYS>(x, p, biases());
        if (base < hide_to || base + KEYS > hide_at) {
            const int pos = s.item[slot].pos + row, from = base + column;
            const int n_keys = s.item[slot].n_keys;
            int first[2], end[2];

            UNROLL for (int r = 0; r < 2; r++) {
                end[r] = (p.causal ? min(pos + 8 * r + 1, n_keys) : n_keys) - from;
                first[r] = p.window ? pos + 8 * r + 1 - (int)p.window - from : 0;
            }
            hide<KEYS>(x, first, end);
        }
        soften<KEYS>(x, f, keep, mult);
    };
    /* Queues o += y v with V number `at`. No row of the item sees keys of the tile outside of
     * [seen_first, seen_end): their values are zeroed first. */
    auto start_values = [&](uint32_t at, int seen_first, int seen_end) {
        uint32_t stage = at % STAGES;

        barrier_wait(smem(&s.v_full[stage]), at / STAGES % 2);
        if (seen_first > 0 || seen_end < KEYS)
            clear_hidden<D>(s.t.v[stage], seen_first, seen_end, thread);
        queue_values<T, D>(o, y, tile_desc(same(smem(s.t.v[stage])), D * 16, 1024));
    };

    /* Computes the values of tile t (K number n_kv) and the scores of the next tile, maybe of the
     * next item. `last`: t is the last tile of its item. Returns false if there is no next tile. */
    auto step = [&](auto last) {
        const struct item &i = s.item[slot];
        const int seen_first = i.first - t * KEYS, seen_end = i.end - t * KEYS;
        const uint32_t v = n_kv++, stage = n_kv % STAGES;
        const output at = { i.row, i.n_tokens, i.head };
        const soft old = f;

        t--;
        left--;
        if constexpr (decltype(last)::value) {
            if (!tile::Q_REGS) barrier_arrive_warp(smem(&s.q_empty[q_slot]));
            barrier_arrive(smem(&s.item_empty[slot]));
            if (!take()) {
                start_values(v, seen_first, seen_end);
                wgmma_wait<0>();
                pin(o);
                store<T, D>(o, old, p, at, row, mult);
                return false;
            }
            f = { { -INFINITY, -INFINITY }, { 0, 0 } };
        }
        if (SHAPE == BIASED) lay_bias<KEYS>(x, biases());
        barrier_wait(smem(&s.k_full[stage]), n_kv / STAGES % 2);
        named_sync(own_barrier, 256);
        start_scores();
        start_values(v, seen_first, seen_end);
        named_arrive(next_barrier, 256);
        wgmma_wait<1>();
        pin(x);
        barrier_arrive_warp(smem(&s.k_empty[stage]));
        finish_scores();
        /* This condition is never true. Without a branch ptxas moves the wait to before the
         * softmax, which should overlap with the product. */
        if (f.sum[0] + f.sum[1] < 0) __nanosleep(0);
        wgmma_wait<0>();
        pin(o);
        pin(y);
        barrier_arrive_warp(smem(&s.v_empty[v % STAGES]));
        round_scores<T, KEYS>(y, x);
        if constexpr (decltype(last)::value) store<T, D>(o, old, p, at, row, mult);
        UNROLL for (int j = 0; j < D / 2; j++)
            o[j] = decltype(last)::value ? 0 : o[j] * keep[j / 2 % 2];
        return true;
    };

    if (group == GROUPS - 1) named_arrive(next_barrier, 256);
    if (take()) {
        f = { { -INFINITY, -INFINITY }, { 0, 0 } };
        UNROLL for (int j = 0; j < D / 2; j++) o[j] = 0;
        if (SHAPE == BIASED) lay_bias<KEYS>(x, biases());
        barrier_wait(smem(&s.k_full[0]), 0);
        start_scores();
        wgmma_wait<0>();
        pin(x);
        barrier_arrive_warp(smem(&s.k_empty[0]));
        finish_scores();
        round_scores<T, KEYS>(y, x);
        do {
            while (left > 1) step(std::false_type());
        } while (step(std::true_type()));
    }
    /* The last warpgroup has arrived once more, to permit a next product of the first warpgroup.
     * There is none: the first warpgroup waits here, so that no arrival is left in the barrier. */
    if (group == 0) named_sync(own_barrier, 256);
}

template <class T, int D, shape SHAPE>
__global__ void
__launch_bounds__(shared_mem<D>::THREADS, 1)
    attend(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
           const __grid_constant__ CUtensorMap v, const __grid_constant__ params p)
{
    extern __shared__ unsigned char raw[];
    shared_mem<D> &s = *(shared_mem<D> *)(raw + (-smem(raw) & 1023));
    constexpr int GROUPS = shared_mem<D>::GROUPS;

    static_assert(GROUPS == 2 || GROUPS == 3, "there are 64 Ki registers");
    if (threadIdx.x == 0) {
        for (int j = 0; j < attend_tile<D>::Q_SLOTS; j++) {
            barrier_init(smem(&s.q_full[j]), 1);
            barrier_init(smem(&s.q_empty[j]), 4 * GROUPS);
        }
        for (int j = 0; j < 2; j++) {
            barrier_init(smem(&s.item_full[j]), 32); /* every lane arrives: see plan() */
            barrier_init(smem(&s.item_empty[j]), 32 * (4 * GROUPS + 1));
        }
        for (int j = 0; j < attend_tile<D>::STAGES; j++) {
            barrier_init(smem(&s.k_full[j]), 1);
            barrier_init(smem(&s.v_full[j]), 1);
            barrier_init(smem(&s.k_empty[j]), 4 * GROUPS);
            barrier_init(smem(&s.v_empty[j]), 4 * GROUPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        tma_prefetch(&q);
        tma_prefetch(&k);
        tma_prefetch(&v);
    }
    __syncthreads();
    after_previous();
    if (threadIdx.x < 128) {
        registers_down<(GROUPS == 2 ? 56 : 32)>();
        if (threadIdx.x < 32)
            fetch<D>(s, p, &q, &k, &v);
        else if (threadIdx.x < 64)
            plan<D>(s, p);
    } else {
        registers_up<(GROUPS == 2 ? 224 : 160)>();
        consume<T, D, SHAPE>(s, p);
    }
}

/* ---- host side ---- */

template <int D>
bool
make_maps(CUtensorMap *q, CUtensorMap *k, CUtensorMap *v, const struct attend *a, uint32_t box)
{
    if (!make_row_map(q, a->q, attend_tile<D>::ROWS)) return false;
    if (a->kv.table) return make_kv_maps<D>(k, v, &a->kv, box);

    const struct tensor *in[2] = { &a->k, &a->v };
    CUtensorMap *to[2] = { k, v };

    for (int i = 0; i < 2; i++) {
        const cuuint64_t row = (cuuint64_t)in[i]->stride * 2;
        const cuuint64_t dim[5] = { 64, in[i]->dim[0], D / 64, a->n_kv_heads, 1 };
        const cuuint64_t stride[4] = { row, 128, D * 2, row * in[i]->dim[0] };
        const cuuint32_t kv_box[5] = { 64, box, D / 64, 1, 1 };

        if (!make_map(to[i], a->q.dtype, in[i]->data, 5, dim, stride, kv_box)) return false;
    }
    return true;
}

template <class T, int D, shape SHAPE>
cudaError_t
queue(const struct k_launch *l, const struct attend *a, struct step_tokens r)
{
    constexpr size_t bytes = sizeof(shared_mem<D>) + 1024;
    static const cudaError_t raised = cudaFuncSetAttribute(
        attend<T, D, SHAPE>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    constexpr uint32_t ROWS = attend_tile<D>::ROWS, KEYS = attend_tile<D>::KEYS;
    uint32_t tiles = (r.n_tokens - r.n_single_token) / ROWS + (r.n_segments - r.n_single_token);
    struct params p = {};
    CUtensorMap q, k, v;

    if (raised != cudaSuccess) return raised;
    p.segment = r.segment;
    p.first_segment = r.n_single_token;
    p.n_segments = r.n_segments;
    p.table = a->kv.table;
    p.table_stride = a->kv.table_stride;
    p.block_tokens = a->kv.tokens_per_block;
    p.box_tokens = a->kv.table ? a->kv.tokens_per_block : D == 64 ? KEYS : 8;
    if (p.box_tokens > KEYS) p.box_tokens = KEYS;
    p.n_heads = a->n_heads;
    p.group = a->n_heads / a->n_kv_heads;
    p.window = a->window;
    p.causal = a->causal;
    p.out = a->out.data;
    p.out_stride = a->out.stride;
    p.scale = a->softcap != 0 ? a->scale : a->scale * LOG2E;
    p.softcap = a->softcap;
    p.sinks = a->sinks;
    p.bias = a->bias;
    p.bias_reach = a->bias_reach;
    p.bias_by = SHAPE == BIASED ? 1 / a->scale : LOG2E;
    p.count = l->count;
    if (!make_maps<D>(&q, &k, &v, a, p.box_tokens)) return cudaErrorInvalidValue;
    return launch(attend<T, D, SHAPE>, dim3(min((uint64_t)l->sms, (uint64_t)tiles * a->n_heads)),
                  dim3(shared_mem<D>::THREADS), bytes, l->st, q, k, v, p);
}

template <class T, int D>
cudaError_t
queue_kind(const struct k_launch *l, const struct attend *a, struct step_tokens r)
{
    if (a->softcap == 0 && !a->bias) return queue<T, D, PLAIN>(l, a, r);
    if constexpr (D <= 128) /* BIASED is for T5; a bias with wider heads uses CAPPED */
        if (a->softcap == 0) return queue<T, D, BIASED>(l, a, r);
    return queue<T, D, CAPPED>(l, a, r);
}

/* Whether t has this dtype and rows aligned to 16 bytes, which TMA and store() require. */
bool
aligned(const struct tensor *t, enum dtype type)
{
    return t->dtype == type && (uintptr_t)t->data % 16 == 0 && t->stride % 8 == 0;
}

} /* namespace */

cudaError_t
k_attend_prefill_sm90(const struct k_launch *l, const struct attend *a, struct step_tokens r)
{
    enum dtype t = a->q.dtype;

    if (l->invariant || a->mask || (a->window && a->kept) || !(a->scale > 0) ||
        (t != DT_BF16 && t != DT_F16))
        return cudaErrorInvalidValue;
    if (!aligned(&a->q, t) || !aligned(&a->out, t) || (a->bias && a->bias_reach > MAX_REACH))
        return cudaErrorInvalidValue;
    if (a->kv.table) {
        if (a->k.data || a->kv.dtype != t || a->kv.tokens_per_block < 8 ||
            a->kv.slice_bytes % 16 != 0 || (uintptr_t)a->kv.base % 16 != 0)
            return cudaErrorInvalidValue;
    } else if (!aligned(&a->k, t) || !aligned(&a->v, t)) {
        return cudaErrorInvalidValue;
    }
    if (!encoder() || r.n_segments <= r.n_single_token || r.n_tokens <= r.n_segments)
        return cudaErrorInvalidValue;
    return with_head_dim(t, a->head_dim, [&](auto type, auto dim) {
        return queue_kind<decltype(type), decltype(dim)::value>(l, a, r);
    });
}
