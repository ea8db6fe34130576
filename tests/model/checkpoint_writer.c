/* checkpoint_writer.c - see checkpoint_writer.h. */
#include "tests/model/checkpoint_writer.h"

#include "gpu/fp.h"

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

void
ckpt_open(struct ckpt *c)
{
    const char *tmp = getenv("TMPDIR");

    memset(c, 0, sizeof *c);
    snprintf(c->dir, sizeof c->dir, "%.40s/ckpt-XXXXXX", tmp ? tmp : "/tmp");
    check(mkdtemp(c->dir));
    ckpt_clear(c);
}

void
ckpt_close(struct ckpt *c)
{
    DIR *d = opendir(c->dir);
    struct dirent *f;

    check(d);
    while ((f = readdir(d)))
        if (f->d_name[0] != '.') unlinkat(dirfd(d), f->d_name, 0);
    closedir(d);
    rmdir(c->dir);
}

void
ckpt_clear(struct ckpt *c)
{
    c->header_len = c->n = 0;
}

float
ckpt_value(const char *name, size_t i)
{
    uint32_t h = 2166136261;

    for (; *name; name++) h = (h ^ (uint8_t)*name) * 16777619;
    return (float)((int)((h + i * 7) % 251) - 125) / 8;
}

void
ckpt_add(struct ckpt *c, const char *name, const char *dtype, uint32_t rows, uint32_t cols)
{
    size_t count = (size_t)(rows ? rows : 1) * cols, each = strcmp(dtype, "F32") ? 2 : 4;
    char shape[48];

    check(c->n + count * each <= sizeof c->data);
    if (rows)
        snprintf(shape, sizeof shape, "%u,%u", rows, cols);
    else
        snprintf(shape, sizeof shape, "%u", cols);
    c->header_len +=
        (size_t)snprintf(c->header + c->header_len, sizeof c->header - c->header_len,
                         "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                         c->header_len ? "," : "", name, dtype, shape, c->n, c->n + count * each);
    check(c->header_len < sizeof c->header);
    for (size_t i = 0; i < count; i++, c->n += each) {
        float f = ckpt_value(name, i);
        uint16_t half = strcmp(dtype, "BF16") ? f16_of_float(f) : bf16_of_float(f);

        memcpy(c->data + c->n, each == 4 ? (void *)&f : &half, each);
    }
}

void
ckpt_bytes(struct ckpt *c, const char *file, const void *p, size_t n)
{
    char path[512];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", c->dir, file);
    f = fopen(path, "wb");
    check(f && fwrite(p, 1, n, f) == n);
    check(fclose(f) == 0);
}

void
ckpt_text(struct ckpt *c, const char *file, const char *text)
{
    ckpt_bytes(c, file, text, strlen(text));
}

void
ckpt_write(struct ckpt *c, const char *file, size_t off)
{
    static uint8_t out[sizeof c->header + sizeof c->data + 128];
    uint64_t len = c->header_len + 2;

    while ((8 + len) % 64 != off) len++;
    memset(out, ' ', sizeof out);
    memcpy(out, &len, 8);
    out[8] = '{';
    memcpy(out + 9, c->header, c->header_len);
    out[9 + c->header_len] = '}';
    memcpy(out + 8 + len, c->data, c->n);
    ckpt_bytes(c, file, out, 8 + len + c->n);
    ckpt_clear(c);
}

uint8_t *
ckpt_raw(const char *header, size_t n, size_t *ret_n)
{
    uint64_t len = strlen(header);
    uint8_t *p = calloc(1, 8 + len + n);

    check(p);
    memcpy(p, &len, 8);
    memcpy(p + 8, header, len);
    *ret_n = 8 + len + n;
    return p;
}
