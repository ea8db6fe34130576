/* kv_watch.c - see kv_watch.h. */
#include "daemon/request/kv_watch.h"

#include "base/block_event.h"
#include "base/block_name.h"
#include "daemon/config/options.h"
#include "daemon/persist/event_log.h"
#include "daemon/supervise/worker.h"

/* MAX_BLOCKS: blocks of all workers, 14 MiB if all are used; with 16 tokens a block 4 million
 * tokens. MAX_NAMES: blocks of one prompt that are looked up. */
enum { MAX_BLOCKS = 1 << 18, MAX_PARTS = 1 << 15, MAX_NAMES = 4096, PART_BYTES = 256 };
enum { TEXT_TOKEN_BYTES = 4 }; /* as ledger_prompt_tokens() estimates */
enum { MAX_PRIORITY = 100 };

struct kv_watch {
    struct block_holders *blocks; /* NULL: no model has kv.events and kv.reuse */
    struct block_holders *parts;  /* of texts that were sent to a worker */
    uint32_t n_parts;             /* added since the table was emptied; at most MAX_PARTS */
    uint64_t hit_tokens;
    uint64_t name[MAX_NAMES][2]; /* scratch of kv_watch_find(), and of kv_watch_sent() */
    struct watched {
        uint32_t cap;               /* size of entry[]: kv.events of the model */
        bool in_snapshot;           /* BEGIN has come, END has not */
        uint64_t first, next;       /* numbers of the first event kept and of the next one */
        struct kv_log_entry *entry; /* [cap]; event number n is entry[n % cap] */
    } of[MAX_WORKERS];
    struct named {
        bool made; /* key has a value */
        struct block_key key;
    } key[MAX_MODELS];
};

bool
kv_watch_add(struct kv_watch *k, uint32_t worker, const struct model_options *keys)
{
    struct watched *t = &k->of[worker];

    t->first = t->next = 1;
    t->cap = keys->kv_reuse ? keys->kv_events : 0;
    if (!t->cap) return true;
    t->entry = calloc(t->cap, sizeof *t->entry);
    if (!k->blocks) k->blocks = block_holders_new(MAX_BLOCKS);
    if (!k->parts) k->parts = block_holders_new(MAX_PARTS);
    return t->entry && k->blocks && k->parts;
}

struct kv_watch *
kv_watch_new(const struct config *c)
{
    struct kv_watch *k = calloc(1, sizeof *k);
    uint32_t i = 0;

    for (uint32_t m = 0; k && m < c->n_models; m++)
        for (uint32_t j = 0; j < c->model[m].keys.workers; j++)
            if (!kv_watch_add(k, i++, &c->model[m].keys)) return kv_watch_free(k);
    return k;
}

struct kv_watch *
kv_watch_free(struct kv_watch *k)
{
    if (!k) return NULL;
    for (uint32_t i = 0; i < MAX_WORKERS; i++) free(k->of[i].entry);
    block_holders_free(k->blocks);
    block_holders_free(k->parts);
    free(k);
    return NULL;
}

static struct watched *
watched(const struct worker *w)
{
    return &worker_daemon(w)->kv_watch->of[worker_info(w)->index];
}

/* ---- events */

/* Skips the numbers of `lost` events and one more: every reader starts with the blocks again. */
static void
skip(struct watched *t, uint64_t lost)
{
    t->next += lost + 1;
    t->first = t->next;
}

static int
check_event(const struct rec_kv_event *v, bool snapshot, struct err *e)
{
    if (v->op >= KV_OPS || (snapshot && v->op != KV_STORED) || v->group >= SHM_MAX_GROUPS ||
        v->tier > 1 || v->why >= KV_WHYS || v->priority > MAX_PRIORITY || !v->n_tokens)
        return err_set(e, -EBADMSG,
                       "KV_EVENTS has an invalid event: op %u, group %u, tier %u, why %u, priority "
                       "%u, %u tokens%s",
                       v->op, v->group, v->tier, v->why, v->priority, v->n_tokens,
                       snapshot ? ", in a snapshot" : "");
    return 0;
}

static void
apply(struct daemon *d, uint32_t worker, const struct rec_kv_event *v, bool snapshot)
{
    struct watched *t = &d->kv_watch->of[worker];
    struct held_block b = { .name = { v->name[0], v->name[1] },
                            .parent = { v->parent[0], v->parent[1] },
                            .n_tokens = v->n_tokens,
                            .group = v->group,
                            .on_host = v->tier == 1,
                            .priority = v->priority };

    if (v->op == KV_REMOVED)
        block_holders_remove(d->kv_watch->blocks, worker, b.name, b.group);
    else
        block_holders_add(d->kv_watch->blocks, worker, &b);
    if (snapshot) return;
    if (v->op == KV_REMOVED && v->why == KV_FLUSHED)
        block_holders_forget(d->kv_watch->parts, worker);
    t->entry[t->next % t->cap] = (struct kv_log_entry){ d->now, *v };
    t->next++;
    if (t->next - t->first > t->cap) t->first = t->next - t->cap;
}

static int
check_head(const struct watched *t, const struct rec_kv_events *h, size_t n, struct err *e)
{
    const uint32_t flags = KV_EVENTS_SNAPSHOT | KV_EVENTS_BEGIN | KV_EVENTS_END;

    if (h->n > KV_EVENTS_MAX || n != sizeof *h + h->n * sizeof(struct rec_kv_event))
        return err_set(e, -EBADMSG, "KV_EVENTS of %zu bytes has %u events, the limit is %u", n,
                       h->n, KV_EVENTS_MAX);
    if (h->flags & ~flags || (h->flags && !(h->flags & KV_EVENTS_SNAPSHOT)) ||
        (h->flags && !(h->flags & KV_EVENTS_BEGIN) != t->in_snapshot) || h->lost > UINT32_MAX ||
        (h->lost && !(h->flags & KV_EVENTS_BEGIN)))
        return err_set(
            e, -EBADMSG, "KV_EVENTS has flags 0x%x and lost %llu %s a snapshot, which do not match",
            h->flags, (unsigned long long)h->lost, t->in_snapshot ? "within" : "outside");
    return 0;
}

int
kv_watch_record(struct worker *w, const void *p, size_t n, struct err *e)
{
    struct daemon *d = worker_daemon(w);
    uint32_t index = worker_info(w)->index;
    struct rec_kv_events h;
    struct watched *t;

    if (!d->kv_watch) return 0; /* in tests of receive.c */
    t = watched(w);
    if (!t->cap)
        return err_set(e, -EBADMSG, "KV_EVENTS, but its model has no kv.reuse or kv.events is 0");
    if (n < sizeof h) return err_set(e, -EBADMSG, "KV_EVENTS of %zu bytes is too short", n);
    memcpy(&h, p, sizeof h);
    TRY(check_head(t, &h, n, e));
    if (h.flags & KV_EVENTS_BEGIN) {
        block_holders_forget(d->kv_watch->blocks, index);
        skip(t, h.lost);
        t->in_snapshot = true;
    }
    for (uint32_t i = 0; i < h.n; i++) {
        struct rec_kv_event v;

        memcpy(&v, (const char *)p + sizeof h + i * sizeof v, sizeof v);
        TRY(check_event(&v, h.flags, e));
        apply(d, index, &v, h.flags);
    }
    if (h.flags & KV_EVENTS_END) {
        t->in_snapshot = false;
        skip(t, 0); /* readers that have seen a part of the blocks read them again */
    }
    return 0;
}

void
kv_watch_lost(struct worker *w)
{
    struct kv_watch *k = worker_daemon(w)->kv_watch;
    uint32_t index = worker_info(w)->index;

    if (!k || !k->of[index].cap) return;
    block_holders_forget(k->blocks, index);
    block_holders_forget(k->parts, index);
    k->of[index].in_snapshot = false;
    skip(&k->of[index], 0);
}

/* ---- routing */

static const struct block_key *
key_of(struct daemon *d, uint32_t model)
{
    struct named *k = &d->kv_watch->key[model];
    uint64_t seed[4];

    if (k->made) return &k->key;
    event_log_cache_key(d, model, seed);
    block_key_init(&k->key, seed);
    k->made = true;
    return &k->key;
}

/* Writes the names of the parts of r's prompt to name[]; returns how many. *part: tokens of one;
 * *whole: only a hit of all of them is one, because an encoder input is reused whole. */
static uint32_t
name_prompt(struct daemon *d, const struct request *r, uint32_t *part, bool *whole)
{
    const struct model_facts *f = &d->facts[r->terms.model];
    const struct rec_submit *s = r->submit;
    bool text = s->text_bytes > 0;
    size_t size = text ? PART_BYTES : f->tokens_per_block * sizeof(token_id), at = 0, bytes;
    const char *p = (const char *)(s + 1), *end = (const char *)s + r->submit_bytes;
    const struct block_key *key = key_of(d, r->terms.model);
    uint64_t root[2];
    uint32_t n = 0;

    *whole = !text && f->max_source;
    *part = text ? PART_BYTES / TEXT_TOKEN_BYTES : f->tokens_per_block;
    if (!size) return 0;
    bytes = text ? s->text_bytes : s->n_prompt * sizeof(token_id);
    /* The KV of the last token is always computed; an encoder input is not. */
    if (!text && !*whole) bytes -= MIN(bytes, sizeof(token_id));
    if (text)
        p += REC_PAD(s->n_prompt * sizeof(token_id)) + REC_PAD(s->n_decoder * sizeof(token_id));
    block_root(key, block_salt(key, end - REC_PAD(s->salt_bytes), s->salt_bytes), s->lora,
               *whole ? (const token_id *)(const void *)p : NULL, *whole ? s->n_prompt : 0,
               text ? 2 : *whole, root);
    for (; n < MAX_NAMES && (at + size <= bytes || (*whole && at < bytes)); n++, at += size)
        block_name(n ? d->kv_watch->name[n - 1] : root, p + at, MIN(size, bytes - at),
                   d->kv_watch->name[n]);
    return n;
}

uint32_t
kv_watch_find(struct daemon *d, const struct request *r, uint32_t *worker, uint64_t *found,
              uint32_t max)
{
    struct kv_watch *k = d->kv_watch;
    uint32_t n, part, n_found, blocks[MAX_WORKERS];
    bool whole;

    if (!k || !k->blocks || !d->config->model[r->terms.model].keys.kv_reuse) return 0;
    n = name_prompt(d, r, &part, &whole);
    n_found = block_holders_find(r->submit->text_bytes ? k->parts : k->blocks,
                                 (const uint64_t(*)[2])k->name, n, worker, blocks,
                                 MIN(max, (uint32_t)MAX_WORKERS));
    for (uint32_t i = 0; i < n_found; i++)
        found[i] = whole ? (blocks[i] == n ? r->submit->n_prompt : 0) : (uint64_t)blocks[i] * part;
    return n_found;
}

void
kv_watch_sent(struct worker *w, const struct request *r, uint64_t found)
{
    struct daemon *d = worker_daemon(w);
    struct kv_watch *k = d->kv_watch;
    uint32_t n, part;
    bool whole;

    if (!k || !watched(w)->cap) return;
    k->hit_tokens += found;
    if (!r->submit->text_bytes) return;
    n = name_prompt(d, r, &part, &whole);
    for (uint32_t i = 0; i < n; i++) {
        if (k->n_parts++ >= MAX_PARTS) { /* old texts are forgotten all at once */
            for (uint32_t j = 0; j < d->n_workers; j++) block_holders_forget(k->parts, j);
            k->n_parts = 0;
        }
        block_holders_add(k->parts, worker_info(w)->index,
                          &(struct held_block){ .name = { k->name[i][0], k->name[i][1] } });
    }
}

uint64_t
kv_watch_hit_tokens(const struct daemon *d)
{
    return d->kv_watch ? d->kv_watch->hit_tokens : 0;
}

/* ---- readers */

void
kv_watch_range(const struct worker *w, uint64_t *first, uint64_t *next)
{
    *first = watched(w)->first;
    *next = watched(w)->next;
}

const struct kv_log_entry *
kv_watch_at(const struct worker *w, uint64_t number)
{
    const struct watched *t = watched(w);

    check(number >= t->first && number < t->next);
    return &t->entry[number % t->cap];
}

uint32_t
kv_watch_blocks(const struct worker *w, uint32_t *at, struct held_block *ret, uint32_t max)
{
    const struct kv_watch *k = worker_daemon(w)->kv_watch;

    return k->blocks ? block_holders_list(k->blocks, worker_info(w)->index, at, ret, max) : 0;
}
