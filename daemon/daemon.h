/* daemon.h - shared by all parts of lagand: struct daemon, and the callbacks to higher parts.
 *
 * lagand has one thread. serve.c waits for an event and then runs one loop iteration: it reads the
 * response rings and the clients' frames, dispatches requests to workers and sends what is due. No
 * part blocks. All bytes from clients and workers are validated before they are used.
 */
#pragma once

#include "base/base.h"
#include "base/clock.h"
#include "base/err.h"
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
struct ring_record; /* ipc/ring.h */
struct quarantine;
struct runtime_dir;
struct sessions;
struct worker;
struct worker_calls;
enum super_state; /* supervise/supervisor.h */

enum { MAX_MODELS = 16, MAX_WORKERS = 64, MAX_CLIENTS = 1024 };
enum { REASONS = 64 }; /* enum lagan_reason stays below */

struct daemon;

/* Calls from a part to a higher part. serve.c sets all of them before the first event. */
struct daemon_events {
    /* net: c has sent a whole frame of n bytes at p, valid during the call. */
    void (*frame)(struct daemon *d, struct client *c, const void *p, size_t n);
    /* net: the connection of that client (handle of session.h) has ended. Its requests continue
     * until their disconnect timeout. The call drops the client. */
    void (*client_disconnected)(struct daemon *d, uint32_t client);
    /* net: cancel the requests of that client and close its connection. */
    void (*client_dropped)(struct daemon *d, uint32_t client);
    /* supervise: the state of w has changed, or its process has ended (from may equal to). */
    void (*worker_state)(struct daemon *d, struct worker *w, enum super_state from,
                         enum super_state to);
    /* supervise: the next record of the response ring of w. -EBADMSG and e: protocol error. */
    int (*worker_record)(struct worker *w, const struct ring_record *rec, struct err *e);
    /* supervise: the process of w has ended and its response ring is read, or the process cannot be
     * killed. Queues the requests of w again or ends them. Not called at lagand's exit. */
    void (*worker_dead)(struct daemon *d, struct worker *w, const struct death *death);
    /* supervise: REPLY (code 0) or ERROR (code: enum lagan_reason) for CALL number `call` on the
     * control channel of w. result: the map of the message, valid during the call. */
    void (*control_reply)(struct daemon *d, struct worker *w, uint64_t call, uint32_t code,
                          const msgpack_object *result);
};

/* Facts of a model from the READY of a worker; kept when the worker has ended. */
struct model_facts {
    bool known;
    uint32_t vocab, max_len, max_source, n_slots, has_text, beams; /* beams: the default; 1: none */
    uint32_t max_request_seqs;                                     /* sequences of one request */
    float temperature;                                             /* the default */
    int32_t decoder_start; /* decoder_start_token_id; -1: none */
    uint64_t max_tokens, weight_bytes, kv_bytes;
    char family[64], unserved[48]; /* unserved: as in READY */
};

struct daemon {
    const struct daemon_events *events;
    struct config *config;
    char **argv;
    sd_event *event;
    struct runtime_dir *runtime;
    uint8_t id[16]; /* of this process: instance in WELCOME, daemon_id in the rings */
    nsec started, now;
    void *zmq;
    struct frontend *frontend;
    struct sessions *sessions;
    struct ledger *ledger;
    struct worker_calls *calls;
    struct worker *worker[MAX_WORKERS];
    uint32_t n_workers;
    struct model_facts facts[MAX_MODELS];
    struct fair_queue fair_queues[MAX_MODELS]; /* order of the queued requests */
    char worker_path[1024];

    struct ledger_log *ledger_log;
    struct quarantine *quarantine;

    nsec retry_at; /* deliver.c: when to try a blocked send again; 0: none is blocked */
    struct memory_guard *memory_guard;
    nsec look_at; /* when to call memory_guard_look(); NSEC_NEVER: with the next tick */

    bool announced; /* READY=1 was sent to systemd */
    bool was_ready; /* a worker was READY since the start */
    bool draining, leaving;
    bool reexec_requested;       /* ops sets it, serve.c acts on it in the next loop iteration */
    struct preflight *preflight; /* NULL: none is running */
    uint32_t rolling;      /* rolling restart: 1 + the worker that is being replaced; 0: none */
    uint64_t rolled_epoch; /* epoch of that worker's previous process */
    nsec drain_until;
    int exit_code;
    msgpack_sbuffer out; /* message that is being encoded */
    uint64_t n_requests, n_refused, n_finished, n_failed, n_resumes;
    uint64_t n_ended[REASONS]; /* accepted requests, by enum lagan_reason */
    struct event_log *event_log;
    uint64_t held_bytes; /* reserved for open requests; at most api.memory */
};
