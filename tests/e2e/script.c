/* script.c - see script.h. A command is a row of the table at the end of this file. */
#include "tests/e2e/script.h"

#include "base/base.h"
#include "base/clock.h"
#include "tests/e2e/script_request.h"
#include "tests/e2e/serve.h"
#include "tests/test.h"

#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    DEADLINE_S = 60, /* of each wait; only a hang takes that long */
    POLL_MS = 10,    /* between two reads of a metric, the log or the list of workers */
    MAX_REQUESTS = 16,
    MAX_SET = 24,
    MAX_WORDS = 5,
    MAX_LINE = PATH_MAX,
    MAX_VALUE = 40 * SCRIPT_TOKENS
};

struct script {
    const char *file;
    unsigned line, next_line;
    char *error;
    size_t n_error;
    char dir[64];
    struct serve server;
    struct systemd systemd;
    bool serving; /* server and systemd are open */
    char model[256];
    char set[MAX_SET][160];
    uint32_t n_set;
    struct lagan *client;
    pid_t killed; /* the worker that `kill worker` ended last */
    struct script_request request[MAX_REQUESTS];
    uint32_t n_requests;
    char output[1 << 16]; /* of the last run or call */
    int exit_code;
    nsec limit; /* of one wait */
};

/* ---- errors and waits */

PRINTF_LIKE(2, 3)
static bool
fault(struct script *s, const char *fmt, ...)
{
    int n = snprintf(s->error, s->n_error, "%s:%u: ", s->file, s->line);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(s->error + n, s->n_error - (size_t)n, fmt, ap);
    va_end(ap);
    return false;
}

static struct script_request *
find_request(struct script *s, const char *name)
{
    for (uint32_t i = 0; i < s->n_requests; i++)
        if (!strcmp(s->request[i].name, name)) return &s->request[i];
    fault(s, "there is no request %s", name);
    return NULL;
}

/* Reads events for at most ms milliseconds. Returns false if the script has failed. */
static bool
pump(struct script *s, int ms)
{
    struct lagan_event ev = { .size = sizeof ev };
    struct script_request *r = s->request;
    char error[128];
    int got = lagan_next(s->client, &ev, ms);

    if (got < 0) return fault(s, "lagan_next: %s", lagan_errmsg(s->client));
    if (got == 0) return true;
    if (ev.kind == LAGAN_EVENT_DISCONNECTED) return fault(s, "disconnected: %s", ev.message);
    while (r < s->request + s->n_requests && r->id != ev.id) r++;
    if (r == s->request + s->n_requests) return true;
    if (!script_request_take(r, &ev, error, sizeof error))
        return fault(s, "%s: %s", r->name, error);
    return true;
}

static bool
await_tokens(struct script *s, const struct script_request *r, uint32_t n)
{
    nsec until = clock_now() + s->limit;

    while (!r->ended && r->n_tokens < n) {
        if (clock_now() >= until)
            return fault(s, "%s has not ended after %u tokens", r->name, r->n_tokens);
        if (!pump(s, POLL_MS)) return false;
    }
    return true;
}

/* Reads the pid of the first worker. Returns true if it is ready and is not the killed one. */
static bool
worker_is_ready(struct script *s, pid_t *pid)
{
    char *reply = NULL;
    const json_t *first;
    json_t *list;
    bool ready;

    if (lagan_call(s->client, "workers list", NULL, &reply, NULL, 2000) < 0) return false;
    list = json_loads(reply, 0, NULL);
    first = json_array_get(list, 0);
    *pid = (pid_t)json_integer_value(json_object_get(first, "pid"));
    ready = strstr(reply, "\"ready\"") && *pid > 0 && *pid != s->killed;
    json_decref(list);
    free(reply);
    return ready;
}

/* r: stop waiting when it has ended; may be NULL. */
static bool
await_worker(struct script *s, const struct script_request *r, pid_t *pid)
{
    nsec until = clock_now() + s->limit;

    while (!worker_is_ready(s, pid)) {
        if (clock_now() >= until) return fault(s, "no worker is ready");
        if (!pump(s, POLL_MS)) return false;
        if (r && r->ended) return true;
    }
    return true;
}

/* ---- comparisons */

/* Compares as texts or, for <, <=, > and >=, as numbers. Returns -1 for an unknown operator. */
static int
compare(const char *value, const char *op, const char *with)
{
    double a = strtod(value, NULL), b = strtod(with, NULL);

    if (!strcmp(op, "is")) return strcmp(value, with) == 0;
    if (!strcmp(op, "contains")) return strstr(value, with) != NULL;
    if (!strcmp(op, "lacks")) return strstr(value, with) == NULL;
    if (!strcmp(op, "<")) return a < b;
    if (!strcmp(op, "<=")) return a <= b;
    if (!strcmp(op, ">")) return a > b;
    if (!strcmp(op, ">=")) return a >= b;
    return -1;
}

static bool
check_value(struct script *s, const char *what, const char *value, const char *op, const char *with)
{
    int holds = compare(value, op, with);

    if (holds < 0)
        return fault(s, "unknown operator %s; use is, contains, lacks, <, <=, >, >=", op);
    if (!holds)
        return fault(s, "expected %s %s \"%.2000s\", got \"%.2000s\"", what, op, with, value);
    return true;
}

/* ---- lagand */

static bool
cmd_config(struct script *s, char **word)
{
    const char *dir;

    for (char *one = strtok(word[0], " "); one; one = strtok(NULL, " ")) {
        if (s->n_set == MAX_SET) return fault(s, "more than %d options", MAX_SET);
        if (!strchr(one, '=')) return fault(s, "expected KEY=VALUE, got %s", one);
        dir = strstr(one, "$DIR");
        snprintf(s->set[s->n_set++], sizeof s->set[0], "%.*s%s%s",
                 dir ? (int)(dir - one) : (int)strlen(one), one, dir ? s->dir : "",
                 dir ? dir + 4 : "");
    }
    return true;
}

static void
start_lagand(struct script *s)
{
    const char *set[MAX_SET + 1] = { NULL };

    for (uint32_t i = 0; i < s->n_set; i++) set[i] = s->set[i];
    serve_lagand(&s->server, strcmp(s->model, "-") ? s->model : NULL, set, &s->systemd);
}

static bool
cmd_serve(struct script *s, char **word)
{
    pid_t pid;

    if (s->serving) return fault(s, "lagand runs already");
    if (!cmd_config(s, &word[1])) return false;
    snprintf(s->model, sizeof s->model, "%s", word[0]);
    serve_folder(&s->server);
    systemd_open(&s->systemd, s->dir);
    s->serving = true;
    start_lagand(s);
    if (lagan_open(&s->client, s->server.endpoint, (int)(s->limit / NSEC_MS)) < 0)
        return fault(s, "lagand has not started: %s", lagan_errmsg(NULL));
    return await_worker(s, NULL, &pid);
}

/* Returns the exit code of lagand, or -1 after a signal or a timeout. */
static int
stop_lagand(struct script *s)
{
    int code;

    lagan_close(s->client);
    s->client = NULL;
    code = serve_shut_down(&s->server);
    systemd_close(&s->systemd);
    s->serving = false;
    s->n_requests = s->n_set = 0;
    return code;
}

static bool
cmd_stop(struct script *s, char **word)
{
    int code = stop_lagand(s);

    (void)word;
    return code == 0 || fault(s, "expected exit code 0 of lagand, got %d", code);
}

static bool
cmd_ready(struct script *s, char **word)
{
    pid_t pid;

    (void)word;
    return await_worker(s, NULL, &pid);
}

static bool
cmd_restart(struct script *s, char **word)
{
    if (s->server.pid > 0) return fault(s, "lagand runs already");
    start_lagand(s);
    return cmd_ready(s, word);
}

/* kill worker|lagand [after N tokens of NAME]; does not kill a worker after NAME has ended. */
static bool
cmd_kill(struct script *s, char **word)
{
    struct script_request *r = NULL;
    char name[32];
    uint32_t n;
    pid_t pid = s->server.pid;
    bool worker = !strcmp(word[0], "worker");

    if (!worker && strcmp(word[0], "lagand")) return fault(s, "expected worker or lagand");
    if (*word[1]) {
        if (sscanf(word[1], "after %u tokens of %31s", &n, name) != 2)
            return fault(s, "expected \"after N tokens of NAME\", got \"%s\"", word[1]);
        r = find_request(s, name);
        if (!r || !await_tokens(s, r, n)) return false;
    }
    if (worker && !await_worker(s, r, &pid)) return false;
    if (worker && r && r->ended) return true;
    if (kill(pid, SIGKILL) < 0) return fault(s, "kill %d: %s", (int)pid, strerror(errno));
    if (worker) {
        s->killed = pid;
        return true;
    }
    waitpid(pid, NULL, 0);
    s->server.pid = 0;
    return true;
}

/* ---- requests */

static bool
cmd_ask(struct script *s, char **word)
{
    struct lagan_request *keys;
    struct script_request *r = s->request;
    int failed, refused;

    while (r < s->request + s->n_requests && strcmp(r->name, word[0])) r++;
    if (r == s->request + MAX_REQUESTS) return fault(s, "more than %d requests", MAX_REQUESTS);
    if (r < s->request + s->n_requests && !r->ended)
        return fault(s, "request %s has not ended", word[0]);
    keys = serve_request(word[1], &refused);
    if (!keys) return fault(s, "not JSON: %s", word[1]);
    s->n_requests = MAX(s->n_requests, (uint32_t)(r - s->request) + 1);
    *r = (struct script_request){ .ended = false };
    snprintf(r->name, sizeof r->name, "%s", word[0]);
    if (refused) {
        r->ended = true;
        snprintf(r->finish, sizeof r->finish, "refused");
        snprintf(r->message, sizeof r->message, "%s", lagan_errmsg(NULL));
    }
    failed = refused ? 0 : lagan_submit(s->client, keys, &r->id);
    lagan_request_free(keys);
    return failed == 0 || fault(s, "submit: %s", lagan_errmsg(s->client));
}

static bool
cmd_await(struct script *s, char **word)
{
    struct script_request *r = find_request(s, word[0]);
    uint32_t n = UINT32_MAX;

    if (!r) return false;
    if (*word[1] && sscanf(word[1], "tokens %u", &n) != 1)
        return fault(s, "expected \"tokens N\", got \"%s\"", word[1]);
    return await_tokens(s, r, n);
}

static bool
cmd_cancel(struct script *s, char **word)
{
    const struct script_request *r = find_request(s, word[0]);
    int failed;

    if (!r) return false;
    failed = lagan_cancel(s->client, r->id);
    s->exit_code = failed != 0;
    snprintf(s->output, sizeof s->output, "%s", failed ? strerror(-failed) : "");
    return true;
}

static bool
cmd_expect(struct script *s, char **word)
{
    static char value[MAX_VALUE], other[MAX_VALUE];
    const struct script_request *r = find_request(s, word[0]), *o;
    char what[96];

    if (!r) return false;
    if (!r->ended) return fault(s, "request %s has not ended: await it", word[0]);
    if (!script_request_field(r, word[1], value, sizeof value))
        return fault(s, "a request has no field %s", word[1]);
    snprintf(what, sizeof what, "%s of %s", word[1], word[0]);
    if (strcmp(word[2], "same")) return check_value(s, what, value, word[2], word[3]);
    o = find_request(s, word[3]);
    if (!o) return false;
    script_request_field(o, word[1], other, sizeof other);
    return check_value(s, what, value, "is", other);
}

/* ---- commands of operators, metrics, log */

static bool
cmd_run(struct script *s, char **word)
{
    char command[MAX_LINE + 200];

    if (!s->serving) {
        snprintf(command, sizeof command, "timeout %d %s %s 2>&1", (int)(s->limit / NSEC_S),
                 program_path(word[0]), word[1]);
        s->exit_code = serve_shell(command, s->output, sizeof s->output);
        return true;
    }
    if (strcmp(word[0], "laganctl")) return fault(s, "expected laganctl, got %s", word[0]);
    s->exit_code = serve_ask(&s->server, word[1], s->output, sizeof s->output);
    return true;
}

static bool
cmd_call(struct script *s, char **word)
{
    char *reply = NULL;
    int failed = lagan_call(s->client, word[0], *word[1] ? word[1] : NULL, &reply, NULL,
                            (int)(s->limit / NSEC_MS));

    s->exit_code = failed < 0;
    snprintf(s->output, sizeof s->output, "%s", failed < 0 ? lagan_errmsg(s->client) : reply);
    free(reply);
    return true;
}

static bool
cmd_shell(struct script *s, char **word)
{
    char command[PATH_MAX + 200];

    snprintf(command, sizeof command, "cd '%s' && { %s; } 2>&1", s->dir, word[0]);
    s->exit_code = serve_shell(command, s->output, sizeof s->output);
    return s->exit_code == 0 || fault(s, "exit code %d: %s", s->exit_code, s->output);
}

static bool
cmd_exit(struct script *s, char **word)
{
    if (s->exit_code == atoi(word[0])) return true;
    return fault(s, "expected exit code %s, got %d: %.2000s", word[0], s->exit_code, s->output);
}

static bool
cmd_output(struct script *s, char **word)
{
    return check_value(s, "output", s->output, word[0], word[1]);
}

/* The sum of all samples with that name, or with that name and those first labels. */
static double
metric(struct script *s, const char *name)
{
    static char text[1 << 18];
    char *save;
    size_t n = strlen(name);
    double sum = 0;

    serve_ctl(&s->server, "metrics", text, sizeof text);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        if (!strncmp(line, name, n) && (strchr(name, '{') || strchr(" {", line[n])))
            sum += strtod(strrchr(line, ' '), NULL);
    return sum;
}

static bool
cmd_metric(struct script *s, char **word)
{
    nsec until = clock_now() + s->limit;
    char value[32];

    do {
        snprintf(value, sizeof value, "%.15g", metric(s, word[0]));
        if (compare(value, word[1], word[2]) == 1) return true;
        if (!pump(s, POLL_MS)) return false;
    } while (clock_now() < until);
    return check_value(s, word[0], value, word[1], word[2]);
}

/* `log contains` waits for the text; `log lacks` does not. */
static bool
cmd_log(struct script *s, char **word)
{
    static char text[1 << 20];
    nsec until = clock_now() + (strcmp(word[0], "contains") ? 0 : s->limit);

    do {
        FILE *f = fopen(s->server.log, "re");

        if (!f) return fault(s, "%s: %s", s->server.log, strerror(errno));
        text[fread(text, 1, sizeof text - 1, f)] = 0;
        fclose(f);
        if (compare(text, word[0], word[1]) == 1) return true;
        if (!pump(s, POLL_MS)) return false;
    } while (clock_now() < until);
    return check_value(s, "log", text, word[0], word[1]);
}

/* ---- the script */

static bool
cmd_deadline(struct script *s, char **word)
{
    s->limit = atoi(word[0]) * NSEC_S;
    return s->limit > 0 || fault(s, "expected seconds, got %s", word[0]);
}

/* A line is a command, its words and the rest of the line; MORE: the rest may be empty. */
enum rest { NONE, REST, MORE };
/* clang-format off */
static const struct command {
    const char *name;
    uint32_t n_words;
    enum rest rest;
    bool needs_lagand;
    bool (*run)(struct script *s, char **word);
    const char *usage;
} commands[] = {
    { "deadline", 1, NONE, false, cmd_deadline, "deadline SECONDS" },
    { "config",   0, REST, false, cmd_config,   "config KEY=VALUE..." },
    { "serve",    1, MORE, false, cmd_serve,    "serve MODEL [KEY=VALUE]..." },
    { "stop",     0, NONE, true,  cmd_stop,     "stop" },
    { "restart",  0, NONE, true,  cmd_restart,  "restart" },
    { "ready",    0, NONE, true,  cmd_ready,    "ready" },
    { "kill",     1, MORE, true,  cmd_kill,     "kill worker|lagand [after N tokens of NAME]" },
    { "ask",      1, REST, true,  cmd_ask,      "ask NAME {KEYS}" },
    { "await",    1, MORE, true,  cmd_await,    "await NAME [tokens N]" },
    { "cancel",   1, NONE, true,  cmd_cancel,   "cancel NAME" },
    { "expect",   3, REST, true,  cmd_expect,   "expect NAME FIELD OPERATOR VALUE" },
    { "call",     1, MORE, true,  cmd_call,     "call VERB [{ARGUMENTS}]" },
    { "run",      1, MORE, false, cmd_run,      "run laganctl [ARGUMENT]..." },
    { "shell",    0, REST, false, cmd_shell,    "shell COMMAND" },
    { "exit",     1, NONE, false, cmd_exit,     "exit CODE" },
    { "output",   1, REST, false, cmd_output,   "output OPERATOR VALUE" },
    { "metric",   2, REST, true,  cmd_metric,   "metric NAME OPERATOR VALUE" },
    { "log",      1, REST, true,  cmd_log,      "log contains|lacks TEXT" },
};
/* clang-format on */

static bool
run_line(struct script *s, char *line)
{
    char *word[MAX_WORDS] = { NULL }, *rest = line, *name = strsep(&rest, " ");
    const struct command *c = commands;

    while (c < commands + ARRAY_LEN(commands) && strcmp(c->name, name)) c++;
    if (c == commands + ARRAY_LEN(commands)) return fault(s, "unknown command %s", name);
    for (uint32_t i = 0; i < c->n_words; i++) {
        if (rest) rest += strspn(rest, " ");
        word[i] = strsep(&rest, " ");
        if (!word[i] || !*word[i]) return fault(s, "usage: %s", c->usage);
    }
    if (rest) rest += strspn(rest, " ");
    if ((c->rest == NONE && rest && *rest) || (c->rest == REST && (!rest || !*rest)))
        return fault(s, "usage: %s", c->usage);
    word[c->n_words] = rest ? rest : line + strlen(line);
    if (c->needs_lagand && !s->serving) return fault(s, "%s needs a lagand: serve first", name);
    return c->run(s, word);
}

/* Copies the command at *at and its continuation lines, which are indented, into line. */
static void
read_command(struct script *s, const char **at, char line[MAX_LINE])
{
    size_t used = 0;

    s->line = s->next_line;
    do {
        size_t n = strcspn(*at, "\n"), blanks = strspn(*at, " ");
        int more = snprintf(line + used, MAX_LINE - used, "%s%.*s", used ? " " : "",
                            (int)(n - MIN(blanks, n)), *at + blanks);

        used = MIN(used + (size_t)more, MAX_LINE - 1u);
        *at += n + ((*at)[n] == '\n');
        s->next_line++;
    } while (**at == ' ');
}

static bool
run_lines(struct script *s, const char *at)
{
    const char *loop = NULL;
    unsigned loop_line = 0, left = 0;

    while (*at) {
        char line[MAX_LINE];

        read_command(s, &at, line);
        if (!*line || *line == '#') continue;
        if (sscanf(line, "repeat %u", &left) == 1) {
            loop = at;
            loop_line = s->next_line;
        } else if (!strcmp(line, "end")) {
            if (!loop) return fault(s, "end without repeat");
            if (--left == 0) {
                loop = NULL;
                continue;
            }
            at = loop;
            s->next_line = loop_line;
        } else if (!run_line(s, line)) {
            return false;
        }
    }
    return !loop || fault(s, "repeat without end");
}

bool
script_run(const char *file, const char *text, char *error, size_t n)
{
    static struct script state;
    struct script *s = &state;
    char command[128], top[PATH_MAX];
    bool passed;
    int code = 0;

    memset(s, 0, sizeof *s);
    s->file = file;
    s->next_line = 1;
    s->error = error;
    s->n_error = n;
    s->limit = DEADLINE_S * NSEC_S;
    strcpy(s->dir, "/tmp/lagan-script-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    setenv("DIR", s->dir, 1);
    setenv("SRC", realpath(source_path("."), top), 1);
    passed = run_lines(s, text);
    if (s->serving) code = stop_lagand(s);
    if (passed && code) passed = fault(s, "expected exit code 0 of lagand, got %d", code);
    snprintf(command, sizeof command, "rm -rf '%s'", s->dir);
    if (system(command)) fprintf(stderr, "%s: not removed\n", s->dir);
    return passed;
}
