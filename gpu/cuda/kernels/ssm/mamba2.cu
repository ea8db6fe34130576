/* mamba2.cu - convolution and scan of Mamba-2; see mamba2.h. A thread block keeps ROWS * WARPS rows
 * of a head's state of head_dim x state_dim in registers for a whole segment: a warp has every
 * WARPS-th of these rows, a lane every 32nd column.
 */
#include "gpu/cuda/kernels/ssm/mamba2.h"

#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/vec.cuh"
#include "gpu/cuda/kernels/elementwise/act.cuh"

namespace {

constexpr uint32_t THREADS = 256;
constexpr uint32_t WARPS = THREADS / 32;
constexpr uint32_t MAX_TAPS = 8;

__device__ char *
state_at(const struct kv_view &v, uint32_t slot)
{
    return (char *)v.base + (size_t)v.table[(size_t)slot * v.table_stride] * v.slice_bytes;
}

/* A thread computes one channel of one row. Inputs before the segment's first row in this step come
 * from the slot's state (`kept`). */
__global__ void
__launch_bounds__(THREADS)
    conv_rows(const __grid_constant__ struct conv c, const int32_t *pos, const uint32_t *slot)
{
    uint32_t row = blockIdx.x, channel = blockIdx.y * THREADS + threadIdx.x, here = 0;
    uint32_t n = c.x.dim[1], taps = c.n_taps;

    join_previous();
    if (slot[row] == SLOT_NONE || channel >= n) return;
    const float *kept = (const float *)state_at(c.state, slot[row]);
    int32_t p = pos[row];
    float sum = c.bias.data ? ((const float *)c.bias.data)[channel] : 0.0f;

    while (here + 1 < taps && row > here && slot[row - here - 1] == slot[row] &&
           pos[row - here - 1] == p - (int32_t)here - 1)
        here++;
    for (uint32_t k = 0; k < taps; k++) {
        uint32_t back = taps - 1 - k;
        float x = 0;

        if (back <= here)
            x = element(c.x, row - back, channel);
        else if (p >= (int32_t)back)
            x = kept[(size_t)(taps - 1 - (back - here)) * n + channel];
        sum = fmaf(((const float *)c.w.data)[(size_t)channel * taps + k], x, sum);
    }
    float y[1] = { sigmoid_times<true>(sum, sum) };
    store_as<1>(c.y.dtype, row_at(c.y, row), channel, y);
}

/* A thread stores the last inputs of a channel of a segment in the slot's state, oldest first. */
__global__ void
__launch_bounds__(THREADS)
    conv_keep(const __grid_constant__ struct conv c, const struct segment *segment)
{
    uint32_t channel = blockIdx.y * THREADS + threadIdx.x, n = c.x.dim[1], keep = c.n_taps - 1;
    float v[MAX_TAPS];

    join_previous();
    struct segment r = segment[blockIdx.x];
    if (r.slot == SLOT_NONE || r.n_tokens == 0 || channel >= n) return;
    float *kept = (float *)state_at(c.state, r.slot);

    for (uint32_t i = 0; i < keep; i++) {
        uint32_t back = keep - i; /* 1: the segment's last row */

        v[i] = 0;
        if (back <= r.n_tokens)
            v[i] = element(c.x, r.first_token + r.n_tokens - back, channel);
        else if (r.first_pos > 0)
            v[i] = kept[(size_t)(i + r.n_tokens) * n + channel];
    }
    for (uint32_t i = 0; i < keep; i++) kept[(size_t)i * n + channel] = v[i];
}

__device__ float
softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

/* The inputs of one row to one head: this thread's part. */
template <int ROWS, int COLS> struct input {
    float dt, x[ROWS], gate[ROWS], b[COLS], c[COLS];
};

template <int ROWS, int COLS>
__device__ void
take(struct input<ROWS, COLS> &in, const struct scan &s, uint32_t row, uint32_t head,
     uint32_t first, uint32_t lane)
{
    uint32_t inner = s.n_heads * s.head_dim, group = head / (s.n_heads / s.n_groups);
    uint32_t b = inner + group * s.state_dim, c = b + s.n_groups * s.state_dim;

    in.dt = element(s.dt, row, head);
    UNROLL for (int i = 0; i < ROWS; i++) {
        uint32_t d = first + i * WARPS;

        in.x[i] = d < s.head_dim ? element(s.x, row, head * s.head_dim + d) : 0;
        in.gate[i] = d < s.head_dim ? element(s.gate, row, head * s.head_dim + d) : 0;
    }
    UNROLL for (int j = 0; j < COLS; j++) {
        uint32_t n = lane + j * 32;

        in.b[j] = n < s.state_dim ? element(s.x, row, b + n) : 0;
        in.c[j] = n < s.state_dim ? element(s.x, row, c + n) : 0;
    }
}

/* A thread block computes rows of a head's state for a segment, token by token; it loads the inputs
 * of the next token while it computes a token. first: the first row of a warp. */
template <int ROWS, int COLS>
__global__ void
__launch_bounds__(THREADS)
    scan_head(const __grid_constant__ struct scan s, const struct segment *segment)
{
    uint32_t head = blockIdx.x, lane = threadIdx.x % 32;
    uint32_t first = blockIdx.z * ROWS * WARPS + threadIdx.x / 32;
    uint32_t dim = s.head_dim, n = s.state_dim;
    float state[ROWS][COLS];
    struct input<ROWS, COLS> now, next;

    join_previous();
    struct segment r = segment[blockIdx.y];
    if (r.slot == SLOT_NONE || r.n_tokens == 0) return;
    float *kept = (float *)(state_at(s.state, r.slot) + s.state_at) + (size_t)head * dim * n;
    float a = -expf(((const float *)s.a_log.data)[head]);
    float bias = ((const float *)s.dt_bias.data)[head], skip = ((const float *)s.d.data)[head];

    UNROLL for (int i = 0; i < ROWS; i++)
        UNROLL for (int j = 0; j < COLS; j++) {
            uint32_t d = first + i * WARPS, k = lane + j * 32;

            state[i][j] = r.first_pos && d < dim && k < n ? kept[(size_t)d * n + k] : 0;
        }
    take(next, s, r.first_token, head, first, lane);
    for (uint32_t t = 0; t < r.n_tokens; t++) {
        now = next;
        if (t + 1 < r.n_tokens) take(next, s, r.first_token + t + 1, head, first, lane);
        float dt = fminf(fmaxf(softplus(now.dt + bias), s.dt_min), s.dt_max);
        float decay = expf(mul_rn(dt, a));

        UNROLL for (int i = 0; i < ROWS; i++) {
            float dx = mul_rn(dt, now.x[i]), sum = 0;
            uint32_t d = first + i * WARPS;

            UNROLL for (int j = 0; j < COLS; j++) {
                state[i][j] = fmaf(dx, now.b[j], mul_rn(decay, state[i][j]));
                sum = fmaf(state[i][j], now.c[j], sum);
            }
            sum = fmaf(skip, now.x[i], group_sum(sum, 32));
            if (lane == 0 && d < dim) {
                float y[1] = { sigmoid_times<true>(mul_rn(sum, now.gate[i]), now.gate[i]) };

                store_as<1>(s.y.dtype, row_at(s.y, r.first_token + t), head * dim + d, y);
            }
        }
    }
    UNROLL for (int i = 0; i < ROWS; i++)
        UNROLL for (int j = 0; j < COLS; j++) {
            uint32_t d = first + i * WARPS, k = lane + j * 32;

            if (d < dim && k < n) kept[(size_t)d * n + k] = state[i][j];
        }
}

template <int ROWS, int COLS>
cudaError_t
scan_blocks(const struct k_launch *l, const struct scan &s, const struct step_tokens &r)
{
    dim3 grid(s.n_heads, r.n_segments, (s.head_dim + ROWS * WARPS - 1) / (ROWS * WARPS));

    return launch(scan_head<ROWS, COLS>, grid, THREADS, 0, l->st, s, r.segment);
}

template <int ROWS>
cudaError_t
scan_rows(const struct k_launch *l, const struct scan &s, const struct step_tokens &r)
{
    if (s.state_dim <= 32) return scan_blocks<ROWS, 1>(l, s, r);
    if (s.state_dim <= 64) return scan_blocks<ROWS, 2>(l, s, r);
    return scan_blocks<ROWS, 4>(l, s, r);
}

} /* namespace */

cudaError_t
k_conv(const struct k_launch *l, const struct conv *c, struct step_tokens r)
{
    uint32_t across = (c->x.dim[1] + THREADS - 1) / THREADS;
    cudaError_t e;

    if (c->n_taps > MAX_TAPS || !is_float(c->x.dtype) || !is_float(c->y.dtype))
        return cudaErrorInvalidValue;
    if (r.n_tokens == 0 || r.n_segments == 0) return cudaSuccess;
    e = launch(conv_rows, dim3(r.n_tokens, across), THREADS, 0, l->st, *c, r.pos, r.slot);
    if (e != cudaSuccess) return e;
    return launch(conv_keep, dim3(r.n_segments, across), THREADS, 0, l->st, *c, r.segment);
}

cudaError_t
k_scan(const struct k_launch *l, const struct scan *s, struct step_tokens r)
{
    if (s->state_dim > 512 || !is_float(s->x.dtype) || !is_float(s->y.dtype))
        return cudaErrorInvalidValue;
    if (r.n_segments == 0) return cudaSuccess;
    if (s->state_dim > 256) return scan_blocks<4, 16>(l, *s, r);
    if (s->state_dim > 128) return scan_blocks<8, 8>(l, *s, r);
    if (s->head_dim <= 2 * WARPS) return scan_rows<2>(l, *s, r);
    if (s->head_dim <= 8 * WARPS) return scan_rows<8>(l, *s, r);
    return scan_rows<16>(l, *s, r);
}
