/* fuzz_request.c - a client's frame against references: the bounded pass, and SUBMIT's keys.
 *
 * An odd first byte is followed by a frame as it is, an even one by a recipe for a RESUME (4) or
 * for a SUBMIT. A recipe has existing keys and values of any kind, because random bytes contain no
 * key. The references are written from lagan_wire.h and msg.h alone: one recursive walk without a
 * bound of the stack, and one if for each key. Both must give the verdict of the real code, for
 * every input.
 */
#include "tests/fuzz/fuzz.h"

#include "wire/msg.h"

#include <math.h>

/* ---- the ref of msg_check() */

struct walk {
    const uint8_t *p, *end;
    uint64_t nodes, ids;
};

static uint64_t
take(struct walk *w, uint32_t n, bool *ok)
{
    uint64_t v = 0;

    if ((uint64_t)(w->end - w->p) < n) {
        *ok = false;
        return 0;
    }
    while (n--) v = v * 256 + *w->p++;
    return v;
}

/* Code points, the slow way. */
static bool
ref_utf8(const uint8_t *s, uint64_t n)
{
    uint64_t i = 0;

    while (i < n) {
        uint32_t len = s[i] < 0x80       ? 1
                       : s[i] >> 5 == 6  ? 2
                       : s[i] >> 4 == 14 ? 3
                       : s[i] >> 3 == 30 ? 4
                                         : 0;
        uint32_t v, k;

        if (!len || i + len > n) return false;
        v = len == 1 ? s[i] : s[i] & (0x7fu >> len);
        for (k = 1; k < len; k++) {
            if (s[i + k] < 0x80 || s[i + k] > 0xbf) return false;
            v = v * 64 + (s[i + k] - 0x80u);
        }
        if ((len == 2 && v < 0x80) || (len == 3 && v < 0x800) || (len == 4 && v < 0x10000))
            return false;
        if (v > 0x10ffff || (v >= 0xd800 && v < 0xe000)) return false;
        i += len;
    }
    return true;
}

struct key {
    const uint8_t *p;
    uint64_t n;
};

static bool ref_value(struct walk *w, int depth, bool in_list, struct key *as_key);

static bool
ref_list(struct walk *w, uint64_t n, int depth)
{
    if (depth > 8) return false;
    while (n--)
        if (!ref_value(w, depth, /* in_list= */ true, NULL)) return false;
    return true;
}

static bool
ref_map(struct walk *w, uint64_t n, int depth)
{
    struct key keys[64];
    uint64_t i, k;

    if (n > 64 || depth > 8) return false;
    for (i = 0; i < n; i++) {
        if (!ref_value(w, depth, false, &keys[i]) || keys[i].n > 64) return false;
        for (k = 0; k < i; k++)
            if (keys[k].n == keys[i].n && !memcmp(keys[k].p, keys[i].p, keys[i].n)) return false;
        if (!ref_value(w, depth, false, NULL)) return false;
    }
    return true;
}

/* depth: containers that are open around this value. */
static bool
ref_value(struct walk *w, int depth, bool in_list, struct key *as_key)
{
    bool ok = true;
    uint8_t b = (uint8_t)take(w, 1, &ok);
    uint64_t n = 0, bits;

    if (!ok) return false;
    if (b < 0x80 || b >= 0xe0 || (b >= 0xcc && b <= 0xd3)) { /* an integer */
        if (b >= 0xcc && b <= 0xd3) take(w, 1u << (b & 3), &ok);
        if (in_list && depth > 1)
            w->ids++;
        else
            w->nodes++;
        return ok && !as_key;
    }
    w->nodes++;
    if (b == 0xc0 || b == 0xc2 || b == 0xc3) return !as_key;
    if (b == 0xca || b == 0xcb) {
        bits = take(w, b == 0xca ? 4 : 8, &ok);
        if (b == 0xca) {
            float f;
            uint32_t low = (uint32_t)bits;

            memcpy(&f, &low, 4);
            return ok && isfinite(f) && !as_key;
        }
        double d;

        memcpy(&d, &bits, 8);
        return ok && isfinite(d) && !as_key;
    }
    if ((b & 0xe0) == 0xa0 || (b >= 0xd9 && b <= 0xdb)) { /* a string */
        n = b < 0xc0 ? b & 31 : take(w, 1u << (b - 0xd9), &ok);
        if (!ok || n > (uint64_t)(w->end - w->p) || n > 4194304 || !ref_utf8(w->p, n)) return false;
        if (as_key) *as_key = (struct key){ w->p, n };
        w->p += n;
        return true;
    }
    if (as_key) return false;
    if (b >= 0xc4 && b <= 0xc6) { /* bytes */
        n = take(w, 1u << (b - 0xc4), &ok);
        if (!ok || n > (uint64_t)(w->end - w->p)) return false;
        w->p += n;
        return true;
    }
    if ((b & 0xf0) == 0x90) return ref_list(w, b & 15, depth + 1);
    if (b == 0xdc || b == 0xdd) {
        n = take(w, b == 0xdc ? 2 : 4, &ok);
        return ok && ref_list(w, n, depth + 1);
    }
    if ((b & 0xf0) == 0x80) return ref_map(w, b & 15, depth + 1);
    if (b == 0xde || b == 0xdf) {
        n = take(w, b == 0xde ? 2 : 4, &ok);
        return ok && ref_map(w, n, depth + 1);
    }
    return false; /* 0xc1, ext */
}

static bool
ref_check(const uint8_t *p, size_t n)
{
    struct walk w = { p, p + n, 0, 0 };

    return n <= 4 * 1024 * 1024 + 65536 && ref_value(&w, 0, false, NULL) && w.p == w.end &&
           w.nodes <= 4096 && w.ids <= 256 * 1024;
}

/* ---- the ref of msg_request(): what a key may be, one if each */

#define POSITIVE MSGPACK_OBJECT_POSITIVE_INTEGER
#define NEGATIVE MSGPACK_OBJECT_NEGATIVE_INTEGER

static bool
whole(const msgpack_object *o, double least, double most)
{
    double v = o->type == NEGATIVE ? (double)o->via.i64 : (double)o->via.u64;

    return (o->type == POSITIVE || o->type == NEGATIVE) && v >= least && v <= most;
}

static bool
real(const msgpack_object *o, double least, double most)
{
    if (o->type == MSGPACK_OBJECT_FLOAT32 || o->type == MSGPACK_OBJECT_FLOAT64)
        return o->via.f64 >= least && o->via.f64 <= most;
    return whole(o, least, most);
}

static bool
is_zero(const msgpack_object *o)
{
    return real(o, 0, 0);
}

static bool
string(const msgpack_object *o, uint32_t most)
{
    if (o->type == MSGPACK_OBJECT_STR) return o->via.str.size >= 1 && o->via.str.size <= most;
    return o->type == MSGPACK_OBJECT_BIN && o->via.bin.size >= 1 && o->via.bin.size <= most &&
           ref_utf8((const uint8_t *)o->via.bin.ptr, o->via.bin.size);
}

static bool
ids(const msgpack_object *o, uint32_t least, uint32_t most)
{
    uint32_t i, n;

    if (o->type == MSGPACK_OBJECT_BIN) {
        if (o->via.bin.size % 4) return false;
        n = o->via.bin.size / 4;
        for (i = 0; i < n; i++)
            if ((uint8_t)o->via.bin.ptr[4 * i + 3] >= 0x80) return false;
    } else if (o->type == MSGPACK_OBJECT_ARRAY) {
        n = o->via.array.size;
        for (i = 0; i < n; i++)
            if (!whole(&o->via.array.ptr[i], 0, 2147483647)) return false;
    } else {
        return false;
    }
    return n >= least && n <= most;
}

static bool
stop(const msgpack_object *o)
{
    uint32_t i;

    if (o->type == MSGPACK_OBJECT_STR) return o->via.str.size >= 1 && o->via.str.size <= 256;
    if (o->type != MSGPACK_OBJECT_ARRAY || o->via.array.size > 16) return false;
    for (i = 0; i < o->via.array.size; i++)
        if (o->via.array.ptr[i].type != MSGPACK_OBJECT_STR || !stop(&o->via.array.ptr[i]))
            return false;
    return true;
}

/* Pairs of a token and what is added, each token once. */
static bool
bias(const msgpack_object *o)
{
    uint32_t i, k;

    if (o->type != MSGPACK_OBJECT_ARRAY || o->via.array.size > 256) return false;
    for (i = 0; i < o->via.array.size; i++) {
        const msgpack_object *a = &o->via.array.ptr[i];

        if (a->type != MSGPACK_OBJECT_ARRAY || a->via.array.size != 2) return false;
        if (!whole(&a->via.array.ptr[0], 0, 2147483647) || !real(&a->via.array.ptr[1], -100, 100))
            return false;
        for (k = 0; k < i; k++)
            if (o->via.array.ptr[k].via.array.ptr[0].via.u64 == a->via.array.ptr[0].via.u64)
                return false;
    }
    return true;
}

/* 0x21 to 0x7e: no spaces, control characters or bytes of longer characters. */
static bool
printable(const msgpack_object *o)
{
    bool str = o->type == MSGPACK_OBJECT_STR;
    const char *p = str ? o->via.str.ptr : o->via.bin.ptr;
    uint32_t n = str ? o->via.str.size : o->via.bin.size, i;

    for (i = 0; i < n; i++)
        if (p[i] < '!' || p[i] > '~') return false;
    return true;
}

static bool
value_ok(const char *k, uint32_t n, const msgpack_object *v)
{
    bool truth = v->type == MSGPACK_OBJECT_BOOLEAN;

#define KEY(word) (n == sizeof word - 1 && !memcmp(k, word, n))
    if (KEY("ids")) return ids(v, 1, 1048576);
    if (KEY("decoder_ids")) return ids(v, 1, 1048576);
    if (KEY("eos_ids") || KEY("stop_ids")) return ids(v, 0, 16);
    if (KEY("generated_ids")) return ids(v, 0, 1048576);
    if (KEY("disconnect_timeout_ms")) return whole(v, 0, 600000);
    if (KEY("text") || KEY("messages")) return string(v, 4194304);
    if (KEY("model")) return string(v, 256);
    if (KEY("cache_salt")) return string(v, 128);
    if (KEY("request_id")) return string(v, 128) && printable(v);
    if (KEY("fit")) return truth;
    if (KEY("cache_priority")) return whole(v, 0, 100);
    if (KEY("idempotency_key")) return string(v, 64);
    if (KEY("stop")) return stop(v);
    if (KEY("max_tokens")) return whole(v, 1, 16777216);
    if (KEY("min_tokens")) return whole(v, 0, 16777216);
    if (KEY("top_k")) return whole(v, 0, 1048576);
    if (KEY("logprobs") || KEY("prompt_logprobs")) return whole(v, 0, 1024);
    if (KEY("seed") || KEY("deadline_ms")) return v->type == POSITIVE;
    if (KEY("forced_bos") || KEY("forced_eos")) return whole(v, -1, 2147483647);
    if (KEY("temperature")) return real(v, 0, 100);
    if (KEY("top_p")) return real(v, 0, 1) && !is_zero(v);
    if (KEY("min_p") || KEY("priority")) return real(v, 0, 1);
    if (KEY("repetition_penalty")) return real(v, 0, 10) && !is_zero(v);
    if (KEY("ignore_eos") || KEY("resume")) return truth;
    if (KEY("presence_penalty") || KEY("frequency_penalty")) return real(v, -2, 2);
    if (KEY("logit_bias")) return bias(v);
    if (KEY("ack_window")) return whole(v, 1, 256);
    if (KEY("beams")) return whole(v, 1, 16);
    if (KEY("n")) return whole(v, 1, 64);
    if (KEY("no_repeat_ngram")) return whole(v, 0, 1024);
    if (KEY("length_penalty")) return real(v, -100, 100);
    if (KEY("early_stopping"))
        return truth || (v->type == MSGPACK_OBJECT_STR && v->via.str.size == 5 &&
                         !memcmp(v->via.str.ptr, "never", 5));
    if (KEY("model_defaults") || KEY("return_encoder_output") || KEY("return_logits")) return truth;
    return KEY("encoder_features");
}

static uint64_t
whole_or(const msgpack_object *map, const char *key, uint64_t absent)
{
    uint64_t v = absent;

    msg_u64(map, key, &v);
    return v;
}

static uint64_t
n_ids(const msgpack_object *map, const char *key)
{
    const msgpack_object *o = msg_get(map, key);

    if (!o) return 0;
    return o->type == MSGPACK_OBJECT_BIN ? o->via.bin.size / 4 : o->via.array.size;
}

/* Three lists of one length, of unsigned integers alone. */
static bool
ref_resume(const msgpack_object *map)
{
    static const char *const keys[] = { "rids", "n_tokens", "text_bytes" };
    uint32_t n[3], i, k;

    for (i = 0; i < 3; i++) {
        const msgpack_object *o = msg_get(map, keys[i]);

        if (!o || o->type != MSGPACK_OBJECT_ARRAY) return false;
        n[i] = o->via.array.size;
        for (k = 0; k < n[i]; k++)
            if (o->via.array.ptr[k].type != POSITIVE) return false;
    }
    return n[0] && n[0] <= 65536 && n[0] == n[1] && n[1] == n[2];
}

static uint64_t
most_tokens(const msgpack_object *map)
{
    bool defaults = false;

    msg_bool(map, "model_defaults", &defaults);
    return whole_or(map, "max_tokens", defaults ? LAGAN_MAX_TOKENS : 16);
}

/* Beams are no samples, and samples need noise. */
static bool
ref_agrees(const msgpack_object *map)
{
    uint64_t beams = whole_or(map, "beams", 1), n = whole_or(map, "n", 1);
    double temperature = 0;
    bool defaults = false, logits = false;

    msg_f64(map, "temperature", &temperature);
    msg_bool(map, "model_defaults", &defaults);
    msg_bool(map, "return_logits", &logits);
    if (n > 1 && n_ids(map, "generated_ids") > 0) return false;
    if (logits && n > 1 && beams == 1) return false;
    if (defaults && !(msg_get(map, "beams") && msg_get(map, "temperature"))) return true;
    if (beams == 1) return n == 1 || temperature > 0;
    return n <= beams && temperature <= 0;
}

static bool
ref_request(const msgpack_object *map)
{
    bool ids = msg_get(map, "ids"), text = msg_get(map, "text"),
         messages = msg_get(map, "messages");
    uint32_t i;

    for (i = 0; i < map->via.map.size; i++) {
        const msgpack_object_kv *kv = &map->via.map.ptr[i];

        if (!value_ok(kv->key.via.str.ptr, kv->key.via.str.size, &kv->val)) return false;
    }
    if (ids + text + messages > 1) return false;
    if (!ids && !text && !messages && !msg_get(map, "encoder_features")) return false;
    if (n_ids(map, "generated_ids") >= most_tokens(map)) return false;
    if (!ref_agrees(map)) return false;
    return whole_or(map, "min_tokens", 0) <= most_tokens(map);
}

/* ---- both */

static void
look_at(const uint8_t *frame, size_t n)
{
    struct msg_request q;
    struct msg_resume resume;
    struct msg m;
    struct err e = { 0 };
    bool fine = ref_check(frame, n);
    int r = msg_check(frame, n, LAGAN_MAX_NODES, &e);
    uint32_t i;

    check((r == 0) == fine && (r == 0 || (r == -EBADMSG && *e.text)));
    r = msg_decode(&m, frame, n, &e);
    check(r == 0 || r == -EBADMSG || r == -EPROTO);
    check(fine || r < 0);
    check(n < 4 || frame[0] != 0x94 || frame[1] > 0x7f || frame[2] > 0x7f || frame[3] > 0x7f ||
          (m.version == frame[1] && m.type == frame[2] && m.rid == frame[3]));
    if (r < 0) return;
    check(m.version == 1 && m.map.type == MSGPACK_OBJECT_MAP);
    r = msg_resume(&resume, &m, &e);
    check((r == 0) == ref_resume(&m.map) && (r == 0 || (r == -EINVAL && *e.text)));
    for (i = 0; r == 0 && i < resume.n; i++) {
        check(resume.rid[i].via.u64 == msg_get(&m.map, "rids")->via.array.ptr[i].via.u64);
        check(resume.n_tokens[i].via.u64 == msg_get(&m.map, "n_tokens")->via.array.ptr[i].via.u64);
        check(resume.text_bytes[i].via.u64 ==
              msg_get(&m.map, "text_bytes")->via.array.ptr[i].via.u64);
    }
    r = msg_request(&q, &m, &e);
    check((r == 0) == ref_request(&m.map));
    if (r == 0) {
        for (i = 0; i < q.ids.n; i++) check(msg_id(&q.ids, i) >= 0);
        for (i = 0; i < q.decoder_ids.n; i++) check(msg_id(&q.decoder_ids, i) >= 0);
        for (i = 0; i < q.n_stop; i++)
            check((const uint8_t *)q.stop[i].p >= frame &&
                  (const uint8_t *)q.stop[i].p + q.stop[i].n <= frame + n);
        check(q.has_seed == (msg_get(&m.map, "seed") != NULL));
        check(q.max_tokens == most_tokens(&m.map));
        check(q.seed == whole_or(&m.map, "seed", 0));
        check(q.has_eos == (msg_get(&m.map, "eos_ids") != NULL));
        check(!q.has_text || q.text.n > 0);
    } else {
        check(r == -EINVAL && *e.text);
    }
    msg_done(&m);
}

/* ---- a recipe for a SUBMIT */

static uint64_t
word(struct in *in, int n)
{
    uint64_t v = 0;

    while (n--) v = v << 8 | byte(in);
    return v;
}

/* Text at the edges of UTF-8: the first and last of each length, and what is just outside. */
static void
pack_edges(struct in *in, msgpack_packer *p)
{
    static const char *const pieces[] = {
        "a",
        "\x7f",
        "\xc2\x80",
        "\xdf\xbf",
        "\xe0\xa0\x80",
        "\xed\x9f\xbf",
        "\xee\x80\x80",
        "\xf0\x90\x80\x80",
        "\xf4\x8f\xbf\xbf",
        "\xc1\xbf",
        "\xe0\x9f\xbf",
        "\xed\xa0\x80",
        "\xed\xbf\xbf",
        "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80",
        "\x80",
    };
    char s[16] = "";
    uint32_t n = 1 + byte(in) % 3;

    while (n--) strcat(s, pieces[byte(in) % ARRAY_LEN(pieces)]);
    msg_text(p, s);
}

static void
pack_string(struct in *in, msgpack_packer *p, bool bin)
{
    static char long_text[1 << 21];
    uint32_t n = byte(in), i;
    char s[512];

    if (n == 255 && byte(in) == 77) { /* about the longest that is taken: rarely, it is slow */
        if (!*long_text) memset(long_text, 'a', sizeof long_text);
        n = (1u << 20) - 1 + byte(in) % 3;
        if (bin)
            msg_bin(p, long_text, n);
        else
            msg_bytes(p, long_text, n);
        return;
    }
    if (n > 180) {
        pack_edges(in, p);
        return;
    }
    for (i = 0; i < n; i++) s[i] = in->p < in->end ? (char)byte(in) : 'b';
    if (bin)
        msg_bin(p, s, n);
    else
        msg_bytes(p, s, n);
}

static void
pack_value(struct in *in, msgpack_packer *p, int depth)
{
    static const double edges[] = {
        0, 0.5, 1, 1.0000001, -1, 10, 10.5, 100, 101, -100, -101, 1e300
    };
    uint32_t kind = byte(in) % 16, n, i;
    double d;
    uint64_t bits;

    switch (kind) {
    case 0:
    case 1:
        msgpack_pack_uint64(p, byte(in));
        return;
    case 2:
        msgpack_pack_int64(p, -(int64_t)byte(in) - 1);
        return;
    case 3:
        msgpack_pack_uint64(p, (UINT64_C(1) << byte(in) % 64) + byte(in) - 128);
        return;
    case 4:
        msgpack_pack_double(p, edges[byte(in) % ARRAY_LEN(edges)]);
        return;
    case 5:
        bits = word(in, 8);
        memcpy(&d, &bits, 8);
        msgpack_pack_double(p, d); /* NaN too */
        return;
    case 6:
        msgpack_pack_float(p, (float)edges[byte(in) % ARRAY_LEN(edges)]);
        return;
    case 7:
        if (byte(in) & 1)
            msgpack_pack_true(p);
        else
            msgpack_pack_false(p);
        return;
    case 8:
        msgpack_pack_nil(p);
        return;
    case 9:
        pack_string(in, p, /* bin= */ true);
        return;
    case 10: /* a list of ids */
    case 11:
        n = byte(in) % 20;
        msgpack_pack_array(p, n);
        for (i = 0; i < n; i++) {
            if (kind == 10)
                msgpack_pack_uint64(p, byte(in));
            else
                pack_value(in, p, 99);
        }
        return;
    case 12: /* many nodes */
        n = 4000 + byte(in);
        msgpack_pack_array(p, n);
        while (n--) msgpack_pack_nil(p);
        return;
    case 13:
        if (depth > 9) break;
        n = byte(in) % 3;
        msgpack_pack_array(p, n);
        while (n--) pack_value(in, p, depth + 1);
        return;
    case 14:
        if (depth > 9) break;
        msgpack_pack_map(p, 1);
        pack_string(in, p, false);
        pack_value(in, p, depth + 1);
        return;
    default:
        break;
    }
    if (byte(in) % 4 == 0)
        msg_text(p, "never");
    else
        pack_string(in, p, false);
}

enum kind { IDS, STR, U32, I32, U64, F64, OVER, BOOL, EARLY, STOPS, BIAS, ANY };

static const struct field {
    const char *key;
    enum kind kind;
    double least, most;
} fields[] = {
#define X(kind, name, least, most, preset, record, fallback, sentence) { #name, kind, least, most },
    LAGAN_FIELDS(X)
#undef X
};

/* A number in, at and outside the range; also one that is in range when cut to 32 bits. */
static void
pack_number(struct in *in, msgpack_packer *p, const struct field *f)
{
    bool real = f->kind == F64 || f->kind == OVER;
    uint32_t which = byte(in) % 8;
    int64_t v;

    if (real && which < 4) {
        const double edge[4] = { f->least, f->most, f->least - 1e-9, f->most + 1e-9 };

        msgpack_pack_double(p, edge[which]);
        return;
    }
    v = which == 0   ? (int64_t)f->least
        : which == 1 ? (int64_t)f->most
        : which == 2 ? (int64_t)f->least - 1
        : which == 3 ? (int64_t)f->most + 1
        : which == 4 ? (INT64_C(1) << 32) + byte(in)
        : which == 5 ? byte(in) - (INT64_C(1) << 32)
        : which == 6 ? -(int64_t)byte(in)
                     : (int64_t)byte(in);
    msgpack_pack_int64(p, v);
}

/* A value of the key's own kind, mostly one that is taken. */
static void
pack_typed(struct in *in, msgpack_packer *p, const struct field *f)
{
    static const uint32_t lengths[] = { 1, 2, 255, 256, 257, 0 };
    char s[300];
    uint32_t n, i;

    memset(s, 's', sizeof s);
    switch (f->kind) {
    case IDS: /* as bytes; the other kinds of values make lists */
        n = byte(in) % 24;
        for (i = 0; i < 4 * n; i++) s[i] = i % 4 ? 0 : (char)byte(in);
        if (n && byte(in) % 16 == 0) s[4 * n - 1] = (char)byte(in);
        msg_bin(p, s, 4 * n + (byte(in) % 4 ? 0 : byte(in) % 4));
        return;
    case STR:
        n = byte(in);
        msg_bytes(p, s, n % 4 ? 1 + n % 3 : MIN((uint32_t)f->most + n % 3, 299u));
        return;
    case STOPS:
        n = byte(in) % 18;
        msgpack_pack_array(p, n);
        while (n--) msg_bytes(p, s, lengths[MIN(byte(in), 160u) / 32 % ARRAY_LEN(lengths)]);
        return;
    case BIAS:
        n = byte(in) % 5;
        msgpack_pack_array(p, n);
        while (n--) {
            bool more = byte(in) % 16 == 0;

            msgpack_pack_array(p, more ? 3 : 2);
            msgpack_pack_int32(p, (int32_t)byte(in) - (byte(in) % 16 == 0));
            msgpack_pack_double(p, (double)byte(in) - (byte(in) % 4 ? 100 : 156));
            if (more) msgpack_pack_nil(p);
        }
        return;
    case BOOL:
    case EARLY:
        n = byte(in) % 4;
        if (n == 3)
            msg_text(p, byte(in) % 4 ? "never" : "nevel");
        else if (n)
            msgpack_pack_true(p);
        else
            msgpack_pack_false(p);
        return;
    case ANY:
        pack_value(in, p, 0);
        return;
    default:
        pack_number(in, p, f);
    }
}

/* Adds a prompt, unless the recipe has none, then different keys, so that many recipes are
 * valid. */
static void
cook(struct in *in, msgpack_sbuffer *b)
{
    uint32_t n = byte(in) % 68, i, at = byte(in);
    bool prompt = byte(in) % 8;
    msgpack_packer p;

    n = n > 55 ? 64 + n % 2 - prompt : n % 8; /* few, or as many as there may be, or one more */
    msgpack_packer_init(&p, b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_SUBMIT, at, n + prompt);
    if (prompt) msg_key(&p, "text"), msg_text(&p, "x");
    for (i = 0; i < n; i++) {
        uint32_t which = byte(in);
        const struct field *f = &fields[which % ARRAY_LEN(fields)];
        char name[16] = { 'k', (char)('0' + i / 10), (char)('0' + i % 10), 0 };

        if (in->p == in->end) { /* the rest are keys of no meaning */
            msg_key(&p, name);
            msgpack_pack_nil(&p);
        } else if (which < 5 * ARRAY_LEN(fields)) {
            msg_key(&p, f->key);
            pack_typed(in, &p, f);
        } else if (which < 6 * ARRAY_LEN(fields)) {
            msg_key(&p, f->key);
            pack_value(in, &p, 0);
        } else { /* a key of no meaning, so that there may be many */
            msg_key(&p, which % 16 == 0 ? "!must" : which % 16 == 1 ? "" : name);
            pack_value(in, &p, 0);
        }
    }
}

/* RESUME's lists: mostly of one length and of what they should be. */
static void
cook_resume(struct in *in, msgpack_sbuffer *b)
{
    static const char *const keys[] = { "rids", "n_tokens", "text_bytes" };
    uint32_t n = 1 + byte(in) % 3, missing = byte(in) % 16, i, k;
    msgpack_packer p;

    msgpack_packer_init(&p, b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_RESUME, byte(in), 3 - (missing < 3));
    for (i = 0; i < 3; i++) {
        uint32_t how = byte(in), len = how % 4 ? n : how / 4 % 5;

        if (i == missing) continue;
        msg_key(&p, keys[i]);
        msgpack_pack_array(&p, len);
        for (k = 0; k < len; k++) {
            how = byte(in);
            if (how % 4)
                msgpack_pack_uint64(&p, word(in, (int)(how % 9)));
            else
                pack_value(in, &p, 6);
        }
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct in in = { data, data + size };
    msgpack_sbuffer b;
    uint32_t what;

    what = byte(&in);
    if (what & 1) {
        look_at(in.p, (size_t)(in.end - in.p));
        return 0;
    }
    msgpack_sbuffer_init(&b);
    if ((what & 6) == 4) {
        cook_resume(&in, &b);
    } else {
        cook(&in, &b);
    }
    look_at((const uint8_t *)b.data, b.size);
    msgpack_sbuffer_destroy(&b);
    return 0;
}
