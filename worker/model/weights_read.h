/* weights_read.h - pieces of a checkpoint's files into pinned memory, several at once, handed out in order.
 *
 * Threads read ahead into a ring of slots and convert on the way where a piece is wanted in another dtype
 * than it is stored in. What the page cache has is copied from there; anything else is read directly, past
 * the cache, where the file system can: a checkpoint is read once and would push out what others use.
 */
#ifndef MODEL_WEIGHTS_READ_H
#define MODEL_WEIGHTS_READ_H

#include "worker/model/model.h"
#include "worker/model/safetensors.h"

/* READ_PIECE: bytes of a piece at most, as stored and as wanted. READ_BEHIND: pieces that may be out with
 * the caller at once. */
enum { READ_PIECE = 16 << 20, READ_BEHIND = 4 };

struct read_piece {
    const struct safetensors_tensor *t;
    uint64_t first; /* element */
    size_t n;       /* elements */
    enum dtype dtype;
    /* 0, or the tensor is matrices [cols, rows] and wanted as [rows, cols]: first and n are of what is wanted,
     * whole rows */
    uint32_t rows, cols;
    /* 0, or elements that lie together and from the first of those to the next: a part of each row */
    size_t row, pitch;
};

struct reading;

/* piece: kept until weights_read_stop(). */
int weights_read_start(struct reading **ret, struct model *m, const char *dir,
                       const struct read_piece *piece, uint32_t n, struct err *e) MUST_USE;
/* The next piece in order, once it is there: where it lies until weights_read_release(). */
int weights_read_next(struct reading *r, const void **host, struct err *e) MUST_USE;
/* The first n pieces have been copied. */
void weights_read_release(struct reading *r, uint32_t n);
struct reading *weights_read_stop(struct reading *r); /* NULL in, NULL out */
CLEAN_FUNC(struct reading, weights_read_stop)

#endif
