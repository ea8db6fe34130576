/* protocol_manual.c - prints lagan-protocol(7), in mdoc: what include/lagan_wire.h's tables say, and how to use them.
 *
 * Run when the manual is made, and by nobody else.
 */
#include "base/opt.h"
#include "include/lagan_wire.h"

#include <stdio.h>
#include <string.h>

static void
item(const char *kind, const char *word, const char *sentence)
{
    printf(".It %s %s\n", kind, word);
    opt_roff(stdout, sentence);
    puts(".");
}

static void
messages(void)
{
    puts(".Sh MESSAGES\nC: a client sends it, D:\n.Xr lagand 8\ndoes.\n.Bl -tag -width Ds");
#define X(number, name, sentence) item("Cm", #name " " #number, sentence);
    LAGAN_MESSAGES(X)
#undef X
    puts(".El");
}

/* Of a request's field. */
static const char *
kind_of(const char *kind)
{
    static const char *const names[][2] = {
        { "IDS", "a list of token ids, or a bin of i32 LE" },
        { "STR", "a string" },
        { "STOPS", "a string, or a list of them" },
        { "U32", "a whole number" },
        { "U64", "a whole number" },
        { "I32", "a whole number" },
        { "F64", "a number" },
        { "OVER", "a number over the least" },
        { "BIAS", "a list of [id, bias]" },
        { "BOOL", "true or false" },
        { "EARLY", "true, false or \"never\"" },
        { "ANY", "a map" },
    };
    size_t i = 0;

    while (i < ARRAY_LEN(names) && strcmp(names[i][0], kind)) i++;
    check(i < ARRAY_LEN(names));
    return names[i][1];
}

static void
field(const char *kind, const char *key, double least, double most, double usual,
      const char *sentence)
{
    bool number = !strcmp(kind, "F64") || !strcmp(kind, "OVER") || !strcmp(kind, "U32") ||
                  !strcmp(kind, "I32");

    item("Cm", key, sentence);
    opt_roff(stdout, "The value is ");
    opt_roff(stdout, kind_of(kind));
    if (number && most > least) printf(", %.10g to %.10g", least, most);
    if (number && usual >= least) printf("; the default is %.10g", usual);
    puts(".");
}

static void
fields(void)
{
    puts(".Sh REQUESTS\nThe keys of\n.Cm SUBMIT ,\nand of a line of\n.Ql laganctl generate "
         "--requests .\n.Bl -tag -width Ds");
#define X(kind, key, least, most, usual, record, fallback, sentence) \
    field(#kind, #key, least, most, usual, sentence);
    LAGAN_FIELDS(X)
#undef X
    puts(".El\nWhat is asked for beside tokens comes as the\n.Cm x\nof\n.Cm CHUNK :\n"
         ".Bl -tag -width Ds");
#define X(number, name, word, sentence) item("Cm", word " " #number, sentence);
    LAGAN_TENSORS(X)
#undef X
    puts(".El");
}

static void
ends(void)
{
    puts(".Sh HOW AN OUTPUT ENDS\n.Bl -tag -width Ds");
#define X(number, name, word, sentence) item("Cm", word " " #number, sentence);
    LAGAN_FINISHES(X)
#undef X
    puts(".El\n.Sh ERRORS\n.Bl -tag -width Ds");
#define X(number, name, word, retry, sentence) \
    item("Cm", word " " #number, retry ? sentence "; trying again makes sense" : sentence);
    LAGAN_ERRORS(X)
#undef X
    puts(".El");
}

static void
verb(const char *name, bool operators, const char *args, const char *result)
{
    item("Cm", name, *args ? args : "no args");
    opt_roff(stdout, "The result: ");
    opt_roff(stdout, result);
    puts(operators ? ".\nFor operators." : ".");
}

static void
verbs(void)
{
    puts(".Sh CALLS\nThe verbs of\n.Cm CALL ,\nwith their args and results; those for operators "
         "are answered at\n.Pa ctl.sock\nalone.\n.Bl -tag -width Ds");
#define X(name, operators, args, result) verb(name, operators, args, result);
    LAGAN_VERBS(X)
#undef X
    puts(".El");
}

static void
limits(void)
{
    static const struct {
        const char *of;
        unsigned most;
    } all[] = {
        { "bytes of a frame", LAGAN_MAX_FRAME },
        { "levels of maps and lists", LAGAN_MAX_DEPTH },
        { "values of a frame, beside the integers of lists", LAGAN_MAX_NODES },
        { "integers in all lists of a frame", LAGAN_MAX_LIST },
        { "keys of a map", LAGAN_MAX_KEYS },
        { "bytes of a key", LAGAN_MAX_KEY },
        { "bytes of a string", LAGAN_MAX_STR },
        { "tokens of a prompt, as a bin", LAGAN_MAX_IDS },
        { "tokens of an answer", LAGAN_MAX_TOKENS },
        { "stop strings, stop ids, eos ids, each", LAGAN_MAX_STOPS },
        { "bytes of a stop string", LAGAN_MAX_STOP },
        { "requests of one CANCEL or QUERY", LAGAN_MAX_RIDS },
        { "requests of one RESUME", LAGAN_MAX_RESUMES },
        { "log-probabilities of a position", LAGAN_MAX_TOP },
        { "beams", LAGAN_MAX_BEAMS },
        { "outputs of a request", LAGAN_MAX_OUTPUTS },
        { "entries of logit_bias", LAGAN_MAX_BIAS },
        { "chunks without an ACK", LAGAN_MAX_ACK_WINDOW },
    };

    puts(".Sh LIMITS\nOne pass looks at a frame before it is unpacked; more than this is refused.\n"
         ".Bl -tag -width 10n");
    for (size_t i = 0; i < ARRAY_LEN(all); i++) printf(".It %u\n%s\n", all[i].most, all[i].of);
    puts(".El");
}

int
main(void)
{
    puts(".Dd 2026\n.Dt LAGAN-PROTOCOL 7\n.Os lagan\n"
         ".Sh NAME\n.Nm lagan-protocol\n.Nd what clients of lagand send and get\n"
         ".Sh DESCRIPTION\nA client is a ZeroMQ DEALER, connected to\n.Xr lagand 8 Ns 's\n"
         "ROUTER at\n.Pa api.sock\nin the runtime directory, or with CURVE at tcp;\n"
         "operators also at\n.Pa ctl.sock .\nA message is one frame, a MessagePack array:\n"
         ".Dl [version, type, rid, {map}]");
    printf("The version is %d, the rid the client's number for what it asked, and the type one of "
           "those below.\nKeys are strings. Unknown ones are ignored, one that begins with\n"
           ".Ql \\&!\nmust be understood. Numbers and names never change their meaning; new ones "
           "may come.\n.Pp\n",
           LAGAN_WIRE_VERSION);
    puts("A connection begins with\n.Cm HELLO ,\nanswered by\n.Cm WELCOME .\n"
         "A request is a\n.Cm SUBMIT\nand is answered by\n.Cm ACCEPT ,\nany number of\n.Cm CHUNK\n"
         "and one\n.Cm DONE ;\nor by one\n.Cm ERROR ,\nat any time.\nThere may be");
    printf(
        "%u chunks under way before an\n.Cm ACK\nof them, unless\n.Cm ack_window\nsays otherwise; "
        "tokens wait meanwhile, and come together.\n"
        "Whoever lost a connection says\n.Cm HELLO\nwith its session again, and\n.Cm RESUME .\n",
        LAGAN_DEFAULT_ACK_WINDOW);
    messages();
    fields();
    ends();
    verbs();
    limits();
    puts(".Sh SEE ALSO\n.Pa lagan_wire.h ,\n.Pa lagan.h ,\n.Xr laganctl 1 ,\n.Xr lagand 8");
    return 0;
}
