/* daemon.h - struct daemon, the state that all parts of lagand share, and the callbacks by which a
 * part (net, supervise) calls a part of a higher floor.
 *
 * lagand has one thread. serve.c waits for an event and then runs one loop iteration: it reads the
 * response rings and the clients' frames, dispatches requests to workers and sends what is due. No
 * part blocks. All bytes from clients and workers are validated before they are used. */
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
struct histograms; /* ledger/histograms.h */
struct kv_watch;   /* request/kv_watch.h */
struct ledger;
struct ledger_log;
struct memory_guard;
struct oom_watch;
struct preflight;
struct ring_record; /* ipc/ring.h */
struct quarantine;
struct runtime_dir;
struct sessions;
struct worker;
struct worker_calls;
enum super_state; /* supervise/supervisor.h */

enum { MAX_MODELS = 16, MAX_WORKERS = 64, MAX_CLIENTS = 1024 };
enum { REASONS = 64 }; /* all values of enum lagan_reason are below this */

struct daemon;

/* Callbacks to higher parts, set by serve.c. "net:" and "supervise:" name the calling part. */
struct daemon_events {
    /* net: client c has sent a whole frame of n bytes at p, valid during the call. */
    void (*frame)(struct daemon *d, struct client *c, const void *p, size_t n);
    /* net: the connection of the client with handle `client` (session.h) has ended. The callback
     * drops the client; the client's requests continue until their disconnect timeout. */
    void (*client_disconnected)(struct daemon *d, uint32_t client);
    /* net: the key of client `client` was removed: cancels its requests, closes its connection. */
    void (*client_dropped)(struct daemon *d, uint32_t client);
    /* supervise: the state of w has changed from `from` to `to`, or the process of w has ended; in
     * the second case `from` and `to` may be equal. */
    void (*worker_state)(struct worker *w, enum super_state from, enum super_state to);
    /* supervise: handles a record of w's response ring. -EBADMSG: protocol error; w gets killed. */
    int (*worker_record)(struct worker *w, const struct ring_record *rec, struct err *e);
    /* supervise: the process of w has ended and its response ring is read, or the process cannot be
     * killed. Requeues or ends the requests of w. Not called when lagand exits. */
    void (*worker_dead)(struct worker *w, const struct death *death);
    /* supervise: CALL number `call` on the control channel of w got a REPLY (code 0) or an ERROR
     * (code: enum lagan_reason). result: the map of that message, valid during the call. */
    void (*control_reply)(struct worker *w, uint64_t call, uint32_t code,
                          const msgpack_object *result);
};

/* Facts of a model from the last READY of one of its workers; kept when the worker has ended. */
struct model_facts {
    bool known; /* a worker of the model has sent READY */
    uint32_t vocab, max_len, max_source, n_slots, has_text, tokens_per_block;
    bool tokenizer_fault;
    uint32_t beams;            /* default of the request key `beams`; 1: no beam search */
    uint32_t max_request_seqs; /* limit of the sequences of one request */
    uint32_t max_text_bytes;   /* limit of the request key `text` */
    float temperature;         /* default of the request key `temperature` */
    int32_t decoder_start;     /* decoder_start_token_id; -1: none */
    uint64_t max_tokens, weight_bytes, kv_bytes;
    uint64_t since;                /* UNIX time in seconds of the first READY */
    uint64_t fingerprint;          /* hash of weights, dtype and numerics */
    float defaults[5];             /* index: READY_DEFAULT_ of ipc/records.h; NaN: not given */
    char chat_template[32];        /* its name; "": no conversations */
    char dtype[8];                 /* of the weights */
    char family[64], unserved[48]; /* architecture name; key of generation_config.json not served */
};

/* Sent with the error too_long. 0: unknown. max_len: the most tokens of prompt and output together,
 * of an encoder-decoder model of the encoder input. */
struct prompt_length {
    uint32_t n_prompt_tokens, max_len;
};

struct daemon {
    const struct daemon_events *events;
    struct config *config;
    char **argv;
    sd_event *event;
    struct runtime_dir *runtime;
    uint8_t id[16]; /* random id of this process: `instance` in WELCOME, daemon_id in the rings */
    nsec started, now;
    void *zmq;
    struct frontend *frontend;
    struct sessions *sessions;
    struct ledger *ledger;
    struct worker_calls *calls;
    struct worker *worker[MAX_WORKERS];
    uint32_t n_workers;
    struct model_facts facts[MAX_MODELS];
    struct fair_queue fair_queues[MAX_MODELS]; /* order of the queued requests, for each model */
    char worker_path[1024];                    /* program file of the workers */
    uint64_t worker_inode;                     /* of that file when lagand started or reloaded; */
    nsec worker_changed_at;                    /* and its time of modification */

    struct ledger_log *ledger_log;
    struct quarantine *quarantine;
    struct kv_watch *kv_watch;

    nsec retry_at;         /* deliver.c: when to try a blocked send again; 0: none is blocked */
    struct oom_watch *oom; /* supervise/oom.h */
    struct memory_guard *memory_guard;
    nsec look_at; /* when to call memory_guard_look(); NSEC_NEVER: with the next tick */

    bool announced;              /* READY=1 was sent to systemd */
    bool was_ready;              /* a worker was READY since lagand started */
    bool draining;               /* lagand stops: open requests may finish until drain_until */
    bool leaving;                /* the workers were asked to stop; lagand exits after them */
    bool reexec_requested;       /* ops sets it, serve.c acts on it in the next loop iteration */
    struct preflight *preflight; /* the running preflight; NULL: none */
    uint32_t rolling;      /* rolling restart: 1 + index of the worker being replaced; 0: none */
    uint64_t rolling_set;  /* bit i: the rolling restart replaces worker i */
    uint64_t rolled_epoch; /* epoch of the process of worker[rolling - 1] that is replaced */
    nsec drain_until;
    int exit_code;
    msgpack_sbuffer out; /* message that is being encoded */
    uint64_t n_requests, n_refused, n_finished, n_failed, n_resumes;
    struct histograms *histograms;
    uint64_t n_ended[REASONS]; /* ended requests, by the enum lagan_reason of their end */
    struct event_log *event_log;
    uint64_t held_bytes; /* memory reserved for open requests; at most api.memory */
};
