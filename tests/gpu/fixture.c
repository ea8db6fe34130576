/* fixture.c - see fixture.h.
 *
 * On a GPU buffers are cut from one arena, one after another with poison between them. The arena's
 * ref is one pinned range with the same offsets. Allocation restarts when no fixture is open.
 * fixture_send() copies what the host has written; data that the device may have written is copied
 * back when it is read.
 *
 * --plain is for compute-sanitizer's initcheck, which does not know memory with an fd and ends a
 * program that copies into it (docs/lab/serving.md). Then buffers are plain driver memory, new for
 * each test, and a kernel that the tool ignores (small_copy) writes the poison, so that the tool
 * reports reads of memory that no op wrote.
 */
#include "tests/gpu/fixture.h"

#include "base/clock.h"
#include "gpu/fp.h"
#include "tests/test.h"

#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* The largest test has 300 MiB of buffers. */
enum { GAP = 256, MAX_PIECES = 1 << 16, POISON = 256 << 10 };
#define ARENA_BYTES ((uint64_t)1 << 29)
#define BULK_BYTES ((uint64_t)24 << 30)
#define TIMEOUT (60 * NSEC_S) /* for all queued work: a wrong kernel may hang */

static struct gpu_options options = { .device = "cpu" };
static int only_dtype = -1, percent = 100;
static bool plain;
static uint32_t lane_units; /* units of the GPU lane; 0: all */

/* A buffer: [first, end) of the arena, then a gap up to next. dirty: the host may have written it
 * since it was sent; stale: the device may have written it since it was fetched. */
struct piece {
    uint64_t first, end, next;
    bool dirty, stale;
};

/* Shared by all fixtures on a GPU. */
static struct {
    struct gpu *gpu;
    struct lane *lane;
    struct arena arena, bulk; /* bulk: without a ref, made on first use */
    char *ref, *poison;       /* poison: [POISON], pinned, for --plain */
    uint64_t used, bulk_used;
    struct piece piece[MAX_PIECES];
    unsigned n_pieces, n_open, last; /* last: found */
    uint64_t step;
    enum dtype act;
} one;

static const enum dtype float_type[] = { DT_F32, DT_BF16, DT_F16 };

static const char *
value_of(int argc, char **argv, int *i)
{
    if (*i + 1 < argc) return argv[++*i];
    fprintf(stderr, "%s: %s needs a value\n", argv[0], argv[*i]);
    exit(2);
}

void
fixture_args(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];

        if (strcmp(a, "--device") == 0) {
            options.device = value_of(argc, argv, &i);
        } else if (strcmp(a, "--kernel") == 0) {
            options.kernels = value_of(argc, argv, &i);
        } else if (strcmp(a, "--libs") == 0) {
            options.libs = value_of(argc, argv, &i);
        } else if (strcmp(a, "--invariant") == 0) {
            options.invariant = true;
        } else if (strcmp(a, "--part") == 0) {
            lane_units = (uint32_t)atoi(value_of(argc, argv, &i));
        } else if (strcmp(a, "--plain") == 0) {
            plain = true;
        } else if (strcmp(a, "--only") == 0) {
            cmocka_set_test_filter(value_of(argc, argv, &i));
        } else if (strcmp(a, "--rounds") == 0) {
            percent = atoi(value_of(argc, argv, &i));
        } else if (strcmp(a, "--dtype") == 0) {
            const char *name = value_of(argc, argv, &i);

            for (size_t j = 0; j < ARRAY_LEN(float_type); j++)
                if (strcmp(name, dtype_name(float_type[j])) == 0) only_dtype = float_type[j];
        } else {
            fprintf(stderr,
                    "usage: %s [--device cpu|cuda|cuda:N] [--dtype fp32|bf16|fp16] "
                    "[--kernel op=name,...] [--invariant] [--libs DIR] [--only PATTERN] "
                    "[--rounds PERCENT] [--part UNITS] [--plain]\n",
                    argv[0]);
            exit(2);
        }
    }
}

bool
fixture_cuda(void)
{
    return strcmp(options.device, "cpu") != 0;
}

int
fixture_rounds(int n)
{
    return MAX(1, n * percent / 100);
}

void
fixture_invariant(void)
{
    options.invariant = true;
}

/* Driver functions for --plain: a test links neither runtime nor module. */
static int
plain_call(const char *name, uint64_t *p, size_t bytes)
{
    static void *driver;
    union {
        void *symbol;
        int (*alloc)(uint64_t *p, size_t bytes);
        int (*free)(uint64_t p);
    } f;

    if (!driver) driver = dlopen("libcuda.so.1", RTLD_NOW);
    f.symbol = driver ? dlsym(driver, name) : NULL;
    assert_non_null(f.symbol);
    return bytes ? f.alloc(p, bytes) : f.free(*p);
}

static void
make_arena(const char *name, uint64_t bytes, struct arena *ret)
{
    struct err e = { 0 };
    uint64_t p;

    if (plain) {
        assert_int_equal(plain_call("cuMemAlloc_v2", &p, bytes), 0);
        *ret = (struct arena){ .base = (void *)(uintptr_t)p, .bytes = bytes, .fd = -1 };
    } else if (gpu_ops(one.gpu)->mem.arena_make(one.gpu, name, bytes, ret, &e) < 0) {
        fail_msg("%s", e.text);
    }
}

static void
drop_arena(struct arena *a)
{
    uint64_t p = (uintptr_t)a->base;

    if (!a->base) return;
    if (plain)
        plain_call("cuMemFree_v2", &p, 0);
    else
        gpu_ops(one.gpu)->mem.arena_drop(one.gpu, a);
    a->base = NULL;
}

static char *
pinned(size_t bytes, bool pin)
{
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);

    assert_true(p != MAP_FAILED);
    if (pin && gpu_ops(one.gpu)->mem.host_pin(one.gpu, p, bytes) < 0)
        fail_msg("%s", gpu_why(one.gpu));
    return p;
}

static void
open_shared(void)
{
    const struct gpu_ops *op;
    struct err e = { 0 };

    if (gpu_open(&one.gpu, &options, &e) < 0) fail_msg("%s", e.text);
    op = gpu_ops(one.gpu);
    if (op->lane.open(one.gpu, gpu_facts(one.gpu).units, &one.lane, &e) < 0) fail_msg("%s", e.text);
    if (lane_units &&
        op->lane.part(one.lane, gpu_facts(one.gpu).units - lane_units, lane_units) < 0)
        fail_msg("%s", gpu_why(one.gpu));
    make_arena("test", ARENA_BYTES, &one.arena);
    one.step = 0;
    if (one.ref) return;
    /* A kernel copies small pinned memory, which the tool does not see. */
    one.ref = pinned(ARENA_BYTES, !plain);
    if (plain) memset(one.poison = pinned(POISON, true), 0xff, POISON);
}

/* A device that has failed is finished: the next fixture gets another. */
static void
close_shared(void)
{
    const struct gpu_ops *op = gpu_ops(one.gpu);

    op->lane.close(one.lane);
    drop_arena(&one.arena);
    drop_arena(&one.bulk);
    gpu_close(one.gpu);
    one.gpu = NULL;
}

int
fixture_begin(void **state)
{
    (void)state;
    one.n_open = 0;
    if (one.gpu && gpu_ops(one.gpu)->lane.error(one.lane) < 0) close_shared();
    return 0;
}

int
fixture_end(void **state)
{
    (void)state;
    if (one.gpu) close_shared();
    return 0;
}

void
fixture_open(struct fixture *r, const char *isa, uint32_t threads)
{
    struct gpu_options o = options;
    struct err e = { 0 };

    memset(r, 0, sizeof *r);
    if (fixture_cuda()) {
        if (!one.gpu) open_shared();
        if (one.n_open++ == 0) {
            if (plain && one.used) {
                drop_arena(&one.arena);
                make_arena("test", ARENA_BYTES, &one.arena);
            }
            one.used = one.n_pieces = 0;
            one.bulk_used = 0;
            one.act = only_dtype >= 0 ? (enum dtype)only_dtype : float_type[test_below(3)];
        }
        r->gpu = one.gpu;
        r->lane = one.lane;
        r->op = gpu_ops(r->gpu);
        r->act = one.act;
        return;
    }
    o.isa = isa;
    if (gpu_open(&r->gpu, &o, &e) < 0) fail_msg("%s", e.text);
    r->op = gpu_ops(r->gpu);
    if (r->op->lane.open(r->gpu, threads, &r->lane, &e) < 0) fail_msg("%s", e.text);
}

void
open_any(struct fixture *r)
{
    fixture_open(r, test_below(4) ? "auto" : "scalar", between(1, 3));
}

void
fixture_close(struct fixture *r)
{
    if (fixture_cuda()) {
        if (--one.n_open == 0 && r->op->lane.error(r->lane) < 0) close_shared();
    } else {
        r->op->lane.close(r->lane);
        gpu_close(r->gpu);
    }
    for (unsigned i = 0; i < r->n_owned; i++) free(r->owned[i]);
    memset(r, 0, sizeof *r);
}

static void
wait_for_fd(struct fixture *r)
{
    struct pollfd p = { .fd = r->op->lane.fd(r->lane), .events = POLLIN };

    assert_int_equal(r->op->lane.mark(r->lane, ++r->step), 0);
    while (r->op->lane.done(r->lane) < r->step) {
        uint64_t n;

        assert_true(poll(&p, 1, 60000) == 1);
        assert_true(read(p.fd, &n, sizeof n) == sizeof n);
    }
}

static void
wait_polling(struct fixture *r)
{
    nsec until = clock_now() + TIMEOUT;

    one.step = MAX(one.step, r->step) + 1;
    r->step = one.step;
    if (r->op->lane.mark(r->lane, one.step) < 0) fail_msg("%s", gpu_why(r->gpu));
    while (r->op->lane.done(r->lane) < one.step) {
        if (r->op->lane.error(r->lane) < 0) return;
        if (clock_now() > until) {
            fprintf(stderr, "the device is still busy after a minute\n");
            _exit(124); /* nothing queued after it would end either */
        }
    }
}

void
fixture_send(struct fixture *r)
{
    bool sent = false;

    for (unsigned i = 0; fixture_cuda() && i < one.n_pieces; i++) {
        struct piece *p = &one.piece[i];

        if (!p->dirty) continue;
        if (r->op->mem.put(r->lane, (char *)one.arena.base + p->first, one.ref + p->first,
                           p->next - p->first) < 0)
            fail_msg("%s", gpu_why(r->gpu));
        p->dirty = false;
        sent = true;
    }
    if (sent) wait_polling(r); /* there may be weights among it */
}

void
fixture_wait(struct fixture *r)
{
    if (!fixture_cuda()) {
        wait_for_fd(r);
        return;
    }
    wait_polling(r);
    for (unsigned i = 0; i < one.n_pieces; i++) one.piece[i].stale = !one.piece[i].dirty;
}

static struct piece *
find_piece(uint64_t at)
{
    unsigned low = 0, high = one.n_pieces;

    if (one.last < high && at >= one.piece[one.last].first && at < one.piece[one.last].next)
        return &one.piece[one.last];
    while (high - low > 1) {
        unsigned mid = (low + high) / 2;

        if (one.piece[mid].first <= at)
            low = mid;
        else
            high = mid;
    }
    assert_true(low < one.n_pieces);
    one.last = low;
    return &one.piece[low];
}

static void
fetch(struct piece *p)
{
    struct fixture r = { .gpu = one.gpu, .op = gpu_ops(one.gpu), .lane = one.lane };

    p->stale = false;
    if (r.op->mem.get(r.lane, one.ref + p->first, (char *)one.arena.base + p->first,
                      p->next - p->first) < 0)
        fail_msg("%s", gpu_why(one.gpu));
    wait_polling(&r);
    for (uint64_t j = p->end; j < p->next; j++)
        if ((unsigned char)one.ref[j] != 0xff)
            fail_msg("a buffer of %llu bytes: something was written %llu bytes behind its end",
                     (unsigned long long)(p->end - p->first), (unsigned long long)(j - p->end));
}

/* The up-to-date ref of an address. */
static void *
ref(const void *p, bool to_write)
{
    const char *c = p, *base = one.arena.base;
    struct piece *piece;

    if (!one.gpu || c < base || c >= base + ARENA_BYTES) return (void *)(uintptr_t)p;
    piece = find_piece((uint64_t)(c - base));
    if (piece->stale) fetch(piece);
    piece->dirty |= to_write;
    return one.ref + (c - base);
}

/* Writes that the tool does not see. */
static void
poison(struct fixture *r, uint64_t first, uint64_t end)
{
    for (uint64_t at = first; at < end; at += POISON)
        if (r->op->mem.put(r->lane, (char *)one.arena.base + at, one.poison,
                           MIN(end - at, (uint64_t)POISON)) < 0)
            fail_msg("%s", gpu_why(r->gpu));
}

void *
fixture_bytes(struct fixture *r, size_t bytes)
{
    void *p;

    if (fixture_cuda()) {
        uint64_t first = one.used;

        one.used = ROUND_UP(first + bytes + GAP, GAP);
        assert_true(one.used <= ARENA_BYTES && one.n_pieces < MAX_PIECES);
        memset(one.ref + first, 0xff, one.used - first);
        one.piece[one.n_pieces++] = (struct piece){ first, first + bytes, one.used, !plain, false };
        if (plain) poison(r, first, one.used);
        return (char *)one.arena.base + first;
    }
    p = malloc(bytes + 1);
    assert_non_null(p);
    assert_true(r->n_owned < ARRAY_LEN(r->owned));
    memset(p, 0xff, bytes + 1);
    return r->owned[r->n_owned++] = p;
}

void *
fixture_copy(struct fixture *r, const void *from, size_t bytes)
{
    void *p = fixture_bytes(r, bytes);

    memcpy(fixture_host(p), from, bytes);
    return p;
}

void *
fixture_host(const void *p)
{
    return ref(p, true);
}

float
fixture_normal(void)
{
    int sum = 0;

    for (int i = 0; i < 4; i++) sum += (int)test_below(65536) - 32768;
    return (float)sum / 37837.0f; /* standard deviation of 4 uniforms */
}

uint32_t
between(uint32_t low, uint32_t high)
{
    return low + test_below(high - low + 1);
}

bool
wide(void)
{
    return fixture_cuda() && test_below(2);
}

enum dtype
fixture_weight(const struct fixture *r)
{
    return fixture_cuda() ? r->act : float_type[test_below(3)];
}

enum dtype
fixture_vector(const struct fixture *r)
{
    if (!fixture_cuda()) return float_type[test_below(3)];
    return test_below(2) ? DT_F32 : r->act;
}

struct tensor
fixture_empty(struct fixture *r, enum dtype type, uint32_t rows, uint32_t cols, uint32_t stride)
{
    struct tensor t = tensor_2d(fixture_bytes(r, dtype_bytes(type, (size_t)rows * stride)), type,
                                rows, cols);

    t.stride = stride;
    return t;
}

struct tensor
fixture_device(struct fixture *r, enum dtype type, uint32_t rows, uint32_t cols)
{
    uint64_t bytes = ROUND_UP(dtype_bytes(type, (uint64_t)rows * cols), GAP), at = one.bulk_used;

    (void)r;
    assert_true(fixture_cuda());
    if (!one.bulk.base) make_arena("bulk", BULK_BYTES, &one.bulk);
    assert_true(at + bytes <= BULK_BYTES);
    one.bulk_used += bytes;
    return tensor_2d((char *)one.bulk.base + at, type, rows, cols);
}

struct tensor
fixture_output(struct fixture *r, uint32_t rows, uint32_t cols, uint32_t stride)
{
    return fixture_empty(r, r->act, rows, cols, stride);
}

struct tensor
fixture_tensor(struct fixture *r, enum dtype type, uint32_t rows, uint32_t cols, uint32_t stride,
               float std)
{
    struct tensor t = fixture_empty(r, type, rows, cols, stride);

    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t j = 0; j < cols; j++) set(t, i, j, fixture_normal() * std);
    return t;
}

struct tensor
fixture_twice(struct fixture *r, struct tensor t)
{
    struct tensor copy = t;

    copy.data = fixture_copy(r, fixture_host(t.data),
                             dtype_bytes(t.dtype, (size_t)t.dim[0] * t.stride));
    return copy;
}

double
at(struct tensor t, uint32_t row, uint32_t col)
{
    size_t n = (size_t)row * t.stride + col;
    const void *data = ref(t.data, false);

    if (t.dtype == DT_F32) return ((const float *)data)[n];
    if (t.dtype == DT_E4M3) return float_of_e4m3(((const uint8_t *)data)[n]);
    return t.dtype == DT_BF16 ? float_of_bf16(((const uint16_t *)data)[n])
                              : float_of_f16(((const uint16_t *)data)[n]);
}

void
set(struct tensor t, uint32_t row, uint32_t col, float x)
{
    size_t n = (size_t)row * t.stride + col;
    void *data = fixture_host(t.data);

    if (t.dtype == DT_F32)
        ((float *)data)[n] = x;
    else if (t.dtype == DT_E4M3)
        ((uint8_t *)data)[n] = e4m3_of_float(x);
    else
        ((uint16_t *)data)[n] = t.dtype == DT_BF16 ? bf16_of_float(x) : f16_of_float(x);
}

double
rounding(enum dtype t)
{
    return t == DT_E4M3 ? 0x1p-4 : t == DT_BF16 ? 0x1p-8 : t == DT_F16 ? 0x1p-11 : 0x1p-24;
}

bool
same_bits(struct tensor a, struct tensor b)
{
    assert_int_equal(a.dim[0], b.dim[0]);
    assert_int_equal(a.dim[1], b.dim[1]);
    for (uint32_t i = 0; i < a.dim[0]; i++)
        for (uint32_t j = 0; j < a.dim[1]; j++) {
            float x = (float)at(a, i, j), y = (float)at(b, i, j);

            if (bits_of_float(x) == bits_of_float(y) || (x != x && y != y)) continue;
            print_error("[%u, %u]: %.9g and %.9g\n", i, j, (double)x, (double)y);
            return false;
        }
    return true;
}

/* With base, or with memory of its own. */
static void
page(struct fixture *r, struct paged *p, void *base, enum dtype t, uint32_t n_slots,
     uint32_t max_pos, uint32_t tpb, uint32_t n_kv_heads, uint32_t head_dim)
{
    uint32_t n_entries = CEIL_DIV(max_pos, tpb), n = n_slots * n_entries;
    uint32_t bytes = (uint32_t)ROUND_UP(dtype_bytes(t, (size_t)n_kv_heads * tpb * head_dim), 128);
    slice_id *table;

    p->n_slots = n_slots;
    p->n_entries = n_entries;
    p->table = fixture_bytes(r, n * sizeof(slice_id));
    table = HOST(p->table);
    p->view = (struct kv_view){ .base = base ? base : fixture_bytes(r, (size_t)bytes * 2 * n),
                                .table = p->table,
                                .table_stride = n_entries,
                                .slice_bytes = bytes,
                                .n_parts = 2,
                                .tokens_per_block = tpb,
                                .n_kv_heads = n_kv_heads,
                                .head_dim = head_dim,
                                .dtype = t,
                                .k_scale = 1,
                                .v_scale = 1 };
    for (uint32_t i = 0; i < n; i++) table[i] = 2 * i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = test_below(i);
        slice_id s = table[i - 1];

        table[i - 1] = table[j];
        table[j] = s;
    }
}

void
fixture_paged(struct fixture *r, struct paged *p, enum dtype t, uint32_t n_slots, uint32_t max_pos,
              uint32_t tpb, uint32_t n_kv_heads, uint32_t head_dim)
{
    page(r, p, NULL, t, n_slots, max_pos, tpb, n_kv_heads, head_dim);
}

void
fixture_paged_device(struct fixture *r, struct paged *p, enum dtype t, uint32_t n_slots,
                     uint32_t max_pos, uint32_t tpb, uint32_t n_kv_heads, uint32_t head_dim)
{
    uint32_t values = (uint32_t)ROUND_UP(n_kv_heads * tpb * head_dim, 128u);
    struct tensor blocks = fixture_device(r, t, 2 * n_slots * CEIL_DIV(max_pos, tpb), values);

    page(r, p, blocks.data, t, n_slots, max_pos, tpb, n_kv_heads, head_dim);
}

void
fixture_fill_kv(struct paged *p, uint32_t slot, uint32_t first, uint32_t n)
{
    const struct kv_view *v = &p->view;
    uint32_t tpb = v->tokens_per_block, d = v->head_dim;

    for (uint32_t part = 0; part < 2; part++)
        for (uint32_t head = 0; head < v->n_kv_heads; head++)
            for (uint32_t j = first; j < first + n; j++) {
                slice_id block = HOST(p->table)[slot * p->n_entries + j / tpb];
                char *slice = (char *)v->base + ((size_t)block + part) * v->slice_bytes;
                struct tensor t = tensor_2d(slice, v->dtype, v->n_kv_heads * tpb, d);

                for (uint32_t e = 0; e < d; e++) set(t, head * tpb + j % tpb, e, fixture_normal());
            }
}
