/* fuzz_control.c - what a worker sends besides its rings: descriptors over the fd channel, frames
 * over the control channel.
 *
 * Input is a list of operations. Messages with any note and any descriptors are queued in a real
 * socket until lagand reads them, the worker exits for any cause, and its replacement gets the
 * descriptors. Frames come from the worker and from peers that may not send any. This file
 * implements libzmq's side and the fd store. A reference computes what lagand keeps, passes on,
 * stores and receives; no descriptor may stay open.
 */
#include "tests/fuzz/fuzz.h"

#include "base/clock.h"
#include "base/log.h"
#include "daemon/config/runtime_dir.h"
#include "daemon/persist/fdstore.h"
#include "daemon/supervise/arenas.h"
#include "daemon/supervise/control_channel.h"
#include "daemon/supervise/worker_struct.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

enum { KINDS = 5, ARENA_BYTES = 4096, MAX_SENT = 80, MOST_FDS = 12, LOOKED_AT = 160 };
enum { FRAME = 512, INBOX = 64, PEERS = 4, LONG_ID = 300, MAX_RECEIVED = INBOX };

/* ---- the ref of what is handed up */

struct ref_arena {
    char name[FD_CHANNEL_NAME];
    uint64_t bytes;
    bool whole;
    int kind;
};

static struct sent { /* waits in the socket */
    struct fd_channel_note note;
    size_t bytes;
    uint32_t n_fds;
    int kind;
} sent[MAX_SENT];
static uint32_t n_sent, n_gone, n_arenas, n_taken, strikes;
static struct ref_arena arena[MAX_ARENAS];
static bool verify_contents, adopted;
static nsec adopted_at;

static int
    kind_fd[KINDS]; /* a file of ARENA_BYTES, an empty one, a pipe, a folder, the socket itself */

static uint64_t
size_of(int kind) /* UINT64_MAX: unknown */
{
    return kind == 0 ? ARENA_BYTES : kind == 1 ? 0 : UINT64_MAX;
}

static bool
is_name(const char *name)
{
    int n = 0;

    for (; n < FD_CHANNEL_NAME && name[n]; n++) {
        char c = name[n];

        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-'))
            return false;
    }
    return n > 0 && n < FD_CHANNEL_NAME;
}

static void
forget(const char *name)
{
    for (uint32_t i = n_arenas; i-- > 0;)
        if (!strcmp(arena[i].name, name)) arena[i] = arena[--n_arenas];
}

static int
ref_take(void)
{
    while (n_gone < n_sent) {
        const struct sent *s = &sent[n_gone++];

        if (!s->bytes && !s->n_fds) return -EPIPE;
        if (s->bytes != sizeof s->note || s->n_fds != 1 || !is_name(s->note.name)) return -EBADMSG;
        if (++n_taken > MAX_HANDED || s->note.bytes > size_of(s->kind)) return -EBADMSG;
        forget(s->note.name);
        if (n_arenas == MAX_ARENAS) return -EBADMSG;
        memcpy(arena[n_arenas].name, s->note.name, FD_CHANNEL_NAME);
        arena[n_arenas].bytes = s->note.bytes;
        arena[n_arenas].whole = s->note.flags & FD_CHANNEL_COMPLETE;
        arena[n_arenas++].kind = s->kind;
    }
    return 0;
}

static void
ref_death(const struct death *d, nsec now)
{
    if (d->fault) {
        strikes = adopted && now <= adopted_at + 60 * NSEC_S ? strikes + 1 : 1;
        verify_contents = true;
    }
    if (!d->adopt_kv || strikes >= 2) forget("manifest");
    if (strikes >= 2) {
        forget("kv");
        for (char name[] = "host0"; name[4] <= '9'; name[4]++) forget(name);
    }
    if (strikes >= 3 || d->cause == DEATH_LOST) n_arenas = 0;
}

/* ---- the fd store, played */

static char stored[MAX_ARENAS + 1][FDSTORE_NAME];
static uint32_t n_stored;

int
fdstore_arena_name(char buf[FDSTORE_NAME], uint32_t worker, const struct fd_channel_note *note)
{
    snprintf(buf, FDSTORE_NAME, "w%u=%s", worker, note->name);
    return strchr(note->name, '_') ? -EINVAL : 0;
}

void
fdstore_put(const char *name, int fd)
{
    struct stat st;

    check(fstat(fd, &st) == 0 && n_stored <= MAX_ARENAS);
    memcpy(stored[n_stored++], name, FDSTORE_NAME);
}

void
fdstore_drop(const char *name)
{
    for (uint32_t i = 0; i < n_stored; i++) {
        if (strcmp(stored[i], name)) continue;
        memmove(stored[i], stored[--n_stored], FDSTORE_NAME);
        return;
    }
    check(!"it was there");
}

/* ---- lagand's side of hand */

static struct arenas arenas;
static int sock[2];

static void
open_channel(void)
{
    check(fd_channel_pair(sock, NULL) == 0);
    kind_fd[KINDS - 1] = sock[1];
    n_sent = n_gone = n_taken = 0;
}

static void
close_channel(void)
{
    close(sock[0]);
    close(sock[1]);
}

static bool
same_file(int a, int b)
{
    struct stat x, y;

    check(fstat(a, &x) == 0 && fstat(b, &y) == 0);
    return x.st_ino == y.st_ino && x.st_dev == y.st_dev;
}

static void
compare_arenas(void)
{
    uint32_t whole = 0;

    check(arenas.n == n_arenas);
    for (uint32_t i = 0; i < n_arenas; i++) {
        const struct ref_arena *t = &arena[i];
        const struct kept_arena *k = arenas.at;
        char name[FDSTORE_NAME];
        uint32_t at = 0, there = 0;

        while (at < arenas.n && strcmp(k[at].note.name, t->name)) at++;
        check(at < arenas.n && k[at].note.bytes == t->bytes);
        check(k[at].note.flags == (t->whole ? FD_CHANNEL_COMPLETE : 0));
        check(t->kind == KINDS - 1 || same_file(k[at].fd, kind_fd[t->kind]));
        check(fcntl(k[at].fd, F_GETFD) == FD_CLOEXEC);
        if (!t->whole || strchr(t->name, '_')) continue;
        snprintf(name, sizeof name, "w%u=%s", arenas.worker, k[at].note.name);
        for (uint32_t j = 0; j < n_stored; j++) there += !strcmp(stored[j], name);
        check(there == 1);
        whole++;
    }
    check(whole == n_stored);
}

static void
take_arenas(void)
{
    struct err e = { .text = "" };
    int r = arenas_take(&arenas, sock[0], &e), want = ref_take();

    check(r == want && (r == 0 || *e.text));
    compare_arenas();
}

/* Beyond eight descriptors of a message the kernel closes them. */
static void
send_up(struct in *in)
{
    static const char *const names[] = { "weights", "kv", "manifest", "host0", "host9",
                                         "host10",  "",   "A",        "a/b",   "a b",
                                         "_",       "..", "x_",       "host" };
    uint32_t what = byte(in), n_fds = what & 1 ? byte(in) % MOST_FDS : 1, spoils = what >> 6;
    struct sent *s = &sent[n_sent];
    uint8_t bytes[2 * sizeof s->note] = { 0 };
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MOST_FDS * sizeof(int))];
    } control = { .bytes = { 0 } };
    struct iovec v = { .iov_base = bytes };
    struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
    uint32_t which = byte(in);

    if (n_sent == MAX_SENT) return;
    *s = (struct sent){ .bytes = sizeof s->note, .n_fds = n_fds };
    if (which < 2 * ARRAY_LEN(names))
        snprintf(s->note.name, FD_CHANNEL_NAME, "%s", names[which / 2]);
    else
        snprintf(s->note.name, FD_CHANNEL_NAME, "n%u", which % 24);
    s->note.flags = byte(in);
    s->note.bytes = what & 2 ? (uint64_t)byte(in) * 64 << byte(in) % 56
                             : ARENA_BYTES * (what >> 5 & 1);
    if (what & 4) memset(s->note.name, 'a', byte(in) % (FD_CHANNEL_NAME + 1));
    for (; spoils > 0; spoils--) {
        uint32_t at = byte(in) % sizeof s->note;

        ((uint8_t *)&s->note)[at] ^= (uint8_t)byte(in);
    }
    if (what & 8) s->bytes = byte(in) % sizeof bytes;
    memcpy(bytes, &s->note, sizeof s->note);
    v.iov_len = s->bytes;
    if (n_fds) {
        control.align.cmsg_level = SOL_SOCKET;
        control.align.cmsg_type = SCM_RIGHTS;
        control.align.cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
    }
    for (uint32_t i = 0; i < n_fds; i++) {
        int kind = (int)(byte(in) % KINDS);

        if (i == 0) s->kind = kind;
        memcpy(CMSG_DATA(&control.align) + i * sizeof(int), &kind_fd[kind], sizeof(int));
    }
    if (sendmsg(sock[1], &m, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)s->bytes) n_sent++;
}

/* The worker has exited; the fd channel of its replacement has the arenas that may be reused. */
static void
succeed(struct in *in)
{
    uint32_t what = byte(in), n_whole = 0;
    struct death d = { .cause = what & 8 ? DEATH_LOST : DEATH_KILLED,
                       .fault = what & 1,
                       .adopt_kv = what & 2 };
    nsec now = adopted_at + (nsec)byte(in) * NSEC_S / 2;
    struct fd_channel_note note;
    int fd, r;

    if (what & 4) take_arenas();
    arenas_after_death(&arenas, &d, now);
    ref_death(&d, now);
    compare_arenas();
    close_channel();
    open_channel();
    r = arenas_give(&arenas, sock[0], now, NULL);
    adopted_at = now;
    for (uint32_t i = 0; i < n_arenas; i++) n_whole += arena[i].whole;
    check(r == (int)n_whole);
    adopted = n_whole;
    while (fd_channel_take(sock[1], &note, &fd, NULL) == 1) {
        uint32_t at = 0;

        while (at < n_arenas && strcmp(arena[at].name, note.name)) at++;
        check(at < n_arenas && arena[at].whole && note.bytes == arena[at].bytes);
        check(note.flags ==
              (verify_contents ? FD_CHANNEL_COMPLETE | FD_CHANNEL_VERIFY : FD_CHANNEL_COMPLETE));
        check(n_whole-- > 0);
        close(fd);
    }
    check(n_whole == 0);
    if (what & 16) arenas.verify_contents = verify_contents = false; /* it has looked */
}

/* ---- libzmq's side of the control channel, played */

static struct parcel { /* one message: who, and its frames */
    uint32_t peer, n_frames;
    size_t n[3];
    uint8_t frame[3][FRAME];
} inbox[INBOX];
static uint32_t n_inbox, n_read, next_frame;
static bool reading; /* of inbox[n_read] the id at least is taken */
static uint8_t peer_id[PEERS][LONG_ID];
static const int peer_len[PEERS] = { 5, 5, 255, LONG_ID };
static bool *has_come;
static struct {
    bool to_known;
    uint64_t rid;
} call;

void *
zmq_socket(void *context, int type)
{
    (void)context;
    check(type == ZMQ_ROUTER);
    return inbox;
}

int
zmq_bind(void *socket, const char *endpoint)
{
    (void)socket;
    (void)endpoint;
    return 0;
}

int
zmq_close(void *socket)
{
    (void)socket;
    return 0;
}

const char *
zmq_strerror(int code)
{
    return strerror(code);
}

int
zmq_setsockopt(void *socket, int option, const void *value, size_t n)
{
    (void)socket;
    (void)option;
    (void)value;
    (void)n;
    return 0;
}

int
zmq_getsockopt(void *socket, int option, void *value, size_t *n)
{
    (void)socket;
    check(*n == sizeof(int) && (option == ZMQ_FD || option == ZMQ_RCVMORE));
    *(int *)value = option == ZMQ_RCVMORE && n_read < n_inbox &&
                    next_frame < inbox[n_read].n_frames;
    return 0;
}

int
zmq_recv(void *socket, void *buf, size_t n, int flags)
{
    uint32_t peer;

    (void)socket;
    check(flags & ZMQ_DONTWAIT);
    check(!reading || next_frame == inbox[n_read].n_frames); /* whole messages */
    n_read += reading;
    reading = false;
    next_frame = 0;
    if (n_read == n_inbox) {
        errno = EAGAIN;
        return -1;
    }
    reading = true;
    peer = inbox[n_read].peer;
    memcpy(buf, peer_id[peer], MIN(n, (size_t)peer_len[peer]));
    return peer_len[peer];
}

int
zmq_msg_init(zmq_msg_t *m)
{
    memset(m, 0, sizeof *m);
    return 0;
}

/* What has been read is gone with the next message. */
int
zmq_msg_recv(zmq_msg_t *m, void *socket, int flags)
{
    void *at = malloc(inbox[n_read].n[next_frame] + 1);

    (void)socket;
    check(at && flags & ZMQ_DONTWAIT);
    memcpy(at, inbox[n_read].frame[next_frame], inbox[n_read].n[next_frame]);
    memcpy(m, &at, sizeof at);
    memcpy((char *)m + sizeof at, &inbox[n_read].n[next_frame], sizeof(size_t));
    next_frame++;
    return 1;
}

void *
zmq_msg_data(zmq_msg_t *m)
{
    void *at;

    memcpy(&at, m, sizeof at);
    return at;
}

size_t
zmq_msg_size(const zmq_msg_t *m)
{
    size_t n;

    memcpy(&n, (const char *)m + sizeof(void *), sizeof n);
    return n;
}

/* m is always the message that was received last. */
int
zmq_msg_more(const zmq_msg_t *m)
{
    (void)m;
    return next_frame < inbox[n_read].n_frames;
}

int
zmq_msg_close(zmq_msg_t *m)
{
    free(zmq_msg_data(m));
    return 0;
}

int
sd_event_add_io(sd_event *ev, sd_event_source **ret, int fd, uint32_t events,
                sd_event_io_handler_t f, void *arg)
{
    (void)ev;
    (void)fd;
    (void)events;
    (void)f;
    *ret = NULL;
    has_come = arg;
    return 0;
}

sd_event_source *
sd_event_source_disable_unref(sd_event_source *s)
{
    return s;
}

/* ---- the reference of the received frames */

static struct received {
    uint64_t number;
    uint32_t code;
    bool result;
} received[MAX_RECEIVED], want[MAX_RECEIVED];
static uint32_t n_received, n_want;
static int known; /* a peer; -1: the worker has not come yet */
static const char *token;
static struct control_channel *control;
static struct daemon d;
static struct worker w;

static void
control_reply(struct worker *who, uint64_t number, uint32_t code, const msgpack_object *map)
{
    check(who == &w && n_received < MAX_RECEIVED && map);
    received[n_received++] = (struct received){ number, code, msg_get(map, "result") != NULL };
}

int
zmq_send(void *socket, const void *data, size_t n, int flags)
{
    struct msg m;

    (void)socket;
    check(flags & ZMQ_DONTWAIT);
    if (flags & ZMQ_SNDMORE) {
        check(known >= 0 && n == (size_t)peer_len[known]);
        check(!memcmp(data, peer_id[known], n));
        call.to_known = true;
        return (int)n;
    }
    check(call.to_known && msg_decode(&m, data, n, NULL) == 0 && m.type == LAGAN_MSG_CALL);
    call.rid = m.rid;
    msg_done(&m);
    return (int)n;
}

/* fuzz_request tests the form of frames, so the real parser is good enough here. */
static void
ref_receive(const struct parcel *p)
{
    const msgpack_object *t;
    uint64_t code = LAGAN_E_INTERNAL;
    bool right = false;
    struct msg m;

    if (!p->n_frames || peer_len[p->peer] > 255) return;
    if (msg_decode(&m, p->frame[0], p->n[0], NULL) < 0) return;
    t = msg_get(&m.map, "token");
    if (t && (t->type == MSGPACK_OBJECT_STR || t->type == MSGPACK_OBJECT_BIN))
        right = t->via.str.size == strlen(token) && !strncmp(t->via.str.ptr, token, strlen(token));
    if (m.type == LAGAN_MSG_HELLO && right) {
        known = (int)p->peer;
    } else if ((int)p->peer == known && (m.type == LAGAN_MSG_REPLY || m.type == LAGAN_MSG_ERROR)) {
        msg_u64(&m.map, "code", &code);
        want[n_want++] = (struct received){ m.rid, (uint32_t)MIN(code, (uint64_t)UINT32_MAX),
                                            msg_get(&m.map, "result") != NULL };
        if (m.type == LAGAN_MSG_REPLY) want[n_want - 1].code = 0;
    }
    msg_done(&m);
}

static void
pump(void)
{
    bool more = true;

    n_received = n_want = 0;
    for (uint32_t i = 0; i < n_inbox; i++) ref_receive(&inbox[i]);
    *has_come = true;
    while (more) more = control_channel_pump(control);
    check(n_read == n_inbox && n_received == n_want);
    for (uint32_t i = 0; i < n_received; i++)
        check(received[i].number == want[i].number && received[i].code == want[i].code &&
              received[i].result == want[i].result);
    n_inbox = n_read = next_frame = 0;
}

static void
pack_token(struct in *in, msgpack_packer *p, uint32_t what)
{
    char text[64];

    snprintf(text, sizeof text, "%s%s", token, what & 1 ? "0" : "");
    if (what & 2) text[byte(in) % 33] ^= 1;
    if (what & 4) text[byte(in) % 34] = 0;
    msg_key(p, what & 8 ? "tokens" : "token");
    if (what & 16)
        msg_bin(p, text, strlen(text));
    else
        msg_text(p, text);
}

static size_t
make_frame(struct in *in, uint8_t *to)
{
    static const uint64_t edges[] = { 0,         1, 31, 32, UINT32_MAX, 1ull << 32, 1ull << 32 | 1,
                                      UINT64_MAX };
    static const uint32_t types[] = { LAGAN_MSG_HELLO, LAGAN_MSG_REPLY, LAGAN_MSG_ERROR,
                                      LAGAN_MSG_CALL };
    uint32_t what = byte(in), rid = byte(in), keys = byte(in);
    msgpack_sbuffer b;
    msgpack_packer p;
    size_t n;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, types[what % 4], edges[rid % 8], (keys & 1) + (keys >> 1 & 1) + (keys >> 2 & 1));
    if (keys & 1) pack_token(in, &p, keys & 128 ? byte(in) : 0);
    if (keys & 2) {
        msg_key(&p, "code");
        msgpack_pack_uint64(&p, edges[byte(in) % 8]);
    }
    if (keys & 4) {
        msg_key(&p, "result");
        msgpack_pack_map(&p, 0);
    }
    n = MIN(b.size, (size_t)FRAME);
    memcpy(to, b.data, n);
    msgpack_sbuffer_destroy(&b);
    for (uint32_t k = what >> 6; k > 0; k--) to[byte(in) % n] ^= (uint8_t)byte(in);
    if (what & 32) n = byte(in) % (n + 1);
    return n;
}

static void
say(struct in *in, uint32_t what)
{
    struct parcel *m = &inbox[n_inbox];

    if (n_inbox == INBOX) return;
    m->peer = what & 1 ? byte(in) % PEERS : 0;
    m->n_frames = what & 2 ? byte(in) % 4 : 1;
    for (uint32_t i = 0; i < m->n_frames; i++) m->n[i] = make_frame(in, m->frame[i]);
    n_inbox++;
}

static void
ask(struct in *in)
{
    uint64_t number = (uint64_t)byte(in) << 32 | byte(in);
    int r = control_channel_call(control, number, "stats", NULL);

    check(r == (known < 0 ? -ENOTCONN : 0));
    check(r < 0 || call.rid == number);
}

/* ---- */

static void
open_control(void)
{
    static const struct daemon_events events = { .control_reply = control_reply };
    static struct runtime_dir runtime = { .dir = "/nonexistent" };
    const char *endpoint;

    d.events = &events;
    d.runtime = &runtime;
    w.d = &d;
    control = control_channel_open(&w, &endpoint, &token);
    check(control);
    known = -1;
}

static void
prepare(void)
{
    int pipe_fd[2];

    if (kind_fd[0]) return;
    log_level_set(LOG_LEVEL_ERR - 1);
    kind_fd[0] = memfd_create("arena", MFD_CLOEXEC);
    kind_fd[1] = memfd_create("empty", MFD_CLOEXEC);
    check(pipe2(pipe_fd, O_CLOEXEC) == 0);
    kind_fd[2] = pipe_fd[0];
    kind_fd[3] = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    check(ftruncate(kind_fd[0], ARENA_BYTES) == 0);
    for (uint32_t i = 0; i < PEERS; i++) memset(peer_id[i], 'A' + (int)(i & 1), LONG_ID);
}

static uint32_t
descriptors(void)
{
    uint32_t n = 0;

    for (int fd = 0; fd < LOOKED_AT; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct in in = { data, data + size };
    uint32_t n_open;

    prepare();
    n_open = descriptors();
    arenas = (struct arenas){ .worker = 3 };
    n_arenas = n_stored = strikes = n_inbox = n_read = next_frame = 0;
    verify_contents = adopted = false;
    adopted_at = NSEC_S;
    open_channel();
    open_control();
    while (in.p < in.end) {
        uint32_t op = byte(&in);

        switch (op % 8) {
        case 0:
        case 1:
            send_up(&in);
            break;
        case 2:
            take_arenas();
            break;
        case 3:
            succeed(&in);
            break;
        case 4:
        case 5:
            say(&in, op >> 3);
            break;
        case 6:
            pump();
            break;
        default:
            pump();
            ask(&in);
        }
    }
    pump();
    take_arenas();
    control_channel_close(control);
    arenas_close(&arenas);
    close_channel();
    check(descriptors() == n_open);
    return 0;
}
