/* fuzz_mxfp4.c - the loader on an almost valid checkpoint of GPT-OSS: the same verdict as a
 * reference, and every weight of every expert at the place that gpu.h states.
 *
 * Input: a byte of flags (FP4: codes and scales, else bf16 as [in, out]; then the number of experts
 * and two sizes), up to EDITS edits of three bytes (which tensor, what, by how much), then bytes
 * with which tensors are filled repeatedly. Bits 1 and 2 of the first of these bytes select which
 * of two ranks opens the checkpoint, if any. The device is a heap; ops are not tested here.
 */
#include "tests/fuzz/fuzz.h"

#include "gpu/device.h"
#include "worker/arch/registry.h"
#include "worker/model/model.h"
#include "worker/model/sharding.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum { FP4 = 1, EDITS = 4, MOST = 24, MAX_FILE = 1 << 17, HEADS = 2, HEAD = 4, VOCAB = 5 };

/* ---- the device */

static struct gpu heap;
static struct lane lane = { .gpu = &heap };
static uint32_t rank, ranks;

static int
arena_make(struct gpu *g, const char *name, uint64_t bytes, struct arena *ret, struct err *e)
{
    (void)g, (void)name, (void)e;
    *ret = (struct arena){ .base = aligned_alloc(128, ROUND_UP(bytes, (uint64_t)128)),
                           .bytes = bytes,
                           .fd = -1 };
    check(ret->base);
    return 0;
}

static void
arena_drop(struct gpu *g, struct arena *a)
{
    (void)g;
    free(a->base);
    a->base = NULL;
}

static int
pin(struct gpu *g, void *p, size_t bytes)
{
    (void)g, (void)p, (void)bytes;
    return 0;
}

static void
unpin(struct gpu *g, void *p, size_t bytes)
{
    (void)g, (void)p, (void)bytes;
}

static int
lane_open(struct gpu *g, uint32_t units, struct lane **ret, struct err *e)
{
    (void)g, (void)units, (void)e;
    *ret = &lane;
    return 0;
}

static void
lane_close(struct lane *l)
{
    (void)l;
}

static int
lane_mark(struct lane *l, uint64_t step)
{
    (void)l, (void)step;
    return 0;
}

static int
put(struct lane *l, void *dst, const void *host, size_t bytes)
{
    (void)l;
    memcpy(dst, host, bytes);
    return 0;
}

static int
get(struct lane *l, void *host, const void *src, size_t bytes)
{
    (void)l;
    memcpy(host, src, bytes);
    return 0;
}

static int
checksum(struct lane *l, uint64_t *sum, const void *p, size_t bytes)
{
    (void)l, (void)p;
    *sum = bytes;
    return 0;
}

/* What gpu.c has: it would bring the devices with it. */
static const struct gpu_ops ops = {
    .name = "cpu",
    .mem.arena_make = arena_make,
    .mem.arena_drop = arena_drop,
    .mem.host_pin = pin,
    .mem.host_unpin = unpin,
    .lane.open = lane_open,
    .lane.close = lane_close,
    .lane.mark = lane_mark,
    .mem.put = put,
    .mem.get = get,
    .mem.checksum = checksum,
};

const struct gpu_ops *
gpu_ops(const struct gpu *g)
{
    (void)g;
    return &ops;
}

const char *
gpu_why(const struct gpu *g)
{
    return g->why.text;
}

struct gpu_facts
gpu_facts(const struct gpu *g)
{
    (void)g;
    return (struct gpu_facts){ .units = 1, .rank = rank, .ranks = ranks };
}

enum dtype
gpu_act_dtype(const struct gpu *g, enum dtype weights)
{
    (void)g, (void)weights;
    return DT_F32;
}

int
gpu_wait(struct lane *l, uint64_t first, uint64_t last)
{
    (void)l, (void)first, (void)last;
    return 0;
}

/* ---- a checkpoint */

struct made {
    const char *name, *type;
    uint32_t n_dims, dim[6];
    size_t at, bytes; /* in data */
    bool bytes_wanted;
    /* The ref's: what it should be. vector: of that many, perhaps as a row */
    uint32_t want_dims, want[4];
    bool gone, vector;
};

struct ckpt {
    bool fp4;
    uint32_t e, h, f, n;
    struct made t[MOST];
    uint8_t data[MAX_FILE];
    size_t n_data;
};

static void
add(struct ckpt *c, const char *name, const char *type, uint32_t n, uint32_t a, uint32_t b,
    uint32_t d, uint32_t last)
{
    struct made *t = &c->t[c->n++];

    check(c->n <= MOST);
    *t = (struct made){ .name = name,
                        .type = type,
                        .n_dims = n,
                        .dim = { a, b, d, last },
                        .want_dims = n,
                        .want = { a, b, d, last },
                        .bytes_wanted = strcmp(type, "U8") == 0,
                        .vector = n == 1 };
}

#define L "model.layers.0."
#define A L "self_attn."
#define X L "mlp.experts."
static void
begin(struct ckpt *c)
{
    uint32_t q = HEADS * HEAD, h = c->h, f = c->f, e = c->e;
    const char *b = "BF16";

    add(c, "model.embed_tokens.weight", b, 2, VOCAB, h, 0, 0);
    add(c, "model.norm.weight", b, 1, h, 0, 0, 0);
    add(c, "lm_head.weight", b, 2, VOCAB, h, 0, 0);
    add(c, L "input_layernorm.weight", b, 1, h, 0, 0, 0);
    add(c, L "post_attention_layernorm.weight", b, 1, h, 0, 0, 0);
    add(c, A "q_proj.weight", b, 2, q, h, 0, 0);
    add(c, A "k_proj.weight", b, 2, q, h, 0, 0);
    add(c, A "v_proj.weight", b, 2, q, h, 0, 0);
    add(c, A "o_proj.weight", b, 2, h, q, 0, 0);
    add(c, A "q_proj.bias", b, 1, q, 0, 0, 0);
    add(c, A "k_proj.bias", b, 1, q, 0, 0, 0);
    add(c, A "v_proj.bias", b, 1, q, 0, 0, 0);
    add(c, A "o_proj.bias", b, 1, h, 0, 0, 0);
    add(c, A "sinks", b, 1, HEADS, 0, 0, 0);
    add(c, L "mlp.router.weight", b, 2, e, h, 0, 0);
    add(c, L "mlp.router.bias", b, 1, e, 0, 0, 0);
    add(c, X "gate_up_proj_bias", b, 2, e, 2 * f, 0, 0);
    add(c, X "down_proj_bias", b, 2, e, h, 0, 0);
    if (c->fp4) {
        add(c, X "gate_up_proj_blocks", "U8", 4, e, 2 * f, h / 32, 16);
        add(c, X "gate_up_proj_scales", "U8", 3, e, 2 * f, h / 32, 0);
        add(c, X "down_proj_blocks", "U8", 4, e, h, f / 32, 16);
        add(c, X "down_proj_scales", "U8", 3, e, h, f / 32, 0);
    } else {
        add(c, X "gate_up_proj", b, 3, e, h, 2 * f, 0);
        add(c, X "down_proj", b, 3, e, f, h, 0);
    }
}

/* Experts' tensors are edited as often as all others together. */
static void
edit(struct ckpt *c, struct in *in)
{
    static const char *const types[] = { "BF16", "U8", "F32", "F16", "I8", "F8_E4M3", "I64", "U8" };
    uint32_t which = byte(in), what = byte(in), much = byte(in);
    struct made *t = &c->t[which & 128 ? c->n - 1 - which % (c->fp4 ? 4 : 2) : which % c->n];
    uint32_t i = much % t->n_dims, j = (much >> 2) % t->n_dims, dim = t->dim[i];

    switch (what % 8) {
    case 0:
        t->gone = true;
        break;
    case 1:
        t->type = types[much % 8];
        break;
    case 2: /* two dimensions change places */
        t->dim[i] = t->dim[j];
        t->dim[j] = dim;
        break;
    case 3:
        t->dim[i] += much & 64 ? 1 : -1u;
        break;
    case 4: /* the last two become one */
        if (t->n_dims < 2) break;
        t->dim[t->n_dims - 2] *= t->dim[t->n_dims - 1];
        t->n_dims--;
        break;
    case 5: /* one more, of 1, in front or at the end */
        if (t->n_dims >= ARRAY_LEN(t->dim)) break;
        if (much & 1) memmove(t->dim + 1, t->dim, t->n_dims * sizeof *t->dim);
        t->dim[much & 1 ? 0 : t->n_dims] = 1;
        t->n_dims++;
        break;
    case 6: /* half of the one, twice of the other */
        if (dim % 2) break;
        t->dim[i] /= 2;
        t->dim[j] *= 2;
        break;
    default:
        break;
    }
}

static size_t
type_bytes(const char *type)
{
    if (strcmp(type, "I64") == 0) return 8;
    if (strcmp(type, "F32") == 0) return 4;
    return strcmp(type, "BF16") == 0 || strcmp(type, "F16") == 0 ? 2 : 1;
}

/* Whether the file's header is one at all; where each tensor lies. */
static bool
place(struct ckpt *c, struct in *in)
{
    uint32_t how = byte(in);
    size_t align = how & 1 ? 64 : 2; /* whether what lies well is used where it lies */
    const uint8_t *from = in->p;

    ranks = how & 2 ? 2 : 1;
    rank = how & 2 ? how >> 2 & 1 : 0;
    for (uint32_t i = 0; i < c->n; i++) {
        struct made *t = &c->t[i];
        size_t bytes = type_bytes(t->type);

        for (uint32_t d = 0; d < t->n_dims; d++) bytes *= t->dim[d];
        c->n_data = ROUND_UP(c->n_data, align);
        if (c->n_data > MAX_FILE || bytes > MAX_FILE - c->n_data) return false;
        t->at = c->n_data;
        t->bytes = bytes;
        if (!t->gone) c->n_data += bytes;
    }
    for (size_t i = 0; i < c->n_data; i++) {
        if (in->p == in->end) in->p = from;
        /* No NaN, and nothing that rounds: of a 16-bit float the upper byte stays small. */
        c->data[i] = (uint8_t)(byte(in) & 0x3f) ^ (uint8_t)(i % 61);
    }
    return true;
}

/* ---- the ref */

static bool
good(const struct made *t)
{
    static const char *const floats[] = { "BF16", "F16", "F32" };
    uint64_t rest = 1, want = 1;
    bool is_float = false;

    if (t->gone) return false;
    for (size_t i = 0; i < ARRAY_LEN(floats); i++) is_float |= strcmp(t->type, floats[i]) == 0;
    if (t->bytes_wanted ? strcmp(t->type, "U8") != 0 : !is_float) return false;
    if (t->vector) {
        for (uint32_t i = 0; i < t->n_dims; i++) rest *= t->dim[i];
        if (rest != t->want[0]) return false;
        /* One that others may stand below begins with its length; any other is a row. */
        if (strstr(t->name, "q_proj.") || strstr(t->name, "k_proj.") ||
            strstr(t->name, "v_proj.") || strstr(t->name, "sinks"))
            return t->dim[0] == t->want[0];
        return t->n_dims == 1 || t->dim[0] == 1;
    }
    /* All wanted dimensions but the last are equal; the product of the others is the last one. */
    uint32_t fixed = t->want_dims > 2 ? 2 : 1;

    for (uint32_t i = fixed; i < t->n_dims; i++) rest *= t->dim[i];
    for (uint32_t i = fixed; i < t->want_dims; i++) want *= t->want[i];
    for (uint32_t i = 0; i < fixed; i++)
        if (t->n_dims <= i || t->dim[i] != t->want[i]) return false;
    return t->n_dims > fixed && rest == want;
}

static const struct made *
find(const struct ckpt *c, const char *name)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (strcmp(c->t[i].name, name) == 0) return &c->t[i];
    return NULL;
}

/* Compares this rank's rows of every expert, and in each row this rank's columns; a byte has
 * several columns. */
static void
same_bytes(const struct ckpt *c, const void *ours, const char *name, struct span row, uint32_t rows,
           struct span col, uint32_t cols, uint32_t per_byte)
{
    const struct made *t = find(c, name);
    size_t each = col.n / per_byte;

    check(t->bytes == (size_t)c->e * rows * cols / per_byte);
    for (uint32_t e = 0; e < c->e; e++)
        for (uint32_t j = 0; j < row.n; j++)
            check(memcmp((const char *)ours + ((size_t)e * row.n + j) * each,
                         c->data + t->at +
                             (((size_t)e * rows + row.first + j) * cols + col.first) / per_byte,
                         each) == 0);
}

/* Codes and scales, as stored, wherever they lie. */
static void
same_codes(const struct ckpt *c, const struct tensor *w, const char *blocks, const char *scales,
           struct span row, uint32_t rows, struct span col, uint32_t cols)
{
    check(w->dtype == DT_MXFP4 && w->scale_run == 32 && w->scale);
    check(w->dim[0] == c->e * row.n && w->dim[1] == col.n && w->stride == col.n);
    same_bytes(c, w->data, blocks, row, rows, col, cols, 2);
    same_bytes(c, w->scale, scales, row, rows, col, cols, 32);
}

/* One expert's [in, out] after the other has become [out, in]. */
static void
same_turned(const struct ckpt *c, const struct tensor *w, const char *name, struct span row,
            uint32_t rows, struct span col, uint32_t cols)
{
    const struct made *t = find(c, name);
    size_t each = type_bytes(t->type);

    check(w->dim[0] == c->e * row.n && w->dim[1] == col.n && w->stride == col.n && !w->scale);
    check(dtype_bytes(w->dtype, 1) == each);
    for (uint32_t e = 0; e < c->e; e++)
        for (uint32_t j = 0; j < row.n; j++)
            for (uint32_t k = 0; k < col.n; k++)
                check(memcmp((const char *)w->data + each * (((size_t)e * row.n + j) * col.n + k),
                             c->data + t->at +
                                 each * (((size_t)e * cols + col.first + k) * rows + row.first + j),
                             each) == 0);
}

/* The family's layer begins as gpt_oss.c has it; only what experts are is looked at. */
struct layer {
    struct tensor attn_norm, qkv, qkv_bias, sinks, o, o_bias, ff_norm, router, router_bias;
    struct tensor gate_up, gate_up_bias, down, down_bias;
};

static void
examine(const struct ckpt *c, const struct model *m)
{
    const struct layer *l = m->layer;
    uint32_t f = c->f / ranks, q = HEADS * HEAD / ranks;
    struct span gate = { 2 * rank * f, 2 * f }, ff = { rank * f, f }, all = { 0, c->h };

    check(arch_gpt_oss.layer_bytes == sizeof *l && m->shape.n_layers == 1);
    check(l->qkv.dim[0] == 3 * q && l->qkv_bias.dim[0] == 3 * q);
    check(l->qkv_bias.dtype == DT_F32 && l->sinks.dim[0] == HEADS / ranks);
    check(l->gate_up_bias.dim[0] == c->e && l->gate_up_bias.dim[1] == 2 * f);
    if (c->fp4) {
        same_codes(c, &l->gate_up, X "gate_up_proj_blocks", X "gate_up_proj_scales", gate, 2 * c->f,
                   all, c->h);
        same_codes(c, &l->down, X "down_proj_blocks", X "down_proj_scales", all, c->h, ff, c->f);
    } else {
        same_turned(c, &l->gate_up, X "gate_up_proj", gate, 2 * c->f, all, c->h);
        same_turned(c, &l->down, X "down_proj", all, c->h, ff, c->f);
    }
}

/* ---- files */

static char dir[64];

static void
write_file(const char *name, const void *a, size_t n_a, const void *b, size_t n_b)
{
    char path[128];
    int fd;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    check(fd >= 0 && write(fd, a, n_a) == (ssize_t)n_a && write(fd, b, n_b) == (ssize_t)n_b);
    close(fd);
}

static void
remove_all(void)
{
    char path[128];

    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
    rmdir(dir);
}

static void
write_ckpt(const struct ckpt *c)
{
    static char text[8192];
    uint64_t len = 0;
    char head[8192 + 8];

    len = (uint64_t)snprintf(
        text, sizeof text,
        "{\"model_type\":\"gpt_oss\",\"num_hidden_layers\":1,\"hidden_size\":%u,\"vocab_size\":%d,"
        "\"intermediate_size\":%u,\"num_attention_heads\":%d,\"num_key_value_heads\":%d,"
        "\"head_dim\":%d,\"num_local_experts\":%u,\"num_experts_per_tok\":1,"
        "\"max_position_embeddings\":4%s}",
        c->h, VOCAB, c->f, HEADS, HEADS, HEAD, c->e,
        c->fp4 ? ",\"quantization_config\":{\"quant_method\":\"mxfp4\"}" : "");
    write_file("config.json", text, len, "", 0);
    len = 8;
    for (uint32_t i = 0; i < c->n; i++) {
        const struct made *t = &c->t[i];

        if (t->gone) continue;
        len += (uint64_t)snprintf(head + len, sizeof head - len,
                                  "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", len > 8 ? "," : "{",
                                  t->name, t->type);
        for (uint32_t d = 0; d < t->n_dims; d++)
            len += (uint64_t)snprintf(head + len, sizeof head - len, "%s%u", d ? "," : "",
                                      t->dim[d]);
        len += (uint64_t)snprintf(head + len, sizeof head - len, "],\"data_offsets\":[%zu,%zu]}",
                                  t->at, t->at + t->bytes);
        check(len < sizeof head - 200);
    }
    head[len++] = '}';
    while (len % 64)
        head[len++] = ' '; /* so that some tensors lie where they can be used in place */
    len -= 8;
    memcpy(head, &len, 8);
    write_file("model.safetensors", head, len + 8, c->data, c->n_data);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct ckpt c;
    struct in in = { data, data + size };
    uint32_t flags = byte(&in);
    struct model_source src = { .dir = dir, .dtype = DT_COUNT, .weights_fd = -1 };
    struct model *m = NULL;
    struct err e = { 0 };
    bool want = true;
    int code;

    if (!*dir) {
        /* Thousands of files: in memory where there is such a place. */
        snprintf(dir, sizeof dir, "%s/fuzz_mxfp4-XXXXXX",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        check(mkdtemp(dir));
        atexit(remove_all);
    }
    memset(&c, 0, sizeof c);
    c.fp4 = flags & FP4;
    c.e = 1 + (flags >> 1 & 3);
    c.h = 32 * (1 + (flags >> 3 & 1));
    c.f = 32 * (1 + (flags >> 4 & 1));
    begin(&c);
    for (uint32_t i = flags >> 5; i-- > 0 && i < EDITS;) edit(&c, &in);
    if (!place(&c, &in)) return 0;
    for (uint32_t i = 0; i < c.n; i++) want &= good(&c.t[i]);
    if (c.fp4 && c.f / 32 < ranks) want = false; /* a run of codes is one rank's */
    src.rank = rank;
    src.n_ranks = ranks;
    write_ckpt(&c);
    code = model_open(&m, &src, &heap, arch_families, &e);
    check(want == (code == 0));
    check(code == 0 || (code == e.code && *e.text));
    if (code == 0) examine(&c, m);
    model_close(m);
    return 0;
}
