/* errors.c - see errors.h. */
#include "gateway/api/errors.h"

#include "include/lagan_wire.h"

#include <stdarg.h>
#include <stdio.h>

const struct api_error_row api_error_rows[API_N_ERRORS] = {
#define X(name, status, type, code, after, retry, sentence) \
    { status, type, code, after, retry, sentence },
    API_ERRORS(X)
#undef X
};

int
fault_set(struct fault *f, enum api_error error, const char *param, const char *fmt, ...)
{
    va_list ap;

    f->error = error;
    snprintf(f->param, sizeof f->param, "%s", param ? param : "");
    va_start(ap, fmt);
    vsnprintf(f->text, sizeof f->text, fmt, ap);
    va_end(ap);
    return -EINVAL;
}

enum api_error
error_of_lagan(uint32_t reason)
{
    switch (reason) {
    case LAGAN_E_INVALID_REQUEST:
        return API_E_INVALID_REQUEST;
    case LAGAN_E_TOO_LONG:
        return API_E_TOO_LONG;
    case LAGAN_E_QUEUE_FULL:
        return API_E_QUEUE_FULL;
    case LAGAN_E_DEADLINE:
        return API_E_DEADLINE;
    case LAGAN_E_CANCELLED:
        return API_E_CANCELLED;
    case LAGAN_E_DRAINING:
        return API_E_DRAINING;
    case LAGAN_E_MODEL_NOT_FOUND:
        return API_E_MODEL_NOT_FOUND;
    case LAGAN_E_UNAUTHORIZED:
        return API_E_REFUSED;
    case LAGAN_E_WORKER_LOST:
        return API_E_WORKER_LOST;
    case LAGAN_E_POISONED:
        return API_E_POISONED;
    case LAGAN_E_OUT_OF_MEMORY:
        return API_E_OUT_OF_MEMORY;
    case LAGAN_E_DEVICE_LOST:
        return API_E_DEVICE_LOST;
    case LAGAN_E_UNSUPPORTED:
        return API_E_UNSUPPORTED;
    case LAGAN_E_NOT_FOUND:
        return API_E_NOT_FOUND;
    /* SLOW_READER closes the connection instead; CONFIGURATION is no error of a request */
    default:
        return API_E_INTERNAL;
    }
}

enum api_error
error_of_status(int status)
{
    switch (status) {
    case 405:
        return API_E_BAD_METHOD;
    case 408:
        return API_E_SLOW_SENDER;
    case 411:
        return API_E_NO_LENGTH;
    case 413:
        return API_E_BODY_TOO_LARGE;
    case 414:
        return API_E_URI_TOO_LONG;
    case 415:
        return API_E_MEDIA_TYPE;
    case 431:
        return API_E_HEADERS_TOO_LARGE;
    case 500:
        return API_E_INTERNAL;
    case 503:
        return API_E_CONNECTIONS;
    default:
        return API_E_BAD_HTTP;
    }
}

void
error_body(struct out *o, const struct fault *f)
{
    const struct api_error_row *row = &api_error_rows[f->error];

    out_put(o, "{\"error\":{\"message\":");
    out_string(o, f->text, strlen(f->text));
    out_format(o, ",\"type\":\"%s\",\"param\":", row->type);
    if (f->param[0])
        out_string(o, f->param, strlen(f->param));
    else
        out_put(o, "null");
    out_format(o, ",\"code\":\"%s\"}}", row->code);
}

void
error_fields(struct out *o, enum api_error error, uint32_t seconds, uint32_t jitter)
{
    const struct api_error_row *row = &api_error_rows[error];

    if (seconds)
        out_format(o, "Retry-After: %u\r\nRetry-After-Ms: %u\r\n", seconds,
                   seconds * (800 + jitter));
    if (row->should_retry) out_format(o, "X-Should-Retry: %s\r\n", row->should_retry);
    if (error == API_E_INVALID_KEY) out_put(o, "WWW-Authenticate: Bearer\r\n");
}
