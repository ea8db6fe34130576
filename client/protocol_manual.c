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
features(void)
{
    puts(".Sh FEATURES\nThe names in features of\n.Cm WELCOME .\nA client asks for what stands "
         "here only if lagand names it.\n.Bl -tag -width Ds");
#define X(name, sentence) item("Cm", #name, sentence);
    LAGAN_FEATURES(X)
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
        { "bytes of request_id", LAGAN_MAX_REQUEST_ID },
        { "ids of one call of pieces", LAGAN_MAX_CALL_IDS },
        { "requests of one CANCEL or QUERY", LAGAN_MAX_RIDS },
        { "requests of one RESUME", LAGAN_MAX_RESUMES },
        { "alternatives of a token (logprobs, prompt_logprobs)", LAGAN_MAX_TOP },
        { "beams", LAGAN_MAX_BEAMS },
        { "bytes of logprobs of a beam search: beams * max_tokens * (4 + 8 * logprobs)",
          LAGAN_MAX_SEARCH_LOGPROBS },
        { "bytes of logits of a beam search: beams * max_tokens * vocabulary * 4",
          LAGAN_MAX_SEARCH_LOGITS },
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

/* The rules that the tables do not show: a title, then paragraphs up to a NULL. */
static const char *const rules[] = {
    "CONNECTION",
    "A client is a ZeroMQ DEALER. On the same host it connects to ipc://DIR/api.sock, where DIR is "
    "the runtime directory of lagand, /run/lagan by default; over tcp it uses CURVE with a key of "
    "api.keys. A message is one frame. lagand closes the connection after a frame above the limit "
    "of LIMITS.",
    "The first message is HELLO, for example [1, 1, 0, {\"min\": 1, \"max\": 1, \"client\": \"demo "
    "1.0\", \"session\": 16 bytes as bin}]. The keys of HELLO are in its map directly. lagand "
    "replies with WELCOME, or with ERROR and rid 0 if it does not accept the connection. A client "
    "waits for WELCOME before it sends other messages.",
    "ZeroMQ reconnects by itself, and lagand does not know the new connection before it gets HELLO "
    "on it. A client therefore sets ZMQ_RECONNECT_IVL to -1, uses each socket for one connection, "
    "and makes a new socket when it has received no message for some seconds although it sent "
    "PING, or when the monitor of the socket reports DISCONNECTED.",
    NULL,
    "KEEPING A CONNECTION",
    "A client sends a message, any message, at least every third of limits.idle_timeout_ms of "
    "WELCOME (api.idle_timeout, 10 s by default), also while its requests are queued and while it "
    "only reads; PING is the message for that. A client with open requests that sent no message "
    "for the idle timeout gets BYE with a reason, and lagand closes its connection; without open "
    "requests the limit is 6 times as long. Requests of a connection with a session continue for "
    "disconnect_timeout_ms and can be resumed; others are cancelled.",
    "lagand replies to PING with PONG and the same t, which may be an integer or a float. A client "
    "that gets no message for 10 s although it sent PING takes the connection for lost.",
    "lagand sends PING too. A client replies to each one at once with PONG and the same t: t "
    "counts the bytes that lagand sent, and the PONG proves that the client has read them. After "
    "64 KiB to 1 MiB without PONG lagand sends no CHUNK to the connection; after api.ack_timeout "
    "(30 s by default) all requests of the connection end with the error slow_reader, although "
    "each CHUNK was acknowledged.",
    NULL,
    "REQUEST",
    "The client chooses a rid above 0 that none of its open requests and calls has, and sends "
    "SUBMIT. lagand replies with ACCEPT, then sends CHUNK messages and one DONE with the same rid. "
    "An ERROR with that rid at any point is the end of the request. Each SUBMIT gets exactly one "
    "DONE or ERROR, also if the worker or lagand is restarted meanwhile and the client has sent "
    "RESUME.",
    "CHUNK messages of a request are numbered from 1 by n. ACK with n acknowledges all chunks up "
    "to n. lagand sends at most ack_window chunks (128 by default) that are not acknowledged; it "
    "keeps further tokens and sends them in one chunk after the next ACK. If tokens are held back "
    "for api.ack_timeout, the request ends with the error slow_reader. A client sends ACK for "
    "example after every 32nd chunk. An ACK of an ended request is ignored.",
    "The tokens of a chunk follow those of the chunk before: i is the index of the first one in "
    "the output. Text s is cut between characters; a chunk may have tokens without text, or text "
    "without tokens. Prompt log-probabilities (pl) come before the first token. Position 0 of the "
    "prompt has no log-probability: its lp is NaN, and its alternatives in d have the id -1 and "
    "NaN. So have tokens of a beam search, also in its logits, if a GPU worker without numerics "
    "invariant was killed after it had sent them for another output.",
    "CANCEL ends a request with the error cancelled; tokens in flight may still arrive before. A "
    "rid that is not open gets the ERROR not_found, one for each rid of the list.",
    "The REPLY to QUERY has the result [{rid, state, n}], in the order of rids; state is queued, "
    "dispatched, streaming, ended or unknown, and n is the number of tokens that lagand has.",
    NULL,
    "REJECTED MESSAGES",
    "For a message that lagand rejects it sends an ERROR with the rid of the message, even if the "
    "rest of the message is invalid: version, type and rid stand before the map. The connection "
    "and all other requests continue. If lagand rejects an ACK or a CANCEL, the request of that "
    "rid ends with the ERROR. rid 0 means that lagand could not read the rid. retryable is true if "
    "the same message may succeed later.",
    "An unknown key of SUBMIT, and of args of CALL, is rejected; the message names the most "
    "similar key. Unknown keys of other messages are ignored, unless they begin with an "
    "exclamation mark. A client ignores keys and messages that it does not know.",
    NULL,
    "AFTER A LOST CONNECTION",
    "The client makes a new connection and sends HELLO with the same session, then one RESUME with "
    "all its open requests, and waits for the REPLY before it sends another SUBMIT. n_tokens is "
    "the number of tokens that the client has, of all outputs together and with generated_ids of "
    "the SUBMIT; text_bytes is the number of bytes of s received. Requests that lagand knows "
    "continue behind these tokens; their chunks are numbered from 1 again, and result.at has the "
    "times of their ACCEPT. A request of the list "
    "result.unknown is lost: lagand was restarted without its state, or the disconnect timeout has "
    "passed. The client may submit it again, with the received tokens as generated_ids and the "
    "seed of ACCEPT.",
    "A SUBMIT whose ACCEPT was not received may have been lost: the client includes it in RESUME "
    "with 0 tokens, and submits it again if it is unknown. A request with an idempotency_key can "
    "be submitted again at any time.",
    NULL,
    "COMMANDS",
    "The map of CALL has verb, a name of CALLS, and args, a map. The REPLY has result. A verb has "
    "one REPLY or one ERROR. A client that follows a verb repeats the call: events and tune status "
    "take the number of the first entry in from, and their result has the number for the next "
    "call.",
    NULL,
    "VALUES",
    "Strings are UTF-8. lagand rejects infinite numbers and NaN; lists of floats in bins of lagand "
    "can have NaN. A list of token ids is a list of integers or a bin of 32-bit little-endian "
    "integers; a long prompt must be a bin. The bytes of text are limited by limits.text_bytes of "
    "WELCOME for the model; text with more tokens than the model takes ends with the error "
    "too_long.",
    NULL,
};

static void
print_rules(void)
{
    for (size_t i = 0; i < ARRAY_LEN(rules); i++) {
        printf(".Sh %s\n", rules[i++]);
        for (const char *between = ""; rules[i]; between = ".Pp\n", i++) {
            fputs(between, stdout);
            opt_roff(stdout, rules[i]);
            puts("");
        }
    }
}

int
main(void)
{
    puts(".Dd 2026\n.Dt LAGAN-PROTOCOL 7\n.Os lagan\n"
         ".Sh NAME\n.Nm lagan-protocol\n.Nd client protocol of lagand\n"
         ".Sh DESCRIPTION\nA client of\n.Xr lagand 8\nconnects to\n.Pa api.sock\nin the runtime "
         "directory, or with CURVE over tcp;\noperators also use\n.Pa ctl.sock .\n"
         "A message is one ZeroMQ frame, a MessagePack array:\n"
         ".Dl [version, type, rid, {map}]");
    printf("version is %d. type is a number of MESSAGES. rid is the client's number of its request "
           "or call, and 0 for messages about the connection. Keys are strings. Numbers and names "
           "never change their meaning; new ones may be added.\n",
           LAGAN_WIRE_VERSION);
    print_rules();
    messages();
    features();
    fields();
    ends();
    verbs();
    limits();
    puts(".Sh SEE ALSO\n.Pa lagan_wire.h ,\n.Pa lagan.h ,\n.Xr laganctl 1 ,\n.Xr lagand 8");
    return 0;
}
