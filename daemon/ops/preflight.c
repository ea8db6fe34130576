/* preflight.c - see preflight.h. */
#include "daemon/ops/preflight.h"

#include "base/log.h"
#include "daemon/config/options.h"
#include "daemon/net/frontend.h"
#include "daemon/net/session.h"
#include "daemon/ops/reload.h"
#include "daemon/persist/event_log.h"
#include "daemon/supervise/worker.h"
#include "ipc/exit_code.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct preflight {
    enum preflight_kind kind;
    sd_event_source *on_end;
    int out;         /* read end of the pipe with the output of lagand --check */
    uint32_t client; /* handle of the client that asked */
    uint64_t rid;    /* of the client's CALL */
};

/* MOST_S: time limit of the check, less than the 30 s that laganctl waits for the reply. */
enum { MAX_ARGS = 256, MOST_S = 25 };

static void
refuse(struct daemon *d, struct client *c, uint64_t rid, enum preflight_kind kind, uint32_t code,
       const char *why)
{
    const char *what = kind == PREFLIGHT_RELOAD ? "reload" : "daemon reexec";

    if (d->draining) code = LAGAN_E_DRAINING, why = "lagand is stopping";
    event_log_add(d, "operator", "", "%s is refused: %s", what, why);
    log_err("%s refused: %s; the running lagand continues", what, why);
    if (c && frontend_error(d, c, rid, code, 0, "%s%s", why,
                            d->draining ? "" : "; the running lagand continues") < 0)
        log_debug("cannot send an ERROR to a client, which does not read or is gone");
}

static void
pack_texts(msgpack_packer *p, const char *key, uint32_t n, const char *text, size_t size)
{
    msg_key(p, key);
    msgpack_pack_array(p, n);
    for (uint32_t i = 0; i < n; i++) msg_any_text(p, text + i * size);
}

static void
reply_reload(struct daemon *d, struct client *c, uint64_t rid, const struct reload_report *r)
{
    msgpack_packer p;

    frontend_reply(d, rid, &p);
    msgpack_pack_map(&p, 4);
    msg_key(&p, "workers");
    msgpack_pack_uint32(&p, r->n_replaced);
    pack_texts(&p, "taken", r->n_taken, r->taken[0], sizeof r->taken[0]);
    msg_key(&p, "replaced");
    msgpack_pack_array(&p, r->n_replaced);
    for (uint32_t i = 0; i < d->n_workers; i++)
        if (r->replaced >> i & 1) msg_text(&p, worker_info(d->worker[i])->name);
    pack_texts(&p, "kept", r->n_kept, r->kept[0], sizeof r->kept[0]);
    frontend_send_or_drop(d, c);
}

/* Does what the check was for. Returns 0, or the code of an ERROR with *e. */
static uint32_t
proceed(struct daemon *d, struct client *c, const struct preflight *f, struct err *e)
{
    static struct reload_report report;
    msgpack_packer p;
    int r;

    if (f->kind == PREFLIGHT_RELOAD) {
        r = reload_apply(d, c ? "" : ", by SIGHUP", &report, e);
        if (r == 0 && c) reply_reload(d, c, f->rid, &report);
        return r == 0 ? 0 : r == -EBUSY ? LAGAN_E_UNSUPPORTED : LAGAN_E_CONFIGURATION;
    }
    if (c) {
        frontend_reply(d, f->rid, &p);
        msgpack_pack_map(&p, 0);
        frontend_send_or_drop(d, c);
    }
    event_log_add(d, "operator", "", "daemon reexec");
    d->reexec_requested = true;
    return 0;
}

/* Logs all lines of the output at fd. Copies the first ones, joined by "; ", to buf for the client;
 * where they do not fit, their number follows. */
static void
log_output(int fd, char *buf, size_t n)
{
    char text[16384], *rest;
    ssize_t len = read(fd, text, sizeof text - 1);
    uint32_t n_more = 0;

    *buf = 0;
    text[MAX(len, (ssize_t)0)] = 0;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        const char *words = strstr(line, "lagand: ");
        size_t used = strlen(buf);

        words = words ? words + strlen("lagand: ") : line;
        log_err("preflight of the installed lagand: %s", words);
        if (used && used + strlen(words) + strlen("; and 99 more errors") >= n)
            n_more++;
        else
            snprintf(buf + used, n - used, "%s%s", used ? "; " : "", words);
    }
    if (n_more)
        snprintf(buf + strlen(buf), n - strlen(buf), "; and %u more error%s", n_more,
                 n_more == 1 ? "" : "s");
}

static int
on_end(sd_event_source *s, const siginfo_t *si, void *arg)
{
    struct daemon *d = arg;
    struct preflight *r = d->preflight;
    struct client *c = session_find(d->sessions, r->client);
    bool exited = si->si_code == CLD_EXITED, would = exited && si->si_status == 0;
    struct err e = { .text = "" };
    char words[340] = "";
    uint32_t code;

    (void)s;
    d->now = clock_now();
    if (would && !d->draining) {
        code = proceed(d, c, r, &e);
        snprintf(words, sizeof words, "%s", e.text);
    } else {
        code = exited && si->si_status == EXIT_NO_PERMISSION ? LAGAN_E_UNAUTHORIZED
                                                             : LAGAN_E_CONFIGURATION;
        log_output(r->out, words, sizeof words);
        if (!*words)
            snprintf(words, sizeof words, "the installed lagand --check ended with %s %d",
                     exited ? "exit status" : "signal", si->si_status);
    }
    if (code) refuse(d, c, r->rid, r->kind, code, words);
    preflight_end(d);
    return 0;
}

int
preflight_program(char path[PATH_MAX], struct err *e)
{
    static const char gone[] = " (deleted)";
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);

    if (n < 0) return err_set(e, -errno, "cannot read /proc/self/exe: %s", strerror(errno));
    path[n] = 0;
    if ((size_t)n > strlen(gone) && !strcmp(path + n - strlen(gone), gone))
        path[(size_t)n - strlen(gone)] = 0;
    return 0;
}

_Noreturn static void
become(const char *path, char **argv, pid_t parent, int out)
{
    sigset_t none;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    alarm(MOST_S); /* ends the check if the file system hangs */
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execv(path, argv);
    dprintf(STDERR_FILENO, "cannot execute %s: %s\n", path, strerror(errno));
    _exit(127);
}

/* Returns the bytes of all arenas, at least 1. */
static uint64_t
held_memory(const struct daemon *d)
{
    uint64_t bytes = 1;

    for (uint32_t i = 0; i < d->n_workers; i++) {
        struct worker *w;

        for (uint32_t k = 0; (w = worker_rank(d->worker[i], k)); k++)
            for (uint32_t j = 0; j < worker_arenas(w)->n; j++)
                bytes += worker_arenas(w)->at[j].note.bytes;
    }
    return bytes;
}

static int
start(struct daemon *d, struct err *e)
{
    static char check_only[] = "--check";
    char path[PATH_MAX], held[64], tcp[300], *ours[] = { check_only, held, tcp }, *argv[MAX_ARGS];
    pid_t parent = getpid(), child;
    int pipe[2], n = 0, r;

    TRY(preflight_program(path, e));
    snprintf(held, sizeof held, "--held-memory=%llu", (unsigned long long)held_memory(d));
    snprintf(tcp, sizeof tcp, "--held-tcp=%s", d->config->o.tcp);
    while (n < MAX_ARGS - 4 && d->argv[n]) argv[n] = d->argv[n], n++;
    for (size_t i = 0; i < ARRAY_LEN(ours); i++) argv[n++] = ours[i];
    argv[n] = NULL;
    if (pipe2(pipe, O_CLOEXEC | O_NONBLOCK) < 0)
        return err_set(e, -errno, "cannot create a pipe: %s", strerror(errno));
    child = vfork();
    if (child == 0) become(path, argv, parent, pipe[1]);
    r = child < 0 ? -errno : 0;
    close(pipe[1]);
    if (r == 0) r = sd_event_add_child(d->event, &d->preflight->on_end, child, WEXITED, on_end, d);
    if (r < 0) {
        if (child > 0) kill(child, SIGKILL), waitpid(child, NULL, 0);
        close(pipe[0]);
        return err_set(e, r, "cannot run %s --check: %s", path, strerror(-r));
    }
    d->preflight->out = pipe[0];
    return 0;
}

void
preflight_start(struct daemon *d, struct client *c, uint64_t rid, enum preflight_kind kind)
{
    struct err e;
    bool reloads = kind == PREFLIGHT_RELOAD && d->rolling;

    if (d->preflight) reloads = d->preflight->kind == PREFLIGHT_RELOAD;
    if (d->preflight || d->reexec_requested || d->draining || reloads) {
        refuse(d, c, rid, kind, LAGAN_E_UNSUPPORTED,
               reloads ? "a reload is in progress; `laganctl events` prints its steps"
                       : "another re-exec is in progress");
        return;
    }
    d->preflight = calloc(1, sizeof *d->preflight);
    if (!d->preflight) {
        refuse(d, c, rid, kind, LAGAN_E_OUT_OF_MEMORY, "lagand has no memory for the preflight");
        return;
    }
    *d->preflight =
        (struct preflight){ .kind = kind, .client = c ? c->handle : CLIENT_NONE, .rid = rid };
    if (start(d, &e) == 0) return;
    free(d->preflight);
    d->preflight = NULL;
    refuse(d, c, rid, kind, LAGAN_E_INTERNAL, e.text);
}

void
preflight_end(struct daemon *d)
{
    if (!d->preflight) return;
    sd_event_source_disable_unref(d->preflight->on_end);
    close(d->preflight->out);
    free(d->preflight);
    d->preflight = NULL;
}
