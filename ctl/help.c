/* help.c - prints --help of laganctl and of each command, and the manual laganctl(1).
 *
 * All text comes from the command table of commands.c and the option tables. */
#include "ctl/ctl.h"

#include <stdio.h>

static const char about[] =
    "Command line client of lagand: send requests, show state, control workers.";
static const char examples[] = "  laganctl --spawn models/gemma generate --text \"a=1;b=2;a?\"\n"
                               "  laganctl generate --ids 1,2,3 --max-tokens 8 --json\n"
                               "  laganctl status --wait && echo all is well\n";
static const char interrupted[] = "interrupted by a signal; open requests are cancelled";

/* Options of every command. */
static const struct opt common[] = {
    { "json", OPT_BOOL, 0, 0, .sentence = "print the result as JSON, one document per line" },
    { "help", OPT_BOOL, 0, 0, .sentence = "print this help and exit" },
    { 0 },
};

static void
print_exit_codes(void)
{
    puts("\nExit codes:");
#define X(number, name, sentence) printf("  %3d  %s\n", number, sentence);
    EXIT_CODES(X)
#undef X
    printf("  130  %s\n", interrupted);
}

static void
print_command(const struct command *c)
{
    enum { LEFT = 26 };
    char left[64];

    snprintf(left, sizeof left, "%s%s%s", c->words, *c->operands ? " " : "", c->operands);
    if (strlen(left) > LEFT) printf("  %s\n", left), *left = 0;
    printf("  %-*s  %s\n", LEFT, left, c->sentence);
}

void
help(void)
{
    printf("Usage: laganctl [OPTION]... COMMAND [ARGUMENT]...\n%s\n\nCommands:\n", about);
    for (const struct command *c = commands; c->words; c++) print_command(c);
    puts("\nOptions, which precede the command, with the default in []:");
    opt_help(global_opts, OPT_TYPED, stdout);
    printf("\nExamples:\n%s\n`laganctl COMMAND --help` describes one command.\n", examples);
    print_exit_codes();
}

bool
group_help(const char *word)
{
    size_t len = strlen(word);
    bool found = false;

    for (const struct command *c = commands; c->words; c++) {
        if (strncmp(c->words, word, len) || c->words[len] != ' ') continue;
        if (!found)
            printf("Usage: laganctl [OPTION]... %s WORD [ARGUMENT]...\n\nCommands:\n", word);
        print_command(c);
        found = true;
    }
    if (found) printf("\n`laganctl %s WORD --help` describes one command.\n", word);
    return found;
}

void
command_help(const struct command *c)
{
    printf("Usage: laganctl [--connect ENDPOINT | --spawn MODEL_DIR] %s%s%s%s\n%c%s.\n", c->words,
           c->opts ? " [OPTION]..." : "", *c->operands ? " " : "", c->operands,
           c->sentence[0] & ~0x20, c->sentence + 1);
    puts("\nOptions, with the default in []:");
    if (c->opts) opt_help(c->opts, OPT_TYPED, stdout);
    opt_help(common, OPT_TYPED, stdout);
    if (c->examples) printf("\nExamples:\n%s", c->examples);
    print_exit_codes();
}

/* ---- laganctl(1), in mdoc */

/* Prints text in mdoc: indented lines are literal, an empty line separates paragraphs. */
static void
manual_examples(const char *text)
{
    bool typed = false;

    for (size_t n; *text; text += n + (text[n] == '\n')) {
        char line[256];
        bool is = *text == ' ';

        n = strcspn(text, "\n");
        if (is && !typed) puts(".Bd -literal -offset indent");
        if (!is && typed) puts(".Ed");
        typed = is;
        if (n == 0 && text[1] != ' ') puts(".Pp");
        if (n == 0) continue;
        check(n < sizeof line);
        snprintf(line, sizeof line, "%.*s", (int)n - 2 * is, text + 2 * is);
        opt_roff(stdout, line);
        putchar('\n');
    }
    if (typed) puts(".Ed");
}

static void
manual_command(const struct command *c)
{
    printf(".Ss %s%s%s%s\n", c->words, c->opts ? " [OPTION]..." : "", *c->operands ? " " : "",
           c->operands);
    putchar(c->sentence[0] & ~0x20);
    opt_roff(stdout, c->sentence + 1);
    puts(".");
    if (c->opts) opt_manual(c->opts, OPT_TYPED, stdout);
    if (c->examples) manual_examples(c->examples);
}

void
manual(void)
{
    const struct command *c;

    puts(".Dd 2026\n.Dt LAGANCTL 1\n.Os lagan\n"
         ".Sh NAME\n.Nm laganctl\n.Nd command line client of lagand\n"
         ".Sh SYNOPSIS\n.Nm\n.Op Ar OPTION ...\n.Ar COMMAND\n.Op Ar ARGUMENT ...\n.Sh DESCRIPTION");
    puts(about);
    puts(".Sh OPTIONS\nThese options precede the command.");
    opt_manual(global_opts, OPT_TYPED, stdout);
    puts(".Sh COMMANDS\nEvery command accepts these options, and those listed with it, after its "
         "name:");
    opt_manual(common, OPT_TYPED, stdout);
    for (c = commands; c->words; c++) manual_command(c);
    puts(".Sh EXAMPLES");
    manual_examples(examples);
    puts(".Sh EXIT STATUS\n.Bl -tag -width Ds -compact");
#define X(number, name, sentence) \
    puts(".It " #number); \
    opt_roff(stdout, sentence); \
    putchar('\n');
    EXIT_CODES(X)
#undef X
    printf(".It 130\n%s\n.El\n", interrupted);
    puts(".Sh SEE ALSO\n.Xr lagand 8 ,\n.Xr lagan-protocol 7");
}
