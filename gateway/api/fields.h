/* fields.h - one table of all fields of the bodies of requests.
 *
 * A row says on which routes a field is known, what values it takes and what becomes of it. The
 * reader of bodies (body.c) checks each value by its row; the rest of the API reads the values that
 * were given. A field without a row is ignored and named in X-Lagan-Ignored, or refused with
 * `strict`. null is absent, in every field. */
#pragma once
#include "gateway/api/errors.h"
#include "include/lagan_wire.h"

/* The routes that have a body; a field has a set of them. */
enum {
    ON_CHAT = 1,
    ON_COMPLETIONS = 2,
    ON_EMBEDDINGS = 4,
    ON_TOKENIZE = 8,
    ON_DETOKENIZE = 16,
    ON_TEMPLATE = 32,
    ON_BOTH = ON_CHAT | ON_COMPLETIONS,
    ON_ALL = 63,
    ON_MESSAGES = ON_CHAT | ON_TOKENIZE | ON_TEMPLATE
};

/* What becomes of a field. */
enum field_use {
    FIELD_SERVED,  /* the code of the route reads it */
    FIELD_PASSED,  /* SERVED, and lagand gets it as the key `arg` */
    FIELD_REFUSED, /* 400 `unsupported`, unless it has one of the values `arg` */
    FIELD_ACCEPTED /* no effect; named as ignored unless it is one of the values `arg`; NULL: any */
};

enum field_kind {
    FIELD_BOOL,
    FIELD_INT, /* an integer; 5.0 is one */
    FIELD_NUM,
    FIELD_STR, /* least, most: bytes */
    FIELD_JSON /* any type; the route checks it */
};

#define FIELD_TOKENS LAGAN_MAX_TOKENS
#define FIELD_I64 9223372036854775807.0

/* Columns: identifier, name, routes, kind, least, most, use, arg: the key of lagand, or values as
 * JSON without spaces, separated by '|'. */
/* clang-format off */
#define API_FIELDS(X) \
    X(model, "model", ON_ALL, STR, 1, 256, SERVED, NULL) \
    X(messages, "messages", ON_MESSAGES, JSON, 0, 0, SERVED, NULL) \
    X(prompt, "prompt", ON_COMPLETIONS | ON_TOKENIZE, JSON, 0, 0, SERVED, NULL) \
    X(input, "input", ON_EMBEDDINGS, JSON, 0, 0, SERVED, NULL) \
    X(tokens, "tokens", ON_DETOKENIZE, JSON, 0, 0, SERVED, NULL) \
    X(max_tokens, "max_tokens", ON_BOTH, INT, 0, FIELD_TOKENS, SERVED, NULL) \
    X(max_completion_tokens, "max_completion_tokens", ON_CHAT, INT, 0, FIELD_TOKENS, SERVED, NULL) \
    X(temperature, "temperature", ON_BOTH, NUM, 0, 2, SERVED, NULL) \
    X(top_p, "top_p", ON_BOTH, NUM, 0, 1, SERVED, NULL) \
    X(top_k, "top_k", ON_BOTH, INT, -1, 1 << 20, SERVED, NULL) \
    X(min_p, "min_p", ON_BOTH, NUM, 0, 1, SERVED, NULL) \
    X(repetition_penalty, "repetition_penalty", ON_BOTH, NUM, 0.001, 10, SERVED, NULL) \
    X(presence_penalty, "presence_penalty", ON_BOTH, NUM, -2, 2, PASSED, "presence_penalty") \
    X(frequency_penalty, "frequency_penalty", ON_BOTH, NUM, -2, 2, PASSED, "frequency_penalty") \
    X(seed, "seed", ON_BOTH, INT, -FIELD_I64, FIELD_I64, SERVED, NULL) \
    X(n, "n", ON_BOTH, INT, 1, LAGAN_MAX_OUTPUTS, SERVED, NULL) \
    X(best_of, "best_of", ON_COMPLETIONS, INT, 1, LAGAN_MAX_OUTPUTS, SERVED, NULL) \
    X(stop, "stop", ON_BOTH, JSON, 0, 0, SERVED, NULL) \
    X(stop_token_ids, "stop_token_ids", ON_BOTH, JSON, 0, 0, SERVED, NULL) \
    X(ignore_eos, "ignore_eos", ON_BOTH, BOOL, 0, 0, PASSED, "ignore_eos") \
    X(min_tokens, "min_tokens", ON_BOTH, INT, 0, FIELD_TOKENS, PASSED, "min_tokens") \
    X(include_stop_str_in_output, "include_stop_str_in_output", ON_BOTH, JSON, 0, 0, REFUSED, \
      "false") \
    X(logit_bias, "logit_bias", ON_BOTH, JSON, 0, 0, SERVED, NULL) \
    X(stream, "stream", ON_BOTH, BOOL, 0, 0, SERVED, NULL) \
    X(stream_options, "stream_options", ON_BOTH, JSON, 0, 0, SERVED, NULL) \
    X(stream_interval, "stream_interval", ON_BOTH, INT, 1, 64, SERVED, NULL) \
    X(user, "user", ON_BOTH | ON_EMBEDDINGS, STR, 0, 4096, SERVED, NULL) \
    X(safety_identifier, "safety_identifier", ON_BOTH, JSON, 0, 0, ACCEPTED, NULL) \
    X(metadata, "metadata", ON_BOTH, JSON, 0, 0, ACCEPTED, NULL) \
    X(store, "store", ON_BOTH, BOOL, 0, 0, ACCEPTED, "false") \
    X(service_tier, "service_tier", ON_BOTH, JSON, 0, 0, ACCEPTED, "\"auto\"|\"default\"") \
    X(prompt_cache_key, "prompt_cache_key", ON_BOTH, JSON, 0, 0, ACCEPTED, NULL) \
    X(prompt_cache_retention, "prompt_cache_retention", ON_BOTH, JSON, 0, 0, ACCEPTED, NULL) \
    X(prompt_cache_options, "prompt_cache_options", ON_BOTH, JSON, 0, 0, ACCEPTED, NULL) \
    X(moderation, "moderation", ON_BOTH, JSON, 0, 0, ACCEPTED, "null") \
    X(cache_salt, "cache_salt", ON_BOTH, STR, 1, LAGAN_MAX_SALT, PASSED, "cache_salt") \
    X(priority, "priority", ON_BOTH, INT, -10, 10, SERVED, NULL) \
    X(return_token_ids, "return_token_ids", ON_BOTH, BOOL, 0, 0, SERVED, NULL) \
    X(return_tokens_as_token_ids, "return_tokens_as_token_ids", ON_BOTH, BOOL, 0, 0, SERVED, NULL) \
    X(chat_logprobs, "logprobs", ON_CHAT, BOOL, 0, 0, SERVED, NULL) \
    X(top_logprobs, "top_logprobs", ON_CHAT, INT, 0, 20, SERVED, NULL) \
    X(logprobs, "logprobs", ON_COMPLETIONS, INT, 0, 20, SERVED, NULL) \
    X(prompt_logprobs, "prompt_logprobs", ON_BOTH, INT, 0, 20, SERVED, NULL) \
    X(echo, "echo", ON_COMPLETIONS, BOOL, 0, 0, SERVED, NULL) \
    X(use_beam_search, "use_beam_search", ON_BOTH, BOOL, 0, 0, SERVED, NULL) \
    X(beam_width, "beam_width", ON_BOTH, INT, 1, LAGAN_MAX_BEAMS, SERVED, NULL) \
    X(length_penalty, "length_penalty", ON_BOTH, NUM, -100, 100, PASSED, "length_penalty") \
    X(early_stopping, "early_stopping", ON_BOTH, JSON, 0, 0, SERVED, NULL) \
    X(no_repeat_ngram_size, "no_repeat_ngram_size", ON_BOTH, INT, 0, 1024, PASSED, \
      "no_repeat_ngram") \
    X(decoder_prompt, "decoder_prompt", ON_COMPLETIONS, JSON, 0, 0, SERVED, NULL) \
    X(encoding_format, "encoding_format", ON_EMBEDDINGS, STR, 0, 32, SERVED, NULL) \
    X(add_special_tokens, "add_special_tokens", ON_TOKENIZE, BOOL, 0, 0, SERVED, NULL) \
    X(skip_special_tokens, "skip_special_tokens", ON_BOTH, JSON, 0, 0, REFUSED, "true") \
    X(spaces_between_special_tokens, "spaces_between_special_tokens", ON_BOTH, JSON, 0, 0, \
      REFUSED, "true") \
    X(detokenize, "detokenize", ON_BOTH, JSON, 0, 0, REFUSED, "true") \
    X(truncate_prompt_tokens, "truncate_prompt_tokens", ON_BOTH | ON_EMBEDDINGS, JSON, 0, 0, \
      REFUSED, "") \
    X(bad_words, "bad_words", ON_BOTH, JSON, 0, 0, REFUSED, "[]") \
    X(allowed_token_ids, "allowed_token_ids", ON_BOTH, JSON, 0, 0, REFUSED, "") \
    X(logits_processors, "logits_processors", ON_BOTH, JSON, 0, 0, REFUSED, "[]") \
    X(structured_outputs, "structured_outputs", ON_BOTH, JSON, 0, 0, REFUSED, "") \
    X(response_format, "response_format", ON_BOTH, JSON, 0, 0, REFUSED, "{\"type\":\"text\"}") \
    X(kv_transfer_params, "kv_transfer_params", ON_BOTH, JSON, 0, 0, REFUSED, "") \
    X(vllm_xargs, "vllm_xargs", ON_BOTH, JSON, 0, 0, REFUSED, "{}") \
    X(prompt_embeds, "prompt_embeds", ON_BOTH, JSON, 0, 0, REFUSED, "") \
    X(tools, "tools", ON_MESSAGES, JSON, 0, 0, REFUSED, "[]") \
    X(tool_choice, "tool_choice", ON_CHAT, JSON, 0, 0, REFUSED, "\"none\"|\"auto\"") \
    X(parallel_tool_calls, "parallel_tool_calls", ON_CHAT, BOOL, 0, 0, ACCEPTED, NULL) \
    X(functions, "functions", ON_CHAT, JSON, 0, 0, REFUSED, "[]") \
    X(function_call, "function_call", ON_CHAT, JSON, 0, 0, REFUSED, "\"none\"|\"auto\"") \
    X(reasoning_effort, "reasoning_effort", ON_CHAT, JSON, 0, 0, REFUSED, "") \
    X(include_reasoning, "include_reasoning", ON_CHAT, JSON, 0, 0, REFUSED, "true") \
    X(chat_template, "chat_template", ON_MESSAGES, JSON, 0, 0, REFUSED, "") \
    X(chat_template_kwargs, "chat_template_kwargs", ON_MESSAGES, JSON, 0, 0, REFUSED, "{}") \
    X(add_generation_prompt, "add_generation_prompt", ON_MESSAGES, JSON, 0, 0, REFUSED, "true") \
    X(continue_final_message, "continue_final_message", ON_MESSAGES, JSON, 0, 0, REFUSED, "false") \
    X(documents, "documents", ON_CHAT, JSON, 0, 0, REFUSED, "[]") \
    X(verbosity, "verbosity", ON_CHAT, JSON, 0, 0, REFUSED, "\"medium\"") \
    X(modalities, "modalities", ON_CHAT, JSON, 0, 0, REFUSED, "[\"text\"]") \
    X(audio, "audio", ON_CHAT, JSON, 0, 0, REFUSED, "") \
    X(prediction, "prediction", ON_CHAT, JSON, 0, 0, REFUSED, "") \
    X(web_search_options, "web_search_options", ON_CHAT, JSON, 0, 0, REFUSED, "") \
    X(chat_echo, "echo", ON_CHAT, JSON, 0, 0, REFUSED, "false") \
    X(suffix, "suffix", ON_COMPLETIONS, JSON, 0, 0, REFUSED, "\"\"") \
    X(source_lang, "source_lang", ON_COMPLETIONS, JSON, 0, 0, REFUSED, "") \
    X(target_lang, "target_lang", ON_COMPLETIONS, STR, 1, 64, SERVED, NULL) \
    X(target_langs, "target_langs", ON_COMPLETIONS, JSON, 0, 0, REFUSED, "[]") \
    X(dimensions, "dimensions", ON_EMBEDDINGS, JSON, 0, 0, REFUSED, "") \
    X(return_token_strs, "return_token_strs", ON_TOKENIZE, JSON, 0, 0, REFUSED, "false") \
    X(lora, "lora*", ON_BOTH | ON_EMBEDDINGS, JSON, 0, 0, REFUSED, "") \
    X(adapter, "adapter*", ON_BOTH | ON_EMBEDDINGS, JSON, 0, 0, REFUSED, "") \
    X(guided, "guided_*", ON_BOTH, JSON, 0, 0, REFUSED, "")
/* clang-format on */

enum field {
#define X(id, ...) F_##id,
    API_FIELDS(X)
#undef X
        N_FIELDS
};

struct field_row {
    const char *name; /* ends with '*': every name that begins so */
    unsigned routes;
    enum field_kind kind;
    double least, most;
    enum field_use use;
    const char *arg;
};
extern const struct field_row field_rows[N_FIELDS];

/* The value of one field. */
struct value {
    bool given;
    union {
        bool b;
        int64_t i;
        double f;
    };
    struct http_text raw; /* as in the body; of FIELD_STR with its quotes */
};

/* Returns the field of this name on a route (one of ON_...); N_FIELDS: there is none. */
enum field field_find(unsigned route, const char *name, size_t n);
/* Checks raw, a valid JSON value that is not null, and fills *ret. Returns 0; 1: the value has no
 * effect and is to be named as ignored; -EINVAL with *f. name: as the client wrote it. */
int field_read(enum field field, struct http_text raw, const char *name, struct value *ret,
               struct fault *f) MUST_USE;
