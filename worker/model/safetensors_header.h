/* safetensors_header.h - the header of a safetensors file, from bytes that nobody vouches for.
 *
 * File: u64 little-endian header length, header (JSON: name -> dtype, shape, data_offsets from the
 * header's end), data. What comes out is inside the file, as long as its shape says, named once, and
 * shares no byte with another tensor. Pure: bytes in, a table out.
 * Source: github.com/huggingface/safetensors; differs: holes between tensors are accepted.
 */
#ifndef MODEL_SAFETENSORS_HEADER_H
#define MODEL_SAFETENSORS_HEADER_H

#include "base/base.h"
#include "base/err.h"
#include "gpu/gpu.h"

enum { ST_MAX_DIMS = 8, ST_MAX_NAME = 512, ST_MAX_TENSORS = 1 << 20, ST_MAX_SHARDS = 4096 };

struct safetensors_tensor {
    const char *name;
    const char *file;   /* its shard's name, for sentences */
    const char *stored; /* dtype as the file spells it: "BF16" */
    enum dtype dtype;   /* DT_COUNT: one that no device has (I64, BOOL, F64) */
    uint32_t shard, n_dims;
    uint64_t dim[ST_MAX_DIMS];
    uint64_t offset, bytes; /* offset: from the header's end */
    const void *data;
    bool used; /* the loader's mark */
};

struct st_shard {
    const char *name;
    const uint8_t *map; /* header_bytes, then data */
    uint64_t bytes, header_bytes;
};

/* All tensors of one checkpoint. Zeroed at first. */
struct safetensors_table {
    uint32_t n, max;
    struct safetensors_tensor *tensor; /* [n]; names are the table's */
};

/* Add the tensors of one file, shard number index: f's name, map and bytes are set, header_bytes is filled
 * in. The table points into f's name and map. -EBADMSG: the sentence names file and tensor; the table is
 * good for safetensors_table_done() only. */
int safetensors_header_read(struct safetensors_table *t, struct st_shard *f, uint32_t index,
                            struct err *e) MUST_USE;
/* After the last file: in the order of names. -EBADMSG: a name is there twice. */
int safetensors_table_sort(struct safetensors_table *t, struct err *e) MUST_USE;
struct safetensors_tensor *safetensors_table_find(struct safetensors_table *t,
                                                  const char *name); /* sorted; NULL: not there */
void safetensors_table_done(struct safetensors_table *t);

/* "[14336, 4096]" into buf; returns buf. */
const char *safetensors_shape(const struct safetensors_tensor *t, char *buf, size_t n);

#endif
