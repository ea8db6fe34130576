/* errors.h - the errors of the API: one table for responses, metrics and the manual.
 *
 * Body: {"error":{"message":"...","type":"...","param":null,"code":"..."}}. */
#pragma once
#include "gateway/api/out.h"
#include "gateway/http/http.h"

/* Columns: identifier, HTTP status, type, code, seconds of Retry-After (0: none), retry: what
 * X-Should-Retry says (NULL: the header is absent), sentence of the manual. */
#define API_REQUEST "invalid_request_error"
#define API_SERVER "server_error"
/* clang-format off */
#define API_ERRORS(X) \
    X(INVALID_REQUEST, 400, API_REQUEST, "invalid_request", 0, NULL, \
      "lagand refused a value or a combination of values") \
    X(INVALID_TYPE, 400, API_REQUEST, "invalid_type", 0, NULL, \
      "a field has a value of another JSON type") \
    X(INVALID_VALUE, 400, API_REQUEST, "invalid_value", 0, NULL, \
      "a value is out of its range") \
    X(MISSING, 400, API_REQUEST, "missing_required_parameter", 0, NULL, \
      "a required field is absent") \
    X(UNKNOWN_PARAMETER, 400, API_REQUEST, "unknown_parameter", 0, NULL, \
      "with `strict`: the route has no field of this name") \
    X(INVALID_JSON, 400, API_REQUEST, "invalid_json", 0, NULL, \
      "the body is not one valid JSON text") \
    X(TOO_LONG, 400, API_REQUEST, "context_length_exceeded", 0, NULL, \
      "the request exceeds the length of the model") \
    X(UNSUPPORTED, 400, API_REQUEST, "unsupported", 0, NULL, \
      "the field or the value is not served") \
    X(INVALID_KEY, 401, API_REQUEST, "invalid_api_key", 0, NULL, \
      "the API key is absent or unknown") \
    X(MODEL_NOT_FOUND, 404, API_REQUEST, "model_not_found", 0, NULL, \
      "no model of this name is served") \
    X(UNKNOWN_URL, 404, API_REQUEST, "unknown_url", 0, NULL, \
      "there is no such path") \
    X(UNSUPPORTED_URL, 404, API_REQUEST, "unsupported", 0, NULL, \
      "the path is known but not served") \
    X(NOT_FOUND, 404, API_REQUEST, "not_found", 0, "false", \
      "there is no such request") \
    X(BAD_METHOD, 405, API_REQUEST, "method_not_allowed", 0, NULL, \
      "the path does not have this method") \
    X(SLOW_SENDER, 408, API_REQUEST, "request_timeout", 0, NULL, \
      "the client sent its request too slowly") \
    X(DEADLINE, 408, "timeout_error", "deadline", 0, "false", \
      "the deadline of the request passed") \
    X(NO_LENGTH, 411, API_REQUEST, "length_required", 0, NULL, \
      "a POST needs Content-Length or chunks") \
    X(BODY_TOO_LARGE, 413, API_REQUEST, "body_too_large", 0, NULL, \
      "the body exceeds `max_body`") \
    X(URI_TOO_LONG, 414, API_REQUEST, "uri_too_long", 0, NULL, \
      "the target exceeds `max_url`") \
    X(MEDIA_TYPE, 415, API_REQUEST, "unsupported_media_type", 0, NULL, \
      "the body is not JSON, or is compressed") \
    X(POISONED, 422, API_REQUEST, "poisoned", 0, NULL, \
      "the request made several workers fail") \
    X(QUEUE_FULL, 429, "rate_limit_error", "queue_full", 1, NULL, \
      "the queue of lagand or a limit of open requests is full") \
    X(HEADERS_TOO_LARGE, 431, API_REQUEST, "headers_too_large", 0, NULL, \
      "the headers exceed `max_header` or `max_headers`") \
    X(INTERNAL, 500, API_SERVER, "internal", 0, NULL, \
      "an error inside lagan; the journal has details") \
    X(REFUSED, 502, API_SERVER, "lagand_refused", 0, NULL, \
      "lagand does not allow this to the gateway") \
    X(CANCELLED, 503, API_SERVER, "cancelled", 0, "false", \
      "an operator cancelled the request") \
    X(WORKER_LOST, 503, API_SERVER, "worker_lost", 1, NULL, \
      "the worker failed and the request could not continue") \
    X(DEVICE_LOST, 503, API_SERVER, "device_lost", 1, NULL, \
      "the GPU is no longer available") \
    X(OUT_OF_MEMORY, 503, API_SERVER, "out_of_memory", 1, NULL, \
      "memory is exhausted") \
    X(DRAINING, 503, API_SERVER, "draining", 5, NULL, \
      "lagand or the gateway stops") \
    X(LOADING, 503, API_SERVER, "loading", 5, NULL, \
      "the model is not loaded yet") \
    X(UNREACHABLE, 503, API_SERVER, "lagand_unreachable", 1, NULL, \
      "lagand is not reachable") \
    X(CONNECTIONS, 503, API_SERVER, "too_many_connections", 1, NULL, \
      "all connections have running requests") \
    X(BAD_HTTP, 400, API_REQUEST, "bad_http", 0, NULL, \
      "the request violates a rule of HTTP")
/* clang-format on */

enum api_error {
#define X(name, ...) API_E_##name,
    API_ERRORS(X)
#undef X
        API_N_ERRORS
};

struct api_error_row {
    int status;
    const char *type, *code;
    unsigned retry_after;
    const char *should_retry, *sentence;
};
extern const struct api_error_row api_error_rows[API_N_ERRORS];

/* A fault of one request. */
struct fault {
    enum api_error error;
    char param[96];  /* path of the field; "": none */
    char text[1024]; /* a sentence for the client */
};

/* Fills *f and returns -EINVAL. param: NULL is "". */
int fault_set(struct fault *f, enum api_error error, const char *param, const char *fmt, ...)
    PRINTF_LIKE(4, 5);

/* Returns the error of an ERROR event, whose reason is an error of LAGAN_ERRORS. */
enum api_error error_of_lagan(uint32_t reason);
/* Returns the error of HTTP itself with this status. */
enum api_error error_of_status(int status);
/* Writes {"error":{...}}. */
void error_body(struct out *o, const struct fault *f);
/* Writes the header lines of a response with this error. seconds: of Retry-After, 0: none. jitter:
 * 0 to 399, changes Retry-After-Ms by up to 20 %, so that refused clients do not retry in the same
 * moment. */
void error_fields(struct out *o, enum api_error error, uint32_t seconds, uint32_t jitter);
