/* arena_channel.c - see arena_channel.h. */
#include "worker/process/arena_channel.h"

#include "ipc/fd_channel.h"

#include <stdio.h>
#include <string.h>

int
arena_channel_give(struct worker *w, const char *name, const struct arena *a,
                   const uint64_t fingerprint[2], struct err *e)
{
    struct fd_channel_note note = { .bytes = a->bytes, .version = 1, .flags = FD_CHANNEL_COMPLETE };

    if (a->fd < 0) return 0;
    snprintf(note.name, sizeof note.name, "%s", name);
    memcpy(note.fingerprint, fingerprint, sizeof note.fingerprint);
    return fd_channel_give(w->fd_channel, &note, a->fd, e);
}
