/* soak.h - lagan-sim soak: random simulated systems, each run twice.
 *
 * A world is a random configuration (groups, limits, policy, lanes), some workers, mixed requests
 * and faults: cancels, suspended clients, early ends, crashes. Checked in each:
 *
 *     every request ends exactly once    counted in fleet.c; aborts otherwise
 *     blocks are conserved               scheduler_check() and kv_check() regularly; at the end no
 *                                        block is used
 *     no request starves                 before it starts, a request is overtaken by at most as
 *                                        many others as its worker has slots. Counted are later
 *                                        requests of its client with at most equal priority, except
 *                                        that requests without an adapter may overtake one that
 *                                        waits for pages (scenario C-05)
 *     equal calls, equal decisions       the digests of both runs are equal
 */
#pragma once

int soak_main(int argc, char **argv); /* arguments after the command; returns an exit code */
