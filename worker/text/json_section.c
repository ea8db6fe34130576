/* json_section.c - see json_section.h. */
#include "worker/text/json_section.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MAX = 256 << 20 }; /* bytes; the largest published files are under 40 MB */

static int
not_a(const char *where, const char *what, struct err *e)
{
    return err_set(e, -EBADMSG, "%s is not %s", where, what);
}

int
json_section_object(const struct json *j, const char *where, struct err *e)
{
    return j->kind == JSON_OBJECT ? 0 : not_a(where, "an object", e);
}

int
json_section_array(const struct json *j, const char *where, struct err *e)
{
    return j->kind == JSON_ARRAY ? 0 : not_a(where, "an array", e);
}

int
json_section_key(struct json *j, struct err *e)
{
    TRY(json_next(j, e));
    return j->kind == JSON_KEY;
}

int
json_section_element(struct json *j, struct err *e)
{
    TRY(json_next(j, e));
    return j->kind != JSON_ARRAY_END;
}

int
json_section_text(struct json *j, const char *where, char *buf, size_t n, struct err *e)
{
    int len;

    TRY(json_next(j, e));
    if (j->kind == JSON_NULL) {
        buf[0] = '\0';
        return 0;
    }
    if (j->kind != JSON_STRING) return not_a(where, "a string", e);
    len = json_unescape(j, buf, n);
    if (len < 0) return err_set(e, -EMSGSIZE, "%s is longer than %zu bytes", where, n - 1);
    return strlen(buf) == (size_t)len ? 0 : not_a(where, "free of zero bytes", e);
}

int
json_section_bool(struct json *j, const char *where, bool *ret, struct err *e)
{
    TRY(json_next(j, e));
    if (j->kind != JSON_TRUE && j->kind != JSON_FALSE && j->kind != JSON_NULL)
        return not_a(where, "true or false", e);
    *ret = j->kind == JSON_TRUE;
    return 0;
}

int
json_section_id(struct json *j, const char *where, token_id *ret, struct err *e)
{
    uint64_t v;

    TRY(json_next(j, e));
    if (j->kind != JSON_NUMBER || json_u64(j, &v) < 0 || v > INT32_MAX)
        return not_a(where, "a token id", e);
    *ret = (token_id)v;
    return 0;
}

int
json_section_file(const char *path, char **text, size_t *n, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), r = 0;
    struct stat st;
    size_t done = 0;
    ssize_t got = 1;

    if (fd < 0) return err_set(e, -errno, "%s: %s", path, strerror(errno));
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > FILE_MAX)
        r = err_set(e, -EBADMSG, "%s: not a file of at most 256 MiB", path);
    else if (!(*text = malloc((size_t)st.st_size + 1)))
        r = err_set(e, -ENOMEM, "%s", path);
    while (r == 0 && got > 0 && done < (size_t)st.st_size) {
        got = read(fd, *text + done, (size_t)st.st_size - done);
        if (got < 0)
            r = err_set(e, -errno, "%s: %s", path, strerror(errno));
        else
            done += (size_t)got;
    }
    close(fd);
    *n = done;
    return r;
}

void
json_section_free(char **text)
{
    free(*text);
}
