/* protocol_manual.c - prints the manual lagan-protocol(7) in mdoc, from the tables of lagan_wire.h.
 *
 * Runs only while the manual is built. */
#include "base/opt.h"
#include "include/lagan_wire.h"
#include "wire/msg_field.h"

#include <stdio.h>

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
    puts(".Sh MESSAGES\nC: sent by the client. D: sent by\n.Xr lagand 8 .\n.Bl -tag -width Ds");
#define X(number, name, sentence) item("Cm", #name " " #number, sentence);
    LAGAN_MESSAGES(X)
#undef X
    puts(".El");
}

static void
field(enum msg_kind kind, const char *key, double least, double most, double usual,
      const char *sentence)
{
    bool number = kind == MSG_KIND_F64 || kind == MSG_KIND_OVER || kind == MSG_KIND_U32 ||
                  kind == MSG_KIND_I32;

    item("Cm", key, sentence);
    opt_roff(stdout, "The value is ");
    opt_roff(stdout, msg_kind_name(kind));
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
    field(MSG_KIND_##kind, #key, least, most, usual, sentence);
    LAGAN_FIELDS(X)
#undef X
    puts(".El\nTensors that a request asked for are sent as the\n.Cm x\nof\n.Cm CHUNK :\n"
         ".Bl -tag -width Ds");
#define X(number, name, word, sentence) item("Cm", word " " #number, sentence);
    LAGAN_TENSORS(X)
#undef X
    puts(".El");
}

static void
ends(void)
{
    puts(".Sh REASONS\n.Bl -tag -width Ds");
#define X(number, name, word, sentence) item("Cm", word " " #number, sentence);
    LAGAN_FINISHES(X)
#undef X
    puts(".El\n.Sh ERRORS\n.Bl -tag -width Ds");
#define X(number, name, word, retry, sentence) \
    item("Cm", word " " #number, retry ? sentence "; a retry may succeed" : sentence);
    LAGAN_ERRORS(X)
#undef X
    puts(".El");
}

static void
verb(const char *name, bool operators, const char *args, const char *result)
{
    item("Cm", name, *args ? args : "No args");
    opt_roff(stdout, "The result: ");
    opt_roff(stdout, result);
    puts(operators ? ".\nOnly on ctl.sock." : ".");
}

static void
verbs(void)
{
    puts(".Sh CALLS\nThe verbs of\n.Cm CALL\nwith their args and results. lagand accepts verbs "
         "for operators only on\n.Pa ctl.sock .\n.Bl -tag -width Ds");
#define X(id, name, operators, args, result) verb(name, operators, args, result);
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
        { "bytes of a message", LAGAN_MAX_FRAME },
        { "nested maps and lists", LAGAN_MAX_DEPTH },
        { "values of a message, without the integers of lists", LAGAN_MAX_NODES },
        { "integers in all lists of a message", LAGAN_MAX_LIST },
        { "keys of a map", LAGAN_MAX_KEYS },
        { "bytes of a key", LAGAN_MAX_KEY },
        { "bytes of a string", LAGAN_MAX_STR },
        { "tokens of a prompt, sent as a bin", LAGAN_MAX_IDS },
        { "tokens of an output", LAGAN_MAX_TOKENS },
        { "entries of stop, of stop_ids and of eos_ids", LAGAN_MAX_STOPS },
        { "bytes of a stop string", LAGAN_MAX_STOP },
        { "requests of one CANCEL or QUERY", LAGAN_MAX_RIDS },
        { "requests of one RESUME", LAGAN_MAX_RESUMES },
        { "alternatives of a token (logprobs, prompt_logprobs)", LAGAN_MAX_TOP },
        { "beams", LAGAN_MAX_BEAMS },
        { "outputs of a request", LAGAN_MAX_OUTPUTS },
        { "entries of logit_bias", LAGAN_MAX_BIAS },
        { "unacknowledged CHUNK messages of a request", LAGAN_MAX_ACK_WINDOW },
    };

    puts(".Sh LIMITS\nlagand checks these limits before it unpacks a message, and rejects a "
         "message that exceeds one of them.\n"
         ".Bl -tag -width 10n");
    for (size_t i = 0; i < ARRAY_LEN(all); i++) printf(".It %u\n%s\n", all[i].most, all[i].of);
    puts(".El");
}

int
main(void)
{
    puts(".Dd 2026\n.Dt LAGAN-PROTOCOL 7\n.Os lagan\n"
         ".Sh NAME\n.Nm lagan-protocol\n.Nd client protocol of lagand\n"
         ".Sh DESCRIPTION\nA client is a ZeroMQ DEALER, connected to\n.Xr lagand 8 Ns 's\n"
         "ROUTER at\n.Pa api.sock\nin the runtime directory, or with CURVE at tcp;\n"
         "operators also use\n.Pa ctl.sock .\nA message is one ZeroMQ frame, a MessagePack array:\n"
         ".Dl [version, type, rid, {map}]");
    printf("version is %d. type is a number of MESSAGES. rid is the client\'s number of its "
           "request or "
           "call, and 0 for messages about the connection.\nKeys are strings. An unknown key is "
           "ignored; "
           "an unknown key that begins with\n.Ql \\&!\nis rejected. Numbers and names never change "
           "their meaning; new ones may be added.\n.Pp\n",
           LAGAN_WIRE_VERSION);
    puts("A connection starts with\n.Cm HELLO ,\nanswered by\n.Cm WELCOME .\n"
         "A request is a\n.Cm SUBMIT .\nlagand sends\n.Cm ACCEPT ,\nany number of\n.Cm "
         "CHUNK\n"
         "and one\n.Cm DONE .\nAn\n.Cm ERROR\nat any point ends the request instead.");
    printf(
        "At most %u chunks may be unacknowledged, unless\n.Cm ack_window\nis given. lagand keeps "
        "further tokens and sends them together after the next\n.Cm ACK .\n"
        "After a lost connection the client sends\n.Cm HELLO\nwith the same session on a new "
        "connection, then\n.Cm RESUME .\n",
        LAGAN_DEFAULT_ACK_WINDOW);
    messages();
    fields();
    ends();
    verbs();
    limits();
    puts(".Sh SEE ALSO\n.Pa lagan_wire.h ,\n.Pa lagan.h ,\n.Xr laganctl 1 ,\n.Xr lagand 8");
    return 0;
}
