/* safetensors_header.h - parses and validates the header of an untrusted safetensors file.
 *
 * File: u64 little-endian header length, header (JSON: name -> dtype, shape, data_offsets from the
 * header's end), data. Every tensor of the table is inside its file, has the length of its shape,
 * has a unique name, and overlaps no other tensor. No I/O.
 * Source: github.com/huggingface/safetensors; differs: holes between tensors are accepted.
 */
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
    const void *data;
    bool used; /* set by the loader */
};

struct st_shard {
    const char *name;
    const uint8_t *map; /* header_bytes, then data */
    uint64_t bytes, header_bytes;
};

/* All tensors of one checkpoint; zero-initialised. */
struct safetensors_table {
    uint32_t n, max;
    struct safetensors_tensor *tensor; /* [n]; names are the table's */
};

/* Adds the tensors of shard `index`. The caller sets f's name, map and bytes; header_bytes is set
 * here. The table keeps pointers into f's name and map. -EBADMSG: the message names file and
 * tensor; only safetensors_table_done() is then allowed. */
int safetensors_header_read(struct safetensors_table *t, struct st_shard *f, uint32_t index,
                            struct err *e) MUST_USE;
/* Sorts by name, after the last file. -EBADMSG: a name occurs twice. */
int safetensors_table_sort(struct safetensors_table *t, struct err *e) MUST_USE;
/* t must be sorted. NULL: no such tensor. */
struct safetensors_tensor *safetensors_table_find(struct safetensors_table *t, const char *name);
void safetensors_table_done(struct safetensors_table *t);

/* "[14336, 4096]" into buf; returns buf. */
const char *safetensors_shape(const struct safetensors_tensor *t, char *buf, size_t n);
