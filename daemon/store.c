/* store.c - see store.h. */
#include "daemon/store.h"

#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

void
store_read(struct store *s)
{
    char **names = NULL;
    int n = sd_listen_fds_with_names(/* unset_environment= */ 1, &names);

    s->n = 0;
    for (int i = 0; i < n; i++) {
        int fd = SD_LISTEN_FDS_START + i;

        if (s->n == STORE_MAX || strlen(names[i]) >= STORE_NAME) {
            log_warn("a descriptor \"%.40s\" is not taken", names[i]);
            store_drop(names[i]);
            close(fd);
        } else {
            s->at[s->n].fd = fd;
            snprintf(s->at[s->n++].name, STORE_NAME, "%s", names[i]);
        }
        free(names[i]);
    }
    free(names);
    if (n < 0) log_warn("descriptors of a former lagand: %s", strerror(-n));
}

int
store_take(struct store *s, const char *name)
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
store_close(struct store *s)
{
    while (s->n) {
        struct store_fd *f = &s->at[--s->n];

        log_info("a descriptor of a former lagand, %s, is of no use here", f->name);
        store_drop(f->name);
        close(f->fd);
    }
}

void
store_put(const char *name, int fd)
{
    char words[STORE_NAME + 40];

    store_drop(name);
    /* FDPOLL=0: what a device or a process does to its descriptor is not for systemd to judge. */
    snprintf(words, sizeof words, "FDSTORE=1\nFDNAME=%s\nFDPOLL=0", name);
    if (sd_pid_notify_with_fds(0, 0, words, &fd, 1) < 0)
        log_warn("%s is not in the fd store: a restart would lose it", name);
}

void
store_drop(const char *name)
{
    sd_notifyf(0, "FDSTOREREMOVE=1\nFDNAME=%s", name);
}

int
store_arena_name(char buf[STORE_NAME], uint32_t worker, const struct fd_channel_note *note)
{
    size_t n = strspn(note->name, "abcdefghijklmnopqrstuvwxyz0123456789");

    if (!n || note->name[n]) return -EINVAL;
    snprintf(buf, STORE_NAME, "w%u=%s=%" PRIx64 "=%" PRIx64 "=%" PRIx64 "=%x", worker, note->name,
             note->bytes, note->fingerprint[0], note->fingerprint[1], note->version);
    return 0;
}

bool
store_arena(const char *name, uint32_t *worker, struct fd_channel_note *note)
{
    char again[STORE_NAME];

    *note = (struct fd_channel_note){ .flags = FD_CHANNEL_COMPLETE };
    if (sscanf(name, "w%u=%31[a-z0-9]=%" SCNx64 "=%" SCNx64 "=%" SCNx64 "=%x", worker, note->name,
               &note->bytes, &note->fingerprint[0], &note->fingerprint[1], &note->version) != 6)
        return false;
    return store_arena_name(again, *worker, note) == 0 && !strcmp(again, name);
}
