/* log_file.c - writer and reader of the log in a memfd; see log_file.h. */
#include "daemon/persist/log_file.h"

#include "base/failpoint.h"
#include "ipc/shm.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };
/* Memory is allocated with fallocate() in units of STEP, so that no store causes SIGBUS. */
#define STEP (UINT64_C(256) << 10)

static uint8_t *
half_of(const struct log_file *m, uint32_t i)
{
    return m->base + LOG_FILE_PAGE + i * m->half;
}

static uint64_t
padded(uint64_t n)
{
    return ROUND_UP(n, (uint64_t)LOG_FILE_ALIGN);
}

/* Returns the checksum of record r: of all its bytes after the field crc. */
static uint32_t
checksum(const struct log_file_record *r)
{
    return shm_crc32c((const uint8_t *)r + sizeof r->crc, sizeof *r - sizeof r->crc + r->len);
}

/* Allocates memory for the first `bytes` bytes of the active half. Returns false if it cannot. */
static bool
back(struct log_file *m, uint64_t bytes)
{
    uint64_t want = MIN(ROUND_UP(bytes, STEP), m->half);
    off_t from = (off_t)(LOG_FILE_PAGE + m->active * m->half + m->backed);

    if (bytes > m->half) return false;
    if (want <= m->backed) return true;
    if (fallocate(m->fd, 0, from, (off_t)(want - m->backed)) < 0) return false;
    m->backed = want;
    return true;
}

static int
map(struct log_file *m, struct err *e)
{
    uint64_t bytes = LOG_FILE_PAGE + 2 * m->half;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);

    if (p == MAP_FAILED)
        return err_set(e, -errno, "ledger log: cannot map the memfd: %s", strerror(errno));
    madvise(p, bytes, MADV_DONTDUMP); /* no prompts in core files */
    m->base = p;
    return 0;
}

int
log_file_create(struct log_file *m, uint64_t half, struct err *e)
{
    struct log_file_hdr h = { .half = ROUND_UP(half, (uint64_t)LOG_FILE_PAGE) };
    int r;

    *m = (struct log_file){ .half = h.half };
    memcpy(h.magic, LOG_FILE_MAGIC, sizeof h.magic);
    m->fd = memfd_create("lagand:ledger", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (m->fd < 0)
        return err_set(e, -errno, "ledger log: cannot create a memfd: %s", strerror(errno));
    r = ftruncate(m->fd, (off_t)(LOG_FILE_PAGE + 2 * m->half)) < 0 ||
                fallocate(m->fd, 0, 0, LOG_FILE_PAGE) < 0 || fcntl(m->fd, F_ADD_SEALS, SEALS) < 0
            ? err_set(e, -errno, "ledger log: cannot set the size of the memfd and seal it: %s",
                      strerror(errno))
            : map(m, e);
    if (r == 0 && !back(m, sizeof(struct log_file_half)))
        r = err_set(e, -ENOMEM, "ledger log: no memory for its header");
    if (r < 0) {
        log_file_close(m);
        return r;
    }
    memcpy(m->base, &h, sizeof h);
    m->active = 1;
    log_file_switch(m);
    log_file_switched(m);
    return 0;
}

void
log_file_close(struct log_file *m)
{
    if (m->base) munmap(m->base, LOG_FILE_PAGE + 2 * m->half);
    if (m->fd >= 0) close(m->fd);
    *m = (struct log_file){ .fd = -1 };
}

void *
log_file_reserve(struct log_file *m, uint16_t type, uint32_t n)
{
    struct log_file_record *r = (struct log_file_record *)(void *)(half_of(m, m->active) + m->at);

    if (!back(m, m->at + sizeof *r + padded(n))) return NULL;
    r->type = type;
    r->zero = 0;
    r->len = n;
    r->generation = (uint32_t)m->generation;
    return r + 1;
}

void
log_file_commit(struct log_file *m)
{
    struct log_file_record *r = (struct log_file_record *)(half_of(m, m->active) + m->at);

    /* The checksum is stored last: a kill before that store leaves a record with a wrong one. */
    FP(log_written);
    r->crc = checksum(r);
    m->at += sizeof *r + padded(r->len);
    FP(log_record_whole);
}

/* Frees the memory of these bytes, which then read as zeros, like a half that was never valid. */
static bool
punch(const struct log_file *m, uint64_t from, uint64_t bytes)
{
    return fallocate(m->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)from,
                     (off_t)bytes) == 0;
}

void
log_file_switch(struct log_file *m)
{
    m->active = !m->active;
    m->backed = 0;
    m->at = sizeof(struct log_file_half);
    m->generation++;
    m->switching = true;
    /* A lagand that was killed during a switch may have left records of this generation. */
    if (!punch(m, LOG_FILE_PAGE + m->active * m->half, m->half) || !back(m, m->at))
        m->at = m->half; /* log_file_reserve() then fails */
    FP(log_switching);
}

void
log_file_switched(struct log_file *m)
{
    struct log_file_half *h = (struct log_file_half *)half_of(m, m->active);

    check(m->switching);
    m->switching = false;
    h->generation = m->generation;
    FP(log_half_valid);
    /* The store of not_generation makes the half valid; it follows the stores of all records. */
    atomic_signal_fence(memory_order_seq_cst);
    h->not_generation = ~m->generation;
    FP(log_switched);
    punch(m, LOG_FILE_PAGE + !m->active * m->half, m->half);
}

void
log_file_void(struct log_file *m)
{
    punch(m, LOG_FILE_PAGE, 2 * m->half);
    m->backed = 0;
    m->at = m->half;
}

/* ---- reader */

/* Returns the valid half with the greater generation, and *generation; NULL: none is valid. */
static const uint8_t *
present(const uint8_t *base, uint64_t half, uint64_t *generation)
{
    const uint8_t *best = NULL;

    *generation = 0;
    for (uint64_t i = 0; i < 2; i++) {
        const uint8_t *p = base + LOG_FILE_PAGE + i * half;
        struct log_file_half h;

        memcpy(&h, p, sizeof h);
        if (h.not_generation != ~h.generation || h.generation <= *generation ||
            h.generation == UINT64_MAX)
            continue;
        *generation = h.generation;
        best = p;
    }
    return best;
}

static int
find(const void *base, uint64_t bytes, uint64_t *half, struct err *e)
{
    struct log_file_hdr h;

    if (bytes < LOG_FILE_PAGE)
        return err_set(e, -EBADMSG, "ledger log: the file is shorter than its header");
    memcpy(&h, base, sizeof h);
    if (memcmp(h.magic, LOG_FILE_MAGIC, sizeof h.magic))
        return err_set(e, -EBADMSG, "ledger log: the file has another magic number or version");
    if (!h.half || h.half % LOG_FILE_PAGE || h.half > (bytes - LOG_FILE_PAGE) / 2)
        return err_set(e, -EBADMSG,
                       "ledger log: two halves of %llu bytes do not fit into a file of %llu",
                       (unsigned long long)h.half, (unsigned long long)bytes);
    *half = h.half;
    return 0;
}

int
log_file_read(const void *base, uint64_t bytes, log_file_fn *fn, void *arg, struct err *e)
{
    uint64_t half, generation, at = sizeof(struct log_file_half);
    const uint8_t *p;
    int n = 0;

    TRY(find(base, bytes, &half, e));
    p = present(base, half, &generation);
    while (p && half - at >= sizeof(struct log_file_record)) {
        const struct log_file_record *r = (const struct log_file_record *)(const void *)(p + at);

        if (r->generation != (uint32_t)generation || r->zero || r->len > half - at - sizeof *r)
            break;
        if (r->crc != checksum(r)) break;
        TRY(fn(arg, r->type, r + 1, r->len));
        at += sizeof *r + padded(r->len);
        n++;
        if (at > half) break;
    }
    return n;
}

int
log_file_open(struct log_file *m, int fd, struct err *e)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS), r;
    uint64_t generation, half;
    const uint8_t *p;

    *m = (struct log_file){ .fd = -1 };
    /* Without the seal a process could shrink the file and cause SIGBUS. */
    if (fstat(fd, &st) < 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
        st.st_size < LOG_FILE_PAGE)
        return err_set(e, -EBADMSG, "ledger log: the descriptor is not a sealed memfd");
    m->fd = fd;
    m->half = ((uint64_t)st.st_size - LOG_FILE_PAGE) / 2;
    TRY(map(m, e));
    r = find(m->base, (uint64_t)st.st_size, &half, e);
    if (r == 0 && (half != m->half || LOG_FILE_PAGE + 2 * half != (uint64_t)st.st_size))
        r = err_set(e, -EBADMSG,
                    "ledger log: the file size is not the size that its header states");
    if (r < 0) {
        munmap(m->base, LOG_FILE_PAGE + 2 * m->half);
        *m = (struct log_file){ .fd = -1 };
        return r;
    }
    p = present(m->base, m->half, &generation);
    m->active = p && p != half_of(m, 0);
    m->generation = generation;
    m->backed = m->half; /* this half takes no more records: log_file_switch() must be next */
    m->at = m->half;
    return 0;
}
