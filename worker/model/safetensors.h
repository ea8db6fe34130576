/* safetensors.h - the tensors of a checkpoint in its mapped files.
 *
 * Opens model.safetensors, or the shards that model.safetensors.index.json names, maps them
 * read-only and reads the headers only. Every tensor is validated (safetensors_header.h). A file
 * that is truncated while it is mapped causes a SIGBUS: replace checkpoints, do not rewrite them in
 * place.
 */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "worker/model/safetensors_header.h"

struct safetensors;

/* -ENOENT: dir has neither file. -EBADMSG: a file is invalid; the message names file and tensor. */
int safetensors_open(struct safetensors **ret, const char *dir, struct err *e) MUST_USE;
struct safetensors *safetensors_close(struct safetensors *s); /* NULL in, NULL out */
CLEAN_FUNC(struct safetensors, safetensors_close)

/* NULL: no such tensor. */
struct safetensors_tensor *safetensors_find(struct safetensors *s, const char *name);
/* In the order of names. */
uint32_t safetensors_n(const struct safetensors *s);
struct safetensors_tensor *safetensors_at(struct safetensors *s, uint32_t i);
uint32_t safetensors_n_shards(const struct safetensors *s);
const struct st_shard *safetensors_shard(const struct safetensors *s, uint32_t i);
