/* soak.h - lagan-sim soak: runs random simulated systems (worlds), each twice, and checks them.
 *
 * A world is a random configuration (groups, limits, policy, lanes), some workers, mixed requests
 * and faults: cancels, suspended clients, early ends, crashes. Checked in each world:
 *
 *     every request ends exactly once   counted in fleet.c, which aborts otherwise
 *     blocks are conserved              scheduler_check() and kv_check() run regularly; at the end
 *                                       no block is used
 *     no request starves                before it starts, a request is overtaken by at most as many
 *                                       others as its worker has slots. Counted are later requests
 *                                       of the same client with at most equal priority, but not
 *                                       those without an adapter if the request waits for adapter
 *                                       pages (scenario C-05)
 *     equal calls, equal decisions      the digests of both runs are equal
 */
#pragma once

int soak_main(int argc, char **argv); /* arguments after the command; returns an exit code */
