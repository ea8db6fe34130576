/* msg_check.c - checks a client's frame against the limits of lagan_wire.h before it is unpacked.
 *
 * MessagePack-C allocates as much as the header of a container announces: 5 bytes may request 8
 * GiB. Therefore msg_check() reads every byte before the frame is unpacked. It is iterative (a
 * stack of LAGAN_MAX_DEPTH containers) and allocates nothing. Its limits hold for the whole frame,
 * because limits for each level would multiply.
 *
 * A node is one MessagePack value; a container is an array or a map. A node costs MessagePack-C
 * about 24 bytes. Integers in arrays have their own limit, LAGAN_MAX_LIST, because a prompt is a
 * long list of integers; all other nodes are at most LAGAN_MAX_NODES. */
#include "base/utf8.h"
#include "wire/msg.h"

#include <math.h>

struct span {
    const uint8_t *p;
    uint32_t n;
};

struct level {       /* a container whose elements are not all read */
    uint64_t left;   /* nodes not yet read; keys and values of a map both count */
    bool map;        /* true: a map; if left is even, the next node is a key */
    uint32_t n_keys; /* keys read so far, in key[] */
    struct span key[LAGAN_MAX_KEYS];
};

struct pass {
    const uint8_t *start, *p, *end;
    uint32_t nodes, max_nodes, ids, depth;
    struct level level[LAGAN_MAX_DEPTH];
};

static uint64_t
big_endian(const uint8_t *p, uint32_t n)
{
    uint64_t v = 0;

    while (n--) v = v << 8 | *p++;
    return v;
}

static int
bad(const struct pass *c, struct err *e, const char *what)
{
    return err_set(e, -EBADMSG, "byte %zu of the frame: %s", (size_t)(c->p - c->start), what);
}

bool
msg_utf8(const void *s, size_t n)
{
    return utf8_valid(s, n) == n;
}

#define TOO_MANY "the arrays of the frame have more than 262144 integers"

static int
open_container(struct pass *c, bool map, uint64_t n, struct err *e)
{
    struct level *l;

    if (map && n > LAGAN_MAX_KEYS) return bad(c, e, "a map has more than 64 keys");
    if (map) n *= 2;
    /* An element has at least 1 byte, so a header cannot announce more elements than bytes. */
    if (n > (uint64_t)(c->end - c->p)) return bad(c, e, "an array or map is longer than the frame");
    if (n > (uint64_t)(LAGAN_MAX_LIST - c->ids) + (c->max_nodes - c->nodes))
        return bad(c, e, TOO_MANY);
    if (c->depth == LAGAN_MAX_DEPTH) return bad(c, e, "more than 8 arrays and maps are nested");
    l = &c->level[c->depth++];
    l->left = n;
    l->map = map;
    l->n_keys = 0;
    return 0;
}

static int
take_key(struct pass *c, struct level *l, const uint8_t *p, uint64_t n, struct err *e)
{
    uint32_t i;

    if (n > LAGAN_MAX_KEY) return bad(c, e, "a key is longer than 64 bytes");
    for (i = 0; i < l->n_keys; i++)
        if (l->key[i].n == n && !memcmp(l->key[i].p, p, n))
            return err_set(e, -EBADMSG, "byte %zu of the frame: the key '%.*s' occurs twice",
                           (size_t)(p - c->start), (int)n, (const char *)p);
    l->key[l->n_keys++] = (struct span){ p, (uint32_t)n };
    return 0;
}

/* Kind of a node. PLAIN: nil, false, true; EXT: an extension type. */
enum kind { INVALID, INTEGER, PLAIN, FLOAT, STR, BIN, ARRAY, MAP, EXT };

/* Returns the kind of a node that starts with byte b. *n: bytes of its payload (elements of a
 * container), unless *len_bytes is not 0: then this number follows b in len_bytes bytes. */
static enum kind
first_byte(uint8_t b, uint32_t *len_bytes, uint64_t *n)
{
    *len_bytes = 0;
    *n = 0;
    if (b <= 0x7f || b >= 0xe0) return INTEGER;
    if (b <= 0x8f) return *n = b & 0x0f, MAP;
    if (b <= 0x9f) return *n = b & 0x0f, ARRAY;
    if (b <= 0xbf) return *n = b & 0x1f, STR;
    switch (b) {
    case 0xc0:          /* nil */
    case 0xc2 ... 0xc3: /* false, true */
        return PLAIN;
    case 0xc4 ... 0xc6:
        return *len_bytes = 1u << (b - 0xc4), BIN;
    case 0xca ... 0xcb:
        return *n = 4u << (b - 0xca), FLOAT;
    case 0xcc ... 0xcf:
        return *n = 1u << (b - 0xcc), INTEGER;
    case 0xd0 ... 0xd3:
        return *n = 1u << (b - 0xd0), INTEGER;
    case 0xd9 ... 0xdb:
        return *len_bytes = 1u << (b - 0xd9), STR;
    case 0xdc ... 0xdd:
        return *len_bytes = 2u << (b - 0xdc), ARRAY;
    case 0xde ... 0xdf:
        return *len_bytes = 2u << (b - 0xde), MAP;
    case 0xc1:
        return INVALID;
    default:
        return EXT;
    }
}

static bool
finite_float(const uint8_t *p, uint64_t n)
{
    uint64_t bits = big_endian(p, (uint32_t)n);

    /* An exponent of all ones is an infinity or NaN. */
    return n == 4 ? (bits >> 23 & 0xff) != 0xff : (bits >> 52 & 0x7ff) != 0x7ff;
}

/* Checks the next node: its header, and its payload unless it is a container. */
static int
take_node(struct pass *c, struct err *e)
{
    struct level *up = c->depth ? &c->level[c->depth - 1] : NULL;
    bool key = up && up->map && up->left % 2 == 0;
    uint32_t len_bytes;
    enum kind kind;
    uint64_t n;

    if (c->p == c->end) return bad(c, e, "the frame ends before the message is complete");
    kind = first_byte(*c->p, &len_bytes, &n);
    if (kind == INVALID) return bad(c, e, "0xc1 is not valid MessagePack");
    if (kind == EXT) return bad(c, e, "a value has an ext type, which no message uses");
    if (kind == INTEGER && c->depth > 1 && !up->map) { /* in an array; depth 1: envelope */
        if (++c->ids > LAGAN_MAX_LIST) return bad(c, e, TOO_MANY);
    } else if (++c->nodes > c->max_nodes) {
        return err_set(e, -EBADMSG, "byte %zu of the frame: the message has more than %u values",
                       (size_t)(c->p - c->start), c->max_nodes);
    }
    if (key && kind != STR) return bad(c, e, "a key of a map is not a string");
    if (up) up->left--;
    c->p++;
    if (len_bytes) {
        if ((size_t)(c->end - c->p) < len_bytes) return bad(c, e, "the frame ends inside a length");
        n = big_endian(c->p, len_bytes);
        c->p += len_bytes;
    }
    if (kind == ARRAY || kind == MAP) return open_container(c, kind == MAP, n, e);
    if (n > (uint64_t)(c->end - c->p)) return bad(c, e, "a value is longer than the frame");
    if (kind == FLOAT && !finite_float(c->p, n)) return bad(c, e, "a float is infinite or NaN");
    if (kind == STR && n > LAGAN_MAX_STR) return bad(c, e, "a string is longer than 4 MiB");
    if (kind == STR && !msg_utf8(c->p, n)) return bad(c, e, "a string is not UTF-8");
    if (key) TRY(take_key(c, up, c->p, n, e));
    c->p += n;
    return 0;
}

int
msg_check(const void *frame, size_t n, uint32_t max_nodes, struct err *e)
{
    struct pass c;

    c.start = c.p = frame;
    c.end = c.start + n;
    c.nodes = c.ids = c.depth = 0;
    c.max_nodes = max_nodes;
    if (n > LAGAN_MAX_FRAME)
        return err_set(e, -EBADMSG, "the frame has %zu bytes; the limit is %u", n, LAGAN_MAX_FRAME);
    do {
        TRY(take_node(&c, e));
        while (c.depth && !c.level[c.depth - 1].left) c.depth--;
    } while (c.depth);
    if (c.p != c.end) return bad(&c, e, "the frame has bytes behind the message");
    return 0;
}

struct msg_head
msg_head(const void *frame, size_t n)
{
    struct msg_head head = { 0 };
    uint64_t *field[] = { &head.version, &head.type, &head.rid };
    const uint8_t *p = frame, *end = p + n;
    uint32_t len_bytes;
    uint64_t bytes;

    if (p == end || first_byte(*p, &len_bytes, &bytes) != ARRAY) return head;
    p += 1 + len_bytes;
    for (size_t i = 0; i < ARRAY_LEN(field); i++) {
        if (p >= end || first_byte(*p, &len_bytes, &bytes) != INTEGER) break;
        if (bytes >= (uint64_t)(end - p)) break;
        if (*p >= 0xe0 || (*p >= 0xd0 && p[1] & 0x80)) break; /* negative */
        *field[i] = bytes ? big_endian(p + 1, (uint32_t)bytes) : *p;
        p += 1 + bytes;
    }
    return head;
}
