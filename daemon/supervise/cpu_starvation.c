/* cpu_starvation.c - see cpu_starvation.h.
 *
 * /proc/PID/task/TID/schedstat counts the time in the run queue only after the wait has ended. A
 * wait that has not ended is recognised by the state: a thread is runnable (R), and the processor
 * time of the process grows by less than the elapsed time. */
#include "daemon/supervise/cpu_starvation.h"

#include <dirent.h>
#include <stdio.h>

struct sum {
    nsec ran, queued; /* totals of all threads */
    bool ready;       /* a thread is runnable or running */
};

static bool
is_ready(const char *path)
{
    char line[512] = "", *state;
    FILE *f = fopen(path, "re");

    if (f && !fgets(line, sizeof line, f)) line[0] = 0;
    if (f) fclose(f);
    state = strrchr(line, ')'); /* the last one: the thread's name before it may contain any byte */
    return state && !strncmp(state, ") R", 3);
}

static struct sum
add_up(pid_t pid)
{
    struct sum sum = { 0 };
    char path[80];
    DIR *d;

    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    d = opendir(path);
    for (struct dirent *t; d && (t = readdir(d));) {
        unsigned long long ran, queued;
        FILE *f;

        if (t->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/%d/task/%.16s/schedstat", (int)pid, t->d_name);
        f = fopen(path, "re");
        if (f && fscanf(f, "%llu %llu", &ran, &queued) == 2) {
            sum.ran += (nsec)ran;
            sum.queued += (nsec)queued;
        }
        if (f) fclose(f);
        snprintf(path, sizeof path, "/proc/%d/task/%.16s/stat", (int)pid, t->d_name);
        sum.ready |= is_ready(path);
    }
    if (d) closedir(d);
    return sum;
}

nsec
cpu_starvation_since(struct cpu_starvation *s, pid_t pid, nsec now)
{
    struct sum sum = add_up(pid);
    nsec elapsed = now - s->at, waited = 0;

    if (s->at) {
        waited = MAX(sum.queued - s->queued, 0);
        if (sum.ready) waited = MAX(waited, elapsed - (sum.ran - s->ran));
        waited = MIN(waited, elapsed * 9 / 10);
    }
    *s = (struct cpu_starvation){ .at = now, .ran = sum.ran, .queued = sum.queued };
    return waited;
}
