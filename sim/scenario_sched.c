/* scenario_sched.c - scenario commands that act on the scheduler.
 *
 * An iteration plans and commits one step of every lane. If the model has an encoder, a request's
 * encoder input is computed in a step before the request's first decoder step.
 */
#include "sim/scenario_state.h"

#include "include/lagan_wire.h"
#include "wire/msg_reason.h"

enum { MAX_ITERATIONS = 100000 };

/* ---- request */

struct scenario_request_args {
    uint32_t prompt, max_new, source, client, pages;
    uint64_t lora, salt;
    double priority;
    char tokens[SCRIPT_MAX_WORD + 1];
};
/* clang-format off */
static const struct opt request_opts[] = {
    { "prompt", OPT_U32, OPT_AT(scenario_request_args, prompt), .max = 1 << 20, .arg = "N", .sentence = "prompt tokens with ids that no other request has" },
    { "tokens", OPT_STR, OPT_AT(scenario_request_args, tokens), .arg = "LIST", .sentence = "prompt token ids: 0..8,9,5*3" },
    { "new", OPT_U32, OPT_AT(scenario_request_args, max_new), "1", .min = 1, .max = 1 << 20, .arg = "N", .sentence = "tokens to generate" },
    { "source", OPT_U32, OPT_AT(scenario_request_args, source), .max = 1 << 20, .arg = "N", .sentence = "encoder input tokens" },
    { "priority", OPT_F64, OPT_AT(scenario_request_args, priority), "0.5", .min = 0, .max = 1, .arg = "P", .sentence = "from 0 (lowest) to 1 (highest)" },
    { "client", OPT_U32, OPT_AT(scenario_request_args, client), .arg = "N", .sentence = "client for fairness" },
    { "lora", OPT_U64, OPT_AT(scenario_request_args, lora), .arg = "N", .sentence = "LoRA adapter; 0: none" },
    { "pages", OPT_U32, OPT_AT(scenario_request_args, pages), .arg = "N", .sentence = "device pages of the adapter, shared by its users" },
    { "salt", OPT_U64, OPT_AT(scenario_request_args, salt), .arg = "N", .sentence = "cache salt of the tenant" },
    { 0 }
};
/* clang-format on */

static int
fill_prompt(struct scenario *g, struct sim_request *r, struct scenario_request_args *a,
            struct err *e)
{
    static int64_t given[1 << 12];
    int n = 0;

    if (a->tokens[0]) {
        n = script_numbers(a->tokens, given, ARRAY_LEN(given));
        if (n < 0)
            return script_err(g->l, e, "invalid tokens %s; use for example 0..8,9,5*3", a->tokens);
        a->prompt = (uint32_t)n;
    }
    r->seq.token = calloc((size_t)a->prompt + a->max_new, sizeof r->seq.token[0]);
    check(r->seq.token);
    for (uint32_t i = 0; i < a->prompt; i++)
        r->seq.token[i] = n ? (token_id)given[i] : request_token(r, i);
    return 0;
}

/* True if `name` has the letters of a's name and the next number: r3 follows r2. */
static bool
follows_by_name(const struct actor *a, const char *name)
{
    char before[16], letters[16];
    uint32_t n, k, last;

    return script_names(a->name, before, &n, &last) && script_names(name, letters, &k, &last) &&
           strcmp(before, letters) == 0 && k == n + 1;
}

static struct actor *
actor_find(struct scenario *g, const char *name)
{
    for (uint32_t i = 0; i < g->n_actors; i++)
        if (strcmp(g->actor[i].name, name) == 0) return &g->actor[i];
    return NULL;
}

/* Finds the requests named from word `from` on, up to the first option key. Returns how many. */
static int
actors_named(struct scenario *g, uint32_t from, struct actor **to, struct err *e)
{
    int n = 0;

    for (uint32_t i = from; i < g->l->n_words; i++) {
        uint32_t first, last;
        char letters[16], name[28];

        if (!script_names(g->l->words[i], letters, &first, &last)) {
            if (n > 0) return n;
            return script_err(g->l, e, "invalid request name %s; use r0 or r0..r3", g->l->words[i]);
        }
        for (; first <= last; first++) {
            snprintf(name, sizeof name, "%s%u", letters, first);
            if (n == STAGE_ACTORS) return script_err(g->l, e, "more than %d names", STAGE_ACTORS);
            to[n] = actor_find(g, name);
            if (!to[n++]) return script_err(g->l, e, "unknown request %s", name);
        }
    }
    return n > 0 ? n : script_err(g->l, e, "%s needs request names", g->l->words[0]);
}

static int
add_actor(struct scenario *g, const char *name, struct scenario_request_args *a, struct err *e)
{
    struct actor *to = &g->actor[g->n_actors];
    token_id *source = NULL;
    struct seq *q;
    struct err why;
    int r;

    if (g->n_actors == STAGE_ACTORS)
        return script_err(g->l, e, "a scenario may have at most %d requests", STAGE_ACTORS);
    if (actor_find(g, name)) return script_err(g->l, e, "request %s exists already", name);
    check((to->r = calloc(1, sizeof *to->r)));
    strcpy(to->name, name);
    to->follows = g->n_actors > 0 && follows_by_name(to - 1, name);
    q = &to->r->seq;
    to->r->stream = g->n_actors++;
    TRY(fill_prompt(g, to->r, a, e));
    if (a->source > 0) check((source = calloc(a->source, sizeof *source)));
    for (uint32_t i = 0; i < a->source; i++) source[i] = request_token(to->r, 1000000 + i);
    q->id = to->r->stream;
    q->owner = to->r;
    q->source = source;
    q->n_source = a->source;
    q->n_prompt = a->prompt;
    q->cap = a->prompt + a->max_new;
    q->max_new = a->max_new;
    q->priority = (float)a->priority;
    q->client = a->client;
    q->lora = a->lora;
    q->pages = a->pages;
    q->salt = a->salt;
    q->deadline = NSEC_NEVER;
    r = scheduler_add(g->w.s, q, g->it, &why);
    to->ended = r < 0;
    if (r < 0) stage_print(g, "%s refused: %s", name, strerrorname_np(-r));
    return 0;
}

static int
act_request(struct scenario *g, struct err *e)
{
    struct scenario_request_args a;
    uint32_t first, last, i;
    char letters[16], name[28];

    for (i = 1; i < g->l->n_words && script_names(g->l->words[i], letters, &first, &last);) i++;
    if (i == 1) return script_err(g->l, e, "request needs names: r0, or r0..r3");
    opt_defaults(request_opts, &a);
    TRY(script_pairs(g->l, i, request_opts, &a, e));
    for (uint32_t k = 1; k < i; k++) {
        check(script_names(g->l->words[k], letters, &first, &last));
        for (; first <= last; first++) {
            snprintf(name, sizeof name, "%s%u", letters, first);
            TRY(add_actor(g, name, &a, e));
        }
    }
    return 0;
}

/* ---- run, step */

/* Returns the enum work of q in step b, or 0; *end: the position or layer that b reaches. */
static unsigned
part_in(const struct batch *b, const struct seq *q, uint32_t *end)
{
    for (uint32_t i = 0; i < b->n_segments; i++) {
        *end = (uint32_t)b->segment[i].first_pos + b->segment[i].n_tokens;
        if (b->segment[i].slot == q->slot) return b->segment[i].work;
    }
    for (uint32_t i = 0; i < b->n_encode; i++) {
        *end = (uint32_t)b->encode[i].first_layer + b->encode[i].n_layers;
        if (b->encode[i].slot == q->slot) return WORK_ENCODER;
    }
    return 0;
}

/* Writes the suffix that is printed after request i's name: ":encoder" if step b runs its encoder;
 * "@END" (the position that b reaches) or, without `ends`, " " for decoder tokens; "": not in b. */
static void
part_of_actor(const struct scenario *g, uint32_t i, const struct batch *b, bool ends, char part[24])
{
    const struct actor *a = &g->actor[i];
    uint32_t end;
    bool joins = !a->ended && a->r->seq.state > SEQ_WAITING;
    unsigned work = joins ? part_in(b, &a->r->seq, &end) : 0;

    part[0] = 0;
    if (work == WORK_ENCODER) {
        strcpy(part, ":encoder");
    } else if (work && ends) {
        snprintf(part, 24, "@%u", end);
    } else if (work) {
        strcpy(part, " ");
    }
}

/* Appends to text the names of the requests in step b, with the positions that b reaches if `ends`.
 * At least 3 consecutive requests with equal suffixes are printed as r0..r2. */
static void
list_actors(const struct scenario *g, const struct batch *b, bool ends, char *text, size_t n)
{
    char part[24], next[24];

    for (uint32_t i = 0, last; i < g->n_actors; i = last + 1) {
        size_t at = strlen(text);

        last = i;
        part_of_actor(g, i, b, ends, part);
        if (!part[0] || at + 90 > n) continue;
        while (last + 1 < g->n_actors && g->actor[last + 1].follows) {
            part_of_actor(g, last + 1, b, ends, next);
            if (strcmp(part, next) != 0) break;
            last++;
        }
        if (last < i + 2) last = i;
        snprintf(text + at, n - at, " %s%s%s%s", g->actor[i].name, last > i ? ".." : "",
                 last > i ? g->actor[last].name : "", part[0] == ' ' ? "" : part);
    }
}

/* Runs one iteration and appends its requests to text. False: no lane had a step. */
static bool
run_iteration(struct scenario *g, bool ends, char *text, size_t n)
{
    bool planned[MAX_LANES] = { false }, any = false;

    text[0] = 0;
    for (unsigned l = 0; l < g->st.sched.n_lanes; l++) {
        const struct batch *b = worker_plan(&g->w, l, g->it);

        planned[l] = b != NULL;
        if (b && any && text[0]) strncat(text, " /", n - strlen(text) - 1);
        any = any || b;
        if (b) list_actors(g, b, ends, text, n);
    }
    for (unsigned l = 0; l < g->st.sched.n_lanes; l++)
        if (planned[l]) worker_commit(&g->w, l, g->it);
    scheduler_check(g->w.s);
    g->it += any;
    return any;
}

/* Prints the requests that ended for another reason than their length. */
static void
print_ended(struct scenario *g)
{
    for (struct seq *q; (q = scheduler_reap(g->w.s));) {
        struct actor *a = &g->actor[q->id];

        a->ended = true;
        if (q->reason != LAGAN_FINISH_LENGTH)
            stage_print(g, "%u %s ended: %s", g->it, a->name, msg_reason(q->reason, NULL));
    }
}

static void
say_range(struct scenario *g, uint32_t first, const char *text)
{
    if (g->it == first) return;
    if (g->it == first + 1) {
        stage_print(g, "%u%s", first, text);
    } else {
        stage_print(g, "%u..%u%s", first, g->it - 1, text);
    }
}

struct scenario_run_args {
    uint32_t to;
};
/* clang-format off */
static const struct opt run_opts[] = {
    { "to", OPT_U32, OPT_AT(scenario_run_args, to), .max = MAX_ITERATIONS, .arg = "N", .sentence = "stop before that iteration" },
    { 0 }
};
/* clang-format on */

static int
act_run(struct scenario *g, struct err *e)
{
    static char last[4096], text[4096];
    struct scenario_run_args a = { MAX_ITERATIONS };
    uint32_t first = g->it;
    bool any = true;

    TRY(script_pairs(g->l, 1, run_opts, &a, e));
    last[0] = 0;
    while (g->it < a.to && (any = run_iteration(g, false, text, sizeof text))) {
        if (g->it - 1 > first && strcmp(text, last) != 0) {
            g->it--;
            say_range(g, first, last);
            first = g->it++;
        }
        strcpy(last, text);
        if (scheduler_counts(g->w.s).running + scheduler_counts(g->w.s).waiting == 0) break;
        print_ended(g);
    }
    say_range(g, first, last);
    print_ended(g);
    if (g->it == MAX_ITERATIONS)
        return script_err(g->l, e, "run: requests remain after %d iterations", MAX_ITERATIONS);
    if (scheduler_counts(g->w.s).running + scheduler_counts(g->w.s).waiting == 0) {
        stage_print(g, "%u idle", g->it);
    } else if (!any) {
        stage_print(g, "%u stuck", g->it);
    }
    return 0;
}

static int
act_step(struct scenario *g, struct err *e)
{
    static char text[4096];
    int64_t n = 1;

    if (g->l->n_words > 2 || (g->l->n_words == 2 && script_numbers(g->l->words[1], &n, 1) != 1))
        return script_err(g->l, e, "usage: step [N]");
    for (; n > 0 && run_iteration(g, true, text, sizeof text); n--) {
        stage_print(g, "%u%s", g->it - 1, text);
        print_ended(g);
    }
    if (n > 0) stage_print(g, "%u idle", g->it);
    return 0;
}

/* ---- show, cancel, used */

static int
act_show(struct scenario *g, struct err *e)
{
    struct actor *a[STAGE_ACTORS];
    int n = actors_named(g, 1, a, e);

    for (int i = 0; i < n; i++) {
        const struct seq *q = &a[i]->r->seq;

        if (a[i]->ended) {
            stage_print(g, "%s %s, %u cached", a[i]->name, msg_reason(q->reason, NULL),
                        q->n_cached);
        } else {
            stage_print(g, "%s %u/%u/%u at %u", a[i]->name, q->max_new, q->n_prompt,
                        q->n_tokens - q->n_prompt, q->n_done);
        }
    }
    return MIN(n, 0);
}

static int
act_cancel(struct scenario *g, struct err *e)
{
    struct actor *a[STAGE_ACTORS];
    int n = actors_named(g, 1, a, e);

    for (int i = 0; i < n; i++) scheduler_cancel(g->w.s, a[i]->r->seq.id, LAGAN_FINISH_CANCELLED);
    print_ended(g);
    return MIN(n, 0);
}

static int
act_used(struct scenario *g, struct err *e)
{
    struct kv_count n;

    (void)e;
    for (uint32_t p = 0; p < kv_n_pools(g->w.kv); p++) {
        kv_count(g->w.kv, p, &n);
        stage_append(g, "%s%u", p ? " " : "", n.used);
    }
    stage_end(g);
    return 0;
}

/* clang-format off */
const struct scenario_command sched_commands[] = {
    { "request", "NAME...", request_opts, "add requests in this order: r0, or r0..r3", act_request, NULL },
    { "run", "", run_opts, "run until all requests end; print the requests of each iteration, and unusual ends", act_run, NULL },
    { "step", "[N]", NULL, "run N iterations; print the requests of each, and reached positions", act_step, NULL },
    { "show", "NAME...", NULL, "print tokens still to generate / prompt / generated, and the position", act_show, NULL },
    { "cancel", "NAME...", NULL, "cancel requests", act_cancel, NULL },
    { "used", "", NULL, "print the referenced blocks by pool", act_used, NULL },
    { 0 },
};
/* clang-format on */
