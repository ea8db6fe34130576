/* fuzz_zmtp.c - a connection's bytes in pieces against a reference that reads all of them at once.
 *
 * Input is a greeting and a list of parts in a short form: READY, frames, commands, and bytes as
 * they are. Each part may be corrupted. Then follow the lengths of the pieces in which the bytes
 * arrive. The reference is written from zmtp.h alone.
 */
#include "tests/fuzz/fuzz.h"

#include "wire/zmtp.h"

enum { STREAM_BYTES = 1 << 15, MOST = 20000, MAX_ITEMS = STREAM_BYTES, MIN_CAPACITY = 4096 };

struct event {
    enum zmtp_what what;
    uint32_t n, n_frames;
    uint64_t sum; /* of its bytes and where they are */
};

static uint8_t stream[STREAM_BYTES];
static uint32_t n_stream;
static struct event want[MAX_ITEMS], got[MAX_ITEMS];
static uint32_t n_want, n_got, ref_missing;

static uint64_t
sum(const uint8_t *p, uint32_t n)
{
    uint64_t h = 7;

    for (uint32_t i = 0; i < n; i++) h = h * 31 + p[i];
    return h;
}

/* ---- the ref */

static void
say(enum zmtp_what what, const uint8_t *p, uint32_t n, uint32_t n_frames)
{
    want[n_want++] = (struct event){ what, n, n_frames, sum(p, n) };
}

static bool
ref_ready(const uint8_t *p, uint32_t n)
{
    static const char *const types[] = { "DEALER", "REQ", "ROUTER" };
    bool good = true;
    char name[256];
    uint64_t value;

    while (n) {
        uint32_t len = p[0], i;

        if (1 + len + 4 > n) return false;
        for (i = 0; i < len; i++)
            name[i] = (char)(p[1 + i] >= 'A' && p[1 + i] <= 'Z' ? p[1 + i] + 32 : p[1 + i]);
        for (value = 0, i = 0; i < 4; i++) value = 256 * value + p[1 + len + i];
        p += 1 + len + 4;
        n -= 1 + len + 4;
        if (value > n) return false;
        if (len == 11 && !memcmp(name, "socket-type", 11)) {
            good = false;
            for (i = 0; i < 3; i++)
                good |= value == strlen(types[i]) && !memcmp(p, types[i], value);
        }
        p += value;
        n -= (uint32_t)value;
    }
    return good;
}

static bool
named(const uint8_t *p, uint32_t n, const char *name)
{
    return n > strlen(name) && p[0] == strlen(name) && !memcmp(p + 1, name, p[0]);
}

/* True: the command is known. READY is recorded as an event. */
static bool
ref_command(const uint8_t *p, uint32_t n, bool *open)
{
    if (!n || !p[0] || p[0] >= n) return false;
    if (!*open) {
        if (!named(p, n, "READY") || !ref_ready(p + 6, n - 6)) return false;
        *open = true;
        say(ZMTP_READY, p, 0, 0);
    } else if (named(p, n, "PING")) {
        if (n < 7) return false;
        say(ZMTP_PINGED, p + 7, MIN(n - 7, 16u), 0);
    }
    return true;
}

static int
ref(const uint8_t *p, uint32_t n)
{
    static const uint8_t null[20] = { 'N', 'U', 'L', 'L' };
    uint32_t at = 64, frames = 0, spent = 0;
    bool open = false;

    n_want = ref_missing = 0;
    if ((n > 0 && p[0] != 0xff) || (n > 9 && p[9] != 0x7f) || (n > 10 && p[10] < 3)) return -EPROTO;
    if (n >= 32 && memcmp(p + 12, null, 20)) return -EPROTO;
    while (at < n) {
        uint32_t flags = p[at], head = flags & 2 ? 9 : 2, i;
        uint64_t size = 0;

        if (n - at < head) return 0;
        if (flags > 7 || (flags & 5) == 5 || (!open && !(flags & 4))) return -EPROTO;
        for (i = 1; i < head; i++) size = size * 256 + p[at + i];
        if (size > MOST || (!(flags & 4) && size + spent > MOST)) return -EMSGSIZE;
        at += head;
        if (size > n - at) {
            ref_missing = (uint32_t)(size - (n - at));
            return 0;
        }
        if (flags & 4) {
            if (!ref_command(p + at, (uint32_t)size, &open)) return -EPROTO;
        } else {
            frames++;
            spent += (uint32_t)size + 9;
            if (!(flags & 1)) {
                say(ZMTP_MESSAGE, p + at, frames == 1 ? (uint32_t)size : 0, frames);
                frames = spent = 0;
            }
        }
        at += (uint32_t)size;
    }
    return 0;
}

/* ---- what is sent */

static void
put(const void *p, uint32_t n)
{
    n = MIN(n, (uint32_t)STREAM_BYTES - n_stream);
    memcpy(stream + n_stream, p, n);
    n_stream += n;
}

static void
put_frame(uint8_t flags, uint64_t claimed, const void *p, uint32_t n)
{
    uint8_t head[9] = { flags, (uint8_t)claimed };

    if (flags & ZMTP_LONG)
        for (uint32_t i = 0; i < 8; i++) head[8 - i] = (uint8_t)(claimed >> 8 * i);
    put(head, flags & ZMTP_LONG ? 9 : 2);
    put(p, n);
}

/* READY with a property before the one that counts, whose value's length may be one off. */
static void
put_ready(uint32_t a, uint32_t b)
{
    static const char *const types[] = { "DEALER", "REQ", "ROUTER", "PULL", "", "DEALERS" };
    const char *type = types[b % ARRAY_LEN(types)];
    uint8_t body[128] = "\x05READY\x01x\0\0\0";
    uint32_t n = 11;

    body[n++] = (uint8_t)(a % 8 + b / 64 % 4 - 1);
    n += a % 8;
    if (b & 32) {
        memcpy(body + n, a & 64 ? "\x0bsOCKET-tYPE\0\0\0" : "\x0bSocket-Type\0\0\0", 15);
        n += 15;
        body[n++] = (uint8_t)(strlen(type) + (a >> 4 & 1));
        memcpy(body + n, type, strlen(type));
        n += (uint32_t)strlen(type);
    }
    put_frame(ZMTP_COMMAND, n, body, n);
}

static void
put_any(struct in *in)
{
    static uint8_t bytes[STREAM_BYTES];
    uint32_t op = byte(in), a = byte(in), b = byte(in), n = (a & 15) * b, before = n_stream;
    uint8_t frame[64] = "\x04PING\0\0";

    for (uint32_t i = 0; i < n; i++) bytes[i] = (uint8_t)(op + a + i * 7);
    switch (op % 10) {
    case 0:
        put_ready(a, b);
        break;
    case 1: /* as long as may be, or nearly */
        put_frame(a & 4 ? ZMTP_LONG : ZMTP_LONG | ZMTP_COMMAND, (a & 4 ? MOST : 1024) + b % 3 - 1,
                  bytes, n);
        break;
    case 2:
        put(frame, zmtp_head(frame, n));
        put(bytes, n);
        break;
    case 3:
        put_frame(a >> 4 & 3, n & 255, bytes, n & 255);
        break;
    case 4:
        put_frame(a >> 4, (uint64_t)b << (a & 56), bytes, n);
        break;
    case 5:
        put(frame, zmtp_ping(frame, (uint16_t)(a << 8 | b)));
        put(frame, zmtp_pong(frame, bytes, a % 17));
        break;
    case 6:
        memset(frame + 7, (int)b, 24);
        put_frame(ZMTP_COMMAND, 5 + a % 26, frame, 5 + a % 26);
        break;
    case 7: /* frames without bytes, many */
        for (uint32_t i = 0; i < (a & 15) * b; i++) put("\x01", 2);
        break;
    case 8:
        put_frame(a & 3, n & 255, bytes, n & 255);
        put_frame(b & 2, n & 255, bytes, n & 255);
        break;
    default:
        for (uint32_t i = 0; i < a % 32; i++) {
            uint8_t c = (uint8_t)byte(in);

            put(&c, 1);
        }
    }
    if (op & 128 && n_stream > before) stream[before + b % (n_stream - before)] ^= (uint8_t)(1 + a);
}

/* A greeting, or with READY what follows it all; a byte of that may be another. */
static void
put_hello(struct in *in)
{
    uint32_t how = byte(in);
    uint8_t ours[ZMTP_HELLO];

    zmtp_hello(ours, /* client= */ false);
    put(ours, how & 1 ? (uint32_t)ZMTP_GREETING : (uint32_t)ZMTP_HELLO);
    if (how & 2) stream[how >> 2] ^= (uint8_t)byte(in);
}

static void
feed(struct in *in, int wrong)
{
    struct zmtp z = { 0 };
    struct zmtp_item item;
    uint8_t *piece;
    uint32_t at = 0, n, i;
    int r = 0;

    n_got = 0;
    while (at < n_stream && r >= 0) {
        uint32_t len = byte(in);

        n = MIN(len < 128 ? 1 + len % 9 : 1 + len * 8, n_stream - at);
        piece = malloc(n); /* its end is the end */
        memcpy(piece, stream + at, n);
        for (i = 0; i < n && (r = zmtp_take(&z, MOST, piece + i, n - i, &item)) >= 0;
             i += (uint32_t)r) {
            check(r > 0 && (uint32_t)r <= n - i);
            check(z.capacity <= MAX(2 * z.got, (uint32_t)MIN_CAPACITY) && z.capacity <= z.size);
            if (item.what == ZMTP_NOTHING) continue;
            check(n_got < MAX_ITEMS);
            got[n_got++] = (struct event){ item.what, item.n, item.n_frames, sum(item.p, item.n) };
            if (len & 1) zmtp_done(&z);
            check(!(len & 1) || !z.capacity);
        }
        free(piece);
        at += n;
    }
    check((r < 0 ? r : 0) == wrong);
    if (r >= 0) check(zmtp_missing(&z) == ref_missing);
    zmtp_close(&z);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct in in = { data, data + size };
    uint32_t parts = byte(&in) % 64;
    int wrong;

    n_stream = 0;
    put_hello(&in);
    while (parts-- && n_stream < STREAM_BYTES) put_any(&in);
    wrong = ref(stream, n_stream);
    feed(&in, wrong);
    check(n_got == n_want);
    for (uint32_t i = 0; i < n_want; i++)
        check(got[i].what == want[i].what && got[i].n == want[i].n &&
              got[i].n_frames == want[i].n_frames && got[i].sum == want[i].sum);
    return 0;
}
