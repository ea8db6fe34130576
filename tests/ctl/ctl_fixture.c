/* ctl_fixture.c - see ctl_fixture.h. */
#include "tests/ctl/ctl_fixture.h"

#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

char out[1 << 16], err[1 << 16];

static void
slurp(const char *name, char *to)
{
    char path[128];
    FILE *f;
    size_t n;

    snprintf(path, sizeof path, "%s/%s", mock.dir, name);
    f = fopen(path, "r");
    if (!f) fail_msg("%s is missing", path);
    n = fread(to, 1, (1 << 16) - 1, f);
    to[n] = '\0';
    fclose(f);
    unlink(path);
}

int
sh(const char *line)
{
    char *command = NULL;
    int status, n;

    n = asprintf(&command, "L='./laganctl --connect %s'; D=%s; { %s\n} >%s/out 2>%s/err",
                 mock.endpoint, mock.dir, line, mock.dir, mock.dir);
    assert_true(n > 0);
    status = system(command);
    free(command);
    slurp("out", out);
    slurp("err", err);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int
ctl_setup(void **state)
{
    char path[256];
    FILE *f;

    setup(state);
    snprintf(path, sizeof path, "mkdir %s/bin && cp laganctl %s/bin/", mock.dir, mock.dir);
    assert_int_equal(system(path), 0);
    snprintf(path, sizeof path, "%s/bin/lagand", mock.dir);
    f = fopen(path, "w");
    assert_non_null(f);
    fprintf(
        f,
        "#!/bin/sh\n"
        "dir=; while [ $# -gt 0 ]; do [ $1 = --runtime-dir ] && dir=$2; args=\"$args $1\"; shift; "
        "done\n"
        "echo $args >%s/args; echo $dir >%s/rundir\n"
        "case $FAKE in\n"
        "config) echo '2026-11-24T19:28:31.123Z err lagand: lagan.yaml:3: no such key \"colour\"' "
        ">&2; exit 78 ;;\n"
        "crash) echo '2026-11-24T19:28:31.123Z err lagand: something broke' >&2; kill -SEGV $$ ;;\n"
        "deaf) mkdir $dir; echo '2026-11-24T19:28:31.123Z warn lagand: about to hang' >&2; exec "
        "sleep 600 ;;\n"
        "*) exec tests/client/mock_lagand $dir ;;\n"
        "esac\n",
        mock.dir, mock.dir);
    fclose(f);
    chmod(path, 0755);
    return 0;
}

int
ctl_teardown(void **state)
{
    char command[128];

    (void)state;
    mock_kill(&mock);
    snprintf(command, sizeof command, "rm -rf %s", mock.dir);
    return system(command);
}

json_t *
line_of(int i)
{
    char *p = out;
    json_t *o;

    while (i-- && p) p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL;
    o = p ? json_loadb(p, strcspn(p, "\n"), 0, NULL) : NULL;
    if (!o) fail_msg("no such line in '%s'", out);
    return o;
}
