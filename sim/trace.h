/* trace.h - requests with their times of arrival, a JSON object a line.
 *
 *     {"arrival_s": 0.25, "isl": 900, "osl": 210, "prefix_id": 3, "prefix_len": 600, "session": 12, "turn": 1}
 *
 * isl   tokens of the prompt; with "encdec": true of the source, and the decoder begins with one token
 * osl   tokens to generate
 * What the prompt says follows from numbers: its first prefix_len tokens are those of prefix_id, the rest
 * those of the session, the answers of its turns included; without a session they are its own.
 * Also "priority" (0 .. 1), "client" and "lora" (numbers). Other keys are not looked at. Lines are in order of arrival,
 * and of at most TRACE_MAX_LINE bytes.
 */
#ifndef SIM_TRACE_H
#define SIM_TRACE_H

#include "base/base.h"
#include "base/err.h"

#define TRACE_NONE UINT64_MAX
enum { TRACE_MAX_LINE = 1 << 20 }; /* a file without line ends is found out here */

struct trace_line {
    nsec arrival;
    uint32_t isl, osl, prefix_len;
    uint64_t prefix_id, session; /* TRACE_NONE: none */
    uint32_t client, lora;       /* lora 0: none */
    float priority;
    bool encdec;
};

struct trace;
int trace_open(struct trace **ret, const char *path,
               struct err *e) MUST_USE; /* "-": standard input */
struct trace *trace_close(struct trace *t);
CLEAN_FUNC(struct trace, trace_close)
/* 1: the next request. 0: there is none. -EBADMSG, -EIO: with file and line. */
int trace_next(struct trace *t, struct trace_line *ret, struct err *e) MUST_USE;

#endif
