/* records.h - what travels in the rings: payloads after the 16-byte record header (ipc/ring.h).
 *
 * All little-endian, every struct and every tail 8-aligned. ipc/ never interprets a field; lagand
 * and the worker validate what they read from the other side before they use it: a copy first, then
 * bounds, then use. Types D are written by lagand into the request ring, types W by the worker into
 * the response ring.
 */
#ifndef IPC_RECORDS_H
#define IPC_RECORDS_H

#include "base/base.h"

enum {
    REC_SUBMIT = 1, /* rec_submit and tails; fragments with RING_MORE concatenate */
    REC_CANCEL = 2, /* rec_row */
    REC_DRAIN = 3,  /* nothing: finish what you have, take no more, then exit 0 */
    REC_PAUSE = 4,  /* rec_row, flags 1 pause, 0 go on: its client does not read, or reads again */
    REC_TEXT = 5,   /* rec_text and tails */
    REC_STATE = 6,  /* daemon's state for the worker's log: u32 */
};
enum {
    REC_READY = 1,           /* rec_ready and tails */
    REC_STEP = 2,            /* rec_step, n_ent rec_out */
    REC_FINISH = 3,          /* rec_finish */
    REC_REJECT = 4,          /* rec_reject and text: before the first token */
    REC_PHASE = 5,           /* rec_phase */
    REC_PROMPT_LOGPROBS = 6, /* rec_prompt and tails, before the row's first token */
    REC_TEXT_DONE = 7,       /* rec_text_done and tails */
    REC_KV_EVENTS = 8,
    REC_TENSOR = 9, /* rec_tensor and values */
};

struct rec_submit { /* D 1; fragments with MORE concatenate to this */
    uint32_t row, gen;
    uint64_t id, seed;
    int64_t deadline_ns; /* CLOCK_MONOTONIC, 0: none */
    uint32_t n_prompt, n_decoder,
        n_done;                     /* token ids: prompt, decoder prefix, delivered (output 0) */
    uint32_t text_bytes, done_text; /* text instead of ids; bytes of text already delivered */
    /* n, beams: 0 is 1 */
    uint32_t max_tokens, min_tokens, top_k, n, beams, no_repeat_ngram, logprobs, prompt_logprobs;
    float temperature, top_p, min_p, repetition, presence, frequency, length_penalty, priority;
    int32_t forced_bos, forced_eos;             /* -1 off, -2 the model's */
    uint16_t n_eos, n_stop_ids, n_stop, n_bias; /* 0xffff eos: the model's */
    uint8_t early_stopping, echo, chat, flags;
    uint32_t grammar_bytes;
    uint16_t salt_bytes;
    uint16_t client; /* whose turn it takes: of a key or a connection, from 1 */
    uint32_t lora;
    float done_score; /* of what was delivered */
    uint32_t absent;  /* ABSENT_*: not given, and the model's own default is wanted */
    uint32_t pad;
    /* then, each padded to 8: prompt, decoder, done, text, done's text, eos, stop_ids,
     * stop (u32 len + bytes, padded together), bias (i32 id, f32)*, grammar, salt; with n > 1: u8[n_done]
     * whose each token of done is, f32[n] the score of each output's.
     * chat 1: the text is a day, YYYY-MM-DD and an end of line, and a conversation as JSON */
};
/* flags. LOGPROBS: each token's log-probability is wanted, even with logprobs = 0 tops. PAUSED: as if PAUSE
 * came with it. ENCODER_OUTPUT, LOGITS: those tensors too. */
enum {
    SUBMIT_IGNORE_EOS = 1,
    SUBMIT_LOGPROBS = 2,
    SUBMIT_PROMPT_LOGPROBS = 4,
    SUBMIT_PAUSED = 8,
    SUBMIT_ENCODER_OUTPUT = 16,
    SUBMIT_LOGITS = 32,
};

/* Keys that generation_config.json may stand for; a model's max_tokens may come to be less than the record's. */
#define SUBMIT_ABSENT(X) \
    X(max_tokens) \
    X(min_tokens) \
    X(temperature) \
    X(top_k) \
    X(top_p) \
    X(min_p) \
    X(repetition_penalty) \
    X(beams) \
    X(length_penalty) \
    X(early_stopping) \
    X(no_repeat_ngram)
enum absent_bit {
#define X(key) ABSENT_BIT_##key,
    SUBMIT_ABSENT(X)
#undef X
};
enum {
#define X(key) ABSENT_##key = 1 << ABSENT_BIT_##key,
    SUBMIT_ABSENT(X)
#undef X
};

struct
    rec_row { /* D 2 (flags: the reason to end with, 0 cancelled), D 4 (flags: 1 pause, 0 go on) */
    uint32_t row, gen, flags, pad;
};

struct rec_text { /* D 5: row names lagand's call slot */
    uint32_t row, gen;
    uint8_t op;    /* 1 tokenize, 2 detokenize */
    uint8_t flags; /* 1: bare (tokenize), keep special (detokenize); 2: text is a conversation */
    uint16_t pad;
    uint32_t n_ids, text_bytes, pad2;
    /* i32 id[n_ids], text, packed */
};

struct rec_ready {                                             /* W 1 */
    uint32_t vocab, max_len, max_source, n_seats;              /* max_source 0: decoder-only */
    uint32_t tokens_per_block, n_groups, name_bytes, has_text; /* has_text: a tokenizer is there */
    uint64_t kv_bytes, weight_bytes, max_tokens; /* max_tokens: positions the pools can ever hold */
    int64_t load_ns;
    uint32_t adopted; /* weights taken over from the predecessor */
    uint32_t beams;   /* of a request that leaves them to the model; 0 is 1 */
    /* name_bytes of the architecture's name */
};

struct rec_step { /* W 2 */
    uint64_t step;
    uint8_t lane, pad[3];
    uint32_t n_ent;
};
/* n_top counts to LAGAN_MAX_TOP, which a byte would not hold: hence 32 bytes and not 24. */
struct rec_out { /* n_ent times, each followed by its tails, padded to 8 */
    uint32_t row, gen;
    uint16_t output; /* 0 .. n - 1 */
    uint8_t n_tokens;
    uint8_t has_logprobs;            /* 1: logprob[] and the tops follow */
    uint32_t first;                  /* position of the first token among the generated */
    uint32_t text_bytes, text_first; /* whole characters only; text_first: bytes before them */
    uint32_t n_top;                  /* tops a token, at most LAGAN_MAX_TOP */
    float score; /* with these tokens: what the next worker goes on from if this one dies */
    /* i32 token[n_tokens]; with logprobs: f32 logprob[n_tokens]; {i32, f32} top[n_tokens][n_top];
     * text; the whole padded to 8 */
};
struct rec_finish { /* W 3 */
    uint32_t row, gen;
    uint16_t output, reason; /* enum lagan_reason */
    float score;
    uint32_t n_tokens, cached, adopted, recomputed;
    uint32_t bulk_first, bulk_count; /* tensors in the bulk memfd */
};
struct rec_reject { /* W 4 */
    uint32_t row, gen;
    uint16_t reason; /* enum lagan_reason */
    uint16_t text_bytes;
    uint32_t pad;
    /* the sentence */
};
struct rec_phase {  /* W 5: what the worker is doing while it starts */
    uint32_t phase; /* enum worker_phase, ipc/shm.h */
    uint32_t pad;
    uint64_t done, total; /* bytes */
};
struct rec_prompt { /* W 6: positions [first, first + n) of the prompt; may come in several */
    uint32_t row, gen;
    uint32_t first, n, n_top, pad;
    /* i32 id[n], the prompt's own tokens; f32 logprob[n] of them (position 0: NaN);
     * {i32, f32} top[n][n_top]; packed,
     * the whole padded to 8 */
};
/* W 9: values first .. first + n of a tensor, row by row. All of the encoder's output [source tokens, hidden] comes
 * before the row's first token, row k of the logits [generated, vocabulary] before token k. Who goes on from
 * another's tokens begins with the logits of the next one. */
struct rec_tensor {
    uint32_t row, gen;
    uint64_t first;
    uint32_t n, cols;
    uint32_t kind; /* enum lagan_tensor of lagan_wire.h */
    uint32_t pad;
    /* f32 value[n]; padded to 8 */
};
struct rec_text_done { /* W 7 */
    uint32_t row, gen;
    uint32_t reason; /* 0, or enum lagan_reason; then text is the sentence */
    uint32_t n_ids, text_bytes, pad;
    /* i32 id[n_ids], text, packed; the whole padded to 8 */
};

_Static_assert(sizeof(struct rec_submit) == 160, "rec_submit");
_Static_assert(sizeof(struct rec_row) == 16, "rec_row");
_Static_assert(sizeof(struct rec_text) == 24, "rec_text");
_Static_assert(sizeof(struct rec_ready) == 72, "rec_ready");
_Static_assert(sizeof(struct rec_step) == 16, "rec_step");
_Static_assert(sizeof(struct rec_out) == 32, "rec_out");
_Static_assert(sizeof(struct rec_finish) == 40, "rec_finish");
_Static_assert(sizeof(struct rec_reject) == 16, "rec_reject");
_Static_assert(sizeof(struct rec_phase) == 24, "rec_phase");
_Static_assert(sizeof(struct rec_prompt) == 24, "rec_prompt");
_Static_assert(sizeof(struct rec_tensor) == 32, "rec_tensor");
_Static_assert(sizeof(struct rec_text_done) == 24, "rec_text_done");

#endif
