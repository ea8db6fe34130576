/* exchange.cu - see exchange.h.
 *
 * A thread has 16 bytes of a row, or one element where rows are not aligned, and the same place in every rank's memory. What
 * it sends is kept in registers, so x may be written as soon as it has heard from all.
 */
#include "gpu/cuda/kernels/exchange.h"

#include "gpu/cuda/kernels/launch.cuh"
#include "gpu/cuda/kernels/vec.cuh"

namespace {

constexpr uint32_t THREADS = K_EXCHANGE_THREADS, BLOCKS = K_EXCHANGE_BLOCKS;

/* 0 is what memory holds that nobody has written. Even and odd go on alternating. */
__device__ __forceinline__ uint32_t
next_turn(uint32_t t)
{
    return t == UINT32_MAX ? 2 : t + 1;
}

/* Of this block, what rank `from` sends to the rank whose memory is at base: two lines a thread. */
__device__ __forceinline__ uint4 *
lines_at(void *base, const struct exchange &e, uint32_t turn, uint32_t from)
{
    return (uint4 *)base +
           ((size_t)((turn % 2 * e.ranks + from) * BLOCKS + blockIdx.x) * 2 * THREADS +
            threadIdx.x);
}

/* A word and its turn side by side: the machine stores and loads eight aligned bytes as one. */
__device__ __forceinline__ void
send(uint4 *to, uint4 v, uint32_t turn)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(turn),
                 "r"(v.y), "r"(turn)
                 : "memory");
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to + THREADS), "r"(v.z),
                 "r"(turn), "r"(v.w), "r"(turn)
                 : "memory");
}

__device__ __forceinline__ void
send(uint4 *to, uint32_t v, uint32_t turn)
{
    asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(v), "r"(turn)
                 : "memory");
}

__device__ __forceinline__ uint4
hear(const uint4 *from, uint4, uint32_t turn)
{
    uint4 a, b;

    do {
        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(a.x), "=r"(a.y), "=r"(a.z), "=r"(a.w)
                     : "l"(from)
                     : "memory");
        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(b.x), "=r"(b.y), "=r"(b.z), "=r"(b.w)
                     : "l"(from + THREADS)
                     : "memory");
    } while (a.y != turn || a.w != turn || b.y != turn || b.w != turn);
    return make_uint4(a.x, a.z, b.x, b.z);
}

__device__ __forceinline__ uint32_t
hear(const uint4 *from, uint32_t, uint32_t turn)
{
    uint32_t v, t;

    do {
        asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];"
                     : "=r"(v), "=r"(t)
                     : "l"(from)
                     : "memory");
    } while (t != turn);
    return v;
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
    return r == e.rank ? own : hear(lines_at(e.at[e.rank], e, turn, r), own, turn);
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
__launch_bounds__(THREADS) reduce(struct exchange e, struct tensor x, uint32_t per_row, uint32_t n)
{
    uint32_t turn;

    next_may_start();
    after_previous();
    turn = *(volatile uint32_t *)&e.turn[blockIdx.x];
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
    if (threadIdx.x == 0) e.turn[blockIdx.x] = turn;
}

__device__ __forceinline__ uint32_t
first_of(const struct exchange &e, uint32_t d, uint32_t rank)
{
    return (uint32_t)((uint64_t)d * rank / e.ranks);
}

/* Everybody sends as many as the widest part has: a turn that one rank did not send would be no turn. */
template <typename Word>
__global__ void
__launch_bounds__(THREADS)
    gather(struct exchange e, struct tensor out, struct tensor x, uint32_t per_row, uint32_t n)
{
    constexpr uint32_t N = sizeof(Word) / sizeof(float);
    uint32_t turn;

    next_may_start();
    after_previous();
    turn = *(volatile uint32_t *)&e.turn[blockIdx.x];
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
    if (threadIdx.x == 0) e.turn[blockIdx.x] = turn;
}

uint32_t
grid_of(uint32_t units)
{
    uint32_t blocks = (units + THREADS - 1) / THREADS;

    return blocks < BLOCKS ? blocks : BLOCKS;
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
    if (out.dim[1] % (4 * e->ranks) == 0 && rows_fit(out, 4) && rows_fit(x, 4))
        return launch(gather<uint4>, grid_of((uint32_t)n / 4), THREADS, 0, l->st, *e, out, x,
                      widest / 4, (uint32_t)n / 4);
    return launch(gather<uint32_t>, grid_of((uint32_t)n), THREADS, 0, l->st, *e, out, x, widest,
                  (uint32_t)n);
}
