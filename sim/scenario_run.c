/* scenario_run.c - see scenario_run.h. Commands are in scenario_sched.c and scenario_kv.c. */
#include "sim/scenario_run.h"

#include "sim/scenario_state.h"
#include "sim/text_diff.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const struct scenario_command *const tables[] = { sched_commands, kv_commands };

void
stage_print(struct scenario_state *g, const char *fmt, ...)
{
    va_list ap;

    if (g->n_lines == STAGE_LINES) return;
    va_start(ap, fmt);
    check(vasprintf(&g->line[g->n_lines], fmt, ap) >= 0);
    va_end(ap);
    g->n_lines++;
}

int
stage_error(const struct scenario_state *g, struct err *e, const char *fmt, ...)
{
    char text[180];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return script_err(g->s, g->l, e, -EINVAL, "%s", text);
}

struct actor *
actor_find(struct scenario_state *g, const char *name)
{
    for (uint32_t i = 0; i < g->n_actors; i++)
        if (strcmp(g->actor[i].name, name) == 0) return &g->actor[i];
    return NULL;
}

int
actors_named(struct scenario_state *g, uint32_t from, struct actor **to, struct err *e)
{
    int n = 0;

    for (uint32_t i = from; i < g->l->n_words; i++) {
        uint32_t first, last;
        char letters[16], name[28];

        if (!script_names(g->l->words[i], letters, &first, &last)) {
            if (n > 0) return n;
            return stage_error(g, e, "invalid request name %s; use r0 or r0..r3", g->l->words[i]);
        }
        for (; first <= last; first++) {
            snprintf(name, sizeof name, "%s%u", letters, first);
            if (n == STAGE_ACTORS) return stage_error(g, e, "more than %d names", STAGE_ACTORS);
            to[n] = actor_find(g, name);
            if (!to[n++]) return stage_error(g, e, "unknown request %s", name);
        }
    }
    return n > 0 ? n : stage_error(g, e, "%s needs request names", g->l->words[0]);
}

static const struct scenario_command *
find_command(const char *name, const struct scenario_command *const **table)
{
    for (*table = tables; *table < tables + ARRAY_LEN(tables); ++*table)
        for (const struct scenario_command *c = **table; c->name; c++)
            if (strcmp(c->name, name) == 0) return c;
    return NULL;
}

static int
open_stage(struct scenario_state *g, struct err *e)
{
    struct err why;

    if (g->open) return 0;
    setting_close(&g->st);
    if (worker_open(&g->w, &g->st, &why) < 0) return stage_error(g, e, "%s", why.text);
    g->open = true;
    return 0;
}

static void
leave_actors(struct scenario_state *g)
{
    for (uint32_t i = 0; i < g->n_actors; i++) {
        union {
            const token_id *in;
            void *out;
        } source = { .in = g->actor[i].r->seq.source };

        free(source.out);
        free(g->actor[i].r->seq.token);
        free(g->actor[i].r);
    }
    memset(g->actor, 0, g->n_actors * sizeof g->actor[0]);
    g->n_actors = 0;
    while (g->n_holders > 0) free(g->holder[--g->n_holders]);
    memset(g->n_blocks, 0, sizeof g->n_blocks);
    g->step = g->next_event = g->n_names = 0;
}

/* The command `again`: restarts with the settings so far. */
static int
restart_scenario(struct scenario_state *g, struct err *e)
{
    if (g->l->n_words > 1 || !g->open)
        return stage_error(g, e, "again has no operands and must follow a command");
    worker_close(&g->w);
    leave_actors(g);
    g->it = 0;
    g->open = false;
    g->commands = NULL;
    return 0;
}

static int
act_line(struct scenario_state *g, struct err *e)
{
    const struct scenario_command *const *table, *c = find_command(g->l->words[0], &table);
    int r = setting_line(&g->st, g->s, g->l, e);

    if (strcmp(g->l->words[0], "again") == 0) return restart_scenario(g, e);
    if (r < 0) return r;
    if (r > 0 && g->open) return stage_error(g, e, "settings must precede all commands");
    if (r > 0) return 0;
    if (!c)
        return stage_error(g, e, "unknown command %s; `lagan-sim script --help` lists the commands",
                           g->l->words[0]);
    TRY(open_stage(g, e));
    if (g->commands && g->commands != *table)
        return stage_error(g, e, "scheduler and KV manager commands cannot be mixed");
    g->commands = *table;
    return c->act(g, e);
}

/* Compares the command's output with the expected lines and prints differences. */
static bool
as_wanted(struct scenario_state *g, FILE *out)
{
    char *const *want = &g->s->want[g->l->first_want];
    bool same = g->n_lines == g->l->n_want;

    for (uint32_t i = 0; i < g->n_lines && same; i++) same = strcmp(want[i], g->line[i]) == 0;
    if (!same) {
        fprintf(out, "%s:%u:", g->s->name, g->l->number);
        for (uint32_t i = 0; i < g->l->n_words; i++) fprintf(out, " %s", g->l->words[i]);
        fputs("    (- expected, + printed)\n", out);
        diff_print(out, want, g->l->n_want, g->line, g->n_lines);
    }
    for (uint32_t i = 0; i < g->n_lines; i++) free(g->line[i]);
    g->n_lines = 0;
    return same;
}

static void
leave_stage(struct scenario_state **at)
{
    struct scenario_state *g = *at;

    if (!g) return;
    worker_close(&g->w);
    for (uint32_t i = 0; i < g->n_lines; i++) free(g->line[i]);
    leave_actors(g);
    free(g->line);
    free(g);
}

int
script_run(const struct script *s, FILE *out, struct err *e)
{
    CLEAN(leave_stage) struct scenario_state *g = calloc(1, sizeof *g);
    bool same = true;

    if (!g) return err_set(e, -ENOMEM, "%s", s->name);
    g->line = calloc(STAGE_LINES, sizeof g->line[0]);
    if (!g->line) return err_set(e, -ENOMEM, "%s", s->name);
    g->s = s;
    setting_defaults(&g->st);
    for (uint32_t i = 0; i < s->n_lines; i++) {
        g->l = &s->line[i];
        TRY(act_line(g, e));
        same = as_wanted(g, out) && same;
    }
    if (!g->open) return err_set(e, -EINVAL, "%s: contains no command", s->name);
    return same ? 0 : 1;
}

void
script_print_commands(FILE *out)
{
    fputs("\nagain\n  restart with the same settings and the settings that follow\n", out);
    for (size_t t = 0; t < ARRAY_LEN(tables); t++)
        for (const struct scenario_command *c = tables[t]; c->name; c++) {
            fprintf(out, "\n%s %s\n  %s\n", c->name, c->operands, c->sentence);
            for (const struct opt *o = c->opts; o && o->key; o++)
                fprintf(out, "    %-10s %-8s %s\n", o->key, o->arg ? o->arg : "", o->sentence);
        }
}
