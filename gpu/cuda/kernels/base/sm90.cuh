/* sm90.cuh - instructions of sm_90a, one short function each: mbarriers, tensor copies, wgmma.
 *
 * Addresses in shared memory are the 32-bit results of smem(). A tile that TMA writes and wgmma
 * reads has rows of 128 bytes (64 16-bit values) in the 128-byte swizzle. 8 rows are an atom of
 * 1,024 bytes, and every tile starts at a multiple of 1,024. A head wider than 64 is several such
 * tiles, one after the other.
 *
 * Between the start of a wgmma and wgmma_wait() a kernel must not touch the registers that the
 * wgmma reads or writes; pin() keeps the compiler from moving their values in between.
 */
#pragma once
#include "gpu/cuda/kernels/base/sm80.cuh"

#include <cuda.h> /* CUtensorMap only; libcuda is not linked */

namespace sm90 {

/* Returns x, equal in all lanes of the warp, in a uniform register, as descriptors require. */
__device__ __forceinline__ uint32_t
same(uint32_t x)
{
    return __shfl_sync(~0u, x, 0);
}

/* ---- mbarriers: a phase ends after `count` arrivals and after the announced bytes ---- */

__device__ __forceinline__ void
barrier_init(uint32_t bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count));
}

__device__ __forceinline__ void
barrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* Arrives once for the whole warp, which no longer uses the memory that the barrier guards. */
__device__ __forceinline__ void
barrier_arrive_warp(uint32_t bar)
{
    __syncwarp(); /* orders every lane's reads before lane 0's arrival */
    if (threadIdx.x % 32 == 0) barrier_arrive(bar);
}

/* Arrives and announces that copies will bring this number of bytes. */
__device__ __forceinline__ void
barrier_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

/* Waits until the phase of this parity has ended; on a new barrier parity 1 counts as ended. */
__device__ __forceinline__ void
barrier_wait(uint32_t bar, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra over;\n"
                 "bra again;\n"
                 "over:\n"
                 "}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}

/* Makes new barriers and ordinary stores to shared memory visible to TMA and the tensor cores. */
__device__ __forceinline__ void
async_fence()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Named barriers 1 to 15 of the thread block; n: number of waiting plus arriving threads. */
__device__ __forceinline__ void
named_sync(uint32_t name, uint32_t n)
{
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(n) : "memory");
}

__device__ __forceinline__ void
named_arrive(uint32_t name, uint32_t n)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(n) : "memory");
}

template <int N>
__device__ __forceinline__ void
registers_up()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N>
__device__ __forceinline__ void
registers_down()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- tensor copies ---- */

__device__ __forceinline__ void
tma_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Starts the copy of one box to shared memory; elements outside of the tensor arrive as zeros. */
__device__ __forceinline__ void
tma_load(uint32_t to, const CUtensorMap *map, uint32_t bar, int c0, int c1)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(map), "r"(bar), "r"(c0), "r"(c1)
                 : "memory");
}

__device__ __forceinline__ void
tma_load(uint32_t to, const CUtensorMap *map, uint32_t bar, int c0, int c1, int c2, int c3, int c4)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
                 "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
                 : "memory");
}

/* ---- wgmma ---- */

/* Returns a tile's matrix descriptor (PTX ISA, matrix descriptor format) for the 128-byte swizzle.
 * down: bytes from one atom of 8 rows to the next. wide: bytes from 64 columns to the next 64, only
 * for an operand that is not K-major (V); unused for K-major operands (Q, K). */
__device__ __forceinline__ uint64_t
tile_desc(uint32_t at, uint32_t down, uint32_t wide)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(wide >> 4) << 16 |
           (uint64_t)(down >> 4) << 32 | (uint64_t)1 << 62;
}

__device__ __forceinline__ void
wgmma_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void
wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most N of the committed wgmma groups are unfinished. */
template <int N>
__device__ __forceinline__ void
wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

template <int N>
__device__ __forceinline__ void
pin(float (&r)[N])
{
    UNROLL for (int i = 0; i < N; i++) asm volatile("" : "+f"(r[i])::"memory");
}

template <int N>
__device__ __forceinline__ void
pin(uint32_t (&r)[N])
{
    UNROLL for (int i = 0; i < N; i++) asm volatile("" : "+r"(r[i])::"memory");
}

#define HOPPER_F4(a, i) "+f"((a)[i]), "+f"((a)[i + 1]), "+f"((a)[i + 2]), "+f"((a)[i + 3])
#define HOPPER_F8(a, i) HOPPER_F4(a, i), HOPPER_F4(a, i + 4)
#define HOPPER_F16(a, i) HOPPER_F8(a, i), HOPPER_F8(a, i + 8)
#define HOPPER_F32(a, i) HOPPER_F16(a, i), HOPPER_F16(a, i + 16)
#define HOPPER_F64(a, i) HOPPER_F32(a, i), HOPPER_F32(a, i + 32)
#define HOPPER_F128(a, i) HOPPER_F64(a, i), HOPPER_F64(a, i + 64)

#define HOPPER_N4 "%0,%1,%2,%3"
#define HOPPER_N8 HOPPER_N4 ",%4,%5,%6,%7"
#define HOPPER_N16 HOPPER_N8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define HOPPER_N32 HOPPER_N16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define HOPPER_N64 \
    HOPPER_N32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50," \
               "%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define HOPPER_N128 \
    HOPPER_N64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82," \
               "%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101," \
               "%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117," \
               "%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

#define HOPPER_OPEN(...) __VA_ARGS__
/* One wgmma of TYPE. LIST, A, B, KEEP: asm text with the operand numbers of c, a, b and keep
 * ("%4"). TURNED: asm text of the transpose flags of the tiles in shared memory, 1 for a tile that
 * is not K-major. REGS: the output operands (c), in parentheses. The remaining arguments are the
 * input operands. */
#define HOPPER_WGMMA_OF(TYPE, N, LIST, REGS, A, B, KEEP, TURNED, ...) \
    asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, " KEEP ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" LIST "}, " A \
                 ", " B ", keep, 1, 1, " TURNED ";\n}" \
                 : HOPPER_OPEN REGS \
                 : __VA_ARGS__)
#define HOPPER_WGMMA(...) \
    if constexpr (std::is_same<T, __nv_bfloat16>::value) \
        HOPPER_WGMMA_OF("bf16", __VA_ARGS__); \
    else \
        HOPPER_WGMMA_OF("f16", __VA_ARGS__)

/* Computes c [64, N] = a [64, 16] b [N, 16]^T, added to c if keep. Both tiles are in shared memory
 * and K-major; ALONG_M: a is M-major. ALONG: operand number of ALONG_M. */
#define HOPPER_SS(N, LIST, REGS, A, B, KEEP, ALONG) \
    HOPPER_WGMMA(N, LIST, REGS, A, B, KEEP, ALONG ", 0", "l"(a), "l"(b), "r"((int)keep), \
                 "n"((int)ALONG_M))

template <class T, int N, bool ALONG_M = false>
__device__ __forceinline__ void
wgmma_ss(float (&c)[N / 2], uint64_t a, uint64_t b, bool keep)
{
    static_assert(N == 8 || N == 16 || N == 32 || N == 64 || N == 128, "a tile of 8 to 128 rows");
    if constexpr (N == 8) {
        HOPPER_SS(8, HOPPER_N4, (HOPPER_F4(c, 0)), "%4", "%5", "%6", "%7");
    } else if constexpr (N == 16) {
        HOPPER_SS(16, HOPPER_N8, (HOPPER_F8(c, 0)), "%8", "%9", "%10", "%11");
    } else if constexpr (N == 32) {
        HOPPER_SS(32, HOPPER_N16, (HOPPER_F16(c, 0)), "%16", "%17", "%18", "%19");
    } else if constexpr (N == 64) {
        HOPPER_SS(64, HOPPER_N32, (HOPPER_F32(c, 0)), "%32", "%33", "%34", "%35");
    } else {
        HOPPER_SS(128, HOPPER_N64, (HOPPER_F64(c, 0)), "%64", "%65", "%66", "%67");
    }
}

/* Computes c [64, N] = a [64, 16] b, added to c if keep. a is in registers, in the layout of a
 * 64-row wgmma result (rounded to 16 bits). b is in shared memory: N-major [16, N] if ALONG_N
 * (operand number ALONG), else K-major [N, 16]. */
#define HOPPER_RS(N, LIST, REGS, A, B, KEEP, ALONG) \
    HOPPER_WGMMA(N, LIST, REGS, "{" A "}", B, KEEP, ALONG, "r"(a[0]), "r"(a[1]), "r"(a[2]), \
                 "r"(a[3]), "l"(b), "r"((int)keep), "n"((int)ALONG_N))

template <class T, int N, bool ALONG_N>
__device__ __forceinline__ void
wgmma_rs(float (&c)[N / 2], const uint32_t *a, uint64_t b, bool keep)
{
    static_assert(N == 64 || N == 128 || N == 256, "64, 128 or 256 columns");
    if constexpr (N == 64) {
        HOPPER_RS(64, HOPPER_N32, (HOPPER_F32(c, 0)), "%32,%33,%34,%35", "%36", "%37", "%38");
    } else if constexpr (N == 128) {
        HOPPER_RS(128, HOPPER_N64, (HOPPER_F64(c, 0)), "%64,%65,%66,%67", "%68", "%69", "%70");
    } else {
        HOPPER_RS(256, HOPPER_N128, (HOPPER_F128(c, 0)), "%128,%129,%130,%131", "%132", "%133",
                  "%134");
    }
}

/* Loads 16 x 16 values of a swizzled tile of 64 columns as `a` of wgmma_rs. at: address of the
 * first of the warp's 16 rows, a multiple of 8 in the tile; column: a multiple of 16 below 64. */
__device__ __forceinline__ void
load_operand(uint32_t *a, uint32_t at, uint32_t column)
{
    uint32_t lane = threadIdx.x % 32, row = lane % 16, vec = column / 8 + lane / 16;

    load_matrices(*(uint32_t(*)[4])a, at + row * 128 + (vec ^ row % 8) * 16);
}

/* Returns 1 / x within 1 ulp (PTX ISA, rcp.approx.ftz). */
__device__ __forceinline__ float
reciprocal(float x)
{
    float y;

    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

} /* namespace sm90 */
