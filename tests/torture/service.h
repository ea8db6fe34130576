/* service.h - a lagand with failpoints and its workers, for tests that kill them; and what may not leak.
 *
 * The test process is the reaper of whatever lagand leaves behind (a subreaper), so that an orphan is a
 * child it can count. Everything lies below one directory, which service_close() removes.
 */
#ifndef TESTS_TORTURE_SERVICE_H
#define TESTS_TORTURE_SERVICE_H

#include "base/base.h"
#include "daemon/supervise/cpu_starvation.h"
#include "tests/systemd.h"
#include "tests/torture/mock.h"

#include <sys/types.h>

struct service {
    char dir[64], run[80], model[96], log[96], endpoint[112]; /* model: or the configuration */
    const char *
        worker; /* the program, here or from the root; NULL: mock_worker, with a configuration lagan-worker */
    uint32_t n_workers, n_standbys; /* the latter, and other ranks, set before service_start() */
    struct systemd *systemd;        /* who keeps descriptors for lagand; NULL: nobody */
    pid_t pid;                      /* of lagand; 0: none */
    struct mock_board *board;
    long log_read; /* of the log, by service_epochs() */
    uint32_t n_epochs;
    nsec looked, excused; /* service_now(): last look; not counted so far */
    struct looked_at {
        pid_t pid;
        struct cpu_starvation starved;
    } at[2 * MOCK_WORKERS + 2]; /* then */
};

/* What is counted when nothing is under way. */
struct census {
    uint32_t fds, maps, names, shm; /* lagand's descriptors and rings; below run/; in /dev/shm */
    uint32_t workers, zombies;
    uint32_t rss_kib; /* its own memory; how much of a ring was used is no growth */
};

void service_open(struct service *s);
/* The same for mock workers: rings so small that they are full now and then, steps with such pauses at most. */
void service_open_mocks(struct service *s, uint32_t pace_us);
/* A lagand that still runs, which is after a failure, is killed, and the end of its log is shown. */
void service_close(struct service *s);

void service_folder(const struct service *s,
                    const char *name); /* in the directory, to be a model */
/* lagand with n workers: mock_worker (config NULL), or lagan-worker with failpoints for the models of a
 * configuration, in which @ is the source tree. args: more of lagand's, up to a NULL. Waits until all
 * are there; fails the test. */
void service_start(struct service *s, uint32_t n, const char *config, const char *const *args);
void service_stop(struct service *s); /* SIGTERM; fails the test unless it ends with 0, and clean */
/* Reap lagand after it was killed, and what it left: fails the test when one of its workers lives on. */
int service_reap(struct service *s); /* its status, as waitpid() says */
void service_print_log(const struct service *s, int lines);
uint32_t service_epochs(struct service *s, const char *model);  /* workers started, by the log */
pid_t service_pid(const struct service *s, const char *worker); /* who is it now, by the log */

uint32_t service_logged(const struct service *s, const char *words); /* lines with them */
bool service_all_ready(struct service *s, int ms); /* every worker lives and has said so */
/* The clock of deadlines: while lagand, a worker or we wait for a processor it goes at a tenth of its speed. So a machine
 * that is busy with other things makes nothing look as if it had stopped. */
nsec service_now(struct service *s);
bool service_quiet(const struct service *s, struct census *c);
/* Count what there is. *first, if it is zero, becomes that; else the test fails where there is another number,
 * or more than rss_kib of growth. What workers are still handing up, and lagand has not closed yet, is
 * waited for. */
void service_recount(struct service *s, struct census *first, uint32_t rss_kib);

/* SIGKILL one of its workers, the time noted for the mocks. false: fewer than least are there, or the
 * one that was drawn is gone already. */
bool service_kill_one(struct service *s, uint32_t least);
void service_arm(struct service *s, enum fp_side side, enum failpoint p, enum fp_action a,
                 uint32_t nth);
bool service_disarm(struct service *s, enum fp_side side, enum failpoint p); /* had it fired? */
const char *failpoint_name(enum failpoint p);
/* Say how often each of those points has fired, and how often the one that has fired least. */
void service_print_fired(const struct service *s, enum fp_side side, const enum failpoint *p,
                         uint32_t n);

#endif
