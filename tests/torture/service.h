/* service.h - runs lagand with failpoints and its workers for tests that kill them, and checks for
 * leaks.
 *
 * The test process is a subreaper, so that processes which lagand leaves behind become its children
 * and can be counted. All files are below one directory, which service_close() removes.
 */
#pragma once
#include "base/base.h"
#include "daemon/supervise/cpu_starvation.h"
#include "tests/systemd.h"
#include "tests/torture/mock.h"

#include <sys/types.h>

struct service {
    /* model: path of the model or of the configuration */
    char dir[64], run[80], model[96], log[96], endpoint[112];
    const char *
        /* worker program, in this directory or absolute; NULL: mock_worker, or lagan-worker with a
         * configuration */
        worker;
    /* n_standbys: standbys and ranks above 0, set before service_start() */
    uint32_t n_workers, n_standbys;
    struct systemd *systemd; /* stores descriptors for lagand; NULL: none */
    pid_t pid;               /* of lagand; 0: none */
    struct mock_board *board;
    long log_read; /* bytes of the log read by service_epochs() */
    uint32_t n_epochs;
    nsec last_call, starved_ns; /* service_now(): last call; time not counted so far */
    struct starvation {
        pid_t pid;
        struct cpu_starvation starved;
    } at[2 * MOCK_WORKERS + 2]; /* CPU starvation at the last call */
};

/* Resources, counted while no request runs. */
struct census {
    /* lagand's descriptors and mapped rings; files below run/; files in /dev/shm */
    uint32_t fds, maps, names, shm;
    uint32_t workers, zombies;
    uint32_t rss_kib; /* private memory; used ring pages do not count as growth */
};

void service_open(struct service *s);
/* Like service_open() for mock workers: rings small enough to fill up, and at most pace_us between
 * two steps. */
void service_open_mocks(struct service *s, uint32_t pace_us);
/* Kills lagand if it still runs, which happens after a failure, and prints the end of its log. */
void service_close(struct service *s);

void service_folder(const struct service *s,
                    const char *name); /* makes a folder that serves as a model */
/* Starts lagand with n workers: mock_worker (config NULL), or lagan-worker with failpoints for the
 * models of a configuration, in which @ is the source tree. args: more options of lagand,
 * NULL-terminated. Waits until all are ready; otherwise the test fails. */
void service_start(struct service *s, uint32_t n, const char *config, const char *const *args);
/* SIGTERM; fails the test unless lagand exits with 0 and leaves no file */
void service_stop(struct service *s);
/* Reaps lagand after it was killed, and its processes; fails the test if a worker survives. */
int service_reap(struct service *s); /* returns its status as of waitpid() */
void service_print_log(const struct service *s, int lines);
uint32_t service_epochs(struct service *s, const char *model);  /* workers started, from the log */
pid_t service_pid(const struct service *s, const char *worker); /* current pid, from the log */

/* log lines that contain text */
uint32_t service_logged(const struct service *s, const char *words);
bool service_all_ready(struct service *s, int ms); /* every worker runs and is ready */
/* Clock for deadlines: runs at 10 % speed while lagand, a worker or the test waits for CPU time, so
 * that a busy machine causes no timeouts. */
nsec service_now(struct service *s);
bool service_quiet(const struct service *s, struct census *c);
/* Counts resources. If *first is zero, stores them there; otherwise fails the test if a number
 * differs or memory has grown by more than rss_kib. Waits for descriptors in transfer. */
void service_recount(struct service *s, struct census *first, uint32_t rss_kib);

/* Sends SIGKILL to a random worker and records the time for the mocks. Returns false if fewer than
 * `least` run or the chosen worker has exited. */
bool service_kill_one(struct service *s, uint32_t least);
void service_arm(struct service *s, enum fp_side side, enum failpoint p, enum fp_action a,
                 uint32_t nth);
/* returns true if it had fired */
bool service_disarm(struct service *s, enum fp_side side, enum failpoint p);
const char *failpoint_name(enum failpoint p);
/* Prints how often each point has fired, and the smallest number. */
void service_print_fired(const struct service *s, enum fp_side side, const enum failpoint *p,
                         uint32_t n);
