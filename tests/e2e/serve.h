/* serve.h - a real lagand with real workers in a temporary directory, for the length of a test.
 *
 * Programs are found beside the build directory of the test. serve_stop() leaves no process and no
 * file; it fails the test if lagand did not exit with 0.
 */
#pragma once
#include "include/lagan.h"
#include "tests/systemd.h"

#include <sys/types.h>

struct serve {
    pid_t pid;
    char dir[64], endpoint[96], log[80];
};

/* Reads --device DEVICE (cpu), --set KEY=VALUE of every server and --only PATTERN of a test's name.
 * Any other argument ends the program. */
void serve_args(int argc, char **argv);
bool serve_on_gpu(void);

/* Starts lagand and waits until its worker is ready. Returns false after 20 s (60 s on a GPU) and
 * prints the log. model: a directory below the source tree, or absolute; NULL: --config=FILE names
 * the models. set: KEY=VALUE options of the model and --KEY=VALUE options of lagand, ends with
 * NULL; or NULL. */
bool serve_start(struct serve *s, const char *model, const char *const *set);
/* serve_start() without the wait. */
void serve_launch(struct serve *s, const char *model, const char *const *set);
/* serve_launch() in two steps: the directory, then lagand in it, also after a killed lagand.
 * systemd: keeps the descriptors of lagand, or NULL. */
void serve_folder(struct serve *s);
void serve_lagand(struct serve *s, const char *model, const char *const *set,
                  struct systemd *systemd);
bool serve_wait_ready(const struct serve *s, int seconds);
void serve_stop(struct serve *s);
/* serve_stop() without checks. Returns the exit code of lagand, or -1 if it was killed. */
int serve_shut_down(struct serve *s);
/* Returns the pid of the only worker. */
pid_t serve_worker(const struct serve *s);

/* Runs a shell command. Returns its exit code; output: its standard output, n bytes, terminated. */
int serve_shell(const char *command, char *output, size_t n);
/* Runs laganctl with these arguments. output: its standard output and standard error. */
int serve_ctl(const struct serve *s, const char *args, char *output, size_t n);
/* serve_ctl(), repeated while the worker is starting or is being replaced. */
int serve_ask(const struct serve *s, const char *args, char *output, size_t n);

/* Returns a request with the keys of a JSON object; NULL: json is none. A list of numbers is ids,
 * a list of strings is strings. *refused: the first failure of liblagan to set a key, else 0. */
struct lagan_request *serve_request(const char *json, int *refused);

/* A path below the source tree. Static storage, four at a time. */
const char *source_path(const char *below);
/* The program of that name in the build tree. */
const char *program_path(const char *name);
