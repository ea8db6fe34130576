/* check.c - see check.h. */
#include "daemon/ops/check.h"

#include "base/log.h"
#include "daemon/config/runtime_dir.h"
#include "daemon/net/tcp_server.h"
#include "daemon/ops/memory_sum.h"
#include "daemon/supervise/spawn.h"
#include "ipc/exit_code.h"

#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_GROUPS = 16 };

/* ---- the service's user */

struct service {
    /* settings of the unit; empty: none */
    char user[64], groups[256], protect_home[16], private_network[8];
};

/* Asks systemd for the settings of lagand.service. Returns false if no unit names a user. */
static bool
read_service(struct service *s)
{
    char line[512];
    FILE *f = popen("systemctl show -p User -p SupplementaryGroups -p ProtectHome "
                    "-p PrivateNetwork lagand.service 2>/dev/null",
                    "re");

    *s = (struct service){ 0 };
    while (f && fgets(line, sizeof line, f)) {
        sscanf(line, "User=%63s", s->user);
        sscanf(line, "SupplementaryGroups=%255[^\n]", s->groups);
        sscanf(line, "ProtectHome=%15s", s->protect_home);
        sscanf(line, "PrivateNetwork=%7s", s->private_network);
    }
    if (f) pclose(f);
    return *s->user;
}

static bool
is_below(const char *path, const char *dir)
{
    size_t n = strlen(dir);

    return strncmp(path, dir, n) == 0 && (path[n] == '/' || !path[n]);
}

/* Adds an error for each model in a directory that the unit hides from the service. */
static void
check_home(const struct config *c, const struct service *s, struct problems *p)
{
    static const char *const dirs[] = { "/home", "/root", "/run/user" };

    if (strcmp(s->protect_home, "yes") && strcmp(s->protect_home, "tmpfs")) return;
    for (uint32_t i = 0; i < c->n_models; i++)
        for (size_t k = 0; k < ARRAY_LEN(dirs); k++)
            if (is_below(c->model[i].keys.path, dirs[k]))
                problem(p,
                        "model %s: lagand.service has ProtectHome=%s, which hides %s; move %s, for "
                        "example to /var/lib/lagan/models",
                        c->model[i].keys.name, s->protect_home, dirs[k], c->model[i].keys.path);
}

bool
check_become_service(const struct config *c, struct problems *p)
{
    static const char *const ours[] = { "lagan", "lagan-admin" };
    gid_t groups[MAX_GROUPS];
    struct passwd *user;
    struct service s;
    size_t n = 0;
    char *rest;

    /* A lagand with its own runtime directory is not the service; held_memory: one runs already. */
    if (geteuid() || strcmp(c->o.runtime_dir, "/run/lagan") || c->o.held_memory) return false;
    if (!read_service(&s)) return false;
    check_home(c, &s, p);
    for (size_t i = 0; i < ARRAY_LEN(ours); i++)
        if (!getgrnam(ours[i]))
            problem(p, "group %s does not exist; run systemd-sysusers", ours[i]);
    if (*c->o.tcp && !strcmp(s.private_network, "yes"))
        problem(p,
                "api.tcp is %.200s, but lagand.service has PrivateNetwork=yes; add the drop-in "
                "for tcp that docs/operations.md shows",
                c->o.tcp);
    user = getpwnam(s.user);
    if (!user) {
        problem(p, "lagand.service has User=%s, which does not exist; run systemd-sysusers",
                s.user);
        return false;
    }
    groups[n++] = user->pw_gid;
    for (char *name = strtok_r(s.groups, " ", &rest); name; name = strtok_r(NULL, " ", &rest)) {
        struct group *g = getgrnam(name);

        if (g && n < MAX_GROUPS) groups[n++] = g->gr_gid;
    }
    if (setgroups(n, groups) < 0 || setgid(user->pw_gid) < 0 || setuid(user->pw_uid) < 0) {
        problem(p, "cannot check as user %s: %s", s.user, strerror(errno));
        return false;
    }
    log_info("checking as user %s, as lagand.service has it", s.user);
    return true;
}

/* ---- the check */

/* Inspects model i. Adds what is wrong with it to *p, unless p is NULL, and its memory to *sum. */
static void
check_model(const struct config *c, uint32_t i, const char *program, uint64_t held,
            struct memory_sum *sum, struct problems *p)
{
    static struct inspection found;
    const struct config_model *m = &c->model[i];
    struct spawn s = {
        .path = program, .keys = &m->keys, .held = held, .cgroup_root = c->o.cgroup_root
    };
    const char *text = found.error;
    char from[1200];
    struct err e;
    struct stat st;
    int r, line = m->from[opt_find(model_opts, "path", 4) - model_opts];

    if (stat(m->keys.path, &st) < 0 || !S_ISDIR(st.st_mode)) return; /* config_read() reports it */
    r = spawn_inspect(&s, &found, &e);
    if (r == 0) memory_sum_add(sum, c, i, found.report);
    if (r == 0 || !p) return;
    if (r < 0) text = e.text;
    if (r > 0 && !*text)
        snprintf(found.error, sizeof found.error, "lagan-worker --inspect ended with %s %d",
                 r < 256 ? "exit status" : "signal", r % 256);
    p->n_denied += r == EXIT_NO_PERMISSION;
    if (line > 0)
        problem(p, "%.1000s: model %s: %s", config_from(c, line, from, sizeof from), m->keys.name,
                text);
    else
        problem(p, "--model %s: %s", m->keys.name, text);
}

static void
check_runtime_dir(const char *dir, struct problems *p)
{
    char parent[sizeof((struct options *)0)->runtime_dir], *slash;
    const char *must = dir;
    struct stat st;

    if (strlen(dir) > RUNTIME_DIR_MAX) {
        problem(p,
                "runtime_dir: %.160s has %zu bytes; at most %d are allowed, because sockets are "
                "made in it",
                dir, strlen(dir), RUNTIME_DIR_MAX);
        return;
    }
    if (stat(dir, &st) < 0 && errno == ENOENT) {
        snprintf(parent, sizeof parent, "%s", dir);
        slash = strrchr(parent, '/');
        if (slash) slash[slash == parent] = 0;
        must = slash ? parent : ".";
    }
    if (access(must, W_OK | X_OK) == 0) return;
    p->n_denied += errno == EACCES;
    problem(p, "runtime_dir: lagand cannot create files in %s: %s", must, strerror(errno));
}

void
check_start(struct config *c, struct problems *p)
{
    const struct options *o = &c->o;
    static struct memory_sum sum;
    /* systemd makes the directory of the service. */
    bool ours = strcmp(o->runtime_dir, "/run/lagan") != 0;
    int owner = o->held_memory ? 0 : runtime_dir_owner(o->runtime_dir), fd;
    char program[sizeof o->worker];
    struct err e;

    if (owner)
        log_info("lagand (pid %d) runs on %s; neither free memory nor the port of api.tcp is "
                 "checked, `laganctl reload` checks them",
                 owner, o->runtime_dir);
    if (ours) check_runtime_dir(o->runtime_dir, p);
    snprintf(program, sizeof program, "%s", o->worker);
    if (!*program && spawn_find(program, sizeof program, &e) < 0) {
        p->n_denied += e.code == -EACCES;
        problem(p, "%s", e.text);
    } else {
        for (uint32_t i = 0; i < c->n_models; i++)
            check_model(c, i, program, owner ? UINT64_C(1) << 50 : o->held_memory, &sum, p);
        /* The memory that running workers will free is not known. */
        memory_sum_check(&sum, c, !owner && !o->held_memory, p);
    }
    if (!*o->tcp || strncmp(o->tcp, "tcp://", 6) || !strcmp(o->tcp, o->held_tcp)) return;
    fd = tcp_server_listen(o->tcp, &e);
    if (fd >= 0) close(fd);
    if (fd < 0 && !(owner && fd == -EADDRINUSE)) problem(p, "%s", e.text);
}

void
check_memory(struct config *c, struct problems *p)
{
    static struct memory_sum sum;
    const char *left = getenv("LISTEN_FDNAMES");
    char program[sizeof c->o.worker];

    if (c->n_models < 2 || (left && strstr(left, "ledger"))) return;
    snprintf(program, sizeof program, "%s", c->o.worker);
    if (!*program && spawn_find(program, sizeof program, NULL) < 0) return;
    for (uint32_t i = 0; i < c->n_models; i++)
        if (!model_options_on_gpu(&c->model[i].keys)) check_model(c, i, program, 0, &sum, NULL);
    memory_sum_check(&sum, c, /* free= */ false, p);
}
