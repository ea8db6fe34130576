/* safetensors_header.c - parses and validates the header of a safetensors file (safetensors.h). */
#include "worker/model/safetensors.h"

#include "base/array.h"
#include "base/json.h"

#include <endian.h>
#include <stdio.h>

/* Largest header that the format allows, in bytes. The first 8 bytes of a file of another format,
 * read as the size of a header, nearly always exceed it. */
#define MAX_HEADER UINT64_C(100000000)

static const struct {
    const char *name;
    enum dtype dtype;
    uint32_t bytes;
} stored_types[] = {
    { "F32", DT_F32, 4 },      { "BF16", DT_BF16, 2 },     { "F16", DT_F16, 2 },
    { "I32", DT_I32, 4 },      { "I8", DT_I8, 1 },         { "U8", DT_U8, 1 },
    { "F8_E4M3", DT_E4M3, 1 }, { "F8_E5M2", DT_COUNT, 1 }, { "F64", DT_COUNT, 8 },
    { "I64", DT_COUNT, 8 },    { "U64", DT_COUNT, 8 },     { "U32", DT_COUNT, 4 },
    { "I16", DT_COUNT, 2 },    { "U16", DT_COUNT, 2 },     { "BOOL", DT_COUNT, 1 },
};

const char *
safetensors_shape(const struct safetensors_tensor *t, char *buf, size_t n)
{
    size_t len = (size_t)snprintf(buf, n, "[");

    for (uint32_t i = 0; i < t->n_dims && len < n; i++)
        len += (size_t)snprintf(buf + len, n - len, "%s%llu", i ? ", " : "",
                                (unsigned long long)t->dim[i]);
    if (len < n) snprintf(buf + len, n - len, "]");
    return buf;
}

/* data_offsets of one tensor, in bytes from the header's end. */
struct span {
    uint64_t first, end;
};

/* State of parsing a shard's header. */
struct reading {
    struct safetensors *s;
    const struct st_shard *shard;
    uint32_t index;
    struct json j;
    char name[ST_MAX_NAME]; /* of the tensor being read */
    uint64_t end;           /* largest end of all tensors so far, from the header's end */
    char last[ST_MAX_NAME]; /* the tensor with that end */
};

static int
next(struct reading *r, enum json_kind want, const char *what, struct err *e)
{
    TRY(json_next(&r->j, e));
    if (r->j.kind != want) return err_set(e, -EBADMSG, "%s", what);
    return 0;
}

static int
number(struct reading *r, const char *what, uint64_t *ret, struct err *e)
{
    if (r->j.kind != JSON_NUMBER || json_u64(&r->j, ret) < 0)
        return err_set(e, -EBADMSG, "%s is not a whole number below 2^64", what);
    return 0;
}

static int
read_dtype(struct reading *r, struct safetensors_tensor *t, uint32_t *bytes, struct err *e)
{
    char name[16];

    TRY(next(r, JSON_STRING, "dtype is not a string", e));
    for (size_t i = 0; i < ARRAY_LEN(stored_types); i++)
        if (json_is(&r->j, stored_types[i].name)) {
            t->stored = stored_types[i].name;
            t->dtype = stored_types[i].dtype;
            *bytes = stored_types[i].bytes;
            return 0;
        }
    if (json_unescape(&r->j, name, sizeof name) < 0) name[0] = '\0';
    return err_set(e, -EBADMSG, "dtype \"%s\" is not known", name);
}

static int
read_shape(struct reading *r, struct safetensors_tensor *t, struct err *e)
{
    TRY(next(r, JSON_ARRAY, "shape is not a list", e));
    for (t->n_dims = 0;; t->n_dims++) {
        TRY(json_next(&r->j, e));
        if (r->j.kind == JSON_ARRAY_END) return 0;
        if (t->n_dims == ST_MAX_DIMS)
            return err_set(e, -EBADMSG, "shape has more than %d dimensions", ST_MAX_DIMS);
        TRY(number(r, "a dimension", &t->dim[t->n_dims], e));
    }
}

static int
read_offsets(struct reading *r, struct span *ret, struct err *e)
{
    TRY(next(r, JSON_ARRAY, "data_offsets is not a list", e));
    TRY(json_next(&r->j, e));
    TRY(number(r, "data_offsets[0]", &ret->first, e));
    TRY(json_next(&r->j, e));
    TRY(number(r, "data_offsets[1]", &ret->end, e));
    return next(r, JSON_ARRAY_END, "data_offsets has more than two entries", e);
}

/* Parses the value of one tensor, which must have each of its 3 fields exactly once. */
static int
read_fields(struct reading *r, struct safetensors_tensor *t, uint32_t *bytes, struct span *span,
            struct err *e)
{
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
    unsigned have = 0, field;

    TRY(next(r, JSON_OBJECT, "is not an object", e));
    for (;;) {
        TRY(json_next(&r->j, e));
        if (r->j.kind == JSON_OBJECT_END) break;
        field = json_is(&r->j, "dtype")          ? DTYPE
                : json_is(&r->j, "shape")        ? SHAPE
                : json_is(&r->j, "data_offsets") ? OFFSETS
                                                 : 0;
        if (!field)
            return err_set(e, -EBADMSG, "has a field other than dtype, shape and data_offsets");
        if (have & field) return err_set(e, -EBADMSG, "has a field twice");
        have |= field;
        if (field == DTYPE) TRY(read_dtype(r, t, bytes, e));
        if (field == SHAPE) TRY(read_shape(r, t, e));
        if (field == OFFSETS) TRY(read_offsets(r, span, e));
    }
    if (have != (DTYPE | SHAPE | OFFSETS))
        return err_set(e, -EBADMSG, "has no %s",
                       !(have & DTYPE)   ? "dtype"
                       : !(have & SHAPE) ? "shape"
                                         : "data_offsets");
    return 0;
}

/* Checks that shape times element size equals the length that data_offsets give. The file's length
 * is checked later, for all tensors, to state how many bytes are missing. */
static int
check_bytes(const struct safetensors_tensor *t, uint32_t element, const struct span *span,
            struct err *e)
{
    uint64_t bytes = element;
    char shape[128];

    for (uint32_t i = 0; i < t->n_dims; i++)
        if (t->dim[i] > UINT32_MAX || __builtin_mul_overflow(bytes, t->dim[i], &bytes))
            return err_set(e, -EBADMSG, "a tensor of shape %s is larger than any file can be",
                           safetensors_shape(t, shape, sizeof shape));
    if (span->end < span->first || span->end - span->first != bytes)
        return err_set(e, -EBADMSG, "%s %s is %llu bytes, but data_offsets are %llu to %llu",
                       t->stored, safetensors_shape(t, shape, sizeof shape),
                       (unsigned long long)bytes, (unsigned long long)span->first,
                       (unsigned long long)span->end);
    return 0;
}

static int
append(struct safetensors *s, const struct safetensors_tensor *t, const char *name, struct err *e)
{
    if (s->n >= ST_MAX_TENSORS)
        return err_set(e, -E2BIG, "the checkpoint has more than %d tensors", ST_MAX_TENSORS);
    if (array_grow(&s->tensor, &s->max, s->n + 1, ST_MAX_TENSORS, sizeof *t) < 0)
        return err_set(e, -ENOMEM, "no host memory for the list entry of the tensor");
    s->tensor[s->n] = *t;
    s->tensor[s->n].name = strdup(name);
    return s->tensor[s->n++].name
               ? 0
               : err_set(e, -ENOMEM, "no host memory for the name of the tensor");
}

static int
read_tensor(struct reading *r, struct err *e)
{
    struct safetensors_tensor t = { .file = r->shard->name, .shard = r->index };
    struct span span = { 0 };
    uint32_t element = 0;

    TRY(read_fields(r, &t, &element, &span, e));
    TRY(check_bytes(&t, element, &span, e));
    t.offset = span.first;
    t.bytes = span.end - span.first;
    if (span.end > r->end) {
        r->end = span.end;
        snprintf(r->last, sizeof r->last, "%s", r->name);
    }
    return append(r->s, &t, r->name, e);
}

static int
by_place(const void *a, const void *b)
{
    const struct safetensors_tensor *const *x = a, *const *y = b;

    if ((*x)->offset != (*y)->offset) return (*x)->offset < (*y)->offset ? -1 : 1;
    return (*x)->bytes < (*y)->bytes ? -1 : (*x)->bytes > (*y)->bytes;
}

/* Checks that no two tensors of the shard, tensor[first .. n), overlap. */
static int
check_overlaps(const struct safetensors *s, uint32_t first, struct err *e)
{
    const struct safetensors_tensor **order = calloc(s->n - first + 1, sizeof *order);
    uint32_t n = 0;
    int code = 0;

    if (!order) return err_set(e, -ENOMEM, "no memory to check %u tensors", s->n - first);
    for (uint32_t i = first; i < s->n; i++)
        if (s->tensor[i].bytes) order[n++] = &s->tensor[i];
    qsort(order, n, sizeof *order, by_place);
    for (uint32_t i = 1; i < n && code == 0; i++)
        if (order[i - 1]->offset + order[i - 1]->bytes > order[i]->offset)
            code = err_set(e, -EBADMSG, "%s: tensors %.80s and %.80s overlap", order[i]->file,
                           order[i - 1]->name, order[i]->name);
    free(order);
    return code;
}

static int
read_header(struct reading *r, struct err *e)
{
    int code, len;

    code = next(r, JSON_OBJECT, "the header is not a JSON object", e);
    while (code == 0) {
        code = json_next(&r->j, e);
        if (code < 0 || r->j.kind == JSON_OBJECT_END) break;
        if (json_is(&r->j, "__metadata__")) {
            code = json_skip(&r->j, e);
            continue;
        }
        len = json_unescape(&r->j, r->name, sizeof r->name);
        if (len < 0)
            return err_set(e, -EBADMSG, "%s: a tensor's name is longer than %d bytes",
                           r->shard->name, ST_MAX_NAME - 1);
        if (len == 0 || strlen(r->name) != (size_t)len)
            return err_set(e, -EBADMSG, "%s: a tensor's name is empty or holds a zero byte",
                           r->shard->name);
        code = read_tensor(r, e);
        if (code < 0) return err_while(e, code, "%s: %.80s", r->shard->name, r->name);
    }
    if (code == 0) code = json_next(&r->j, e); /* JSON_END or an error */
    return code < 0 ? err_while(e, code, "%s: header", r->shard->name) : 0;
}

/* Begin of the file that git stores in place of a large one. */
static const char LFS[] = "version https://git-lfs.github.com/spec/";

int
safetensors_header_read(struct safetensors *s, struct st_shard *f, uint32_t index, struct err *e)
{
    struct reading r = { .s = s, .shard = f, .index = index };
    uint32_t first = s->n;
    uint64_t len;

    if (f->bytes > sizeof LFS && !memcmp(f->map, LFS, sizeof LFS - 1))
        return err_set(e, -EBADMSG,
                       "%s is a git-lfs pointer of %llu bytes, not the weights; run git lfs pull "
                       "in the model's directory",
                       f->name, (unsigned long long)f->bytes);
    if (f->bytes < 8)
        return err_set(e, -EBADMSG, "%s is %llu bytes, too short for a safetensors file", f->name,
                       (unsigned long long)f->bytes);
    memcpy(&len, f->map, 8);
    len = le64toh(len);
    if (len < 2 || len > MAX_HEADER)
        return err_set(e, -EBADMSG,
                       "%s is not safetensors: its header length is %llu, not 2 to %llu", f->name,
                       (unsigned long long)len, (unsigned long long)MAX_HEADER);
    if (len > f->bytes - 8)
        return err_set(e, -EBADMSG, "%s is truncated: %llu bytes of its header are missing",
                       f->name, (unsigned long long)(len - (f->bytes - 8)));
    f->header_bytes = 8 + len;
    json_open(&r.j, (const char *)f->map + 8, len);
    TRY(read_header(&r, e));
    if (r.end > f->bytes - f->header_bytes)
        return err_set(e, -EBADMSG, "%s is truncated %llu bytes before the end of tensor %.80s",
                       f->name, (unsigned long long)(r.end - (f->bytes - f->header_bytes)), r.last);
    for (uint32_t i = first; i < s->n; i++)
        s->tensor[i].data = f->map + f->header_bytes + s->tensor[i].offset;
    return check_overlaps(s, first, e);
}

static int
by_name(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;

    return strcmp(x->name, y->name);
}

int
safetensors_sort(struct safetensors *s, struct err *e)
{
    if (s->n) qsort(s->tensor, s->n, sizeof *s->tensor, by_name);
    for (uint32_t i = 1; i < s->n; i++) {
        const struct safetensors_tensor *a = &s->tensor[i - 1], *b = &s->tensor[i];

        if (strcmp(a->name, b->name)) continue;
        if (a->shard == b->shard)
            return err_set(e, -EBADMSG, "%s: tensor %.80s occurs twice", a->file, a->name);
        return err_set(e, -EBADMSG, "tensor %.80s is in two files, %.60s and %.60s", a->name,
                       a->file, b->file);
    }
    return 0;
}

struct safetensors_tensor *
safetensors_find(const struct safetensors *s, const char *name)
{
    struct safetensors_tensor key = { .name = name };

    return s->n ? bsearch(&key, s->tensor, s->n, sizeof *s->tensor, by_name) : NULL;
}
