/* msg.c - decodes the envelope of a client message, reads its keys, and encodes messages.
 * msg_check.c checks a frame before it is unpacked; msg_request.c decodes SUBMIT and RESUME. */
#include "wire/msg.h"

static int
envelope(struct msg *ret, const msgpack_object *o, struct err *e)
{
    const msgpack_object *at = o->via.array.ptr;

    if (o->type != MSGPACK_OBJECT_ARRAY || o->via.array.size < 1 ||
        at[0].type != MSGPACK_OBJECT_POSITIVE_INTEGER)
        return err_set(e, -EBADMSG, "not a message: [version, type, rid, {map}] is expected");
    if (ret->version != LAGAN_WIRE_VERSION)
        return err_set(e, -EPROTO,
                       "the message has protocol version %u, lagand supports version %d",
                       ret->version, LAGAN_WIRE_VERSION);
    if (o->via.array.size != 4)
        return err_set(e, -EBADMSG, "not a message: the list has %u elements, expected 4",
                       o->via.array.size);
    if (at[1].type != MSGPACK_OBJECT_POSITIVE_INTEGER || at[1].via.u64 > UINT32_MAX)
        return err_set(e, -EBADMSG, "not a message: the type is not an unsigned integer");
    if (at[2].type != MSGPACK_OBJECT_POSITIVE_INTEGER)
        return err_set(e, -EBADMSG, "not a message: the rid is not an unsigned integer");
    if (at[3].type != MSGPACK_OBJECT_MAP)
        return err_set(e, -EBADMSG, "not a message: the fourth element is not a map");
    ret->map = at[3];
    return 0;
}

int
msg_decode_long(struct msg *ret, const void *frame, size_t n, uint32_t max_nodes, struct err *e)
{
    const struct msg_head head = msg_head(frame, n);
    msgpack_object o;
    size_t off = 0;
    int r;

    *ret = (struct msg){ .version = (uint32_t)MIN(head.version, (uint64_t)UINT32_MAX),
                         .type = (uint32_t)MIN(head.type, (uint64_t)UINT32_MAX),
                         .rid = head.rid };
    TRY(msg_check(frame, n, max_nodes, e));
    ret->zone = msgpack_zone_new(MSGPACK_ZONE_CHUNK_SIZE);
    if (!ret->zone) return err_set(e, -ENOMEM, "no memory to decode a message");
    if (msgpack_unpack(frame, n, &off, ret->zone, &o) != MSGPACK_UNPACK_SUCCESS)
        r = err_set(e, -EBADMSG, "msgpack_unpack() rejects the frame of %zu bytes", n);
    else
        r = envelope(ret, &o, e);
    if (r < 0) msg_done(ret);
    return r;
}

int
msg_decode(struct msg *ret, const void *frame, size_t n, struct err *e)
{
    return msg_decode_long(ret, frame, n, LAGAN_MAX_NODES, e);
}

void
msg_done(struct msg *m)
{
    if (m->zone) msgpack_zone_free(m->zone);
    m->zone = NULL;
    memset(&m->map, 0, sizeof m->map);
}

const msgpack_object *
msg_get(const msgpack_object *map, const char *key)
{
    size_t n = strlen(key);

    if (map->type != MSGPACK_OBJECT_MAP) return NULL;
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        const msgpack_object_kv *kv = &map->via.map.ptr[i];

        if (kv->key.type == MSGPACK_OBJECT_STR && kv->key.via.str.size == n &&
            !memcmp(kv->key.via.str.ptr, key, n))
            return &kv->val;
    }
    return NULL;
}

int
msg_u64(const msgpack_object *map, const char *key, uint64_t *ret)
{
    const msgpack_object *o = msg_get(map, key);

    if (!o) return -ENOENT;
    if (o->type != MSGPACK_OBJECT_POSITIVE_INTEGER) return -EINVAL;
    *ret = o->via.u64;
    return 0;
}

int
msg_i64(const msgpack_object *map, const char *key, int64_t *ret)
{
    const msgpack_object *o = msg_get(map, key);

    if (!o) return -ENOENT;
    if (o->type == MSGPACK_OBJECT_POSITIVE_INTEGER && o->via.u64 <= INT64_MAX)
        *ret = (int64_t)o->via.u64;
    else if (o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER)
        *ret = o->via.i64;
    else
        return -EINVAL;
    return 0;
}

int
msg_number(const msgpack_object *o, double *ret)
{
    switch (o->type) {
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        *ret = o->via.f64;
        return 0;
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        *ret = (double)o->via.u64;
        return 0;
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        *ret = (double)o->via.i64;
        return 0;
    default:
        return -EINVAL;
    }
}

int
msg_f64(const msgpack_object *map, const char *key, double *ret)
{
    const msgpack_object *o = msg_get(map, key);

    return o ? msg_number(o, ret) : -ENOENT;
}

int
msg_bool(const msgpack_object *map, const char *key, bool *ret)
{
    const msgpack_object *o = msg_get(map, key);

    if (!o) return -ENOENT;
    if (o->type != MSGPACK_OBJECT_BOOLEAN) return -EINVAL;
    *ret = o->via.boolean;
    return 0;
}

int
msg_str(const msgpack_object *map, const char *key, struct msg_span *ret)
{
    const msgpack_object *o = msg_get(map, key);

    if (!o) return -ENOENT;
    if (o->type == MSGPACK_OBJECT_STR)
        *ret = (struct msg_span){ o->via.str.ptr, o->via.str.size };
    else if (o->type == MSGPACK_OBJECT_BIN)
        *ret = (struct msg_span){ o->via.bin.ptr, o->via.bin.size };
    else
        return -EINVAL;
    return 0;
}

token_id
msg_id(const struct msg_ids *ids, uint32_t i)
{
    const msgpack_object *o = ids->o;

    check(o && i < ids->n);
    if (o->type == MSGPACK_OBJECT_BIN) {
        const uint8_t *p = (const uint8_t *)o->via.bin.ptr + 4 * (size_t)i;

        return (token_id)((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                          (uint32_t)p[3] << 24);
    }
    return (token_id)o->via.array.ptr[i].via.u64;
}

void
msg_ids_copy(const struct msg_ids *ids, void *to)
{
    bool as_they_are = ids->n && ids->o->type == MSGPACK_OBJECT_BIN &&
                       __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;

    if (as_they_are) memcpy(to, ids->o->via.bin.ptr, 4 * (size_t)ids->n);
    for (uint32_t i = 0; i < ids->n && !as_they_are; i++) {
        token_id id = msg_id(ids, i);

        memcpy((char *)to + 4 * (size_t)i, &id, 4);
    }
}

/* Returns the index of the first negative id of n i32 LE ids at p; n: no id is negative. The first
 * loop has no branch, because a prompt may have a million ids. */
static uint32_t
first_negative(const char *p, uint32_t n)
{
    uint32_t i = 0;
    uint8_t any = 0;

    for (; i < n; i++) any |= (uint8_t)p[4 * (size_t)i + 3];
    for (i = any & 0x80 ? 0 : n; i < n && !(p[4 * (size_t)i + 3] & 0x80);) i++;
    return i;
}

/* Validates every element, so that msg_id() cannot fail. */
int
msg_ids(const msgpack_object *map, const char *key, struct msg_ids *ret, struct err *e)
{
    const msgpack_object *o = msg_get(map, key);
    struct msg_ids ids = { .o = o };
    uint32_t i;

    if (!o) return *ret = ids, -ENOENT;
    if (o->type == MSGPACK_OBJECT_BIN) {
        if (o->via.bin.size % 4)
            return err_set(e, -EINVAL, "%s has %u bytes, not a multiple of 4 (4 bytes for each id)",
                           key, o->via.bin.size);
        ids.n = o->via.bin.size / 4;
        i = first_negative(o->via.bin.ptr, ids.n);
        if (i < ids.n)
            return err_set(e, -EINVAL, "%s[%u] is %d, a token id is 0 or more", key, i,
                           msg_id(&ids, i));
    } else if (o->type == MSGPACK_OBJECT_ARRAY) {
        ids.n = o->via.array.size;
    } else {
        return err_set(e, -EINVAL, "%s is neither an array of token ids nor a bin of them", key);
    }
    for (i = 0; i < ids.n && o->type == MSGPACK_OBJECT_ARRAY; i++) {
        const msgpack_object *x = &o->via.array.ptr[i];

        if (x->type == MSGPACK_OBJECT_NEGATIVE_INTEGER)
            return err_set(e, -EINVAL, "%s[%u] is %lld, a token id is 0 or more", key, i,
                           (long long)x->via.i64);
        if (x->type != MSGPACK_OBJECT_POSITIVE_INTEGER || x->via.u64 > INT32_MAX)
            return err_set(e, -EINVAL, "%s[%u] is not an integer from 0 to 2^31 - 1", key, i);
    }
    *ret = ids;
    return 0;
}

int
msg_understood(const msgpack_object *map, struct err *e)
{
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        const msgpack_object_str *k = &map->via.map.ptr[i].key.via.str;

        if (k->size && k->ptr[0] == '!')
            return err_set(e, -EINVAL,
                           "the key '%.*s' is unknown; an unknown key with '!' may not be ignored",
                           (int)k->size, k->ptr);
    }
    return 0;
}

void
msg_begin(msgpack_packer *p, uint32_t type, uint64_t rid, uint32_t n_keys)
{
    msgpack_pack_array(p, 4);
    msgpack_pack_unsigned_int(p, LAGAN_WIRE_VERSION);
    msgpack_pack_uint32(p, type);
    msgpack_pack_uint64(p, rid);
    msgpack_pack_map(p, n_keys);
}

void
msg_key(msgpack_packer *p, const char *key)
{
    msgpack_pack_str_with_body(p, key, strlen(key));
}

void
msg_key_u64(msgpack_packer *p, const char *key, uint64_t v)
{
    msg_key(p, key);
    msgpack_pack_uint64(p, v);
}

void
msg_text(msgpack_packer *p, const char *s)
{
    msgpack_pack_str_with_body(p, s, strlen(s));
}

void
msg_any_text(msgpack_packer *p, const char *s)
{
    msg_text(p, msg_utf8(s, strlen(s)) ? s : "(not UTF-8)");
}

void
msg_bytes(msgpack_packer *p, const char *s, size_t n)
{
    msgpack_pack_str_with_body(p, s, n);
}

void
msg_bin(msgpack_packer *p, const void *b, size_t n)
{
    msgpack_pack_bin_with_body(p, b, n);
}
