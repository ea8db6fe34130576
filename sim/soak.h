/* soak.h - lagan-sim soak: worlds drawn from a seed, lived through twice.
 *
 * A world is a setting (groups, limits, policy, lanes), some workers, requests of mixed kinds and what meddles
 * with them: cancels, any_suspended, early ends, deaths. Checked in each:
 *
 *     every request ends exactly once           fleet.c counts, and stops the program otherwise
 *     blocks are conserved                      scheduler_check(), kv_check() now and then; at the end none is used
 *     nobody starves                            before it begins, no request is passed over by more others than
 *                                               its worker has slots; others: of its client, that came later and are
 *                                               not more urgent. Over one that needs pages of an adapter those who need
 *                                               none may go, they take nothing from it (scenario C-05)
 *     the same calls give the same decisions    the second life has the digest of the first
 */
#ifndef SIM_SOAK_H
#define SIM_SOAK_H

int soak_main(int argc, char **argv); /* behind the command; an exit code */

#endif
