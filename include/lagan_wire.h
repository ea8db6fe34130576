/* lagan_wire.h - what travels: version, message types, request fields, error codes, limits.
 *
 * Every number and name here is a contract with programs outside this tree: additions only, a
 * number never changes its meaning. One message is one ZeroMQ frame, a MessagePack array
 *
 *     [version: uint, type: uint, rid: uint64, {map}]
 *
 * Keys are strings of at most LAGAN_MAX_KEY bytes; unknown keys are ignored, keys that begin with '!' must be
 * understood. Tables carry their sentences: the manual, --help and the error texts come from here.
 */
#ifndef LAGAN_WIRE_H
#define LAGAN_WIRE_H

#include <stdint.h>

#define LAGAN_WIRE_VERSION 1

/* Message types. C: client, D: lagand. */
#define LAGAN_MESSAGES(X) \
    X(1, HELLO, \
      "C: protocol range {min, max}, client, session (16 random bytes, optional: whoever knows " \
      "them " \
      "is this client, also on another connection)") \
    X(2, WELCOME, \
      "D: proto, instance (16 bytes, new at each start), session, limits, models, state") \
    X(3, SUBMIT, "C: a request; the keys of LAGAN_FIELDS, flat in the map") \
    X(4, ACCEPT, \
      "D: queue_position, id, seed (the one used); from here exactly one DONE or ERROR follows") \
    X(5, CHUNK, \
      "D: n chunk number; o output, i first position, t tokens (i32 LE bin), s text, lp (f32 LE " \
      "bin), tp {k, d: bin of i32, f32}; or pl {i, lp, k, d, t}: the prompt's log-probabilities; " \
      "or x {k kind, i first value, c columns, d: f32 LE bin}: a piece of a tensor, row by row; " \
      "more: true when tokens and text do not end together here; end: with the output's last " \
      "token " \
      "what DONE will say of it") \
    X(6, ACK, "C: n cumulative chunk number, ack_window") \
    X(7, DONE, \
      "D: outputs, each {o, reason, reason_name, n_tokens, score, cached, seed, resumed, " \
      "adopted, " \
      "recomputed}") \
    X(8, ERROR, "D: code, reason_name, message, retryable, delivered; rid 0: the frame had none") \
    X(9, CANCEL, "C: rids, a list; {} cancels the rid of the envelope") \
    X(10, RESUME, \
      "C: after HELLO with the session of a lost connection, every open request: rids, and of " \
      "each " \
      "n_tokens and text_bytes received since its SUBMIT; lists of one length. The answer is " \
      "REPLY " \
      "{unknown: rids}; the others go on from there with chunk 1") \
    X(11, QUERY, "C: rids; answered with their states") \
    X(12, PING, "both: t, a number") \
    X(13, PONG, "both: t as it came") \
    X(14, BYE, "both: reason, retry_after_ms") \
    X(15, CALL, "C: verb, args") \
    X(16, REPLY, "D: result") \
    X(17, EVENT, "D: verb, body: a line of a followed CALL")

enum lagan_message {
#define X(number, name, sentence) LAGAN_MSG_##name = number,
    LAGAN_MESSAGES(X)
#undef X
};

/* What a request may want beside tokens, as CHUNK's x: kind, name, sentence. */
#define LAGAN_TENSORS(X) \
    X(1, ENCODER_OUTPUT, "encoder_output", "[source tokens, hidden], before the first token") \
    X(2, LOGITS, "logits", "[new tokens, vocabulary], each row before its token")

enum lagan_tensor {
#define X(number, name, word, sentence) LAGAN_TENSOR_##name = number,
    LAGAN_TENSORS(X)
#undef X
        LAGAN_N_TENSORS = 2
};

/* How an output ends without an error. */
#define LAGAN_FINISHES(X) \
    X(1, EOS, "eos", "an end-of-sequence token") \
    X(2, LENGTH, "length", "max_tokens, or the model's length") \
    X(3, STOP, "stop", "a stop token or stop string of the request") \
    X(4, CANCELLED, "cancelled", "cancelled by the client or an operator") \
    X(5, ERROR, "error", "an error; see its code")

/* Errors a request or call can end with: number, name, word, retry makes sense, sentence. */
#define LAGAN_ERRORS(X) \
    X(32, INVALID_REQUEST, "invalid_request", 0, \
      "the request is not valid; the message says where") \
    X(33, TOO_LONG, "too_long", 0, "longer than the model, the pool or a limit can ever hold") \
    X(34, QUEUE_FULL, "queue_full", 1, "admission limits are reached; try again later") \
    X(35, DEADLINE, "deadline", 0, "the deadline passed before the request was done") \
    X(36, CANCELLED, "cancelled", 0, "cancelled by the client or an operator") \
    X(37, DRAINING, "draining", 1, "the service takes no new requests: it drains or stops") \
    X(38, MODEL_NOT_FOUND, "model_not_found", 0, "no such model is served here") \
    X(39, UNAUTHORIZED, "unauthorized", 0, "this connection may not do that") \
    X(40, SLOW_READER, "slow_reader", 0, "the client stopped reading") \
    X(41, WORKER_LOST, "worker_lost", 1, "the worker died and the request could not be resumed") \
    X(42, POISONED, "poisoned", 0, "this request has killed workers and is not run again") \
    X(43, OUT_OF_MEMORY, "out_of_memory", 1, "memory ran out") \
    X(44, DEVICE_LOST, "device_lost", 1, "the device is gone") \
    X(45, INTERNAL, "internal", 1, "a fault of lagan; the journal has more") \
    X(46, UNSUPPORTED, "unsupported", 0, "known, but not served by this version or model") \
    X(47, NOT_FOUND, "not_found", 0, "no such request, worker or verb")

/* One number space: a rec_finish's reason, DONE's reason and ERROR's code. */
enum lagan_reason {
    LAGAN_NONE = 0,
#define X(number, name, word, sentence) LAGAN_FINISH_##name = number,
    LAGAN_FINISHES(X)
#undef X
#define X(number, name, word, retry, sentence) LAGAN_E_##name = number,
        LAGAN_ERRORS(X)
#undef X
};

/* What SUBMIT and a line of `laganctl generate --requests` may carry: kind, key, least, most, default,
 * served now, sentence. OVER excludes its least value. A key that is not served now is refused by
 * name unless it has its default. */
/* clang-format off */
#define LAGAN_FIELDS(X) \
    X(IDS,   ids,                 1, LAGAN_MAX_IDS, 0, 1, "the prompt as token ids, used as they are; encoder-decoder: the encoder's input") \
    X(STR,   text,                1, LAGAN_MAX_STR, 0, 1, "the prompt as text, in place of ids; the model's template tokens are added") \
    X(STR,   messages,            1, LAGAN_MAX_STR, 0, 1, "a conversation in place of text, as JSON: [{\"role\": \"user\", \"content\": \"...\"}]; the model's chat template is applied") \
    X(IDS,   decoder_ids,         1, LAGAN_MAX_IDS, 0, 1, "encoder-decoder: the decoder's prefix; default [decoder_start_token_id]") \
    X(STR,   model,               1, 256,      0,  1, "which of the served models; may be left out when there is one") \
    X(STR,   idempotency_key,     1, LAGAN_MAX_KEY, 0, 1, "idempotency key: a second SUBMIT with it is the first one, unless that ended with an error after which trying again makes sense") \
    X(IDS,   generated_ids,       0, LAGAN_MAX_IDS, 0, 1, "tokens of the answer that came before: it goes on behind them; with the seed they were made with") \
    X(U32,   max_tokens,          1, LAGAN_MAX_TOKENS, 16, 1, "at most this many new tokens") \
    X(U32,   min_tokens,          0, LAGAN_MAX_TOKENS, 0, 1, "no end-of-sequence token before this many") \
    X(F64,   temperature,         0, 100,      0,  1, "0 is greedy") \
    X(U32,   top_k,               0, 1 << 20,  0,  1, "sample from the K most likely; 0 is all") \
    X(OVER,  top_p,               0, 1,        1,  1, "sample from the fewest tokens that hold this probability") \
    X(F64,   min_p,               0, 1,        0,  1, "drop tokens below this share of the most likely one") \
    X(U64,   seed,                0, 0,        0,  1, "makes sampling repeatable; default: one is chosen and reported") \
    X(OVER,  repetition_penalty,  0, 10,       1,  1, "over 1 makes tokens already present less likely") \
    X(F64,   presence_penalty,   -2, 2,        0,  1, "taken from the logits of tokens that were generated already") \
    X(F64,   frequency_penalty,  -2, 2,        0,  1, "the same, for each time") \
    X(BIAS,  logit_bias,          0, LAGAN_MAX_BIAS, 0, 1, "added to the logits of these tokens: [id, bias] each") \
    X(IDS,   stop_ids,            0, LAGAN_MAX_STOPS, 0, 1, "token ids that end the output") \
    X(STOPS, stop,                0, LAGAN_MAX_STOPS, 0, 1, "strings that end the output; the text stops before them") \
    X(BOOL,  ignore_eos,          0, 1,        0,  1, "do not end at the model's end-of-sequence tokens") \
    X(IDS,   eos_ids,             0, LAGAN_MAX_STOPS, 0, 1, "end-of-sequence tokens, an empty list is none; default: the model's") \
    X(I32,   forced_bos,         -1, INT32_MAX, -2, 1, "the first new token; -1 is none; default: the model's") \
    X(I32,   forced_eos,         -1, INT32_MAX, -2, 1, "the last token at max_tokens; -1 is none; default: the model's") \
    X(U32,   logprobs,            0, LAGAN_MAX_TOP, 0, 1, "log-probabilities of new tokens and of the K most likely beside them") \
    X(U32,   prompt_logprobs,     0, LAGAN_MAX_TOP, 0, 1, "the same for the prompt's tokens") \
    X(F64,   priority,            0, 1,        0.5, 1, "higher goes first") \
    X(U64,   deadline_ms,         0, 0,        0,  1, "give up after so many milliseconds; 0 is never") \
    X(U32,   ack_window,          1, LAGAN_MAX_ACK_WINDOW, LAGAN_DEFAULT_ACK_WINDOW, 1, "chunks that may be under way before an ACK") \
    X(BOOL,  resume,              0, 1,        1,  1, "go on with another worker when one is lost") \
    X(U32,   disconnect_timeout_ms, 0, 600000, 10000, 1, "milliseconds that it goes on without a connection, for the same session to come back") \
    X(U32,   beams,               1, LAGAN_MAX_BEAMS, 1, 1, "beam search with so many beams") \
    X(F64,   length_penalty,   -100, 100,      1,  1, "beam search: over 0 favours long outputs") \
    X(EARLY, early_stopping,      0, 2,        0,  1, "beam search: true, false or \"never\"") \
    X(U32,   no_repeat_ngram,     0, 1024,     0,  1, "no sequence of so many tokens comes twice; 0 is off") \
    X(U32,   n,                   1, LAGAN_MAX_OUTPUTS,       1,  1, "outputs for one prompt") \
    X(BOOL,  model_defaults,      0, 1,        0,  1, "take what is absent from generation_config.json") \
    X(BOOL,  return_encoder_output, 0, 1,      0,  1, "send the encoder's states") \
    X(BOOL,  return_logits,       0, 1,        0,  1, "send the logits of the new tokens, before anything acts on them") \
    X(ANY,   encoder_features,    0, 0,        0,  1, "a tensor in place of ids, for models that take features")
/* clang-format on */

/* What CALL may ask for: verb, needs ctl.sock, args, result. Verbs are the words of laganctl's commands.
 * A worker: {name, pid, device, model, state, running, waiting, restarts, arenas: [{name, bytes}],
 * kv: [{pool, blocks, used, cached, free}], load: {phase, done, total} while it loads, why: a sentence
 * when it is not well}. Ids are lists of numbers or a bin of i32 LE, both ways. */
/* clang-format off */
#define LAGAN_VERBS(X) \
    X("status",        0, "",                    "{version, pid, uptime_s, state: starting|ready|degraded|draining, models: [name], requests, max_requests, workers: [a worker]}") \
    X("workers list",  0, "",                    "[a worker]") \
    X("requests list", 0, "",                    "[{id, client, model, worker, state, prompt, generated, age_ms}]; the caller's own on api.sock, all on ctl.sock") \
    X("cancel",        0, "id of requests list", "{}; the caller's own on api.sock, any on ctl.sock") \
    X("tokenize",      0, "text, bare, model; or messages, model", "{ids}") \
    X("detokenize",    0, "ids, keep_special, model", "{text}") \
    X("config show",   0, "",                    "[{key, value, from}]") \
    X("kv stats",      0, "",                    "[{worker, pool, blocks, used, cached, free, bytes}]") \
    X("kv pools",      0, "",                    "[{worker, group, kind: full|window|cross|state, window, pool, bytes: of a block, used, cached, allocated, allocated_new, reused_full, reused_copied, reused_moved, missed, evicted, offloaded, onboarded, host_evicted}]") \
    X("kv flush",      1, "worker, if there are several", "{blocks, bytes, host_blocks, host_bytes}: what was kept for others only, and is dropped; what requests hold stays") \
    X("metrics",       0, "",                    "{text: counters and gauges in Prometheus' format}") \
    X("events",        1, "from: a number",      "{next, events: [{number, at_ms, kind, worker, text}]} from there on, 256 at most") \
    X("panic",         1, "",                    "[{at_ms, worker, pid, epoch, cause, how, requests, words, log: [line]}]: workers that died, the last first") \
    X("drain",         1, "worker",              "{requests: how many it still has}; it finishes them and takes no more") \
    X("restart",       1, "worker",              "{requests}; it finishes them and is started anew") \
    X("reload",        1, "",                    "{}; every worker is replaced, one after the other; requests go on") \
    X("daemon reexec", 1, "",                    "{}; lagand becomes the program that lies there now; requests and memory stay") \
    X("tune",          1, "worker, if there are several", "{total: matmuls to measure}; begins, or goes on: they are measured while there is no request") \
    X("tune status",   1, "worker, from: rows it has", "{done, total, running, why, rows: [{n, k, rows, first_us, best_us, tried}] from there on, 64 at most}") \
    X("split show",    1, "worker, if there are several", "{mode: off|auto|fixed, units, min_units, granularity, target_ns, prefill_units, decode_units, changes, partitions: [[prefill_units, decode_units]], prefill_steps, prefill_ns, decode_steps, decode_ns, mixed_steps, mixed_ns}") \
    X("split auto",    1, "worker, if there are several", "{}; the division is chosen by what steps take") \
    X("split off",     1, "worker, if there are several", "{}; one lane for prompts and answers") \
    X("split set",     1, "prefill_units, decode_units; worker, if there are several", "{}; that division from the next step on")
/* clang-format on */

/* Limits on one frame; held by one pass before MessagePack-C unpacks. */
#define LAGAN_MAX_FRAME ((4u << 20) + (64u << 10)) /* the longest prompt, and a rest */
#define LAGAN_MAX_DEPTH 8    /* two of the envelope; of what a verb answers, five */
#define LAGAN_MAX_NODES 4096 /* and one more for every integer that stands in a list */
#define LAGAN_MAX_KEYS 64
#define LAGAN_MAX_KEY 64
#define LAGAN_MAX_STR (1u << 20)
#define LAGAN_MAX_IDS (1u << 20)    /* tokens in one prompt; so many come as a bin of i32 LE */
#define LAGAN_MAX_TOKENS (1u << 24) /* in one answer */
#define LAGAN_MAX_LIST (256u << 10) /* integers in all lists of a frame */
#define LAGAN_MAX_STOPS 16          /* stop strings, stop ids, eos ids: each */
#define LAGAN_MAX_STOP 256          /* bytes of one stop string */
#define LAGAN_MAX_RIDS 4096         /* requests in one CANCEL or QUERY */
#define LAGAN_MAX_RESUMES 65536     /* requests in one RESUME */
#define LAGAN_MAX_TOP 1024          /* logprobs, prompt_logprobs */
#define LAGAN_MAX_BEAMS 16
#define LAGAN_MAX_OUTPUTS 64 /* n */
#define LAGAN_MAX_BIAS 256   /* entries of logit_bias */
#define LAGAN_MAX_ACK_WINDOW 256
#define LAGAN_DEFAULT_ACK_WINDOW 128

#endif
