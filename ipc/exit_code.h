/* exit_code.h - exit codes of lagand and lagan-worker; lagand derives the cause of a worker's death
 * from its code. laganctl has the codes of its commands in ctl/ctl.h. */
#pragma once

enum exit_code {
    EXIT_USAGE = 2,
    EXIT_UNAVAILABLE = 69,
    EXIT_INTERNAL = 70,
    EXIT_NO_MEMORY = 71, /* not free now; a later start may find it */
    EXIT_DEVICE = 74,
    EXIT_NO_PERMISSION = 77,
    EXIT_CONFIG = 78,  /* a restart would end the same way */
    EXIT_REFUSED = 125 /* permanent failure, by the convention of s6 */
};
