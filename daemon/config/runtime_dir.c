/* runtime_dir.c - see runtime_dir.h.
 *
 * The socket file of a killed lagand stays, and libzmq unlinks any file at a path that it binds. So
 * lagand first locks the directory, then checks each path before it is bound. */
#include "daemon/config/runtime_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

void
runtime_dir_path(const struct runtime_dir *r, const char *name, char path[RUNTIME_PATH])
{
    snprintf(path, RUNTIME_PATH, "%s/%s", r->dir, name);
}

static int
busy(const struct runtime_dir *r, struct err *e)
{
    char pid[16] = "?";
    ssize_t n = pread(r->lock, pid, sizeof pid - 1, 0);

    if (n > 0) pid[strcspn(pid, "\n")] = 0;
    return err_set(e, -EBUSY, "another lagand (pid %s) uses the runtime directory %s", pid, r->dir);
}

/* Opens and locks DIR/lagand.lock. If another lagand unlinks the file between open and flock, the
 * locked file has no name any more: tries again. */
static int
take_lock(struct runtime_dir *r, struct err *e)
{
    char path[RUNTIME_PATH], pid[16];
    int n = snprintf(pid, sizeof pid, "%d\n", (int)getpid());

    runtime_dir_path(r, "lagand.lock", path);
    for (;;) {
        struct stat named, held;

        r->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (r->lock < 0) {
            return err_set(e, -errno, "runtime directory %s: cannot open lagand.lock in it: %s",
                           r->dir, strerror(errno));
        }
        if (flock(r->lock, LOCK_EX | LOCK_NB) < 0) {
            int code = errno == EWOULDBLOCK
                           ? busy(r, e)
                           : err_set(e, -errno, "cannot lock %s: %s", path, strerror(errno));
            close(r->lock);
            return code;
        }
        if (stat(path, &named) == 0 && fstat(r->lock, &held) == 0 && named.st_ino == held.st_ino &&
            named.st_dev == held.st_dev)
            break;
        close(r->lock);
    }
    if (ftruncate(r->lock, 0) < 0 || pwrite(r->lock, pid, (size_t)n, 0) != n) {
        int code = err_set(e, -errno, "cannot write %s: %s", path, strerror(errno));

        unlink(path); /* before the close ends the lock: see take_lock() */
        close(r->lock);
        return code;
    }
    return 0;
}

/* Removes the control sockets of a killed lagand from DIR/w. The caller holds the lock. */
static void
sweep(const struct runtime_dir *r)
{
    char path[RUNTIME_PATH], file[640];
    DIR *d;

    runtime_dir_path(r, "w", path);
    d = opendir(path);
    if (!d) return;
    for (struct dirent *f; (f = readdir(d));) {
        struct stat st;

        snprintf(file, sizeof file, "%s/%s", path, f->d_name);
        if (lstat(file, &st) == 0 && S_ISSOCK(st.st_mode)) unlink(file);
    }
    closedir(d);
}

int
runtime_dir_open(struct runtime_dir *r, const char *dir, struct err *e)
{
    char path[RUNTIME_PATH];
    int k;

    *r = (struct runtime_dir){ .lock = -1 };
    if (strlen(dir) > RUNTIME_DIR_MAX)
        return err_set(e, -ENAMETOOLONG,
                       "runtime directory %.160s: the path has %zu bytes; at most %d are allowed, "
                       "because sockets are made in it",
                       dir, strlen(dir), RUNTIME_DIR_MAX);
    snprintf(r->dir, sizeof r->dir, "%s", dir);
    if (mkdir(dir, 0750) == 0)
        r->made_dir = true;
    else if (errno != EEXIST)
        return err_set(e, -errno, "cannot create runtime directory %s: %s", dir, strerror(errno));
    k = take_lock(r, e);
    if (k < 0) {
        r->lock = -1;
        if (r->made_dir) rmdir(dir);
        return k;
    }
    runtime_dir_path(r, "w", path);
    if (mkdir(path, 0700) < 0 && errno != EEXIST) {
        int code = err_set(e, -errno, "cannot create %s: %s", path, strerror(errno));

        runtime_dir_close(r);
        return code;
    }
    sweep(r);
    return 0;
}

/* Reads the first line of a file. Returns false if there is none. */
static bool
read_line(const char *path, char *line, size_t n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    ssize_t k = fd < 0 ? -1 : read(fd, line, n - 1);

    if (fd >= 0) close(fd);
    line[MAX(k, (ssize_t)0)] = 0;
    line[strcspn(line, "\n")] = 0;
    return k > 0;
}

int
runtime_dir_owner(const char *dir)
{
    char path[RUNTIME_PATH], line[32];
    int pid;

    if (snprintf(path, sizeof path, "%s/lagand.lock", dir) >= (int)sizeof path) return 0;
    pid = read_line(path, line, sizeof line) ? atoi(line) : 0;
    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    return pid > 0 && read_line(path, line, sizeof line) && !strcmp(line, "lagand") ? pid : 0;
}

void
runtime_dir_close(struct runtime_dir *r)
{
    char path[RUNTIME_PATH];

    if (r->lock < 0) return;
    runtime_dir_path(r, "w", path);
    rmdir(path);
    runtime_dir_path(r, "lagand.lock", path);
    unlink(path); /* before the close ends the lock: see take_lock() */
    close(r->lock);
    r->lock = -1;
    if (r->made_dir) rmdir(r->dir);
}

int
runtime_dir_vacate(const struct runtime_dir *r, const char *name, struct err *e)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    char path[RUNTIME_PATH];
    struct stat st;
    int fd, n;

    runtime_dir_path(r, name, path);
    if (lstat(path, &st) < 0) {
        if (errno == ENOENT) return 0;
        return err_set(e, -errno, "%s: %s", path, strerror(errno));
    }
    if (!S_ISSOCK(st.st_mode)) {
        return err_set(
            e, -EEXIST,
            "%s exists and is not a socket; remove it or choose another runtime directory", path);
    }
    check(strlen(path) <= SOCKET_PATH_MAX);
    memcpy(a.sun_path, path, strlen(path) + 1);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return err_set(e, -errno, "%s: cannot create a socket: %s", path, strerror(errno));
    n = connect(fd, (struct sockaddr *)&a, sizeof a);
    n = n < 0 ? errno : 0;
    close(fd);
    if (n == 0 || n == EAGAIN)
        return err_set(e, -EADDRINUSE, "%s: another program listens on this socket", path);
    if (n != ECONNREFUSED) return err_set(e, -n, "cannot connect to %s: %s", path, strerror(n));
    if (unlink(path) < 0) return err_set(e, -errno, "cannot remove %s: %s", path, strerror(errno));
    return 0;
}
