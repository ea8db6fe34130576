/* records.h - the payloads of the records in the rings, which follow a record header (ipc/ring.h).
 *
 * A payload is a struct, followed by tails: arrays and texts of variable length. It is
 * little-endian; every struct and every tail is 8-aligned. ipc/ never interprets a field. lagand
 * and the worker copy a record, check its bounds and only then use it. lagand writes D records
 * into the request ring, the worker W records into the response ring; "W 3" is type 3 of W records.
 *
 * ABI: lagand and its workers are always of one build, but a lagand that replaces itself (re-exec)
 * reads the ledger log of the previous one, and workers of the previous build run on until they are
 * replaced. Therefore a change of a layout here changes SHM_ABI_MAJOR, and a change of struct
 * rec_submit also changes LOG_FILE_MAGIC. ipc/layout.h makes a change without these two a compile
 * error. A new meaning of an old field changes them too; that the compiler cannot see. */
#pragma once
#include "base/base.h"
#include "include/lagan_wire.h"

enum {
    REC_SUBMIT = 1,  /* rec_submit and tails; a long one is several records (RING_MORE) */
    REC_CANCEL = 2,  /* rec_notice; flags: why the request is ended */
    REC_DRAIN = 3,   /* no payload: finish all requests, accept no new ones, exit with 0 */
    REC_SUSPEND = 4, /* rec_notice; flags: 1 suspend, 0 resume */
    REC_TEXT = 5,    /* rec_text and tails */
};
enum {
    REC_READY = 1,  /* rec_ready and tails */
    REC_STEP = 2,   /* rec_step, n_ent rec_out */
    REC_FINISH = 3, /* rec_finish */
    REC_REJECT = 4, /* rec_reject and text; the request is refused before its first token */
    REC_PHASE = 5,  /* rec_phase */
    REC_PROMPT_LOGPROBS = 6, /* rec_prompt and tails; before the first token of the request */
    REC_TEXT_DONE = 7,       /* rec_text_done and tails */
    REC_KV_EVENTS = 8,       /* rec_kv_events, n rec_kv_event */
    REC_TENSOR = 9,          /* rec_tensor and values */
};

/* The bytes that a tail of n bytes occupies: n rounded up to a multiple of 8. */
#define REC_PAD(n) ROUND_UP((size_t)(n), (size_t)8)

/* These macros make fields of struct rec_submit from the rows of LAGAN_FIELDS that are marked
 * WORKER or SAMPLER; SUBMIT_TYPE_x is the C type of a row of kind x. */
#define SUBMIT_TYPE_U32 uint32_t
#define SUBMIT_TYPE_I32 int32_t
#define SUBMIT_TYPE_F64 float
#define SUBMIT_TYPE_OVER float
#define SUBMIT_TYPE_EARLY uint32_t
#define SUBMIT_FIELD_LAGAND(kind, name)
#define SUBMIT_FIELD_WORKER(kind, name) SUBMIT_TYPE_##kind name;
#define SUBMIT_FIELD_SAMPLER(kind, name) SUBMIT_TYPE_##kind name;

struct rec_submit { /* D 1, REC_SUBMIT */
    uint32_t ledger_index, gen;
    uint64_t id, seed;
    int64_t deadline_ns;          /* CLOCK_MONOTONIC; 0: no deadline */
    uint32_t n_prompt, n_decoder; /* number of token ids of the prompt; of the decoder prefix */
    uint32_t n_done;              /* number of tokens generated so far, all outputs together */
    uint32_t text_bytes;          /* bytes of the prompt as text; 0: the prompt has ids */
    uint32_t done_text;           /* bytes of text generated so far */
    float done_score;             /* score of the tokens generated so far */
#define X(kind, name, least, most, preset, record, fallback, sentence) \
    SUBMIT_FIELD_##record(kind, name)
    /* n and beams: 0 means 1. forced_bos and forced_eos: -1 not forced, -2 as the model's
     * configuration says. early_stopping: 0 false, 1 true, 2 "never". */
    LAGAN_FIELDS(X)
#undef X
    uint16_t n_eos, n_stop_ids, n_stop, n_bias; /* n_eos 0xffff: the eos ids of the model */
    uint8_t chat;                               /* 1: the text is a conversation */
    uint8_t flags;                              /* SUBMIT_ */
    uint16_t salt_bytes;                        /* bytes of the cache salt; 0: none */
    uint16_t client; /* number of the client for fair scheduling, from 1 */
    uint16_t pad;
    uint32_t lora;   /* prepared, not served yet: slot of the adapter; 0: none */
    uint32_t absent; /* ABSENT_: keys to take from generation_config.json */
    /* Tails in this order, each padded to 8: prompt ids, ids of the decoder prefix, generated ids,
     * prompt text, generated text, eos ids, stop ids, stop strings (u32 length and bytes each,
     * padded together), bias (i32 id and f32 each), salt; if n > 1 also u8[n_done], the output
     * index of each generated id, and f32[n], the score of each output. chat 1: the prompt text is
     * a date (YYYY-MM-DD), a newline and a conversation as JSON. Requests share cached KV only if
     * their salts are equal: the user's name (empty with kv.reuse_scope all), 0, cache_salt. The
     * salt is the last tail of lagand's copy. */
};
/* rec_submit.flags. LOGPROBS: report the log-probability of each token, even if logprobs (the
 * number of alternatives) is 0. SUSPENDED: the request starts suspended, as if REC_SUSPEND
 * followed. ENCODER_OUTPUT, LOGITS: report these tensors. FIT: lower max_tokens to what fits. */
enum {
    SUBMIT_IGNORE_EOS = 1,
    SUBMIT_LOGPROBS = 2,
    SUBMIT_PROMPT_LOGPROBS = 4,
    SUBMIT_SUSPENDED = 8,
    SUBMIT_ENCODER_OUTPUT = 16,
    SUBMIT_LOGITS = 32,
    SUBMIT_FIT = 64,
};

/* Bits of rec_submit.absent, one for each MODEL row of LAGAN_FIELDS: the worker takes the value
 * from generation_config.json. If max_tokens is absent, the record has its upper limit. */
#define ABSENT_FIXED(prefix, name)
#define ABSENT_MODEL(prefix, name) prefix##name,
enum absent_bit {
#define X(kind, name, least, most, preset, record, fallback, sentence) \
    ABSENT_##fallback(ABSENT_BIT_, name)
    LAGAN_FIELDS(X)
#undef X
        N_ABSENT_BITS
};
#define ABSENT_VALUE_FIXED(name)
#define ABSENT_VALUE_MODEL(name) ABSENT_##name = 1 << ABSENT_BIT_##name,
enum {
#define X(kind, name, least, most, preset, record, fallback, sentence) ABSENT_VALUE_##fallback(name)
    LAGAN_FIELDS(X)
#undef X
};
_Static_assert(N_ABSENT_BITS <= 31, "rec_submit.absent");

/* D 2, REC_CANCEL: flags is the reason (enum lagan_reason), 0: cancelled. D 4, REC_SUSPEND: flags
 * 1: suspend the request, 0: resume it. */
struct rec_notice {
    uint32_t ledger_index, gen, flags, pad;
};

/* ID_BYTES: the bytes of each id; RENDER: the conversation as the prompt text. */
enum text_op { TEXT_TOKENIZE = 1, TEXT_DETOKENIZE, TEXT_ID_BYTES, TEXT_RENDER };
struct rec_text {       /* D 5 */
    uint32_t call, gen; /* index and generation of the call in lagand */
    uint8_t op;         /* enum text_op */
    /* 1: add no (tokenize) or keep (detokenize) special tokens; 2: text is a conversation */
    uint8_t flags;
    uint16_t pad;
    uint32_t n_ids, text_bytes, pad2;
    /* i32 id[n_ids], text, packed */
};

enum { READY_DEVICE = 64, READY_TEMPLATE = 32 }; /* limit of device_bytes, excluded */
/* Sampling parameters that the verb models shows: indices of rec_ready.defaults. */
#define READY_DEFAULTS(X) X(temperature) X(top_k) X(top_p) X(min_p) X(repetition_penalty)
enum {
#define X(name) READY_DEFAULT_##name,
    READY_DEFAULTS(X)
#undef X
        N_READY_DEFAULTS
};
struct rec_ready {                                /* W 1 */
    uint32_t vocab, max_len, max_source, n_slots; /* max_source 0: a decoder-only model */
    /* has_text: the model has a tokenizer */
    uint32_t tokens_per_block, n_groups, name_bytes, has_text;
    /* max_tokens: number of positions for which the pools have KV blocks */
    uint64_t kv_bytes, weight_bytes, max_tokens;
    int64_t load_ns;
    uint32_t adopted;          /* 1: the weights were adopted from the previous worker */
    uint32_t beams;            /* value for requests with ABSENT_beams; 0 means 1 */
    float temperature;         /* value for requests with ABSENT_temperature */
    int32_t decoder_start;     /* decoder_start_token_id; -1: none */
    uint32_t max_request_seqs; /* maximum number of sequences of a request; 0: n_slots */
    uint16_t device_bytes;
    uint8_t tokenizer_fault; /* 1: tokenizer.json exists but could not be loaded; has_text is 0 */
    uint8_t pad;
    char unserved[48]; /* key of generation_config.json whose value is not served; "": none */
    char dtype[8];     /* of the weights: "bf16" */
    /* max_text_bytes: most bytes of text that a prompt can need, above which `text` never fits */
    uint32_t max_text_bytes;
    float defaults[N_READY_DEFAULTS]; /* those that generation_config.json gives; else NaN */
    uint64_t fingerprint;             /* hash of the weights, their dtype and the option numerics */
    char chat_template[READY_TEMPLATE]; /* its name; "": conversations are not served */
    /* tail: name of the architecture, name_bytes long, and the device in use, device_bytes long, as
     * "cpu (2 cores, avx2)"; each padded to 8 */
};

struct rec_step { /* W 2 */
    uint64_t step;
    uint8_t lane, pad[3];
    uint32_t n_ent;
};
/* New tokens of one output. rec_step is followed by n_ent of these, each with its tails. n_top has
 * 4 bytes, because LAGAN_MAX_TOP does not fit into one. */
struct rec_out {
    uint32_t ledger_index, gen;
    uint16_t output; /* 0 .. n - 1 */
    uint8_t n_tokens;
    uint8_t has_logprobs; /* 1: logprob[] and top[] follow */
    uint32_t first;       /* index of the first token in the output */
    /* text_bytes: new text, complete characters only; text_first: bytes of text before it */
    uint32_t text_bytes, text_first;
    uint32_t n_top; /* alternatives of each token, at most LAGAN_MAX_TOP */
    float score; /* of the output, these tokens included; a replacement worker continues from it */
    /* Tails: i32 token[n_tokens]; if has_logprobs f32 logprob[n_tokens] and {i32 id, f32 logprob}
     * top[n_tokens][n_top]; the text; all padded to 8. */
};
/* KV blocks of one output, of all KV groups: allocated; of these, never used before; prompt blocks
 * found in the prefix cache, whole or in part; prompt blocks that were computed. */
struct rec_kv_blocks {
    uint32_t allocated, allocated_new, reused, missed;
};
struct rec_finish { /* W 3 */
    uint32_t ledger_index, gen;
    uint16_t output, reason; /* enum lagan_reason */
    float score;
    uint32_t n_tokens, cached, adopted, recomputed;
    uint32_t n_prompt_tokens; /* tokens of the prompt, or of the encoder input */
    uint32_t stop; /* reason stop: 1 + index of the stop string that was found; 0: a stop id */
    int64_t scheduled_ns; /* CLOCK_MONOTONIC, launch of the first step of the request; 0: none */
    struct rec_kv_blocks kv_blocks;
};
struct rec_reject { /* W 4 */
    uint32_t ledger_index, gen;
    uint16_t reason; /* enum lagan_reason */
    uint16_t text_bytes;
    uint32_t n_prompt_tokens; /* tokens of the prompt, or of the encoder input; 0: unknown */
    /* tail: the error sentence, text_bytes long */
};
struct rec_phase {  /* W 5: how far the start of the worker is */
    uint32_t phase; /* enum worker_phase, ipc/shm.h */
    uint32_t pad;
    uint64_t done, total; /* bytes of weights */
};
/* W 6: log-probabilities of prompt positions [first, first + n); there may be several */
struct rec_prompt {
    uint32_t ledger_index, gen;
    uint32_t first, n, n_top, pad;
    /* Tails: i32 id[n], the prompt tokens; f32 logprob[n] (NaN at position 0); {i32 id, f32
     * logprob} top[n][n_top]; packed, padded together to 8. */
};
/* W 9: values [first, first + n) of a tensor, row by row. The whole encoder output [encoder input
 * tokens, hidden] comes before the first token; row k of the logits [generated, vocabulary] comes
 * before token k. If generated ids were given, the first row belongs to the next token. Of several
 * outputs of a beam search, the rows of output 0 come first, then those of output 1. */
struct rec_tensor {
    uint32_t ledger_index, gen;
    uint64_t first;
    uint32_t n, cols;
    uint32_t kind; /* enum lagan_tensor of lagan_wire.h */
    uint32_t pad;
    /* f32 value[n]; padded to 8 */
};
/* W 8: changes of the worker's prefix cache, or a part of a snapshot of it. */
enum { KV_EVENTS_MAX = 256 };  /* in one record */
enum {                         /* rec_kv_events.flags */
       KV_EVENTS_SNAPSHOT = 1, /* the events are blocks that the cache has (op 0) */
       KV_EVENTS_BEGIN = 2,    /* first part of a snapshot: what was known of the cache is void */
       KV_EVENTS_END = 4       /* last part of a snapshot */
};
struct rec_kv_events {
    uint32_t n, flags;
    uint64_t lost; /* with KV_EVENTS_BEGIN: events that were overwritten before they were sent */
};
/* One block in one KV group. A worker that sends a snapshot also sends the changes meanwhile:
 * before each part, all changes up to it. */
struct rec_kv_event {
    uint64_t name[2], parent[2]; /* names of this block and of the block before it */
    uint8_t op;                  /* enum kv_event_op of base/block_event.h */
    uint8_t group;
    uint8_t priority; /* retention priority, 0 .. 100 */
    uint8_t tier;     /* 0 device, 1 host tier only */
    uint8_t why;      /* enum kv_why of base/block_event.h */
    uint8_t pad;
    uint16_t n_tokens;
};
struct rec_text_done { /* W 7 */
    uint32_t call, gen;
    uint32_t reason; /* 0: success; else enum lagan_reason, and the text is the error sentence */
    uint32_t n_ids, text_bytes, pad;
    /* i32 id[n_ids], text, packed; all padded to 8. TEXT_ID_BYTES: id[i] is the length of
     * piece i, text has the pieces one behind the other */
};

_Static_assert(sizeof(struct rec_submit) == 160, "rec_submit");
_Static_assert(sizeof(struct rec_notice) == 16, "rec_notice");
_Static_assert(sizeof(struct rec_text) == 24, "rec_text");
_Static_assert(sizeof(struct rec_ready) == 208, "rec_ready");
_Static_assert(sizeof(struct rec_step) == 16, "rec_step");
_Static_assert(sizeof(struct rec_out) == 32, "rec_out");
_Static_assert(sizeof(struct rec_finish) == 64, "rec_finish");
_Static_assert(sizeof(struct rec_reject) == 16, "rec_reject");
_Static_assert(sizeof(struct rec_phase) == 24, "rec_phase");
_Static_assert(sizeof(struct rec_prompt) == 24, "rec_prompt");
_Static_assert(sizeof(struct rec_tensor) == 32, "rec_tensor");
_Static_assert(sizeof(struct rec_text_done) == 24, "rec_text_done");
_Static_assert(sizeof(struct rec_kv_events) == 16, "rec_kv_events");
_Static_assert(sizeof(struct rec_kv_event) == 40, "rec_kv_event");
