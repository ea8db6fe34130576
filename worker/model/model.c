/* model.c - opens and closes a model (model.h). Order: config, family, token ids, files, weights,
 * tables, so that errors that are cheap to find are found first. */
#include "worker/model/model.h"

#include "base/file.h"
#include "worker/model/config.h"
#include "worker/model/generation.h"
#include "worker/model/host_tables.h"
#include "worker/model/quant.h"
#include "worker/model/safetensors.h"
#include "worker/model/sharding.h"
#include "worker/model/weights_plan.h"

#include <stdio.h>
#include <unistd.h>

#define CONFIG "config.json"

/* Temporary data of model_open(). whole: config.json, [n] bytes; config: its config_text(). */
struct reading {
    char *bytes;
    size_t n;
    json_t *whole, *config, *generation;
    int fd; /* arena of the previous worker */
};

static void
reading_done(struct model *m)
{
    struct reading *r = m->reading;

    if (!r) return;
    free(r->bytes);
    json_decref(r->whole);
    json_decref(r->config);
    json_decref(r->generation);
    if (r->fd >= 0) close(r->fd);
    free(r);
    m->reading = NULL;
}

static int
read_files(struct reading *r, const char *dir, struct err *e)
{
    int code;

    code = file_read(&r->bytes, &r->n, dir, CONFIG, CFG_MAX_BYTES, e);
    if (code == -ENOTDIR || (code == -ENOENT && access(dir, F_OK) == 0))
        return err_set(e, code,
                       "%.100s %s; lagan needs a directory with config.json, tokenizer and "
                       "*.safetensors as on Hugging Face, and reads no GGUF files",
                       dir, code == -ENOENT ? "has no " CONFIG : "is not a directory");
    TRY(code);
    TRY(config_parse(&r->whole, r->bytes, r->n, CONFIG, e));
    code = config_text(&r->config, r->whole, e);
    if (code < 0) return err_while(e, code, CONFIG);
    code = config_read(&r->generation, dir, "generation_config.json", e);
    return code == -ENOENT ? 0 : code;
}

static const struct arch *
family_of(const struct arch *const *families, const char *type)
{
    for (; *families; families++)
        for (const char *const *t = (*families)->hf_types; *t; t++)
            if (strcmp(*t, type) == 0) return *families;
    return NULL;
}

/* Sets m->arch to the family of the text model's model_type, else of the whole model's. */
static int
pick_family(struct model *m, const struct reading *r, const struct arch *const *families,
            struct err *e)
{
    const char *type, *outer;
    char known[160] = "";
    size_t len = 0;

    TRY(cfg_str(r->config, "model_type", NULL, &type, e));
    TRY(cfg_str(r->whole, "model_type", "", &outer, e));
    m->arch = family_of(families, type);
    if (!m->arch) m->arch = family_of(families, outer);
    if (m->arch) return 0;
    for (; *families; families++)
        for (const char *const *t = (*families)->hf_types; *t && len < sizeof known; t++)
            len += (size_t)snprintf(known + len, sizeof known - len, "%s%s", len ? ", " : "", *t);
    return err_set(e, -ENOTSUP, "model_type is \"%.40s\", only %s are implemented", type, known);
}

/* Checks that configure() respected the limits of config.h, because later code may overflow. */
static void
check_shape(const struct model_shape *s)
{
    check(s->n_layers >= 1 && s->n_layers <= MAX_LAYERS && s->n_encoder_layers <= MAX_LAYERS);
    check(s->hidden >= 1 && s->hidden <= CFG_MAX_HIDDEN);
    check(s->vocab >= 1 && s->vocab <= CFG_MAX_VOCAB);
    check(s->max_len >= 1 && s->max_len <= CFG_MAX_POSITIONS);
    check(!s->n_encoder_layers || (s->max_source >= 1 && s->max_source <= CFG_MAX_POSITIONS));
    for (uint32_t i = 0; i < s->n_layers; i++) {
        const struct layer_shape *l = &s->layer[i];

        check(l->kv_from < s->n_layers && l->head_dim <= CFG_MAX_HEAD_DIM);
        check(l->n_heads <= CFG_MAX_HEADS && l->n_kv_heads <= CFG_MAX_HEADS);
    }
}

/* Refuses values of keys that transformers reads for every model and that are not implemented. */
static int
refuse_others(const struct arch *a, const json_t *whole, const json_t *config, struct err *e)
{
    if (!a->by_layer && cfg_state(config, "per_layer_config") == CFG_SET)
        return err_set(e, -ENOTSUP, "per_layer_config is set, which is not implemented for %s",
                       a->name);
    TRY(cfg_want_bool(config, "is_causal", true, e)); /* false: bidirectional attention */
    if (cfg_state(whole, "transformers_weights") == CFG_SET)
        return err_set(e, -ENOTSUP, "transformers_weights is set, which is not implemented");
    return 0;
}

static int
configure(struct model *m, const struct reading *r, const struct arch *const *families,
          struct err *e)
{
    const struct arch *a;

    TRY(pick_family(m, r, families, e));
    a = m->arch;
    TRY(refuse_others(a, r->whole, r->config, e));
    m->cfg = calloc(1, MAX(a->cfg_bytes, (size_t)1));
    m->top = calloc(1, MAX(a->top_bytes, (size_t)1));
    if (!m->cfg || !m->top) return err_set(e, -ENOMEM, "no host memory for the model");
    TRY(quant_configure(m, r->config, e));
    check_shape(&m->shape);
    TRY(sharding_divide(m, e));
    m->layer = calloc(m->shape.n_layers, MAX(a->layer_bytes, (size_t)1));
    m->encoder = calloc(m->shape.n_encoder_layers + 1, MAX(a->encoder_bytes, (size_t)1));
    if (!m->layer || !m->encoder) return err_set(e, -ENOMEM, "no host memory for the model");
    return 0;
}

/* Reads the key dtype of config.json; the default is fp32, as in transformers. */
static int
stated_dtype(const json_t *config, enum dtype *ret, struct err *e)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } names[] = { { "float32", DT_F32 }, { "bfloat16", DT_BF16 }, { "float16", DT_F16 } };
    const char *name;

    TRY(cfg_dtype(config, &name, e));
    *ret = DT_F32;
    if (!name) return 0;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcmp(name, names[i].name) == 0) {
            *ret = names[i].dtype;
            return 0;
        }
    return err_set(e, -ENOTSUP,
                   "dtype is \"%.40s\", only float32, bfloat16 and float16 are implemented", name);
}

/* Opens the checkpoint files unless weights are random. */
static int
find_weights(struct model *m, const struct model_source *src, struct reading *r,
             struct weights_from *ret, struct err *e)
{
    int code;

    *ret = (struct weights_from){
        .src = src, .config = r->bytes, .config_bytes = r->n, .stored = DT_F32, .fd = &r->fd
    };
    if (!src->random) return safetensors_open(&m->files, src->dir, e);
    code = stated_dtype(r->config, &ret->stored, e);
    return code < 0 ? err_while(e, code, CONFIG) : 0;
}

static int
begin(struct model *m, const struct model_source *src, const struct arch *const *families,
      struct err *e)
{
    struct reading *r = m->reading = calloc(1, sizeof *r);
    int code;

    if (!r) return err_set(e, -ENOMEM, "no memory to read the configuration");
    r->fd = -1;
    TRY(read_files(r, src->dir, e));
    code = configure(m, r, families, e);
    if (code < 0) return err_while(e, code, CONFIG);
    if (src->max_len > m->shape.max_len)
        return err_set(e, -EINVAL,
                       "max_model_len is %u, the model has only %u positions (config.json)",
                       src->max_len, m->shape.max_len);
    if (src->max_len) m->shape.max_len = src->max_len;
    TRY(generation_read(m, r->generation, r->whole, r->config, e));
    return m->arch->tables ? m->arch->tables(m, e) : 0;
}

int
model_begin(struct model **ret, const struct model_source *src, const struct arch *const *families,
            struct err *e)
{
    CLEAN(model_close_at) struct model *m = calloc(1, sizeof *m);
    int code;

    check(src->dtype == DT_F32 || src->dtype == DT_BF16 || src->dtype == DT_F16 ||
          src->dtype == DT_COUNT);
    if (!m) return err_set(e, -ENOMEM, "load %.60s: no memory", src->dir);
    m->weights.fd = -1;
    m->rank = src->rank;
    m->ranks = MAX(src->n_ranks, 1u);
    code = begin(m, src, families, e);
    if (code < 0) return err_while(e, code, "load %.60s", src->dir);
    *ret = TAKE(m);
    return 0;
}

static int
end(struct model *m, const struct model_source *src, struct err *e)
{
    struct weights_from from;

    TRY(load_lane_open(m, e));
    TRY(find_weights(m, src, m->reading, &from, e));
    TRY(weights_load(m, &from, e));
    if (m->arch->prepare) TRY(m->arch->prepare(m, e));
    return host_tables_put(m, e);
}

int
model_load(struct model *m, const struct model_source *src, struct gpu *g, struct err *e)
{
    int code;

    check(gpu_facts(g).rank == m->rank && gpu_facts(g).ranks == m->ranks);
    m->gpu = g;
    m->op = gpu_ops(g);
    m->reading->fd = src->weights_fd;
    code = end(m, src, e);
    load_lane_close(m);
    reading_done(m);
    return code < 0 ? err_while(e, code, "load %.60s", src->dir) : 0;
}

int
model_inspect(struct model *m, const struct model_source *src, struct gpu *g, uint64_t *bytes,
              struct err *e)
{
    struct weights_from from;
    int code;

    m->gpu = g;
    m->op = gpu_ops(g);
    code = find_weights(m, src, m->reading, &from, e);
    if (code == 0) code = weights_inspect(m, &from, bytes, e);
    return code < 0 ? err_while(e, code, "load %.60s", src->dir) : 0;
}

int
model_open(struct model **ret, const struct model_source *src, struct gpu *g,
           const struct arch *const *families, struct err *e)
{
    struct model *made = NULL;
    int code = model_begin(&made, src, families, e);
    CLEAN(model_close_at) struct model *m = made;

    if (code < 0) {
        if (src->weights_fd >= 0) close(src->weights_fd);
        return code;
    }
    TRY(model_load(m, src, g, e));
    *ret = TAKE(m);
    return 0;
}

int
model_check(struct model *m, struct err *e)
{
    int r;

    if (!m->weights_checksum) return 0;
    TRY(load_lane_open(m, e));
    r = weights_checksum_again(m, e);
    load_lane_close(m);
    return r;
}

struct model *
model_close(struct model *m)
{
    if (!m) return NULL;
    reading_done(m);
    host_tables_drop(m);
    if (m->weights.base) m->op->mem.arena_drop(m->gpu, &m->weights);
    safetensors_close(m->files);
    free(m->weights_checksum);
    free(m->unused);
    free(m->encoder);
    free(m->layer);
    free(m->top);
    free(m->cfg);
    free(m);
    return NULL;
}
