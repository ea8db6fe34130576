/* ctl_fixture.h - fixture: runs laganctl against mock_lagand and keeps what it prints.
 *
 * --spawn is tested with a copy of laganctl beside a script named lagand, whose behaviour $FAKE
 * selects. */
#pragma once
#include "tests/client/client_fixture.h"

#include <jansson.h>
#include <string.h>

extern char out[1 << 16], err[1 << 16]; /* output of the last command */

int ctl_setup(void **state); /* of a group of tests */
int ctl_teardown(void **state);
/* Runs a shell line; $L is laganctl connected to the mock, $D the directory of the mock. Returns
 * the exit code. */
int sh(const char *line);
/* Line i of out, parsed as JSON; the caller releases it. */
json_t *line_of(int i);

#define assert_has(text, words) \
    do { \
        if (!strstr(text, words)) fail_msg("'%s' does not say '%s'", text, words); \
    } while (0)
