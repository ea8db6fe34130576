/* weights_read.c - implements weights_read.h: threads read pieces into a ring of buffers.
 *
 *     piece   0   1   2 | 3   4   5   6 | 7   8   9 ...
 *             released  | read          | being read; buffer = piece % n_buffers
 *
 * One lock with 2 conditions: `freed` (the caller has released a buffer) and `arrived` (a thread
 * has read a piece). A thread does not hold the lock while it reads. */
#include "worker/model/weights_read.h"

#include "base/file.h"
#include "worker/model/weights.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ALIGN = 4096, MOST_READERS = 8 };

struct read_buffer {
    char *buffer;        /* [buffer_bytes] */
    const void *data;    /* result, in buffer or in the mapped file */
    uint32_t last_piece; /* 1 + number of the last piece read into buffer; 0: none */
};

struct reading {
    struct model *m;
    const char *dir;
    const struct read_piece *piece;
    uint32_t n, n_buffers, n_readers;
    size_t buffer_bytes;
    char *buffers;
    struct read_buffer *ring;

    pthread_mutex_t lock;
    pthread_cond_t freed, arrived;
    uint32_t taken, returned, released; /* pieces started by threads; got, released by the caller */
    bool stop;
    struct err failed; /* code 0: no error */
    pthread_t thread[MOST_READERS];
};

/* State of one thread: the open shard of its last piece, and a buffer for bytes to convert. */
struct reader {
    struct reading *r;
    uint32_t shard;
    int fd, direct; /* direct: for direct I/O, -1 if not supported */
    char *raw;
};

static void
close_shard(struct reader *a)
{
    if (a->fd >= 0) close(a->fd);
    if (a->direct >= 0) close(a->direct);
    a->fd = a->direct = -1;
}

static int
open_shard(struct reader *a, uint32_t index, struct err *e)
{
    const struct st_shard *f = &a->r->m->files->shard[index];
    char path[FILE_PATH];
    struct stat st;

    if (a->fd >= 0 && a->shard == index) return 0;
    close_shard(a);
    a->shard = index;
    a->fd = file_open(path, a->r->dir, f->name, e);
    if (a->fd < 0) return a->fd;
    if (fstat(a->fd, &st) < 0 || (uint64_t)st.st_size != f->bytes)
        return err_set(e, -EBADMSG,
                       "%.140s changed its size while it was read; do not write to a checkpoint "
                       "that is being loaded",
                       path);
    a->direct = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    return 0;
}

/* True if the page cache has all n bytes at offset off of the shard, or if mincore() fails: then
 * the read is buffered. mincore() is used because a non-blocking read would start readahead. */
static bool
is_cached(const struct reader *a, size_t n, uint64_t off)
{
    const char *map = (const char *)a->r->m->files->shard[a->shard].map;
    uint64_t first = off / ALIGN * ALIGN, end = off + n;
    unsigned char resident[1024];

    for (; first < end; first += sizeof resident * ALIGN) {
        size_t pages = MIN(CEIL_DIV(end - first, (uint64_t)ALIGN), sizeof resident);

        memset(resident, 1, sizeof resident); /* larger pages need fewer entries */
        if (mincore((void *)(uintptr_t)(map + first), pages * ALIGN, resident) < 0) return true;
        for (size_t i = 0; i < pages; i++)
            if (!(resident[i] & 1)) return false;
    }
    return true;
}

/* Reads n bytes at offset off with direct I/O; n and off are multiples of ALIGN. Returns true if at
 * least `enough` bytes were read; fewer than n are left at the end of the file only. */
static bool
read_direct(const struct reader *a, char *to, size_t n, size_t enough, off_t off)
{
    size_t at = 0;

    while (at < enough) {
        ssize_t k = pread(a->direct, to + at, n - at, off + (off_t)at);

        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        at += (size_t)k / ALIGN * ALIGN;
        if (k % ALIGN && at + (size_t)k % ALIGN < enough) return false;
        if (k % ALIGN) break;
    }
    return true;
}

static int
read_plain(const struct reader *a, char *to, size_t n, off_t off)
{
    for (size_t at = 0; at < n;) {
        ssize_t k = pread(a->fd, to + at, n - at, off + (off_t)at);

        if (k < 0 && errno != EINTR) return -errno;
        if (k == 0) return -EIO;
        if (k > 0) at += (size_t)k;
    }
    return 0;
}

/* Reads n bytes at offset off of the shard to buffer + off % ALIGN in buffer[n + 2 * ALIGN]. */
static int
read_bytes(const struct reader *a, char *buffer, size_t n, uint64_t off)
{
    size_t before = off % ALIGN;

    if (a->direct >= 0 && !is_cached(a, n, off) &&
        read_direct(a, buffer, ROUND_UP(before + n, (size_t)ALIGN), before + n,
                    (off_t)(off - before)))
        return 0;
    return read_plain(a, buffer + before, n, (off_t)off);
}

/* Writes the transpose of a piece to `to`. Reads the mapped file instead of a buffer, because a row
 * of the result is a column of the stored matrix; neighbouring rows use the same cache lines. */
static void
read_transposed(const struct read_piece *p, char *to)
{
    size_t each = dtype_bytes(p->t->dtype, 1), down = (size_t)p->rows * each;
    size_t row = p->first / p->cols, cols = p->row ? p->row : p->cols;

    for (size_t i = 0; i < p->n; i += cols, row++) {
        const char *from = (const char *)p->t->data + row / p->rows * p->cols * down +
                           p->first % p->cols * down + row % p->rows * each;

        for (size_t k = 0; k < cols; k++, to += each, from += down) memcpy(to, from, each);
    }
}

/* Reads p->row elements of each row of a piece into consecutive memory. */
static int
read_rows(const struct reader *a, char *buffer, const struct read_piece *p, size_t each,
          uint64_t off)
{
    for (size_t at = 0; at < p->n; at += p->row, off += p->pitch * each)
        TRY(read_plain(a, buffer + at * each, p->row * each, (off_t)off));
    return 0;
}

static int
read_piece(struct reader *a, const struct read_piece *p, struct read_buffer *s, struct err *e)
{
    const struct safetensors_tensor *t = p->t;
    size_t each = dtype_bytes(t->dtype, 1);
    const char *map = (const char *)a->r->m->files->shard[t->shard].map;
    uint64_t off = (uint64_t)((const char *)t->data - map) + p->first * each;
    bool same = t->dtype == p->dtype;
    char *buffer = same ? s->buffer : a->raw, *from = buffer;
    int r = 0;

    TRY(open_shard(a, t->shard, e));
    if (p->cols) {
        read_transposed(p, buffer);
    } else if (p->row) {
        r = read_rows(a, buffer, p, each, off);
    } else {
        from += off % ALIGN;
        r = read_bytes(a, buffer, p->n * each, off);
    }
    if (r < 0) return err_set(e, r, "%.60s: %.80s: %s", t->file, t->name, strerror(-r));
    s->data = from;
    if (same) return 0;
    s->data = s->buffer;
    if (weights_convert(s->buffer, p->dtype, from, t->dtype, p->n) == -ERANGE)
        return err_set(e, -ERANGE,
                       "%.60s: %.80s has values outside the range of fp16; use dtype=bf16 or fp32",
                       t->file, t->name);
    return 0;
}

static void *
read_ahead(void *arg)
{
    struct reading *r = arg;
    struct reader a = { .r = r, .fd = -1, .direct = -1 };
    struct err e = { 0 };

    if (posix_memalign((void **)&a.raw, ALIGN, r->buffer_bytes))
        err_set(&e, -ENOMEM, "no host memory for converting weights");
    pthread_mutex_lock(&r->lock);
    while (e.code == 0 && !r->stop && r->taken < r->n) {
        uint32_t i = r->taken;
        struct read_buffer *s = &r->ring[i % r->n_buffers];

        if (i >= r->released + r->n_buffers) {
            pthread_cond_wait(&r->freed, &r->lock);
            continue;
        }
        r->taken++;
        pthread_mutex_unlock(&r->lock);
        read_piece(&a, &r->piece[i], s, &e);
        pthread_mutex_lock(&r->lock);
        s->last_piece = i + 1;
        pthread_cond_signal(&r->arrived);
    }
    if (e.code < 0 && r->failed.code == 0) r->failed = e;
    if (e.code < 0) pthread_cond_signal(&r->arrived);
    pthread_mutex_unlock(&r->lock);
    close_shard(&a);
    free(a.raw);
    return NULL;
}

static size_t
largest(const struct read_piece *piece, uint32_t n)
{
    size_t most = 0;

    for (uint32_t i = 0; i < n; i++) {
        most = MAX(most, dtype_bytes(piece[i].dtype, piece[i].n));
        most = MAX(most, dtype_bytes(piece[i].t->dtype, piece[i].n));
    }
    check(most <= READ_PIECE);
    return ROUND_UP(most, (size_t)ALIGN) + 2 * ALIGN;
}

static int
make_buffers(struct reading *r, struct err *e)
{
    size_t bytes = r->buffer_bytes * r->n_buffers;
    int code;

    r->ring = calloc(r->n_buffers, sizeof *r->ring);
    r->buffers = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (r->buffers == MAP_FAILED) r->buffers = NULL;
    if (!r->ring || !r->buffers)
        return err_set(e, -ENOMEM, "no host memory for reading weights: %zu MiB", bytes >> 20);
    code = r->m->op->mem.host_pin(r->m->gpu, r->buffers, bytes);
    if (code < 0)
        return err_set(e, code, "cannot pin %zu MiB for reading weights: %s", bytes >> 20,
                       gpu_why(r->m->gpu));
    for (uint32_t i = 0; i < r->n_buffers; i++)
        r->ring[i].buffer = r->buffers + i * r->buffer_bytes;
    return 0;
}

int
weights_read_start(struct reading **ret, struct model *m, const char *dir,
                   const struct read_piece *piece, uint32_t n, struct err *e)
{
    struct reading *made = calloc(1, sizeof *made);
    CLEAN(weights_read_stop_at) struct reading *r = made;
    uint32_t want = (uint32_t)MIN(MAX(sysconf(_SC_NPROCESSORS_ONLN), 1L), (long)MOST_READERS);

    if (!r) return err_set(e, -ENOMEM, "no memory to read weights");
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->freed, NULL);
    pthread_cond_init(&r->arrived, NULL);
    r->m = m;
    r->dir = dir;
    r->piece = piece;
    r->n = n;
    want = MIN(want, n);
    r->n_buffers = MIN(want + READ_BEHIND, n);
    r->buffer_bytes = largest(piece, n);
    TRY(make_buffers(r, e));
    for (; r->n_readers < want; r->n_readers++)
        if (pthread_create(&r->thread[r->n_readers], NULL, read_ahead, r)) break;
    if (r->n_readers == 0) return err_set(e, -EAGAIN, "cannot start a thread for reading weights");
    *ret = TAKE(r);
    return 0;
}

int
weights_read_next(struct reading *r, const void **host, struct err *e)
{
    const struct read_buffer *s = &r->ring[r->returned % r->n_buffers];
    int code;

    check(r->returned < r->n && r->returned < r->released + r->n_buffers);
    pthread_mutex_lock(&r->lock);
    while (s->last_piece != r->returned + 1 && r->failed.code == 0)
        pthread_cond_wait(&r->arrived, &r->lock);
    code = r->failed.code;
    pthread_mutex_unlock(&r->lock);
    if (code < 0) return err_set(e, code, "%s", r->failed.text);
    r->returned++;
    *host = s->data;
    return 0;
}

void
weights_read_release(struct reading *r, uint32_t n)
{
    check(n <= r->returned);
    pthread_mutex_lock(&r->lock);
    r->released = MAX(r->released, n);
    pthread_cond_broadcast(&r->freed);
    pthread_mutex_unlock(&r->lock);
}

struct reading *
weights_read_stop(struct reading *r)
{
    if (!r) return NULL;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->freed);
    pthread_mutex_unlock(&r->lock);
    for (uint32_t i = 0; i < r->n_readers; i++) pthread_join(r->thread[i], NULL);
    if (r->buffers) {
        r->m->op->mem.host_unpin(r->m->gpu, r->buffers, r->buffer_bytes * r->n_buffers);
        munmap(r->buffers, r->buffer_bytes * r->n_buffers);
    }
    pthread_cond_destroy(&r->freed);
    pthread_cond_destroy(&r->arrived);
    pthread_mutex_destroy(&r->lock);
    free(r->ring);
    free(r);
    return NULL;
}
