/* bench_weight_load.c - time to load a checkpoint to the device, and to adopt its arena.
 *
 *     bench_weight_load make DIR [LAYERS]     writes a checkpoint with the shape of Llama 3.1 8B
 *                                             (32 layers: 16 GB)
 *     bench_weight_load DIR [DEVICE]          loads and adopts it
 *
 * The limit of a load is the rate of copies from pinned memory in the same run. The caller decides
 * whether the file is in the page cache. Prints JSON lines (bench/README.md).
 */
#include "base/clock.h"
#include "base/rng.h"
#include "gpu/gpu.h"
#include "worker/arch/registry.h"
#include "worker/model/model.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HIDDEN = 4096, FF = 14336, VOCAB = 128256, KV = 1024, BLOCK = 16 << 20, TIMES = 5 };

static struct err e;

static void
die(const char *what)
{
    fprintf(stderr, "bench_weight_load: %s: %s\n", what, e.text[0] ? e.text : strerror(errno));
    exit(1);
}

/* ---- make ---- */

static FILE *header;
static uint64_t at;

static void
add(const char *name, uint32_t rows, uint32_t cols)
{
    uint64_t bytes = 2 * (uint64_t)rows * cols;

    fprintf(header, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[", at ? "," : "{", name);
    if (rows > 1) fprintf(header, "%u,", rows);
    fprintf(header, "%u],\"data_offsets\":[%llu,%llu]}", cols, (unsigned long long)at,
            (unsigned long long)(at + bytes));
    at += bytes;
}

static void
add_layer(uint32_t l)
{
    static const struct {
        const char *name;
        uint32_t rows, cols;
    } tensor[] = {
        { "input_layernorm", 1, HIDDEN },       { "self_attn.q_proj", HIDDEN, HIDDEN },
        { "self_attn.k_proj", KV, HIDDEN },     { "self_attn.v_proj", KV, HIDDEN },
        { "self_attn.o_proj", HIDDEN, HIDDEN }, { "post_attention_layernorm", 1, HIDDEN },
        { "mlp.gate_proj", FF, HIDDEN },        { "mlp.up_proj", FF, HIDDEN },
        { "mlp.down_proj", HIDDEN, FF },
    };
    char name[128];

    for (unsigned i = 0; i < ARRAY_LEN(tensor); i++) {
        snprintf(name, sizeof name, "model.layers.%u.%s.weight", l, tensor[i].name);
        add(name, tensor[i].rows, tensor[i].cols);
    }
}

static void
put_all(int fd, const void *p, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = write(fd, (const char *)p + done, n - done);

        if (k < 0) die("write");
        done += (size_t)k;
    }
}

/* 16 MiB of different small bf16 values, repeated. */
static void
put_values(int fd)
{
    uint16_t *block = malloc(BLOCK);
    uint64_t state = 1;

    if (!block) die("memory");
    for (size_t i = 0; i < BLOCK / sizeof *block; i++) {
        uint32_t x = rng_next(&state);

        block[i] = (uint16_t)(0x3c00 | x >> 31 << 15 | (x >> 8 & 0xff));
    }
    for (uint64_t left = at; left;) {
        size_t n = (size_t)MIN(left, (uint64_t)BLOCK);

        put_all(fd, block, n);
        left -= n;
    }
    free(block);
}

static int
make(const char *dir, uint32_t layers)
{
    char path[600], *text = NULL;
    size_t len = 0;
    uint64_t padded;
    nsec began = clock_now();
    int fd;
    FILE *config;

    mkdir(dir, 0777);
    snprintf(path, sizeof path, "%s/config.json", dir);
    config = fopen(path, "w");
    if (!config) die(path);
    fprintf(config,
            "{\"model_type\":\"llama\",\"dtype\":\"bfloat16\",\"vocab_size\":%d,\"hidden_size\":%d,"
            "\"intermediate_size\":%d,\"num_hidden_layers\":%u,\"num_attention_heads\":32,"
            "\"num_key_value_heads\":8,\"max_position_embeddings\":131072,\"rope_theta\":500000,"
            "\"tie_word_embeddings\":false,\"rms_norm_eps\":1e-5}\n",
            VOCAB, HIDDEN, FF, layers);
    fclose(config);
    header = open_memstream(&text, &len);
    add("model.embed_tokens.weight", VOCAB, HIDDEN);
    for (uint32_t l = 0; l < layers; l++) add_layer(l);
    add("model.norm.weight", 1, HIDDEN);
    add("lm_head.weight", VOCAB, HIDDEN);
    fputc('}', header);
    for (long n = ftell(header); n % 8; n++) fputc(' ', header);
    fclose(header);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0) die(path);
    padded = len;
    put_all(fd, &padded, sizeof padded);
    put_all(fd, text, len);
    put_values(fd);
    if (fsync(fd) < 0) die("fsync");
    close(fd);
    free(text);
    printf("wrote %.2f GB in %.1f s\n", (double)at / 1e9, (double)(clock_now() - began) / NSEC_S);
    return 0;
}

/* ---- load ---- */

static int
by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void
print_result(const char *what, const char *unit, double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_size);
    printf("{\"bench\":\"weight_load\",\"case\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",\"n\":%d,"
           "\"min\":%.4g,\"median\":%.4g,\"max\":%.4g}\n",
           what, v[n / 2], unit, n, v[0], v[n / 2], v[n - 1]);
    fflush(stdout);
}

/* Copies from pinned memory, as the loader does. */
static void
ceiling(struct gpu *g)
{
    const struct gpu_ops *op = gpu_ops(g);
    struct arena a = { .fd = -1 };
    struct lane *lane;
    double rate[TIMES];
    char *host = mmap(NULL, 4 * BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t step = 0;

    if (host == MAP_FAILED || op->mem.host_pin(g, host, 4 * BLOCK) < 0) die("pinned memory");
    if (op->mem.arena_make(g, "bench", 4 * BLOCK, &a, &e) < 0 ||
        op->lane.open(g, gpu_facts(g).units, &lane, &e))
        die("ceiling");
    for (int i = -1; i < TIMES; i++) {
        nsec began = clock_now();

        for (int k = 0; k < 64; k++)
            if (op->mem.put(lane, (char *)a.base + k % 4 * BLOCK, host + k % 4 * BLOCK, BLOCK))
                die("put");
        if (op->lane.mark(lane, ++step)) die("mark");
        while (op->lane.done(lane) < step && op->lane.error(lane) == 0) usleep(20);
        if (i >= 0) rate[i] = 64.0 * BLOCK / (double)(clock_now() - began);
    }
    op->lane.close(lane);
    op->mem.arena_drop(g, &a);
    op->mem.host_unpin(g, host, 4 * BLOCK);
    munmap(host, 4 * BLOCK);
    print_result("put, pinned, 16 MiB", "GB/s", rate, TIMES);
}

static struct model *
open_timed(struct gpu *g, struct model_source *s, double *seconds)
{
    struct model *m = NULL;
    nsec began = clock_now();

    if (model_open(&m, s, g, arch_families, &e) < 0) die("open");
    *seconds = (double)(clock_now() - began) / NSEC_S;
    return m;
}

/* Closes m and passes its arena to the next model_open(). */
static void
pass_arena(struct model_source *s, struct model *m)
{
    s->weights_fd = dup(m->weights.fd);
    s->weights_bytes = m->weights.bytes;
    memcpy(s->weights_fingerprint, m->fingerprint, sizeof m->fingerprint);
    model_close(m);
}

static int
load(const char *dir, const char *device)
{
    struct model_source s = { .dir = dir, .dtype = DT_COUNT, .weights_fd = -1 };
    struct gpu_options o = { .device = device };
    double v[TIMES], rate[TIMES];
    struct model *m;
    struct gpu *g;

    if (gpu_open(&g, &o, &e) < 0) die("device");
    printf("%s\n", gpu_facts(g).describe);
    ceiling(g);
    for (int i = 0; i < 3; i++) {
        m = open_timed(g, &s, &v[i]);
        rate[i] = (double)m->weight_bytes / v[i] / 1e9;
        if (i < 2) model_close(m);
    }
    print_result("load, all of model_open", "s", v, 3);
    print_result("load rate, all of model_open", "GB/s", rate, 3);
    for (int i = 0; i < TIMES; i++) {
        pass_arena(&s, m);
        m = open_timed(g, &s, &v[i]);
        if (!m->adopted || m->n_rebuilt) die("the arena was not adopted completely");
    }
    print_result("adopt, all of model_open", "s", v, TIMES);
    model_close(m);
    gpu_close(g);
    return 0;
}

int
main(int argc, char **argv)
{
    if (argc >= 3 && !strcmp(argv[1], "make"))
        return make(argv[2], argc > 3 ? (uint32_t)atoi(argv[3]) : 32);
    if (argc >= 2) return load(argv[1], argc > 2 ? argv[2] : "cpu");
    fprintf(stderr, "usage: bench_weight_load make DIR [LAYERS] | DIR [DEVICE]\n");
    return 2;
}
