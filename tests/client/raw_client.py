#!/usr/bin/python3
"""raw_client.py - a client written from the manual lagan-protocol(7) alone: a test of the manual.

raw_client.py LAGAND MODEL_DIR RUNTIME_DIR

Starts lagand, then does what a client needs: handshake, SUBMIT, streaming with ACK, PING and PONG,
the idle timeout, RESUME on another connection, CANCEL, QUERY, CALL, rejected messages. Uses pyzmq
and msgpack only, and no file of this tree. A change of the protocol changes the manual first.
"""
import math
import os
import signal
import struct
import subprocess
import sys
import time

import msgpack
import zmq

# The numbers of MESSAGES and ERRORS in the manual.
HELLO, WELCOME, SUBMIT, ACCEPT, CHUNK, ACK, DONE, ERROR = range(1, 9)
CANCEL, RESUME, QUERY, PING, PONG, BYE, CALL, REPLY = range(9, 17)
INVALID_REQUEST, CANCELLED, NOT_FOUND = 32, 36, 47
LIMIT_S = 30  # of each wait

context = zmq.Context()


class Connection:
    """One connection: sends messages, replies to PING, keeps the connection."""

    def __init__(self, endpoint, session=None):
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.reconnect_ivl = -1  # another connection is another socket
        self.socket.connect(endpoint)
        self.keep = True
        self.sent = time.monotonic()
        self.idle = 10  # until WELCOME has it
        hello = {"min": 1, "max": 1, "client": "raw_client 1.0"}
        if session:
            hello["session"] = session
        self.send(HELLO, 0, hello)
        self.welcome = self.receive(WELCOME)[3]
        self.idle = self.welcome["limits"]["idle_timeout_ms"] / 1000

    def send(self, kind, rid, keys):
        self.send_bytes(msgpack.packb([1, kind, rid, keys]))

    def send_bytes(self, frame):
        self.socket.send(frame)
        self.sent = time.monotonic()

    def next(self, seconds=LIMIT_S):
        """Returns the next message that is neither PING nor PONG; None: there is none in time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.keep and time.monotonic() - self.sent > self.idle / 3:
                self.send(PING, 0, {"t": 7})
            if not self.socket.poll(50):
                continue
            message = msgpack.unpackb(self.socket.recv(), strict_map_key=False)
            if message[1] == PING and self.keep:
                self.send(PONG, 0, {"t": message[3]["t"]})
            if message[1] not in (PING, PONG):
                return message
        return None

    def receive(self, kind, rid=None):
        """Returns the next message, which must be of this kind and rid."""
        message = self.next()
        assert message and message[1] == kind, f"expected message {kind}, got {message}"
        assert rid is None or message[2] == rid, f"expected rid {rid}, got {message}"
        return message

    def error(self, rid, code, words):
        keys = self.receive(ERROR, rid)[3]
        assert keys["code"] == code and words in keys["message"], keys
        return keys

    def close(self):
        self.socket.close()


class Output:
    """The tokens and the text of one request."""

    def __init__(self):
        self.ids, self.text, self.n, self.done = [], "", 0, None

    def take(self, connection, message):
        kind, rid, keys = message[1:4]
        if kind == DONE:
            self.done = keys["outputs"][0]
            return
        assert kind == CHUNK, message
        assert keys["n"] == self.n + 1, "a chunk is missing"
        self.n = keys["n"]
        if "pl" not in keys and "x" not in keys:
            assert keys["i"] == len(self.ids), "tokens are missing or repeated"
            self.ids += [id for (id,) in struct.iter_unpack("<i", keys["t"])]
            self.text += keys["s"]
        if self.n % 32 == 0:
            connection.send(ACK, rid, {"n": self.n})

    def run(self, connection, rid):
        while not self.done:
            message = connection.next()
            assert message and message[2] == rid, message
            self.take(connection, message)
        assert self.done["n_tokens"] == len(self.ids)
        return self


def submit(connection, rid, **keys):
    connection.send(SUBMIT, rid, keys)
    return connection.receive(ACCEPT, rid)[3]


def ask(connection, rid, **keys):
    submit(connection, rid, **keys)
    return Output().run(connection, rid)


PROMPT = {"text": "k3=blue;k3?", "ignore_eos": True}


def streams(endpoint):
    """A request in text, the same one in ids, and one with log-probabilities."""
    c = Connection(endpoint)
    assert c.welcome["proto"] == 1 and c.welcome["state"] == "ready", c.welcome
    assert c.welcome["limits"]["text_bytes"][0] > 1000, c.welcome
    assert {"fit", "request_id", "pieces"} <= set(c.welcome["features"]), c.welcome
    want = ask(c, 1, **PROMPT, max_tokens=600)
    assert len(want.ids) == 600 and want.done["reason_name"] == "length", want.done
    c.send(CALL, 2, {"verb": "tokenize", "args": {"text": PROMPT["text"]}})
    ids = c.receive(REPLY, 2)[3]["result"]["ids"]
    if isinstance(ids, bytes):
        ids = list(struct.unpack(f"<{len(ids) // 4}i", ids))
    bin_ids = struct.pack(f"<{len(ids)}i", *ids)
    c.send(CALL, 2, {"verb": "pieces", "args": {"ids": ids}})
    assert b"".join(c.receive(REPLY, 2)[3]["result"]).endswith(PROMPT["text"].encode())
    ended = ask(c, 2, text=PROMPT["text"], max_tokens=20, stop="lue", request_id="r-1", fit=True)
    assert ended.done["stop"] == "lue", ended.done
    assert ask(c, 3, ids=ids, ignore_eos=True, max_tokens=600).ids == want.ids
    assert ask(c, 4, ids=bin_ids, ignore_eos=True, max_tokens=600).text == want.text

    submit(c, 5, **PROMPT, max_tokens=3, logprobs=1, prompt_logprobs=1)
    message = c.receive(CHUNK, 5)
    pl = message[3]["pl"]
    first = struct.unpack_from("<f", pl["lp"])[0]
    id, logprob = struct.unpack_from("<if", pl["d"])
    assert pl["i"] == 0 and pl["k"] == 1 and math.isnan(first) and id == -1 and math.isnan(logprob)
    output = Output()
    output.take(c, message)
    output.run(c, 5)
    c.close()
    return want


def keeps_connection(endpoint, want):
    """PONG and PING keep a stream; without PING there is BYE, and RESUME on another connection."""
    session = os.urandom(16)
    c = Connection(endpoint, session)
    seed = submit(c, 1, **PROMPT, max_tokens=600, ack_window=2)["seed"]
    assert isinstance(seed, int)
    output = Output()
    output.take(c, c.receive(CHUNK, 1))
    c.keep = False  # reads only: lagand closes the connection
    while True:
        message = c.next()
        assert message, "no BYE"
        if message[1] == BYE:
            break
        output.take(c, message)
    assert "no message" in message[3]["reason"] and message[3]["retry_after_ms"] >= 0, message
    c.close()

    c = Connection(endpoint, session)
    rids = {"rids": [1, 77], "n_tokens": [len(output.ids), 0]}
    c.send(RESUME, 2, {**rids, "text_bytes": [len(output.text.encode()), 0]})
    output.n = 0
    while True:
        message = c.next()
        assert message
        if message[1] == REPLY:
            break
        output.take(c, message)
    result = message[3]["result"]
    assert message[2] == 2 and result["unknown"] == [77], message
    assert len(result["at"]) == 1 and abs(result["at"][0][1] - time.time()) < 600, message
    # The window of the SUBMIT stays 2, so ACK every chunk now.
    while not output.done:
        c.send(ACK, 1, {"n": output.n})
        message = c.next()
        assert message and message[2] == 1, message
        output.take(c, message)
    assert output.ids == want.ids and output.text == want.text
    time.sleep(0.1)
    quiet = c.next(1.5 * c.idle)  # next() sends PING
    assert quiet is None, quiet
    assert ask(c, 3, **PROMPT, max_tokens=2).ids == want.ids[:2]
    c.close()


def rejected(endpoint, want):
    """Each rejected message gets its own rid; open requests continue."""
    c = Connection(endpoint)
    submit(c, 1, **PROMPT, max_tokens=600, ack_window=1)
    output = Output()
    output.take(c, c.receive(CHUNK, 1))
    c.send_bytes(msgpack.packb([1, SUBMIT, 2]) + b"\x81\xa4text\xa1\xff")
    c.receive(ERROR)
    c.send_bytes(b"\x94\x01\x03\x02\x81\xa4text\xa1\xff")
    assert c.error(2, INVALID_REQUEST, "UTF-8")["retryable"] is False
    c.send(SUBMIT, 3, {"text": "a", "max_token": 5})
    c.error(3, INVALID_REQUEST, "did you mean max_tokens?")
    c.send(CALL, 4, {"verb": "tokenize", "args": {"txt": "a"}})
    c.error(4, INVALID_REQUEST, "did you mean text?")
    c.send(99, 5, {})
    c.receive(ERROR, 5)
    limit = c.welcome["limits"]["text_bytes"][0]
    if limit < c.welcome["limits"]["frame"] - 100:
        c.send(SUBMIT, 6, {"text": "a" * (limit + 1)})
        assert c.receive(ERROR, 6)[3]["reason_name"] == "too_long"
    c.send(QUERY, 7, {"rids": [1, 50]})
    states = c.receive(REPLY, 7)[3]["result"]
    assert states[0]["rid"] == 1 and states[0]["n"] >= 1, states
    assert states[0]["state"] in ("dispatched", "streaming", "ended"), states
    assert states[1] == {"rid": 50, "state": "unknown", "n": 0}, states
    c.send(CANCEL, 8, {"rids": [50]})
    c.error(50, NOT_FOUND, "50")
    while not output.done:
        c.send(ACK, 1, {"n": output.n})
        message = c.next()
        assert message and message[2] == 1, message
        output.take(c, message)
    assert output.ids == want.ids

    submit(c, 9, **PROMPT, max_tokens=900)
    c.receive(CHUNK, 9)
    c.send(CANCEL, 9, {})
    while True:
        message = c.next()
        assert message and message[2] == 9, message
        if message[1] != CHUNK:
            break
    assert message[1] in (ERROR, DONE), message
    assert message[1] == DONE or message[3]["code"] == CANCELLED, message
    c.send(BYE, 0, {"reason": "the test ends"})
    c.close()


def follows_events(endpoint):
    """A verb is followed by repeated calls; operators' verbs need ctl.sock."""
    c = Connection(endpoint)
    c.send(CALL, 1, {"verb": "events", "args": {"from": 1}})
    assert c.receive(ERROR, 1)[3]["reason_name"] == "unauthorized"
    c.close()
    c = Connection(endpoint.replace("api.sock", "ctl.sock"))
    c.send(CALL, 2, {"verb": "events", "args": {"from": 1}})
    result = c.receive(REPLY, 2)[3]["result"]
    assert result["events"][0]["number"] >= 1, result
    c.send(CALL, 3, {"verb": "events", "args": {"from": result["next"]}})
    assert c.receive(REPLY, 3)[3]["result"]["next"] >= result["next"]
    c.close()


def main():
    lagand, model, folder = sys.argv[1:4]
    command = [lagand, "--foreground", "--runtime-dir", folder, "--model", model, "--device", "cpu"]
    server = subprocess.Popen(command + ["--api.idle-timeout", "3s", "--set", "threads=1"])
    endpoint = f"ipc://{folder}/api.sock"
    try:
        until = time.monotonic() + LIMIT_S
        while not os.path.exists(f"{folder}/api.sock") and time.monotonic() < until:
            time.sleep(0.05)
        c = Connection(endpoint)
        while c.welcome["state"] != "ready" and time.monotonic() < until:
            time.sleep(0.1)
            c.close()
            c = Connection(endpoint)
        c.close()
        want = streams(endpoint)
        keeps_connection(endpoint, want)
        rejected(endpoint, want)
        follows_events(endpoint)
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(LIMIT_S)
    assert code == 0, f"lagand exited with {code}"


main()
