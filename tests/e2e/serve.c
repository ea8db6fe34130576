/* serve.c - see serve.h. */
#include "tests/e2e/serve.h"

#include "tests/test.h"

#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_ARGS = 128, STOP_SECONDS = 20, MAX_EXTRA = 8 };

static const char *device = "cpu";
static const char *extra[MAX_EXTRA];
static unsigned n_extra;

void
serve_args(int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 < argc && strcmp(argv[i], "--device") == 0) {
            device = argv[i + 1];
        } else if (i + 1 < argc && strcmp(argv[i], "--set") == 0 && n_extra < MAX_EXTRA) {
            extra[n_extra++] = argv[i + 1];
        } else if (i + 1 < argc && strcmp(argv[i], "--only") == 0) {
            cmocka_set_test_filter(argv[i + 1]);
        } else {
            fprintf(stderr,
                    "usage: %s [--device cpu|cuda|cuda:N] [--set KEY=VALUE]... [--only PATTERN]\n",
                    argv[0]);
            exit(2);
        }
    }
}

bool
serve_on_gpu(void)
{
    return strcmp(device, "cpu") != 0;
}

const char *
source_path(const char *below)
{
    static char path[4][1024];
    static unsigned at;
    const char *top = getenv("srcdir");
    char *p = path[at++ % 4];

    if (below[0] == '/') return below;
    snprintf(p, sizeof path[0], "%s/%s", top ? top : ".", below);
    return p;
}

const char *
program_path(const char *name)
{
    static char path[1024];

    test_program(path, sizeof path, name);
    return path;
}

static void
sleep_ms(int ms)
{
    const struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L };

    nanosleep(&t, NULL);
}

void
serve_folder(struct serve *s)
{
    strcpy(s->dir, "/tmp/lagan-e2e-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    snprintf(s->endpoint, sizeof s->endpoint, "ipc://%s/api.sock", s->dir);
    snprintf(s->log, sizeof s->log, "%s.log", s->dir);
}

void
serve_lagand(struct serve *s, const char *model, const char *const *set, struct systemd *systemd)
{
    char *argv[MAX_ARGS];
    char exe[1024], dir[1024];
    int n = 0;

    snprintf(exe, sizeof exe, "%s", program_path("lagand"));
    if (model) snprintf(dir, sizeof dir, "%s", source_path(model));
    argv[n++] = exe;
    argv[n++] = (char *)(uintptr_t) "--foreground";
    argv[n++] = (char *)(uintptr_t) "--runtime-dir";
    argv[n++] = s->dir;
    if (model) {
        argv[n++] = (char *)(uintptr_t) "--model";
        argv[n++] = dir;
        argv[n++] = (char *)(uintptr_t) "--device";
        argv[n++] = (char *)(uintptr_t)device;
    }
    for (; set && *set; set++) {
        assert_true(n + 3 + 2 * MAX_EXTRA < MAX_ARGS);
        if (strncmp(*set, "--", 2)) argv[n++] = (char *)(uintptr_t) "--set";
        argv[n++] = (char *)(uintptr_t)*set;
    }
    for (unsigned i = 0; i < n_extra; i++) {
        argv[n++] = (char *)(uintptr_t) "--set";
        argv[n++] = (char *)(uintptr_t)extra[i];
    }
    argv[n] = NULL;
    s->pid = systemd ? systemd_fork(systemd) : fork();
    assert_true(s->pid >= 0);
    if (s->pid == 0) {
        int fd = open(s->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

        prctl(PR_SET_PDEATHSIG, SIGTERM);
        dup2(fd, 1);
        dup2(fd, 2);
        execv(exe, argv);
        _exit(127);
    }
}

void
serve_launch(struct serve *s, const char *model, const char *const *set)
{
    serve_folder(s);
    serve_lagand(s, model, set, NULL);
}

static void
print_log(const struct serve *s)
{
    char line[512];
    FILE *f = fopen(s->log, "re");

    if (!f) return;
    while (fgets(line, sizeof line, f)) fprintf(stderr, "  lagand: %s", line);
    fclose(f);
}

bool
serve_wait_ready(const struct serve *s, int seconds)
{
    for (int i = 0; i < seconds * 50; i++) {
        struct lagan *c;
        char *reply = NULL;
        bool up = false;

        if (waitpid(s->pid, NULL, WNOHANG) == s->pid) break;
        if (lagan_open(&c, s->endpoint, 500) == 0) {
            if (lagan_call(c, "workers list", NULL, &reply, NULL, 1000) == 0)
                up = strstr(reply, "\"ready\"") != NULL || strstr(reply, "\"READY\"") != NULL;
            free(reply);
            lagan_close(c);
        }
        if (up) return true;
        sleep_ms(20);
    }
    print_log(s);
    return false;
}

bool
serve_start(struct serve *s, const char *model, const char *const *set)
{
    serve_launch(s, model, set);
    return serve_wait_ready(s, serve_on_gpu() ? 60 : 20);
}

int
serve_shut_down(struct serve *s)
{
    char command[256];
    int status = -1;

    if (s->pid > 0) {
        kill(s->pid, SIGTERM);
        for (int i = 0; i < STOP_SECONDS * 100 && status < 0; i++) {
            if (waitpid(s->pid, &status, WNOHANG) == s->pid) break;
            status = -1;
            sleep_ms(10);
        }
        if (status < 0) {
            fprintf(stderr, "lagand did not stop within %d s\n", STOP_SECONDS);
            kill(s->pid, SIGKILL);
            waitpid(s->pid, NULL, 0);
        }
    }
    if (status != 0) print_log(s);
    snprintf(command, sizeof command, "rm -rf '%s' '%s'", s->dir, s->log);
    if (system(command)) fprintf(stderr, "%s: not removed\n", s->dir);
    s->pid = 0;
    return status >= 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void
serve_stop(struct serve *s)
{
    assert_int_equal(serve_shut_down(s), 0);
}

pid_t
serve_worker(const struct serve *s)
{
    struct lagan *c;
    char *reply = NULL;
    json_t *list;
    pid_t pid;

    assert_int_equal(lagan_open(&c, s->endpoint, 2000), 0);
    assert_int_equal(lagan_call(c, "workers list", NULL, &reply, NULL, 2000), 0);
    lagan_close(c);
    list = json_loads(reply, 0, NULL);
    assert_non_null(list);
    pid = (pid_t)json_integer_value(json_object_get(json_array_get(list, 0), "pid"));
    json_decref(list);
    free(reply);
    return pid;
}

int
serve_shell(const char *command, char *output, size_t n)
{
    FILE *f = popen(command, "re");
    size_t got;
    int status;

    assert_non_null(f);
    got = fread(output, 1, n - 1, f);
    output[got] = 0;
    status = pclose(f);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

int
serve_ctl(const struct serve *s, const char *args, char *output, size_t n)
{
    char command[2048];

    snprintf(command, sizeof command, "%s --connect %s %s 2>&1", program_path("laganctl"),
             s->endpoint, args);
    return serve_shell(command, output, n);
}

int
serve_ask(const struct serve *s, const char *args, char *output, size_t n)
{
    static const char *const again[] = { "is not ready", "no worker is ready", "lost",
                                         "asked yet" };
    int code = serve_ctl(s, args, output, n);

    for (int k = 0; k < 300 && code; k++) {
        bool wait = false;

        for (size_t i = 0; i < sizeof again / sizeof *again; i++)
            wait |= !!strstr(output, again[i]);
        if (!wait) break;
        sleep_ms(100);
        code = serve_ctl(s, args, output, n);
    }
    return code;
}

static int
set_list(struct lagan_request *r, const char *key, const json_t *list)
{
    size_t n = json_array_size(list);
    int32_t *ids = calloc(n + 1, sizeof *ids);
    const char **text = calloc(n + 1, sizeof *text);
    int k;

    for (size_t i = 0; i < n; i++) {
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
        text[i] = json_string_value(json_array_get(list, i));
    }
    k = json_is_string(json_array_get(list, 0)) ? lagan_set_strs(r, key, text, n)
                                                : lagan_set_ids(r, key, ids, n);
    free(ids);
    free(text);
    return k;
}

static int
set_key(struct lagan_request *r, const char *key, const json_t *v)
{
    if (json_is_integer(v)) return lagan_set_int(r, key, json_integer_value(v));
    if (json_is_real(v)) return lagan_set_float(r, key, json_real_value(v));
    if (json_is_boolean(v)) return lagan_set_bool(r, key, json_is_true(v));
    if (json_is_string(v))
        return lagan_set_str(r, key, json_string_value(v), json_string_length(v));
    return json_is_array(v) ? set_list(r, key, v) : 0;
}

struct lagan_request *
serve_request(const char *json, int *refused)
{
    json_t *keys = json_loads(json, 0, NULL), *v;
    struct lagan_request *r;
    const char *key;

    *refused = 0;
    if (!keys) return NULL;
    r = lagan_request_new();
    json_object_foreach(keys, key, v)
    {
        if (!*refused) *refused = set_key(r, key, v);
    }
    json_decref(keys);
    return r;
}
