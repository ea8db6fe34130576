/* peer_exchange.cu - all-reduce and all-gather by peer memory; see peer_exchange.h. Aligned rows
 * are exchanged in units of 16 bytes, each as a bare line; other rows element by element, in lines
 * with round numbers. The two kinds of lines have separate areas of the exchange memory.
 */
#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/vec.cuh"
#include "gpu/cuda/kernels/comm/peer_exchange.cuh"
#include "gpu/cuda/kernels/sampling/sample_math.cuh"

namespace {

/* The first column of a rank. */
__host__ __device__ __forceinline__ uint32_t
first_of(const struct exchange &e, uint32_t d, uint32_t rank)
{
    return (uint32_t)((uint64_t)d * rank / e.ranks);
}

/* ---- per element, as fp32: a line has one element ---- */

constexpr uint32_t THREADS = 256;

__device__ __forceinline__ void
send_all(const struct exchange &e, float v, uint32_t round)
{
    for (uint32_t r = 0; r < e.ranks; r++)
        if (r != e.rank)
            send_line(lines_at(e.at[r], e, round, e.rank) + threadIdx.x, __float_as_uint(v), 0,
                      round);
}

__device__ __forceinline__ float
of_rank(const struct exchange &e, uint32_t r, float own, uint32_t round)
{
    const uint4 *from = lines_at(e.at[e.rank], e, round, r) + threadIdx.x;
    uint32_t v, none;

    if (r == e.rank) return own;
    while (!receive_line(from, &v, &none, round)) continue;
    return __uint_as_float(v);
}

template <typename T>
__global__ void
__launch_bounds__(THREADS)
    reduce(const __grid_constant__ struct exchange e, struct tensor x, uint32_t per_row, uint32_t n)
{
    uint32_t round;

    next_may_start();
    after_previous();
    round = round_of(e);
    for (uint32_t first = blockIdx.x * THREADS; first < n; first += gridDim.x * THREADS) {
        uint32_t u = first + threadIdx.x;

        round = next_round(round);
        if (u < n) {
            T *p = (T *)x.data + (size_t)(u / per_row) * x.stride + u % per_row;
            float own = to_float(*p), total = 0;

            send_all(e, own, round);
            for (uint32_t r = 0; r < e.ranks; r++) {
                float v = of_rank(e, r, own, round);

                total = r ? add_rn(total, v) : v;
            }
            *p = of_float<T>(total);
        }
        __syncthreads(); /* all threads of the block have read this round */
    }
    end_round(e, round);
}

/* Gathers x into out. Every rank sends as many rounds as the widest rank needs: all take part in a
 * round. */
__global__ void
__launch_bounds__(THREADS) gather(const __grid_constant__ struct exchange e, struct tensor out,
                                  struct tensor x, uint32_t per_row, uint32_t n)
{
    uint32_t round;

    next_may_start();
    after_previous();
    round = round_of(e);
    for (uint32_t first = blockIdx.x * THREADS; first < n; first += gridDim.x * THREADS) {
        uint32_t u = first + threadIdx.x, row = u / per_row, col = u % per_row;
        float own = 0;

        round = next_round(round);
        if (u < n) {
            float *to = (float *)out.data + (size_t)row * out.stride;

            if (col < x.dim[1]) own = ((const float *)x.data)[(size_t)row * x.stride + col];
            send_all(e, own, round);
            for (uint32_t r = 0; r < e.ranks; r++) {
                uint32_t begin = first_of(e, out.dim[1], r), end = first_of(e, out.dim[1], r + 1);
                float v = of_rank(e, r, own, round);

                if (begin + col < end) to[begin + col] = v;
            }
        }
        __syncthreads();
    }
    end_round(e, round);
}

/* ---- in units of 16 bytes, one round per kernel ---- */

/* A thread processes FEW units at a time: it sends the next FEW before it receives these. */
constexpr uint32_t FEW = 4, ADDERS = 256, GATHERERS = 512;

struct units {
    struct exchange e;
    struct tensor x, out;
    uint32_t per_row, n;           /* number of units of a row of x, and in total */
    const struct sample_row *draw; /* gather_drawn() only: which logits each row needs */
};

/* One bit per row: whether the row is exchanged; NULL: all rows are. */
typedef const uint32_t *row_bits;

/* Returns the number of the thread's i-th unit; a.n or more: the thread has no i-th unit. */
__device__ __forceinline__ uint32_t
unit_of(uint32_t i)
{
    return (i * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
}

/* Whether the thread has an i-th unit and its row is exchanged. */
__device__ __forceinline__ bool
has_unit(const struct units &a, row_bits some, uint32_t i)
{
    uint32_t u = unit_of(i), row;

    if (u >= a.n || !some) return u < a.n;
    row = u / a.per_row;
    return some[row / 32] >> row % 32 & 1;
}

template <typename T>
__device__ __forceinline__ uint4 *
unit_at(const struct tensor &x, uint32_t per_row, uint32_t u)
{
    return (uint4 *)((T *)x.data + (size_t)(u / per_row) * x.stride) + u % per_row;
}

/* Sends FEW units to all other ranks. Way: struct sums or struct parts, below. */
template <typename Way, typename T>
__device__ __forceinline__ void
send_units(const struct units &a, uint32_t first, uint32_t round, row_bits some)
{
    uint4 own[FEW];

    UNROLL for (uint32_t i = 0; i < FEW; i++)
        if (has_unit(a, some, first + i)) own[i] = *unit_at<T>(a.x, a.per_row, unit_of(first + i));
    for (uint32_t r = 0; r < a.e.ranks; r++) {
        uint4 *to = Way::at(a.e, round, a.e.rank, r);

        if (r == a.e.rank) continue;
        UNROLL for (uint32_t i = 0; i < FEW; i++)
            if (has_unit(a, some, first + i)) send_bare(to + (first + i) * blockDim.x, &own[i].x);
    }
}

/* Receives FEW units from rank r, waiting for them, and clears their lines. */
template <typename Way>
__device__ __forceinline__ void
receive_units(uint4 (&v)[FEW], const struct units &a, uint32_t r, uint32_t first, uint32_t round,
              row_bits some)
{
    uint4 *from = Way::at(a.e, round, r, a.e.rank);
    bool all;

    do {
        all = true;
        UNROLL for (uint32_t i = 0; i < FEW; i++)
            if (has_unit(a, some, first + i))
                all &= receive_bare(from + (first + i) * blockDim.x, &v[i].x);
    } while (!all);
    UNROLL for (uint32_t i = 0; i < FEW; i++)
        if (has_unit(a, some, first + i)) clear_bare(from + (first + i) * blockDim.x);
}

/* The two operations, sum and gather. at(): the line of the thread's first unit from one rank to
 * another. take(): receives FEW units of all ranks and stores the result. */
struct sums {
    __device__ __forceinline__ static uint4 *at(const struct exchange &e, uint32_t round,
                                                uint32_t from, uint32_t to)
    {
        return bare_at(e.at[to], e, round, from) + threadIdx.x;
    }

    template <typename T>
    __device__ __forceinline__ static void take(const struct units &a, uint32_t first,
                                                uint32_t round, row_bits some)
    {
        constexpr int N = 16 / sizeof(T);
        float total[FEW][N];
        uint4 v[FEW];

        for (uint32_t r = 0; r < a.e.ranks; r++) {
            if (r != a.e.rank) receive_units<sums>(v, a, r, first, round, some);
            UNROLL for (uint32_t i = 0; i < FEW; i++) {
                uint32_t u = unit_of(first + i);

                if (u >= a.n) continue;
                if (r == a.e.rank) v[i] = *unit_at<T>(a.x, a.per_row, u);
                UNROLL for (int j = 0; j < N; j++) {
                    float f = to_float(((const T *)&v[i])[j]);

                    total[i][j] = r ? add_rn(total[i][j], f) : f;
                }
            }
        }
        UNROLL for (uint32_t i = 0; i < FEW; i++) {
            if (unit_of(first + i) >= a.n) continue;
            UNROLL for (int j = 0; j < N; j++) ((T *)&v[i])[j] = of_float<T>(total[i][j]);
            *unit_at<T>(a.x, a.per_row, unit_of(first + i)) = v[i];
        }
    }
};

struct parts {
    __device__ __forceinline__ static uint4 *at(const struct exchange &e, uint32_t round,
                                                uint32_t from, uint32_t to)
    {
        return (uint4 *)((char *)e.at[to] + 2 * K_EXCHANGE_AREA(e.ranks)) +
               (size_t)((round % 2 * e.ranks + from) * K_EXCHANGE_BLOCKS + blockIdx.x) *
                   K_EXCHANGE_PART(e.ranks) +
               threadIdx.x;
    }

    template <typename T>
    __device__ __forceinline__ static void take(const struct units &a, uint32_t first,
                                                uint32_t round, row_bits some)
    {
        uint4 v[FEW];

        for (uint32_t r = 0; r < a.e.ranks; r++) {
            struct tensor part = a.out;

            part.data = (T *)a.out.data + first_of(a.e, a.out.dim[1], r);
            if (r == a.e.rank && part.data == a.x.data) continue;
            if (r != a.e.rank) receive_units<parts>(v, a, r, first, round, some);
            UNROLL for (uint32_t i = 0; i < FEW; i++) {
                uint32_t u = unit_of(first + i);

                if (!has_unit(a, some, first + i)) continue;
                if (r == a.e.rank) v[i] = *unit_at<T>(a.x, a.per_row, u);
                *unit_at<T>(part, a.per_row, u) = v[i];
            }
        }
    }
};

/* Runs one round of an operation on all of the thread's units. */
template <typename Way, typename T>
__device__ __forceinline__ void
run_units(const struct units &a, uint32_t round, row_bits some)
{
    send_units<Way, T>(a, 0, round, some);
    for (uint32_t first = 0; unit_of(first) < a.n; first += FEW) {
        send_units<Way, T>(a, first + FEW, round, some);
        Way::template take<T>(a, first, round, some);
    }
    __syncthreads();
    end_round(a.e, round);
}

template <typename Way, typename T>
__device__ __forceinline__ void
run_all_units(const struct units &a)
{
    next_may_start();
    after_previous();
    run_units<Way, T>(a, next_round(round_of(a.e)), NULL);
}

template <typename T>
__global__ void
__launch_bounds__(ADDERS) reduce_units(const __grid_constant__ struct units a)
{
    run_all_units<sums, T>(a);
}

__global__ void
__launch_bounds__(GATHERERS) gather_units(const __grid_constant__ struct units a)
{
    run_all_units<parts, float>(a);
}

/* ---- logits for sampling ---- */

/* In a row sampled in parts (sample_math.cuh), a rank shares with others at most its first and its
 * last block of 1,024 columns. Sets *col to the rank's unit in the first block or, for the upper
 * half of the threads, in the last. Returns false if the thread has no such unit. */
__device__ __forceinline__ bool
edge_unit(const struct units &a, uint32_t rank, uint32_t *col)
{
    constexpr uint32_t EACH = sampling::BLOCK / 4;
    uint32_t first = first_of(a.e, a.out.dim[1], rank), end = first_of(a.e, a.out.dim[1], rank + 1);
    uint32_t head = min((first + sampling::BLOCK - 1) / sampling::BLOCK * sampling::BLOCK, end);
    uint32_t tail = rank + 1 == a.e.ranks ? end
                                          : max(end / sampling::BLOCK * sampling::BLOCK, head);
    bool upper = threadIdx.x >= EACH;

    *col = (upper ? tail : first) + threadIdx.x % EACH * 4;
    return *col < (upper ? end : head);
}
static_assert(GATHERERS == sampling::BLOCK / 2, "a thread for every unit of two blocks");

/* Gathers the shared blocks of row blockIdx.x. */
__device__ __forceinline__ void
gather_edges(const struct units &a, uint32_t round)
{
    float *row = (float *)a.out.data + (size_t)blockIdx.x * a.out.stride;
    uint32_t col;
    uint4 v;

    if (edge_unit(a, a.e.rank, &col)) {
        v = *(const uint4 *)(row + col);
        for (uint32_t r = 0; r < a.e.ranks; r++)
            if (r != a.e.rank)
                send_bare(bare_at(a.e.at[r], a.e, round, a.e.rank) + threadIdx.x, &v.x);
    }
    for (uint32_t r = 0; r < a.e.ranks; r++) {
        uint4 *from = bare_at(a.e.at[a.e.rank], a.e, round, r) + threadIdx.x;

        if (r == a.e.rank || !edge_unit(a, r, &col)) continue;
        while (!receive_bare(from, &v.x)) continue;
        clear_bare(from);
        *(uint4 *)(row + col) = v;
    }
}

/* See k_exchange_gather_drawn(). At most two rounds, the shared blocks first; the fence orders the
 * clearing of their lines before the second round is sent. */
__global__ void
__launch_bounds__(GATHERERS) gather_drawn(const __grid_constant__ struct units a)
{
    __shared__ uint32_t whole[K_EXCHANGE_BLOCKS / 32];
    uint32_t rows = a.n / a.per_row, round;
    bool mine = false;

    after_previous();
    round = round_of(a.e);
    if (threadIdx.x < K_EXCHANGE_BLOCKS) {
        bool is = threadIdx.x < rows && !sampling::in_parts(a.draw[threadIdx.x], a.out.dim[1]);
        uint32_t bits = __ballot_sync(~0u, is);

        if (threadIdx.x % 32 == 0) whole[threadIdx.x / 32] = bits;
    }
    if (blockIdx.x < rows) {
        const struct sample_row r = a.draw[blockIdx.x];

        mine = sampling::in_parts(r, a.out.dim[1]) && !sampling::is_forced(r, a.out.dim[1]);
    }
    if (mine) {
        round = next_round(round);
        gather_edges(a, round);
        __threadfence_system();
    }
    __syncthreads();
    if (whole[0] | whole[1] | whole[2] | whole[3])
        run_units<parts, float>(a, next_round(round), whole);
    else
        end_round(a.e, round);
}
static_assert(K_EXCHANGE_BLOCKS == 128, "four words of bits");

uint32_t
grid_of(uint32_t n, uint32_t threads)
{
    uint32_t blocks = (n + threads - 1) / threads;

    return blocks < K_EXCHANGE_BLOCKS ? blocks : K_EXCHANGE_BLOCKS;
}

/* Launches the kernel, each time for as many rows as fit in the lines of K_EXCHANGE_BLOCKS blocks.
 * Only the first launch starts early: blocks of a later launch, waiting for the launch before,
 * would occupy SMs that a second rank on this device needs. */
cudaError_t
queue_units(const struct k_launch *l, void (*kernel)(struct units), uint32_t threads,
            uint32_t lines, struct units a)
{
    uint32_t most = lines / threads * threads * K_EXCHANGE_BLOCKS / a.per_row, rows = a.x.dim[0];
    size_t x_row = (size_t)a.x.stride * float_bytes(a.x.dtype),
           out_row = (size_t)a.out.stride * sizeof(float);
    cudaError_t r = cudaSuccess;

    if (a.draw && most > K_EXCHANGE_BLOCKS) most = K_EXCHANGE_BLOCKS;
    if (most == 0) return cudaErrorInvalidValue;
    while (rows && r == cudaSuccess) {
        uint32_t some = rows < most ? rows : most, blocks;

        a.n = some * a.per_row;
        blocks = grid_of(a.n, threads);
        if (a.draw && blocks < some) blocks = some;
        r = launch_when(rows == a.x.dim[0], kernel, blocks, threads, 0, l->st, a);
        a.x.data = (char *)a.x.data + some * x_row;
        if (a.out.data) a.out.data = (char *)a.out.data + some * out_row;
        if (a.draw) a.draw += some;
        rows -= some;
    }
    return r;
}

} /* namespace */

cudaError_t
k_exchange_sum(const struct k_launch *l, const struct exchange *e, struct tensor x)
{
    uint64_t n = (uint64_t)x.dim[0] * x.dim[1];
    struct units a = { *e, x, {}, 0, 0, NULL };

    if (n > INT32_MAX) return cudaErrorInvalidValue;
    if (n == 0) return cudaSuccess;
    WITH_FLOAT(T, x.dtype, {
        a.per_row = x.dim[1] / (16 / sizeof(T));
        if (x.dim[1] % (16 / sizeof(T)) == 0 && rows_fit(x, 16 / sizeof(T)))
            return queue_units(l, reduce_units<T>, ADDERS, K_EXCHANGE_LINES, a);
        return launch(reduce<T>, grid_of((uint32_t)n, THREADS), THREADS, 0, l->st, *e, x, x.dim[1],
                      (uint32_t)n);
    });
    return cudaErrorInvalidValue;
}

cudaError_t
k_exchange_gather(const struct k_launch *l, const struct exchange *e, struct tensor out,
                  struct tensor x)
{
    uint32_t widest = (out.dim[1] + e->ranks - 1) / e->ranks;
    uint64_t n = (uint64_t)out.dim[0] * widest;
    struct units a = { *e, x, out, widest / 4, 0, NULL };

    if (n > INT32_MAX || out.dtype != DT_F32 || x.dtype != DT_F32) return cudaErrorInvalidValue;
    if (n == 0) return cudaSuccess;
    if (out.dim[1] % (4 * e->ranks) == 0 && rows_fit(out, 4) && rows_fit(x, 4))
        return queue_units(l, gather_units, GATHERERS, K_EXCHANGE_PART(e->ranks), a);
    return launch(gather, grid_of((uint32_t)n, THREADS), THREADS, 0, l->st, *e, out, x, widest,
                  (uint32_t)n);
}

cudaError_t
k_exchange_gather_drawn(const struct k_launch *l, const struct exchange *e, struct tensor logits,
                        const struct sample_row *draw)
{
    uint32_t d = logits.dim[1];
    struct units a = { *e, logits, logits, d / e->ranks / 4, 0, draw };

    if (d % (4 * e->ranks) || d == 0 || logits.dtype != DT_F32 || !rows_fit(logits, 4))
        return cudaErrorInvalidValue;
    a.x.data = (float *)logits.data + first_of(*e, d, e->rank);
    a.x.dim[1] = d / e->ranks;
    return queue_units(l, gather_drawn, GATHERERS, K_EXCHANGE_PART(e->ranks), a);
}
