/* trace.h - reads a trace file: requests with arrival times, one JSON object per line.
 *
 *     {"arrival_s": 0.25, "isl": 900, "osl": 210, "prefix_id": 3, "prefix_len": 600, "session": 12}
 *
 * isl: prompt tokens; with "encdec": true encoder input tokens, and the decoder prompt has one
 * token. osl: tokens to generate. Token ids are derived from numbers: the first prefix_len tokens
 * from prefix_id, the rest from the session, whose earlier outputs they include, or without a
 * session from the request. Also "priority" (0 .. 1), "client" and "lora" (numbers). Other keys are
 * ignored. Lines are in order of arrival and have at most TRACE_MAX_LINE bytes.
 */
#pragma once
#include "base/base.h"
#include "base/err.h"

#define TRACE_NONE UINT64_MAX
enum { TRACE_MAX_LINE = 1 << 20 }; /* bytes; a longer line means that the file is no trace */

struct trace_line {
    nsec arrival;
    uint32_t isl, osl, prefix_len;
    uint64_t prefix_id, session; /* TRACE_NONE: none */
    uint32_t client, lora;       /* lora 0: none */
    float priority;
    bool encdec;
};

struct trace;
/* Opens the trace file `path`; "-": standard input. */
int trace_open(struct trace **ret, const char *path, struct err *e) MUST_USE;
struct trace *trace_close(struct trace *t);
CLEAN_FUNC(struct trace, trace_close)
/* Reads the next request. 1: *ret is set; 0: end of file; -EBADMSG, -EIO: e has file and line. */
int trace_next(struct trace *t, struct trace_line *ret, struct err *e) MUST_USE;
