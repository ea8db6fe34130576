/* reload.h - takes a changed configuration while lagand serves: `laganctl reload`, SIGHUP.
 *
 * Options of lagand and the keys in api.keys are valid from the next use. Models may be added and
 * removed. Workers whose settings have changed are replaced, one after the other; so are all
 * workers if the installed lagan-worker is another file than the running one, or if nothing has
 * changed. What needs another lagand keeps its value until a re-exec, and is reported. */
#pragma once
#include "daemon/daemon.h"

enum { RELOAD_MAX = 32 }; /* further changes are not listed */
struct reload_report {
    uint32_t n_taken, n_kept, n_replaced;
    char taken[RELOAD_MAX][120]; /* "api.max_inflight", "model m: kv.memory", "model m: added" */
    char kept[RELOAD_MAX][200];  /* "api.tcp: ..., until `laganctl daemon reexec`" */
    uint64_t replaced;           /* bit i: worker i will be replaced, or was started or stopped */
};

/* Reads the configuration again and applies it. by: ", by SIGHUP" for the event log, or "".
 * -EINVAL: the configuration is not valid; -ESHUTDOWN: lagand is stopping; -EBUSY: a rolling
 * restart is in progress. Nothing has changed then. */
int reload_apply(struct daemon *d, const char *by, struct reload_report *ret,
                 struct err *e) MUST_USE;
/* Notes which file the program of the workers is. Called at the start. */
void reload_note_program(struct daemon *d);
