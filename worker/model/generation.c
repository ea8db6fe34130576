/* generation.c - see generation.h. */
#include "worker/model/generation.h"

#include "worker/model/config.h"

#include <errno.h>

static int
read_id(const struct model *m, const json_t *v, const char *file, const char *key, int32_t *ret,
        struct err *e)
{
    json_int_t id = json_integer_value(v);

    if (!json_is_integer(v)) return err_set(e, -EINVAL, "%s: %s is not an integer", file, key);
    if (id < -1 || id >= (json_int_t)m->shape.vocab)
        return err_set(e, -EINVAL, "%s: %s is %lld, the vocabulary ends at %u", file, key,
                       (long long)id, m->shape.vocab - 1);
    *ret = (int32_t)id;
    return 0;
}

/* An id or a list of ids. */
static int
read_ids(const struct model *m, const json_t *v, const char *file, const char *key, int32_t *ret,
         uint32_t max, uint32_t *n, struct err *e)
{
    uint32_t have = json_is_array(v) ? (uint32_t)MIN(json_array_size(v), (size_t)max + 1) : 1;

    if (have > max)
        return err_set(e, -ENOTSUP, "%s: %s has %zu ids, at most %u are taken", file, key,
                       json_array_size(v), max);
    *n = 0;
    for (uint32_t i = 0; i < have; i++) {
        TRY(read_id(m, json_is_array(v) ? json_array_get(v, i) : v, file, key, &ret[*n], e));
        if (ret[*n] >= 0) ++*n;
    }
    return 0;
}

int
generation_read(struct model *m, const json_t *generation, const json_t *config, struct err *e)
{
    struct {
        const char *key;
        int32_t *to;
        uint32_t max, *n;
    } want[] = {
        { "bos_token_id", &m->bos, 1, NULL },
        { "pad_token_id", &m->pad, 1, NULL },
        { "decoder_start_token_id", &m->decoder_start, 1, NULL },
        { "forced_bos_token_id", &m->forced_bos, 1, NULL },
        { "forced_eos_token_id", &m->forced_eos, 1, NULL },
        { "eos_token_id", m->eos, MAX_EOS, &m->n_eos },
    };

    m->n_eos = 0;
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        bool first = cfg_state(generation, want[i].key) == CFG_SET;
        const json_t *from = first ? generation : config;
        const char *file = first ? "generation_config.json" : "config.json";
        int32_t id[MAX_EOS] = { -1 };
        uint32_t n = 0;

        if (!want[i].n) *want[i].to = -1;
        if (cfg_state(from, want[i].key) != CFG_SET) continue;
        TRY(read_ids(m, json_object_get(from, want[i].key), file, want[i].key, id, want[i].max, &n,
                     e));
        for (uint32_t k = 0; k < n; k++) want[i].to[k] = id[k];
        if (want[i].n) *want[i].n = n;
    }
    return 0;
}
