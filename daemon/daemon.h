/* daemon.h - what all parts of lagand share: struct daemon, and the calls from a part to a higher one.
 *
 * lagand has one thread. serve.c waits for an event and then runs one loop iteration: it reads the
 * response rings and the clients' frames, dispatches requests to workers and sends what is due.
 * No part blocks. All bytes from clients and workers are validated before they are used.
 */
#ifndef DAEMON_DAEMON_H
#define DAEMON_DAEMON_H

#include "base/base.h"
#include "base/clock.h"
#include "base/fair_queue.h"
#include "include/lagan_wire.h"

#include <msgpack.h>
#include <systemd/sd-event.h>

struct client;
struct config;
struct death; /* supervise/supervisor.h */
struct event_log;
struct frontend;
struct ledger;
struct ledger_log;
struct memory_guard;
struct preflight;
struct quarantine;
struct runtime_dir;
struct sessions;
struct worker;
struct worker_calls;
enum super_state; /* supervise/supervisor.h */

enum { MAX_MODELS = 16, MAX_WORKERS = 64, MAX_CLIENTS = 1024 };
enum { REASONS = 64 }; /* enum lagan_reason stays below */

struct daemon;

/* Calls from a part to a higher part. serve.c sets all of them before the first event; a test sets
 * those that its part calls. */
struct daemon_events {
    /* net: a whole frame of n bytes at p has come from c. The bytes are valid during the call. */
    void (*frame)(struct daemon *d, struct client *c, const void *p, size_t n);
    /* net: the connection of that client (session.h's handle) has ended; the client may come back
     * within the disconnect timeout of its requests. The client is dropped before the call returns. */
    void (*client_disconnected)(struct daemon *d, uint32_t client);
    /* net: that client may not come back: cancel its requests, close its connection. */
    void (*client_dropped)(struct daemon *d, uint32_t client);
    /* supervise: the state of w has changed, or its process has ended (then from may equal to). */
    void (*worker_state)(struct daemon *d, struct worker *w, enum super_state from,
                         enum super_state to);
    /* supervise: tell w to finish its requests and to exit (the record DRAIN). */
    void (*worker_drain)(struct daemon *d, struct worker *w);
    /* supervise, two calls for each process that has ended. First with death NULL: its rings are
     * still mapped and are not written any more; read the records that are left. Then with the
     * cause of death: requeue the requests of w or end them. lagand that exits, or a process that
     * cannot be killed, makes only one of the two calls. */
    void (*worker_dead)(struct daemon *d, struct worker *w, const struct death *death);
    /* supervise: w has answered CALL number `call` on its control channel. code 0: success; else
     * enum lagan_reason. result: the map of the REPLY or ERROR message, valid during the call. */
    void (*control_reply)(struct daemon *d, struct worker *w, uint64_t call, uint32_t code,
                          const msgpack_object *result);
};

/* What a worker's READY said of a model; kept when the worker is gone. */
struct model_facts {
    bool known;
    uint32_t vocab, max_len, max_source, n_slots, has_text, beams; /* beams: its own, 1 without */
    uint64_t max_tokens, weight_bytes, kv_bytes;
    char family[64];
};

struct daemon {
    const struct daemon_events *events;
    struct config *config;
    char **argv;
    sd_event *event;
    struct runtime_dir *runtime;
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
    struct fair_queue turns[MAX_MODELS]; /* whose request goes to a worker next */
    char worker_path[1024];

    struct ledger_log *ledger_log;
    struct quarantine *quarantine;

    nsec retry_at; /* deliver.c: when a blocked send is tried again; 0: none is */
    struct memory_guard *memory_guard;
    nsec look_at; /* when memory_guard_look() is due; NSEC_NEVER: with the next tick */

    bool announced; /* READY=1 has been said */
    bool was_ready; /* a worker has served in this life */
    bool draining, leaving;
    bool reexec_requested;       /* ops sets it, serve.c acts on it in the next loop iteration */
    struct preflight *preflight; /* NULL: none is running */
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
