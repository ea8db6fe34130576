/* msg_request.c - decodes SUBMIT into struct msg_request, and RESUME into struct msg_resume.
 *
 * LAGAN_FIELDS of lagan_wire.h has one row for each key of SUBMIT. The kind of the row selects the
 * read_ function; the key is also the name of the field. Checks of two keys follow. */
#include "ipc/records.h"
#include "wire/msg.h"
#include "wire/msg_field.h"

/* Arguments of all read_ functions. Each reads one key of the map; an absent key is no error. */
struct key_reader {
    const msgpack_object *map;
    const char *key;
    struct err *e;
};

/* Converts r, the result of msg_i64() or a similar function: returns 0 if the key is absent, 1 if
 * it was read. -EINVAL: the value has another type; want: the expected type. */
static int
absent_or(const struct key_reader *x, int r, const char *want)
{
    if (r == -ENOENT) return 0;
    return r < 0 ? err_set(x->e, -EINVAL, "%s is not %s", x->key, want) : 1;
}

/* Sets *ret only if the key is present, so that *ret keeps its default otherwise. */
static int
read_int(const struct key_reader *x, int64_t *ret, int64_t least, int64_t most)
{
    int64_t v;
    int r = absent_or(x, msg_i64(x->map, x->key, &v), "an integer");

    if (r <= 0) return r;
    if (v < least || v > most)
        return err_set(x->e, -EINVAL, "%s is %lld, the range is %lld to %lld", x->key, (long long)v,
                       (long long)least, (long long)most);
    *ret = v;
    return 0;
}

static int
read_u32(const struct key_reader *x, uint32_t *ret, uint32_t preset, int64_t least, int64_t most)
{
    int64_t v = preset;

    TRY(read_int(x, &v, least, most));
    *ret = (uint32_t)v;
    return 0;
}

static int
read_i32(const struct key_reader *x, int32_t *ret, int32_t preset, int64_t least, int64_t most)
{
    int64_t v = preset;

    TRY(read_int(x, &v, least, most));
    *ret = (int32_t)v;
    return 0;
}

static int
read_u64(const struct key_reader *x, uint64_t *ret, uint64_t preset)
{
    *ret = preset;
    return MIN(absent_or(x, msg_u64(x->map, x->key, ret), "an unsigned integer"), 0);
}

static int
read_f64(const struct key_reader *x, double *ret, double preset, double least, double most,
         bool over)
{
    double v;
    int r = absent_or(x, msg_f64(x->map, x->key, &v), "a number");

    *ret = preset;
    if (r <= 0) return r;
    if (over && !(v > least && v <= most))
        return err_set(x->e, -EINVAL, "%s is %.10g, it must be above %.10g and at most %.10g",
                       x->key, v, least, most);
    if (!(v >= least && v <= most))
        return err_set(x->e, -EINVAL, "%s is %.10g, the range is %.10g to %.10g", x->key, v, least,
                       most);
    *ret = v;
    return 0;
}

static int
read_bool(const struct key_reader *x, bool *ret, bool preset)
{
    *ret = preset;
    return MIN(absent_or(x, msg_bool(x->map, x->key, ret), "true or false"), 0);
}

static int
read_early(const struct key_reader *x, uint32_t *ret)
{
    const msgpack_object *o = msg_get(x->map, x->key);

    if (!o) return 0;
    if (o->type == MSGPACK_OBJECT_BOOLEAN)
        *ret = o->via.boolean;
    else if (o->type == MSGPACK_OBJECT_STR && o->via.str.size == 5 &&
             !memcmp(o->via.str.ptr, "never", 5))
        *ret = 2;
    else
        return err_set(x->e, -EINVAL, "%s is not true, false or \"never\"", x->key);
    return 0;
}

static int
read_str(const struct key_reader *x, struct msg_span *ret, uint32_t least, uint32_t most)
{
    struct msg_span s;
    int r = absent_or(x, msg_str(x->map, x->key, &s), "a string");

    if (r <= 0) return r;
    if (s.n < least) return err_set(x->e, -EINVAL, "%s is empty", x->key);
    if (s.n > most)
        return err_set(x->e, -EINVAL, "%s is %u bytes long, the maximum is %u", x->key, s.n, most);
    if (!msg_utf8(s.p, s.n)) return err_set(x->e, -EINVAL, "%s is not UTF-8", x->key);
    *ret = s;
    return 0;
}

static int
read_ids(const struct key_reader *x, struct msg_ids *ret, uint32_t least, uint32_t most)
{
    struct msg_ids ids;
    int r = msg_ids(x->map, x->key, &ids, x->e);

    if (r == -ENOENT) return 0;
    if (r < 0) return r;
    if (ids.n < least) return err_set(x->e, -EINVAL, "%s is empty", x->key);
    if (ids.n > most)
        return err_set(x->e, -EINVAL, "%s has %u entries, the maximum is %u", x->key, ids.n, most);
    *ret = ids;
    return 0;
}

/* Reads the stop strings: the value is a list of strings or one string. */
static int
read_stops(const struct key_reader *x, struct msg_request *q)
{
    const msgpack_object *o = msg_get(x->map, x->key), *at = o;
    uint32_t n = 1;

    if (!o) return 0;
    if (o->type == MSGPACK_OBJECT_ARRAY) {
        at = o->via.array.ptr;
        n = o->via.array.size;
    }
    if (n > LAGAN_MAX_STOPS)
        return err_set(x->e, -EINVAL, "%s has %u strings, the maximum is %d", x->key, n,
                       LAGAN_MAX_STOPS);
    for (uint32_t i = 0; i < n; i++) {
        if (at[i].type != MSGPACK_OBJECT_STR)
            return err_set(x->e, -EINVAL, "%s[%u] is not a string", x->key, i);
        if (!at[i].via.str.size || at[i].via.str.size > LAGAN_MAX_STOP)
            return err_set(x->e, -EINVAL, "%s[%u] is %u bytes long, the range is 1 to %d", x->key,
                           i, at[i].via.str.size, LAGAN_MAX_STOP);
        q->stop[i] = (struct msg_span){ at[i].via.str.ptr, at[i].via.str.size };
    }
    q->n_stop = n;
    return 0;
}

static int
read_presence(const struct key_reader *x, bool *ret)
{
    *ret = msg_get(x->map, x->key) != NULL;
    return 0;
}

static int
by_id(const void *a, const void *b)
{
    token_id x = ((const struct msg_bias *)a)->id, y = ((const struct msg_bias *)b)->id;

    return (x > y) - (x < y);
}

static int
read_pair(const struct key_reader *x, uint32_t i, const msgpack_object *pair, struct msg_bias *ret)
{
    const msgpack_object *v = pair->via.array.ptr;
    double add;

    if (pair->type != MSGPACK_OBJECT_ARRAY || pair->via.array.size != 2 ||
        v[0].type != MSGPACK_OBJECT_POSITIVE_INTEGER || v[0].via.u64 > INT32_MAX ||
        msg_number(&v[1], &add) < 0)
        return err_set(x->e, -EINVAL, "%s[%u] is not [id, bias]", x->key, i);
    if (!(add >= -100 && add <= 100))
        return err_set(x->e, -EINVAL, "%s[%u] is %.10g; the range is -100 to 100", x->key, i, add);
    *ret = (struct msg_bias){ (token_id)v[0].via.u64, (float)add };
    return 0;
}

static int
read_bias(const struct key_reader *x, struct msg_request *q)
{
    const msgpack_object *o = msg_get(x->map, x->key);

    if (!o) return 0;
    if (o->type != MSGPACK_OBJECT_ARRAY)
        return err_set(x->e, -EINVAL, "%s is not a list of [id, bias]", x->key);
    if (o->via.array.size > LAGAN_MAX_BIAS)
        return err_set(x->e, -EINVAL, "%s has %u entries, the maximum is %d", x->key,
                       o->via.array.size, LAGAN_MAX_BIAS);
    q->n_logit_bias = o->via.array.size;
    for (uint32_t i = 0; i < q->n_logit_bias; i++)
        TRY(read_pair(x, i, &o->via.array.ptr[i], &q->logit_bias[i]));
    qsort(q->logit_bias, q->n_logit_bias, sizeof q->logit_bias[0], by_id);
    for (uint32_t i = 1; i < q->n_logit_bias; i++)
        if (q->logit_bias[i].id == q->logit_bias[i - 1].id)
            return err_set(x->e, -EINVAL, "%s has token %d twice", x->key, q->logit_bias[i].id);
    return 0;
}

/* READ_<kind>(f, ...) reads key f of LAGAN_FIELDS into q.f. All fields of q are 0 before. */
#define READ_IDS(f, preset, least, most) read_ids(&x, &q.f, least, most)
#define READ_STR(f, preset, least, most) read_str(&x, &q.f, least, most)
#define READ_U32(f, preset, least, most) read_u32(&x, &q.f, preset, least, most)
#define READ_I32(f, preset, least, most) read_i32(&x, &q.f, preset, least, most)
#define READ_U64(f, preset, least, most) read_u64(&x, &q.f, preset)
#define READ_F64(f, preset, least, most) read_f64(&x, &q.f, preset, least, most, /* over= */ false)
#define READ_OVER(f, preset, least, most) read_f64(&x, &q.f, preset, least, most, /* over= */ true)
#define READ_BOOL(f, preset, least, most) read_bool(&x, &q.f, preset)
#define READ_EARLY(f, preset, least, most) read_early(&x, &q.f)
#define READ_STOPS(f, preset, least, most) read_stops(&x, &q)
#define READ_BIAS(f, preset, least, most) read_bias(&x, &q)
#define READ_ANY(f, preset, least, most) read_presence(&x, &q.f)

#define ABSENT_IN_FIXED(name)
#define ABSENT_IN_MODEL(name) \
    if (q.model_defaults && !msg_get(&m->map, #name)) q.absent |= ABSENT_##name;

int
msg_combine(const struct msg_combination *c, struct err *e)
{
    if (c->return_logits && c->n > 1 && c->beams == 1)
        return err_set(e, -EINVAL,
                       "return_logits needs n = 1 or beams above 1; the logits of several samples "
                       "are not kept until their tokens are sent");
    if (c->beams > 1 && c->n > c->beams)
        return err_set(e, -EINVAL, "n is %u, it must not exceed beams, which is %u", c->n,
                       c->beams);
    if (c->beams > 1 && c->temperature > 0)
        return err_set(e, -EINVAL,
                       "temperature cannot be combined with beams: a beam search does not sample");
    if (c->n > 1 && c->beams == 1 && c->temperature <= 0)
        return err_set(e, -EINVAL,
                       "n is %u, but all outputs would be equal; set temperature or beams", c->n);
    return 0;
}

int
msg_request(struct msg_request *ret, const struct msg *m, struct err *e)
{
    struct key_reader x = { .map = &m->map, .e = e };
    struct msg_request q;

    memset(&q, 0, sizeof q);
    for (uint32_t i = 0; i < m->map.via.map.size; i++) {
        const msgpack_object_str *k = &m->map.via.map.ptr[i].key.via.str;

        if (msg_field_kind(k->ptr, k->size, e) < 0) return -EINVAL;
    }
#define X(kind, name, least, most, preset, record, fallback, sentence) \
    x.key = #name; \
    TRY(READ_##kind(name, preset, least, most));
    LAGAN_FIELDS(X)
#undef X
#define X(kind, name, least, most, preset, record, fallback, sentence) ABSENT_IN_##fallback(name)
    LAGAN_FIELDS(X)
#undef X
    for (uint32_t i = 0; i < q.request_id.n; i++)
        if (q.request_id.p[i] <= ' ' || q.request_id.p[i] > '~')
            return err_set(e, -EINVAL,
                           "byte %u of request_id is not printable ASCII; spaces are not allowed",
                           i);
    if (q.absent & ABSENT_max_tokens) q.max_tokens = LAGAN_MAX_TOKENS;
    q.has_text = q.text.p != NULL;
    q.has_eos = q.eos_ids.o != NULL;
    q.has_seed = msg_get(&m->map, "seed") != NULL;
    q.has_max_tokens = msg_get(&m->map, "max_tokens") != NULL;
    q.want_logprobs = msg_get(&m->map, "logprobs") != NULL;
    q.want_prompt_logprobs = msg_get(&m->map, "prompt_logprobs") != NULL;
    if ((q.ids.o != NULL) + q.has_text + (q.messages.p != NULL) > 1)
        return err_set(e, -EINVAL,
                       "both %s and %s are given; a request has only one of ids, text and messages",
                       q.ids.o ? "ids" : "text", q.ids.o && q.has_text ? "text" : "messages");
    if (!q.ids.o && !q.has_text && !q.messages.p && !q.encoder_features)
        return err_set(e, -EINVAL, "the prompt is missing: set ids, text or messages");
    if (q.generated_ids.n >= q.max_tokens)
        return err_set(e, -EINVAL, "generated_ids has %u tokens; max_tokens, %u, must be more",
                       q.generated_ids.n, q.max_tokens);
    if (q.min_tokens > q.max_tokens)
        return err_set(e, -EINVAL, "min_tokens is %u, more than max_tokens, which is %u",
                       q.min_tokens, q.max_tokens);
    if (q.n > 1 && q.generated_ids.n)
        return err_set(e, -EINVAL, "generated_ids needs n = 1, n is %u", q.n);
    if (!(q.absent & (ABSENT_beams | ABSENT_temperature)))
        TRY(msg_combine(&(struct msg_combination){ q.n, q.beams, q.temperature, q.return_logits },
                        e));
    *ret = q;
    return 0;
}

/* ---- RESUME */

/* Reads a list of *n unsigned integers. *n 0: of any length > 0, which is stored in *n. */
static int
read_list(const struct msg *m, const char *key, uint32_t *n, const msgpack_object **ret,
          struct err *e)
{
    const msgpack_object *o = msg_get(&m->map, key);

    if (!o || o->type != MSGPACK_OBJECT_ARRAY || !o->via.array.size)
        return err_set(e, -EINVAL, "%s must be a list with at least one entry", key);
    if (*n && o->via.array.size != *n)
        return err_set(e, -EINVAL, "%s has %u entries, but rids %u", key, o->via.array.size, *n);
    for (uint32_t i = 0; i < o->via.array.size; i++)
        if (o->via.array.ptr[i].type != MSGPACK_OBJECT_POSITIVE_INTEGER)
            return err_set(e, -EINVAL, "%s[%u] is not an unsigned integer", key, i);
    if (o->via.array.size > LAGAN_MAX_RESUMES)
        return err_set(e, -EINVAL, "%s has %u entries, the maximum is %d", key, o->via.array.size,
                       LAGAN_MAX_RESUMES);
    *n = o->via.array.size;
    *ret = o->via.array.ptr;
    return 0;
}

int
msg_resume(struct msg_resume *ret, const struct msg *m, struct err *e)
{
    struct msg_resume r = { 0 };

    TRY(read_list(m, "rids", &r.n, &r.rid, e));
    TRY(read_list(m, "n_tokens", &r.n, &r.n_tokens, e));
    TRY(read_list(m, "text_bytes", &r.n, &r.text_bytes, e));
    *ret = r;
    return 0;
}
