/* fdstore.c - see fdstore.h. */
#include "daemon/persist/fdstore.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

void
fdstore_read(struct fdstore *s)
{
    char **names = NULL;
    int n = sd_listen_fds_with_names(/* unset_environment= */ 1, &names);

    s->n = 0;
    for (int i = 0; i < n; i++) {
        int fd = SD_LISTEN_FDS_START + i;

        if (s->n == FDSTORE_MAX || strlen(names[i]) >= FDSTORE_NAME) {
            log_warn(
                "closing inherited descriptor \"%.40s\": lagand accepts at most %d descriptors, "
                "and a name must be shorter than %d bytes",
                names[i], FDSTORE_MAX, FDSTORE_NAME);
            fdstore_drop(names[i]);
            close(fd);
        } else {
            s->at[s->n].fd = fd;
            snprintf(s->at[s->n++].name, FDSTORE_NAME, "%s", names[i]);
        }
        free(names[i]);
    }
    free(names);
    if (n < 0) log_warn("cannot read the inherited file descriptors: %s", strerror(-n));
}

int
fdstore_take(struct fdstore *s, const char *name)
{
    for (uint32_t i = 0; i < s->n; i++) {
        int fd = s->at[i].fd;

        if (strcmp(s->at[i].name, name)) continue;
        s->at[i] = s->at[--s->n];
        return fd;
    }
    return -1;
}

void
fdstore_close(struct fdstore *s)
{
    while (s->n) {
        struct store_fd *f = &s->at[--s->n];

        log_info("closing inherited descriptor %s, because this configuration does not use it",
                 f->name);
        fdstore_drop(f->name);
        close(f->fd);
    }
}

void
fdstore_put(const char *name, int fd)
{
    char words[FDSTORE_NAME + 40];

    fdstore_drop(name);
    /* FDPOLL=0: systemd must not drop a descriptor because of an event on it. */
    snprintf(words, sizeof words, "FDSTORE=1\nFDNAME=%s\nFDPOLL=0", name);
    if (sd_pid_notify_with_fds(0, 0, words, &fd, 1) < 0)
        log_warn("cannot put descriptor %s into systemd's fd store; it is lost if lagand crashes",
                 name);
}

void
fdstore_drop(const char *name)
{
    sd_notifyf(0, "FDSTOREREMOVE=1\nFDNAME=%s", name);
}

int
fdstore_arena_name(char buf[FDSTORE_NAME], uint32_t worker, const struct fd_channel_note *note)
{
    size_t n = strspn(note->name, "abcdefghijklmnopqrstuvwxyz0123456789");

    if (!n || note->name[n]) return -EINVAL;
    snprintf(buf, FDSTORE_NAME, "w%u=%s=%" PRIx64 "=%" PRIx64 "=%" PRIx64 "=%x", worker, note->name,
             note->bytes, note->fingerprint[0], note->fingerprint[1], note->version);
    return 0;
}

bool
fdstore_arena(const char *name, uint32_t *worker, struct fd_channel_note *note)
{
    char again[FDSTORE_NAME];

    *note = (struct fd_channel_note){ .flags = FD_CHANNEL_COMPLETE };
    if (sscanf(name, "w%u=%31[a-z0-9]=%" SCNx64 "=%" SCNx64 "=%" SCNx64 "=%x", worker, note->name,
               &note->bytes, &note->fingerprint[0], &note->fingerprint[1], &note->version) != 6)
        return false;
    return fdstore_arena_name(again, *worker, note) == 0 && !strcmp(again, name);
}
