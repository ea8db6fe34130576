/* generate.c - laganctl generate: submits requests and prints their outputs.
 *
 * One loop serves a single request and a file of requests: it submits while fewer than
 * --concurrency requests are open and a line is available, handles all events, then sleeps until
 * lagand or the file has more data. So a program that writes lines to standard input one by one
 * gets each output when it is complete. */
#include "ctl/request_options.h"
#include "ctl/running_request.h"

#include <poll.h>
#include <stdio.h>

/* Minimum time between first and last token; throughput over a shorter time is not printed. */
static const double PACE_SECONDS = 0.01;

struct own_opts {
    bool json, help, stream;
    uint32_t concurrency;
    char requests[4096];
};

/* clang-format off */
static const struct opt own_opts[] = {
    { "requests", OPT_STR, OPT_AT(own_opts, requests), .arg = "FILE.jsonl",
      .sentence = "send the requests of this file instead of one: each line is a JSON object with "
      "the keys of the options above, written with '_' (max_tokens), and optionally \"tag\", "
      "which is copied to the output. An option above is the default for lines without its key; "
      "-: standard input" },
    { "concurrency", OPT_U32, OPT_AT(own_opts, concurrency), "1", .min = 1, .max = 1024, .arg = "N",
      .sentence = "with --requests: maximum number of requests that are open at the same time" },
    { "stream", OPT_BOOL, OPT_AT(own_opts, stream),
      .sentence = "print a JSON line for each group of tokens as it arrives, before the final "
      "JSON line of the output" },
    { 0 }
};
/* clang-format on */

struct generate {
    struct lagan *c;
    struct own_opts o;
    struct request_args args;
    struct line_reader lines;
    bool from_file, more;          /* more: further requests may follow */
    struct running_request **open; /* open requests */
    size_t n_open, n_requests, n_failed, n_tokens;
    double *ttft; /* time to first token in seconds, of each request with tokens */
    size_t n_ttft;
    nsec start, first, last;
    size_t n_resumed;   /* outputs that were resumed on another worker */
    nsec max_gap;       /* longest time without a token in a resumed output */
    const char *finish; /* finish reason of the last output */
    int code;           /* exit code: the code of all failures, CTL_FAILED if they differ */
    bool cancelled, lost;
};

/* ---- printing */

static void
note_failure(struct generate *g, struct running_request *j, int code)
{
    if (j->failed) return;
    j->failed = true;
    g->code = g->n_failed++ && g->code != code ? CTL_FAILED : code;
}

static void
print_plain(const struct generate *g, const struct running_request *j, const struct lagan_event *ev)
{
    const struct running_output *o = ev->output < j->n_outputs ? &j->output[ev->output] : NULL;

    if (g->from_file) printf("[%zu] ", j->request);
    if (j->several_outputs) printf("%u  %.4f  ", ev->output, (double)ev->score);
    /* a single output was printed while it was generated */
    if (o && o->n_text && (g->from_file || j->several_outputs))
        fwrite(o->text, 1, o->n_text, stdout);
    if (o && !o->n_text) /* a model without a tokenizer */
        for (size_t i = 0; i < o->n_ids; i++) printf("%s%d", i ? "," : "", o->ids[i]);
    putchar('\n');
    fflush(stdout);
}

static void
finish_output(struct generate *g, struct running_request *j, const struct lagan_event *ev)
{
    struct running_output *o = running_request_output(j, ev->output);

    if (!o || o->ended) return;
    o->ended = true;
    g->finish = ev->reason_name;
    if (ev->resumed) {
        g->n_resumed++;
        g->max_gap = MAX(g->max_gap, j->max_gap);
    }
    if (g->o.json || g->o.stream)
        running_request_print_final(j, ev, stdout);
    else
        print_plain(g, j, ev);
}

static void
say_failed(struct generate *g, struct running_request *j, const struct lagan_event *ev)
{
    note_failure(g, j, g->from_file ? ctl_exit_of_line(ev->reason) : ctl_exit_of(ev->reason));
    if (g->o.json || g->o.stream) {
        running_request_print_final(j, ev, stdout);
    } else {
        if (j->n_tokens && !g->from_file) putchar('\n');
        if (g->from_file)
            ctl_fail(0, "request %zu: %s: %s", j->request, ev->reason_name, ev->message);
        else if (!g->cancelled)
            ctl_fail(0, "%s: %s", ev->reason_name, ev->message);
    }
}

static int
by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Returns true if the options request log-probabilities or tensors, which only --json prints. */
static bool
asks_for_numbers(const struct generate *g)
{
    const char *const *given = g->args.given;

    return given[FIELD_logprobs] || given[FIELD_prompt_logprobs] ||
           given[FIELD_return_encoder_output] || given[FIELD_return_logits];
}

/* Prints the summary: "ok ttft 4.1 ms · 11 tokens · 1870 tok/s · stop: eos". */
static void
print_summary(struct generate *g)
{
    double seconds = (double)(g->last - g->first) / (double)NSEC_S;
    const char *middle = g->from_file ? " (median)" : "";

    if (g->o.json || g->o.stream) return;
    fprintf(stderr, "%s", g->cancelled ? "cancelled" : g->n_failed ? "failed" : "ok");
    if (g->from_file) fprintf(stderr, "  %zu requests · %zu failed", g->n_requests, g->n_failed);
    if (g->n_ttft) {
        qsort(g->ttft, g->n_ttft, sizeof *g->ttft, by_value);
        fprintf(stderr, "%sttft %.1f ms%s", g->from_file ? " · " : "  ",
                g->ttft[g->n_ttft / 2] * 1000, middle);
        fprintf(stderr, " · %zu token%s", g->n_tokens, g->n_tokens == 1 ? "" : "s");
        /* The first token includes the prefill; throughput counts the later tokens, if there are
         * any. */
        if (seconds >= PACE_SECONDS && g->n_tokens > 1)
            fprintf(stderr, " · %.0f tok/s", (double)(g->n_tokens - 1) / seconds);
        else if (g->last > g->start)
            fprintf(stderr, " · %.0f tok/s",
                    (double)g->n_tokens * (double)NSEC_S / (double)(g->last - g->start));
    }
    if (!g->from_file && g->finish && !g->n_failed) fprintf(stderr, " · stop: %s", g->finish);
    if (g->n_resumed && g->from_file)
        fprintf(stderr, " · the workers of %zu outputs failed: at most %.0f ms without a token",
                g->n_resumed, (double)g->max_gap / NSEC_MS);
    else if (g->n_resumed)
        fprintf(stderr, " · its worker failed: %.0f ms without a token",
                (double)g->max_gap / NSEC_MS);
    if (asks_for_numbers(g)) fputs(" · use --json to print the requested values", stderr);
    fputc('\n', stderr);
}

/* ---- requests */

static void
drop_request(struct generate *g, size_t i)
{
    struct running_request *j = g->open[i];

    if (j->first) {
        g->ttft = realloc(g->ttft, (g->n_ttft + 1) * sizeof *g->ttft);
        check(g->ttft);
        g->ttft[g->n_ttft++] = (double)(j->first - j->start) / (double)NSEC_S;
        if (!g->first || j->first < g->first) g->first = j->first;
        g->last = MAX(g->last, j->last);
    }
    g->n_tokens += j->n_tokens;
    running_request_free(j);
    g->open[i] = g->open[--g->n_open];
}

/* Prompt log-probabilities arrive without ids; the ids are those of the request, if it had ids. */
static void
note_prompt_ids(struct running_request *j, const struct generate *g, const json_t *line)
{
    static const struct {
        const char *key;
        enum request_field field;
    } places[] = { { "decoder_ids", FIELD_decoder_ids }, { "ids", FIELD_ids } };
    size_t i, k;

    for (i = 0; i < ARRAY_LEN(places) && !j->prompt.n_ids; i++) {
        const json_t *list = json_object_get(line, places[i].key), *x;
        const char *text = g->args.given[places[i].field];

        if (list && json_is_array(list)) {
            j->prompt.max_ids = json_array_size(list) + 1;
            j->prompt.ids = malloc(j->prompt.max_ids * sizeof *j->prompt.ids);
            check(j->prompt.ids);
            json_array_foreach(list, k, x) j->prompt.ids[k] = (int32_t)json_integer_value(x);
            j->prompt.n_ids = json_array_size(list);
        } else if (text && parse_ids(text, &j->prompt.ids, &j->prompt.n_ids, NULL) == 0) {
            j->prompt.max_ids = j->prompt.n_ids;
        }
    }
}

static void
refuse_line(struct generate *g, struct running_request *j, const char *sentence)
{
    struct lagan_event ev = { .kind = LAGAN_EVENT_ERROR,
                              .reason = LAGAN_E_INVALID_REQUEST,
                              .reason_name = "invalid_request",
                              .message = sentence };

    say_failed(g, j, &ev);
    running_request_free(j);
}

/* Returns true if the key n, from the line or the option, asks for several outputs. */
static bool
is_several(const char *option, const json_t *key)
{
    if (key) return json_integer_value(key) > 1;
    return option && strcmp(option, "1") != 0;
}

/* Submits a request with the keys of the options and of line (NULL: none). */
static int
submit(struct generate *g, const json_t *line, const char *why_not)
{
    struct lagan_request *r = lagan_request_new();
    struct running_request *j = running_request_new(g->n_requests++);
    const json_t *tag = json_object_get(line, "tag");
    struct err e = { 0 };
    int k = 0;

    check(r);
    if (tag) j->tag = json_dumps(tag, JSON_COMPACT | JSON_ENCODE_ANY);
    j->want_logprobs = g->args.given[FIELD_logprobs] || json_object_get(line, "logprobs");
    j->want_prompt_logprobs = g->args.given[FIELD_prompt_logprobs] ||
                              json_object_get(line, "prompt_logprobs");
    j->several_outputs = is_several(g->args.given[FIELD_n], json_object_get(line, "n"));
    note_prompt_ids(j, g, line);
    if (why_not) k = err_set(&e, -EINVAL, "%s", why_not);
    if (k == 0) k = request_from_args(r, &g->args, &e);
    if (k < 0 && !g->from_file) {
        running_request_free(j);
        lagan_request_free(r);
        return ctl_fail(CTL_USAGE, "%s", e.text);
    }
    if (k == 0 && line) k = request_from_json(r, line, &e);
    if (k == 0) {
        j->start = clock_now();
        k = lagan_submit(g->c, r, &j->id);
        if (k < 0) err_set(&e, k, "%s", lagan_errmsg(g->c));
    }
    lagan_request_free(r);
    if (k < 0) {
        char sentence[300];

        if (g->from_file)
            snprintf(sentence, sizeof sentence, "%.80s: line %zu: %.200s", g->o.requests,
                     g->lines.number, e.text);
        else
            snprintf(sentence, sizeof sentence, "%s", e.text);
        refuse_line(g, j, sentence);
        return 0;
    }
    g->open[g->n_open++] = j;
    return 0;
}

static int
submit_lines(struct generate *g)
{
    char *text;

    while (g->more && g->n_open < g->o.concurrency && line_reader_next(&g->lines, &text)) {
        json_error_t je;
        char why[256];
        json_t *line;
        int r;

        if (!text[strspn(text, " \t\r")]) continue;
        line = json_loads(text, JSON_REJECT_DUPLICATES, &je);
        if (!line) snprintf(why, sizeof why, "column %d: %.200s", je.column, je.text);
        r = submit(g, line, line ? NULL : why);
        json_decref(line);
        if (r) return r;
    }
    if (g->lines.eof && g->lines.at == g->lines.n) g->more = false;
    return 0;
}

/* ---- events */

static void
take_event(struct generate *g, const struct lagan_event *ev)
{
    struct running_request *j = NULL;
    size_t i;
    int r;

    if (ev->kind == LAGAN_EVENT_DISCONNECTED) {
        g->lost = true;
        return;
    }
    for (i = 0; i < g->n_open && g->open[i]->id != ev->id; i++) continue;
    if (i == g->n_open) return;
    j = g->open[i];
    switch (ev->kind) {
    case LAGAN_EVENT_TOKENS:
    case LAGAN_EVENT_PROMPT:
    case LAGAN_EVENT_TENSOR:
        r = running_request_take(j, ev);
        if (r < 0) {
            note_failure(g, j, CTL_FAILED);
            ctl_fail(0, "internal error of lagand: request %zu, output %u: %s at position %u",
                     j->request, ev->output,
                     r == -EPROTO ? "missing or repeated tokens" : "invalid tokens", ev->first);
            return;
        }
        if (ev->kind == LAGAN_EVENT_TOKENS && g->o.stream && ev->n_ids)
            running_request_print_chunk(j, ev, stdout);
        if (ev->kind == LAGAN_EVENT_TOKENS && !g->from_file && !g->o.json && !g->o.stream &&
            !j->several_outputs) {
            fwrite(ev->text, 1, ev->text_len, stdout);
            fflush(stdout);
        }
        return;
    case LAGAN_EVENT_OUTPUT:
        finish_output(g, j, ev);
        return;
    case LAGAN_EVENT_ERROR:
        say_failed(g, j, ev);
        drop_request(g, i);
        return;
    default:
        drop_request(g, i);
    }
}

static void
cancel_all(struct generate *g)
{
    g->cancelled = true;
    g->more = false;
    for (size_t i = 0; i < g->n_open; i++) lagan_cancel(g->c, g->open[i]->id);
}

static int
loop(struct generate *g)
{
    nsec give_up = NSEC_NEVER;
    struct err e = { 0 };

    while ((g->more || g->n_open) && !g->lost) {
        struct lagan_event ev = { sizeof ev };
        struct pollfd fds[2] = { { lagan_fd(g->c), POLLIN, 0 }, { -1, POLLIN, 0 } };
        int r;

        /* also if standard output cannot be written, because further outputs would be lost */
        if ((ctl_signal || ferror(stdout)) && !g->cancelled) {
            cancel_all(g);
            give_up = clock_after(clock_now(), 2 * NSEC_S);
        }
        if (clock_now() > give_up) break;
        if (g->more && (r = submit_lines(g))) return r;
        while ((r = lagan_next(g->c, &ev, 0)) > 0) take_event(g, &ev);
        if (r < 0 && r != -EINTR) return ctl_fail(CTL_FAILED, "%s", lagan_errmsg(g->c));
        if (!g->more && !g->n_open) break;
        if (g->more && g->n_open < g->o.concurrency) fds[1].fd = g->lines.fd;
        if (poll(fds, 2, g->cancelled ? 100 : -1) < 0) continue; /* a signal */
        if (fds[1].fd >= 0 && fds[1].revents && line_reader_fill(&g->lines, &e) < 0)
            return ctl_fail(CTL_FAILED, "%s: %s", g->o.requests, e.text);
    }
    return 0;
}

static int
generate(struct generate *g)
{
    struct err e = { 0 };
    int r = 0;

    g->from_file = *g->o.requests;
    if (g->from_file && line_reader_open(&g->lines, g->o.requests, &e) < 0)
        return ctl_fail(CTL_USAGE, "%s", e.text);
    g->more = g->from_file;
    g->open = calloc(g->o.concurrency, sizeof *g->open);
    check(g->open);
    g->start = clock_now();
    if (!g->from_file) r = submit(g, NULL, NULL);
    if (r == 0) r = loop(g);
    if (r == 0) print_summary(g);
    while (g->n_open) drop_request(g, 0);
    free(g->open);
    free(g->ttft);
    if (g->from_file) line_reader_close(&g->lines);
    if (ctl_signal) return 128 + ctl_signal;
    if (r) return r;
    if (g->lost && g->code != CTL_UNAVAILABLE) return CTL_UNREACHABLE;
    return g->n_failed ? g->code : 0;
}

/* ---- the command line */

struct opt generate_opts[REQUEST_OPTS_MAX];

void
generate_start(void)
{
    request_opts(generate_opts, own_opts);
}

static int
usage(const char *sentence)
{
    return ctl_fail(CTL_USAGE, "%s (see `laganctl generate --help`)", sentence);
}

int
cmd_generate(struct ctl *ctl)
{
    struct generate g = { .c = ctl->api };
    struct err e = { 0 };

    if (request_read(&g.args, generate_opts, own_opts, &g.o, &g.o.json,
                     "use --text or --ids for the prompt", ctl->argc, ctl->argv, &e) < 0)
        return usage(e.text);
    if (!*g.o.requests && !g.args.given[FIELD_ids] && !g.args.given[FIELD_text] &&
        !g.args.given[FIELD_messages])
        return usage("the prompt is missing: use --text, --ids, --messages or --requests");
    return generate(&g);
}
