/* cuda_blas.c - matmuls by cuBLASLt; see cuda_blas.h.
 *
 * The library stores matrices column by column. Its A is w ([K, N] in its order, transposed), its B
 * is x ([K, M]) and its D is y ([N, M]). A bias along N is a bias of the rows of D. M is only a
 * number of columns and does not change the alignment that an algorithm needs: one algorithm can
 * serve every M of a bucket.
 */
#include "gpu/cuda/cuda_blas.h"

#include "gpu/cuda/cuda_library.h"
#include "gpu/cuda/cuda_tuning_file.h"
#include "gpu/cuda/kernels/elementwise/gate.h"
#include "gpu/cuda/kernels/gemm/matmul_generic.h"
#include "gpu/cuda/kernels/gemm/matmul_skinny_invariant.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>

#define CALLS(X) \
    X(cublasLtCreate) \
    X(cublasLtDestroy) \
    X(cublasLtGetVersion) \
    X(cublasLtMatmul) \
    X(cublasLtMatmulAlgoConfigGetAttribute) \
    X(cublasLtMatmulAlgoGetHeuristic) \
    X(cublasLtMatmulDescInit_internal) \
    X(cublasLtMatmulDescSetAttribute) \
    X(cublasLtMatmulPreferenceInit_internal) \
    X(cublasLtMatmulPreferenceSetAttribute) \
    X(cublasLtMatrixLayoutInit_internal)

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define LIBRARY "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

_Static_assert(sizeof(cublasLtMatmulAlgo_t) == TUNING_BYTES,
               "tuning_row.algorithm has another size");

enum {
    /* shapes and buckets whose algorithm a lane keeps; for others every call asks the library */
    PLANS = 2048,
    PROBES = 8,
    FLAT = 256, /* M that selects an invariant algorithm: a compromise between decode and prefill */
    /* Id of a family of algorithms for Hopper, which add K in order, 16 elements at a time, and
     * gave the same bits with every tile size (test_bits, bench_matmul). */
    ALIKE = 66,
    /* least elements of w for an algorithm per bucket: below, the one for FLAT rows is faster */
    LARGE = 8 << 20,
    ASKED = 32,
    TIMES = 9, /* runs of each algorithm when tuning */
};

/* The library uses the last BLAS_WORK bytes of the work area; the rest is for products in fp32. */
#define BLAS_WORK ((size_t)32 << 20)
_Static_assert(BLAS_WORK < CUDA_WORK, "no work area for products");

struct blas {
    void *library;
    const struct gpu_options *options; /* valid until cuda_blas_open() returns */
    /* thread that opens the library and then makes the first query for algorithms */
    pthread_t opener;
    bool opening;
    int opened; /* result of cuda_library_open() */
    struct err why;
#define X(name) __typeof__(name) *name;
    CALLS(X)
#undef X
    struct tuning_table *tuning;
    char *tuning_path;
};

/* A product y = x w^T + beta y, or x w^T + bias, or relu(x w^T). */
struct product {
    struct tensor y, x, w;
    const void *bias; /* NULL, or of y's dtype; not with relu */
    bool relu;
    float beta;
};

struct plan {
    struct tuning_key key; /* n 0: unused entry */
    uint32_t sms;          /* SMs of the part of the device that the lane is on */
    bool none;             /* true: the library has no algorithm; it is asked only once */
    bool alike;            /* true: invariant, and the algorithm for FLAT rows is of family ALIKE */
    bool measured;
    struct product last; /* the last product computed, for tuning */
    cublasLtMatmulAlgo_t algorithm;
};

struct blas_lane {
    const struct blas *b;
    cublasLtHandle_t handle;
    struct plan plan[PLANS];
};

/* The descriptors that a call of the library needs. */
struct call {
    cublasLtMatmulDescOpaque_t op;
    cublasLtMatrixLayoutOpaque_t w, x, y;
};

static bool
find_calls(void *library, void *arg)
{
    struct blas *b = arg;

#define X(name) \
    if (!(*(void **)&b->name = dlsym(library, #name))) return false;
    CALLS(X)
#undef X
    return true;
}

static void *
loader(void *libs)
{
    struct blas b; /* discarded: cuda_blas_open() looks the functions up again */
    int r = cuda_library_open(&b.library, LIBRARY, libs, "", find_calls, &b, NULL);

    (void)r; /* an error is reported by cuda_blas_open(), which tries again */
    free(libs);
    return NULL;
}

void
cuda_blas_load(const struct gpu_options *o)
{
    char *libs = o->libs ? strdup(o->libs) : NULL;
    pthread_t t;

    if ((!o->libs || libs) && pthread_create(&t, NULL, loader, libs) == 0)
        pthread_detach(t);
    else
        free(libs);
}

static void *
opener(void *arg)
{
    struct blas *b = arg;

    b->opened = cuda_library_open(&b->library, LIBRARY, b->options->libs, "", find_calls, b,
                                  &b->why);
    return NULL;
}

int
cuda_blas_begin(struct cuda *c, const struct gpu_options *o, struct err *e)
{
    struct blas *b = calloc(1, sizeof *b);

    if (!b) return err_set(e, -ENOMEM, "cannot open %s: out of host memory", LIBRARY);
    c->blas = b;
    b->options = o;
    b->opening = pthread_create(&b->opener, NULL, opener, b) == 0;
    if (!b->opening) opener(b);
    return 0;
}

static int
wait_for_library(struct blas *b, struct err *e)
{
    if (b->opening) pthread_join(b->opener, NULL);
    b->opening = false;
    return b->opened < 0 ? err_set(e, b->opened, "%s", b->why.text) : 0;
}

void
cuda_blas_close(struct cuda *c)
{
    struct blas *b = c->blas;

    if (!b) return;
    if (b->opening) pthread_join(b->opener, NULL);
    c->blas = NULL;
    tuning_close(b->tuning);
    free(b->tuning_path);
    if (b->library) dlclose(b->library);
    free(b);
}

int
cuda_blas_lane_open(struct cuda_lane *l, struct err *e)
{
    const struct blas *b = cuda_of(&l->lane)->blas;
    struct blas_lane *bl;

    if (!b) return 0;
    bl = calloc(1, sizeof *bl);
    if (!bl) return err_set(e, -ENOMEM, "cannot allocate matmul plans: out of host memory");
    bl->b = b;
    l->blas = bl;
    if (b->cublasLtCreate(&bl->handle) == CUBLAS_STATUS_SUCCESS) return 0;
    bl->handle = NULL;
    return err_set(e, -EIO, "cannot open a lane: %s: cublasLtCreate() failed", LIBRARY);
}

void
cuda_blas_lane_close(struct cuda_lane *l)
{
    struct blas_lane *bl = l->blas;

    if (!bl) return;
    if (bl->handle) bl->b->cublasLtDestroy(bl->handle);
    free(bl);
    l->blas = NULL;
}

static cudaDataType_t
type_of(enum dtype t)
{
    return t == DT_F32 ? CUDA_R_32F : t == DT_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static uint32_t
bucket(uint32_t rows)
{
    uint32_t b = 16;

    while (b < rows) {
        if (rows <= b + b / 2) return b + b / 2;
        b *= 2;
    }
    return b;
}

/* Returns the largest power of two, at most 16, that divides the address of every row. The stride
 * counts even for one row, so that a row has the same alignment alone and in a batch. */
static uint8_t
alignment(const struct tensor *t)
{
    uintptr_t bits = (uintptr_t)t->data | dtype_bytes(t->dtype, MAX(t->stride, t->dim[1])) | 16;

    return (uint8_t)(bits & -bits);
}

static struct tuning_key
key_of(const struct k_launch *l, const struct product *m)
{
    return (struct tuning_key){
        .n = m->w.dim[0],
        .k = m->w.dim[1],
        .rows = bucket(m->x.dim[0]),
        .in = (uint8_t)m->x.dtype,
        .out = (uint8_t)m->y.dtype,
        .align = (uint8_t)MIN(alignment(&m->y), MIN(alignment(&m->x), alignment(&m->w))),
        .epilogue = (uint8_t)((m->bias != NULL) | (m->beta != 0) << 1 | m->relu << 2),
        .fixed = l->invariant,
    };
}

static bool
set(const struct blas *b, struct call *c, cublasLtMatmulDescAttributes_t what, const void *value,
    size_t bytes)
{
    return b->cublasLtMatmulDescSetAttribute(&c->op, what, value, bytes) == CUBLAS_STATUS_SUCCESS;
}

static bool
lay_out(const struct blas *b, cublasLtMatrixLayoutOpaque_t *to, const struct tensor *t,
        uint32_t rows)
{
    return b->cublasLtMatrixLayoutInit_internal(to, sizeof *to, type_of(t->dtype), t->dim[1], rows,
                                                MAX(t->stride, t->dim[1])) == CUBLAS_STATUS_SUCCESS;
}

/* Fills the descriptors of a product. rows: M for which an algorithm is chosen, may exceed the rows
 * of x. sms: number of SMs to use; 0: the whole device. */
static bool
make_call(const struct blas *b, struct call *c, const struct product *m, uint32_t rows,
          uint32_t sms)
{
    /* PEDANTIC excludes TF32 and the emulation of fp32 by sums of bf16 products. */
    cublasComputeType_t compute = m->x.dtype == DT_F32 ? CUBLAS_COMPUTE_32F_PEDANTIC
                                                       : CUBLAS_COMPUTE_32F;
    cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtEpilogue_t epilogue = m->relu   ? CUBLASLT_EPILOGUE_RELU
                                  : m->bias ? CUBLASLT_EPILOGUE_BIAS
                                            : CUBLASLT_EPILOGUE_DEFAULT;
    int32_t target = (int32_t)sms;

    if (b->cublasLtMatmulDescInit_internal(&c->op, sizeof c->op, compute, CUDA_R_32F) !=
            CUBLAS_STATUS_SUCCESS ||
        !set(b, c, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed))
        return false;
    if (epilogue != CUBLASLT_EPILOGUE_DEFAULT &&
        !set(b, c, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue))
        return false;
    if (m->bias && !set(b, c, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &m->bias, sizeof m->bias))
        return false;
    if (sms && !set(b, c, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &target, sizeof target))
        return false;
    return lay_out(b, &c->w, &m->w, m->w.dim[0]) && lay_out(b, &c->x, &m->x, rows) &&
           lay_out(b, &c->y, &m->y, rows);
}

/* Returns an attribute of an algorithm; `value` if the library does not know the attribute. */
static int32_t
attribute(const struct blas *b, const cublasLtMatmulAlgo_t *algorithm,
          cublasLtMatmulAlgoConfigAttributes_t what, int32_t value)
{

    b->cublasLtMatmulAlgoConfigGetAttribute(algorithm, what, &value, sizeof value, NULL);
    return value;
}

/* Asks the library for at most n algorithms, best estimate first; returns their number. */
static int
ask(const struct blas_lane *bl, const struct tuning_key *k, struct call *c,
    cublasLtMatmulHeuristicResult_t *ret, int n)
{
    const struct blas *b = bl->b;
    cublasLtMatmulPreferenceOpaque_t p;
    /* An algorithm may split a sum if it adds the parts in fp32 in the work area. With a bias or
     * beta (it would round in between) or `fixed` it may not split sums. */
    bool whole = k->fixed || k->epilogue & 3;
    uint32_t sums = whole ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t align = k->align;
    size_t work = BLAS_WORK;
    cublasLtMatmulPreferenceAttributes_t aligned[] = { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                                                       CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                                       CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                                                       CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES };
    int found = 0, kept = 0;

    if (b->cublasLtMatmulPreferenceInit_internal(&p, sizeof p) != CUBLAS_STATUS_SUCCESS) return 0;
    b->cublasLtMatmulPreferenceSetAttribute(&p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &work,
                                            sizeof work);
    b->cublasLtMatmulPreferenceSetAttribute(&p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &sums,
                                            sizeof sums);
    for (size_t i = 0; i < ARRAY_LEN(aligned); i++)
        b->cublasLtMatmulPreferenceSetAttribute(&p, aligned[i], &align, sizeof align);
    if (b->cublasLtMatmulAlgoGetHeuristic(bl->handle, &c->op, &c->w, &c->x, &c->y, &c->y, &p, n,
                                          ret, &found) != CUBLAS_STATUS_SUCCESS)
        return 0;
    for (int i = 0; i < found; i++) {
        int32_t parts;

        if (ret[i].state != CUBLAS_STATUS_SUCCESS) continue;
        parts = attribute(b, &ret[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 1);
        if (!whole || parts == 1 || parts == 0) ret[kept++] = ret[i];
    }
    return kept;
}

/* Thread: makes one query while the weights load, because the first query takes 40 to 60 ms. */
static void *
primer(void *arg)
{
    struct cuda *c = arg;
    struct blas *b = c->blas;
    struct cuda_lane l = { .lane.gpu = &c->gpu, .k.sms = c->gpu.units };
    struct tensor t = tensor_2d(NULL, DT_BF16, FLAT, FLAT);
    struct product m = { .y = t, .x = t, .w = t };
    struct tuning_key k = key_of(&l.k, &m);
    struct blas_lane *bl = calloc(1, sizeof *bl);
    cublasLtMatmulHeuristicResult_t found[1];
    struct call call;

    cuda_enter(c);
    if (bl && b->cublasLtCreate(&bl->handle) == CUBLAS_STATUS_SUCCESS) {
        bl->b = b;
        if (make_call(b, &call, &m, FLAT, 0)) ask(bl, &k, &call, found, 1);
        b->cublasLtDestroy(bl->handle);
    }
    free(bl);
    return NULL;
}

int
cuda_blas_open(struct cuda *c, const struct gpu_options *o, struct err *e)
{
    struct blas *b = c->blas;
    struct tuning_machine m = { .sms = c->gpu.units };
    struct cudaDeviceProp p;

    TRY(wait_for_library(b, e));
    if (cudaGetDeviceProperties(&p, c->ordinal) != cudaSuccess)
        return err_set(e, -EIO, "cannot open %s: cannot query the GPU", LIBRARY);
    if (o->tuning_file && !(b->tuning_path = strdup(o->tuning_file)))
        return err_set(e, -ENOMEM, "cannot open %s: out of host memory", LIBRARY);
    snprintf(m.gpu, sizeof m.gpu, "%.63s", p.name);
    cudaDriverGetVersion(&m.driver);
    m.library = b->cublasLtGetVersion();
    TRY(tuning_open(&b->tuning, o->tuning_file, &m, e));
    if (o->inspect) return 0; /* primer() makes a context */
    b->opening = pthread_create(&b->opener, NULL, primer, c) == 0;
    return 0;
}

static struct plan *
place_of(struct blas_lane *bl, const struct tuning_key *k, uint32_t sms)
{
    uint64_t hash = sms;
    uint32_t word[sizeof *k / 4];
    struct plan *p = NULL;

    memcpy(word, k, sizeof word);
    for (size_t i = 0; i < ARRAY_LEN(word); i++)
        hash = (hash ^ word[i]) * 0x9e3779b97f4a7c15 ^ hash >> 29;
    for (uint64_t i = 0; i < PROBES; i++) {
        p = &bl->plan[((hash >> 32) + i) % PLANS];
        if (p->key.n == 0 || (p->sms == sms && memcmp(&p->key, k, sizeof *k) == 0)) return p;
    }
    p->key.n = 0;
    return p;
}

/* Returns the number of SMs that an algorithm should use; 0: the whole device. */
static uint32_t
part_of(const struct k_launch *l)
{
    return l->sms < cuda_lane_of(l)->lane.gpu->units ? l->sms : 0;
}

/* Chooses the algorithm of a plan with invariant numerics: one for all M, or on Hopper the best of
 * the family ALIKE for this bucket. A lane on a part of the SMs uses the algorithm for the whole
 * device too, because algorithms chosen for fewer SMs may add in another order. */
static void
find_fixed(const struct k_launch *l, const struct blas_lane *bl, struct plan *p,
           const struct product *m)
{
    cublasLtMatmulHeuristicResult_t found[ASKED];
    struct call c;
    int n;

    if (!make_call(bl->b, &c, m, FLAT, 0) || ask(bl, &p->key, &c, found, ASKED) == 0) return;
    p->none = false;
    p->algorithm = found[0].algo;
    p->alike = cuda_of(&cuda_lane_of(l)->lane)->sm == 90 &&
               attribute(bl->b, &p->algorithm, CUBLASLT_ALGO_CONFIG_ID, -1) == ALIKE;
    if (!p->alike || (uint64_t)p->key.n * p->key.k < LARGE ||
        !make_call(bl->b, &c, m, p->key.rows, 0))
        return;
    n = ask(bl, &p->key, &c, found, ASKED);
    for (int i = 0; i < n; i++) {
        if (attribute(bl->b, &found[i].algo, CUBLASLT_ALGO_CONFIG_ID, -1) != ALIKE) continue;
        p->algorithm = found[i].algo;
        return;
    }
}

static void
find_algorithm(const struct k_launch *l, const struct blas_lane *bl, struct plan *p,
               const struct tuning_key *k, const struct tuning_row *row, const struct product *m)
{
    cublasLtMatmulHeuristicResult_t found[ASKED];
    struct call c;

    p->key = *k;
    p->sms = l->sms;
    p->none = true;
    p->alike = false;
    p->measured = row != NULL;
    if (row) {
        memcpy(&p->algorithm, row->algorithm, sizeof p->algorithm);
        p->none = false;
        return;
    }
    if (k->fixed) {
        find_fixed(l, bl, p, m);
        return;
    }
    if (!make_call(bl->b, &c, m, k->rows, part_of(l)) ||
        ask(bl, k, &c, found, k->epilogue & 3 ? ASKED : 1) == 0)
        return;
    p->algorithm = found[0].algo;
    p->none = false;
}

static bool
run_matmul(const struct k_launch *l, const struct blas_lane *bl, struct call *c,
           const cublasLtMatmulAlgo_t *algorithm, const struct product *m)
{
    float one = 1;

    return bl->b->cublasLtMatmul(bl->handle, &c->op, &one, m->w.data, &c->w, m->x.data, &c->x,
                                 &m->beta, m->y.data, &c->y, m->y.data, &c->y, algorithm,
                                 (char *)l->work + l->work_bytes - BLAS_WORK, BLAS_WORK,
                                 l->st) == CUBLAS_STATUS_SUCCESS;
}

static bool
takes(const struct k_launch *l, const struct product *m)
{
    enum dtype t = m->x.dtype;

    if (!cuda_lane_of(l)->blas) return false;
    if (t != m->w.dtype || (m->y.dtype != t && m->y.dtype != DT_F32)) return false;
    if (t != DT_F32 && t != DT_BF16 && t != DT_F16) return false;
    /* Invariant: one algorithm must serve all addresses, so all must be 16-byte aligned. */
    return !l->invariant || (t != DT_F32 && key_of(l, m).align == 16);
}

/* Returns the plan for a product; chooses an algorithm on first use. */
static struct plan *
planned(const struct k_launch *l, const struct product *m)
{
    struct blas_lane *bl = cuda_lane_of(l)->blas;
    struct tuning_key k = key_of(l, m), plain = k;
    struct plan *p = place_of(bl, &k, l->sms);

    plain.epilogue &= 3; /* relu does not change which algorithm is best */
    if (p->key.n == 0)
        find_algorithm(l, bl, p, &k, part_of(l) ? NULL : tuning_find(bl->b->tuning, &plain), m);
    return p;
}

static bool
multiply(const struct k_launch *l, const struct product *m)
{
    struct blas_lane *bl = cuda_lane_of(l)->blas;
    struct plan *p = planned(l, m);
    struct tuning_key k = p->key;
    struct call c;

    p->last = *m;
    if (p->none || !make_call(bl->b, &c, m, m->x.dim[0], k.fixed ? 0 : part_of(l))) return false;
    if (run_matmul(l, bl, &c, &p->algorithm, m)) return true;
    if (!p->measured) return false;
    /* The bytes of an algorithm in the tuning file may be wrong: chooses another one. */
    find_algorithm(l, bl, p, &k, NULL, m);
    p->measured = true;
    return !p->none && run_matmul(l, bl, &c, &p->algorithm, m);
}

/* Computes the product in fp32, as many rows at a time as the work area holds; then adds the bias,
 * applies act unless it is NULL (beta is 0 then), and rounds once. */
static cudaError_t
multiply_apart(const struct k_launch *l, const struct product *m, struct tensor bias,
               const enum act *act)
{
    struct tensor y = m->y;
    /* a multiple of 4, so that all rows start 16-byte aligned */
    uint32_t stride = ROUND_UP(y.dim[1], 4u);
    uint32_t max_rows = (uint32_t)MIN((l->work_bytes - BLAS_WORK) / 4 / stride & ~3ul, UINT32_MAX);

    if (max_rows == 0) return cudaErrorInvalidValue;
    for (uint32_t first = 0; first < y.dim[0]; first += max_rows) {
        uint32_t n = MIN(max_rows, y.dim[0] - first);
        struct product part = { .x = tensor_rows(m->x, first, n), .w = m->w };
        cudaError_t r;

        part.y = tensor_2d(l->work, DT_F32, n, y.dim[1]);
        part.y.stride = stride;
        /* Refuses: another candidate computes y, unless rows with beta y are done already. */
        if (!multiply(l, &part))
            return first == 0 || m->beta == 0 ? cudaErrorInvalidValue : cudaErrorUnknown;
        r = act ? k_add_bias_act(l, tensor_rows(y, first, n), part.y, bias, *act)
                : k_add_bias(l, tensor_rows(y, first, n), part.y, bias, m->beta);
        if (r != cudaSuccess) return r;
    }
    return cudaSuccess;
}

cudaError_t
cuda_blas_matmul_line(const struct k_launch *l, struct tensor y, struct tensor x, struct tensor w,
                      struct tensor bias, float beta)
{
    struct product m = { .y = y, .x = x, .w = w };

    if (!l->invariant || x.dim[0] > MATMUL_LINE_ROWS || bias.data || beta != 0 || !takes(l, &m) ||
        !planned(l, &m)->alike)
        return cudaErrorInvalidValue;
    return k_matmul_skinny_invariant(l, y, x, w);
}

cudaError_t
cuda_blas_matmul(const struct k_launch *l, struct tensor y, struct tensor x, struct tensor w,
                 struct tensor bias, float beta)
{
    struct product m = { .y = y, .x = x, .w = w, .bias = bias.data, .beta = beta };
    bool rounds = y.dtype != DT_F32 || (bias.data && bias.dtype != DT_F32);

    if (!takes(l, &m)) return cudaErrorInvalidValue;
    /* The library was seen to round a 16-bit product before it adds a bias or beta y. */
    if (bias.data && rounds) return multiply_apart(l, &m, bias, NULL);
    if (beta != 0 && rounds) return cudaErrorInvalidValue;
    return multiply(l, &m) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t
cuda_blas_act_matmul(const struct k_launch *l, struct tensor y, struct tensor x, struct tensor w,
                     struct tensor bias, enum act a)
{
    struct product m = { .y = y, .x = x, .w = w, .relu = a == ACT_RELU && !bias.data };

    if (!takes(l, &m)) return cudaErrorInvalidValue;
    if (bias.data) return multiply_apart(l, &m, bias, &a);
    if (!multiply(l, &m)) return cudaErrorInvalidValue;
    return m.relu ? cudaSuccess : k_act(l, y, y, a);
}

cudaError_t
cuda_blas_gate_matmul(const struct k_launch *l, struct tensor y, struct tensor both,
                      struct tensor x, struct tensor w, enum act a)
{
    cudaError_t r = cuda_blas_matmul(l, both, x, w, NO_TENSOR, 0);

    return r == cudaSuccess ? k_gate(l, y, both, a) : r;
}

/* Returns the median of TIMES runs with cold weights, in microseconds. Negative: the algorithm does
 * not run, or its first two runs are over 20 % slower than the best so far (0: no best yet).
 * Writing the work area before each run flushes the L2. */
static float
time_of(const struct k_launch *l, const struct blas_lane *bl, const struct plan *p, struct call *c,
        const cublasLtMatmulAlgo_t *algorithm, const cudaEvent_t *event, float best)
{
    struct product m = p->last;
    float us[TIMES];

    m.beta = 0;
    for (int i = 0; i < TIMES; i++) {
        int at = i;

        cudaMemsetAsync(l->work, 0, l->work_bytes, l->st);
        cudaEventRecord(event[0], l->st);
        if (!run_matmul(l, bl, c, algorithm, &m)) {
            cudaGetLastError(); /* clears the error of a refused launch */
            return -1;
        }
        cudaEventRecord(event[1], l->st);
        if (cudaEventSynchronize(event[1]) != cudaSuccess) return -1;
        cudaEventElapsedTime(&us[i], event[0], event[1]);
        for (float v = us[i]; at > 0 && us[at - 1] > v; at--) {
            us[at] = us[at - 1];
            us[at - 1] = v;
        }
        if (i == 1 && best > 0 && us[0] * 1000 > 1.2f * best) return -1;
    }
    return us[TIMES / 2] * 1000;
}

/* Times all algorithms for a plan and stores the best in row; returns the number of algorithms. */
static int
time_all(const struct k_launch *l, const struct blas_lane *bl, const struct plan *p,
         const cudaEvent_t *event, struct tuning_row *row)
{
    cublasLtMatmulHeuristicResult_t found[ASKED];
    struct call asked, c;
    int n;

    *row = (struct tuning_row){ .key = p->key, .us = -1 };
    if (!make_call(bl->b, &asked, &p->last, p->key.rows, 0) ||
        !make_call(bl->b, &c, &p->last, p->last.x.dim[0], 0))
        return 0;
    n = ask(bl, &p->key, &asked, found, ASKED);
    for (int i = 0; i < n; i++) {
        float us = time_of(l, bl, p, &c, &found[i].algo, event, row->us);

        if (i == 0) row->heuristic_us = us;
        /* A gain below 1 % is noise: keeps the algorithm that the library proposed earlier. */
        if (us <= 0 || (row->us > 0 && us > row->us * 0.99f)) continue;
        row->us = us;
        memcpy(row->algorithm, &found[i].algo, sizeof row->algorithm);
    }
    return n;
}

/* Returns 0, nothing measured, for a lane on a part of the SMs and with invariant numerics: a new
 * algorithm would change the bits of a row while serving. */
int
cuda_lane_tune(struct lane *lane, struct tune_result *ret)
{
    const struct k_launch *l = &((struct cuda_lane *)lane)->k;
    struct blas_lane *bl = ((struct cuda_lane *)lane)->blas;
    struct blas *b = cuda_of(lane)->blas;
    struct plan *p = NULL;
    cudaEvent_t event[2] = { NULL, NULL };
    struct tuning_row row;
    int n = 0;

    if (!b || !b->tuning_path || l->sms != lane->gpu->units || l->invariant) return 0;
    for (uint32_t i = 0; i < PLANS && !p; i++)
        if (bl->plan[i].key.n && !bl->plan[i].none && !bl->plan[i].measured &&
            !bl->plan[i].last.relu && bl->plan[i].sms == l->sms)
            p = &bl->plan[i];
    if (!p) return 0;
    p->measured = true; /* measured only once, even if this fails */
    cuda_enter(cuda_of(lane));
    cudaGetLastError(); /* clears the error of a candidate that does not fit this device */
    if (cudaEventCreate(&event[0]) == cudaSuccess && cudaEventCreate(&event[1]) == cudaSuccess)
        n = time_all(l, bl, p, event, &row);
    for (int i = 0; i < 2; i++)
        if (event[i]) cudaEventDestroy(event[i]);
    TRY(cuda_failed(lane, cudaGetLastError(), "tune"));
    *ret = (struct tune_result){
        .n = p->key.n, .k = p->key.k, .rows = p->last.x.dim[0], .n_tried = (uint32_t)n
    };
    if (n == 0 || row.us <= 0) return 1;
    memcpy(&p->algorithm, row.algorithm, sizeof p->algorithm);
    if (tuning_put(b->tuning, &row) < 0)
        return err_set(&lane->gpu->why, -ENOSPC,
                       "tune: the tuning file is full, with %d rows for this GPU", TUNING_MAX);
    TRY(tuning_save(b->tuning, b->tuning_path, &lane->gpu->why));
    ret->first = row.heuristic_us;
    ret->best = row.us;
    return 1;
}
