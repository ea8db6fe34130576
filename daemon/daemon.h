/* daemon.h - what the files of lagand share: one struct, one thread.
 *
 *     clients -> frontend.c -> admission.c -> ledger.c -> dispatch.c -> request ring
 *     clients <- frontend.c <- deliver.c   <- ledger.c <- receive.c  <- response ring
 *
 * serve.c turns: after every event the rings are drained, requests are given to workers and what is due
 * goes to clients. Nothing blocks, and nothing that a client or a worker sends is believed.
 */
#ifndef DAEMON_DAEMON_H
#define DAEMON_DAEMON_H

#include "base/base.h"
#include "base/clock.h"
#include "base/turns.h"
#include "daemon/config/options.h"
#include "daemon/config/runtime_dir.h"
#include "daemon/ledger/ledger.h"
#include "include/lagan_wire.h"

#include <msgpack.h>
#include <systemd/sd-event.h>

struct worker;
struct frontend;
struct sessions;
struct worker_calls;
struct ledger_log;
struct quarantine;
struct event_log;

enum { REASONS = 64 }; /* enum lagan_reason stays below */

/* What a worker's READY said of a model; kept when the worker is gone. */
struct model_facts {
    bool known;
    uint32_t vocab, max_len, max_source, n_seats, has_text, beams; /* beams: its own, 1 without */
    uint64_t max_tokens, weight_bytes, kv_bytes;
    char family[64];
};

/* memory_guard.c's: bytes in use at the start and at the last look. */
struct memory_guard {
    uint64_t base, last;
    nsec calm_at, cut_at, said; /* what is free may be given back; some were cut; that was said */
};

/* preflight.c's: the program that is asked, and for whom. */
struct preflight {
    sd_event_source *on_end; /* NULL: nobody is asked */
    int out;                 /* what it says */
    uint32_t client;
    uint64_t rid;
};

struct daemon {
    struct config *config;
    char **argv;
    sd_event *event;
    struct runtime_dir runtime;
    uint8_t id[16]; /* of this start: WELCOME's instance, the rings' daemon_id */
    nsec started, now;
    void *zmq;
    struct frontend *frontend;
    struct sessions *sessions;
    struct ledger *ledger;
    struct worker_calls *calls;
    struct worker *worker[MAX_WORKERS];
    uint32_t n_workers;
    struct model_facts facts[MAX_MODELS];
    struct turns turns[MAX_MODELS]; /* whose request goes to a worker next */
    char worker_path[1024];

    struct ledger_log *ledger_log;
    struct quarantine *quarantine;

    nsec retry_at; /* deliver.c: when a blocked send is tried again; 0: none is */
    struct memory_guard pressure;
    nsec look_at; /* when it is looked at again; NSEC_NEVER: with the tick */

    bool announced; /* READY=1 has been said */
    bool was_ready; /* a worker has served in this life */
    bool draining, leaving;
    bool reexec_requested; /* become the program that lies there now */
    struct preflight preflight;
    uint32_t rolling;      /* 1 + the worker that is being replaced; 0: no round is under way */
    uint64_t rolled_epoch; /* of the one before it */
    nsec drain_until;
    int exit_code;
    msgpack_sbuffer out; /* the message being made */
    uint64_t n_requests, n_refused, n_finished, n_failed, n_resumes;
    uint64_t n_ended[REASONS]; /* accepted requests, by enum lagan_reason */
    struct event_log *event_log;
    uint64_t held_bytes; /* that open requests may come to take: api.memory bounds it */
};

#endif
