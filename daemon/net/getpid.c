/* getpid.c - replaces libc's getpid() by a function that asks the kernel only once.
 *
 * libzmq calls getpid() at each use of a mailbox, to detect a fork: 7 of the 22 system calls of one
 * step for a tcp client. The linker uses this function instead. The pid never changes: the vfork()
 * child of spawn.c only calls getppid() and execs, and a re-exec keeps the pid. */

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
