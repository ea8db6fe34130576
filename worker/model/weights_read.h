/* weights_read.h - reads pieces of a checkpoint's files into pinned memory, in parallel, and
 * returns them in order.
 *
 * Threads read ahead into a ring of buffers and convert the dtype if necessary. Bytes in the page
 * cache are copied from there. Other bytes are read with direct I/O if the file system supports it,
 * because a checkpoint is read once and would evict the cached files of other programs.
 */
#pragma once

#include "worker/model/model.h"
#include "worker/model/safetensors.h"

/* READ_PIECE: largest piece in bytes, both as stored and as converted. READ_BEHIND: pieces that the
 * caller may hold at once. */
enum { READ_PIECE = 16 << 20, READ_BEHIND = 4 };

struct read_piece {
    const struct safetensors_tensor *t;
    uint64_t first;   /* element */
    size_t n;         /* elements */
    enum dtype dtype; /* of the result */
    /* Not 0: the tensor consists of matrices [cols, rows], to be transposed to [rows, cols]; first
     * and n count elements of the result, in whole rows. */
    uint32_t rows, cols;
    size_t row, pitch; /* not 0: the part of each row in elements, and the distance of rows */
};

struct reading;

/* Starts the threads. piece must stay valid until weights_read_stop(). */
int weights_read_start(struct reading **ret, struct model *m, const char *dir,
                       const struct read_piece *piece, uint32_t n, struct err *e) MUST_USE;
/* Waits for the next piece in order. *host is valid until weights_read_release(). */
int weights_read_next(struct reading *r, const void **host, struct err *e) MUST_USE;
/* Releases the buffers of the first n pieces. */
void weights_read_release(struct reading *r, uint32_t n);
struct reading *weights_read_stop(struct reading *r); /* NULL in, NULL out */
CLEAN_FUNC(struct reading, weights_read_stop)
