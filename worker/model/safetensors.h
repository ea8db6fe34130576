/* safetensors.h - a checkpoint's tensors, where they lie in its mapped files.
 *
 * Opens model.safetensors, or the shards that model.safetensors.index.json names, maps them read-only
 * and believes nothing: every tensor is inside its file, as long as its shape says, named once, and
 * shares no byte with another. Nothing is read but the headers. A file that is cut while mapped is a
 * SIGBUS, as for every program that maps files: replace checkpoints, do not rewrite them in place.
 */
#ifndef MODEL_SAFETENSORS_H
#define MODEL_SAFETENSORS_H

#include "base/base.h"
#include "base/err.h"
#include "worker/model/safetensors_header.h"

struct safetensors;

/* -ENOENT: dir has neither file. -EBADMSG: a file is not what it should be; file and tensor are named. */
int safetensors_open(struct safetensors **ret, const char *dir, struct err *e) MUST_USE;
struct safetensors *safetensors_close(struct safetensors *s); /* NULL in, NULL out */
CLEAN_FUNC(struct safetensors, safetensors_close)

struct safetensors_tensor *safetensors_find(struct safetensors *s,
                                            const char *name); /* NULL: not there */
/* In the order of their names. */
uint32_t safetensors_n(const struct safetensors *s);
struct safetensors_tensor *safetensors_at(struct safetensors *s, uint32_t i);
uint32_t safetensors_n_shards(const struct safetensors *s);
const struct st_shard *safetensors_shard(const struct safetensors *s, uint32_t i);

#endif
