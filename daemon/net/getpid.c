/* getpid.c - getpid() that asks the kernel once.
 *
 * libzmq asks who we are whenever it looks into a mailbox or signals one, to find out that somebody has forked:
 * for a client over tcp seven of 22 system calls a step. The linker gives it this one instead. lagand has no fork(): what spawn.c makes
 * by vfork() asks for its parent and execs, and a lagand that begins again keeps its number.
 */
#include "base/base.h"

#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((visibility("default"))) pid_t
getpid(void)
{
    static _Atomic pid_t own;
    pid_t pid = atomic_load_explicit(&own, memory_order_relaxed);

    if (!pid) {
        pid = (pid_t)syscall(SYS_getpid);
        atomic_store_explicit(&own, pid, memory_order_relaxed);
    }
    return pid;
}
