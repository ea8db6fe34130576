/* fuzz_log_file.c - the reader of the ledger log against a reference: any bytes, the same records.
 *
 * Input is a list of operations. The real writer appends records and switches halves, sometimes
 * without finishing; a hostile writer changes bytes and forges records that would fit. The real
 * reader and the reference then read the file.
 */
#include "tests/fuzz/fuzz.h"

#include "daemon/persist/log_file.h"

#include <unistd.h>

enum { HALF = 4096, BYTES = LOG_FILE_PAGE + 2 * HALF, MAX_RECORDS = 2 * HALF / 16 };

static uint32_t
word(struct in *in)
{
    uint32_t low = byte(in);

    return low | byte(in) << 8;
}

/* ---- the ref */

static uint64_t
number(const uint8_t *p, int n)
{
    uint64_t v = 0;

    while (n--) v = v << 8 | p[n];
    return v;
}

/* CRC-32C, bit by bit. */
static uint32_t
crc(const uint8_t *p, uint64_t n)
{
    uint32_t c = ~UINT32_C(0);

    for (; n; n--, p++) {
        c ^= *p;
        for (int i = 0; i < 8; i++) c = c >> 1 ^ (c & 1 ? UINT32_C(0x82f63b78) : 0);
    }
    return ~c;
}

struct record {
    uint32_t type, len;
    const uint8_t *data;
};

/* Returns the number of records; -1: the bytes are no ledger log. */
static int
ref_read(const uint8_t *b, struct record *out)
{
    uint64_t half = number(b + 8, 8), best = 0;
    const uint8_t *p = NULL;
    int n = 0;

    if (memcmp(b, LOG_FILE_MAGIC, 8) || half == 0 || half % 4096 || half > HALF) return -1;
    for (int i = 0; i < 2; i++) {
        const uint8_t *h = b + 4096 + i * (int64_t)half;

        if (number(h, 8) + number(h + 8, 8) != UINT64_MAX || number(h, 8) <= best ||
            number(h, 8) == UINT64_MAX)
            continue;
        best = number(h, 8);
        p = h;
    }
    if (!p) return 0;
    for (uint64_t at = 16; at + 16 <= half;) {
        const uint8_t *r = p + at;
        uint64_t len = number(r + 8, 4);

        if (at + 16 + len > half || number(r + 6, 2) || number(r + 12, 4) != (best & UINT32_MAX) ||
            number(r, 4) != crc(r + 4, 12 + len))
            break;
        out[n++] = (struct record){ (uint32_t)number(r + 4, 2), (uint32_t)len, r + 16 };
        for (at += 16 + len; at % 8; at++) {
        }
    }
    return n;
}

struct hearing {
    const struct record *want;
    int n, at, stop;
};

static int
collect(void *arg, uint16_t type, const void *data, uint32_t n)
{
    struct hearing *h = arg;

    check(h->at < h->n);
    check(type == h->want[h->at].type && n == h->want[h->at].len);
    check(data == h->want[h->at].data);
    return ++h->at == h->stop ? -ECANCELED : 0;
}

static void
both_read(const uint8_t *b, int stop)
{
    static struct record want[MAX_RECORDS];
    struct hearing h = { .want = want, .n = ref_read(b, want), .stop = stop };
    struct err e = { .text = "" };
    int r = log_file_read(b, BYTES, collect, &h, &e);

    if (h.n < 0) {
        check(r == -EBADMSG && *e.text);
    } else if (stop && stop <= h.n) {
        check(r == -ECANCELED && h.at == stop);
    } else {
        check(r == h.n && h.at == h.n);
    }
}

/* ---- the hostile writer */

static void
poke(struct in *in, uint8_t *b, uint32_t n)
{
    for (uint32_t at = word(in); n && in->p < in->end; n--, at++) b[at % BYTES] = (uint8_t)byte(in);
}

/* A record as a reader would like it, except for what the bits of op change. */
static void
forge(struct in *in, uint8_t *b, uint32_t op, uint32_t half, uint64_t generation, uint64_t at)
{
    uint8_t *r = b + LOG_FILE_PAGE + half * HALF + at;
    struct log_file_record h = { .type = (uint16_t)byte(in), .generation = (uint32_t)generation };

    if (r + sizeof h > b + BYTES) return;
    h.len = op & 32 ? word(in) : byte(in);
    if (op & 64) h.zero = (uint16_t)byte(in);
    if (op & 128) h.generation += byte(in);
    memcpy(r, &h, sizeof h);
    if (h.len > (uint32_t)(b + BYTES - r) - sizeof h) return;
    h.crc = crc(r + 4, sizeof h - 4 + h.len);
    memcpy(r, &h, sizeof h);
}

/* What says which half counts, and how long they are. */
static void
lie(struct in *in, struct log_file *m, uint32_t op)
{
    struct log_file_half h = { .generation = op >> 5 == 7 ? UINT64_MAX
                                                          : m->generation + (op >> 5) };
    struct log_file_hdr hdr;

    memcpy(&hdr, m->base, sizeof hdr);
    hdr.half = op & 16 ? byte(in) % 4 * UINT64_C(4096) : HALF;
    h.not_generation = ~h.generation;
    if (op & 8)
        memcpy(m->base, &hdr, sizeof hdr);
    else
        memcpy(m->base + LOG_FILE_PAGE + (op >> 4 & 1) * HALF, &h, sizeof h);
}

/* The next lagand takes it over, if it is one, and writes on. */
static void
inherit(struct log_file *m)
{
    static struct record none[MAX_RECORDS];
    bool good = ref_read(m->base, none) >= 0 && number(m->base + 8, 8) == HALF;
    int fd = dup(m->fd);
    struct log_file next;
    struct err e;

    check(fd >= 0 && (log_file_open(&next, fd, &e) == 0) == good);
    if (!good) {
        close(fd);
        return;
    }
    check(!log_file_reserve(&next, 1, 0)); /* the old half takes nothing more */
    log_file_switch(&next);
    check(log_file_reserve(&next, 1, 8));
    log_file_commit(&next);
    log_file_switched(&next);
    check(next.at == 40 && ref_read(next.base, none) == 1);
    both_read(next.base, 0);
    log_file_close(&next);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct in in = { data, data + size };
    struct log_file m;

    check(log_file_create(&m, HALF, NULL) == 0);
    while (in.p < in.end) {
        uint32_t op = byte(&in), n;
        void *p;

        switch (op % 8) {
        case 0:
        case 1:
            n = op & 8 ? word(&in) : byte(&in);
            p = log_file_reserve(&m, (uint16_t)(op >> 4), n);
            check(!p || n <= HALF);
            if (!p) break;
            memset(p, (int)op, n);
            if (op % 8 == 0) log_file_commit(&m); /* else it was killed there */
            break;
        case 2:
            log_file_switch(&m);
            break;
        case 3:
            if (m.switching) log_file_switched(&m);
            break;
        case 4:
            poke(&in, m.base, op >> 3);
            break;
        case 5:
            forge(&in, m.base, op, op >> 3 & 1, m.generation,
                  op & 16 ? word(&in) % HALF & ~7u : 16);
            break;
        case 6:
            both_read(m.base, (int)(op >> 3));
            break;
        default:
            if (op == 7)
                log_file_void(&m);
            else
                lie(&in, &m, op);
        }
    }
    both_read(m.base, 0);
    inherit(&m);
    log_file_close(&m);
    return 0;
}
