/* arenas.c - see arenas.h. */
#include "daemon/supervise/arenas.h"

#include "base/clock.h"
#include "daemon/persist/fdstore.h"

#include <sys/stat.h>
#include <unistd.h>

static const nsec STRIKE_TIME = 60 * NSEC_S;

void
arenas_drop(struct arenas *a, const char *name)
{
    char stored[FDSTORE_NAME];

    for (uint32_t i = 0; i < a->n;) {
        const struct fd_channel_note *note = &a->at[i].note;

        if (name && strcmp(note->name, name)) {
            i++;
            continue;
        }
        if ((note->flags & FD_CHANNEL_COMPLETE) && fdstore_arena_name(stored, a->worker, note) == 0)
            fdstore_drop(stored);
        close(a->at[i].fd);
        a->at[i] = a->at[--a->n];
    }
}

void
arenas_drop_kv(struct arenas *a)
{
    arenas_drop(a, "kv");
    arenas_drop(a, "manifest");
    for (uint32_t i = 0; i < FD_CHANNEL_HOSTS; i++) {
        char host[FD_CHANNEL_NAME];

        fd_channel_host(host, i);
        arenas_drop(a, host);
    }
}

uint64_t
arenas_bytes(const struct arenas *a, const char *name)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < a->n; i++)
        if (!name || !strcmp(a->at[i].note.name, name)) bytes += a->at[i].note.bytes;
    return bytes;
}

void
arenas_close(struct arenas *a)
{
    while (a->n) close(a->at[--a->n].fd);
}

/* Checks the size of a regular file only, because fstat() reports no size for device memory. */
int
arenas_keep(struct arenas *a, const struct fd_channel_note *note, int fd, struct err *e)
{
    struct stat st;

    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size < note->bytes)
        return err_set(e, -EBADMSG,
                       "fd channel: the file of arena %s has %llu bytes; the worker announced %llu",
                       note->name, (unsigned long long)st.st_size, (unsigned long long)note->bytes);
    arenas_drop(a, note->name);
    if (a->n == MAX_ARENAS)
        return err_set(e, -EBADMSG, "fd channel: the worker sent more than %d arenas", MAX_ARENAS);
    a->at[a->n].note = *note;
    a->at[a->n].note.flags &= FD_CHANNEL_COMPLETE;
    a->at[a->n++].fd = fd;
    return 0;
}

int
arenas_take(struct arenas *a, int sock, struct err *e)
{
    for (;;) {
        char stored[FDSTORE_NAME];
        struct fd_channel_note note;
        int fd, r = fd_channel_take(sock, &note, &fd, e);

        if (r <= 0) return r;
        if (a->n_taken++ >= MAX_HANDED) {
            close(fd);
            return err_set(e, -EBADMSG, "fd channel: the worker sent more than %d messages",
                           MAX_HANDED);
        }
        r = arenas_keep(a, &note, fd, e);
        if (r < 0) {
            close(fd);
            return r;
        }
        if ((note.flags & FD_CHANNEL_COMPLETE) && fdstore_arena_name(stored, a->worker, &note) == 0)
            fdstore_put(stored, fd);
    }
}

int
arenas_send(const struct arenas *a, const char *name, int sock, struct err *e)
{
    int n = 0;

    for (uint32_t i = 0; i < a->n; i++) {
        struct fd_channel_note note = a->at[i].note;

        if (!(note.flags & FD_CHANNEL_COMPLETE) || (name && strcmp(note.name, name))) continue;
        note.flags |= a->verify_contents ? FD_CHANNEL_VERIFY : 0;
        TRY(fd_channel_give(sock, &note, a->at[i].fd, e));
        n++;
    }
    return n;
}

int
arenas_give(struct arenas *a, int sock, nsec now, struct err *e)
{
    int n = arenas_send(a, NULL, sock, e);

    if (n < 0) return n;
    a->n_taken = 0;
    a->adopted = n > 0;
    a->adopted_at = now;
    return n;
}

void
arenas_after_death(struct arenas *a, const struct death *d, nsec now)
{
    if (d->fault || d->cause == DEATH_OOM) {
        bool soon = a->adopted && now - a->adopted_at <= STRIKE_TIME;

        a->strikes = soon ? a->strikes + 1 : 1;
        a->verify_contents |= d->fault;
        /* Weights are needed as they are: only KV memory is dropped to free memory. */
        if (!d->fault) a->strikes = MIN(a->strikes, 2u);
    }
    /* Without its manifest KV is not adopted; its memory is kept, because allocating it is slow. */
    if (!d->adopt_kv) arenas_drop(a, "manifest");
    if (a->strikes >= 2) arenas_drop_kv(a);
    if (arenas_given_up(a, d)) arenas_drop(a, NULL);
}

bool
arenas_given_up(const struct arenas *a, const struct death *d)
{
    return a->strikes >= 3 || d->cause == DEATH_LOST;
}
