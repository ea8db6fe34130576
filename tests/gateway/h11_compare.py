#!/usr/bin/python3
"""Compares the HTTP parser of lagan-gateway with h11 on drawn streams of requests.

Usage: h11_compare.py PROGRAM [STREAMS [SEED]]. PROGRAM is tests/gateway/http_reader. A request that
both accept must have the same method, path, query, fields and body in both, and h11 must accept
every request that lagan-gateway accepts. Prints how many requests only h11 accepts.
"""
import collections
import json
import random
import re
import subprocess
import sys
import urllib.parse

import h11

METHODS = [b"GET", b"POST", b"POST", b"OPTIONS", b"HEAD", b"DELETE", b"PUT", b"BREW", b"get"]
TARGETS = [
    b"/", b"/v1/models", b"/a/?b=1", b"/%61%2F%2fb/", b"http://h/x?y", b"HTTPS://h", b"*", b"//",
    b"/a?", b"/%ff", b"/a?b?c", b"/a b", b"/%", b"x",
]
VERSIONS = [b"1.1", b"1.1", b"1.1", b"1.0", b"1.2", b"11", b"2.0"]
FIELDS = [
    b"Host: a", b"Host: a", b"Content-Length: 3", b"Transfer-Encoding: chunked", b"X: y z ",
    b"x:", b"X: \xff\xc3\xa4\t", b"Connection: close", b"connection: a, Keep-Alive ,",
    b"Expect: 100-continue", b"Content-Length: 0", b"Content-Length: 03",
    b"Content-Length: 3, 3", b"Content-Length: +3", b"Content-Length: 3 3", b"Content-Length:",
    b"TRANSFER-encoding:\tCHUNKED", b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding : chunked", b" X: a", b": a", b"X", b"X: \x01", b"X: \x7f", b"X: \x00",
    b"X: a\rb", b"Transfer-: chunked\r\n Encoding", b"X: a\n", b"Upgrade: websocket", b"X@: a",
    b"x-y_z: 1", b"Host: b",
]
BODIES = [
    b"", b"", b"abc", b"3\r\nabc\r\n0\r\n\r\n", b"0\r\n\r\n",
    b"1\r\na\r\n00A\r\n0123456789\r\n0\r\n\r\n", b"3;x=y\r\nabc\r\n0\r\n\r\n",
    b"0x3\r\nabc\r\n0\r\n\r\n", b"3\nabc\n0\n\n", b"3\r\nabcd\r\n0\r\n\r\n", b"0\r\nA: b\r\n\r\n",
    b"00000000003\r\nabc\r\n0\r\n\r\n", b"g\r\n", b"\r\n", b"3\r\nabc\r\n0\r\n\n",
]
ENDS = [b"\r\n"] * 12 + [b"\n", b"\r", b" \r\n", b"\r\r\n"]
BYTES = b"\r\n \t:;,%/\x00\x01\x7f\x80aA0HTTP"
NAMES = {b"GET": 0, b"HEAD": 1, b"POST": 2, b"DELETE": 3, b"OPTIONS": 4}


def draw_request(draw):
    if draw.random() < 0.3:  # a good one
        fields = [b"Host: a", draw.choice(FIELDS[4:9])]
        body = draw.choice([None, b"abc", b"3\r\nabc\r\n0\r\n\r\n"])
        if body is not None:
            fields.append(b"Content-Length: 3" if body == b"abc" else b"Transfer-Encoding: chunked")
        draw.shuffle(fields)
        method = b"GET " if body is None else b"POST "
        line = method + draw.choice(TARGETS[:6]) + b" HTTP/1.1"
        return b"\r\n".join([line] + fields) + b"\r\n\r\n" + (body or b"")
    space = b" " if draw.random() < 0.95 else draw.choice([b"  ", b"\t", b""])
    out = draw.choice(METHODS) + space + draw.choice(TARGETS) + space
    out += b"HTTP/" + draw.choice(VERSIONS)
    out += draw.choice(ENDS)
    fields = [FIELDS[0]] if draw.random() < 0.8 else []
    fields += [draw.choice(FIELDS) for _ in range(draw.randrange(4))]
    draw.shuffle(fields)
    out += b"".join(f + draw.choice(ENDS) for f in fields)
    return out + b"\r\n" + draw.choice(BODIES)


def draw_stream(draw):
    out = b"".join(draw_request(draw) for _ in range(draw.randrange(1, 4)))
    if draw.random() < 0.3:
        at = draw.randrange(len(out))
        out = out[:at] + bytes([draw.choice(BYTES)]) + out[at + draw.randrange(2):]
    return out


def path_and_query(target):
    """The path and query of a target, by the rules of gateway/http/README.md."""
    lower = target.lower()
    for scheme in (b"http://", b"https://"):
        if lower.startswith(scheme):
            rest = target[len(scheme):]
            at = min([i for i in (rest.find(b"/"), rest.find(b"?")) if i >= 0] or [len(rest)])
            target = rest[at:]
    path, _, query = target.partition(b"?")
    parts = re.split(b"(%2[fF])", path)  # an escaped slash stays
    path = b"".join(p if i % 2 else urllib.parse.unquote_to_bytes(p) for i, p in enumerate(parts))
    path = path or b"/"
    return path[:-1] if len(path) > 1 and path.endswith(b"/") else path, query


def read_with_h11(data):
    """The requests that h11 reads of a stream, and the reason why it stops."""
    requests = []
    c = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    c.receive_data(data)
    try:
        while True:
            event = c.next_event()
            if event is h11.NEED_DATA:
                return requests, "more"
            if isinstance(event, h11.Request):
                path, query = path_and_query(event.target)
                request = {"version": event.http_version, "path": path, "query": query,
                           "method": NAMES.get(event.method, 5),
                           "fields": [(n.lower(), v) for n, v in event.headers], "body": b""}
            elif isinstance(event, h11.Data):
                request["body"] += event.data
            elif isinstance(event, h11.EndOfMessage):
                requests.append(request)
                c.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
                c.send(h11.EndOfMessage())
                if h11.MUST_CLOSE in (c.our_state, c.their_state):
                    return requests, "closed"
                c.start_next_cycle()
            else:
                return requests, "closed"
    except h11.RemoteProtocolError as e:
        return requests, str(e)[:60]


def is_known(want, why):
    """Differences that are right: RFC 9112, 2.2 and 9.3 allow both."""
    no_empty_line = why == "no request line received"
    no_keep_alive = why == "closed" and want[-1]["version"] == b"1.0"
    return no_empty_line or no_keep_alive


def plain(text):
    return text.encode("latin-1")


def ours(line):
    result = json.loads(line)
    for r in result["requests"]:
        r["path"], r["query"], r["body"] = plain(r["path"]), plain(r["query"]), plain(r["body"])
        r["fields"] = [(plain(n).lower(), plain(v)) for n, v in r["fields"]]
        # h11 returns the coding in small letters
        r["fields"] = [(n, v.lower() if n == b"transfer-encoding" else v) for n, v in r["fields"]]
    return result


def main():
    program, n = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    draw = random.Random(seed)
    reader = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    n_same, only_we, only_h11 = 0, collections.Counter(), collections.Counter()
    for _ in range(n):
        data = draw_stream(draw)
        reader.stdin.write(b"%d\n" % len(data) + data)
        reader.stdin.flush()
        got = ours(reader.stdout.readline())
        want, why = read_with_h11(data)
        for a, b in zip(got["requests"], want):
            for key in ("method", "path", "query", "fields", "body"):
                if a[key] != b[key]:
                    sys.exit(f"seed {seed}: {data!r}: {key} is {a[key]!r}, h11 has {b[key]!r}")
            n_same += 1
        if len(got["requests"]) > len(want) and not is_known(want, why):
            only_we[why] += 1
            print("accepted, but not by h11:", data, why, file=sys.stderr)
        elif len(got["requests"]) < len(want):
            only_h11[got["status"]] += 1
    print(f"{n} streams, seed {seed}: {n_same} requests are equal;",
          f"{sum(only_h11.values())} only h11 accepts (our status: {dict(only_h11)}),",
          f"{sum(only_we.values())} only we accept")
    sys.exit(1 if only_we else 0)


main()
