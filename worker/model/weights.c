/* weights.c - implements weights.h: adopts or fills the arena, then sets the model's tensors. */
#include "worker/model/weights.h"

#include "worker/model/weights_plan.h"

#include <fnmatch.h>

/* Adopts the previous worker's arena if its size and fingerprint match. */
static bool
adopt_arena(const struct weights_plan *p)
{
    const struct model_source *src = p->from->src;
    struct model *m = p->m;

    if (*p->from->fd < 0 || src->weights_bytes != p->arena_bytes ||
        memcmp(src->weights_fingerprint, m->fingerprint, sizeof m->fingerprint) != 0)
        return false;
    if (m->op->mem.arena_adopt(m->gpu, *p->from->fd, p->arena_bytes, &m->weights, NULL) < 0)
        return false;
    *p->from->fd = -1;
    return true;
}

static int
make_arena(struct weights_plan *p, struct err *e)
{
    struct model *m = p->m;

    TRY(m->op->mem.arena_make(m->gpu, "weights", p->arena_bytes, &m->weights, e));
    for (uint32_t i = 0; i < p->n_fields; i++) p->field[i].stale = p->field[i].bytes > 0;
    TRY(weights_checksum_begin(p, e));
    TRY(weights_fill(p, e));
    return weights_checksum_end(p, e);
}

/* Rebuilds the fields of an adopted arena that have wrong checksums. */
static int
rebuild_damaged(struct weights_plan *p, struct err *e)
{
    int n = weights_checksum_check(p, e);

    if (n <= 0) return n;
    p->m->n_rebuilt = (uint32_t)n;
    if (p->table_bad) TRY(weights_checksum_begin(p, e));
    TRY(weights_fill(p, e));
    return weights_checksum_end(p, e);
}

static void
set_tensors(const struct weights_plan *p)
{
    for (uint32_t i = 0; i < p->n_fields; i++) {
        const struct field *f = &p->field[i];
        void *data = f->in_place ? (void *)(uintptr_t)part_data(&p->part[f->first])
                                 : (char *)p->m->weights.base + f->offset;

        const struct quant_tensor *q = f->n_parts ? p->part[f->first].quant : NULL;

        if (q && q->is_scale) { /* scales of the matrix that the previous field has set */
            f->to->scale = data;
            f->to->scale_run = p->m->quant->run;
        } else if (q)
            *f->to = tensor_2d(data, p->m->quant->dtype, f->rows, q->cols_per_byte * f->cols);
        else /* n_parts 0: tied to the embedding, the first field, which is already set. */
            *f->to = f->n_parts ? tensor_2d(data, f->dtype, f->rows, f->cols) : *p->field[0].to;
    }
}

/* Name patterns of the tensors of a multimodal checkpoint outside of its language model, without
 * the prefix "model." that some checkpoints have. */
static const char *const other_parts[] = {
    "vision_tower.*", "audio_tower.*",           "embed_vision.*",
    "embed_audio.*",  "multi_modal_projector.*", NULL,
};

/* Name patterns of tensors that, if no line reads them, must be copies of the embedding. */
static const char *const copies[] = {
    "*encoder.embed_tokens.weight",
    "*decoder.embed_tokens.weight",
    "lm_head.weight",
    "language_model.lm_head.weight",
    NULL,
};

/* Name patterns of tensors that a text model never needs. */
static const char *const not_needed[] = {
    "*rotary_emb.inv_freq",
    "*.masked_bias",
    "mtp.*",
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
    "*encoder.version",
    "*decoder.version",
    NULL,
};

static bool
matches(const char *name, const char *const *pattern)
{
    while (*pattern && fnmatch(*pattern, name, 0)) pattern++;
    return *pattern;
}

static int
list_unused(struct model *m, struct err *e)
{
    uint32_t n = m->files ? m->files->n : 0;

    m->unused = calloc(n + 1, sizeof *m->unused);
    if (!m->unused) return err_set(e, -ENOMEM, "no memory to list unused tensors");
    for (uint32_t i = 0; i < n; i++) {
        const struct safetensors_tensor *t = &m->files->tensor[i];

        if (t->used || matches(t->name, copies) || matches(t->name, not_needed)) continue;
        if (!matches(t->name + (strncmp(t->name, "model.", 6) ? 0 : 6), other_parts))
            m->unused[m->n_unused++] = t->name;
        else if (m->n_other++ == 0)
            m->other = t->name;
    }
    return 0;
}

/* Refuses a checkpoint whose unread copies of the embedding differ from it: transformers 5.17 ties
 * two tensors of a file only if they are equal, so such a checkpoint is another model. */
static int
check_copies(const struct weights_plan *p, struct err *e)
{
    struct safetensors *files = p->m->files;
    const struct safetensors_tensor *embed = p->part[p->field[0].first].stored;

    for (uint32_t i = 0; files && i < files->n; i++) {
        const struct safetensors_tensor *t = &files->tensor[i];

        if (t->used || !matches(t->name, copies)) continue;
        if (t->dtype != embed->dtype || t->bytes != embed->bytes ||
            memcmp(t->data, embed->data, t->bytes) != 0)
            return err_set(e, -ENOTSUP,
                           "%.60s: tensors %.80s and %.80s differ, but this model uses the same "
                           "weights for both",
                           t->file, t->name, embed->name);
    }
    return 0;
}

int
weights_load(struct model *m, const struct weights_from *from, struct err *e)
{
    CLEAN(weights_plan_done) struct weights_plan p = { .m = m, .from = from };

    TRY(weights_plan_make(&p, e));
    TRY(list_unused(m, e));
    TRY(fingerprint_make(m, from, e));
    m->adopted = p.arena_bytes && adopt_arena(&p);
    if (from->src->planned)
        TRY(from->src->planned(from->src->arg, m->adopted ? 0 : p.arena_bytes, e));
    if (!m->adopted) TRY(check_copies(&p, e)); /* of an adopted arena: done when it was filled */
    if (p.arena_bytes) {
        TRY(m->adopted ? rebuild_damaged(&p, e) : make_arena(&p, e));
        TRY(weights_checksum_keep(&p, e));
    }
    set_tensors(&p);
    return 0;
}

int
weights_inspect(struct model *m, const struct weights_from *from, uint64_t *arena_bytes,
                struct err *e)
{
    CLEAN(weights_plan_done) struct weights_plan p = { .m = m, .from = from };
    int code = weights_plan_make(&p, e);

    *arena_bytes = p.arena_bytes;
    return code < 0 ? code : list_unused(m, e);
}
