/* fingerprint.c - computes a hash of everything that determines the content of the weights arena.
 *
 * A process can adopt an arena with an equal fingerprint. The hash is XXH3-128 over config.json;
 * the size, header and content of every shard (of a shard above 64 MiB, samples of each tensor
 * instead of the content); the dtype option; the layout version; the family's name; the rank; and
 * the seed of random weights. File times and paths are left out, so that copies are equal. */
#include "worker/model/weights_plan.h"

#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

/* LAYOUT: incremented if a change of the code changes the arena of an unchanged weight table.
 * WHOLE: shards up to this size are hashed completely, in a few ms. SAMPLE: bytes that are hashed
 * at the start and in the middle of each tensor of a larger shard. They suffice, because two
 * fine-tunings of a model differ nearly everywhere in every tensor that training changed; pages of
 * all tensors are read in less than 1 s from a cold disk. */
enum { LAYOUT = 2, SAMPLE = 4096 };
#define WHOLE (UINT64_C(64) << 20)

static void
add(XXH3_state_t *x, const void *p, size_t n)
{
    uint64_t len = n; /* hashed first, so that "ab" + "c" and "a" + "bc" have different hashes */

    XXH3_128bits_update(x, &len, sizeof len);
    XXH3_128bits_update(x, p, n);
}

static void
add_sample(XXH3_state_t *x, const struct safetensors_tensor *t)
{
    const char *data = t->data;
    uint64_t n = MIN(t->bytes, (uint64_t)SAMPLE), middle = (t->bytes - n) / 2;

    add(x, data, n);
    add(x, data + middle, n);
}

/* Starts readahead of all samples, so that a cold disk reads them in parallel. */
static void
want_samples(struct safetensors *files)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

    for (uint32_t i = 0; i < files->n; i++) {
        const struct safetensors_tensor *t = &files->tensor[i];
        uint64_t n = MIN(t->bytes, (uint64_t)SAMPLE);
        uintptr_t place[2] = { (uintptr_t)t->data, (uintptr_t)t->data + (t->bytes - n) / 2 };

        if (files->shard[t->shard].bytes <= WHOLE) continue;
        for (int k = 0; k < 2; k++) {
            uintptr_t first = place[k] / page * page;

            madvise((void *)first, place[k] + n - first, MADV_WILLNEED);
        }
    }
}

static void
add_files(XXH3_state_t *x, struct safetensors *files)
{
    want_samples(files);
    for (uint32_t i = 0; i < files->n_shards; i++) {
        const struct st_shard *f = &files->shard[i];

        add(x, &f->bytes, sizeof f->bytes);
        add(x, f->map, f->bytes <= WHOLE ? f->bytes : f->header_bytes);
    }
    for (uint32_t i = 0; i < files->n; i++) {
        const struct safetensors_tensor *t = &files->tensor[i];

        if (files->shard[t->shard].bytes > WHOLE) add_sample(x, t);
    }
}

int
fingerprint_make(struct model *m, const struct weights_from *from, struct err *e)
{
    uint64_t number[] = { LAYOUT,          from->src->dtype, from->src->random,
                          from->src->seed, from->stored,     m->shape.tied };
    uint32_t ranks[] = { m->rank, m->ranks };
    XXH3_state_t *x = XXH3_createState();
    XXH128_hash_t h;

    if (!x) return err_set(e, -ENOMEM, "no memory to compute the fingerprint of the weights");
    if (!from->src->random) memset(number + 3, 0, sizeof number - 3 * sizeof *number);
    XXH3_128bits_reset(x);
    add(x, number, sizeof number);
    add(x, m->arch->name, strlen(m->arch->name));
    add(x, from->config, from->config_bytes);
    if (m->files) add_files(x, m->files);
    h = XXH3_128bits_digest(x);
    m->checkpoint[0] = h.low64;
    m->checkpoint[1] = h.high64;
    add(x, ranks, sizeof ranks);
    h = XXH3_128bits_digest(x);
    XXH3_freeState(x);
    m->fingerprint[0] = h.low64;
    m->fingerprint[1] = h.high64;
    return 0;
}
