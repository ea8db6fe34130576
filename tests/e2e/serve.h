/* serve.h - a real lagand with a real worker in a temporary directory, for the length of a test.
 *
 * Programs are found beside the test's own build directory. Whatever happens, serve_stop() leaves no
 * process and no file; it fails the test when lagand did not exit with 0.
 */
#pragma once

#include "include/lagan.h"

#include "tests/systemd.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct serve {
    pid_t pid;
    char dir[64], endpoint[96], log[80];
};

/* --device DEVICE (cpu), --set KEY=VALUE for every server, --only PATTERN of a test's name. Anything else ends
 * the program. */
void serve_args(int argc, char **argv);
bool serve_on_gpu(void);

/* model: a directory below tests/data or models (srcdir is put before it), or absolute. set: KEY=VALUE
 * strings of the model, and --KEY=VALUE of lagand, NULL-ended, or NULL. model NULL: --config=FILE says which. Waits until the worker is ready; false after 20 s (the log is printed). */
bool serve_start(struct serve *s, const char *model, const char *const *set);
/* The same without waiting, and with other arguments before --model. */
void serve_launch(struct serve *s, const char *model, const char *const *set);
/* In two: its folder, and lagand in a folder that there is, also after another one was killed. keeps: who keeps
 * descriptors for it, or NULL. */
void serve_folder(struct serve *s);
void serve_lagand(struct serve *s, const char *model, const char *const *set,
                  struct systemd *keeps);
bool serve_wait_ready(const struct serve *s, int seconds);
void serve_stop(struct serve *s);
/* Pid of the only worker, from `laganctl workers list`. */
pid_t serve_worker(const struct serve *s);

/* What laganctl, asked for those words, says to both outputs; its exit code. */
int serve_ctl(const struct serve *s, const char *words, char *said, size_t n);
/* The same, again while a worker cannot be asked: its channel is yet to come, or on a machine that stands still for
 * seconds it was taken for hung, and its successor is on its way. */
int serve_ask(const struct serve *s, const char *words, char *said, size_t n);

/* A path below the source tree. Static storage, four at a time. */
const char *source_path(const char *below);
/* The program of that name in the build tree. */
const char *program_path(const char *name);
