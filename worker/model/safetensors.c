/* safetensors.c - opens the files of a checkpoint and checks its index (safetensors.h). */
#include "worker/model/safetensors.h"

#include "base/file.h"
#include "worker/model/config.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ONE_FILE "model.safetensors"
#define INDEX "model.safetensors.index.json"

void
safetensors_done(struct safetensors *s)
{
    for (uint32_t i = 0; i < s->n; i++) free((void *)(uintptr_t)s->tensor[i].name);
    free(s->tensor);
    for (uint32_t i = 0; i < s->n_shards; i++) {
        if (s->shard[i].map) munmap((void *)(uintptr_t)s->shard[i].map, s->shard[i].bytes);
        free((void *)(uintptr_t)s->shard[i].name);
    }
    free(s->shard);
    *s = (struct safetensors){ 0 };
}

struct safetensors *
safetensors_close(struct safetensors *s)
{
    if (s) safetensors_done(s);
    free(s);
    return NULL;
}

static int
map_shard(struct st_shard *f, const char *dir, struct err *e)
{
    char path[FILE_PATH];
    CLEAN(file_close_at) int fd = file_open(path, dir, f->name, e);
    struct stat st;
    void *map;

    if (fd < 0) return fd;
    if (fstat(fd, &st) < 0) return err_set(e, -errno, "%.180s: %s", path, strerror(errno));
    f->bytes = (uint64_t)st.st_size;
    /* An empty file cannot be mapped; safetensors_header_read() refuses it. */
    map = f->bytes ? mmap(NULL, f->bytes, PROT_READ, MAP_SHARED, fd, 0) : NULL;
    if (map == MAP_FAILED)
        return err_set(e, -errno, "cannot map %.180s: %s", path, strerror(errno));
    f->map = map;
    return 0;
}

static int
open_shard(struct safetensors *s, const char *dir, const char *name, struct err *e)
{
    struct st_shard *f = &s->shard[s->n_shards];

    f->name = strdup(name);
    if (!f->name) return err_set(e, -ENOMEM, "no host memory for the file name %s", name);
    s->n_shards++;
    TRY(map_shard(f, dir, e));
    return safetensors_header_read(s, f, s->n_shards - 1, e);
}

static uint32_t
find_shard(const struct safetensors *s, const char *name)
{
    for (uint32_t i = 0; i < s->n_shards; i++)
        if (strcmp(s->shard[i].name, name) == 0) return i;
    return UINT32_MAX;
}

/* Opens every file that weight_map (tensor name -> file) names. */
static int
open_shards(struct safetensors *s, const char *dir, const json_t *weight_map, struct err *e)
{
    const char *name;
    json_t *file;

    json_object_foreach((json_t *)(uintptr_t)weight_map, name, file)
    {
        const char *f = json_string_value(file);

        if (!f || !*f || strchr(f, '/'))
            return err_set(e, -EBADMSG, INDEX ": the value of %.80s is not a plain file name",
                           name);
        if (find_shard(s, f) != UINT32_MAX) continue;
        if (s->n_shards == ST_MAX_SHARDS)
            return err_set(e, -E2BIG, INDEX " names more than %d files", ST_MAX_SHARDS);
        TRY(open_shard(s, dir, f, e));
    }
    return 0;
}

/* Checks that every tensor is in the file that weight_map names. */
static int
check_index(struct safetensors *s, const json_t *weight_map, struct err *e)
{
    const char *name;
    json_t *file;

    json_object_foreach((json_t *)(uintptr_t)weight_map, name, file)
    {
        const struct safetensors_tensor *t = safetensors_find(s, name);
        const char *f = json_string_value(file);

        if (!t || strcmp(t->file, f))
            return err_set(e, -EBADMSG, "%.80s lacks tensor %.80s, named in " INDEX, f, name);
    }
    return 0;
}

static bool
there(const char *dir, const char *name)
{
    char path[4096];

    return (size_t)snprintf(path, sizeof path, "%s/%s", dir, name) < sizeof path &&
           access(path, F_OK) == 0;
}

int
safetensors_open(struct safetensors **ret, const char *dir, struct err *e)
{
    CLEAN(safetensors_close_at) struct safetensors *s = calloc(1, sizeof *s);
    json_auto_t *index = NULL;
    const json_t *weight_map = NULL;

    if (s) s->shard = calloc(ST_MAX_SHARDS, sizeof *s->shard);
    if (!s || !s->shard) return err_set(e, -ENOMEM, "no memory to list the checkpoint's tensors");
    if (there(dir, ONE_FILE)) {
        TRY(open_shard(s, dir, ONE_FILE, e));
    } else if (there(dir, INDEX)) {
        TRY(config_read(&index, dir, INDEX, e));
        weight_map = json_object_get(index, "weight_map");
        if (!json_is_object(weight_map)) return err_set(e, -EBADMSG, INDEX " has no weight_map");
        TRY(open_shards(s, dir, weight_map, e));
    } else {
        return err_set(e, -ENOENT, "%.150s has neither " ONE_FILE " nor " INDEX "%s", dir,
                       there(dir, "pytorch_model.bin") ? "; convert pytorch_model.bin" : "");
    }
    TRY(safetensors_sort(s, e));
    if (weight_map) TRY(check_index(s, weight_map, e));
    *ret = TAKE(s);
    return 0;
}
