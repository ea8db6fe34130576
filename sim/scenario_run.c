/* scenario_run.c - runs a scenario's commands and compares their output. See scenario.h. */
#include "sim/scenario.h"

#include "sim/scenario_state.h"

#include <stdarg.h>

static const struct scenario_command *const tables[] = { sched_commands, kv_commands };

static void
append_text(struct scenario *g, const char *fmt, va_list ap)
{
    size_t n = strlen(g->text);

    vsnprintf(g->text + n, sizeof g->text - n, fmt, ap);
}

void
stage_end(struct scenario *g)
{
    if (g->n_lines < STAGE_LINES) check((g->line[g->n_lines++] = strdup(g->text)));
    g->text[0] = 0;
}

void
stage_append(struct scenario *g, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    append_text(g, fmt, ap);
    va_end(ap);
}

void
stage_print(struct scenario *g, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    append_text(g, fmt, ap);
    va_end(ap);
    stage_end(g);
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
open_worker(struct scenario *g, struct err *why)
{
    g->ran = true;
    if (g->open) return 0;
    setting_close(&g->st);
    TRY(worker_open(&g->w, &g->st, why));
    g->open = true;
    return 0;
}

/* The command `open`: prints the reason if the settings are refused. */
static int
act_open(struct scenario *g, struct err *e)
{
    struct err why;

    if (g->l->n_words > 1 || g->open)
        return script_err(g->l, e, "open has no operands and must precede all commands");
    if (open_worker(g, &why) < 0) stage_print(g, "refused: %s", why.text);
    return 0;
}

static void
leave_actors(struct scenario *g)
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

/* The command `again`: closes the worker, so that more settings and commands can follow. */
static int
restart_scenario(struct scenario *g, struct err *e)
{
    if (g->l->n_words > 1 || !g->ran)
        return script_err(g->l, e, "again has no operands and must follow a command");
    worker_close(&g->w);
    leave_actors(g);
    g->it = 0;
    g->open = g->ran = false;
    g->commands = NULL;
    return 0;
}

static int
act_line(struct scenario *g, struct err *e)
{
    const struct scenario_command *const *table, *c = find_command(g->l->words[0], &table);
    int r = setting_line(&g->st, g->l, e);
    struct err why;

    if (strcmp(g->l->words[0], "again") == 0) return restart_scenario(g, e);
    if (strcmp(g->l->words[0], "open") == 0) return act_open(g, e);
    if (r < 0) return r;
    if (r > 0 && g->ran) return script_err(g->l, e, "settings must precede all commands");
    if (r > 0) return 0;
    if (!c)
        return script_err(g->l, e,
                          "unknown command %s; `lagan-sim script --help` lists the commands",
                          g->l->words[0]);
    if (open_worker(g, &why) < 0) return script_err(g->l, e, "%s", why.text);
    if (g->commands && g->commands != *table)
        return script_err(g->l, e, "scheduler and KV manager commands cannot be mixed");
    g->commands = *table;
    g->command = c;
    if (!c->operands[0] && !c->opts && g->l->n_words > 1)
        return script_err(g->l, e, "%s has no operands", c->name);
    return c->act(g, e);
}

/* Prints the differences of two lists of lines: common lines as they are, lines only in `want`
 * after "-", only in `got` after "+". Computes the longest common subsequence. */
static void
diff_print(FILE *out, char *const *want, uint32_t n_want, char *const *got, uint32_t n_got)
{
    size_t wide = n_got + 1;
    uint32_t *same = calloc((n_want + 1) * wide, sizeof *same), i = 0, k = 0;

    /* same[a * wide + b]: number of common lines of want[a ..] and got[b ..]; NULL: no memory */
    for (uint32_t a = n_want; same && a-- > 0;)
        for (uint32_t b = n_got; b-- > 0;)
            same[a * wide + b] = strcmp(want[a], got[b]) == 0
                                     ? same[(a + 1) * wide + b + 1] + 1
                                     : MAX(same[(a + 1) * wide + b], same[a * wide + b + 1]);
    while (i < n_want || k < n_got) {
        if (same && i < n_want && k < n_got && strcmp(want[i], got[k]) == 0) {
            fprintf(out, "      %s\n", want[i++]);
            k++;
        } else if (i < n_want &&
                   (k == n_got || !same || same[(i + 1) * wide + k] >= same[i * wide + k + 1])) {
            fprintf(out, "    - %s\n", want[i++]);
        } else {
            fprintf(out, "    + %s\n", got[k++]);
        }
    }
    free(same);
}

/* Compares the command's output with its expected lines and prints differences; true: equal. */
static bool
as_wanted(struct scenario *g, FILE *out)
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
leave_stage(struct scenario **at)
{
    struct scenario *g = *at;

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
    CLEAN(leave_stage) struct scenario *g = calloc(1, sizeof *g);
    bool same = true;

    if (!g) return err_set(e, -ENOMEM, "%s: out of memory", s->name);
    g->line = calloc(STAGE_LINES, sizeof g->line[0]);
    if (!g->line) return err_set(e, -ENOMEM, "%s: out of memory", s->name);
    g->s = s;
    setting_defaults(&g->st);
    for (uint32_t i = 0; i < s->n_lines; i++) {
        g->l = &s->line[i];
        TRY(act_line(g, e));
        same = as_wanted(g, out) && same;
    }
    if (!g->ran) return err_set(e, -EINVAL, "%s: contains no command", s->name);
    return same ? 0 : 1;
}

void
script_print_commands(FILE *out)
{
    fputs("\nopen\n  accept the settings, or print why they are refused\n"
          "\nagain\n  restart with the same settings and the settings that follow\n",
          out);
    for (size_t t = 0; t < ARRAY_LEN(tables); t++)
        for (const struct scenario_command *c = tables[t]; c->name; c++) {
            fprintf(out, "\n%s %s\n  %s\n", c->name, c->operands, c->sentence);
            for (const struct opt *o = c->opts; o && o->key; o++)
                fprintf(out, "    %-10s %-8s %s\n", o->key, o->arg ? o->arg : "", o->sentence);
        }
}
