/* fuzz_scenario.c - invalid scenarios: parsed as a reference parses them, and run.
 *
 * The reference knows only the format of scenario.h: lines, words up to one that begins with '#',
 * and expected lines that begin with '|'. A scenario with small settings is then run: it ends,
 * names its error, or prints differences. With its output as the expected lines it has no
 * differences; with one line more it has.
 */
#include "tests/fuzz/fuzz.h"

#include "sim/scenario.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_TEXT = 4000 };

static bool
is_space(char c)
{
    return c == ' ' || c == '\t';
}

/* The next word of the line and its length, or NULL. */
static const char *
next_word(const char *at, const char *end, size_t *n)
{
    while (at < end && is_space(*at)) at++;
    *n = 0;
    while (at + *n < end && !is_space(at[*n])) ++*n;
    return *n == 0 || *at == '#' ? NULL : at;
}

/* Compares every command's words and expected lines. */
static void
compare(const struct script *s, const char *text, const char *end)
{
    uint32_t number = 0, line = 0, want = 0, wants = 0;

    for (const char *at = text; at <= end; at++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at)), *word, *from = at;
        uint32_t words = 0;
        size_t n;

        if (!stop) stop = end;
        number++;
        while (from < stop && is_space(*from)) from++;
        if (from < stop && *from == '|') {
            const char *last = stop;

            for (from++; from < last && is_space(*from);) from++;
            while (last > from && is_space(last[-1])) last--;
            check(line > 0 && s->line[line - 1].first_want + wants == want);
            check(strlen(s->want[want]) == (size_t)(last - from));
            check(memcmp(s->want[want++], from, (size_t)(last - from)) == 0);
            check(++wants <= s->line[line - 1].n_want);
        } else if ((word = next_word(from, stop, &n))) {
            check(line < s->n_lines && s->line[line].number == number);
            check(line == 0 || s->line[line - 1].n_want == wants);
            wants = 0;
            for (; word; word = next_word(word + n, stop, &n)) {
                check(words < s->line[line].n_words && strlen(s->line[line].words[words]) == n);
                check(memcmp(s->line[line].words[words++], word, n) == 0);
            }
            check(words == s->line[line++].n_words);
        }
        at = stop;
    }
    check(line == s->n_lines && want == s->n_wants);
}

/* A file is parsed like its text. */
static void
compare_file(const uint8_t *data, size_t size, int want, const char *text)
{
    struct script *s = NULL;
    char path[64];
    struct err e;
    int fd = memfd_create("scenario", MFD_CLOEXEC);

    check(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    check(script_read(&s, path, &e) == want && !s == (want < 0));
    if (s) compare(s, text, text + size);
    script_free(s);
    close(fd);
}

/* A list has at most as many numbers as the array; a name has letters and a range. */
static void
read_lists(const struct script *s)
{
    enum { CAPACITY = 7 };

    for (uint32_t i = 0; i < s->n_lines; i++)
        for (uint32_t k = 0; k < s->line[i].n_words; k++) {
            int64_t *to = malloc(CAPACITY * sizeof *to);
            int n = script_numbers(s->line[i].words[k], to, CAPACITY);
            uint32_t first, last;
            char name[16];

            check(n <= CAPACITY && (n < 0 || strspn(s->line[i].words[k], "0123456789.,*-") ==
                                                 strlen(s->line[i].words[k])));
            if (script_names(s->line[i].words[k], name, &first, &last))
                check(n < 0 && first <= last &&
                      strncmp(s->line[i].words[k], name, strlen(name)) == 0);
            free(to);
        }
}

/* The scenario with its actual output as the expected lines. */
static char *
corrected(const struct script *s, const char *shown)
{
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);

    for (uint32_t i = 0; i < s->n_lines; i++) {
        const struct script_line *l = &s->line[i];
        const char *at = shown;
        char head[64];

        for (uint32_t k = 0; k < l->n_words; k++) fprintf(out, "%s ", l->words[k]);
        fputc('\n', out);
        snprintf(head, sizeof head, "x:%u: ", l->number);
        while (at && strncmp(at, head, strlen(head)) != 0)
            if ((at = strchr(at, '\n'))) at++;
        for (uint32_t k = 0; !at && k < l->n_want; k++)
            fprintf(out, "| %s\n", s->want[l->first_want + k]);
        while (at && (at = strchr(at, '\n')) && *++at == ' ')
            if (at[4] != '-') fprintf(out, "| %.*s\n", (int)strcspn(at + 6, "\n"), at + 6);
    }
    fclose(out);
    return text;
}

static int
act(const char *text, struct script **ret, char **shown)
{
    struct err e = { 0, "" };
    size_t n;
    FILE *out;
    int r = script_parse(ret, "x", text, strlen(text), &e);

    *shown = NULL;
    if (r < 0) {
        check(strncmp(e.text, "x:", 2) == 0 && e.code == r);
        return r;
    }
    out = open_memstream(shown, &n);
    r = script_run(*ret, out, &e);
    fclose(out);
    check((r < 0) == (e.text[0] != 0) && (r < 0 || (r == 1) == ((*shown)[0] != 0)));
    return r;
}

/* At most three digits: larger numbers would run too long. */
static bool
small(const char *text)
{
    for (size_t digits = 0; *text; text++) {
        digits = *text >= '0' && *text <= '9' ? digits + 1 : 0;
        if (digits > 3) return false;
    }
    return true;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[MAX_TEXT + 1], *shown = NULL, *again = NULL, *better;
    struct script *s = NULL, *t = NULL;
    struct err e;
    int r;

    size = MIN(size, (size_t)MAX_TEXT);
    memcpy(text, data, size);
    text[size] = 0;
    r = script_parse(&s, "x", (const char *)data, size, &e);
    if (size % 8 == 0) compare_file(data, size, r, text);
    if (r < 0) {
        check(strncmp(e.text, "x:", 2) == 0);
        return 0;
    }
    compare(s, text, text + size);
    read_lists(s);
    s = script_free(s);
    if (!small(text)) return 0;
    r = act(text, &s, &shown);
    if (r == 0) {
        check(asprintf(&better, "%s\n| more", text) > 0);
        check(act(better, &t, &again) != 0);
        free(better);
    } else if (r == 1) {
        better = corrected(s, shown);
        check(act(better, &t, &again) == 0);
        free(better);
    }
    free(shown);
    free(again);
    script_free(s);
    script_free(t);
    return 0;
}
