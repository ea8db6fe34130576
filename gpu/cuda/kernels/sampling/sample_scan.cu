/* sample_scan.cu - sample: the pass over all logits; see sample.h.
 *
 *     row  |  CTA: 8 warps, a block of 1,024 logits each  |  CTA  |  ...
 *
 * A warp loads its block into registers, 32 values per lane, and applies penalties, logit bias,
 * suppressed and disallowed tokens and force (and writes changed logits back). It stores the
 * block's best, its sum of exp and its mass of weights. The row's last CTA combines the blocks into
 * the row's best, total, log-probability and the block that contains the drawn token; it scans this
 * block a second time. All sums are of integers or in a fixed order, so that it does not matter
 * which CTA is last. If there are beam rows, a separate kernel before this one replaces their
 * logits by log-probabilities.
 */
#include "gpu/cuda/kernels/comm/peer_exchange.cuh"
#include "gpu/cuda/kernels/sampling/sample_math.cuh"

namespace sampling {
namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32, TAKERS = 1024;
constexpr uint32_t CHUNK = WARPS * BLOCK;

struct shared {
    union {
        struct {
            uint32_t suppressed[CHUNK / 32];
            uint32_t count[CHUNK]; /* occurrences of each token among the generated ones */
        };
        struct block_stat stat[MAX_BLOCKS];
    };
    bool last;
};

/* What changes the logits of a row. */
struct changes {
    bool penalty, counts, repeats, masked, forced;
};

__device__ struct changes
changes_of(const struct sample &s, const struct sample_row &r)
{
    bool has_slot = r.slot != SLOT_NONE, has_tokens = has_slot && s.history.token;

    return { .penalty = r.repetition != 1 && r.repetition != 0 && has_slot && s.history.seen,
             .counts = (r.presence_penalty != 0 || r.frequency_penalty != 0) && has_tokens,
             .repeats = r.no_repeat_ngram != 0 && has_tokens,
             .masked = s.allowed && r.allowed != ALLOW_ALL,
             .forced = r.force >= 0 && r.target < 0 };
}

__device__ void
suppress(struct shared &sh, int32_t token, uint32_t first)
{
    uint32_t at = (uint32_t)token - first;

    if (at < CHUNK) atomicOr(&sh.suppressed[at / 32], 1u << at % 32);
}

/* Returns true if the n tokens from a on equal those from b on. */
__device__ bool
equal(const int32_t *a, const int32_t *b, uint32_t n)
{
    while (n > 0 && __ldcg(a) == __ldcg(b)) a++, b++, n--;
    return n == 0;
}

/* Marks which of this CTA's logits, from `first` on, are suppressed (one bit each), and counts the
 * generated tokens among them. Each CTA of the row reads the whole history. */
__device__ void
mark(struct shared &sh, const struct sample &s, const struct sample_row &r, const struct changes &c,
     uint32_t first)
{
    const int32_t *token = s.history.token + (size_t)r.slot * s.history.stride;
    uint32_t size = r.no_repeat_ngram;

    for (uint32_t i = threadIdx.x; i < CHUNK / 32; i += THREADS) sh.suppressed[i] = 0;
    for (uint32_t i = threadIdx.x; c.counts && i < CHUNK; i += THREADS) sh.count[i] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < r.n_suppressed; i += THREADS)
        suppress(sh, s.suppressed[r.first_suppressed + i], first);
    for (uint32_t i = threadIdx.x; c.repeats && i + size <= r.position; i += THREADS)
        if (equal(token + i, token + r.position - (size - 1), size - 1))
            suppress(sh, __ldcg(token + i + size - 1), first);
    for (uint32_t i = r.first_new + threadIdx.x; c.counts && i < r.position; i += THREADS) {
        uint32_t at = (uint32_t)__ldcg(token + i) - first;

        if (at < CHUNK) atomicAdd(&sh.count[at], 1);
    }
    __syncthreads();
}

/* Applies penalties, suppressed and disallowed tokens and force to v and to the row in memory. */
__device__ void
change(float (&v)[LANE], struct shared &sh, const struct sample &s, const struct sample_row &r,
       const struct changes &ch, bool marked, float *x, uint32_t block, uint32_t n)
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    UNROLL for (uint32_t it = 0; it < 8; it++) {
        uint32_t word = it * 4 + lane / 8, shift = lane * 4 % 32,
                 at = block * BLOCK + it * 128 + lane * 4;
        const uint32_t *count = sh.count + warp * BLOCK + it * 128 + lane * 4;
        uint32_t seen = 0, suppressed = marked ? sh.suppressed[warp * 32 + word] >> shift : 0;

        word += block * (BLOCK / 32);
        if (ch.penalty && word < s.history.seen_words)
            seen = __ldcg(s.history.seen + (size_t)r.slot * s.history.seen_words + word) >> shift;
        if (ch.masked && word < s.allowed_words)
            suppressed |= ~__ldcg(s.allowed + (size_t)r.allowed * s.allowed_words + word) >> shift;
        else if (ch.masked)
            suppressed = ~0u;
        UNROLL for (uint32_t c = 0; c < 4; c++) {
            float &f = v[it * 4 + c];

            if (seen >> c & 1) f = f > 0 ? __fdiv_rn(f, r.repetition) : __fmul_rn(f, r.repetition);
            if (ch.counts && count[c])
                f = __fsub_rn(f, __fadd_rn(r.presence_penalty,
                                           __fmul_rn((float)count[c], r.frequency_penalty)));
            if (suppressed >> c & 1) f = -CUDART_INF_F; /* logit bias must not undo this */
            if (r.force >= 0 && r.target < 0)
                f = at + c == (uint32_t)r.force && at + c < n ? 0 : -CUDART_INF_F;
            if (at + c < n) x[at + c] = f;
        }
    }
}

/* Adds the logit bias to the warp's block in memory. A lane has every 32nd entry of the bias. */
__device__ void
logit_bias(const struct sample &s, const struct sample_row &r, float *x, uint32_t block, uint32_t n)
{
    __threadfence();
    __syncwarp();
    for (uint32_t i = threadIdx.x % 32; i < r.n_logit_bias; i += 32) {
        const struct logit_bias a = s.logit_bias[r.first_logit_bias + i];
        uint32_t id = (uint32_t)a.id;

        if (id < n && id / BLOCK == block) x[id] = __fadd_rn(__ldcg(x + id), a.add);
    }
    __threadfence();
    __syncwarp();
}

/* Returns the sum of exp(x - best) over a lane's values. */
__device__ __forceinline__ float
sum_of(const float (&v)[LANE], float best)
{
    float ref = fmaxf(best, -FLT_MAX), sum = 0;

    UNROLL for (uint32_t i = 0; i < LANE; i++) {
        float e = fmaxf((v[i] - ref) * 1.44269504f, -200.0f); /* NaN has weight 0 */

        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(e));
        sum += e;
    }
    return sum;
}

/* Returns the mass of a lane's values. Three weights, at most 2^30 each, are added in 32 bits. */
__device__ __forceinline__ u64
mass_of(const float (&v)[LANE], float best, float rate)
{
    u64 mass = 0;

    UNROLL for (uint32_t i = 0; i < LANE; i += 3) {
        uint32_t three = 0;

        UNROLL for (uint32_t j = i; j < i + 3 && j < LANE; j++)
            three += __float2uint_rz(weigh<UNIT_BLOCK>(v[j], best, rate));
        mass += three;
    }
    return mass;
}

/* ---- ranks ---- */

constexpr uint32_t SHARED = UINT32_MAX;

/* Returns the rank that has the block, or SHARED if several ranks have parts of it; then every rank
 * has received the whole block. */
__device__ __forceinline__ uint32_t
owner_of(const struct exchange &e, uint32_t n, uint32_t block)
{
    uint32_t each = n / e.ranks, first = block * BLOCK / each,
             last = (min((block + 1) * BLOCK, n) - 1) / each;

    return first == last ? first : SHARED;
}

__device__ __forceinline__ bool
has_block(const struct exchange &e, uint32_t n, uint32_t block)
{
    uint32_t owner = owner_of(e, n, block);

    return owner == e.rank || owner == SHARED;
}

/* Returns the block's two lines in rank `to`, which follow those of the owner's earlier blocks. */
__device__ __forceinline__ uint4 *
lines_of_block(const struct exchange &e, uint32_t n, uint32_t block, uint32_t owner, uint32_t to,
               uint32_t round, uint32_t row)
{
    uint32_t first = (n / e.ranks * owner + BLOCK - 1) / BLOCK;

    return lines_at(e.at[to], e, round, owner, row) + (block - first) * 2;
}

/* Exchanges the block statistics of a row: sends this rank's to the others and receives theirs.
 * stat: has this rank's entries, afterwards all. */
__device__ void
send_stats(struct block_stat *stat, const struct exchange &e, uint32_t n, uint32_t n_blocks,
           uint32_t round, uint32_t row)
{
    for (uint32_t b = threadIdx.x; b < n_blocks; b += THREADS) {
        if (owner_of(e, n, b) != e.rank) continue;
        for (uint32_t r = 0; r < e.ranks; r++) {
            uint4 *to = lines_of_block(e, n, b, e.rank, r, round, row);

            if (r == e.rank) continue;
            send_line(to, __float_as_uint(stat[b].best), __float_as_uint(stat[b].sum), round);
            send_line(to + 1, (uint32_t)stat[b].mass, (uint32_t)(stat[b].mass >> 32), round);
        }
    }
    for (uint32_t b = threadIdx.x; b < n_blocks; b += THREADS) {
        uint32_t owner = owner_of(e, n, b), best, sum, low, high;
        const uint4 *from;

        if (owner == e.rank || owner == SHARED) continue;
        from = lines_of_block(e, n, b, owner, e.rank, round, row);
        while (!receive_line(from, &best, &sum, round)) continue;
        while (!receive_line(from + 1, &low, &high, round)) continue;
        stat[b] = block_stat{ __uint_as_float(best), __uint_as_float(sum), (u64)high << 32 | low };
    }
}

/* One warp calls this. The rank that has the block, `owner`, sends the token and its logit to all
 * ranks. Every rank sends a line, so that no rank is two rounds ahead. */
__device__ void
send_token(const struct exchange &e, uint32_t owner, uint32_t *id, float *x, uint32_t round,
           uint32_t row)
{
    uint32_t lane = threadIdx.x % 32, received = *id, logit = __float_as_uint(*x);

    if (lane < e.ranks && lane != e.rank) {
        send_line(lines_at(e.at[lane], e, round, e.rank, row), *id, logit, round);
        while (!receive_line(lines_at(e.at[e.rank], e, round, lane, row), &received, &logit, round))
            continue;
    }
    __syncwarp();
    if (owner != SHARED && owner != e.rank) {
        *id = __shfl_sync(~0u, received, owner);
        *x = __uint_as_float(__shfl_sync(~0u, logit, owner));
    }
}

/* Stores the result of a row. */
__device__ void
put(const struct sample &s, const struct sample_row &r, uint32_t row, uint32_t id, float logprob)
{
    if (r.target < 0 && r.slot != SLOT_NONE && s.last) s.last[r.slot] = (int32_t)id;
    if (s.token) s.token[row] = (int32_t)id;
    if (s.logprob) s.logprob[row] = logprob;
}

/* One warp combines the blocks of a row and stores its result, unless cuts leave it to the second
 * kernel. A lane has every 32nd block. stat: all blocks of the row, in shared memory; masses are
 * converted to the row's units. PARTS: ranks have blocks of this row; round is for send_token(). */
template <bool VEC, bool PARTS>
__device__ void
finish(struct block_stat *stat, const struct sample &s, const struct sample_row &r,
       const struct wish &w, const struct scan_scratch &scratch, uint32_t row, uint32_t *fault,
       const struct exchange &e, uint32_t round)
{
    const float *x = (const float *)s.logits.data + (size_t)row * s.logits.stride;
    uint32_t n = s.logits.dim[1], n_blocks = scratch.n_blocks, lane = threadIdx.x % 32;
    uint32_t id = ~0u, block = ~0u;
    float best = -CUDART_INF_F, sum = 0, log_total = 0;
    u64 total = 0;

    for (uint32_t b = lane; b < n_blocks; b += 32) best = fmaxf(best, stat[b].best);
    best = warp_max(best);
    for (uint32_t b = lane; b < n_blocks; b += 32) {
        if (stat[b].best == best) block = min(block, b);
        if (stat[b].best == -CUDART_INF_F) continue;
        if (w.sum) sum += stat[b].sum * expf(stat[b].best - best);
        if (w.draw) {
            stat[b].mass = scaled(stat[b].mass, factor_of(stat[b].best, best, w.rate));
            total += stat[b].mass;
        }
    }
    if (w.sum) log_total = logf(group_sum(sum, 32));
    if (w.draw) total = group_sum(total, 32);
    if (lane == 0 && w.list) scratch.row[row] = row_stat{ best, log_total, total };
    if (best == -CUDART_INF_F) {
        if (lane == 0 && (r.slot != SLOT_NONE || r.target >= 0)) *fault = 1;
        id = r.target >= 0 ? r.target : 0;
    } else if (r.target >= 0) {
        id = r.target;
    } else if (r.force >= 0) {
        id = r.force;
    } else if (w.cuts) {
        return; /* left to the second kernel */
    } else if (w.draw) {
        u64 left = noise(r, total);

        /* the block that contains the drawn token */
        for (uint32_t from = 0; from < n_blocks; from += 32) {
            u64 mine = from + lane < n_blocks ? stat[from + lane].mass : 0;
            u64 with = warp_scan(mine, lane);
            uint32_t who = __ballot_sync(~0u, with > left);

            if (who) {
                block = from + __ffs(who) - 1;
                left -= __shfl_sync(~0u, with - mine, __ffs(who) - 1);
                break;
            }
            left -= __shfl_sync(~0u, with, 31);
        }
        float top = stat[block].best;
        if (!PARTS || has_block(e, n, block))
            id = walk<VEC>(x, block, n, factor_of(top, best, w.rate), left, [&](float v, uint32_t) {
                return (u64)__float2uint_rz(weigh<UNIT_BLOCK>(v, top, w.rate));
            });
    } else {
        float v[LANE];

        block = __reduce_min_sync(~0u, block);
        if (!PARTS || has_block(e, n, block)) {
            load_block<VEC>(v, x, block, n, lane);
            UNROLL for (uint32_t i = LANE; i-- > 0;)
                if (clean(v[i]) == best) id = block * BLOCK + i / 4 * 128 + lane * 4 + i % 4;
            id = __reduce_min_sync(~0u, id);
        }
    }
    if (id < n) block = id / BLOCK;
    sum = id < n && (!PARTS || has_block(e, n, block)) ? clean(__ldcg(x + id)) : -CUDART_INF_F;
    if (PARTS)
        send_token(e, block < n_blocks ? owner_of(e, n, block) : SHARED, &id, &sum, round, row);
    if (lane) return;
    put(s, r, row, id, r.beam ? sum : sum - best - log_total);
}

/* Replaces the logits of beam rows by log-probabilities, in place. One CTA per row. */
__global__ void
__launch_bounds__(TAKERS) take_logs(const struct sample s)
{
    __shared__ float part[2][TAKERS / 32];
    uint32_t n = s.logits.dim[1], lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float *x = (float *)s.logits.data + (size_t)blockIdx.x * s.logits.stride;
    float best = -CUDART_INF_F, sum = 0;

    after_previous();
    if (!s.row[blockIdx.x].beam) return;
    for (uint32_t i = threadIdx.x; i < n; i += TAKERS) best = fmaxf(best, clean(x[i]));
    best = warp_max(best);
    if (lane == 0) part[0][warp] = best;
    __syncthreads();
    for (uint32_t i = 0; i < TAKERS / 32; i++) best = fmaxf(best, part[0][i]);
    if (best == -CUDART_INF_F) return;
    for (uint32_t i = threadIdx.x; i < n; i += TAKERS) sum += expf(clean(x[i]) - best);
    sum = group_sum(sum, 32);
    if (lane == 0) part[1][warp] = sum;
    __syncthreads();
    sum = 0;
    for (uint32_t i = 0; i < TAKERS / 32; i++) sum += part[1][i];
    sum = logf(sum);
    for (uint32_t i = threadIdx.x; i < n; i += TAKERS) x[i] = clean(x[i]) - best - sum;
}

/* The first kernel. PARTS: ranks have columns of the logits, and some rows are sampled in parts. */
template <bool VEC, bool PARTS>
__global__ void
__launch_bounds__(THREADS, 4)
    sample_stats(const struct sample s, const struct scan_scratch scratch, uint32_t *count,
                 uint32_t *fault, const __grid_constant__ struct exchange e)
{
    __shared__ struct shared sh;
    uint32_t row = blockIdx.y, n = s.logits.dim[1], lane = threadIdx.x % 32,
             warp = threadIdx.x / 32;
    uint32_t block = blockIdx.x * WARPS + warp;
    float *x = (float *)s.logits.data + (size_t)row * s.logits.stride;
    bool marked, parts;

    after_previous();
    const struct sample_row r = s.row[row];
    const struct wish w = wish_of(r, n);
    const struct changes c = changes_of(s, r);
    marked = r.n_suppressed || c.repeats || c.counts;
    parts = PARTS && in_parts(r, n);
    if (is_forced(r, n)) {
        if (blockIdx.x == 0 && threadIdx.x == 0) put(s, r, row, (uint32_t)r.force, 0);
        return;
    }
    if (marked) mark(sh, s, r, c, blockIdx.x * CHUNK);
    if (block < scratch.n_blocks && (!parts || has_block(e, n, block))) {
        struct block_stat stat = { -CUDART_INF_F, 0, 0 };
        float v[LANE];

        load_block<VEC>(v, x, block, n, lane);
        if (c.penalty || marked || c.masked || c.forced || r.n_logit_bias)
            change(v, sh, s, r, c, marked, x, block, n);
        if (r.n_logit_bias && !c.forced) {
            logit_bias(s, r, x, block, n);
            load_block<VEC>(v, x, block, n, lane);
        }
        UNROLL for (uint32_t i = 0; i < LANE; i++) stat.best = fmaxf(stat.best, v[i]); /* no NaN */
        if (__any_sync(~0u, stat.best > FLT_MAX)) {
            UNROLL for (uint32_t i = 0; i < LANE; i++) v[i] = clean(v[i]);
            stat.best = fminf(stat.best, FLT_MAX);
        }
        if (w.list)
            scratch.group[((size_t)row * scratch.n_blocks + block) * LANE + lane] = stat.best;
        stat.best = warp_max(stat.best);
        if (w.sum) stat.sum = group_sum(sum_of(v, stat.best), 32);
        if (w.draw) stat.mass = group_sum(mass_of(v, stat.best, w.rate), 32);
        if (lane == 0) scratch.block[(size_t)row * scratch.n_blocks + block] = stat;
    }
    next_may_start();
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence(); /* orders the CTA's stores before its count, and later loads after */
        sh.last = atomicAdd(&count[row], 1) == gridDim.x - 1;
        if (sh.last) count[row] = 0;
        __threadfence();
    }
    __syncthreads();
    if (!sh.last) return;
    for (uint32_t b = threadIdx.x; b < scratch.n_blocks; b += THREADS) {
        float4 f = __ldcg((const float4 *)(scratch.block + (size_t)row * scratch.n_blocks + b));

        *(float4 *)&sh.stat[b] = f;
    }
    __syncthreads();
    if (PARTS && parts) {
        uint32_t round = next_round(round_of(e, row));

        send_stats(sh.stat, e, n, scratch.n_blocks, round, row);
        __syncthreads();
        round = next_round(round);
        if (warp == 0) finish<VEC, PARTS>(sh.stat, s, r, w, scratch, row, fault, e, round);
        end_round(e, round, row);
    } else if (warp == 0) {
        finish<VEC, false>(sh.stat, s, r, w, scratch, row, fault, e, 0);
    }
}

} /* namespace */
} /* namespace sampling */

namespace {

/* Launches the kernels. e.ranks: 0 if this process has whole rows of logits. */
cudaError_t
queue(const struct k_launch *l, const struct exchange &e, const struct sample *s)
{
    using namespace sampling;
    uint32_t n = s->logits.dim[1], n_blocks = (n + BLOCK - 1) / BLOCK;
    size_t each = (sizeof(struct block_stat) + LANE * sizeof(float)) * n_blocks +
                  sizeof(struct row_stat);
    uint32_t most = (uint32_t)(l->work_bytes / each < 4096 ? l->work_bytes / each : 4096);
    bool vec = (uintptr_t)s->logits.data % 16 == 0 && s->logits.stride % 4 == 0;

    if (s->logits.dtype != DT_F32 || n_blocks == 0 || n_blocks > MAX_BLOCKS || most == 0)
        return cudaErrorInvalidValue;
    if (e.ranks && most > K_EXCHANGE_BLOCKS) most = K_EXCHANGE_BLOCKS; /* each row uses a channel */
    for (uint32_t at = 0; at < s->n; at += most) {
        uint32_t rows = s->n - at < most ? s->n - at : most;
        dim3 grid((n_blocks + WARPS - 1) / WARPS, rows);
        struct sample part = *s;
        struct scan_scratch scratch;
        cudaError_t r;

        part.logits.data = (float *)s->logits.data + (size_t)at * s->logits.stride;
        part.row += at, part.n = rows;
        if (s->token) part.token += at;
        if (s->logprob) part.logprob += at;
        scratch.n_blocks = n_blocks;
        scratch.block = (struct block_stat *)l->work;
        scratch.row = (struct row_stat *)(scratch.block + (size_t)rows * n_blocks);
        scratch.group = (float *)(scratch.row + rows);
        if (e.ranks) {
            part.logits.dim[0] = rows;
            r = k_exchange_gather_drawn(l, &e, part.logits, part.row);
            if (r != cudaSuccess) return r;
        }
        if (s->beams) {
            r = launch(take_logs, rows, TAKERS, 0, l->st, part);
            if (r != cudaSuccess) return r;
        }
        r = launch(e.ranks ? sample_stats<true, true>
                   : vec   ? sample_stats<true, false>
                           : sample_stats<false, false>,
                   grid, THREADS, 0, l->st, part, scratch, l->count, l->fault, e);
        if (r == cudaSuccess) r = second(l, part, scratch, vec);
        if (r != cudaSuccess) return r;
    }
    return cudaSuccess;
}

} /* namespace */

cudaError_t
k_sample(const struct k_launch *l, const struct sample *s)
{
    return queue(l, exchange{}, s);
}

cudaError_t
k_sample_of_ranks(const struct k_launch *l, const struct exchange *e, const struct sample *s)
{
    return queue(l, *e, s);
}
