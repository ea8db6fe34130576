/* cuda_error.c - the functions on which all files of the CUDA device depend: they make the device
 * current, translate errors into messages and close the descriptors of the driver on exec.
 */
#include "gpu/cuda/cuda.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

void
cuda_enter(const struct cuda *c)
{
    static _Thread_local int current = -1;

    if (current == c->ordinal) return;
    if (cudaSetDevice(c->ordinal) == cudaSuccess) current = c->ordinal;
}

const char *
cuda_driver_says(const struct cuda *c, CUresult r)
{
    const char *text = NULL;

    if (c->driver.cuGetErrorString(r, &text) != CUDA_SUCCESS || !text) return "unknown error";
    return text;
}

int
cuda_failed(struct lane *lane, cudaError_t r, const char *what)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;

    if (r == cudaSuccess) return 0;
    cudaGetLastError();
    /* A call that cannot be recorded is no device failure: the step can run without a graph. */
    if (!l->recording) l->error = -EIO;
    return err_set(&lane->gpu->why, -EIO, "%s: %s: %s", lane->gpu->describe, what,
                   cudaGetErrorString(r));
}

int
cuda_not_recording(struct lane *lane, const char *what)
{
    if (!((struct cuda_lane *)lane)->recording) return 0;
    return err_set(&lane->gpu->why, -EINVAL,
                   "%s is not possible while a graph is being recorded (internal error)", what);
}

bool
cuda_driver_call(void **ret, const char *name, unsigned version)
{
    enum cudaDriverEntryPointQueryResult how;

    if (cudaGetDriverEntryPointByVersion(name, ret, version, cudaEnableDefault, &how) ==
            cudaSuccess &&
        how == cudaDriverEntryPointSuccess)
        return true;
    cudaGetLastError();
    return false;
}

void
cuda_close_on_exec(void)
{
    DIR *dir = opendir("/proc/self/fd");
    const struct dirent *d;

    while (dir && (d = readdir(dir))) {
        char target[64];
        ssize_t n = readlinkat(dirfd(dir), d->d_name, target, sizeof target - 1);

        if (n < 0) continue;
        target[n] = '\0';
        if (strncmp(target, "/dev/nvidia", 11) == 0) fcntl(atoi(d->d_name), F_SETFD, FD_CLOEXEC);
    }
    if (dir) closedir(dir);
}
