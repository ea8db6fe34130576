/* daemon.h - what the files of lagand share: one struct, one thread.
 *
 *     clients -> frontend.c -> admission.c -> ledger.c -> relay.c -> request ring
 *     clients <- frontend.c <- deliver.c   <- ledger.c <- relay.c <- response ring
 *
 * serve.c turns: after every event the rings are drained, requests are given to workers and what is due
 * goes to clients. Nothing blocks, and nothing that a client or a worker sends is believed.
 */
#ifndef DAEMON_DAEMON_H
#define DAEMON_DAEMON_H

#include "base/base.h"
#include "base/clock.h"
#include "base/fair_queue.h"
#include "daemon/blame.h"
#include "daemon/ledger.h"
#include "daemon/mirror.h"
#include "daemon/options.h"
#include "daemon/runtime.h"
#include "include/lagan_wire.h"

#include <msgpack.h>
#include <systemd/sd-event.h>

struct worker;
struct frontend;
struct sessions;
struct calls;
struct history;

enum { REASONS = 64 }; /* enum lagan_reason stays below */

/* What a worker's READY said of a model; kept when the worker is gone. */
struct model_facts {
    bool known;
    uint32_t vocab, max_len, max_source, n_slots, has_text, beams; /* beams: its own, 1 without */
    uint64_t max_tokens, weight_bytes, kv_bytes;
    char family[64];
};

/* pressure.c's: bytes in use at the start and at the last look. */
struct pressure {
    uint64_t base, last;
    nsec calm_at, cut_at, said; /* what is free may be given back; some were cut; that was said */
};

/* rehearse.c's: the program that is asked, and for whom. */
struct rehearsal {
    sd_event_source *on_end; /* NULL: nobody is asked */
    int out;                 /* what it says */
    uint32_t client;
    uint64_t rid;
};

struct daemon {
    struct config *config;
    char **argv;
    sd_event *event;
    struct runtime runtime;
    uint8_t id[16]; /* of this start: WELCOME's instance, the rings' daemon_id */
    nsec started, now;
    void *zmq;
    struct frontend *front;
    struct sessions *sessions;
    struct ledger *ledger;
    struct calls *calls;
    struct worker *worker[MAX_WORKERS];
    uint32_t n_workers;
    struct model_facts facts[MAX_MODELS];
    struct fair_queue turns[MAX_MODELS]; /* whose request goes to a worker next */
    char worker_path[1024];

    struct mirror mirror; /* recall.c's */
    uint64_t mirror_most; /* it is written anew when it is longer */
    bool mirror_void;     /* it did not fit */
    req_id noted_id;      /* rows up to that were looked at */
    struct poisons poisons;
    uint32_t n_suspects; /* rows that are to run alone */

    uint32_t due_first, due_last; /* deliver.c: rows with something for their client */
    nsec retry_at;                /* deliver.c: when blocked rows are tried again; 0: none */
    struct pressure pressure;
    nsec look_at; /* when it is looked at again; NSEC_NEVER: with the tick */

    bool announced; /* READY=1 has been said */
    bool was_ready; /* a worker has served in this life */
    bool draining, leaving;
    bool begin_again; /* become the program that lies there now */
    struct rehearsal rehearsal;
    uint32_t rolling;      /* 1 + the worker that is being replaced; 0: no round is under way */
    uint64_t rolled_epoch; /* of the one before it */
    nsec drain_until;
    int exit_code;
    msgpack_sbuffer out; /* the message being made */
    uint64_t n_requests, n_refused, n_finished, n_failed, n_resumes;
    uint64_t n_ended[REASONS]; /* accepted requests, by enum lagan_reason */
    struct history *history;
    uint64_t held_bytes; /* that open requests may come to take: api.memory bounds it */
};

#endif
