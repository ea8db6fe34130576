/* metrics.h - counters of the gateway, and the text of /metrics.
 *
 * The text is the gateway's own metrics, lagand's text unchanged, and the numbers of both that
 * other programs read under vLLM's names. lagand is asked at most every 100 ms; if lagand is not
 * reachable, its part is absent and lagan_gateway_lagand_up is 0. */
#pragma once
#include "gateway/api/out.h"
#include "gateway/http/http.h"
#include "include/lagan.h"

struct api;
struct api_summary;
struct metrics;

struct metrics *metrics_new(void) MUST_USE; /* NULL: no memory */
void metrics_free(struct metrics *m);       /* NULL is allowed */

/* route and reason live as long as the program. */
void metrics_request(struct metrics *m, const char *route, int status, const char *reason,
                     bool stream);
void metrics_http_error(struct metrics *m, const char *rule);
/* n tokens of a model have arrived. to_first: since the head of the request, 0: they are not the
 * first; since_last: since the tokens before of the same output, 0: none were. */
void metrics_tokens(struct metrics *m, const char *model, uint32_t n, nsec to_first,
                    nsec since_last);
void metrics_event(struct metrics *m, uint32_t n_tokens); /* an event of a stream was written */
void metrics_ended(struct metrics *m, const struct api_summary *s, const char *model, nsec now);
/* Returns the seconds after which n open requests have ended, at the rate of the last 10 s: 1 to
 * 60. */
uint32_t metrics_drain_time(const struct metrics *m, nsec now, uint32_t n);
