/* adopt.c - adopts the previous worker's manifest and KV: see adopt.h. */
#include "worker/handover/adopt.h"

#include "base/clock.h"
#include "base/log.h"
#include "ipc/fd_channel.h"
#include "ipc/heritage.h"
#include "ipc/model_options.h"
#include "ipc/stat.h"
#include "worker/model/model.h"
#include "worker/sched/beam_search.h"
#include "worker/sched/scheduler.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* Adopted blocks not claimed within this time after READY are freed; lagand resubmits at READY. */
static const nsec CLAIM_TIMEOUT = 10 * NSEC_S;
/* Time after READY in which new requests cannot evict adopted blocks, because a resubmitted request
 * may still be in the request ring or in the text thread. */
static const nsec RESUBMIT_TIME = 200 * NSEC_MS;
enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW };

int
adopt_new_id(uint64_t id[2], struct err *e)
{
    size_t bytes = 2 * sizeof id[0];

    if (getrandom(id, bytes, 0) == (ssize_t)bytes) return 0;
    return err_set(e, -EIO, "cannot make a random id for the KV arena: getrandom() failed");
}

int
adopt_give_arena(struct worker *w, const char *name, const struct arena *a,
                 const uint64_t fingerprint[2], struct err *e)
{
    struct fd_channel_note note = { .bytes = a->bytes, .version = 1, .flags = FD_CHANNEL_COMPLETE };

    if (a->fd < 0) return 0;
    snprintf(note.name, sizeof note.name, "%s", name);
    memcpy(note.fingerprint, fingerprint, sizeof note.fingerprint);
    return fd_channel_give(w->fd_channel, &note, a->fd, e);
}

/* Hashes what K and V depend on besides tokens and geometry. The manifest's hash must be equal. */
static void
make_fingerprint(const struct worker *w, enum dtype kv_dtype, uint64_t ret[2])
{
    struct {
        uint64_t model[2];
        uint32_t kv_dtype, numerics, max_len, pad; /* max_len: a longrope depends on it */
        char device[16];
    } in = { .kv_dtype = kv_dtype,
             .numerics = w->keys->numerics,
             .max_len = w->model->shape.max_len };
    XXH128_hash_t h;

    memcpy(in.model, w->model->fingerprint, sizeof in.model);
    strncpy(in.device, gpu_ops(w->gpu)->name, sizeof in.device - 1);
    h = XXH3_128bits(&in, sizeof in);
    ret[0] = h.low64;
    ret[1] = h.high64;
}

static int
map_manifest(struct arena *a, int fd, uint64_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);

    if (base == MAP_FAILED) return -errno;
    *a = (struct arena){ .base = base, .bytes = bytes, .fd = fd };
    return 0;
}

static int
make_manifest(struct worker *w, const uint64_t print[2], struct err *e)
{
    struct adopt *a = w->adopt;
    uint64_t bytes = manifest_bytes(w->kv_config);
    int fd = memfd_create("lagan:manifest", MFD_CLOEXEC | MFD_ALLOW_SEALING), r = 0;

    if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0 || fcntl(fd, F_ADD_SEALS, SEALS) < 0) r = -errno;
    if (r == 0) r = map_manifest(&a->manifest_arena, fd, bytes);
    if (r < 0) {
        if (fd >= 0) close(fd);
        return err_set(e, r, "cannot allocate %llu bytes of shared memory for the manifest: %s",
                       (unsigned long long)bytes, strerror(-r));
    }
    manifest_make(&a->manifest, a->manifest_arena.base, w->kv_config, print, a->kv_id);
    return 0;
}

/* Maps and opens the previous worker's manifest. It must be sealed, so that no read can fault. */
static int
map_old_manifest(struct worker *w, const uint64_t print[2], struct err *e)
{
    struct adopt *a = w->adopt;
    const struct arena *old = &a->old_manifest;
    int seals = fcntl(old->fd, F_GET_SEALS);
    struct stat st;
    int r;

    if (fstat(old->fd, &st) < 0 || seals < 0 || (seals & SEALS) != SEALS ||
        (uint64_t)st.st_size != manifest_bytes(w->kv_config))
        return err_set(e, -EBADMSG, "it has other KV groups, slots or block sizes");
    r = map_manifest(&a->manifest_arena, old->fd, (uint64_t)st.st_size);
    if (r < 0) return err_set(e, r, "the manifest cannot be mapped: %s", strerror(-r));
    r = manifest_open(&a->manifest, a->manifest_arena.base, a->manifest_arena.bytes, w->kv_config,
                      print, a->kv_id, e);
    if (r == 0) return 0;
    munmap(a->manifest_arena.base, a->manifest_arena.bytes);
    a->manifest_arena = (struct arena){ .fd = -1 };
    return r;
}

static int
adopt_contents(struct worker *w, bool host_kept, struct err *e)
{
    struct adopt *a = w->adopt;
    slice_id *entries = malloc(a->manifest.h.row_bytes);
    struct manifest_adopted got;

    a->found = calloc(w->kv_config->n_slots, sizeof *a->found);
    if (!entries || !a->found) {
        free(entries);
        return err_set(e, -ENOMEM, "no host memory for the buffers to read the manifest");
    }
    got = manifest_adopt(&a->manifest, w->kv, host_kept, a->found, entries);
    free(entries);
    manifest_put_nodes(&a->manifest, w->kv); /* must precede host_tier_give() */
    if (got.rows) log_info("adopted the KV of %u sequences of the previous worker", got.rows);
    if (got.labels) log_info("adopted %u blocks of the prefix cache", got.labels);
    if (got.no_rows)
        log_warn("the manifest has %u invalid entries; recomputing their KV", got.no_rows);
    if (got.no_nodes)
        log_warn("the manifest has %u invalid cache nodes; not reusing their blocks", got.no_nodes);
    return 0;
}

int
adopt_secret(const struct worker *w, uint64_t ret[4], struct err *e)
{
    const struct adopt *a = w->adopt;
    struct manifest_head h;

    if (a->old_manifest.fd >= 0 && pread(a->old_manifest.fd, &h, sizeof h, 0) == sizeof h) {
        manifest_secret(&h, ret);
        return 0;
    }
    memcpy(ret, w->heritage->cache_key, 4 * sizeof ret[0]);
    if (ret[0]) return 0;
    TRY(adopt_new_id(&ret[0], e));
    return adopt_new_id(&ret[2], e);
}

int
adopt_open(struct worker *w, enum dtype kv_dtype, bool host_kept, struct err *e)
{
    struct adopt *a = w->adopt;
    uint64_t fingerprint[2];
    struct err why;

    make_fingerprint(w, kv_dtype, fingerprint);
    if (a->old_manifest.fd >= 0) {
        if (map_old_manifest(w, fingerprint, &why) == 0) {
            a->old_manifest.fd = -1;
            return adopt_contents(w, host_kept, e);
        }
        log_info("the previous worker's manifest is not adopted: %s; recomputing every request",
                 why.text);
        adopt_drop_manifest(w);
    }
    /* The arena's contents are not used, so it gets a new KV id. */
    TRY(adopt_new_id(a->kv_id, e));
    return make_manifest(w, fingerprint, e);
}

void
adopt_drop_manifest(struct worker *w)
{
    struct adopt *a = w->adopt;
    if (a->old_manifest.fd >= 0) close(a->old_manifest.fd);
    a->old_manifest.fd = -1;
}

void
adopt_close(struct worker *w)
{
    struct adopt *a = w->adopt;
    if (a->manifest_arena.base) munmap(a->manifest_arena.base, a->manifest_arena.bytes);
    if (a->manifest_arena.base) close(a->manifest_arena.fd);
    free(a->found);
}

void
adopt_start_claims(struct worker *w, nsec now)
{
    const struct manifest_found *f = w->adopt->found;

    w->ready_at = now;
    for (uint32_t i = 0; f && i < w->kv_config->n_slots; i++)
        if (f[i].owner.id && f[i].row.committed < f[i].owner.n_tokens)
            scheduler_keep_prompt(w->sched, i, f[i].owner.n_tokens, f[i].owner.n_cross);
    scheduler_keep(w->sched, now + RESUBMIT_TIME);
}

/* Logs the recomputed positions if they exceed 1, or with recurrent state a snapshot interval. */
static void
log_recomputed(const struct worker *w, const struct worker_request *r)
{
    const struct kv_config *c = w->kv_config;
    uint32_t most = 1;

    for (uint32_t g = 0; g < c->n_groups; g++)
        if (c->group[g].kind == KV_STATE) most = MAX(most, c->group[g].interval);
    if (w->adopt->found && r->recomputed > most)
        log_info("request %llu: recomputing %u positions that the previous worker had computed",
                 (unsigned long long)r->seq.id, r->recomputed);
}

void
adopt_release_rest(struct worker *w, struct worker_request *r)
{
    struct adopt *a = w->adopt;
    uint32_t had = r->recomputed;
    int slot;

    while (a->found && (slot = manifest_forget(a->found, w->kv_config->n_slots, r->seq.id)) >= 0) {
        uint32_t written = a->found[slot].row.committed;

        r->recomputed += written - MIN(written, r->adopted); /* beams share blocks */
        scheduler_unkeep(w->sched, (uint32_t)slot);
    }
    if (r->recomputed > had) log_recomputed(w, r);
}

void
adopt_claim(struct worker *w, struct worker_request *r)
{
    struct adopt *a = w->adopt;
    struct seq *s = &r->seq;
    uint32_t resume;
    int slot;

    r->recomputed = 0;
    s->from_previous_worker = a->found && r->n_sent;
    if (!a->found) { /* no entry is left: all positions with KV (not the last) are recomputed */
        if (r->n_sent) r->recomputed = (s->beam ? s->beam->first + r->n_sent : s->n_prompt) - 1;
        return;
    }
    slot = manifest_claim(a->found, w->kv_config->n_slots, s->id, r->output, s->token, s->n_prompt,
                          s->source, s->n_source, &resume);
    if (slot < 0) return;
    r->recomputed = MIN(a->found[slot].row.committed, s->n_prompt);
    if (resume == 0 || s->prompt_logprobs || s->wants_states) {
        scheduler_unkeep(w->sched, (uint32_t)slot);
        return;
    }
    s->n_adopted = resume;
    s->adopted_slot = (uint32_t)slot;
    if (s->beam) manifest_drop_decisions(&a->manifest, (uint32_t)slot);
}

void
adopt_release(struct worker *w, struct worker_request *r)
{
    struct adopt *a = w->adopt;
    uint32_t resume;
    int slot;

    if (!a->found) return;
    slot = manifest_claim(a->found, w->kv_config->n_slots, r->seq.id, r->output, NULL, 0, NULL, 0,
                          &resume);
    if (slot >= 0) scheduler_unkeep(w->sched, (uint32_t)slot);
}

void
adopt_claimed(struct worker *w, struct worker_request *r)
{
    const struct seq *s = &r->seq;
    bool first = !s->first_member || s->first_member == s;

    r->adopted = s->n_adopted;
    r->recomputed -= MIN(r->recomputed, r->adopted);
    log_recomputed(w, r);
    if (r->adopted) {
        manifest_commit(&w->adopt->manifest, s->adopted_slot, r->adopted);
        w->stats->v[STAT_adopted] += r->adopted;
    } else if (w->adopt->found && r->n_sent && first) {
        /* If the request was preempted, its blocks are in the adopted prefix cache. */
        r->recomputed = MAX(r->recomputed, scheduler_cached(w->sched, s));
    }
}

/* Replays n_steps steps of the search from its moves in the manifest (adopt_log.h). -EBADMSG: a
 * move is invalid, or the best output after them does not begin with `delivered`. */
static int
replay_search(struct worker *w, struct worker_request *r, const uint32_t *slot, uint32_t n_steps,
              const token_id *delivered)
{
    struct manifest_move move[MAX_BEAMS];
    struct beam *b = &r->beam;

    for (uint32_t i = 0; i < n_steps; i++) {
        struct beam_decision t = { .n_ended = 0 };

        manifest_decision(&w->adopt->manifest, slot, b->n_beams, i, move);
        for (uint32_t k = 0; k < b->n_beams; k++) {
            if ((uint32_t)move[k].token >= w->model->shape.vocab) return -EBADMSG;
            t.next[k] = (struct beam_move){ move[k].token, move[k].score, move[k].slot, 0 };
            if (move[k].ended_token < 0) continue;
            t.ended[t.n_ended++] = (struct beam_move){ move[k].ended_token, move[k].ended_score,
                                                       move[k].ended_slot, 0 };
        }
        TRY(beam_redo(b, &t));
    }
    if (r->n_sent > b->n_common) return -EBADMSG;
    return memcmp(b->line[b->order[0]] + b->first, delivered, r->n_sent * sizeof *delivered) == 0
               ? 0
               : -EBADMSG;
}

bool
adopt_claim_search(struct worker *w, struct worker_request *r, const token_id *delivered)
{
    struct adopt *a = w->adopt;
    uint32_t slot[MAX_BEAMS], n_steps, i = 0;
    struct beam *b = &r->beam;

    if (!a->found || r->seq.wants_states || r->seq.prompt_logprobs) return false;
    n_steps = manifest_claim_search(a->found, w->kv_config->n_slots, r->seq.id, b->n_beams,
                                    r->seq.token, b->first, r->seq.source, r->seq.n_source, slot);
    if (n_steps == 0) return false;
    if (replay_search(w, r, slot, n_steps, delivered) < 0) {
        for (; i < b->n_beams; i++) scheduler_unkeep(w->sched, slot[i]);
        return false;
    }
    for (struct worker_request *m = r; m; m = m->next, i++) {
        m->seq.n_prompt += n_steps;
        m->seq.max_new -= n_steps;
        m->seq.n_adopted = m->seq.n_prompt - 1;
        m->seq.adopted_slot = slot[i];
        m->recomputed = m->seq.n_adopted;
    }
    return true;
}

void
adopt_expire(struct worker *w, nsec now)
{
    struct adopt *a = w->adopt;
    if (!a->found || now - w->ready_at < CLAIM_TIMEOUT) return;
    free(TAKE(w->adopt->found));
    scheduler_unkeep_all(w->sched);
}
