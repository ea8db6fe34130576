/* safetensors.h - finds the tensors of a checkpoint in its files, which are untrusted.
 *
 * Opens model.safetensors, or the files ("shards") that model.safetensors.index.json names, maps
 * them read-only and reads the headers only. A file that is truncated while it is mapped causes a
 * SIGBUS, so checkpoints must be replaced, not rewritten in place.
 *
 * A file consists of a u64 little-endian header length, the header (JSON: name -> dtype, shape,
 * data_offsets from the header's end) and the data. Opening checks that every tensor is inside its
 * file, has the length of its shape and a unique name, and overlaps no other tensor. Source:
 * github.com/huggingface/safetensors; differs: holes between tensors are accepted. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "gpu/gpu.h"

enum { ST_MAX_DIMS = 8, ST_MAX_NAME = 512, ST_MAX_TENSORS = 1 << 20, ST_MAX_SHARDS = 4096 };

struct safetensors_tensor {
    const char *name;
    const char *file;   /* shard name, for error messages */
    const char *stored; /* dtype as the file spells it: "BF16" */
    enum dtype dtype;   /* DT_COUNT: not a device dtype (I64, BOOL, F64) */
    uint32_t shard, n_dims;
    uint64_t dim[ST_MAX_DIMS];
    uint64_t offset, bytes; /* offset: from the header's end */
    const void *data;       /* in the mapped shard */
    bool used;              /* a line of the weight table reads it; weights_plan.c sets it */
};

struct st_shard {
    const char *name;
    const uint8_t *map; /* header_bytes, then data */
    uint64_t bytes, header_bytes;
};

struct safetensors {
    uint32_t n, max, n_shards;
    struct safetensors_tensor *tensor; /* [n], sorted by name; owns the names */
    struct st_shard *shard;            /* [n_shards]; owns names and maps */
};

/* -ENOENT: dir has neither file. -EBADMSG: a file is invalid; the message names file and tensor. */
int safetensors_open(struct safetensors **ret, const char *dir, struct err *e) MUST_USE;
struct safetensors *safetensors_close(struct safetensors *s); /* NULL in, NULL out */
CLEAN_FUNC(struct safetensors, safetensors_close)

/* Returns the tensor, or NULL if there is none with this name. */
struct safetensors_tensor *safetensors_find(const struct safetensors *s, const char *name);
/* Writes the shape of t, "[14336, 4096]", to buf[n] and returns buf. */
const char *safetensors_shape(const struct safetensors_tensor *t, char *buf, size_t n);

/* The steps of safetensors_open() without I/O, for tests: on a zeroed s, safetensors_header_read()
 * for each shard, safetensors_sort(), safetensors_done().
 *
 * Adds the tensors of shard `index` to s. The caller sets f's name, map and bytes; the function
 * sets f's header_bytes. s keeps pointers into f's name and map. -EBADMSG: the message names file
 * and tensor; only safetensors_done() is then allowed. */
int safetensors_header_read(struct safetensors *s, struct st_shard *f, uint32_t index,
                            struct err *e) MUST_USE;
/* Sorts the tensors by name, after the last shard. -EBADMSG: a name occurs twice. */
int safetensors_sort(struct safetensors *s, struct err *e) MUST_USE;
/* Frees everything except s itself. */
void safetensors_done(struct safetensors *s);
