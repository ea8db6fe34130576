/* shm.c - see shm.h.
 *
 * shm_make() has a fixed order: set the size before mapping; fallocate before the first write,
 * because if /dev/shm is full, shm_make() must fail and not a later write by SIGBUS; map before the
 * seal that forbids new writable mappings; add all seals before the descriptor is passed on. */
#include "ipc/shm.h"

#include "ipc/layout.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __x86_64__
#include <emmintrin.h>
#endif

_Static_assert(
    SHM_LAYOUT_SUM == SHM_LAYOUT,
    "a shared layout has changed: raise SHM_ABI_MAJOR and update SHM_LAYOUT (ipc/shm.h)");

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif

enum { SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW };

/* Computes the CRC-32C 4 bits at a time, for processors without the crc32 instruction. */
static uint32_t
crc_slow(uint32_t crc, const uint8_t *b, size_t n)
{
    static const uint32_t nibble[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
        0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
        0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };

    for (; n; n--, b++) {
        crc = nibble[(crc ^ *b) & 15] ^ crc >> 4;
        crc = nibble[(crc ^ *b >> 4) & 15] ^ crc >> 4;
    }
    return crc;
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) static uint32_t
crc_fast(uint32_t crc, const uint8_t *b, size_t n)
{
    uint64_t c = crc, word;

    for (; n >= 8; n -= 8, b += 8) {
        memcpy(&word, b, 8);
        c = __builtin_ia32_crc32di(c, word);
    }
    for (; n; n--, b++) c = __builtin_ia32_crc32qi((uint32_t)c, *b);
    return (uint32_t)c;
}
#endif

uint32_t
shm_crc32c(const void *p, size_t n)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("sse4.2")) return ~crc_fast(~UINT32_C(0), p, n);
#endif
    return ~crc_slow(~UINT32_C(0), p, n);
}

static const char *const names[] = { [SHM_D] = "D", [SHM_W] = "W", [SHM_P] = "P" };

static uint64_t
ring_off(enum shm_kind kind)
{
    return kind == SHM_W ? SHM_RING_OFF_W : SHM_RING_OFF_D;
}

/* Excludes the ring from core dumps, because it contains prompts. */
static void
map_ready(struct shm *s)
{
    madvise((uint8_t *)s->base + s->hdr.ring_off, s->bytes - s->hdr.ring_off, MADV_DONTDUMP);
}

static int
memfd(const char *name, struct err *e)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

    if (fd < 0 && errno == EINVAL) fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return err_set(e, -errno, "cannot create memfd %s: %s", name, strerror(errno));
    return fd;
}

static int
fill(struct shm *s, enum shm_kind kind, const char *name, struct err *e)
{
    if (ftruncate(s->fd, (off_t)s->bytes) < 0 || fallocate(s->fd, 0, 0, (off_t)s->bytes) < 0) {
        return err_set(e, -errno, "cannot allocate %llu bytes for memfd %s: %s",
                       (unsigned long long)s->bytes, name, strerror(errno));
    }
    s->base = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    if (s->base == MAP_FAILED) s->base = NULL;
    if (!s->base) return err_set(e, -errno, "cannot map memfd %s: %s", name, strerror(errno));
    memcpy(s->base, &s->hdr, sizeof s->hdr);
    if (kind != SHM_D && mprotect(s->base, s->bytes, PROT_READ) < 0) {
        return err_set(e, -errno, "cannot map memfd %s read-only: %s", name, strerror(errno));
    }
    if (fcntl(s->fd, F_ADD_SEALS, SEALS | (kind == SHM_D ? F_SEAL_FUTURE_WRITE : 0)) < 0) {
        return err_set(e, -errno, "cannot seal memfd %s: %s", name, strerror(errno));
    }
    map_ready(s);
    return 0;
}

int
shm_make(struct shm *ret, enum shm_kind kind, uint32_t worker_idx, uint64_t epoch,
         const uint8_t daemon_id[16], uint32_t ring_log2, struct err *e)
{
    struct shm s = { .fd = -1, .mine = kind == SHM_D };
    char name[64];
    int r;

    if (ring_log2 == 0)
        ring_log2 = kind == SHM_D   ? SHM_RING_LOG2_D
                    : kind == SHM_W ? SHM_RING_LOG2_W
                                    : SHM_RING_LOG2_P;
    check(ring_log2 >= SHM_RING_LOG2_MIN && ring_log2 <= SHM_RING_LOG2_MAX && epoch > 0);
    s.bytes = ring_off(kind) + (UINT64_C(1) << ring_log2);
    s.hdr = (struct shm_hdr){
        .magic = { 'L', 'A', 'G', 'A', 'N', 'S', 'H', 1 },
        .abi_major = SHM_ABI_MAJOR,
        .abi_minor = SHM_ABI_MINOR,
        .hdr_size = sizeof s.hdr,
        .epoch = epoch,
        .kind = kind,
        .worker_idx = worker_idx,
        .total_size = s.bytes,
        .ctl_off = SHM_CTL_OFF,
        .ring_off = ring_off(kind),
        .ring_log2 = ring_log2,
        .rec_align = SHM_REC_ALIGN,
        .max_rec = (1u << ring_log2) / 8,
    };
    memcpy(s.hdr.daemon_id, daemon_id, sizeof s.hdr.daemon_id);
    s.hdr.hdr_crc32c = shm_crc32c(&s.hdr, offsetof(struct shm_hdr, hdr_crc32c));
    snprintf(name, sizeof name, "lagand:%s:w%u:e%llu", names[kind], worker_idx,
             (unsigned long long)epoch);
    s.fd = memfd(name, e);
    if (s.fd < 0) return s.fd;
    r = fill(&s, kind, name, e);
    if (r < 0) {
        shm_close(&s);
        return r;
    }
    *ret = s;
    return 0;
}

/* Returns the name of the first header field with an invalid value, or NULL. */
static const char *
wrong_field(const struct shm_hdr *h, enum shm_kind kind, uint64_t epoch, uint64_t bytes)
{
    if (memcmp(h->magic, SHM_MAGIC, sizeof h->magic)) return "magic";
    if (h->abi_major != SHM_ABI_MAJOR) return "abi_major";
    if (h->hdr_size != sizeof *h) return "hdr_size";
    if (h->epoch != epoch) return "epoch";
    if (h->kind != (uint32_t)kind) return "kind";
    if (h->total_size != bytes) return "total_size";
    if (h->ctl_off != SHM_CTL_OFF) return "ctl_off";
    if (h->ring_off != ring_off(kind)) return "ring_off";
    if (h->ring_log2 < SHM_RING_LOG2_MIN || h->ring_log2 > SHM_RING_LOG2_MAX) return "ring_log2";
    if (h->ring_off + (UINT64_C(1) << h->ring_log2) != bytes) return "ring_log2";
    if (h->rec_align != SHM_REC_ALIGN) return "rec_align";
    if (h->max_rec != (1u << h->ring_log2) / 8) return "max_rec";
    /* a set bit would mean a feature that we do not know */
    if (h->feature_bits) return "feature_bits";
    for (size_t i = 0; i < sizeof h->zero; i++) {
        if (h->zero[i]) return "zero";
    }
    /* The checksum is checked last, so that an error names the wrong field; for worker_idx,
     * daemon_id and abi_minor it is the only check. */
    if (h->hdr_crc32c != shm_crc32c(h, offsetof(struct shm_hdr, hdr_crc32c))) return "hdr_crc32c";
    return NULL;
}

static int
attach(struct shm *ret, int fd, enum shm_kind kind, bool mine, uint64_t epoch, struct err *e)
{
    const char *name = names[kind], *wrong;
    struct shm s = { .fd = fd, .mine = mine };
    int seals = fcntl(fd, F_GET_SEALS);
    int want = SEALS | (kind == SHM_D ? F_SEAL_FUTURE_WRITE : 0);
    struct stat st;

    if (seals < 0) return err_set(e, -EBADMSG, "shared memory %s: fd %d is not a memfd", name, fd);
    if ((seals & want) != want || (kind != SHM_D && seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE))) {
        return err_set(e, -EBADMSG, "shared memory %s: its seals are %#x, expected %#x", name,
                       (unsigned)seals, (unsigned)want);
    }
    if (fstat(fd, &st) < 0)
        return err_set(e, -errno, "shared memory %s: cannot query it: %s", name, strerror(errno));
    s.bytes = (uint64_t)st.st_size;
    if (s.bytes < ring_off(kind)) {
        return err_set(e, -EBADMSG, "shared memory %s: it has %llu bytes, its fixed part has %llu",
                       name, (unsigned long long)s.bytes, (unsigned long long)ring_off(kind));
    }
    s.base = mmap(NULL, s.bytes, mine ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    if (s.base == MAP_FAILED)
        return err_set(e, -errno, "shared memory %s: cannot map it: %s", name, strerror(errno));
    shm_copy_in(&s.hdr, s.base, sizeof s.hdr);
    wrong = wrong_field(&s.hdr, kind, epoch, s.bytes);
    if (wrong) {
        munmap(s.base, s.bytes);
        return err_set(e, -EBADMSG, "shared memory %s: the value of header field %s is invalid",
                       name, wrong);
    }
    /* A process forked by a library must not keep the rings of an ended worker mapped. */
    madvise(s.base, s.bytes, MADV_DONTFORK);
    map_ready(&s);
    *ret = s;
    return 0;
}

int
shm_attach(struct shm *ret, int fd, enum shm_kind kind, uint64_t epoch, struct err *e)
{
    return attach(ret, fd, kind, kind != SHM_D, epoch, e);
}

int
shm_view(struct shm *ret, int fd, enum shm_kind kind, uint64_t epoch, struct err *e)
{
    return attach(ret, fd, kind, false, epoch, e);
}

void
shm_close(struct shm *s)
{
    if (s->base) munmap(s->base, s->bytes);
    if (s->fd >= 0) close(s->fd);
    s->base = NULL;
    s->fd = -1;
}

struct shm_ctl *
shm_ctl(const struct shm *s)
{
    return (struct shm_ctl *)((uint8_t *)s->base + SHM_CTL_OFF);
}

uint8_t *
shm_ring(const struct shm *s)
{
    return (uint8_t *)s->base + s->hdr.ring_off;
}

struct panic_message *
shm_panic_message(const struct shm *s)
{
    check(s->hdr.kind == SHM_W);
    return (struct panic_message *)((uint8_t *)s->base + SHM_PANIC_OFF);
}

struct step_trace *
shm_trace(const struct shm *s)
{
    check(s->hdr.kind == SHM_W);
    return (struct step_trace *)((uint8_t *)s->base + SHM_TRACE_OFF);
}

struct step_records *
shm_steps(const struct shm *s)
{
    check(s->hdr.kind == SHM_W);
    return (struct step_records *)((uint8_t *)s->base + SHM_STEPS_OFF);
}

/* 16 bytes that need no alignment and may alias any type. */
typedef uint64_t piece __attribute__((vector_size(16), may_alias, aligned(1)));

/* Not memcpy(), which may load a byte twice, so that the peer could change it between validation
 * and use. volatile makes the compiler load each piece exactly once. */
void
shm_copy_in(void *to, const void *from, size_t n)
{
    uint8_t *t = to;
    const uint8_t *f = from;

    for (; n >= 64; n -= 64, t += 64, f += 64) {
        const volatile piece *v = (const volatile piece *)f;
        piece a = v[0], b = v[1], c = v[2], d = v[3];

        ((piece *)t)[0] = a;
        ((piece *)t)[1] = b;
        ((piece *)t)[2] = c;
        ((piece *)t)[3] = d;
    }
    for (; n >= 16; n -= 16, t += 16, f += 16) *(piece *)t = *(const volatile piece *)f;
    for (; n; n--, t++, f++) *t = *(const volatile uint8_t *)f;
}

/* Copies n bytes in pieces of 16. For memcpy() of a length that is known to be small the compiler
 * would emit `rep movs`, which starts slowly. */
static void
copy_pieces(uint8_t *t, const uint8_t *f, size_t n)
{
    for (; n >= 16; n -= 16, t += 16, f += 16) *(piece *)t = *(const piece *)f;
    for (; n; n--, t++, f++) *t = *f;
}

/* A store to a cache line that the reader's core has waits until the line is transferred, and later
 * stores wait too. A non-temporal store of a full line does not wait. Measured time of a normal and
 * of a non-temporal store of a line (docs/lab/serving.md): 31 and 6 ns if the cores have separate
 * caches (some EPYC); 8 and 8 ns on a Xeon with a shared cache, whose reader then waits for
 * memory. */
void
shm_copy_out(void *to, const void *from, size_t n)
{
    uint8_t *t = to;
    const uint8_t *f = from;

#ifdef __x86_64__
    if (n >= SHM_MANY && !__builtin_cpu_is("intel")) {
        size_t head = -(uintptr_t)t % CACHE_LINE;

        copy_pieces(t, f, head);
        for (t += head, f += head, n -= head; n >= CACHE_LINE; n -= CACHE_LINE, t += CACHE_LINE) {
            for (size_t i = 0; i < CACHE_LINE; i += 16, f += 16)
                _mm_stream_si128((__m128i *)(void *)(t + i),
                                 _mm_loadu_si128((const __m128i *)(const void *)f));
        }
    }
#endif
    copy_pieces(t, f, n);
}

void
shm_fence_out(void)
{
#ifdef __x86_64__
    _mm_sfence(); /* a release store does not order non-temporal stores */
#endif
}
