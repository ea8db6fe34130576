/* heritage.c - see heritage.h. */
#include "ipc/heritage.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>

/* Returns true for a valid descriptor name: 1 to 15 lower-case letters, digits and '_'. */
static bool
good_name(const char *s, size_t n)
{
    if (n == 0 || n >= sizeof(((struct heritage_fd *)0)->name)) return false;
    return strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_") >= n;
}

static int
take_epoch(uint64_t *ret, const char *s, struct err *e)
{
    unsigned long long v;
    char *end;

    errno = 0;
    v = strtoull(s, &end, 10);
    if (*s < '0' || *s > '9' || *end || errno || v == 0) {
        return err_set(e, -EBADMSG, "LAGAN_EPOCH=\"%.40s\" is not a number of 1 or more", s);
    }
    *ret = v;
    return 0;
}

static int
take_cache_key(uint64_t ret[4], const char *s, struct err *e)
{
    int n = 0;

    if (!s) return 0;
    if (strspn(s, "0123456789abcdef") == 64 &&
        sscanf(s, "%16" SCNx64 "%16" SCNx64 "%16" SCNx64 "%16" SCNx64 "%n", &ret[0], &ret[1],
               &ret[2], &ret[3], &n) == 4 &&
        !s[n])
        return 0;
    return err_set(e, -EBADMSG, "LAGAN_CACHE_KEY is not a number of 64 hexadecimal digits");
}

int
heritage_take(struct heritage *h, struct err *e)
{
    const char *names = getenv("LAGAN_FDNAMES"), *epoch = getenv("LAGAN_EPOCH");
    struct heritage got = { .n = 0 };

    if (!names && !epoch) {
        return err_set(
            e, -ENOENT,
            "this program has inherited no descriptors; start it with lagand or laganctl --spawn");
    }
    if (!names) return err_set(e, -EBADMSG, "LAGAN_EPOCH is set and LAGAN_FDNAMES is not");
    if (!epoch) return err_set(e, -EBADMSG, "LAGAN_FDNAMES is set and LAGAN_EPOCH is not");
    TRY(take_epoch(&got.epoch, epoch, e));
    TRY(take_cache_key(got.cache_key, getenv("LAGAN_CACHE_KEY"), e));
    for (const char *s = names;; s++) {
        size_t n = strcspn(s, ":");
        struct heritage_fd *f = &got.at[got.n];

        if (got.n == HERITAGE_MAX) {
            return err_set(e, -EBADMSG, "LAGAN_FDNAMES has more than %d names", HERITAGE_MAX);
        }
        if (!good_name(s, n)) {
            return err_set(e, -EBADMSG, "LAGAN_FDNAMES: \"%.*s\" is not a name of a descriptor",
                           (int)MIN(n, 40u), s);
        }
        memcpy(f->name, s, n);
        f->fd = HERITAGE_FIRST + (int)got.n;
        if (heritage_fd(&got, f->name) >= 0) {
            return err_set(e, -EBADMSG, "LAGAN_FDNAMES names %s twice", f->name);
        }
        if (fcntl(f->fd, F_SETFD, FD_CLOEXEC) < 0) {
            return err_set(e, -EBADMSG,
                           "LAGAN_FDNAMES gives fd %d the name %s, but the fd is not open: %s",
                           f->fd, f->name, strerror(errno));
        }
        got.n++;
        s += n;
        if (!*s) break;
    }
    *h = got;
    return 0;
}

int
heritage_fd(const struct heritage *h, const char *name)
{
    for (uint32_t i = 0; i < h->n; i++) {
        if (strcmp(h->at[i].name, name) == 0) return h->at[i].fd;
    }
    return -1;
}

int
heritage_env(const struct heritage *h, char *buf, size_t n)
{
    size_t used = (size_t)snprintf(buf, n, "LAGAN_FDNAMES=");

    check(h->n >= 1 && h->n <= HERITAGE_MAX);
    for (uint32_t i = 0; i < h->n; i++) {
        check(good_name(h->at[i].name, strnlen(h->at[i].name, sizeof h->at[i].name)));
        if (used >= n) return -EMSGSIZE;
        used += (size_t)snprintf(buf + used, n - used, "%s%s", i ? ":" : "", h->at[i].name);
    }
    return used < n ? 0 : -EMSGSIZE;
}
