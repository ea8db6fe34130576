/* test_weights.c - checkpoints of a toy family: every flag of a weight table, every memory
 * layout. */
#include "gpu/device.h"
#include "gpu/fp.h"
#include "tests/model/tiny_model.h"
#include "tests/test.h"
#include "worker/model/weights.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

static struct err e;

static struct model_source
source(const struct ckpt *c)
{
    return (struct model_source){ .dir = c->dir, .dtype = DT_COUNT, .weights_fd = -1 };
}

static struct model *
opened(const struct model_source *s)
{
    struct model *m = NULL;

    if (model_open(&m, s, toy_gpu, toy_families, &e) < 0) fail_msg("%s", e.text);
    return m;
}

static void
refused(const struct ckpt *c, int code, const char *sentence)
{
    struct model_source s = source(c);
    struct model *m = NULL;
    int r = model_open(&m, &s, toy_gpu, toy_families, &e);
    char want[256];

    snprintf(want, sizeof want, "load %.60s: %s", c->dir, sentence);
    assert_string_equal(r < 0 ? e.text : "it was opened", want);
    assert_int_equal(r, code);
}

/* The complete toy family in bf16, as a single file. */
static struct model_source
whole_ckpt(struct ckpt *c)
{
    ckpt_open(c);
    toy_config(c, "");
    toy_add(c, "", "BF16", "BF16", NULL);
    ckpt_write(c, "model.safetensors", 8);
    return source(c);
}

static float
element(struct tensor t, uint32_t row, uint32_t col)
{
    size_t i = (size_t)row * t.stride + col;
    uint16_t half = t.dtype == DT_F32 ? 0 : ((const uint16_t *)t.data)[i];

    if (t.dtype == DT_F32) return ((const float *)t.data)[i];
    return t.dtype == DT_BF16 ? float_of_bf16(half) : float_of_f16(half);
}

/* Checks that rows [first, first + rows) of t equal the named tensor. */
static void
holds(struct tensor t, uint32_t first, uint32_t rows, const char *name)
{
    assert_non_null(t.data);
    assert_int_equal(t.stride, t.dim[1]);
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t j = 0; j < t.dim[1]; j++)
            if (element(t, first + i, j) != ckpt_value(name, (size_t)i * t.dim[1] + j))
                fail_msg("%s[%u, %u] is %g", name, i, j, (double)element(t, first + i, j));
}

static void
holds_all(const struct model *m, enum dtype dtype)
{
    const struct toy *t = m->top;
    const struct toy_layer *l = m->layer;

    holds(t->embed, 0, TOY_VOCAB, "embed.weight");
    holds(t->norm, 0, 1, "norm.weight");
    assert_int_equal(t->embed.dtype, dtype);
    assert_int_equal(t->norm.dtype, DT_F32);
    assert_int_equal(t->norm.dim[0], 1);
    for (unsigned i = 0; i < TOY_LAYERS; i++) {
        char name[32];

        assert_int_equal(l[i].qkv.dtype, dtype);
        assert_int_equal(l[i].qkv.dim[0], 4 * TOY_KV);
        snprintf(name, sizeof name, "layers.%u.q", i);
        holds(l[i].qkv, 0, 2 * TOY_KV, name);
        snprintf(name, sizeof name, "layers.%u.k", i);
        holds(l[i].qkv, 2 * TOY_KV, TOY_KV, name);
        snprintf(name, sizeof name, "layers.%u.v", i);
        holds(l[i].qkv, 3 * TOY_KV, TOY_KV, name);
        snprintf(name, sizeof name, "layers.%u.norm", i);
        holds(l[i].norm, 0, 1, name);
        assert_int_equal(l[i].norm.dtype, DT_F32);
    }
}

static bool
in_arena(const struct model *m, struct tensor t)
{
    const char *base = m->weights.base, *at = t.data;

    return base && at >= base && at < base + m->weights.bytes;
}

static void
flags_decide_stacking_and_place_of_lines(void **state)
{
    struct model_source s;
    struct toy_layer *l;
    struct model *m;
    struct toy *t;
    struct ckpt c;

    (void)state;
    s = whole_ckpt(&c);
    m = opened(&s);
    t = m->top;
    l = m->layer;
    holds_all(m, DT_BF16);
    holds(l[0].wide, 0, TOY_HIDDEN, "layers.0.wide");
    holds(l[1].local, 0, TOY_HIDDEN, "layers.1.local");
    holds(l[0].first, 0, 1, "layers.0.first");
    assert_null(l[1].wide.data);
    assert_null(l[0].local.data);
    assert_null(l[1].first.data);
    assert_null(l[0].gated.data);                  /* 0 rows: the line does not apply */
    assert_null(t->extra.data);                    /* W_OPTIONAL and absent */
    assert_ptr_equal(t->head.data, t->embed.data); /* W_TIED and absent */
    assert_int_equal(m->n_unused, 0);
    assert_true(toy_prepared);
    model_close(m);
    ckpt_close(&c);
}

static void
optional_tensors_are_used_if_present(void **state)
{
    struct model_source s;
    struct model *m;
    struct toy *t;
    struct ckpt c;

    (void)state;
    ckpt_open(&c);
    toy_config(&c, ",\"gated\":4");
    toy_add(&c, "", "F32", "F32", NULL);
    ckpt_add(&c, "head.weight", "F32", TOY_VOCAB, TOY_HIDDEN);
    ckpt_add(&c, "extra.weight", "F32", TOY_HIDDEN, TOY_HIDDEN);
    for (unsigned i = 0; i < TOY_LAYERS; i++) {
        char name[32];

        snprintf(name, sizeof name, "layers.%u.gated", i);
        ckpt_add(&c, name, "F32", 4, TOY_HIDDEN);
    }
    ckpt_write(&c, "model.safetensors", 8);
    s = source(&c);
    m = opened(&s);
    t = m->top;
    holds(t->head, 0, TOY_VOCAB, "head.weight");
    holds(t->extra, 0, TOY_HIDDEN, "extra.weight");
    holds(((struct toy_layer *)m->layer)[2].gated, 0, 4, "layers.2.gated");
    model_close(m);
    ckpt_close(&c);
}

static void
name_prefixes_are_tried_for_every_tensor(void **state)
{
    struct model_source s;
    struct model *m;
    struct ckpt c;

    (void)state;
    ckpt_open(&c);
    toy_config(&c, "");
    toy_add(&c, "model.", "F32", "F32", NULL);
    ckpt_write(&c, "model.safetensors", 8);
    s = source(&c);
    m = opened(&s);
    assert_true(element(((struct toy *)m->top)->embed, 1, 2) ==
                ckpt_value("model.embed.weight", TOY_HIDDEN + 2));
    model_close(m);
    ckpt_close(&c);
}

static void
error_names_a_missing_tensor(void **state)
{
    struct ckpt c;

    (void)state;
    ckpt_open(&c);
    toy_config(&c, "");
    toy_add(&c, "", "BF16", "BF16", "layers.2.k");
    ckpt_write(&c, "model.safetensors", 8);
    refused(&c, -ENOENT, "tensor layers.2.k is not in the checkpoint");
    toy_add(&c, "", "BF16", "BF16", "layers.0.first");
    ckpt_write(&c, "model.safetensors", 8);
    refused(&c, -ENOENT, "tensor layers.0.first is not in the checkpoint");
    ckpt_close(&c);
}

static void
missing_head_is_the_embedding_only_if_config_ties_them(void **state)
{
    struct ckpt c;

    (void)state;
    ckpt_open(&c);
    toy_config(&c, ",\"tie_word_embeddings\":false");
    toy_add(&c, "", "BF16", "BF16", NULL);
    ckpt_write(&c, "model.safetensors", 8);
    refused(&c, -ENOENT,
            "tensor head.weight is not in the checkpoint; it is needed unless tie_word_embeddings "
            "is true");
    ckpt_close(&c);
}

static void
error_of_a_wrong_shape_names_both_shapes(void **state)
{
    struct ckpt c;

    (void)state;
    ckpt_open(&c);
    toy_config(&c, "");
    toy_add(&c, "", "BF16", "BF16", "layers.1.q");
    ckpt_add(&c, "layers.1.q", "BF16", TOY_HIDDEN, 16);
    ckpt_write(&c, "model.safetensors", 8);
    refused(&c, -EINVAL,
            "model.safetensors: the shape of layers.1.q is [32, 16]; config.json needs [32, 32]");
    toy_add(&c, "", "BF16", "BF16", "norm.weight");
    ckpt_add(&c, "norm.weight", "BF16", 0, TOY_HIDDEN + 1);
    ckpt_write(&c, "model.safetensors", 8);
    refused(&c, -EINVAL,
            "model.safetensors: the shape of norm.weight is [33]; config.json needs [32]");
    toy_add(&c, "", "BF16", "BF16", "norm.weight");
    ckpt_add(&c, "norm.weight", "BF16", 2, TOY_HIDDEN / 2);
    ckpt_write(&c, "model.safetensors", 8);
    refused(&c, -EINVAL,
            "model.safetensors: the shape of norm.weight is [2, 16]; config.json needs [32]");
    ckpt_close(&c);
}

static void
vector_may_be_stored_as_one_row(void **state)
{
    struct model_source s;
    struct model *m;
    struct ckpt c;

    (void)state;
    ckpt_open(&c);
    toy_config(&c, "");
    toy_add(&c, "", "BF16", "BF16", "norm.weight");
    ckpt_add(&c, "norm.weight", "BF16", 1, TOY_HIDDEN);
    ckpt_write(&c, "model.safetensors", 8);
    s = source(&c);
    m = opened(&s);
    holds_all(m, DT_BF16);
    model_close(m);
    ckpt_close(&c);
}

static void
unsupported_stored_dtype_is_refused_by_name(void **state)
{
    static const char head[] = "{\"embed.weight\":{\"dtype\":\"I8\",\"shape\":[48,32],"
                               "\"data_offsets\":[0,1536]}}";
    struct ckpt c;
    uint8_t *raw;
    size_t n;

    (void)state;
    ckpt_open(&c);
    toy_config(&c, "");
    raw = ckpt_raw(head, 1536, &n);
    ckpt_bytes(&c, "model.safetensors", raw, n);
    free(raw);
    refused(&c, -ENOTSUP, "model.safetensors: embed.weight has dtype I8, which is not implemented");
    ckpt_close(&c);
}

static void
aligned_tensors_are_used_in_place(void **state)
{
    struct model_source s;
    struct model *m;
    struct toy *t;
    struct ckpt c;

    (void)state;
    ckpt_open(&c);
    toy_config(&c, "");
    toy_add(&c, "", "F32", "F32", NULL);
    ckpt_write(&c, "model.safetensors", 0);
    s = source(&c);
    m = opened(&s);
    t = m->top;
    holds_all(m, DT_F32);
    assert_ptr_equal(t->embed.data, safetensors_find(m->files, "embed.weight")->data);
    assert_ptr_equal(t->norm.data, safetensors_find(m->files, "norm.weight")->data);
    assert_true(in_arena(m, ((struct toy_layer *)m->layer)->qkv)); /* stacked */
    model_close(m);

    /* The same data 8 bytes later: every field is in the arena, 128-byte aligned. */
    toy_add(&c, "", "F32", "F32", NULL);
    ckpt_write(&c, "model.safetensors", 8);
    m = opened(&s);
    t = m->top;
    holds_all(m, DT_F32);
    assert_true(in_arena(m, t->embed) && in_arena(m, t->norm));
    for (unsigned i = 0; i < TOY_LAYERS; i++)
        assert_int_equal((uintptr_t)((struct toy_layer *)m->layer)[i].norm.data % 128, 0);
    model_close(m);
    ckpt_close(&c);
}

static void
weights_are_converted_to_the_dtype_option(void **state)
{
    static const char *const stored[] = { "F32", "BF16", "F16" };
    static const enum dtype want[] = { DT_F32, DT_BF16, DT_F16 };
    struct ckpt c;

    (void)state;
    ckpt_open(&c);
    toy_config(&c, "");
    for (size_t i = 0; i < 3; i++)
        for (size_t j = 0; j < 3; j++) {
            struct model_source s = source(&c);
            struct model *m;

            s.dtype = want[j];
            toy_add(&c, "", stored[i], stored[2 - i], NULL);
            ckpt_write(&c, "model.safetensors", 8 * i);
            m = opened(&s);
            holds_all(m, want[j]);
            model_close(m);
        }
    ckpt_close(&c);
}

static void
parts_with_different_dtypes_become_fp32(void **state)
{
    struct model_source s;
    struct toy_layer *l;
    struct model *m;
    struct ckpt c;

    (void)state;
    ckpt_open(&c);
    toy_config(&c, "");
    toy_add(&c, "", "BF16", "F32", "layers.1.k");
    ckpt_add(&c, "layers.1.k", "F16", TOY_KV, TOY_HIDDEN);
    ckpt_write(&c, "model.safetensors", 8);
    s = source(&c);
    m = opened(&s);
    l = m->layer;
    assert_int_equal(l[0].qkv.dtype, DT_BF16);
    assert_int_equal(l[1].qkv.dtype, DT_F32);
    holds(l[1].qkv, 2 * TOY_KV, TOY_KV, "layers.1.k");
    holds(l[1].qkv, 3 * TOY_KV, TOY_KV, "layers.1.v");
    model_close(m);
    ckpt_close(&c);
}

/* On a GPU all matrices have the dtype of activations; the CPU converts while reading. */
static void
gpu_matrices_have_the_dtype_of_the_first(void **state)
{
    const char *const cpu = toy_gpu->checked.name;

    (void)state;
    for (int other = 0; other < 2; other++) {
        struct model_source s;
        struct toy_layer *l;
        struct model *m;
        struct ckpt c;

        toy_gpu->checked.name = other ? "not the cpu" : cpu;
        ckpt_open(&c);
        toy_config(&c, "");
        toy_add(&c, "", "BF16", "F16", "layers.1.k");
        ckpt_add(&c, "layers.1.k", "F16", TOY_KV, TOY_HIDDEN);
        ckpt_add(&c, "extra.weight", "F32", TOY_HIDDEN, TOY_HIDDEN);
        ckpt_write(&c, "model.safetensors", 0);
        s = source(&c);
        m = opened(&s);
        l = m->layer;
        assert_int_equal(m->dtype, DT_BF16);
        assert_int_equal(l[1].qkv.dtype, other ? DT_BF16 : DT_F32);
        assert_int_equal(((struct toy *)m->top)->extra.dtype, other ? DT_BF16 : DT_F32);
        assert_int_equal(l[1].norm.dtype, DT_F32);
        holds(((struct toy *)m->top)->extra, 0, TOY_HIDDEN, "extra.weight");
        if (other) { /* no tensor is used in place */
            const char *first = m->weights.base, *embed = ((struct toy *)m->top)->embed.data;

            assert_true(embed >= first && embed < first + m->weights.bytes);
        }
        model_close(m);
        ckpt_close(&c);
    }
    toy_gpu->checked.name = cpu;
}

static void
value_out_of_range_for_fp16_is_an_error(void **state)
{
    static const float big[] = { 1, 65520, -3 };
    static const float most[] = { 65519, INFINITY, -INFINITY };
    uint16_t half[3];
    float back[3];

    (void)state;
    assert_int_equal(weights_convert(half, DT_F16, big, DT_F32, 3), -ERANGE);
    assert_int_equal(weights_convert(half, DT_F16, most, DT_F32, 3), 0);
    assert_int_equal(weights_convert(back, DT_F32, half, DT_F16, 3), 0);
    assert_true(back[0] == 65504 && isinf(back[1]) && back[2] == -INFINITY);
    assert_int_equal(weights_convert(half, DT_BF16, big, DT_F32, 3), 0);
}

static void
unused_tensors_are_listed_unless_known(void **state)
{
    struct model_source s;
    struct model *m;
    struct ckpt c;

    (void)state;
    ckpt_open(&c);
    toy_config(&c, "");
    toy_add(&c, "", "BF16", "BF16", NULL);
    ckpt_add(&c, "layers.3.q", "BF16", 4, 4);
    ckpt_add(&c, "model.layers.0.self_attn.rotary_emb.inv_freq", "F32", 0, 8);
    ckpt_add(&c, "vision_tower.patch.weight", "BF16", 4, 4);
    ckpt_add(&c, "layers.0.local", "BF16", TOY_HIDDEN, TOY_HIDDEN);
    ckpt_write(&c, "model.safetensors", 8);
    s = source(&c);
    m = opened(&s);
    assert_int_equal(m->n_unused, 2);
    assert_string_equal(m->unused[0], "layers.0.local");
    assert_string_equal(m->unused[1], "layers.3.q");
    assert_int_equal(m->n_other, 1);
    assert_string_equal(m->other, "vision_tower.patch.weight");
    model_close(m);
    ckpt_close(&c);
}

/* The name alone once made it a copy, so a separately trained head was ignored. */
static void
tied_head_that_differs_from_the_embedding_is_refused(void **state)
{
    enum { BYTES = 2 * TOY_VOCAB * TOY_HIDDEN };
    static const char *const names[] = { "lm_head.weight", "model.encoder.embed_tokens.weight" };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        for (int same = 0; same < 2; same++) {
            char sentence[256];
            struct model_source s;
            struct ckpt c;

            ckpt_open(&c);
            toy_config(&c, "");
            toy_add(&c, "", "BF16", "BF16", NULL);
            ckpt_add(&c, names[i], "BF16", TOY_VOCAB, TOY_HIDDEN);
            if (same) memcpy(c.data + c.n - BYTES, c.data, BYTES);
            ckpt_write(&c, "model.safetensors", 8);
            s = source(&c);
            snprintf(sentence, sizeof sentence,
                     "model.safetensors: tensors %s and embed.weight differ, but this model uses "
                     "the same weights for both",
                     names[i]);
            if (same)
                model_close(opened(&s));
            else
                refused(&c, -ENOTSUP, sentence);
            ckpt_close(&c);
        }
}

struct progress {
    uint64_t done, total;
    unsigned n;
};

static void
record_progress(void *arg, uint64_t done, uint64_t total)
{
    struct progress *t = arg;

    assert_true(done > t->done && done <= total);
    *t = (struct progress){ done, total, t->n + 1 };
}

static void
progress_ends_at_the_total(void **state)
{
    struct model_source s;
    struct progress progress = { 0 };
    struct model *m;
    struct ckpt c;

    (void)state;
    s = whole_ckpt(&c);
    s.progress = record_progress;
    s.arg = &progress;
    m = opened(&s);
    assert_true(progress.n >= 1 && progress.done == progress.total);
    assert_true(progress.total <= m->weights.bytes);
    model_close(m);
    ckpt_close(&c);
}

static void
previous_workers_arena_is_adopted_without_copies(void **state)
{
    struct progress progress = { 0 };
    struct model_source s;
    struct model *a, *b;
    struct ckpt c;

    (void)state;
    s = whole_ckpt(&c);
    a = opened(&s);
    assert_false(a->adopted);
    s.weights_fd = dup(a->weights.fd);
    s.weights_bytes = a->weights.bytes;
    memcpy(s.weights_fingerprint, a->fingerprint, sizeof a->fingerprint);
    s.progress = record_progress;
    s.arg = &progress;
    model_close(a);
    b = opened(&s);
    assert_true(b->adopted);
    assert_int_equal(progress.n, 0);
    assert_int_equal(b->n_rebuilt, 0);
    holds_all(b, DT_BF16);
    assert_true(toy_prepared);
    model_close(b);
    assert_int_equal(fcntl(s.weights_fd, F_GETFD), -1); /* closed with the model */
    ckpt_close(&c);
}

/* Opens with a's arena after overwriting n bytes at each offset. */
static struct model *
adopted_after_damage(struct model_source s, struct model *a, const size_t *at, unsigned n)
{
    struct model *b;

    for (unsigned i = 0; i < n; i++) ((uint8_t *)a->weights.base)[at[i]] ^= 0x10;
    s.weights_fd = dup(a->weights.fd);
    s.weights_bytes = a->weights.bytes;
    memcpy(s.weights_fingerprint, a->fingerprint, sizeof a->fingerprint);
    b = opened(&s);
    assert_true(b->adopted);
    return b;
}

static size_t
place_of(const struct model *m, struct tensor t)
{
    return (size_t)((char *)t.data - (char *)m->weights.base);
}

static void
only_damaged_tensors_of_an_adopted_arena_are_rebuilt(void **state)
{
    for (int random = 0; random < 2; random++) {
        struct progress progress = { 0 };
        struct model_source s;
        struct model *a, *b;
        struct toy_layer *l;
        struct toy *t;
        struct ckpt c;
        uint8_t *before;

        (void)state;
        s = whole_ckpt(&c);
        s.random = random;
        a = opened(&s);
        before = malloc(a->weights.bytes);
        memcpy(before, a->weights.base, a->weights.bytes);
        t = a->top;
        l = a->layer;
        s.progress = record_progress;
        s.arg = &progress;

        b = adopted_after_damage(s, a,
                                 (size_t[]){ place_of(a, t->embed) + 7, place_of(a, l[1].qkv),
                                             place_of(a, l[1].qkv) + 100 },
                                 3);
        assert_int_equal(b->n_rebuilt, 2);
        assert_int_equal(progress.total,
                         dtype_bytes(t->embed.dtype, (TOY_VOCAB + 4 * TOY_KV) * TOY_HIDDEN));
        assert_int_equal(progress.done, progress.total);
        assert_memory_equal(
            b->weights.base, before,
            place_of(a, l[2].wide)); /* not the checksum table, which the check updates */
        if (!random) holds_all(b, DT_BF16);
        model_close(b);

        /* The checksum table itself is damaged: every field is rebuilt. */
        progress = (struct progress){ 0 };
        b = adopted_after_damage(s, a, (size_t[]){ a->weights.bytes - ROUND_UP(32u, 128u) - 512 },
                                 1);
        assert_true(b->n_rebuilt >= 1);
        if (!random) holds_all(b, DT_BF16);
        model_close(b);

        /* Rebuilt, with valid checksums. */
        b = adopted_after_damage(s, a, NULL, 0);
        assert_int_equal(b->n_rebuilt, 0);
        model_close(b);
        model_close(a);
        free(before);
        ckpt_close(&c);
    }
}

static void
open_model_detects_changed_weights(void **state)
{
    struct model_source s;
    struct model *a, *b;
    struct toy_layer *l;
    struct ckpt c;

    (void)state;
    s = whole_ckpt(&c);
    a = opened(&s);
    assert_int_equal(model_check(a, &e), 0);
    l = a->layer;
    b = adopted_after_damage(s, a, NULL, 0);
    ((uint8_t *)a->weights.base)[place_of(a, l[1].qkv) + 3] ^=
        0x10; /* written by one, seen by the other */
    assert_int_equal(model_check(b, &e), 1);
    assert_int_equal(model_check(a, &e), 1);
    ((uint8_t *)a->weights.base)[place_of(a, l[1].qkv) + 3] ^= 0x10;
    assert_int_equal(model_check(b, &e), 0);
    /* The table in the arena may be damaged too and is not used. */
    memset((uint8_t *)a->weights.base + a->weights_checksum_at, 0,
           a->weights.bytes - a->weights_checksum_at);
    ((uint8_t *)a->weights.base)[place_of(a, l[2].wide)] ^= 1;
    assert_int_equal(model_check(b, &e), 1);
    model_close(b);
    model_close(a);
    ckpt_close(&c);
}

static void
incomplete_arena_is_filled_again(void **state)
{
    struct model_source s;
    struct model *a, *b;
    struct ckpt c;
    uint64_t *word;

    (void)state;
    s = whole_ckpt(&c);
    a = opened(&s);
    for (word = a->weights.base; *word != UINT64_C(0x6c616573676c); word++) {
    }
    assert_int_equal(word[2], 1); /* complete: weights_checksum.c */
    word[2] = 0;
    b = adopted_after_damage(s, a, NULL, 0);
    assert_true(b->n_rebuilt > 10);
    assert_int_equal(word[2], 1);
    holds_all(b, DT_BF16);
    model_close(b);
    model_close(a);
    ckpt_close(&c);
}

/* Opens with a's arena; true if adopted. The fd is always consumed. */
static bool
adopts(struct model_source s, const struct model *a)
{
    struct model *b;
    bool adopted;

    s.weights_fd = dup(a->weights.fd);
    s.weights_bytes = a->weights.bytes;
    memcpy(s.weights_fingerprint, a->fingerprint, sizeof a->fingerprint);
    b = opened(&s);
    adopted = b->adopted;
    if (!adopted && s.dtype == DT_COUNT && !s.random) holds_all(b, DT_BF16);
    model_close(b);
    assert_int_equal(fcntl(s.weights_fd, F_GETFD), -1);
    return adopted;
}

static void
arena_of_another_checkpoint_is_not_adopted(void **state)
{
    struct model_source s, other;
    struct model *a, *b;
    struct ckpt c;
    uint64_t before[2];

    (void)state;
    s = whole_ckpt(&c);
    a = opened(&s);
    assert_true(adopts(s, a));
    other = s;
    other.dtype = DT_F16; /* same size */
    assert_false(adopts(other, a));
    a->weights.bytes -= 128; /* another size */
    assert_false(adopts(s, a));
    a->weights.bytes += 128;

    memcpy(before, a->fingerprint, sizeof before);
    toy_config(&c, ",\"eos_token_id\":1");
    assert_false(adopts(s, a));
    toy_config(&c, "");
    assert_true(adopts(s, a));

    /* One value differs; header and size are equal. */
    toy_add(&c, "", "BF16", "BF16", NULL);
    c.data[77] ^= 1;
    ckpt_write(&c, "model.safetensors", 8);
    b = opened(&s);
    assert_true(memcmp(before, b->fingerprint, sizeof before) != 0);
    assert_false(b->adopted);
    model_close(b);
    model_close(a);
    ckpt_close(&c);
}

static void
copied_checkpoint_has_the_same_fingerprint(void **state)
{
    struct model *m[2];
    struct ckpt c[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct model_source s = whole_ckpt(&c[i]);

        m[i] = opened(&s);
    }
    assert_memory_equal(m[0]->fingerprint, m[1]->fingerprint, sizeof m[0]->fingerprint);
    for (int i = 0; i < 2; i++) {
        model_close(m[i]);
        ckpt_close(&c[i]);
    }
}

/* The arena with random weights of that seed. */
static struct model *
random_model(struct ckpt *c, uint64_t seed)
{
    struct model_source s = source(c);

    s.random = true;
    s.seed = seed;
    return opened(&s);
}

static void
random_weights_depend_on_config_and_seed_only(void **state)
{
    struct model *a, *b, *other;
    struct toy *t;
    struct ckpt c;
    double sum = 0, squares = 0;
    uint32_t n = TOY_VOCAB * TOY_HIDDEN;

    (void)state;
    ckpt_open(&c);
    toy_config(&c, ",\"dtype\":\"bfloat16\",\"tie_word_embeddings\":false");
    a = random_model(&c, 7);
    b = random_model(&c, 7);
    other = random_model(&c, 8);
    assert_int_equal(a->weights.bytes, b->weights.bytes);
    assert_memory_equal(a->weights.base, b->weights.base, a->weights.bytes);
    assert_memory_equal(a->fingerprint, b->fingerprint, sizeof a->fingerprint);
    assert_true(memcmp(a->weights.base, other->weights.base, a->weights.bytes) != 0);
    assert_true(memcmp(a->fingerprint, other->fingerprint, sizeof a->fingerprint) != 0);

    t = a->top;
    assert_int_equal(t->embed.dtype, DT_BF16);
    assert_int_equal(t->norm.dtype, DT_F32);
    assert_true(t->head.data && t->head.data != t->embed.data);
    /* Each tensor has its own seed. */
    assert_true(memcmp(t->head.data, t->embed.data, 64) != 0);
    for (uint32_t i = 0; i < n; i++) {
        double x = (double)element(t->embed, i / TOY_HIDDEN, i % TOY_HIDDEN);

        sum += x;
        squares += x * x;
    }
    assert_true(fabs(sum / n) < 0.002);
    assert_true(fabs(sqrt(squares / n) - 0.02) < 0.002);
    model_close(a);
    model_close(b);
    model_close(other);

    toy_config(&c, ",\"dtype\":\"bfloat16\"");
    a = random_model(&c, 7);
    t = a->top;
    assert_ptr_equal(t->head.data, t->embed.data); /* tied by default */
    model_close(a);
    ckpt_close(&c);
}

static void
arena_of_random_weights_is_adopted(void **state)
{
    struct model_source s;
    struct model *a;
    struct ckpt c;

    (void)state;
    ckpt_open(&c);
    toy_config(&c, "");
    s = source(&c);
    s.random = true;
    s.seed = 3;
    a = opened(&s);
    assert_true(adopts(s, a));
    s.seed = 4;
    assert_false(adopts(s, a));
    model_close(a);
    ckpt_close(&c);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flags_decide_stacking_and_place_of_lines),
        cmocka_unit_test(optional_tensors_are_used_if_present),
        cmocka_unit_test(name_prefixes_are_tried_for_every_tensor),
        cmocka_unit_test(error_names_a_missing_tensor),
        cmocka_unit_test(missing_head_is_the_embedding_only_if_config_ties_them),
        cmocka_unit_test(error_of_a_wrong_shape_names_both_shapes),
        cmocka_unit_test(vector_may_be_stored_as_one_row),
        cmocka_unit_test(unsupported_stored_dtype_is_refused_by_name),
        cmocka_unit_test(aligned_tensors_are_used_in_place),
        cmocka_unit_test(weights_are_converted_to_the_dtype_option),
        cmocka_unit_test(parts_with_different_dtypes_become_fp32),
        cmocka_unit_test(gpu_matrices_have_the_dtype_of_the_first),
        cmocka_unit_test(value_out_of_range_for_fp16_is_an_error),
        cmocka_unit_test(unused_tensors_are_listed_unless_known),
        cmocka_unit_test(tied_head_that_differs_from_the_embedding_is_refused),
        cmocka_unit_test(progress_ends_at_the_total),
        cmocka_unit_test(previous_workers_arena_is_adopted_without_copies),
        cmocka_unit_test(only_damaged_tensors_of_an_adopted_arena_are_rebuilt),
        cmocka_unit_test(open_model_detects_changed_weights),
        cmocka_unit_test(incomplete_arena_is_filled_again),
        cmocka_unit_test(arena_of_another_checkpoint_is_not_adopted),
        cmocka_unit_test(copied_checkpoint_has_the_same_fingerprint),
        cmocka_unit_test(random_weights_depend_on_config_and_seed_only),
        cmocka_unit_test(arena_of_random_weights_is_adopted),
    };

    return cmocka_run_group_tests(tests, toy_open_gpu, toy_close_gpu);
}
