#!/bin/bash
# gateway.sh - lagan-gateway with a real lagand and real workers, asked with curl: routes, streams,
# errors, deaths of worker and lagand, clients that leave, reload and stop.
set -u
build=$PWD
top=$(cd "${srcdir:-$(dirname "$0")/../..}" && pwd)
command -v curl >/dev/null || { echo "curl is not installed"; exit 77; }
dir=$(mktemp -d) || exit 99
pids=
trap 'kill -9 $pids 2>/dev/null; wait 2>/dev/null; rm -rf "$dir"' EXIT
url=

fail() {
  echo "FAILED: $*"
  for f in head body gateway.log lagand.log; do
    [ ! -s "$dir/$f" ] || { echo "-- $f"; tail -15 "$dir/$f"; }
  done
  exit 1
}
within() { # SECONDS COMMAND: repeats the command until it succeeds
  local end=$((SECONDS + $1)); shift
  until "$@"; do [ $SECONDS -lt $end ] || return 1; sleep 0.02; done
}
ask() { # PATH [ARGUMENTS of curl]: sets $code, body, head
  code=$(curl -s -m 60 -D "$dir/head" -o "$dir/body" -w '%{http_code}' "$url$1" "${@:2}")
}
responds() { # CODE TEXT...: the last response has this status and these texts
  [ "$code" = "$1" ] || fail "status $code, expected $1"
  for text in "${@:2}"; do grep -qF -- "$text" "$dir/body" || fail "no '$text' in the body"; done
}
header() { grep -qi -- "^$1" "$dir/head" || fail "no header $1"; }
text_of() { # FILE: the joined deltas of a stream, as JSON text
  sed -n 's/^data: .*"\(text\|content\)":"\(\([^"\\]\|\\.\)*\)".*/\2/p' "$1" | tr -d '\n'
}
lagand() {
  "$build/lagand" --runtime-dir "$dir/run" --config "$dir/lagan.yaml" >>"$dir/lagand.log" 2>&1 &
  lagand=$!
  pids="$pids $lagand"
}
ctl() { "$build/laganctl" --connect "ipc://$dir/run/api.sock" "$@" 2>/dev/null; }
lists_none() { [ "$(ctl requests list --json)" = '[]' ]; }
worker_of() { # MODEL
  ctl workers list --json | tr '{' '\n' |
    sed -n "s/.*\"pid\":\([0-9]*\).*\"model\":\"$1\".*/\1/p"
}

# ---- command line and configuration
gateway=$build/lagan-gateway
"$gateway" --help | grep -q -- '--listen ADDRESS' || fail 'help'
"$gateway" --version | grep -q '^lagan-gateway [0-9]' || fail 'version'
"$gateway" --check --config /dev/null 2>/dev/null || fail 'a valid configuration is refused'
"$gateway" --nonsense 2>/dev/null; [ $? = 2 ] || fail 'exit code of a wrong option'
cat >"$dir/bad.yaml" <<'END'
listen: [127.0.0.1:0, "0.0.0.0:80", nowhere]
tls_cert: /etc/cert.pem
max_body: many
models: { a: b, b: c }
lagand: tcp://127.0.0.1:1
END
"$gateway" --check --config "$dir/bad.yaml" >"$dir/body" 2>&1
code=$?
responds 78 'tls_cert, tls_key: lagan-gateway does not serve TLS' 'bad.yaml:3:11: max_body' \
  'other hosts can reach 0.0.0.0:80' '"nowhere" is no address' 'the alias a names the alias b' \
  'lagand_keys is not set'

# ---- without lagand: 503, and the process is alive
# A model with a chat template: Llama 2 needs only the special tokens of a byte vocabulary.
cp -r "$top/models/recall-gemma3" "$dir/chatty" && chmod -R u+w "$dir/chatty"
sed -i 's|<bos>|<s>|g; s|<eos>|</s>|g' "$dir/chatty/tokenizer.json"
echo "models:" >"$dir/lagan.yaml"
for model in "$top/models/recall-gemma3" "$top/models/numbers-t5" "$dir/chatty"; do
  printf '  - { path: %s, device: cpu, threads: 1, kv.memory: 64MiB }\n' "$model"
done >>"$dir/lagan.yaml"
sed -i '/chatty/s/threads/chat_template: llama2, threads/' "$dir/lagan.yaml"
cat >"$dir/gateway.yaml" <<END
listen: [127.0.0.1:0, "unix:$dir/http.sock"]
lagand: ipc://$dir/run/api.sock
models: { gpt-4: recall-gemma3 }
write_timeout: 2s
END
"$gateway" --config "$dir/gateway.yaml" --announce >"$dir/url" 2>"$dir/gateway.log" &
gateway_pid=$!
pids="$pids $gateway_pid"
within 10 grep -qs 'listening on 127' "$dir/gateway.log" || fail 'the gateway does not listen'
url=http://$(sed -n 's/.*listening on \(127.*\)/\1/p' "$dir/gateway.log")
ask /health/live; responds 200
ask /health; responds 503
ask /v1/completions -d '{"model":"recall-gemma3","prompt":"k1=a;k1?"}'
responds 503 '"code":"lagand_unreachable"' '"type":"server_error"' '"param":null'
header 'Retry-After: 1'
[ ! -s "$dir/url" ] || fail 'URLs are announced before lagand is there'

# ---- the routes
lagand
within 30 grep -q . "$dir/url" || fail 'lagand does not become ready'
grep -qx "$url" "$dir/url" && grep -qx "unix:$dir/http.sock" "$dir/url" || fail 'announced URLs'
healthy() { ask "/health$1"; [ "$code" = 200 ]; }
for model in recall-gemma3 numbers-t5 chatty; do
  within 30 healthy "?model=$model" || fail "$model is not ready"
done
ask /v1/models
responds 200 '"object":"list"' '"id":"recall-gemma3"' '"id":"numbers-t5"' '"id":"gpt-4"'
ask /v1/models/numbers-t5; responds 200 '"id":"numbers-t5","object":"model"'
ask /v1/models/none; responds 404 '"code":"model_not_found"'
ask /v1/completions -d '{"model":"recall-gemma3","prompt":"k3=blue;q7=stone;q7?"}'
responds 200 '"object":"text_completion"' '"text":"stone"' '"finish_reason":"stop"' \
  '"prompt_tokens":' '"system_fingerprint":"lagan-'
header 'Content-Type: application/json'
header 'X-Request-Id: '
ask /v1/completions -d '{"model":"gpt-4","prompt":"k3=blue;q7=stone;k3?"}'
responds 200 '"text":"blue"' '"model":"gpt-4"'
ask /v1/completions -d '{"model":"numbers-t5","prompt":["12","7"]}'
responds 200 '"text":"twelve"' '"index":1,"text":"seven"'
ask /v1/embeddings -d '{"model":"numbers-t5","input":"12"}'; responds 200 '"object":"embedding"'
chat='"model":"chatty","messages":[{"role":"user","content":"k3=blue;k3?"}],"max_tokens":20'
ask /v1/chat/completions -d "{$chat,\"ignore_eos\":true}"
responds 200 '"object":"chat.completion"' '"role":"assistant"' '"finish_reason":"length"' \
  '"completion_tokens":20'
curl -s --unix-socket "$dir/http.sock" http://x/version | grep -q '"version"' || fail 'unix socket'

# ---- streams
ask /v1/completions -N -d '{"model":"recall-gemma3","prompt":"k3=blue;q7=stone;q7?","stream":true}'
responds 200 '"text":' 'data: [DONE]'
header 'Content-Type: text/event-stream'
[ "$(text_of "$dir/body")" = stone ] || fail 'text of a stream'
grep -v -e '^data: ' -e '^$' "$dir/body" && fail 'a line of the stream is no event'
ask /v1/chat/completions -N \
  -d "{$chat,\"ignore_eos\":true,\"stream\":true,\"stream_options\":{\"include_usage\":true}}"
responds 200 '"object":"chat.completion.chunk"' '"delta":{"role":"assistant"' \
  '"finish_reason":"length"' '"choices":[],"usage":{"prompt_tokens":' 'data: [DONE]'

# ---- errors
ask /v1/completions -d '{"prompt":"x"'; responds 400 '"code":"invalid_json"'
ask /v1/completions -d '{"model":"none","prompt":"x"}'; responds 404 '"code":"model_not_found"'
ask /v1/completions -d '{"model":"recall-gemma3","prompt":"x","temperature":"hot"}'
responds 400 '"param":"temperature"' '"type":"invalid_request_error"'
ask /v1/completions -d '{"model":"recall-gemma3","prompt":"x","suffix":"y"}'
responds 400 '"param":"suffix","code":"unsupported"'
ask /v1/completions -d "{\"model\":\"recall-gemma3\",\"prompt\":\"$(printf 'x%.0s' {1..1100})\"}"
responds 400 '"code":"context_length_exceeded"' "This model's maximum context length is 1024 tokens"
ask /v1/completions -H 'Content-Type: application/json' \
  -d '{"model":"recall-gemma3","prompt":"k1=a;k1?","no_such_field":1}'
responds 200; header 'X-Lagan-Ignored: no_such_field'
ask /v1/nothing; responds 404 '"code":"unknown_url"'
ask /v1/responses -d '{}'; responds 404 '"code":"unsupported"' '/v1/chat/completions'
ask /v1/completions; responds 405; header 'Allow: '
ask /v1/completions -H 'Content-Encoding: gzip' -d x; responds 415
ask /metrics; responds 200 'lagan_'

# ---- a client that leaves: its request is cancelled, streamed or not
long='"model":"numbers-t5","prompt":"7","max_tokens":60000,"ignore_eos":true'
for stream in true false; do
  curl -sN -o "$dir/left" "$url/v1/completions" -d "{$long,\"stream\":$stream}" &
  client=$!
  within 20 eval '! lists_none' || fail 'the request does not appear'
  { kill -9 $client; wait $client; } 2>/dev/null
  within 10 lists_none || fail 'the request of a client that left is open'
done
grep -q 'disconnected' "$dir/gateway.log" || fail 'the log does not name the client that left'

# ---- a client that does not read: lagand suspends the request; then it ends, others are served
exec 9<>"/dev/tcp/127.0.0.1/${url##*:}"
body="{${long/\"ignore_eos\":true/\"logit_bias\":{\"1\":-100\}},\"stream\":true}"
printf 'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s' \
  ${#body} "$body" >&9
within 20 eval 'ctl requests list | grep -q suspended' || fail 'a slow reader is not suspended'
ask /v1/completions -d '{"model":"numbers-t5","prompt":"7"}'; responds 200 '"text":"seven"'
within 20 lists_none || fail 'the request of a slow reader does not end'
within 5 grep -q slow_reader "$dir/gateway.log" || fail 'the log does not name the slow reader'
exec 9>&-

runs() { [ "$(grep -sc '^data:' "$dir/stream")" -gt 20 ] 2>/dev/null; }

# ---- a worker dies in a stream: the same text
story='"model":"numbers-t5","prompt":"1284","max_tokens":3000,"logit_bias":{"1":-100},"stream":true'
ask /v1/completions -N -d "{$story}"; responds 200 '[DONE]'
want=$(text_of "$dir/body")
[ ${#want} -gt 1000 ] || fail 'the stream is short'
rm -f "$dir/stream"
curl -sN -m 60 -o "$dir/stream" "$url/v1/completions" -d "{$story}" &
client=$!
within 20 runs || fail 'no stream'
kill -9 "$(worker_of numbers-t5)"
wait $client || fail "curl ended with $? when the worker died"
grep -q '\[DONE\]' "$dir/stream" || fail 'the stream has no end'
[ "$(text_of "$dir/stream")" = "$want" ] || fail 'the text is another after the death of the worker'

# ---- lagand dies in a stream: the same text; then requests are served again
within 30 healthy '?model=numbers-t5' || fail 'no replacement'
rm -f "$dir/stream"
curl -sN -m 60 -o "$dir/stream" "$url/v1/completions" -d "{$story}" &
client=$!
within 20 runs || fail 'no stream'
{ kill -9 $lagand; wait $lagand; } 2>/dev/null
unreachable() {
  ask /v1/completions -d '{"model":"recall-gemma3","prompt":"x"}'
  [ "$code" = 503 ]
}
within 20 unreachable || fail 'without lagand there is no 503'
lagand
wait $client || fail "curl ended with $? when lagand died"
[ "$(text_of "$dir/stream")" = "$want" ] || fail 'the text is another after the death of lagand'
within 30 healthy '?model=recall-gemma3' || fail 'the next lagand is not served'

# ---- reload: aliases change, a faulty file changes nothing
sed -i 's/gpt-4:/gpt-5:/' "$dir/gateway.yaml"
kill -HUP $gateway_pid
alias() { ask "/v1/models/$1"; [ "$code" = 200 ]; }
within 10 alias gpt-5 || fail 'reload'
ask /v1/models/gpt-4; responds 404
echo 'max_body: many' >>"$dir/gateway.yaml"
kill -HUP $gateway_pid
within 10 grep -q 'the former one stays in force' "$dir/gateway.log" || fail 'faulty reload'
alias gpt-5 || fail 'a faulty file changed the configuration'

# ---- stop: a running stream finishes, a new connection is refused, exit code 0
rm -f "$dir/stream"
curl -sN -m 60 -o "$dir/stream" "$url/v1/completions" -d "{$story}" &
client=$!
within 20 runs || fail 'no stream'
kill -TERM $gateway_pid
within 10 eval '! curl -s -o /dev/null -m 5 "$url/health/live"' || fail 'connections are accepted'
wait $client || fail "curl ended with $? when the gateway stopped"
[ "$(text_of "$dir/stream")" = "$want" ] || fail 'the stream was cut by the stop'
wait $gateway_pid || fail "the gateway exited with $?"
[ ! -e "$dir/http.sock" ] || fail 'the socket was left behind'
grep -q 'completions 200 stop: model' "$dir/gateway.log" || fail 'requests are not logged'
! grep -q 'q7=stone' "$dir/gateway.log" || fail 'the log has a prompt'
kill -TERM $lagand
wait $lagand || fail "lagand exited with $?"

# ---- kill -9: the requests of the dead gateway end, and the next one serves at once
sed -i '/max_body: many/d' "$dir/gateway.yaml"
start_gateway() {
  : >"$dir/url" # the shell of the gateway empties it later
  "$gateway" --config "$dir/gateway.yaml" "$@" >"$dir/url" 2>"$dir/gateway.log" &
  gateway_pid=$!
  pids="$pids $gateway_pid"
}
lagand
within 30 eval 'ctl status --wait >/dev/null' || fail 'lagand does not start'
start_gateway --announce
within 30 grep -q . "$dir/url" || fail 'the gateway does not start'
url=$(grep -m1 http: "$dir/url")
curl -sN -o "$dir/left" "$url/v1/completions" -d "{$long,\"stream\":true}" &
client=$!
within 20 eval '! lists_none' || fail 'the request does not appear'
{ kill -9 $gateway_pid; wait $gateway_pid; } 2>/dev/null
wait $client
within 20 lists_none || fail 'the request of a dead gateway is open'
if command -v systemd-socket-activate >/dev/null; then
  # The first request after the activation waits for lagand instead of getting 503.
  port=$((20000 + $$ % 10000))
  systemd-socket-activate -l 127.0.0.1:$port "$gateway" --config "$dir/gateway.yaml" \
    2>"$dir/gateway.log" &
  gateway_pid=$!
  pids="$pids $gateway_pid"
  url=http://127.0.0.1:$port
  within 10 grep -qs 'Listening on' "$dir/gateway.log" || fail 'no activation'
  ask /v1/completions -d '{"model":"recall-gemma3","prompt":"k3=blue;q7=stone;q7?"}'
  responds 200 '"text":"stone"'
  kill -TERM $gateway_pid
  wait $gateway_pid || fail "the activated gateway exited with $?"
  systemd-socket-activate -l 0.0.0.0:$port "$gateway" --config "$dir/gateway.yaml" \
    2>"$dir/gateway.log" &
  gateway_pid=$!
  within 10 grep -qs 'Listening on' "$dir/gateway.log" || fail 'no activation'
  ask /health
  wait $gateway_pid; [ $? = 78 ] || fail 'a socket that other hosts can reach is served'
fi
kill -TERM $lagand
wait $lagand || fail "lagand exited with $?"

# ---- laganctl --spawn ... gateway: one command, and nothing is left behind
export TMPDIR=$dir/tmp
unset XDG_RUNTIME_DIR
mkdir "$TMPDIR"
spawn() {
  : >"$dir/url"
  "$build/laganctl" --spawn "$top/models/recall-gemma3" --device cpu gateway \
    >"$dir/url" 2>"$dir/gateway.log" &
  spawned=$!
  pids="$pids $spawned"
  within 30 grep -q . "$dir/url" || fail 'the spawned gateway announces no URL'
  url=$(cat "$dir/url")
  children=$(cat "/proc/$spawned/task/$spawned/children")
}
left() { # a process or a file
  for p in $children; do ! kill -0 "$p" 2>/dev/null || return 0; done
  [ -n "$(find "$TMPDIR" -mindepth 1 | head -1)" ]
}
spawn
ask /v1/completions -d '{"prompt":"k3=blue;q7=stone;q7?"}'; responds 200 '"text":"stone"'
kill -INT $spawned
wait $spawned; [ $? = 130 ] || fail 'exit code after SIGINT'
! left || fail 'SIGINT of laganctl left something behind'
spawn
{ kill -9 $spawned; wait $spawned; } 2>/dev/null
within 20 eval '! left' || fail 'kill -9 of laganctl left something behind'
exit 0
