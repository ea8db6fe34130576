/* exchange.cu - see exchange.h.
 *
 * A thread has 16 bytes of a row, or one element where rows are not aligned, and the same place in every rank's memory. What
 * it sends is kept in registers, so x may be written as soon as it has heard from all.
 */
#include "gpu/cuda/kernels/exchange.cuh"
#include "gpu/cuda/kernels/launch.cuh"
#include "gpu/cuda/kernels/vec.cuh"

namespace {

constexpr uint32_t THREADS = 256;

/* A thread's words: two lines, or half of one. */
__device__ __forceinline__ void
send(uint4 *to, uint4 v, uint32_t turn)
{
    send_line(to + threadIdx.x, v.x, v.y, turn);
    send_line(to + THREADS + threadIdx.x, v.z, v.w, turn);
}

__device__ __forceinline__ void
send(uint4 *to, uint32_t v, uint32_t turn)
{
    send_line(to + threadIdx.x, v, 0, turn);
}

__device__ __forceinline__ void
hear(const uint4 *from, uint4 *v, uint32_t turn)
{
    while (!hear_line(from + threadIdx.x, &v->x, &v->y, turn)) continue;
    while (!hear_line(from + THREADS + threadIdx.x, &v->z, &v->w, turn)) continue;
}

__device__ __forceinline__ void
hear(const uint4 *from, uint32_t *v, uint32_t turn)
{
    uint32_t none;

    while (!hear_line(from + threadIdx.x, v, &none, turn)) continue;
}

template <typename Word>
__device__ __forceinline__ void
send_all(const struct exchange &e, Word v, uint32_t turn)
{
    for (uint32_t r = 0; r < e.ranks; r++)
        if (r != e.rank) send(lines_at(e.at[r], e, turn, e.rank), v, turn);
}

template <typename Word>
__device__ __forceinline__ Word
word_of_rank(const struct exchange &e, uint32_t r, Word own, uint32_t turn)
{
    if (r != e.rank) hear(lines_at(e.at[e.rank], e, turn, r), &own, turn);
    return own;
}

template <typename T>
__device__ __forceinline__ uint4
sum(const struct exchange &e, uint4 own, uint32_t turn)
{
    constexpr int N = 16 / sizeof(T);
    float total[N];
    uint4 w;

    for (uint32_t r = 0; r < e.ranks; r++) {
        w = word_of_rank(e, r, own, turn);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float v = to_float(((const T *)&w)[i]);

            total[i] = r ? add_rn(total[i], v) : v;
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) ((T *)&w)[i] = of_float<T>(total[i]);
    return w;
}

/* An element travels as fp32. */
__device__ __forceinline__ float
sum_one(const struct exchange &e, float own, uint32_t turn)
{
    float total = 0;

    for (uint32_t r = 0; r < e.ranks; r++) {
        float v = __uint_as_float(word_of_rank(e, r, __float_as_uint(own), turn));

        total = r ? add_rn(total, v) : v;
    }
    return total;
}

/* per_row: units (16 bytes, or elements) of a row; n: of all. */
template <typename T, bool WHOLE>
__global__ void
__launch_bounds__(THREADS)
    reduce(const __grid_constant__ struct exchange e, struct tensor x, uint32_t per_row, uint32_t n)
{
    uint32_t turn;

    next_may_start();
    after_previous();
    turn = turn_of(e);
    for (uint32_t first = blockIdx.x * THREADS; first < n; first += gridDim.x * THREADS) {
        uint32_t u = first + threadIdx.x;

        turn = next_turn(turn);
        if (u < n) {
            T *at = (T *)x.data + (size_t)(u / per_row) * x.stride;

            if constexpr (WHOLE) {
                uint4 *p = (uint4 *)at + u % per_row, own = *p;

                send_all(e, own, turn);
                *p = sum<T>(e, own, turn);
            } else {
                T *p = at + u % per_row;
                float own = to_float(*p);

                send_all(e, __float_as_uint(own), turn);
                *p = of_float<T>(sum_one(e, own, turn));
            }
        }
        __syncthreads(); /* the block has read all of this turn */
    }
    end_turn(e, turn);
}

__device__ __forceinline__ uint32_t
first_of(const struct exchange &e, uint32_t d, uint32_t rank)
{
    return (uint32_t)((uint64_t)d * rank / e.ranks);
}

/* Everybody sends as many as the widest part has: a turn that one rank did not send would be no turn. */
template <typename Word>
__global__ void
__launch_bounds__(THREADS) gather(const __grid_constant__ struct exchange e, struct tensor out,
                                  struct tensor x, uint32_t per_row, uint32_t n)
{
    constexpr uint32_t N = sizeof(Word) / sizeof(float);
    uint32_t turn;

    next_may_start();
    after_previous();
    turn = turn_of(e);
    for (uint32_t first = blockIdx.x * THREADS; first < n; first += gridDim.x * THREADS) {
        uint32_t u = first + threadIdx.x, row = u / per_row, col = u % per_row * N;
        Word own = {};

        turn = next_turn(turn);
        if (u < n) {
            float *to = (float *)out.data + (size_t)row * out.stride;

            if (col < x.dim[1])
                own = *(const Word *)((const float *)x.data + (size_t)row * x.stride + col);
            send_all(e, own, turn);
            for (uint32_t r = 0; r < e.ranks; r++) {
                uint32_t begin = first_of(e, out.dim[1], r), end = first_of(e, out.dim[1], r + 1);
                Word v = word_of_rank(e, r, own, turn);

                if (begin + col < end) *(Word *)(to + begin + col) = v;
            }
        }
        __syncthreads();
    }
    end_turn(e, turn);
}

/* What a block has of a large gathering in one turn; of 1 MiB it would leave SMs idle (13 us, by counts 9). */
constexpr uint32_t EACH = K_EXCHANGE_LINES / THREADS, LARGE = 4 * K_EXCHANGE_BLOCKS * THREADS;

__device__ __forceinline__ uint32_t *
arrived(void *base, const struct exchange &e, uint32_t turn, uint32_t from)
{
    return (uint32_t *)((char *)base + 2 * K_EXCHANGE_AREA(e.ranks)) +
           (turn % 2 * e.ranks + from) * K_EXCHANGE_BLOCKS + blockIdx.x;
}

__device__ __forceinline__ uint4 *
bulk_at(void *base, const struct exchange &e, uint32_t turn, uint32_t from)
{
    return lines_at((char *)base + K_EXCHANGE_AREA(e.ranks), e, turn, from);
}

/* All of the block have stored what is theirs; then all may read what came. */
__device__ __forceinline__ void
all_arrived(const struct exchange &e, uint32_t turn)
{
    uint32_t r = threadIdx.x, seen;

    __threadfence_system();
    __syncthreads();
    if (r < e.ranks && r != e.rank) {
        asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(arrived(e.at[r], e, turn, e.rank)),
                     "r"(turn)
                     : "memory");
        do {
            asm volatile("ld.acquire.sys.global.u32 %0, [%1];"
                         : "=r"(seen)
                         : "l"(arrived(e.at[e.rank], e, turn, r))
                         : "memory");
        } while (seen != turn);
    }
    __syncthreads();
}

/* n: units of 16 bytes, per_row of them a row of a part. */
__global__ void
__launch_bounds__(THREADS) gather_bulk(const __grid_constant__ struct exchange e, struct tensor out,
                                       struct tensor x, uint32_t per_row, uint32_t n)
{
    uint32_t turn;

    next_may_start();
    after_previous();
    turn = turn_of(e);
    for (uint32_t first = blockIdx.x * THREADS * EACH; first < n;
         first += gridDim.x * THREADS * EACH) {
        uint4 own[EACH];

        turn = next_turn(turn);
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            uint32_t u = first + i * THREADS + threadIdx.x;

            if (u < n)
                own[i] = ((const uint4 *)((const float *)x.data +
                                          (size_t)(u / per_row) * x.stride))[u % per_row];
        }
        for (uint32_t r = 0; r < e.ranks; r++) {
            uint4 *to = bulk_at(e.at[r], e, turn, e.rank) + threadIdx.x;

            if (r == e.rank) continue;
#pragma unroll
            for (uint32_t i = 0; i < EACH; i++)
                if (first + i * THREADS + threadIdx.x < n) to[i * THREADS] = own[i];
        }
        all_arrived(e, turn);
        for (uint32_t r = 0; r < e.ranks; r++) {
            const uint4 *from = bulk_at(e.at[e.rank], e, turn, r) + threadIdx.x;

#pragma unroll
            for (uint32_t i = 0; i < EACH; i++) {
                uint32_t u = first + i * THREADS + threadIdx.x;
                float *row = (float *)out.data + (size_t)(u / per_row) * out.stride;

                if (u >= n) continue;
                ((uint4 *)(row + first_of(e, out.dim[1], r)))[u % per_row] =
                    r == e.rank ? own[i] : __ldcv(from + i * THREADS);
            }
        }
        __syncthreads();
    }
    end_turn(e, turn);
}

uint32_t
grid_of(uint32_t units)
{
    uint32_t blocks = (units + THREADS - 1) / THREADS;

    return blocks < K_EXCHANGE_BLOCKS ? blocks : K_EXCHANGE_BLOCKS;
}

} /* namespace */

cudaError_t
k_exchange_sum(const struct k_lane *l, const struct exchange *e, struct tensor x)
{
    uint64_t n = (uint64_t)x.dim[0] * x.dim[1];

    if (n > INT32_MAX) return cudaErrorInvalidValue;
    if (n == 0) return cudaSuccess;
    WITH_FLOAT(T, x.dtype, {
        constexpr uint32_t N = 16 / sizeof(T);

        if (x.dim[1] % N == 0 && rows_fit(x, N))
            return launch(reduce<T, true>, grid_of((uint32_t)n / N), THREADS, 0, l->st, *e, x,
                          x.dim[1] / N, (uint32_t)n / N);
        return launch(reduce<T, false>, grid_of((uint32_t)n), THREADS, 0, l->st, *e, x, x.dim[1],
                      (uint32_t)n);
    });
    return cudaErrorInvalidValue;
}

cudaError_t
k_exchange_gather(const struct k_lane *l, const struct exchange *e, struct tensor out,
                  struct tensor x)
{
    uint32_t widest = (out.dim[1] + e->ranks - 1) / e->ranks;
    uint64_t n = (uint64_t)out.dim[0] * widest;

    if (n > INT32_MAX || out.dtype != DT_F32 || x.dtype != DT_F32) return cudaErrorInvalidValue;
    if (n == 0) return cudaSuccess;
    if (out.dim[1] % (4 * e->ranks) == 0 && rows_fit(out, 4) && rows_fit(x, 4) &&
        n / 4 > LARGE)
        return launch(gather_bulk, grid_of((uint32_t)(n / 4 / EACH)), THREADS, 0, l->st, *e, out, x,
                      widest / 4, (uint32_t)n / 4);
    if (out.dim[1] % (4 * e->ranks) == 0 && rows_fit(out, 4) && rows_fit(x, 4))
        return launch(gather<uint4>, grid_of((uint32_t)n / 4), THREADS, 0, l->st, *e, out, x,
                      widest / 4, (uint32_t)n / 4);
    return launch(gather<uint32_t>, grid_of((uint32_t)n), THREADS, 0, l->st, *e, out, x, widest,
                  (uint32_t)n);
}
