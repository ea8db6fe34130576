/* lagan_wire.h - the client protocol of lagand: message types, request keys, verbs, errors, limits.
 *
 * The numbers and names are a contract with programs outside this tree. A number never changes its
 * meaning; new ones may be added. One message is one ZeroMQ frame, a MessagePack array
 *
 *     [version: uint, type: uint, rid: uint64, {map}]
 *
 * rid is the client's number of its request or call, and 0 for messages about the connection. Keys
 * are strings of at most LAGAN_MAX_KEY bytes. lagand rejects an unknown key of SUBMIT and of args
 * of CALL. Unknown keys of other messages are ignored, unless they begin with '!'. The manual
 * lagan-protocol(7), --help and the error texts are made from the sentences of these tables. */
#ifndef LAGAN_WIRE_H
#define LAGAN_WIRE_H

#include <stdint.h>

#define LAGAN_WIRE_VERSION 1

/* Message types: number, name, sender (C client, D lagand) and keys of the map. */
#define LAGAN_MESSAGES(X) \
    X(1, HELLO, \
      "C: min, max: lowest and highest protocol version; client: name and version of the " \
      "program; session: 16 random bytes, optional. A client that sends the same session on a " \
      "later connection is the same client") \
    X(2, WELCOME, \
      "D: proto: the chosen version; instance: 16 bytes, new at each start of lagand; " \
      "session; limits: {frame: bytes of a message, ack_window: its maximum, inflight: open " \
      "requests of a connection, idle_timeout_ms: see KEEPING A CONNECTION, text_bytes: a list, " \
      "for each model the bytes of text that a prompt can need; 0: not known yet, or the model " \
      "has no tokenizer}; models: a list of names; state: starting, ready, degraded or draining; " \
      "features: a list of names of FEATURES") \
    X(3, SUBMIT, "C: a request; the map has the keys of REQUESTS") \
    X(4, ACCEPT, \
      "D: queue_position: requests ahead in the queue; id: number of the request in lagand; " \
      "seed: the seed in use; at: UNIX time in seconds at which lagand first accepted the " \
      "request. Exactly one DONE or ERROR follows") \
    X(5, CHUNK, \
      "D: n: chunk number from 1. Tokens: o: output; i: index of the first token; t: token " \
      "ids as a bin of i32 LE; s: text; lp: log-probabilities as a bin of f32 LE; tp: " \
      "alternatives {k: per token, d: bin of i32 id and f32 log-probability}; more: true if " \
      "the text of these tokens continues in the next chunk; end: the output's entry of DONE, " \
      "with its last token. Or pl: log-probabilities of the prompt {i, lp, k, d, t}. Or x: a " \
      "part of a tensor {k: kind, i: index of the first value, c: columns, d: bin of f32 LE, " \
      "row by row}") \
    X(6, ACK, \
      "C: n: all chunks up to this number were received; ack_window: optional, new window") \
    X(7, DONE, \
      "D: outputs: a list of {o, reason, reason_name, n_tokens, score, cached, seed, resumed, " \
      "adopted, recomputed, n_prompt_tokens: tokens of the prompt or encoder input, 0: unknown, " \
      "stop: with the reason stop, the string of stop or the token id of stop_ids that ended it, " \
      "kv_blocks: {allocated, allocated_new: of these, never used before, reused: prompt blocks " \
      "found in the prefix cache, missed: prompt blocks computed}}") \
    X(8, ERROR, \
      "D: code, reason_name, message, retryable, delivered: tokens sent before. With the code " \
      "too_long for a known model also n_prompt_tokens: tokens of the prompt, 0: unknown, and " \
      "max_len: the model's maximum length. rid 0: lagand could not read the rid of the rejected " \
      "message") \
    X(9, CANCEL, "C: rids: requests to cancel; without rids the request of the envelope's rid") \
    X(10, RESUME, \
      "C: after HELLO with the session of a lost connection, lists of equal length for all " \
      "open requests: rids; n_tokens: tokens that the client has, with generated_ids; " \
      "text_bytes: bytes of text received since SUBMIT. lagand sends REPLY with the result " \
      "{unknown: rids that lagand does not know; at: [[rid, at of its ACCEPT]] of the others}. " \
      "The others continue with chunk 1") \
    X(11, QUERY, "C: rids; lagand sends REPLY with the result [{rid, state, n}]") \
    X(12, PING, "both: t: any number; the receiver replies with PONG at once") \
    X(13, PONG, "both: t of the PING") \
    X(14, BYE, \
      "both: the sender closes the connection; reason: a sentence. From the client: its requests " \
      "are cancelled. From lagand with retry_after_ms: the client may reconnect after that time " \
      "and RESUME") \
    X(15, CALL, "C: verb, args: a command of CALLS") \
    X(16, REPLY, "D: result: of a CALL, RESUME or QUERY") \
    X(17, EVENT, \
      "D: verb, body: one of several results of a CALL; no verb of this version has " \
      "several results")

enum lagan_message {
#define X(number, name, sentence) LAGAN_MSG_##name = number,
    LAGAN_MESSAGES(X)
#undef X
};

/* Names in `features` of WELCOME: a client finds out without a try what lagand serves beyond the
 * first version of the protocol. Name, sentence. */
#define LAGAN_FEATURES(X) \
    X(request_id, "the key request_id of SUBMIT") \
    X(fit, "the key fit of SUBMIT") \
    X(models, "the verb models") \
    X(pieces, "the verb pieces") \
    X(render, "the verb render") \
    X(load, "the verb load")

/* Tensors that a request may ask for (x of CHUNK): number, C name, name, shape. */
#define LAGAN_TENSORS(X) \
    X(1, ENCODER_OUTPUT, "encoder_output", \
      "hidden states of the encoder, [encoder input tokens, hidden size]; before the first token") \
    X(2, LOGITS, "logits", \
      "logits, [generated tokens, vocabulary]; each row before its token; of several outputs of " \
      "a " \
      "beam search, first the rows of output 0, then those of output 1, ...")

enum lagan_tensor {
#define X(number, name, word, sentence) LAGAN_TENSOR_##name = number,
    LAGAN_TENSORS(X)
#undef X
        LAGAN_N_TENSORS = 2
};

/* Reasons why an output ended without an error: number, C name, name, sentence. */
#define LAGAN_FINISHES(X) \
    X(1, EOS, "eos", "the model generated an end-of-sequence token") \
    X(2, LENGTH, "length", "the output reached max_tokens or the model's maximum length") \
    X(3, STOP, "stop", "the output contains a token of stop_ids or a string of stop") \
    X(4, CANCELLED, "cancelled", "the client or an operator cancelled the request") \
    X(5, ERROR, "error", "the request failed; its error code says why")

/* Errors of requests and calls: number, C name, name, 1 if a retry may succeed, sentence. */
#define LAGAN_ERRORS(X) \
    X(32, INVALID_REQUEST, "invalid_request", 0, \
      "a key or value of the request is not valid; the message names it") \
    X(33, TOO_LONG, "too_long", 0, \
      "the request exceeds the length of the model, the KV cache or a limit, and never fits") \
    X(34, QUEUE_FULL, "queue_full", 1, "the queue or a limit of open requests is full") \
    X(35, DEADLINE, "deadline", 0, "the deadline of the request passed before it finished") \
    X(36, CANCELLED, "cancelled", 0, "the client or an operator cancelled the request") \
    X(37, DRAINING, "draining", 1, "lagand stops or drains and accepts no new requests") \
    X(38, MODEL_NOT_FOUND, "model_not_found", 0, "lagand does not serve a model of this name") \
    X(39, UNAUTHORIZED, "unauthorized", 0, "this connection is not allowed to do that") \
    X(40, SLOW_READER, "slow_reader", 0, "the client did not acknowledge chunks in time") \
    X(41, WORKER_LOST, "worker_lost", 1, \
      "the worker failed and another worker could not continue the request") \
    X(42, POISONED, "poisoned", 0, \
      "the request made several workers fail and will not be run again") \
    X(43, OUT_OF_MEMORY, "out_of_memory", 1, "memory is exhausted") \
    X(44, DEVICE_LOST, "device_lost", 1, "the GPU is no longer available") \
    X(45, INTERNAL, "internal", 1, "an error inside lagan; the journal has details") \
    X(46, UNSUPPORTED, "unsupported", 0, "this version or model does not support the request") \
    X(47, NOT_FOUND, "not_found", 0, "there is no such request, worker or verb") \
    X(48, CONFIGURATION, "configuration", 0, \
      "the configuration, or a file that it names, is not valid; the message names it")

/* reason of DONE and code of ERROR: one number space. */
enum lagan_reason {
    LAGAN_NONE = 0,
#define X(number, name, word, sentence) LAGAN_FINISH_##name = number,
    LAGAN_FINISHES(X)
#undef X
#define X(number, name, word, retry, sentence) LAGAN_E_##name = number,
        LAGAN_ERRORS(X)
#undef X
};

/* Kinds of the values of a request's keys: name, and what the value is. */
#define LAGAN_KINDS(X) \
    X(IDS, "a list of token ids or a bin of i32 LE") \
    X(STR, "a string") \
    X(STOPS, "a string or a list of strings") \
    X(U32, "an integer") \
    X(U64, "an unsigned integer") \
    X(I32, "an integer") \
    X(F64, "a number") \
    X(OVER, "a number above the lower limit") \
    X(BIAS, "a list of [id, bias]") \
    X(BOOL, "true or false") \
    X(EARLY, "true, false or \"never\"") \
    X(ANY, "a map")

/* The keys of SUBMIT and of a line of `laganctl generate --requests`. Columns:
 *
 *   kind      row of LAGAN_KINDS; its C type and reader: wire/msg.h
 *   key       name; also of the fields of msg_request, rec_submit and sampling
 *   least, most, default: range of numbers and lengths; OVER excludes its least value
 *   record    LAGAND: lagand alone reads the value, or passes it to the worker in another form
 *             WORKER: struct rec_submit (ipc/records.h) has a field of this name
 *             SAMPLER: WORKER, and the worker copies it into struct sampling
 *   fallback  MODEL: with model_defaults an absent key is taken from generation_config.json
 *             FIXED: the default of this table
 *   sentence  of --help and of the manual
 *
 * A row generates the field of struct msg_request and its reader, the field of struct rec_submit,
 * the copies into rec_submit and sampling, the ABSENT_ bit, the option of laganctl and the manual.
 * A new WORKER or SAMPLER row changes SHM_ABI_MAJOR (ipc/layout.h). */
/* clang-format off */
#define LAGAN_FIELDS(X) \
    X(IDS,   ids,                      1, LAGAN_MAX_IDS, 0, LAGAND, FIXED, \
      "the prompt as token ids, used unchanged; for an encoder-decoder model the encoder input") \
    X(STR,   text,                     1, LAGAN_MAX_STR, 0, LAGAND, FIXED, \
      "the prompt as text, instead of ids; the tokenizer of the model adds its special tokens") \
    X(STR,   messages,                 1, LAGAN_MAX_STR, 0, LAGAND, FIXED, \
      "the prompt as JSON [{\"role\": \"user\", \"content\": \"...\"}]; the chat template " \
      "formats it") \
    X(IDS,   decoder_ids,              1, LAGAN_MAX_IDS, 0, LAGAND, FIXED, \
      "for an encoder-decoder model: first tokens of the decoder, which the output follows; " \
      "default: decoder_start_token_id of the model") \
    X(STR,   model,                    1, 256, 0, LAGAND, FIXED, \
      "name of the model; may be omitted if lagand serves only one") \
    X(STR,   idempotency_key,          1, LAGAN_MAX_KEY, 0, LAGAND, FIXED, \
      "name of the request, unique within the session; a second SUBMIT with this name returns " \
      "the first request, unless that ended with a retryable error") \
    X(STR,   request_id,               1, LAGAN_MAX_REQUEST_ID, 0, LAGAND, FIXED, \
      "name of the request in the log of lagand and in `requests list`: printable ASCII " \
      "without spaces; need not be unique") \
    X(IDS,   generated_ids,            0, LAGAN_MAX_IDS, 0, LAGAND, FIXED, \
      "tokens of an incomplete earlier output, to continue it; send its seed as well") \
    X(U32,   max_tokens,               1, LAGAN_MAX_TOKENS, 16, WORKER, MODEL, \
      "maximum number of tokens in the output; tokens passed in with generated_ids count") \
    X(BOOL,  fit,                      0, 1, 0, LAGAND, FIXED, \
      "true: lower max_tokens to the number of tokens for which the model, its KV cache and " \
      "limits.tensor_bytes have space, instead of the error too_long") \
    X(U32,   min_tokens,               0, LAGAN_MAX_TOKENS, 0, WORKER, MODEL, \
      "minimum number of tokens before an end-of-sequence token can be generated") \
    X(F64,   temperature,              0, 100, 0, SAMPLER, MODEL, \
      "divisor of the logits before sampling: values below 1 favour likely tokens, values " \
      "above 1 favour unlikely tokens; 0: always the most likely token (greedy)") \
    X(U32,   top_k,                    0, 1 << 20, 0, SAMPLER, MODEL, \
      "sample from this number of most likely tokens only; 0: from all tokens") \
    X(OVER,  top_p,                    0, 1, 1, SAMPLER, MODEL, \
      "sample from the most likely tokens only, as many as needed for a total probability of " \
      "this value; 1: from all tokens") \
    X(F64,   min_p,                    0, 1, 0, SAMPLER, MODEL, \
      "exclude tokens less probable than this value times the highest probability; 0: none") \
    X(U64,   seed,                     0, 0, 0, LAGAND, FIXED, \
      "seed of the random numbers of sampling; requests with equal seeds use equal random " \
      "numbers; default: lagand chooses a seed and reports it") \
    X(OVER,  repetition_penalty,       0, 10, 1, SAMPLER, MODEL, \
      "for tokens that occur in the prompt or the output: divide a positive logit by this " \
      "value, multiply a negative logit by it; 1: off") \
    X(F64,   presence_penalty,        -2, 2, 0, SAMPLER, FIXED, \
      "subtract this value from the logit of each token that occurs in the output; 0: off") \
    X(F64,   frequency_penalty,       -2, 2, 0, SAMPLER, FIXED, \
      "subtract this value from a token's logit for each occurrence in the output; 0: off") \
    X(BIAS,  logit_bias,               0, LAGAN_MAX_BIAS, 0, LAGAND, FIXED, \
      "values X from -100 to 100 that are added to the logits of the token ids ID") \
    X(IDS,   stop_ids,                 0, LAGAN_MAX_STOPS, 0, LAGAND, FIXED, \
      "token ids that end the output when they are generated") \
    X(STOPS, stop,                     0, LAGAN_MAX_STOPS, 0, LAGAND, FIXED, \
      "strings that end the output when generated; the text ends before the string") \
    X(BOOL,  ignore_eos,               0, 1, 0, LAGAND, FIXED, \
      "continue after an end-of-sequence token") \
    X(IDS,   eos_ids,                  0, LAGAN_MAX_STOPS, 0, LAGAND, FIXED, \
      "token ids that end the output as end-of-sequence tokens; an empty list: no token does; " \
      "default: those of the model") \
    X(I32,   forced_bos,              -1, INT32_MAX, -2, WORKER, FIXED, \
      "token id that the first generated token is forced to have; -1: not forced; default: " \
      "forced_bos_token_id of the model, if any") \
    X(I32,   forced_eos,              -1, INT32_MAX, -2, WORKER, FIXED, \
      "token id that the token at max_tokens is forced to have; -1: not forced; default: " \
      "forced_eos_token_id of the model, if any") \
    X(U32,   logprobs,                 0, LAGAN_MAX_TOP, 0, SAMPLER, FIXED, \
      "report the log-probability of each generated token, and of this number of most likely " \
      "tokens at its position; with beams, log-probabilities that are not normalized again after " \
      "penalties; default: none are reported") \
    X(U32,   prompt_logprobs,          0, LAGAN_MAX_TOP, 0, SAMPLER, FIXED, \
      "report the log-probability of each prompt token, and of this number of most likely " \
      "tokens at its position; default: none are reported") \
    X(F64,   priority,                 0, 1, 0.5, WORKER, FIXED, \
      "priority from 0 to 1; requests with a higher priority are scheduled first") \
    X(STR,   cache_salt,               1, LAGAN_MAX_SALT, 0, LAGAND, FIXED, \
      "take cached KV only from requests with this cache_salt, of the same user unless the " \
      "model's option kv.reuse_scope is all; default: from those without a cache_salt") \
    X(U32,   cache_priority,           0, 100, 35, WORKER, FIXED, \
      "how long the prefix cache keeps the KV blocks of the prompt and the output: blocks of " \
      "lower priority are evicted first; those below 30 are not copied to the host tier. 35: " \
      "blocks that are cached already keep their priority") \
    X(U64,   deadline_ms,              0, 0, 0, LAGAND, FIXED, \
      "milliseconds after which an unfinished request ends with error deadline; 0: no limit") \
    X(U32,   ack_window,               1, LAGAN_MAX_ACK_WINDOW, LAGAN_DEFAULT_ACK_WINDOW, LAGAND, FIXED, \
      "maximum number of CHUNK messages without ACK; lagand holds back further tokens") \
    X(BOOL,  resume,                   0, 1, 1, LAGAND, FIXED, \
      "true: if the worker fails, another worker continues the request; false: the request " \
      "then ends with the error worker_lost") \
    X(U32,   disconnect_timeout_ms,    0, 600000, 10000, LAGAND, FIXED, \
      "time in milliseconds that the request continues after its connection is lost; if the " \
      "client has not reconnected by then, the request is cancelled") \
    X(U32,   beams,                    1, LAGAN_MAX_BEAMS, 1, WORKER, MODEL, \
      "number of beams of a beam search; 1: no beam search") \
    X(F64,   length_penalty,        -100, 100, 1, WORKER, MODEL, \
      "exponent of the length that divides the beam score; higher favours long outputs") \
    X(EARLY, early_stopping,           0, 2, 0, WORKER, MODEL, \
      "when a beam search ends after as many outputs as beams have finished. true: at once; " \
      "false: when no unfinished beam, scored at its present length, is better than the worst " \
      "of these; \"never\": when no unfinished beam can become better than the worst of these") \
    X(U32,   no_repeat_ngram,          0, 1024, 0, SAMPLER, MODEL, \
      "never generate a token that would complete a sequence of this many tokens for the " \
      "second time, prompt included; 0: off") \
    X(U32,   n,                        1, LAGAN_MAX_OUTPUTS, 1, WORKER, FIXED, \
      "number of outputs for the prompt; with beams above 1, the best N beams") \
    X(BOOL,  model_defaults,           0, 1, 0, LAGAND, FIXED, \
      "for options that the request does not give, use the values of the model's " \
      "generation_config.json instead of the defaults listed here") \
    X(BOOL,  return_encoder_output,    0, 1, 0, LAGAND, FIXED, \
      "send the hidden states of the encoder too, as a tensor") \
    X(BOOL,  return_logits,            0, 1, 0, LAGAND, FIXED, \
      "send the logits of each generated token too, as a tensor, before penalties change them; " \
      "with n above 1 only of a beam search") \
    X(ANY,   encoder_features,         0, 0, 0, LAGAND, FIXED, \
      "not served: no model family here takes features; a request with this key ends with the " \
      "error unsupported")
/* clang-format on */

/* Most ids of one call of `pieces`. */
#define LAGAN_MAX_CALL_IDS 4096

/* The verbs of CALL: identifier, name, 1 if only ctl.sock serves it, args, result. args is a list
 * of "key" and "key: sentence", separated by commas or semicolons; lagand rejects other keys. Verbs
 * are the commands of laganctl; function cmd_ID() of daemon/ops/commands.c serves verb ID. A worker
 * is {name, pid, device: in use, "" before it is known, model, dtype, max_len, text: yes|no|fault
 * (the tokenizer could not be loaded), chat: yes|no, state, running, waiting, restarts, epoch:
 * number of its process, arenas: [{name, bytes}], kv: [{pool, blocks, used, cached, free}], load:
 * {done, total} in bytes, why: a sentence if it has failed}. Token ids are lists of numbers, in
 * args also a bin of i32 LE. A bin of a result is bytes, in liblagan's JSON a list of numbers. */
/* clang-format off */
#define LAGAN_VERBS(X) \
    X(status, "status", 0, "", "{version, pid, uptime_s, state: " \
      "starting|ready|degraded|draining, models: [name], requests, max_requests, queued, " \
      "workers: [a worker]}") \
    X(workers_list, "workers list", 0, "", "[a worker]") \
    X(models, "models", 0, "", "[{name, max_model_len, vocabulary, architecture, encoder_decoder, " \
      "template: name of the chat template, \"\": none, defaults: {temperature, top_k, top_p, " \
      "min_p, repetition_penalty}: those that generation_config.json gives; temperature 0: an " \
      "encoder-decoder model without do_sample, fingerprint: 16 hex digits, a hash of weights, " \
      "dtype and numerics: equal seeds give equal outputs, since: UNIX time in seconds at which " \
      "the model became ready, 0: not yet, ready: true: a worker accepts requests, policy}]; " \
      "facts are 0 or \"\" before the first worker of the model is ready") \
    X(load, "load", 0, "", "{name of a model: {waiting: queued requests, running: running " \
      "sequences, kv: share of the KV blocks that running sequences use, from 0 to 1, blocks: KV " \
      "blocks of its workers, tokens_per_block}}") \
    X(requests_list, "requests list", 0, "", "[{id, request_id, client, user: uid:1000 or key:alice, model, " \
      "worker, state: " \
      "queued|dispatched|streaming|suspended|ended, prompt, generated, age_ms}]: " \
      "the caller's requests on api.sock, all requests on ctl.sock") \
    X(cancel, "cancel", 0, "id: of requests list", "{}; on api.sock only requests of the caller") \
    X(tokenize, "tokenize", 0, "text, bare: true adds no special tokens, model; or messages, model", \
      "{ids}") \
    X(detokenize, "detokenize", 0, "ids, keep_special: true keeps special tokens, model", "{text}") \
    X(token_bytes, "pieces", 0, "ids, at most 4096; model", "[the bytes of each token as a bin]: those " \
      "that the token gives inside a text; a special token gives its name") \
    X(render, "render", 0, "messages, model", "{text}: the conversation in the format of the " \
      "model's chat template, which tokenize converts to ids") \
    X(config_show, "config show", 0, "", "[{key, value, from}]") \
    X(kv_stats, "kv stats", 0, "", "[{worker, pool: number, or host, blocks, " \
      "used, cached, free, block_bytes, bytes: blocks * block_bytes, pinned: of used, kept by " \
      "kv pin}]") \
    X(kv_pools, "kv pools", 0, "", "[{worker, group, kind: full|window|cross|state, window, pool, " \
      "bytes: of one block, used, cached, allocated, allocated_new, reused_full, reused_copied, " \
      "reused_moved, missed, evicted, offloaded, onboarded, host_evicted, trimmed: freed behind the " \
      "window}]") \
    X(kv_flush, "kv flush", 1, "worker, required if there are several", \
      "{blocks, bytes, host_blocks, host_bytes}: removed from the prefix cache; blocks of " \
      "running requests stay") \
    X(kv_events, "kv events", 1, "worker, required if there are several; from: number of the " \
      "first event; at: 0, to get the blocks of the cache too, or the at of the reply before", \
      "{first: number of the first event that lagand keeps, next, end: number after the last " \
      "event, lost: events from `from` on that are not kept, events: [{number, at_ms, op: stored|removed|updated, why: " \
      "asked|pressure|orphan|lost|flushed, name, parent, group, tier: device|host, tokens, " \
      "priority}], at, blocks: [{name, parent, group, tier, tokens, priority}]}: at most 96 events " \
      "from that number on. After a loss the caller drops what it knew, and calls with `next` and " \
      "at 0, then with the `at` of the reply until that is null; blocks are in a reply only if " \
      "all events are") \
    X(kv_pin, "kv pin", 1, "ids: first tokens of prompts, or an encoder input; user: whose " \
      "requests, with kv.reuse_scope user; cache_salt; worker, required if there are several", \
      "{pin: its number, tokens: cached tokens that stay until kv unpin or the end of the worker}") \
    X(kv_unpin, "kv unpin", 1, "pin: its number, 0 for all; worker, required if there are several", \
      "{pins: number of removed pins}") \
    X(metrics, "metrics", 0, "", "{text: all metrics in the Prometheus text format}") \
    X(steps, "steps", 1, "worker, required if there are several; from: number of the first step", \
      "{next, end: number after the last step, lost: steps from that number on that lagand has " \
      "not kept, steps: [{number, at_ms, step, lane, prefill_tokens, decode_tokens, " \
      "encoder_tokens, sequences, cached_tokens, preempted, running, waiting, plan_ns, queue_ns, " \
      "device_ns, prefill_units, decode_units, used: [blocks of a pool], free: [blocks of a " \
      "pool]}]}: at most 64 steps from that number on; lagand keeps the last 4096 of a worker") \
    X(events, "events", 1, "from: number of the first event", \
      "{next, events: [{number, at_ms, kind, worker, text}]}: at most 256 events from that " \
      "number on") \
    X(panic, "panic", 1, "", "[{at_ms, worker, pid, epoch, cause, how, requests, words, " \
      "frames: of the stack, as lagan-worker+0x1234, log: [line]}]: failed workers, the latest first") \
    X(version, "version", 0, "", "{version: of lagand, protocol: version of the wire protocol}") \
    X(loglevel, "loglevel", 1, "level: err|warn|info|debug, worker: empty for lagand itself", \
      "{}; messages below that severity are not logged any more") \
    X(drain, "drain", 1, "worker", "{requests: requests that it still has}; the worker " \
      "finishes them and gets no new requests") \
    X(restart, "restart", 1, "worker", "{requests: requests that it still has}; the worker " \
      "finishes them and is replaced") \
    X(reload, "reload", 1, "", "{workers: number of replaced, taken: [changes that are valid now], " \
      "replaced: [workers that are replaced, started or stopped], kept: [changes that need " \
      "more]}; takes a changed configuration; requests continue") \
    X(daemon_reexec, "daemon reexec", 1, "", "{}; lagand replaces itself by the installed program; requests " \
      "and device memory are kept") \
    X(tune, "tune", 1, "worker, required if there are several", \
      "{total: matmuls to measure}; starts or continues the measurement, which runs while there " \
      "are no requests") \
    X(tune_status, "tune status", 1, "worker, from: number of the first row", \
      "{done, total, running, why, rows: [{n, k, rows, first_us, best_us, tried}]}: at most 64 " \
      "rows from that number on") \
    X(split_show, "split show", 1, "worker, required if there are several", \
      "{mode: off|auto|fixed, units, min_units, granularity, target_ns, prefill_units, " \
      "decode_units: 0 if one lane does both, changes, partitions: [[prefill_units, " \
      "decode_units]], prefill_steps, prefill_ns, decode_steps, decode_ns, mixed_steps, " \
      "mixed_ns}") \
    X(split_auto, "split auto", 1, "worker, required if there are several", \
      "{}; lagan selects the partition from measured step times") \
    X(split_off, "split off", 1, "worker, required if there are several", \
      "{}; one lane does prefill and decode") \
    X(split_set, "split set", 1, "prefill_units, decode_units; worker, required if there are several", \
      "{}; this partition is used from the next step on")
/* clang-format on */

/* Limits of one message, checked before MessagePack-C unpacks it. */
#define LAGAN_MAX_STR (4u << 20) /* bytes of one string; a model may have a lower limit of `text` */
#define LAGAN_MAX_FRAME (LAGAN_MAX_STR + (64u << 10)) /* bytes: the longest prompt and 64 KiB */
#define LAGAN_MAX_DEPTH 8    /* nested maps and lists; the envelope has two */
#define LAGAN_MAX_NODES 4096 /* values, not counting integers in lists */
#define LAGAN_MAX_KEYS 64
#define LAGAN_MAX_KEY 64
#define LAGAN_MAX_SALT 128
#define LAGAN_MAX_REQUEST_ID 128
#define LAGAN_MAX_IDS (1u << 20)    /* tokens in one prompt, as a bin of i32 LE */
#define LAGAN_MAX_TOKENS (1u << 24) /* in one output */
#define LAGAN_MAX_LIST (256u << 10) /* integers in all lists of a message */
#define LAGAN_MAX_STOPS 16          /* entries of stop, stop_ids, eos_ids: each */
#define LAGAN_MAX_STOP 256          /* bytes of one stop string */
#define LAGAN_MAX_RIDS 4096         /* requests in one CANCEL or QUERY */
#define LAGAN_MAX_RESUMES 65536     /* requests in one RESUME */
#define LAGAN_MAX_TOP 1024          /* logprobs, prompt_logprobs */
#define LAGAN_MAX_BEAMS 16
/* Limits of a beam search in bytes: LOGPROBS of beams * max_tokens * (4 + 8 * logprobs), LOGITS of
 * beams * max_tokens * 4 * vocabulary. */
#define LAGAN_MAX_SEARCH_LOGPROBS (16u << 20)
#define LAGAN_MAX_SEARCH_LOGITS (64u << 20)
#define LAGAN_MAX_OUTPUTS 64 /* n */
#define LAGAN_MAX_BIAS 256   /* entries of logit_bias */
#define LAGAN_MAX_ACK_WINDOW 256
#define LAGAN_DEFAULT_ACK_WINDOW 128

#endif
