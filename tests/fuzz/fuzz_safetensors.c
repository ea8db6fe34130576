/* fuzz_safetensors.c - a safetensors header against a reference that uses jansson: the same
 * verdict, the same tensors, and every byte of every tensor is in the file.
 *
 * Input: a byte of flags, two of data length, then the header's text, or (BUILT) choices from which
 * an almost valid header is built. LENGTH: eight bytes before the text, the length that the file
 * states. CUT: the file ends within its header.
 */
#include "tests/fuzz/fuzz.h"

#include "worker/model/safetensors.h"

#include <jansson.h>
#include <stdio.h>

enum { BUILT = 1, LENGTH = 2, CUT = 4, MAX_TEXT = 8192, MAX_DEPTH = 64 };

/* ---- a header that is almost right */

static size_t
build(struct in *in, char *text)
{
    static const char *const names[] = { "a", "b", "model.layers.0.q", "\\u0061", "c", "d\\u0000",
                                         "e", "" };
    static const struct {
        const char *name;
        unsigned bytes;
    } types[] = { { "F32", 4 }, { "BF16", 2 }, { "U8", 1 }, { "I64", 8 }, { "U7", 1 } };
    size_t len = 1;
    uint64_t at = 0;

    text[0] = '{';
    while (in->p < in->end && len < MAX_TEXT - 512) {
        uint32_t op = byte(in), kind = byte(in), n = kind >> 4, t = kind % 8 < 5 ? kind % 8 : 0;
        uint64_t bytes = types[t].bytes;
        char shape[128] = "";
        size_t s = 0;

        for (uint32_t i = 0; i < n % 4; i++) {
            uint32_t dim = byte(in) % 6;

            bytes *= dim;
            s += (size_t)snprintf(shape + s, sizeof shape - s, "%s%u", i ? "," : "", dim);
        }
        if (op & 8) at += byte(in) % 8;          /* a hole */
        if (op & 16) at -= byte(in) % 8;         /* an overlap */
        if (op & 32) bytes += byte(in) % 16 - 8; /* a length that is not the shape's */
        if (kind & 8)
            s += (size_t)snprintf(shape + s, sizeof shape - s, "%s1,1,1,1,1,1", s ? "," : "");
        if (op & 64) { /* 2^64 elements: 0 for code that does not check for overflow */
            s += (size_t)snprintf(shape + s, sizeof shape - s, "%s65536,65536,65536,65536",
                                  s ? "," : "");
            bytes = 0;
        }
        len += (size_t)snprintf(
            text + len, MAX_TEXT - len,
            "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]%s}",
            len > 1 ? "," : "", names[op % 8], types[t].name, shape, (unsigned long long)at,
            (unsigned long long)(at + bytes), op & 128 && kind % 2 ? ",\"x\":1" : "");
        at += bytes;
    }
    text[len++] = '}';
    return len;
}

/* ---- the ref */

static unsigned
depth(const json_t *j)
{
    unsigned most = 0, below;
    const char *key;
    json_t *v;
    size_t i;

    if (!json_is_object(j) && !json_is_array(j)) return 0;
    json_object_foreach((json_t *)(uintptr_t)j, key, v)
    {
        below = depth(v);
        most = below > most ? below : most;
    }
    json_array_foreach(j, i, v)
    {
        below = depth(v);
        most = below > most ? below : most;
    }
    return most + 1;
}

static unsigned
type_bytes(const char *name)
{
    static const char *const by_size[][10] = {
        { "U8", "I8", "BOOL", "F8_E4M3", "F8_E5M2" },
        { "BF16", "F16", "I16", "U16" },
        { "F32", "I32", "U32" },
        { "F64", "I64", "U64" },
    };

    for (unsigned s = 0; s < 4; s++)
        for (unsigned i = 0; i < 10 && by_size[s][i]; i++)
            if (strcmp(name, by_size[s][i]) == 0) return 1u << s;
    return 0;
}

static bool
whole(const json_t *j, uint64_t *ret)
{
    if (!json_is_integer(j) || json_integer_value(j) < 0) return false;
    *ret = (uint64_t)json_integer_value(j);
    return true;
}

/* One tensor by the rules of safetensors.h; *t: what must come out. */
static bool
good_tensor(const char *name, const json_t *j, uint64_t data_bytes, struct safetensors_tensor *t)
{
    const json_t *shape = json_object_get(j, "shape"), *at = json_object_get(j, "data_offsets");
    const char *type = json_string_value(json_object_get(j, "dtype"));
    unsigned __int128 bytes;
    uint64_t end;

    if (!*name || strlen(name) >= ST_MAX_NAME || json_object_size(j) != 3 || !type) return false;
    bytes = type_bytes(type);
    if (!bytes || !json_is_array(shape) || json_array_size(shape) > ST_MAX_DIMS) return false;
    t->n_dims = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (!whole(json_array_get(shape, i), &t->dim[i]) || t->dim[i] > UINT32_MAX) return false;
        bytes *= t->dim[i];
        if (bytes > UINT64_MAX) return false;
    }
    if (!json_is_array(at) || json_array_size(at) != 2) return false;
    if (!whole(json_array_get(at, 0), &t->offset) || !whole(json_array_get(at, 1), &end))
        return false;
    t->bytes = (uint64_t)bytes;
    return end >= t->offset && end - t->offset == bytes && end <= data_bytes;
}

/* Compares the verdict and the table with what jansson reads. No comparison where the two may
 * differ: -0, zero bytes, which jansson skips after numbers, and texts that jansson itself
 * rejects. */
static void
compare(const char *text, size_t len, uint64_t data_bytes, int code, struct safetensors *table)
{
    json_t *whole_header = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL), *j;
    struct safetensors_tensor *want;
    const char *name;
    bool good = true;
    uint32_t n = 0;

    if (!whole_header) return;
    good = json_is_object(whole_header) && depth(whole_header) <= MAX_DEPTH;
    want = calloc(json_object_size(whole_header) + 1, sizeof *want);
    check(want);
    json_object_foreach(whole_header, name, j)
    {
        if (strcmp(name, "__metadata__") == 0) continue;
        want[n].name = name;
        good = good && good_tensor(name, j, data_bytes, &want[n]);
        n++;
    }
    for (uint32_t a = 0; good && a < n; a++)
        for (uint32_t b = 0; b < n; b++)
            if (a != b && want[a].bytes && want[b].bytes && want[b].offset >= want[a].offset &&
                want[b].offset < want[a].offset + want[a].bytes)
                good = false;
    if (!memmem(text, len, "-0", 2) && !memchr(text, 0, len)) check(good == (code == 0));
    if (code == 0) {
        check(n == table->n);
        for (uint32_t i = 0; i < n; i++) {
            const struct safetensors_tensor *t = safetensors_find(table, want[i].name);

            check(t && t->n_dims == want[i].n_dims && t->offset == want[i].offset);
            check(t->bytes == want[i].bytes);
            for (uint32_t d = 0; d < t->n_dims; d++) check(t->dim[d] == want[i].dim[d]);
        }
    }
    free(want);
    json_decref(whole_header);
}

/* What holds for every table, whatever the text was. */
static void
examine(const struct safetensors *t, const struct st_shard *f)
{
    volatile uint8_t sum = 0;

    for (uint32_t i = 0; i < t->n; i++) {
        const struct safetensors_tensor *x = &t->tensor[i];
        const uint8_t *p = x->data;
        char shape[128];

        check(x->stored && x->file == f->name && *x->name);
        check((size_t)(p - f->map) >= f->header_bytes);
        check((size_t)(p - f->map) + x->bytes <= f->bytes);
        if (x->bytes) sum = (uint8_t)(sum + p[0] + p[x->bytes - 1]);
        check(strlen(safetensors_shape(x, shape, sizeof shape)) < sizeof shape);
        if (i) check(strcmp(t->tensor[i - 1].name, x->name) < 0);
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[MAX_TEXT];
    struct in in = { data, data + size };
    uint32_t flags = byte(&in), data_bytes = byte(&in) | (byte(&in) & 3) << 8;
    uint64_t claimed = 0;
    struct st_shard f = { .name = "m" };
    struct safetensors t = { 0 };
    struct err e = { 0 };
    uint8_t *bytes;
    size_t len;
    int code;

    for (int i = 0; flags & LENGTH && i < 8; i++) claimed |= (uint64_t)byte(&in) << 8 * i;
    if (flags & BUILT) {
        len = build(&in, text);
    } else {
        len = (size_t)(in.end - in.p) < MAX_TEXT ? (size_t)(in.end - in.p) : MAX_TEXT;
        memcpy(text, in.p, len);
    }
    if (!(flags & LENGTH)) claimed = len;
    f.bytes = flags & CUT ? data_bytes % (8 + len) : 8 + len + data_bytes;
    /* Exactly as long as the file, so that one byte too far is seen. */
    bytes = malloc(f.bytes ? f.bytes : 1);
    check(bytes);
    for (size_t i = 0; i < f.bytes; i++)
        bytes[i] = i < 8 ? (uint8_t)(claimed >> 8 * i) : i < 8 + len ? (uint8_t)text[i - 8] : 7;
    f.map = bytes;

    code = safetensors_header_read(&t, &f, 0, &e);
    if (code == 0) code = safetensors_sort(&t, &e);
    check(code == 0 || (code == -EBADMSG && e.code == code && *e.text));
    if (code == 0) examine(&t, &f);
    /* jansson has no such key, and so no verdict; none of build()'s stands anywhere else. */
    if (flags & BUILT && code == 0) check(!memmem(text, len, "\\u0000", 6));
    if (!(flags & (LENGTH | CUT))) {
        /* Too short to be a header at all, or else the ref knows. */
        if (len >= 2) compare(text, len, data_bytes, code, &t);
        if (len < 2) check(code < 0);
    } else if (code == 0) {
        check(claimed >= 2 && f.bytes >= 8 && claimed <= f.bytes - 8);
        compare((const char *)bytes + 8, claimed, f.bytes - 8 - claimed, code, &t);
    }
    safetensors_done(&t);
    free(bytes);
    return 0;
}
