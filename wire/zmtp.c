/* zmtp.c - the ZMTP 3 protocol of a local connection: decodes received bytes, encodes heads. */
#include "wire/zmtp.h"

#include <strings.h>

enum { AT_SIGNATURE = 9, AT_VERSION = 10, AT_MINOR = 11, AT_MECHANISM = 12, MECHANISM = 20 };
enum { MAJOR = 3, MINOR = 1 };
enum { FIRST_CAPACITY = 4 << 10 };

/* ---- receiving */

/* Returns true if the first n bytes g of a greeting are valid so far, so that a peer with another
 * protocol is rejected at its first bytes. */
static bool
is_greeting(const uint8_t *g, uint32_t n)
{
    static const char mechanism[MECHANISM] = "NULL";

    if (n > 0 && g[0] != 0xff) return false;
    if (n > AT_SIGNATURE && g[AT_SIGNATURE] != 0x7f) return false;
    if (n > AT_VERSION && g[AT_VERSION] < MAJOR) return false;
    return n < AT_MECHANISM + MECHANISM || !memcmp(g + AT_MECHANISM, mechanism, MECHANISM);
}

static uint32_t
head_size(const struct zmtp *z)
{
    return z->n_head && z->head[0] & ZMTP_LONG ? ZMTP_HEAD : 2;
}

/* Starts a frame: validates its complete head. -EMSGSIZE: the message exceeds `most` bytes. */
static int
begin(struct zmtp *z, uint32_t most)
{
    uint8_t flags = z->head[0];
    bool command = flags & ZMTP_COMMAND;
    uint64_t size = 0;

    if (flags & ~(ZMTP_MORE | ZMTP_LONG | ZMTP_COMMAND)) return -EPROTO;
    if (command && flags & ZMTP_MORE) return -EPROTO;
    if (!command && z->state != ZMTP_OPEN) return -EPROTO;
    for (uint32_t i = 1; i < z->n_head; i++) size = size << 8 | z->head[i];
    if (size > most || (!command && size + z->before > most)) return -EMSGSIZE;
    z->size = (uint32_t)size;
    z->got = 0;
    return 0;
}

static int
keep(struct zmtp *z, const uint8_t *p, uint32_t n)
{
    if (z->got + n > z->capacity) {
        uint32_t capacity = MAX(MAX(2 * z->capacity, (uint32_t)FIRST_CAPACITY), z->got + n);
        uint8_t *body;

        capacity = MIN(capacity, z->size);
        body = realloc(z->body, capacity);
        if (!body) return -ENOMEM;
        z->body = body;
        z->capacity = capacity;
    }
    memcpy(z->body + z->got, p, n);
    return 0;
}

static bool
is(const uint8_t *p, uint32_t n, const char *word)
{
    return n == strlen(word) && !memcmp(p, word, n);
}

/* Returns true if the n bytes p of READY are valid properties {length, name, length in 4 bytes,
 * value} and the Socket-Type, if present, can talk to a ROUTER. Other properties are ignored. */
static bool
may_talk(const uint8_t *p, uint32_t n)
{
    static const char type[] = "Socket-Type";
    bool known = true;

    while (n) {
        uint32_t name = p[0], value;
        const uint8_t *v;

        if (n < 1 + name + 4) return false;
        v = p + 1 + name;
        value = (uint32_t)v[0] << 24 | (uint32_t)v[1] << 16 | (uint32_t)v[2] << 8 | v[3];
        n -= 1 + name + 4;
        v += 4;
        if (value > n) return false;
        if (name == strlen(type) && !strncasecmp((const char *)p + 1, type, name))
            known = is(v, value, "DEALER") || is(v, value, "REQ") || is(v, value, "ROUTER");
        n -= value;
        p = v + value;
    }
    return known;
}

static int
command(struct zmtp *z, const uint8_t *p, uint32_t n, struct zmtp_item *item)
{
    uint32_t name = n ? p[0] : 0;
    const uint8_t *rest;

    if (!name || name > n - 1) return -EPROTO;
    rest = p + 1 + name;
    n -= 1 + name;
    if (z->state == ZMTP_SHAKEN) {
        if (!is(p + 1, name, "READY") || !may_talk(rest, n)) return -EPROTO;
        z->state = ZMTP_OPEN;
        item->what = ZMTP_READY;
    } else if (is(p + 1, name, "PING")) {
        if (n < 2) return -EPROTO;
        n = MIN(n - 2, (uint32_t)ZMTP_CONTEXT);
        *item = (struct zmtp_item){ .what = ZMTP_PINGED, .p = rest + 2, .n = n };
    }
    return 0;
}

static int
end(struct zmtp *z, const uint8_t *frame, struct zmtp_item *item)
{
    uint8_t flags = z->head[0];

    z->n_head = 0;
    z->given = frame == z->body;
    if (flags & ZMTP_COMMAND) return command(z, frame, z->size, item);
    z->n_frames++;
    z->before += z->size + ZMTP_HEAD; /* ZMTP_HEAD bounds the number of empty frames too */
    if (flags & ZMTP_MORE) return 0;
    *item = (struct zmtp_item){ .what = ZMTP_MESSAGE, .n_frames = z->n_frames };
    if (z->n_frames == 1) {
        item->p = frame;
        item->n = z->size;
    }
    z->n_frames = z->before = 0;
    return 0;
}

static int
take_frame(struct zmtp *z, uint32_t most, const uint8_t *p, uint32_t n, struct zmtp_item *item)
{
    bool whole, spare;
    uint32_t taken = 0, part;

    if (z->n_head < head_size(z)) {
        while (taken < n && z->n_head < head_size(z)) z->head[z->n_head++] = p[taken++];
        if (z->n_head < head_size(z)) return (int)taken;
        TRY(begin(z, most));
    }
    part = MIN(n - taken, z->size - z->got);
    spare = !(z->head[0] & ZMTP_COMMAND) && (z->head[0] & ZMTP_MORE || z->n_frames);
    whole = part == z->size;
    if (part && !whole && !spare) TRY(keep(z, p + taken, part));
    if (z->got + part == z->size) TRY(end(z, whole || spare ? p + taken : z->body, item));
    z->got += part;
    return (int)(taken + part);
}

void
zmtp_done(struct zmtp *z)
{
    if (!z->given) return;
    free(z->body);
    z->body = NULL;
    z->capacity = 0;
    z->given = false;
}

int
zmtp_take(struct zmtp *z, uint32_t most, const uint8_t *p, uint32_t n, struct zmtp_item *item)
{
    uint32_t part;

    *item = (struct zmtp_item){ .what = ZMTP_NOTHING };
    zmtp_done(z);
    if (z->state != ZMTP_GREETED) return take_frame(z, most, p, n, item);
    part = MIN(n, (uint32_t)ZMTP_GREETING - z->n_head);
    memcpy(z->head + z->n_head, p, part);
    z->n_head += (uint8_t)part;
    if (!is_greeting(z->head, z->n_head)) return -EPROTO;
    if (z->n_head == ZMTP_GREETING) {
        z->n_head = 0;
        z->pings = z->head[AT_VERSION] > MAJOR || z->head[AT_MINOR] >= MINOR;
        z->state = ZMTP_SHAKEN;
    }
    return (int)part;
}

uint32_t
zmtp_missing(const struct zmtp *z)
{
    bool known = z->state != ZMTP_GREETED && z->n_head && z->n_head == head_size(z);

    return known ? z->size - z->got : 0;
}

void
zmtp_close(struct zmtp *z)
{
    free(z->body);
    *z = (struct zmtp){ 0 };
}

/* ---- sending */

void
zmtp_hello(uint8_t hello[ZMTP_HELLO], bool client)
{
    static const uint8_t greeting[ZMTP_GREETING] = {
        0xff, [AT_SIGNATURE] = 0x7f, MAJOR, MINOR, 'N', 'U', 'L', 'L'
    };
    static const char ready[] = "\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06";

    memcpy(hello, greeting, sizeof greeting);
    if (client) hello[AT_MINOR] = 0;
    memcpy(hello + sizeof greeting, ready, sizeof ready - 1);
    memcpy(hello + sizeof greeting + sizeof ready - 1, client ? "DEALER" : "ROUTER", 6);
}

uint32_t
zmtp_head(uint8_t head[ZMTP_HEAD], uint32_t n)
{
    if (n < 256) {
        head[0] = 0;
        head[1] = (uint8_t)n;
        return 2;
    }
    memset(head, 0, ZMTP_HEAD);
    head[0] = ZMTP_LONG;
    for (uint32_t i = 0; i < 4; i++) head[ZMTP_HEAD - 1 - i] = (uint8_t)(n >> 8 * i);
    return ZMTP_HEAD;
}

uint32_t
zmtp_ping(uint8_t frame[ZMTP_PING], uint16_t ttl)
{
    memcpy(frame, "\x04\x07\x04PING", 7);
    frame[7] = (uint8_t)(ttl >> 8);
    frame[8] = (uint8_t)ttl;
    return ZMTP_PING;
}

uint32_t
zmtp_pong(uint8_t frame[ZMTP_PONG], const uint8_t *context, uint32_t n)
{
    check(n <= ZMTP_CONTEXT);
    memcpy(frame, "\x04\x05\x04PONG", 7);
    frame[1] = (uint8_t)(5 + n);
    memcpy(frame + 7, context, n);
    return 7 + n;
}
