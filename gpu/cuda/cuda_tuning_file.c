/* cuda_tuning_file.c - reads and writes the file of measured matmul algorithms; see
 * cuda_tuning_file.h. */
#include "gpu/cuda/cuda_tuning_file.h"

#include <stdio.h>
#include <unistd.h>

enum { MAX_LINE = 320 };

struct tuning_table {
    struct tuning_machine machine;
    uint32_t n;
    struct tuning_row row[TUNING_MAX];
};

static void
close_file(FILE **f)
{
    if (*f) fclose(*f);
}

static bool
same_machine(const struct tuning_machine *a, const struct tuning_machine *b)
{
    return a->library == b->library && a->driver == b->driver && a->sms == b->sms &&
           strcmp(a->gpu, b->gpu) == 0;
}

/* Returns true if the line starts the section of a machine, which is stored in *m. */
static bool
is_machine(const char *line, struct tuning_machine *m)
{
    unsigned long long library;
    char gpu[sizeof m->gpu];

    if (sscanf(line, "machine %llu %d %u %63[^\n]", &library, &m->driver, &m->sms, gpu) != 4)
        return false;
    m->library = library;
    memcpy(m->gpu, gpu, sizeof gpu);
    return true;
}

static int
dtype_of(const char *name)
{
    for (int t = 0; t < DT_COUNT; t++)
        if (strcmp(name, dtype_name((enum dtype)t)) == 0) return t;
    return -1;
}

static bool
is_row(const char *line, struct tuning_row *r)
{
    char in[16], out[16], hex[2 * TUNING_BYTES + 1];
    unsigned align, epilogue, fixed;
    int in_type, out_type;

    memset(r, 0, sizeof *r);
    if (sscanf(line, "%15s %15s %u %u %u %u %u %u %f %f %128[0-9a-f]", in, out, &r->key.n,
               &r->key.k, &r->key.rows, &align, &epilogue, &fixed, &r->us, &r->heuristic_us,
               hex) != 11)
        return false;
    in_type = dtype_of(in);
    out_type = dtype_of(out);
    if (in_type < 0 || out_type < 0 || align > 16 || epilogue > 3 || fixed > 1 ||
        strlen(hex) != sizeof hex - 1)
        return false;
    r->key.in = (uint8_t)in_type;
    r->key.out = (uint8_t)out_type;
    r->key.align = (uint8_t)align;
    r->key.epilogue = (uint8_t)epilogue;
    r->key.fixed = (uint8_t)fixed;
    for (int i = 0; i < TUNING_BYTES; i++) {
        unsigned byte;

        if (sscanf(hex + 2 * i, "%2x", &byte) != 1) return false;
        r->algorithm[i] = (uint8_t)byte;
    }
    return true;
}

/* Adds the rows of the file that are of our machine and that the table does not have. */
static int
read_rows(struct tuning_table *t, const char *path, struct err *e)
{
    CLEAN(close_file) FILE *f = fopen(path, "r");
    struct tuning_machine m;
    char line[MAX_LINE];
    bool ours = false;

    if (!f && errno == ENOENT) return 0;
    if (!f) return err_set(e, -errno, "cannot read the tuning file %s: %s", path, strerror(errno));
    for (unsigned i = 1; fgets(line, sizeof line, f); i++) {
        struct tuning_row row;

        if (line[0] == '\n' || line[0] == '#') continue;
        if (is_machine(line, &m)) {
            ours = same_machine(&m, &t->machine);
            continue;
        }
        if (!is_row(line, &row))
            return err_set(e, -EBADMSG,
                           "tuning file %s: line %u does not describe a measured matmul; remove "
                           "the file or the line",
                           path, i);
        if (ours && !tuning_find(t, &row.key) && tuning_put(t, &row) < 0)
            return err_set(e, -EBADMSG, "tuning file %s has over %d rows for this GPU", path,
                           TUNING_MAX);
    }
    return 0;
}

void
tuning_close(struct tuning_table *t)
{
    free(t);
}
CLEAN_FUNC(struct tuning_table, tuning_close)

int
tuning_open(struct tuning_table **ret, const char *path, const struct tuning_machine *m,
            struct err *e)
{
    CLEAN(tuning_close_at) struct tuning_table *t = calloc(1, sizeof *t);

    if (!t) return err_set(e, -ENOMEM, "cannot allocate the table of measured matmuls: no memory");
    t->machine = *m;
    if (path) TRY(read_rows(t, path, e));
    *ret = TAKE(t);
    return 0;
}

const struct tuning_row *
tuning_find(const struct tuning_table *t, const struct tuning_key *k)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (memcmp(&t->row[i].key, k, sizeof *k) == 0) return &t->row[i];
    return NULL;
}

uint32_t
tuning_count(const struct tuning_table *t)
{
    return t->n;
}

int
tuning_put(struct tuning_table *t, const struct tuning_row *row)
{
    const struct tuning_row *old = tuning_find(t, &row->key);

    if (!old && t->n == TUNING_MAX) return -ENOSPC;
    t->row[old ? (uint32_t)(old - t->row) : t->n++] = *row;
    return 0;
}

/* Copies the sections of other machines unchanged from the file to `to`. */
static void
copy_others(const struct tuning_table *t, const char *path, FILE *to)
{
    CLEAN(close_file) FILE *f = fopen(path, "r");
    struct tuning_machine m;
    char line[MAX_LINE];
    bool ours = false;

    if (!f) return;
    while (fgets(line, sizeof line, f)) {
        if (is_machine(line, &m)) ours = same_machine(&m, &t->machine);
        if (!ours) fputs(line, to);
    }
}

static void
write_ours(const struct tuning_table *t, FILE *to)
{
    const struct tuning_machine *m = &t->machine;

    fprintf(to, "machine %llu %d %u %s\n", (unsigned long long)m->library, m->driver, m->sms,
            m->gpu);
    for (uint32_t i = 0; i < t->n; i++) {
        const struct tuning_row *r = &t->row[i];

        fprintf(to, "%s %s %u %u %u %u %u %u %.2f %.2f ", dtype_name((enum dtype)r->key.in),
                dtype_name((enum dtype)r->key.out), r->key.n, r->key.k, r->key.rows, r->key.align,
                r->key.epilogue, r->key.fixed, (double)r->us, (double)r->heuristic_us);
        for (int j = 0; j < TUNING_BYTES; j++) fprintf(to, "%02x", r->algorithm[j]);
        fputc('\n', to);
    }
}

int
tuning_save(struct tuning_table *t, const char *path, struct err *e)
{
    CLEAN(close_file) FILE *f = NULL;
    char new_path[4096];

    /* The temporary name contains our pid, because other processes may save at the same time. */
    if (snprintf(new_path, sizeof new_path, "%s.%d", path, (int)getpid()) >= (int)sizeof new_path)
        return err_set(e, -ENAMETOOLONG, "the path of the tuning file %s is too long", path);
    TRY(read_rows(t, path, e));
    f = fopen(new_path, "w");
    if (!f) return err_set(e, -errno, "cannot write %s: %s", new_path, strerror(errno));
    errno = 0;
    copy_others(t, path, f);
    write_ours(t, f);
    /* After a failed write (disk full) later writes may succeed: only ferror() tells. */
    if (ferror(f) || fflush(f) != 0 || fsync(fileno(f)) < 0 || rename(new_path, path) < 0) {
        int r = errno ? -errno : -EIO;

        unlink(new_path);
        return err_set(e, r, "cannot write the tuning file %s: %s", path, strerror(-r));
    }
    return 0;
}
