/* log.c - see log.h.
 *
 * A message is one write() of one line, so lines of several threads and processes on one pipe do
 * not mix. Line breaks and control bytes become spaces, because peers supply parts of a message. */
#include "base/log.h"

#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>

enum { MAX_TEXT = 2048, MAX_FIELDS = 16 };

static struct {
    char subject[32];
    _Atomic int most;
    bool journal, terminal, to_parent;
    int watched;   /* descriptor to poll() for writing before each message; -1: may block */
    uint64_t lost; /* number of messages dropped since the last written one */
} out = { .subject = "lagan", .most = LOG_LEVEL_INFO, .watched = -1 };

/* Returns true if standard error has the device and inode that JOURNAL_STREAM names. The variable
 * alone proves nothing: a process whose stderr was redirected inherits it too. */
static bool
stderr_is_journal(void)
{
    const char *s = getenv("JOURNAL_STREAM");
    unsigned long long dev, ino;
    struct stat st;
    int end = 0;

    if (!s || sscanf(s, "%llu:%llu%n", &dev, &ino, &end) != 2 || s[end]) return false;
    return fstat(STDERR_FILENO, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

static void
log_failed_check(const char *sentence)
{
    log_err("%s", sentence);
}

void
log_open(const char *subject, enum log_level most)
{
    check_panic_message = log_failed_check;
    snprintf(out.subject, sizeof out.subject, "%s", subject);
    out.journal = stderr_is_journal();
    out.terminal = isatty(STDERR_FILENO);
    out.to_parent = false;
    out.watched = -1;
    log_level_set(most);
}

void
log_level_set(enum log_level most)
{
    atomic_store_explicit(&out.most, (int)most, memory_order_relaxed);
}

void
log_to_parent(void)
{
    out.journal = false;
    out.to_parent = true;
}

static const char *const level_names[] = { [LOG_LEVEL_ERR] = "err",
                                           [LOG_LEVEL_WARN] = "warn",
                                           [LOG_LEVEL_INFO] = "info",
                                           [LOG_LEVEL_DEBUG] = "debug" };

const char *
log_level_name(enum log_level l)
{
    return level_names[l];
}

enum log_level
log_level_choice(uint32_t index)
{
    static const enum log_level levels[N_LOG_LEVELS] = { LOG_LEVEL_ERR, LOG_LEVEL_WARN,
                                                         LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

    return levels[index];
}

enum { TIME_BYTES = 25 }; /* 2026-11-24T19:28:31.123Z and a space */

enum log_level
log_line_level(const char *line, size_t n, size_t *skip)
{
    *skip = 0;
    if (n >= 3 && line[0] == '<' && line[1] >= '0' && line[1] <= '7' && line[2] == '>') {
        *skip = 3;
        return (enum log_level)(line[1] - '0');
    }
    if (n < TIME_BYTES || line[10] != 'T' || line[TIME_BYTES - 2] != 'Z') return LOG_LEVEL_NONE;
    for (size_t i = 0; i < ARRAY_LEN(level_names); i++) {
        size_t len = level_names[i] ? strlen(level_names[i]) : n;

        if (n <= TIME_BYTES + len || line[TIME_BYTES + len] != ' ' ||
            memcmp(line + TIME_BYTES, level_names[i], len))
            continue;
        *skip = TIME_BYTES + len + 1;
        return (enum log_level)i;
    }
    return LOG_LEVEL_NONE;
}

/* Opens a socket to the journal, to poll it (libsystemd hides its own). Returns -1 on failure. */
static int
open_journal(void)
{
    const struct sockaddr_un a = { .sun_family = AF_UNIX,
                                   .sun_path = "/run/systemd/journal/socket" };
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || connect(fd, (const struct sockaddr *)&a, sizeof a) == 0) return fd;
    close(fd);
    return -1;
}

void
log_never_wait(void)
{
    out.watched = out.journal ? open_journal() : STDERR_FILENO;
}

/* Returns true if writing a line would block. A line is shorter than PIPE_BUF, so a pipe that
 * poll() reports as writable has space for the whole line. */
static bool
would_wait(void)
{
    struct pollfd p = { .fd = out.watched, .events = POLLOUT };

    return out.watched >= 0 && poll(&p, 1, 0) == 0;
}

static void
to_journal(enum log_level level, const char *const *fields, const char *text)
{
    char message[MAX_TEXT + 16], priority[16], identifier[64];
    struct iovec v[3 + MAX_FIELDS];
    int n = 0;

    snprintf(message, sizeof message, "MESSAGE=%s", text);
    snprintf(priority, sizeof priority, "PRIORITY=%d", (int)level);
    snprintf(identifier, sizeof identifier, "SYSLOG_IDENTIFIER=%s", out.subject);
    v[n++] = (struct iovec){ message, strlen(message) };
    v[n++] = (struct iovec){ priority, strlen(priority) };
    v[n++] = (struct iovec){ identifier, strlen(identifier) };
    for (; fields && *fields && n < 3 + MAX_FIELDS; fields++, n++) {
        memcpy(&v[n].iov_base, fields, sizeof v[n].iov_base); /* iovec has no const */
        v[n].iov_len = strlen(*fields);
    }
    sd_journal_sendv(v, n);
}

static void
to_stderr(enum log_level level, const char *text)
{
    char line[MAX_TEXT + 96], prefix[48] = "";
    struct timespec t;
    struct tm tm;
    size_t used;
    int n;

    if (out.to_parent) {
        snprintf(prefix, sizeof prefix, "<%d>", (int)level);
    } else if (!out.terminal) {
        clock_gettime(CLOCK_REALTIME, &t);
        used = strftime(prefix, sizeof prefix, "%FT%T", gmtime_r(&t.tv_sec, &tm));
        snprintf(prefix + used, sizeof prefix - used, ".%03ldZ %s ", t.tv_nsec / 1000000,
                 log_level_name(level));
    }
    n = snprintf(line, sizeof line, "%s%s: %s\n", prefix, out.subject, text);
    /* A failure to write the log is ignored, because there is no place to report it. */
    if (write(STDERR_FILENO, line, (size_t)n) < 0) return;
}

static void
put(enum log_level level, const char *const *fields, const char *text)
{
    if (out.journal) {
        to_journal(level, fields, text);
    } else {
        to_stderr(level, text);
    }
}

/* Logs the number of dropped messages. Returns false if this or the next message would block. */
static bool
report_lost(void)
{
    char text[80];

    if (would_wait()) return false;
    if (!out.lost) return true;
    snprintf(text, sizeof text, "%llu log lines were dropped because the log was not read",
             (unsigned long long)out.lost);
    put(LOG_LEVEL_WARN, NULL, text);
    out.lost = 0;
    return !would_wait();
}

void
log_fields(enum log_level level, const char *const *fields, const char *fmt, ...)
{
    char text[MAX_TEXT];
    va_list ap;

    if ((int)level > atomic_load_explicit(&out.most, memory_order_relaxed)) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (char *p = text; *p; p++) {
        if ((unsigned char)*p < ' ' || *p == 0x7f) *p = ' ';
    }
    if (report_lost()) {
        put(level, fields, text);
    } else {
        out.lost++;
    }
}
