/* records.h - the records in the rings: payloads after the 16-byte record header (ipc/ring.h).
 *
 * Little-endian; every struct and every tail is 8-aligned. ipc/ never interprets a field. lagand
 * and the worker copy a record, check its bounds and only then use it. Records D are written by
 * lagand into the request ring, records W by the worker into the response ring.
 *
 * ABI: lagand and its workers are always of one build, but a lagand that replaces itself (re-exec)
 * reads the ledger log of the previous one, and workers of the previous build run on until they are
 * replaced. Therefore a change of a layout here changes SHM_ABI_MAJOR, and a change of struct
 * rec_submit also changes LOG_FILE_MAGIC. ipc/layout.h makes a change without these two a compile
 * error. A new meaning of an old field changes them too; that the compiler cannot see.
 */
#pragma once

#include "base/base.h"
#include "include/lagan_wire.h"

enum {
    REC_SUBMIT = 1,  /* rec_submit and tails; fragments with RING_MORE concatenate */
    REC_CANCEL = 2,  /* rec_notice; flags: reason */
    REC_DRAIN = 3,   /* no payload: finish all requests, accept no new ones, exit with 0 */
    REC_SUSPEND = 4, /* rec_notice; flags: 1 suspend, 0 resume */
    REC_TEXT = 5,    /* rec_text and tails */
};
enum {
    REC_READY = 1,           /* rec_ready and tails */
    REC_STEP = 2,            /* rec_step, n_ent rec_out */
    REC_FINISH = 3,          /* rec_finish */
    REC_REJECT = 4,          /* rec_reject and text; before the first token */
    REC_PHASE = 5,           /* rec_phase */
    REC_PROMPT_LOGPROBS = 6, /* rec_prompt and tails; before the first token of the request */
    REC_TEXT_DONE = 7,       /* rec_text_done and tails */
    REC_KV_EVENTS = 8,
    REC_TENSOR = 9, /* rec_tensor and values */
};

/* Fields of struct rec_submit that LAGAN_FIELDS generates: the type by kind, a field for WORKER and
 * SAMPLER rows. */
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
    int64_t deadline_ns;          /* CLOCK_MONOTONIC; 0: none */
    uint32_t n_prompt, n_decoder; /* token ids of the prompt, of the decoder prefix */
    uint32_t n_done;              /* token ids generated so far, all outputs together */
    uint32_t text_bytes;          /* of the prompt as text; 0: the prompt has ids */
    uint32_t done_text;           /* bytes of text generated so far */
    float done_score;             /* score of the tokens generated so far */
#define X(kind, name, least, most, preset, record, fallback, sentence) \
    SUBMIT_FIELD_##record(kind, name)
    /* n, beams: 0 means 1. forced_bos, forced_eos: -1 off, -2 of the model. early_stopping: 2 never
     */
    LAGAN_FIELDS(X)
#undef X
    uint16_t n_eos, n_stop_ids, n_stop, n_bias; /* n_eos 0xffff: those of the model */
    uint8_t chat;                               /* 1: the text is a conversation */
    uint8_t flags;                              /* SUBMIT_ */
    uint16_t salt_bytes;                        /* prepared, not served yet: cache salt */
    uint16_t client;                            /* number of the client, for fairness; from 1 */
    uint16_t pad;
    uint32_t lora;   /* prepared, not served yet: slot of the adapter; 0: none */
    uint32_t absent; /* ABSENT_: keys that generation_config.json replaces */
    uint32_t pad2;
    /* Then, each padded to 8: prompt, decoder prefix, generated ids, text, generated text, eos,
     * stop_ids, stop (u32 length + bytes, padded together), bias (i32 id, f32)*, salt; with n > 1:
     * u8[n_done] output of each generated id, f32[n] score of each output. chat 1: the text is a
     * date, YYYY-MM-DD and a newline, and a conversation as JSON. */
};
/* flags. LOGPROBS: report the log-probability of each token, also with logprobs = 0 alternatives.
 * SUSPENDED: as if REC_SUSPEND followed. ENCODER_OUTPUT, LOGITS: report these tensors. */
enum {
    SUBMIT_IGNORE_EOS = 1,
    SUBMIT_LOGPROBS = 2,
    SUBMIT_PROMPT_LOGPROBS = 4,
    SUBMIT_SUSPENDED = 8,
    SUBMIT_ENCODER_OUTPUT = 16,
    SUBMIT_LOGITS = 32,
};

/* rec_submit.absent: one bit for each MODEL row of LAGAN_FIELDS. The model's max_tokens may be less
 * than the record's. */
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

/* D 2: flags is the reason, 0: cancelled. D 4: flags 1 suspend, 0 resume. */
struct rec_notice {
    uint32_t ledger_index, gen, flags, pad;
};

struct rec_text {       /* D 5 */
    uint32_t call, gen; /* index and generation of the call in lagand */
    uint8_t op;         /* 1 tokenize, 2 detokenize */
    /* 1: bare (tokenize), keep special tokens (detokenize); 2: text is a conversation */
    uint8_t flags;
    uint16_t pad;
    uint32_t n_ids, text_bytes, pad2;
    /* i32 id[n_ids], text, packed */
};

struct rec_ready {                                /* W 1 */
    uint32_t vocab, max_len, max_source, n_slots; /* max_source 0: decoder-only */
    /* has_text: the model has a tokenizer */
    uint32_t tokens_per_block, n_groups, name_bytes, has_text;
    /* max_tokens: positions that the pools can hold */
    uint64_t kv_bytes, weight_bytes, max_tokens;
    int64_t load_ns;
    uint32_t adopted;          /* weights adopted from the previous worker */
    uint32_t beams;            /* beams of a request that leaves them to the model; 0 means 1 */
    float temperature;         /* of a request that leaves it to the model */
    int32_t decoder_start;     /* decoder_start_token_id; -1: none */
    uint32_t max_request_seqs; /* sequences of one request; 0: n_slots */
    uint32_t pad;
    char unserved[48]; /* key of generation_config.json whose value is not served; "": none */
    /* name_bytes of the architecture's name */
};

struct rec_step { /* W 2 */
    uint64_t step;
    uint8_t lane, pad[3];
    uint32_t n_ent;
};
/* n_top is at most LAGAN_MAX_TOP, which does not fit into a byte; hence 32 bytes, not 24. */
struct rec_out { /* n_ent times, each followed by its tails, padded to 8 */
    uint32_t ledger_index, gen;
    uint16_t output; /* 0 .. n - 1 */
    uint8_t n_tokens;
    uint8_t has_logprobs; /* 1: logprob[] and top[] follow */
    uint32_t first;       /* index of the first token in the output */
    /* whole characters only; text_first: bytes of text before them */
    uint32_t text_bytes, text_first;
    uint32_t n_top; /* alternatives of each token, at most LAGAN_MAX_TOP */
    float score;    /* score with these tokens; a replacement worker continues from it */
    /* i32 token[n_tokens]; with has_logprobs: f32 logprob[n_tokens], {i32, f32}
     * top[n_tokens][n_top]; text; all padded to 8 */
};
struct rec_finish { /* W 3 */
    uint32_t ledger_index, gen;
    uint16_t output, reason; /* enum lagan_reason */
    float score;
    uint32_t n_tokens, cached, adopted, recomputed;
    uint32_t n_prompt_tokens; /* of an encoder-decoder model: of the encoder input */
    uint32_t pad;
};
struct rec_reject { /* W 4 */
    uint32_t ledger_index, gen;
    uint16_t reason; /* enum lagan_reason */
    uint16_t text_bytes;
    uint32_t pad;
    /* then the sentence */
};
struct rec_phase {  /* W 5: progress of the start of a worker */
    uint32_t phase; /* enum worker_phase, ipc/shm.h */
    uint32_t pad;
    uint64_t done, total; /* bytes */
};
/* W 6: positions [first, first + n) of the prompt; a prompt may take several records */
struct rec_prompt {
    uint32_t ledger_index, gen;
    uint32_t first, n, n_top, pad;
    /* i32 id[n], the tokens of the prompt; f32 logprob[n] (position 0: NaN); {i32, f32}
     * top[n][n_top]; packed, all padded to 8 */
};
/* W 9: values [first, first + n) of a tensor, row by row. The whole encoder output [encoder input
 * tokens, hidden] comes before the first token; row k of the logits [generated, vocabulary] comes
 * before token k. If generated ids were given, the first row belongs to the next token. */
struct rec_tensor {
    uint32_t ledger_index, gen;
    uint64_t first;
    uint32_t n, cols;
    uint32_t kind; /* enum lagan_tensor of lagan_wire.h */
    uint32_t pad;
    /* f32 value[n]; padded to 8 */
};
struct rec_text_done { /* W 7 */
    uint32_t call, gen;
    uint32_t reason; /* 0, or enum lagan_reason; then text is the error sentence */
    uint32_t n_ids, text_bytes, pad;
    /* i32 id[n_ids], text, packed; all padded to 8 */
};

_Static_assert(sizeof(struct rec_submit) == 160, "rec_submit");
_Static_assert(sizeof(struct rec_notice) == 16, "rec_notice");
_Static_assert(sizeof(struct rec_text) == 24, "rec_text");
_Static_assert(sizeof(struct rec_ready) == 136, "rec_ready");
_Static_assert(sizeof(struct rec_step) == 16, "rec_step");
_Static_assert(sizeof(struct rec_out) == 32, "rec_out");
_Static_assert(sizeof(struct rec_finish) == 40, "rec_finish");
_Static_assert(sizeof(struct rec_reject) == 16, "rec_reject");
_Static_assert(sizeof(struct rec_phase) == 24, "rec_phase");
_Static_assert(sizeof(struct rec_prompt) == 24, "rec_prompt");
_Static_assert(sizeof(struct rec_tensor) == 32, "rec_tensor");
_Static_assert(sizeof(struct rec_text_done) == 24, "rec_text_done");
