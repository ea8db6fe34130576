/* adopt.c - see adopt.h. */
#include "worker/handover/adopt.h"

#include "base/clock.h"
#include "base/log.h"
#include "worker/handover/host_tier.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* lagand submits again in one go once we are READY; what has not come by then will not. */
static const nsec KEEP = 10 * NSEC_S;
/* Nor takes anybody else its room so soon: what was submitted again is in our ring or with the text thread. */
static const nsec COME = 200 * NSEC_MS;
enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW };

int
adopt_number(uint64_t id[2], struct err *e)
{
    size_t bytes = 2 * sizeof id[0];

    if (getrandom(id, bytes, 0) == (ssize_t)bytes) return 0;
    return err_set(e, -EIO, "no random number for the KV arena");
}

/* What K and V of a token depend on, beside the tokens before it and the geometry. */
static void
make_print(const struct worker *w, enum dtype kv_dtype, uint64_t ret[2])
{
    struct {
        uint64_t model[2];
        uint32_t kv_dtype, numerics;
        char device[16];
    } in = { .kv_dtype = kv_dtype, .numerics = w->keys.numerics };
    XXH128_hash_t h;

    memcpy(in.model, w->e.model->fingerprint, sizeof in.model);
    strncpy(in.device, gpu_ops(w->e.gpu)->name, sizeof in.device - 1);
    h = XXH3_128bits(&in, sizeof in);
    ret[0] = h.low64;
    ret[1] = h.high64;
}

static int
map(struct arena *a, int fd, uint64_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);

    if (base == MAP_FAILED) return -errno;
    *a = (struct arena){ .base = base, .bytes = bytes, .fd = fd };
    return 0;
}

static int
make(struct engine *n, const uint64_t print[2], struct err *e)
{
    uint64_t bytes = manifest_bytes(&n->kv_config);
    int fd = memfd_create("lagan:manifest", MFD_CLOEXEC | MFD_ALLOW_SEALING), r = 0;

    if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0 || fcntl(fd, F_ADD_SEALS, SEALS) < 0) r = -errno;
    if (r == 0) r = map(&n->manifest_arena, fd, bytes);
    if (r < 0) {
        if (fd >= 0) close(fd);
        return err_set(e, r, "manifest of %llu bytes: %s", (unsigned long long)bytes, strerror(-r));
    }
    manifest_make(&n->manifest, n->manifest_arena.base, &n->kv_config, print, n->kv_id);
    return 0;
}

/* Sealed, so that reading it cannot fault, and exactly as long as ours is. */
static int
take_over(struct engine *n, const uint64_t print[2], struct err *e)
{
    const struct arena *old = &n->old_manifest;
    int seals = fcntl(old->fd, F_GET_SEALS);
    struct stat st;
    int r;

    if (fstat(old->fd, &st) < 0 || seals < 0 || (seals & SEALS) != SEALS ||
        (uint64_t)st.st_size != manifest_bytes(&n->kv_config))
        return err_set(e, -EBADMSG, "manifest of other KV groups, seats or sizes");
    r = map(&n->manifest_arena, old->fd, (uint64_t)st.st_size);
    if (r < 0) return err_set(e, r, "manifest cannot be mapped: %s", strerror(-r));
    r = manifest_open(&n->manifest, n->manifest_arena.base, n->manifest_arena.bytes, &n->kv_config,
                      print, n->kv_id, e);
    if (r == 0) return 0;
    munmap(n->manifest_arena.base, n->manifest_arena.bytes);
    n->manifest_arena = (struct arena){ .fd = -1 };
    return r;
}

static int
adopt(struct engine *n, struct err *e)
{
    slice_id *room = malloc(n->manifest.h.row_bytes);
    bool host = host_tier_keeps(n);
    struct manifest_adopted a;

    n->found = calloc(n->kv_config.n_seats, sizeof *n->found);
    if (!room || !n->found) {
        free(room);
        return err_set(e, -ENOMEM, "memory to read the manifest");
    }
    a = manifest_adopt(&n->manifest, n->kv, host, n->found, room);
    free(room);
    manifest_labels(&n->manifest, n->kv); /* before other memory for cells is handed up */
    if (a.rows) log_info("took over the KV blocks of %u requests", a.rows);
    if (a.labels) log_info("took over %u blocks of tokens that others may find", a.labels);
    if (a.no_rows)
        log_warn("%u rows of the manifest cannot be true, computing those again", a.no_rows);
    if (a.no_labels) log_warn("%u labels of the manifest cannot be true", a.no_labels);
    return 0;
}

int
adopt_secret(const struct engine *n, uint64_t ret[4], struct err *e)
{
    struct manifest_head h;

    if (n->old_manifest.fd >= 0 && pread(n->old_manifest.fd, &h, sizeof h, 0) == sizeof h) {
        manifest_secret(&h, ret);
        return 0;
    }
    TRY(adopt_number(&ret[0], e));
    return adopt_number(&ret[2], e);
}

int
adopt_open(struct worker *w, enum dtype kv_dtype, struct err *e)
{
    struct engine *n = &w->e;
    uint64_t print[2];
    struct err why;

    make_print(w, kv_dtype, print);
    if (n->old_manifest.fd >= 0) {
        if (take_over(n, print, &why) == 0) {
            n->old_manifest.fd = -1;
            return adopt(n, e);
        }
        log_info("%s: computing every request again", why.text);
        close(n->old_manifest.fd);
        n->old_manifest.fd = -1;
    }
    /* What the arena holds is nobody's from here on. */
    TRY(adopt_number(n->kv_id, e));
    return make(n, print, e);
}

void
adopt_close(struct engine *n)
{
    if (n->manifest_arena.base) munmap(n->manifest_arena.base, n->manifest_arena.bytes);
    if (n->manifest_arena.base) close(n->manifest_arena.fd);
    free(n->found);
}

void
adopt_begin(struct worker *w, nsec now)
{
    const struct manifest_found *f = w->e.found;

    w->ready_at = now;
    for (uint32_t i = 0; f && i < w->e.kv_config.n_seats; i++)
        if (f[i].owner.id && f[i].row.committed < f[i].owner.n_tokens)
            scheduler_keep_prompt(w->e.sched, i, f[i].owner.n_tokens, f[i].owner.n_cross);
    scheduler_keep(w->e.sched, now + COME);
}

/* Of what a row says a step may be computed again, or of recurrent state what came behind its last snapshot. */
static void
say_lost(const struct worker *w, const struct worker_request *r)
{
    const struct kv_config *c = &w->e.kv_config;
    uint32_t most = 1;

    for (uint32_t g = 0; g < c->n_groups; g++)
        if (c->group[g].kind == KV_STATE) most = MAX(most, c->group[g].interval);
    if (w->e.found && r->recomputed > most)
        log_info("request %llu: %u positions that are there find no room, computing them again",
                 (unsigned long long)r->seq.id, r->recomputed);
}

void
adopt_forget(struct worker *w, struct worker_request *r)
{
    struct engine *n = &w->e;
    uint32_t had = r->recomputed;
    int seat;

    while (n->found && (seat = manifest_forget(n->found, n->kv_config.n_seats, r->seq.id)) >= 0) {
        uint32_t written = n->found[seat].row.committed;

        r->recomputed += written - MIN(written, r->adopted); /* beams share what the first has */
        scheduler_unkeep(n->sched, (uint32_t)seat);
    }
    if (r->recomputed > had) say_lost(w, r);
}

void
adopt_claim(struct worker *w, struct worker_request *r)
{
    struct engine *n = &w->e;
    struct seq *s = &r->seq;
    uint32_t resume;
    int seat;

    r->recomputed = 0;
    s->resumed = n->found && r->n_sent;
    if (!n->found) { /* told tokens were written, all but the last */
        if (r->n_sent) r->recomputed = (s->beam ? s->beam->first + r->n_sent : s->n_prompt) - 1;
        return;
    }
    seat = manifest_claim(n->found, n->kv_config.n_seats, s->id, r->output, s->token, s->n_prompt,
                          s->source, s->n_source, &resume);
    if (seat < 0) return;
    r->recomputed = MIN(n->found[seat].row.committed, s->n_prompt);
    if (resume == 0 || s->prompt_logprobs || s->wants_states) {
        scheduler_unkeep(n->sched, (uint32_t)seat);
        return;
    }
    s->n_adopted = resume;
    s->adopted_seat = (uint32_t)seat;
    if (s->beam) manifest_unturn(&n->manifest, (uint32_t)seat);
}

void
adopt_leave(struct worker *w, struct worker_request *r)
{
    struct engine *n = &w->e;
    uint32_t resume;
    int seat;

    if (!n->found) return;
    seat = manifest_claim(n->found, n->kv_config.n_seats, r->seq.id, r->output, NULL, 0, NULL, 0,
                          &resume);
    if (seat >= 0) scheduler_unkeep(n->sched, (uint32_t)seat);
}

void
adopt_claimed(struct worker *w, struct worker_request *r)
{
    const struct seq *s = &r->seq;
    bool first = !s->first_member || s->first_member == s;

    r->adopted = s->n_adopted;
    r->recomputed -= MIN(r->recomputed, r->adopted);
    say_lost(w, r);
    if (r->adopted) {
        manifest_commit(&w->e.manifest, s->adopted_seat, r->adopted);
        w->stats.v[STAT_adopted] += r->adopted;
    } else if (w->e.found && r->n_sent && first) { /* a paused one left it where all may find it */
        r->recomputed = MAX(r->recomputed, scheduler_cached(w->e.sched, s));
    }
}

/* Its steps once more, without computing anything: as far as they can be what was told. */
static int
redo(struct worker *w, struct worker_request *r, const uint32_t *seat, uint32_t n_turns,
     const token_id *told)
{
    struct manifest_move move[MAX_BEAMS];
    struct beam *b = &r->beam;

    for (uint32_t i = 0; i < n_turns; i++) {
        struct beam_turn t = { .n_ended = 0 };

        manifest_turn(&w->e.manifest, seat, b->n_beams, i, move);
        for (uint32_t k = 0; k < b->n_beams; k++) {
            if ((uint32_t)move[k].token >= w->e.model->shape.vocab) return -EBADMSG;
            t.next[k] = (struct beam_move){ move[k].token, move[k].score, move[k].slot, 0 };
            if (move[k].ended_token < 0) continue;
            t.ended[t.n_ended++] = (struct beam_move){ move[k].ended_token, move[k].ended_score,
                                                       move[k].ended_slot, 0 };
        }
        TRY(beam_redo(b, &t));
    }
    if (r->n_sent > b->n_settled) return -EBADMSG;
    return memcmp(b->line[b->order[0]] + b->first, told, r->n_sent * sizeof *told) ? -EBADMSG : 0;
}

bool
adopt_claim_search(struct worker *w, struct worker_request *r, const token_id *told)
{
    struct engine *n = &w->e;
    uint32_t seat[MAX_BEAMS], n_turns, i = 0;
    struct beam *b = &r->beam;

    if (!n->found || r->seq.wants_states) return false;
    n_turns = manifest_claim_search(n->found, n->kv_config.n_seats, r->seq.id, b->n_beams,
                                    r->seq.token, b->first, r->seq.source, r->seq.n_source, seat);
    if (n_turns == 0) return false;
    if (redo(w, r, seat, n_turns, told) < 0) {
        for (; i < b->n_beams; i++) scheduler_unkeep(n->sched, seat[i]);
        return false;
    }
    for (struct worker_request *m = r; m; m = m->next, i++) {
        m->seq.n_prompt += n_turns;
        m->seq.max_new -= n_turns;
        m->seq.n_adopted = m->seq.n_prompt - 1;
        m->seq.adopted_seat = seat[i];
        m->recomputed = m->seq.n_adopted;
    }
    return true;
}

void
adopt_expire(struct worker *w, nsec now)
{
    if (!w->e.found || now - w->ready_at < KEEP) return;
    free(TAKE(w->e.found));
    scheduler_unkeep_all(w->e.sched);
}

static void
name(struct worker *w, uint32_t seat, struct manifest_owner *o)
{
    const struct seq *s = scheduler_seat(w->e.sched, seat);
    const struct worker_request *r = s->owner;

    *o = (struct manifest_owner){
        .seat = seat,
        .id = s->id,
        .n_cross = s->n_source,
        .n_tokens = s->n_prompt,
        .member = r->output,
        .n_beams = s->beam ? s->beam->n_beams : 0,
    };
    manifest_hash(s->token, s->n_prompt, o->tokens_hash);
    manifest_hash(s->source, s->n_source, o->source_hash);
}

/* It begins, with what was found. */
static void
count(struct worker *w, const struct seq *s)
{
    const struct worker_request *r = s->owner;
    uint32_t found = MIN(s->n_cached, r->recomputed);

    if (s->n_pauses > 0) return; /* that was before */
    w->stats.v[STAT_adopted] += found;
    w->stats.v[STAT_recomputed] += r->recomputed - found;
}

/* A row is its owner's from the first edit on; but a search that began behind what was told is nobody's. */
void
adopt_launch(struct worker *w, const struct batch *b)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < b->n_edits; i++) {
        const struct kv_edit *e = &b->edit[i];
        const struct seq *s = scheduler_seat(w->e.sched, e->seat);

        if (e->op == EDIT_END) w->named[e->seat] = false;
        if (e->op == EDIT_END || w->named[e->seat]) continue;
        w->named[e->seat] = true;
        count(w, s);
        if (s->n_adopted || (s->beam && s->n_prompt != s->beam->first)) continue;
        name(w, e->seat, &w->owner[n++]);
    }
    manifest_labels(&w->e.manifest, w->e.kv);
    manifest_launch(&w->e.manifest, b->edit, b->n_edits, w->owner, n);
}

void
adopt_rest(struct worker *w)
{
    manifest_labels(&w->e.manifest, w->e.kv);
}

void
adopt_commit(struct worker *w, const struct batch *b)
{
    for (uint32_t i = 0; i < b->n_runs; i++) {
        const struct batch_run *r = &b->run[i];

        manifest_commit(&w->e.manifest, r->seat, (uint32_t)r->first_pos + r->n_rows);
    }
}

void
adopt_turned(struct worker *w, const struct seq *first)
{
    const struct beam *b = first->beam;
    struct manifest_move move[MAX_BEAMS];
    uint32_t seat[MAX_BEAMS], n = 0;

    for (const struct seq *m = first; m; m = m->next_member, n++) {
        const struct beam_move *next = &b->last.next[n], *ended = &b->last.ended[n];
        bool has = n < b->last.n_ended;

        seat[n] = m->seat;
        move[n] = (struct manifest_move){ .token = next->token,
                                          .ended_token = has ? ended->token : -1,
                                          .score = next->score,
                                          .ended_score = has ? ended->score : 0,
                                          .slot = next->slot,
                                          .ended_slot = has ? ended->slot : 0 };
    }
    manifest_turned(&w->e.manifest, seat, n, b->n_new - 1, move);
}
