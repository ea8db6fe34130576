/* test_peer_exchange.cu - the exchange kernels of up to four ranks on one device, with a stream and
 * memory for each.
 *
 * Tests the kernels without processes, NCCL or a second GPU: detects wrong addresses, orders and
 * rounds, also under compute-sanitizer, but not link problems. A kernel waits for those of the
 * other ranks, so that all their blocks must fit on the device at once: this bounds the shapes.
 */
#include "gpu/cuda/kernels/comm/peer_exchange.h"
#include "gpu/cuda/kernels/norm/norm.h"
#include "gpu/cuda/kernels/sampling/sample.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <unistd.h>
#include <vector>

extern "C" {
#include "tests/test.h"
}

namespace {

constexpr uint32_t RANKS = 4, ROUNDS = 40, IN_A_ROW = 24, ALONE = 100 /* seconds */;
constexpr size_t AREA = (size_t)96 << 20, AROUND = 64, WORK = (size_t)16 << 20;
constexpr int POISON = 0xff; /* a NaN of every type */

#define MUST(call) \
    do { \
        cudaError_t must_r = (call); \
        if (must_r != cudaSuccess) { \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(must_r)); \
            exit(1); \
        } \
    } while (0)

typedef std::vector<float> values;

struct side {
    struct k_launch lane;
    struct exchange exchange;
    char *base; /* AREA, for tensors */
};
struct side side[RANKS];
char *memory; /* memory that ranks write to each other, then their round numbers */
size_t memory_bytes;

/* Initializes it like new channels, except for the round number. */
void
begin(uint32_t ranks, uint32_t round)
{
    std::vector<uint32_t> rounds(K_EXCHANGE_BLOCKS, round);

    MUST(cudaMemset(memory, 0, RANKS * memory_bytes));
    for (uint32_t r = 0; r < ranks; r++) {
        struct exchange *e = &side[r].exchange;

        *e = {};
        e->rank = r;
        e->ranks = ranks;
        for (uint32_t i = 0; i < ranks; i++) e->at[i] = memory + i * memory_bytes;
        e->round = (uint32_t *)(memory + r * memory_bytes + K_EXCHANGE_BYTES(ranks));
        MUST(cudaMemcpy(e->round, rounds.data(), K_EXCHANGE_BLOCKS * sizeof round,
                        cudaMemcpyHostToDevice));
    }
}

/* Waits until data copied by the host is visible to the streams. */
void
all_there()
{
    MUST(cudaDeviceSynchronize());
}

int
open_sides(void **state)
{
    struct cudaDeviceProp p;
    int devices;

    (void)state;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) exit(77);
    alarm(ALONE);
    test_seed();
    MUST(cudaGetDeviceProperties(&p, 0));
    memory_bytes = K_EXCHANGE_BYTES(RANKS) + K_EXCHANGE_BLOCKS * sizeof(uint32_t);
    MUST(cudaMalloc(&memory, RANKS * memory_bytes));
    for (struct side &s : side) {
        MUST(cudaStreamCreateWithFlags(&s.lane.st, cudaStreamNonBlocking));
        s.lane.sms = (uint32_t)p.multiProcessorCount;
        MUST(cudaMalloc(&s.base, AREA));
        s.lane.work_bytes = WORK;
        MUST(cudaMalloc(&s.lane.work, WORK));
        MUST(cudaMalloc(&s.lane.count, (K_COUNTERS + 1) * sizeof *s.lane.count));
        MUST(cudaMemset(s.lane.count, 0, (K_COUNTERS + 1) * sizeof *s.lane.count));
        s.lane.fault = s.lane.count + K_COUNTERS;
    }
    return 0;
}

uint32_t
bytes_of(enum dtype t)
{
    return t == DT_F32 ? 4 : 2;
}

float
rounded(float x, enum dtype t)
{
    if (t == DT_F32) return x;
    return t == DT_BF16 ? __bfloat162float(__float2bfloat16_rn(x))
                        : __half2float(__float2half_rn(x));
}

void
put(char *to, float x, enum dtype t)
{
    __nv_bfloat16 b = __float2bfloat16_rn(x);
    __half h = __float2half_rn(x);

    if (t == DT_F32)
        memcpy(to, &x, 4);
    else if (t == DT_BF16)
        memcpy(to, &b, 2);
    else
        memcpy(to, &h, 2);
}

/* Start of a tensor and gap between its rows: mostly aligned, or one element off. */
struct place {
    size_t offset;
    uint32_t gap;
};

struct place
somewhere(size_t offset, enum dtype t)
{
    struct place p = { offset, 0 };

    if (test_below(3) == 0) p.gap = 8 * (1 + test_below(3));
    if (test_below(3) == 0) p.gap = 1 + test_below(20);
    if (test_below(4) == 0) p.offset += bytes_of(t) * (1 + test_below(7));
    return p;
}

struct tensor
tensor_at(uint32_t rank, struct place p, enum dtype t, uint32_t rows, uint32_t cols)
{
    struct tensor x = {};

    x.data = side[rank].base + p.offset;
    x.dtype = t;
    x.dim[0] = rows;
    x.dim[1] = cols;
    x.stride = cols + p.gap;
    return x;
}

struct tensor
columns(struct tensor x, uint32_t first, uint32_t n)
{
    x.data = (char *)x.data + (size_t)first * bytes_of(x.dtype);
    x.dim[1] = n;
    return x;
}

/* Its bytes with these values, and poison between rows. */
std::vector<char>
image(const struct tensor &x, const values &v)
{
    std::vector<char> to(((size_t)(x.dim[0] - 1) * x.stride + x.dim[1]) * bytes_of(x.dtype),
                         (char)POISON);

    for (uint32_t i = 0; i < x.dim[0]; i++)
        for (uint32_t j = 0; j < x.dim[1]; j++)
            put(&to[((size_t)i * x.stride + j) * bytes_of(x.dtype)], v[(size_t)i * x.dim[1] + j],
                x.dtype);
    return to;
}

void
lay_out(const struct tensor &x, const values &v)
{
    std::vector<char> from = image(x, v);

    MUST(cudaMemcpy(x.data, from.data(), from.size(), cudaMemcpyHostToDevice));
}

/* The bytes on the device, and around them. */
std::vector<char>
look(const struct tensor &x)
{
    size_t n = ((size_t)(x.dim[0] - 1) * x.stride + x.dim[1]) * bytes_of(x.dtype);
    std::vector<char> to(n + 2 * AROUND);

    MUST(cudaMemcpy(to.data(), (char *)x.data - AROUND, to.size(), cudaMemcpyDeviceToHost));
    return to;
}

void
same(uint32_t rank, const struct tensor &x, const std::vector<char> &want, const char *what)
{
    std::vector<char> got = look(x);

    for (size_t i = 0; i < got.size(); i++) {
        bool outside = i < AROUND || i - AROUND >= want.size();
        int should = (outside ? POISON : want[i - AROUND]) & 255;
        size_t at = outside ? 0 : (i - AROUND) / bytes_of(x.dtype);

        if ((got[i] & 255) == should) continue;
        fail_msg("rank %u: %s: dtype %d [%u, %u] stride %u at %p: byte %zu (row %zu, column %zu%s) "
                 "is %02x, not %02x",
                 rank, what, (int)x.dtype, x.dim[0], x.dim[1], x.stride, x.data, i, at / x.stride,
                 at % x.stride, outside ? ", outside" : "", got[i] & 255, should);
    }
}

values
drawn(size_t n, enum dtype t)
{
    values v(n);

    for (float &x : v)
        x = rounded(((float)test_below(4001) - 2000) / 64 / (float)(1 + test_below(7)), t);
    return v;
}

enum dtype
some_type()
{
    static const enum dtype types[] = { DT_F32, DT_BF16, DT_F16 };

    return types[test_below(3)];
}

uint32_t
some_columns(uint32_t ranks)
{
    return test_below(2) ? 8 * (1 + test_below(128)) : ranks + test_below(900);
}

/* Parts of all ranks, and their sum in rank order. */
struct parts {
    struct tensor x[RANKS];
    values sum;
};

struct parts
some_parts(uint32_t ranks, struct place p, enum dtype t, uint32_t rows, uint32_t cols)
{
    struct parts s;

    for (uint32_t r = 0; r < ranks; r++) {
        values part = drawn((size_t)rows * cols, t);

        s.x[r] = tensor_at(r, p, t, rows, cols);
        lay_out(s.x[r], part);
        if (r == 0) s.sum.assign(part.size(), 0);
        for (size_t i = 0; i < part.size(); i++) s.sum[i] = r ? s.sum[i] + part[i] : part[i];
    }
    for (float &x : s.sum) x = rounded(x, t);
    return s;
}

/* ---- one op at a time, each on fresh memory */

void
poison(uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) MUST(cudaMemset(side[r].base, POISON, AREA));
}

void
a_sum(uint32_t ranks, uint32_t rows, uint32_t cols)
{
    enum dtype t = some_type();
    struct parts s;

    poison(ranks);
    s = some_parts(ranks, somewhere(4096, t), t, rows, cols);
    all_there();
    for (uint32_t r = 0; r < ranks; r++)
        MUST(k_exchange_sum(&side[r].lane, &side[r].exchange, s.x[r]));
    MUST(cudaDeviceSynchronize());
    for (uint32_t r = 0; r < ranks; r++) same(r, s.x[r], image(s.x[r], s.sum), "a sum");
}

void
a_gathering(uint32_t ranks, uint32_t rows, uint32_t cols)
{
    struct place p = somewhere(4096, DT_F32), q = somewhere(AREA / 4 * 3, DT_F32);
    values all = drawn((size_t)rows * cols, DT_F32);
    bool apart = test_below(2);
    struct tensor out[RANKS], x[RANKS];

    poison(ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        uint32_t first = cols * r / ranks, n = cols * (r + 1) / ranks - first;
        values part((size_t)rows * n), rest(all.size(), 3);

        out[r] = tensor_at(r, p, DT_F32, rows, cols);
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t j = 0; j < n; j++) {
                size_t at = (size_t)i * cols + first + j;

                part[(size_t)i * n + j] = all[at];
                if (!apart) rest[at] = all[at];
            }
        lay_out(out[r], rest);
        x[r] = apart ? tensor_at(r, q, DT_F32, rows, n) : columns(out[r], first, n);
        if (apart) lay_out(x[r], part);
    }
    all_there();
    for (uint32_t r = 0; r < ranks; r++)
        MUST(k_exchange_gather(&side[r].lane, &side[r].exchange, out[r], x[r]));
    MUST(cudaDeviceSynchronize());
    for (uint32_t r = 0; r < ranks; r++) same(r, out[r], image(out[r], all), "a gathering");
}

/* As one kernel and as two: x and y have the same bytes. */
void
a_residual(uint32_t ranks, uint32_t rows, uint32_t cols)
{
    enum dtype t = some_type(), t_y = some_type();
    struct place p = somewhere(4096, t);
    struct parts parts;
    values w = drawn(cols, t), start = drawn((size_t)rows * cols, DT_F32),
           none((size_t)rows * cols, 0);
    uint32_t kind = test_below(4), refused = 0;
    bool only_x = test_below(4) == 0;
    struct residual a[RANKS], b[RANKS];

    poison(ranks);
    parts = some_parts(ranks, p, t, rows, cols);
    for (uint32_t r = 0; r < ranks; r++) {
        struct place at = { AREA / 8 * 7, 0 };
        struct tensor weights = tensor_at(r, at, t, 1, cols);

        lay_out(weights, w);
        for (int way = 0; way < 2; way++) {
            struct residual *to = way ? &b[r] : &a[r];

            *to = {};
            to->eps = 1e-5f;
            at.offset = AREA / 8 * (size_t)(way ? 3 : 2);
            to->x = tensor_at(r, at, DT_F32, rows, cols);
            lay_out(to->x, start);
            at.offset = AREA / 8 * (size_t)(way ? 5 : 4);
            if (!only_x) to->y = tensor_at(r, at, t_y, rows, cols);
            if (!only_x) lay_out(to->y, none);
            if (!only_x && kind < 3) to->y_norm = weights;
            if (kind == 1) to->in_norm = weights;
            if (kind == 2) to->in_bias = weights;
            at.offset = AREA / 8;
            to->in = way ? tensor_at(r, at, t, rows, cols) : parts.x[r];
        }
        std::vector<char> from = look(parts.x[r]);

        b[r].in.stride = parts.x[r].stride;
        MUST(cudaMemcpy(b[r].in.data, from.data() + AROUND, from.size() - 2 * AROUND,
                        cudaMemcpyHostToDevice));
    }
    all_there();
    for (uint32_t r = 0; r < ranks; r++) {
        cudaError_t ret = k_residual_of_ranks(&side[r].lane, &side[r].exchange, &a[r]);

        if (ret == cudaErrorInvalidValue)
            refused++;
        else
            MUST(ret);
    }
    assert_true(refused == 0 || refused == ranks);
    if (cols % 4 == 0 && p.offset % 64 == 0 && p.gap % 4 == 0 && rows <= 128 && cols <= 8192)
        assert_int_equal(refused, 0);
    MUST(cudaDeviceSynchronize());
    if (refused) return;
    for (uint32_t r = 0; r < ranks; r++)
        MUST(k_exchange_sum(&side[r].lane, &side[r].exchange, b[r].in));
    MUST(cudaDeviceSynchronize());
    for (uint32_t r = 0; r < ranks; r++) MUST(k_residual(&side[r].lane, &b[r]));
    MUST(cudaDeviceSynchronize());
    for (uint32_t r = 0; r < ranks; r++) {
        std::vector<char> x = look(b[r].x), y;

        same(r, a[r].x, std::vector<char>(x.begin() + AROUND, x.end() - AROUND), "x of a residual");
        if (only_x) continue;
        y = look(b[r].y);
        same(r, a[r].y, std::vector<char>(y.begin() + AROUND, y.end() - AROUND), "y of a residual");
    }
}

/* Parameters of a row: mostly rows sampled in parts, and others. */
struct sample_row
some_wish(uint32_t cols, uint32_t i)
{
    struct sample_row r = {};

    r.slot = i;
    r.seed = test_below(1u << 30);
    r.position = i;
    r.top_p = 1;
    r.repetition = 1;
    r.force = r.target = -1;
    r.allowed = ALLOW_ALL;
    r.want_logprob = test_below(4) > 0;
    r.temperature = test_below(2) ? 0 : 0.25f * (float)(1 + test_below(8));
    switch (test_below(12)) {
    case 0:
        r.top_k = 1 + test_below(40);
        break;
    case 1:
        r.top_p = 0.7f;
        break;
    case 2:
        r.n_top = 1 + test_below(5);
        break;
    case 3:
        r.force = (int32_t)test_below(cols);
        break;
    case 4:
        r.target = (int32_t)test_below(cols);
        break;
    case 5:
        r.n_suppressed = 3;
        break;
    case 6:
        r.n_logit_bias = 3;
        break;
    }
    return r;
}

struct drawn_rows {
    std::vector<int32_t> token, last;
    std::vector<float> logprob;
    std::vector<struct top> top;
};

template <typename T>
std::vector<T>
of_device(const T *from, size_t n)
{
    std::vector<T> v(n);

    MUST(cudaMemcpy(v.data(), from, n * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
}

template <typename T>
T *
to_device(uint32_t rank, size_t *at, const std::vector<T> &v)
{
    T *to = (T *)(side[rank].base + *at);

    MUST(cudaMemcpy(to, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    *at += (v.size() * sizeof(T) + 255) & ~(size_t)255;
    return to;
}

/* Rank 0 samples from the whole first, then every rank from its columns, with poison elsewhere.
 * Ties across blocks and ranks are common. */
void
a_draw(uint32_t ranks, uint32_t rows, uint32_t cols)
{
    constexpr uint32_t TOPS = 8;
    struct place p = { 4096, 4 * test_below(3) };
    values all((size_t)rows * cols);
    std::vector<struct sample_row> row(rows);
    std::vector<int32_t> suppressed, nothing(rows, -7);
    std::vector<struct logit_bias> logit_bias;
    bool coarse = test_below(2);
    struct sample s[RANKS];
    struct drawn_rows want, got;
    struct tensor x[RANKS];

    for (float &v : all)
        v = coarse ? (float)test_below(50) / 8 : (float)test_below(1 << 20) / 65536 - 8;
    for (uint32_t i = 0; i < rows; i++) {
        row[i] = some_wish(cols, i);
        row[i].first_top = i * TOPS;
        row[i].first_suppressed = (uint32_t)suppressed.size();
        row[i].first_logit_bias = (uint32_t)logit_bias.size();
        for (int j = 0; j < 3; j++) {
            suppressed.push_back((int32_t)test_below(cols));
            logit_bias.push_back({ (int32_t)(cols / 3 * j + test_below(cols / 3)), 6 });
        }
    }
    poison(ranks);
    for (int way = 0; way < 2; way++) {
        for (uint32_t r = 0; r < (way ? ranks : 1); r++) {
            uint32_t first = way ? cols / ranks * r : 0, n = way ? cols / ranks : cols;
            size_t at = AREA / 2;
            values mine((size_t)rows * n);

            MUST(cudaMemset(side[r].base, POISON, AREA / 2));
            x[r] = tensor_at(r, p, DT_F32, rows, cols);
            for (uint32_t i = 0; i < rows; i++)
                std::copy_n(&all[(size_t)i * cols + first], n, &mine[(size_t)i * n]);
            lay_out(columns(x[r], first, n), mine);
            s[r] = {};
            s[r].logits = x[r];
            s[r].n = rows;
            s[r].row = to_device(r, &at, row);
            s[r].suppressed = to_device(r, &at, suppressed);
            s[r].logit_bias = to_device(r, &at, logit_bias);
            s[r].last = to_device(r, &at, nothing);
            s[r].token = to_device(r, &at, nothing);
            s[r].logprob = (float *)to_device(r, &at, nothing);
            s[r].top = to_device(r, &at, std::vector<struct top>(rows * TOPS, { -7, 0 }));
        }
        all_there();
        for (uint32_t r = 0; r < (way ? ranks : 1); r++)
            MUST(way ? k_sample_of_ranks(&side[r].lane, &side[r].exchange, &s[r])
                     : k_sample(&side[r].lane, &s[r]));
        MUST(cudaDeviceSynchronize());
        for (uint32_t r = 0; r < (way ? ranks : 1); r++) {
            struct drawn_rows *to = way ? &got : &want;

            *to = { of_device(s[r].token, rows), of_device(s[r].last, rows),
                    of_device(s[r].logprob, rows), of_device(s[r].top, (size_t)rows * TOPS) };
            assert_int_equal(of_device(side[r].lane.fault, 1)[0], 0);
            for (uint32_t i = 0; way && i < rows; i++) {
                if (got.token[i] == want.token[i] && got.last[i] == want.last[i] &&
                    (!row[i].want_logprob ||
                     memcmp(&got.logprob[i], &want.logprob[i], sizeof(float)) == 0) &&
                    memcmp(&got.top[i * TOPS], &want.top[i * TOPS], TOPS * sizeof(struct top)) == 0)
                    continue;
                fail_msg(
                    "rank %u of %u, row %u of [%u, %u]: token %d for %d, log-probability %.9g for "
                    "%.9g (temperature %g, target %d, force %d, top_k %u, n_top %u)",
                    r, ranks, i, rows, cols, got.token[i], want.token[i], (double)got.logprob[i],
                    (double)want.logprob[i], (double)row[i].temperature, row[i].target,
                    row[i].force, row[i].top_k, row[i].n_top);
            }
        }
    }
}

void
with_each(void (*one)(uint32_t ranks, uint32_t i), uint32_t round)
{
    for (uint32_t ranks = 2; ranks <= RANKS; ranks++) {
        for (uint32_t i = 0; i < ROUNDS; i++) {
            if (i % 8 == 0) begin(ranks, round);
            one(ranks, i);
        }
    }
}

void
a_sum_of_any_rows_has_the_bits_of_the_order_of_ranks(void **state)
{
    (void)state;
    with_each(
        [](uint32_t ranks, uint32_t) { a_sum(ranks, 1 + test_below(60), some_columns(ranks)); }, 0);
    begin(2, 0);
    a_sum(2, 300, 4096);
    a_sum(2, 301, 999);
    a_sum(2, 1100, 4096); /* more than fit at once */
}

void
a_gathering_brings_every_column_and_touches_no_other(void **state)
{
    (void)state;
    with_each([](uint32_t ranks,
                 uint32_t) { a_gathering(ranks, 1 + test_below(60), some_columns(ranks)); },
              0);
    begin(2, 0);
    a_gathering(2, 64, 8192);
    a_gathering(2, 300, 8192);
    a_gathering(2, 333, 6008);
    a_gathering(2, 700, 16384); /* more than fit at once */
    a_gathering(2, 64, 8192);
}

/* Registers bound the rows that all ranks have at once: 132 SMs, two blocks of 256 threads or one
 * of 512 each. The all-reduce that is compared has up to 128 blocks of 256 threads, 1,000 numbers
 * each. */
void
a_residual_of_parts_has_the_bits_of_a_sum_and_a_residual(void **state)
{
    (void)state;
    with_each(
        [](uint32_t ranks, uint32_t) {
            uint32_t cols = test_below(3) ? 4 * (1 + test_below(1024)) : 1 + test_below(4096);
            uint32_t rows = ranks == 2 ? 124 : std::min(60u, 264 / ranks * 1000 / cols);

            a_residual(ranks, 1 + test_below(rows), cols);
        },
        0);
    begin(2, 0);
    a_residual(2, 64, 8192);
    a_residual(2, 60, 5376);
    a_residual(2, 120, 4096);
    a_residual(2, 1, 16384); /* refused */
}

/* As few rows as all ranks' blocks fit: two of 512 threads per SM. */
void
a_draw_of_parts_is_that_of_the_whole(void **state)
{
    (void)state;
    with_each(
        [](uint32_t ranks, uint32_t) {
            uint32_t units = test_below(2) ? 1 + test_below(300) : 256 * (1 + test_below(6));
            uint32_t cols = ranks * 4 * (units + test_below(2) * test_below(100));

            a_draw(ranks, 1 + test_below(std::min(50u, 400000 / cols)), cols);
        },
        0);
    begin(2, 0);
    a_draw(2, 64, 128256);
    a_draw(2, 150, 32000); /* more than there are channels */
    begin(4, 0);
    a_draw(4, 12, 32000);
}

/* Round numbers around the wrap from UINT32_MAX to 2, which keeps the parity. */
void
counts_go_on_past_their_end(void **state)
{
    (void)state;
    with_each(
        [](uint32_t ranks, uint32_t i) {
            if (i % 4 == 3)
                a_draw(ranks, 1 + test_below(20), 4 * ranks * (1 + test_below(512)));
            else if (i % 3 == 0)
                a_residual(ranks, 1 + test_below(20), 4 * (1 + test_below(512)));
            else if (i % 3 == 1)
                a_sum(ranks, 1 + test_below(20), some_columns(ranks));
            else
                a_gathering(ranks, 1 + test_below(20), some_columns(ranks));
        },
        UINT32_MAX - 3);
}

/* ---- many ops without waiting: a rank may be ahead of the others */

void
ranks_need_not_wait_between_ops(void **state)
{
    const size_t apart = (size_t)128 << 10;

    (void)state;
    for (uint32_t ranks = 2; ranks <= RANKS; ranks++) {
        struct parts in[IN_A_ROW];
        struct residual add[IN_A_ROW][RANKS];
        values start[IN_A_ROW];

        begin(ranks, 0);
        poison(ranks);
        for (uint32_t i = 0; i < IN_A_ROW; i++) {
            enum dtype t = some_type();
            uint32_t rows = 1 + test_below(4), cols = 4 * (1 + test_below(256));
            struct place p = { 4096 + apart * i, 0 }, q = { AREA / 2 + apart * i, 0 };

            in[i] = some_parts(ranks, p, t, rows, cols);
            start[i] = drawn((size_t)rows * cols, DT_F32);
            for (uint32_t r = 0; r < ranks; r++) {
                add[i][r] = {};
                add[i][r].x = tensor_at(r, q, DT_F32, rows, cols);
                add[i][r].in = in[i].x[r];
                lay_out(add[i][r].x, start[i]);
            }
            for (size_t k = 0; k < start[i].size(); k++) start[i][k] += in[i].sum[k];
        }
        all_there();
        for (uint32_t r = 0; r < ranks; r++)
            for (uint32_t i = 0; i < IN_A_ROW; i++)
                MUST(i % 2 ? k_residual_of_ranks(&side[r].lane, &side[r].exchange, &add[i][r])
                           : k_exchange_sum(&side[r].lane, &side[r].exchange, in[i].x[r]));
        MUST(cudaDeviceSynchronize());
        for (uint32_t r = 0; r < ranks; r++)
            for (uint32_t i = 0; i < IN_A_ROW; i++) {
                const struct tensor &x = i % 2 ? add[i][r].x : in[i].x[r];

                same(r, x, image(x, i % 2 ? start[i] : in[i].sum), "one of many");
            }
    }
}

} /* namespace */

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sum_of_any_rows_has_the_bits_of_the_order_of_ranks),
        cmocka_unit_test(a_gathering_brings_every_column_and_touches_no_other),
        cmocka_unit_test(a_residual_of_parts_has_the_bits_of_a_sum_and_a_residual),
        cmocka_unit_test(a_draw_of_parts_is_that_of_the_whole),
        cmocka_unit_test(counts_go_on_past_their_end),
        cmocka_unit_test(ranks_need_not_wait_between_ops),
    };

    /* Loading a kernel waits for an idle device, which never happens while a rank waits for
     * another. */
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    for (int i = 1; i + 1 < argc; i += 2)
        if (!strcmp(argv[i], "--only")) cmocka_set_test_filter(argv[i + 1]);
    return cmocka_run_group_tests(tests, open_sides, NULL);
}
