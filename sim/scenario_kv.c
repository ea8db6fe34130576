/* scenario_kv.c - scenario commands that call the KV manager directly, in place of a scheduler.
 *
 * Each command is one step, which is complete before the next command. Blocks are numbered in the
 * order in which each KV group first allocates them. With the settings `group max` and `cache fifo`
 * these are the block numbers of the specification's tables (tests/scenarios/README.md).
 */
#include "sim/scenario_state.h"

#include "worker/kv/kv_event.h"
#include "worker/kv/kv_reuse.h"

#include <inttypes.h>

enum { EDITS = 1 << 16, COPIES = 1 << 10, TOKENS = 4096, KEEPS = 16 };

struct scenario_seq { /* a sequence; its slot is its index in scenario.holder[] */
    char name[28];
    bool admitted, started;
    token_id token[TOKENS], source[TOKENS];
    uint64_t extra[TOKENS];
    uint32_t n, cached; /* known tokens; positions with written KV */
    struct kv_text text;
    struct kv_namespace space;
    struct kv_keep keep[KEEPS];
    struct kv_hit hit;
};

static struct kv_edit edits[EDITS];
static struct kv_copy copies[COPIES];

/* Starts the next step; its table edits are collected in the returned struct. */
static struct kv_out
begin_step(struct scenario *g)
{
    struct kv_out out = { .edit = edits, .max_edits = EDITS, .copy = copies, .max_copies = COPIES };

    out.step = ++g->step;
    return out;
}

/* Completes the slot's step: from now on the KV manager treats the step's KV as written. */
static void
end_step(struct scenario *g, uint32_t slot)
{
    kv_fence(g->w.kv, slot, 0, g->step);
    kv_done(g->w.kv, 0, g->step);
    kv_check(g->w.kv);
}

static struct scenario_seq *
find_holder(struct scenario *g, const char *name, uint32_t *slot)
{
    for (*slot = 0; *slot < g->n_holders; ++*slot)
        if (strcmp(g->holder[*slot]->name, name) == 0) return g->holder[*slot];
    return NULL;
}

/* Finds the admitted sequence whose name is the given word of the line. */
static int
holder_named(struct scenario *g, uint32_t word, struct scenario_seq **ret, uint32_t *slot,
             struct err *e)
{
    if (word >= g->l->n_words)
        return script_err(g->l, e, "%s needs a sequence name", g->l->words[0]);
    *ret = find_holder(g, g->l->words[word], slot);
    if (*ret && (*ret)->admitted) return 0;
    return script_err(g->l, e, "sequence %s is not admitted", g->l->words[word]);
}

static int
add_holder(struct scenario *g, const char *name, struct scenario_seq **ret, struct err *e)
{
    if (g->n_holders == MIN(g->st.kv.n_slots, (uint32_t)STAGE_HOLDERS))
        return script_err(g->l, e, "no slot is free for sequence %s", name);
    check((*ret = g->holder[g->n_holders++] = calloc(1, sizeof **ret)));
    snprintf((*ret)->name, sizeof(*ret)->name, "%s", name);
    return 0;
}

/* Returns the number of a block in its group; a new block gets the next number. */
static uint32_t
block_number(struct scenario *g, uint32_t group, slice_id at)
{
    uint32_t i = 0;

    while (i < g->n_blocks[group] && g->block[group][i] != at) i++;
    if (i == g->n_blocks[group]) {
        check(i < STAGE_BLOCKS);
        g->block[group][g->n_blocks[group]++] = at;
    }
    return i;
}

/* Appends to the output the block numbers of the slot, group by group. */
static void
list_blocks(struct scenario *g, uint32_t slot)
{
    for (uint32_t k = 0; k < g->st.kv.n_groups; k++) {
        uint32_t first, held = kv_held(g->w.kv, slot, k, &first);

        if (k > 0) stage_append(g, " /");
        for (uint32_t i = 0; held > 0; i++) {
            slice_id at = kv_entry(g->w.kv, slot, k, i);

            held -= at != SLICE_NONE;
            if (at == SLICE_NONE) {
                stage_append(g, " -");
            } else {
                stage_append(g, " %u", block_number(g, k, at));
            }
        }
    }
}

struct admit_args {
    char tokens[SCRIPT_MAX_WORD + 1], extra[SCRIPT_MAX_WORD + 1], source[SCRIPT_MAX_WORD + 1];
    char keep[SCRIPT_MAX_WORD + 1];
    uint64_t salt, lora;
    uint32_t spare;
    bool features;
};
/* clang-format off */
static const struct opt admit_opts[] = {
    { "tokens", OPT_STR, OPT_AT(admit_args, tokens), .arg = "LIST", .sentence = "prompt token ids: 0..8,9,5*3" },
    { "extra", OPT_STR, OPT_AT(admit_args, extra), .arg = "LIST", .sentence = "extra ids of the first tokens; they distinguish equal token ids" },
    { "source", OPT_STR, OPT_AT(admit_args, source), .arg = "LIST", .sentence = "encoder input token ids" },
    { "features", OPT_BOOL, OPT_AT(admit_args, features), .sentence = "the encoder input has a length but no token ids" },
    { "salt", OPT_U64, OPT_AT(admit_args, salt), .arg = "N", .sentence = "cache salt of the tenant" },
    { "lora", OPT_U64, OPT_AT(admit_args, lora), .arg = "N", .sentence = "LoRA adapter; 0: none" },
    { "keep", OPT_STR, OPT_AT(admit_args, keep), .arg = "RANGES", .sentence = "retention FROM-TO:PRIORITY,... of blocks that start in a range; TO may be end" },
    { "spare", OPT_U32, OPT_AT(admit_args, spare), .max = 1 << 20, .arg = "N", .sentence = "tokens to reserve blocks for after the prompt" },
    { 0 }
};
/* clang-format on */

static int
read_keep(struct scenario *g, struct scenario_seq *h, char *ranges, struct err *e)
{
    uint32_t n = 0;

    for (char *at; (at = strsep(&ranges, ","));) {
        struct kv_keep *k = &h->keep[n];
        unsigned start, end = UINT32_MAX, priority;
        struct err why;

        if (n++ == KEEPS) return script_err(g->l, e, "keep has more than %d ranges", KEEPS);
        if (sscanf(at, "%u-end:%u", &start, &priority) < 2 &&
            sscanf(at, "%u-%u:%u", &start, &end, &priority) < 3)
            return script_err(g->l, e, "invalid range %s; use FROM-TO:PRIORITY", at);
        if (priority > 255) return script_err(g->l, e, "keep: priority %u > 255", priority);
        *k = (struct kv_keep){ start, end, (uint8_t)priority };
        if (ranges) continue;
        if (kv_keep_check(h->keep, n, &why) < 0) return script_err(g->l, e, "%s", why.text);
        h->text.keep = h->keep;
        h->text.n_keep = n;
    }
    return 0;
}

static int
read_list(struct scenario *g, const char *list, int64_t *to, struct err *e)
{
    int n = list[0] ? script_numbers(list, to, TOKENS) : 0;

    return n < 0 ? script_err(g->l, e, "invalid list %s; use for example 0..8,9,5*3", list) : n;
}

static int
fill_holder(struct scenario *g, struct scenario_seq *h, struct admit_args *a, struct err *e)
{
    static int64_t list[TOKENS];
    char name[28];
    int n;

    memcpy(name, h->name, sizeof name);
    memset(h, 0, sizeof *h);
    memcpy(h->name, name, sizeof name);
    TRY(n = read_list(g, a->extra, list, e));
    for (int i = 0; i < n; i++) h->extra[i] = (uint64_t)list[i];
    TRY(n = read_list(g, a->source, list, e));
    for (int i = 0; i < n; i++) h->source[i] = (token_id)list[i];
    h->text.n_source = (uint32_t)n;
    TRY(n = read_list(g, a->tokens, list, e));
    if (n == 0) return script_err(g->l, e, "tokens LIST is required");
    for (int i = 0; i < n; i++) h->token[i] = (token_id)list[i];
    h->n = h->text.n = (uint32_t)n;
    h->text.token = h->token;
    h->text.extra = h->extra;
    if (h->text.n_source > 0 && !a->features) h->text.source = h->source;
    h->text.namespace = &h->space;
    kv_namespace(g->w.kv, a->salt, a->lora, h->text.source, h->text.n_source, &h->space);
    return a->keep[0] ? read_keep(g, h, a->keep, e) : 0;
}

/* Reads the admit_opts of the line into *a and *h. */
static int
read_text(struct scenario *g, struct admit_args *a, struct scenario_seq *h, struct err *e)
{
    opt_defaults(admit_opts, a);
    TRY(script_pairs(g->l, 1, admit_opts, a, e));
    return fill_holder(g, h, a, e);
}

static int
act_lookup(struct scenario *g, struct err *e)
{
    static struct scenario_seq h;
    struct admit_args a;
    struct kv_hit hit;

    TRY(read_text(g, &a, &h, e));
    kv_lookup(g->w.kv, &h.text, &hit);
    stage_append(g, "pos %u%s full %u", hit.n_tokens, hit.cross ? " and its source" : "",
                 hit.n_full);
    for (uint32_t k = 0; k < g->st.kv.n_groups; k++)
        stage_append(g, " / held %u cached %u", hit.n_held[k], hit.n_cached[k]);
    stage_end(g);
    return 0;
}

/* The command pin: the longest request is the prompt with its spare tokens. */
static int
act_pin(struct scenario *g, struct err *e)
{
    static struct scenario_seq h;
    struct admit_args a;
    struct kv_need longest;
    struct err why;
    uint32_t n;
    int r;

    TRY(read_text(g, &a, &h, e));
    longest = kv_need(g->w.kv, h.n + a.spare, h.text.n_source, h.n);
    r = kv_pin(g->w.kv, &h.text, &longest, &n, &why);
    kv_check(g->w.kv);
    if (r < 0) {
        stage_print(g, "refused: %s", strerrorname_np(-r));
    } else {
        stage_print(g, "pin %d pos %u", r, n);
    }
    return 0;
}

static int
act_unpin(struct scenario *g, struct err *e)
{
    int64_t pin;

    if (g->l->n_words != 2 || script_numbers(g->l->words[1], &pin, 1) != 1)
        return script_err(g->l, e, "usage: unpin PIN");
    if (pin < 1 || pin > KV_PINS || !kv_unpin(g->w.kv, (uint32_t)pin))
        return script_err(g->l, e, "there is no pin %s", g->l->words[1]);
    kv_check(g->w.kv);
    return 0;
}

/* Runs one step that ends at position `end`, at most at kv_border(), where a step must end so that
 * recurrent state can be copied. There the sequence's full blocks are put into the prefix cache. */
static void
step_to(struct scenario *g, struct scenario_seq *h, uint32_t slot, uint32_t end)
{
    struct kv_out out = begin_step(g);
    struct kv *kv = g->w.kv;
    uint32_t border = kv_border(kv, h->cached, h->n);

    kv_start(kv, 0, g->step, slot, &out);
    kv_check(kv);
    if (!h->started && !h->hit.cross) kv_cross(kv, 0, slot, h->text.n_source, &out);
    kv_trim(kv, slot, h->cached, &out);
    kv_grow(kv, 0, slot, end, &out);
    if (end == border) kv_snapshot(kv, 0, slot, end, &out);
    end_step(g, slot);
    h->cached = end;
    h->started = true;
    if (end == border) kv_store(kv, slot, &h->text, end);
}

static int
start_one(struct scenario *g, struct scenario_seq *h, uint32_t slot, uint32_t n, struct err *e)
{
    (void)n;
    if (h->started) return script_err(g->l, e, "%s has started already", h->name);
    for (h->cached = h->hit.n_tokens; h->cached < h->n;)
        step_to(g, h, slot, MIN(h->n, kv_border(g->w.kv, h->cached, h->n)));
    stage_append(g, "%s pos %u%s blocks", h->name, h->hit.n_tokens,
                 h->hit.cross ? " and its source" : "");
    list_blocks(g, slot);
    stage_end(g);
    return 0;
}

/* The commands admit and add; add also starts the sequence. */
static int
act_admit(struct scenario *g, struct err *e)
{
    struct admit_args a;
    struct kv_need need;
    struct scenario_seq *h;
    uint32_t first, last, slot;
    char letters[16];
    int r;

    if (g->l->n_words < 2 || !script_names(g->l->words[1], letters, &first, &last) || first != last)
        return script_err(g->l, e, "%s needs one sequence name", g->l->words[0]);
    opt_defaults(admit_opts, &a);
    TRY(script_pairs(g->l, 2, admit_opts, &a, e));
    h = find_holder(g, g->l->words[1], &slot);
    if (!h) TRY(add_holder(g, g->l->words[1], &h, e));
    if (h->admitted) {
        stage_print(g, "%s refused: EEXIST", h->name);
        return 0;
    }
    TRY(fill_holder(g, h, &a, e));
    need = kv_need(g->w.kv, h->n + a.spare, h->text.n_source, h->n);
    r = kv_admit(g->w.kv, slot, &need, &h->text, &h->hit);
    kv_check(g->w.kv);
    h->admitted = r == 0;
    if (r < 0) stage_print(g, "%s refused: %s", h->name, strerrorname_np(-r));
    return r == 0 && strcmp(g->command->name, "add") == 0 ? start_one(g, h, slot, 0, e) : 0;
}

/* ---- commands for started sequences (gen, grow, raise, fork, store, release, drop); flush */

/* The commands gen and grow append tokens; grow also writes their KV. */
static int
act_grow(struct scenario *g, struct err *e)
{
    static int64_t list[TOKENS];
    struct scenario_seq *h;
    uint32_t slot;
    int n;

    TRY(holder_named(g, 1, &h, &slot, e));
    if (g->l->n_words != 3) return script_err(g->l, e, "usage: %s NAME LIST", g->l->words[0]);
    if (!h->started) return script_err(g->l, e, "%s has not started", h->name);
    TRY(n = read_list(g, g->l->words[2], list, e));
    for (int i = 0; i < n; i++) {
        if (h->n == TOKENS) return script_err(g->l, e, "%s has over %d tokens", h->name, TOKENS);
        h->token[h->n++] = (token_id)list[i];
        h->text.n = h->n;
        if (strcmp(g->command->name, "gen") == 0) continue;
        if (!kv_has_capacity(g->w.kv, slot, h->cached + 1)) {
            struct kv_out out = begin_step(g);

            kv_trim(g->w.kv, slot, h->cached, &out);
        }
        if (!kv_has_capacity(g->w.kv, slot, h->cached + 1))
            return script_err(g->l, e, "%s has no reserved block for its next token", h->name);
        step_to(g, h, slot, h->cached + 1);
        list_blocks(g, slot); /* gives the new block its number */
        g->text[0] = 0;
    }
    return 0;
}

static int
act_raise(struct scenario *g, struct err *e)
{
    struct kv_need need;
    struct scenario_seq *h;
    uint32_t slot;
    int64_t spare;
    int r;

    TRY(holder_named(g, 1, &h, &slot, e));
    if (g->l->n_words != 3 || script_numbers(g->l->words[2], &spare, 1) != 1 || spare < 0)
        return script_err(g->l, e, "usage: raise NAME TOKENS");
    need = kv_need(g->w.kv, h->n + (uint32_t)spare, h->text.n_source, h->n);
    r = kv_raise(g->w.kv, slot, &need);
    kv_check(g->w.kv);
    if (r < 0) stage_print(g, "%s refused: %s", h->name, strerrorname_np(-r));
    return 0;
}

/* The command fork: further sequences continue from the KV of a sequence, like beams. */
static int
act_fork(struct scenario *g, struct err *e)
{
    struct scenario_seq *h;
    uint32_t from;

    TRY(holder_named(g, 1, &h, &from, e));
    if (!h->started) return script_err(g->l, e, "%s has not started", h->name);
    for (uint32_t i = 2; i < MAX(g->l->n_words, 3u); i++) {
        struct kv_need need = kv_fork_need(g->w.kv, h->cached + 1, h->cached, 1, false);
        struct scenario_seq *to;
        struct kv_out out;
        uint32_t slot;

        if (i >= g->l->n_words) return script_err(g->l, e, "usage: fork NAME INTO...");
        if (find_holder(g, g->l->words[i], &slot))
            return script_err(g->l, e, "%s exists already", g->l->words[i]);
        TRY(add_holder(g, g->l->words[i], &to, e));
        *to = *h;
        snprintf(to->name, sizeof to->name, "%s", g->l->words[i]);
        to->text.token = to->token;
        to->text.extra = to->extra;
        to->text.source = to->text.source ? to->source : NULL;
        to->text.namespace = &to->space;
        if (kv_reserve(g->w.kv, slot, &need) < 0)
            return script_err(g->l, e, "no blocks are free for %s", to->name);
        out = begin_step(g);
        kv_fork(g->w.kv, 0, g->step, from, slot, h->cached, h->cached, &out);
        end_step(g, slot);
    }
    return 0;
}

struct at_args {
    uint32_t at;
};
/* clang-format off */
static const struct opt at_opts[] = {
    { "at", OPT_U32, OPT_AT(at_args, at), .arg = "N", .sentence = "positions to treat as written; default: all but the last token" },
    { 0 }
};
/* clang-format on */

/* Calls the command's each() for each named sequence; parses an optional "at N". */
static int
act_each(struct scenario *g, struct err *e)
{
    const struct opt *opts = g->command->opts;
    struct at_args a = { UINT32_MAX };
    uint32_t n = 1, slot;
    struct scenario_seq *h;

    while (n < g->l->n_words && !(opts && strcmp(g->l->words[n], "at") == 0)) n++;
    TRY(script_pairs(g->l, n, opts, &a, e));
    for (uint32_t i = 1; i < MAX(n, 2u); i++) {
        TRY(holder_named(g, i, &h, &slot, e));
        if (a.at != UINT32_MAX && a.at > h->n)
            return script_err(g->l, e, "at %u: %s has only %u tokens", a.at, h->name, h->n);
        TRY(g->command->each(g, h, slot, a.at == UINT32_MAX ? h->n - 1 : a.at, e));
        kv_check(g->w.kv);
    }
    return 0;
}

static int
store_one(struct scenario *g, struct scenario_seq *h, uint32_t slot, uint32_t n, struct err *e)
{
    (void)e;
    kv_store(g->w.kv, slot, &h->text, n);
    return 0;
}

/* The commands release and drop. */
static int
end_one(struct scenario *g, struct scenario_seq *h, uint32_t slot, uint32_t n, struct err *e)
{
    (void)e;
    if (strcmp(g->command->name, "release") == 0) {
        kv_release(g->w.kv, slot, &h->text, n);
    } else {
        kv_drop(g->w.kv, slot);
    }
    h->admitted = h->started = false;
    return 0;
}

static int
act_flush(struct scenario *g, struct err *e)
{
    struct kv_flushed went = { 0 };

    (void)e;
    kv_flush(g->w.kv, UINT32_MAX, &went);
    kv_check(g->w.kv);
    stage_print(g, "%llu blocks, %llu on the host", (unsigned long long)went.blocks,
                (unsigned long long)went.host_blocks);
    return 0;
}

/* ---- output: held, free, stats, events, need */

static int
list_one(struct scenario *g, struct scenario_seq *h, uint32_t slot, uint32_t n, struct err *e)
{
    (void)n;
    (void)e;
    stage_append(g, "%s", h->name);
    list_blocks(g, slot);
    stage_end(g);
    return 0;
}

static int
act_free(struct scenario *g, struct err *e)
{
    struct kv_count n;

    (void)e;
    for (uint32_t p = 0; p < kv_n_pools(g->w.kv); p++) {
        kv_count(g->w.kv, p, &n);
        stage_append(g, "%s%u", p ? " " : "", n.free + n.cached);
    }
    kv_count_host(g->w.kv, &n);
    if (g->st.kv.host_bytes)
        stage_append(g, " host %u with %u cached", n.free + n.cached, n.cached);
    stage_end(g);
    return 0;
}

static int
act_stats(struct scenario *g, struct err *e)
{
    (void)e;
    for (uint32_t k = 0; k < g->st.kv.n_groups; k++) {
        struct kv_stats s;

        kv_stats(g->w.kv, k, &s);
        if (g->st.kv.host_bytes)
            stage_print(g, "offloaded %" PRIu64 " onboarded %" PRIu64 " host_evicted %" PRIu64,
                        s.offloaded, s.onboarded, s.host_evicted);
        stage_print(g,
                    "allocated %" PRIu64 " allocated_new %" PRIu64 " reused_full %" PRIu64
                    " reused_copied %" PRIu64 " reused_moved %" PRIu64 " missed %" PRIu64
                    " evicted %" PRIu64,
                    s.allocated, s.allocated_new, s.shared, s.copied, s.moved, s.missed, s.evicted);
    }
    return 0;
}

/* Writes into text what the command `events` prints for the block with this 128-bit name: b0, b1,
 * ... in order of first appearance. With `space` it may be a cache namespace, printed as -. */
static void
name_text(struct scenario *g, const uint64_t name[2], bool space, char text[16])
{
    uint32_t i = 0;

    while (i < g->n_names && (g->name[i][0] != name[0] || g->name[i][1] != name[1])) i++;
    if (i == g->n_names && !space && i < STAGE_BLOCKS) {
        memcpy(g->name[i], name, sizeof g->name[i]);
        g->n_names++;
    }
    if (i == g->n_names) {
        strcpy(text, "-");
    } else {
        snprintf(text, 16, "b%u", i);
    }
}

static int
act_events(struct scenario *g, struct err *e)
{
    struct kv_event all[64];
    uint64_t missed = 0;
    uint32_t n;

    (void)e;
    while ((n = kv_events(g->w.kv, &g->next_event, all, ARRAY_LEN(all), &missed))) {
        if (missed) stage_print(g, "%llu missed", (unsigned long long)missed);
        for (uint32_t i = 0; i < n; i++) {
            char name[16], parent[16], in[24] = "";

            name_text(g, all[i].parent, true, parent);
            name_text(g, all[i].name, false, name);
            if (g->st.kv.n_groups > 1) snprintf(in, sizeof in, " in group %u", all[i].group);
            switch ((enum kv_event_op)all[i].op) {
            case KV_STORED:
                stage_print(g, "stored %s behind %s, %u tokens, priority %u%s", name, parent,
                            all[i].n_tokens, all[i].priority, in);
                break;
            case KV_REMOVED:
                stage_print(g, "removed %s%s: %s", name, in, kv_why_name((enum kv_why)all[i].why));
                break;
            case KV_UPDATED:
                stage_print(g, "updated %s, priority %u to %u%s: %s", name, all[i].was,
                            all[i].priority, in, kv_why_name((enum kv_why)all[i].why));
            }
        }
    }
    return 0;
}

struct need_args {
    uint32_t len, source, chunk;
};
/* clang-format off */
static const struct opt need_opts[] = {
    { "len", OPT_U32, OPT_AT(need_args, len), "1", .min = 1, .max = 1 << 24, .arg = "TOKENS", .sentence = "prompt and output tokens" },
    { "source", OPT_U32, OPT_AT(need_args, source), .max = 1 << 24, .arg = "TOKENS", .sentence = "encoder input tokens" },
    { "chunk", OPT_U32, OPT_AT(need_args, chunk), "1", .min = 1, .max = 1 << 24, .arg = "TOKENS", .sentence = "tokens in a step at most" },
    { 0 }
};
/* clang-format on */

static int
act_need(struct scenario *g, struct err *e)
{
    struct need_args a;
    struct kv_need n;

    opt_defaults(need_opts, &a);
    TRY(script_pairs(g->l, 1, need_opts, &a, e));
    n = kv_need(g->w.kv, a.len, a.source, a.chunk);
    for (uint32_t k = 0; k < g->st.kv.n_groups; k++)
        stage_append(g, "%s%u", k ? " " : "", n.n_blocks[k]);
    stage_end(g);
    return 0;
}

/* clang-format off */
const struct scenario_command kv_commands[] = {
    { "admit", "NAME", admit_opts, "look up a prompt and reserve all blocks that it needs", act_admit, NULL },
    { "lookup", "", admit_opts, "print what a prompt would find: full blocks, used or cached, by group", act_lookup, NULL },
    { "start", "NAME...", NULL, "compute the prompts; print the cached positions, and blocks by group", act_each, start_one },
    { "add", "NAME", admit_opts, "admit and start", act_admit, NULL },
    { "raise", "NAME TOKENS", NULL, "reserve blocks for TOKENS tokens after the known ones", act_raise, NULL },
    { "gen", "NAME LIST", NULL, "append generated tokens without writing KV", act_grow, NULL },
    { "grow", "NAME LIST", NULL, "append generated tokens and write KV for each", act_grow, NULL },
    { "fork", "NAME INTO...", NULL, "start sequences that share all KV of NAME and then diverge", act_fork, NULL },
    { "store", "NAME...", at_opts, "put the full written blocks into the prefix cache", act_each, store_one },
    { "release", "NAME...", at_opts, "end the sequence; keep its written blocks in the prefix cache", act_each, end_one },
    { "drop", "NAME...", NULL, "end the sequence; cache no further blocks", act_each, end_one },
    { "flush", "", NULL, "remove all unreferenced blocks from the prefix cache", act_flush, NULL },
    { "pin", "", admit_opts, "keep the full cached blocks of a prompt; a request of that prompt and spare must fit beside them", act_pin, NULL },
    { "unpin", "PIN", NULL, "end the pin of that number", act_unpin, NULL },
    { "held", "NAME...", NULL, "print its blocks by group; - where a block left the window", act_each, list_one },
    { "free", "", NULL, "print the unreferenced blocks by pool, and those of the host tier", act_free, NULL },
    { "stats", "", NULL, "print the counters since the start, by group", act_stats, NULL },
    { "events", "", NULL, "print new KV events: blocks stored, updated and removed", act_events, NULL },
    { "need", "", need_opts, "print the blocks that a sequence needs at once, by group", act_need, NULL },
    { 0 },
};
/* clang-format on */
