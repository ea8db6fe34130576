/* weights_read.h - reads a list of pieces of a checkpoint's files into pinned memory, with several
 * threads, and returns the pieces in the order of the list.
 *
 * A piece is at most 16 MiB of one stored tensor. Threads read ahead into a ring of buffers and
 * convert the dtype if necessary. Bytes in the page cache are copied from there. Other bytes are
 * read with direct I/O if the file system supports it, because a checkpoint is read once and would
 * evict the cached files of other programs. */
#pragma once
#include "worker/model/model.h"
#include "worker/model/safetensors.h"

/* READ_PIECE: largest piece in bytes, both as stored and as converted. READ_BEHIND: how many pieces
 * the caller may have received and not yet released. */
enum { READ_PIECE = 16 << 20, READ_BEHIND = 4 };

struct read_piece {
    const struct safetensors_tensor *t;
    uint64_t first;   /* index of the first element */
    size_t n;         /* number of elements */
    enum dtype dtype; /* of the result */
    /* Not 0: the stored tensor consists of matrices [cols, rows]; the result is their transposes,
     * [rows, cols]. first and n count elements of the result and cover whole rows. */
    uint32_t rows, cols;
    /* Not 0: of each row of `pitch` elements, only `row` elements are read (n counts these). */
    size_t row, pitch;
};

struct reading;

/* Starts threads that read piece[n], valid until weights_read_stop(), from files in dir. */
int weights_read_start(struct reading **ret, struct model *m, const char *dir,
                       const struct read_piece *piece, uint32_t n, struct err *e) MUST_USE;
/* Waits for the next piece. *host, its elements, is valid until weights_read_release(). */
int weights_read_next(struct reading *r, const void **host, struct err *e) MUST_USE;
/* Releases the buffers of pieces 0 .. n - 1, so that threads can read further pieces into them. */
void weights_read_release(struct reading *r, uint32_t n);
struct reading *weights_read_stop(struct reading *r); /* NULL in, NULL out */
CLEAN_FUNC(struct reading, weights_read_stop)
