#!/bin/bash
# demo.sh BUILDDIR - ask the bundled models and check what they say; called by ./bootstrap demo.
#
# The real way: a private lagand, its worker, rings, ZeroMQ. The first question of each model
# streams to the terminal; the others are sent together. Then the worker is killed in the middle of
# an answer, and the answer continues. The exit code is 0 if every answer was right.
set -u
build=$1
top=$(cd "$(dirname "$0")/.." && pwd)
ctl=$build/laganctl
tmp=$(mktemp -d) || exit 1
lagand=
leave() {
  [ -z "$lagand" ] || { kill "$lagand" && wait "$lagand"; } 2>/dev/null
  rm -rf "$tmp"
}
trap leave EXIT
asked=0 right=0 tokens=0
since=$(date +%s%N)

# questions DIR: "question<TAB>answer" a line, from the one place where they are written down.
questions() {
  sed -n "/\"dir\": \"$1\"/,/^\]}/p" "$top/models/demo.json" |
    sed -n 's/^{"text": "\([^"]*\)".*"answer": "\([^"]*\)".*/\1\t\2/p'
}

miss() { echo "  expected: $1"; }
short() { # a long prompt in one line
  if [ ${#1} -gt 60 ]; then printf '%s … %s' "${1:0:24}" "${1: -24}"; else printf '%s' "$1"; fi
}

"$build/lagand" --version
for dir in numbers-t5 recall-gemma3; do
  printf '\n%s\n' "$dir"
  questions "$dir" >"$tmp/questions"
  IFS=$'\t' read -r question answer <"$tmp/questions"
  printf '> %s\n< ' "$(short "$question")"
  "$ctl" --spawn "$top/models/$dir" --device cpu generate --max-tokens 128 --text "$question" \
    2>"$tmp/line" | tee "$tmp/output"
  sed 's/^/  /' "$tmp/line"
  asked=$((asked + 1))
  if [ "$(cat "$tmp/output")" = "$answer" ]; then right=$((right + 1)); else miss "$answer"; fi

  tail -n +2 "$tmp/questions" | sed 's/\t.*//; s/.*/{"text":"&","max_tokens":128}/' >"$tmp/requests"
  "$ctl" --spawn "$top/models/$dir" --device cpu generate --requests "$tmp/requests" \
    --concurrency 8 --json >"$tmp/answers" || exit 1
  n=0
  while IFS=$'\t' read -r question answer; do
    output=$(sed -n "s/^{\"request\":$n,.*\"text\":\"\([^\"]*\)\",\"finish\".*/\1/p" "$tmp/answers")
    printf '> %s\n< %s\n' "$(short "$question")" "$output"
    asked=$((asked + 1)) n=$((n + 1))
    if [ "$output" = "$answer" ]; then right=$((right + 1)); else miss "$answer"; fi
  done < <(tail -n +2 "$tmp/questions")
  tokens=$((tokens + $(grep -o '"ids":\[[^]]*' "$tmp/answers" | tr -cd ',\n' | wc -c)))
done

# ---- the second act
printf '\nnumbers-t5, and its worker is killed in the middle of the answer\n'
"$build/lagand" --foreground --runtime-dir "$tmp/run" --model "$top/models/numbers-t5" \
  --device cpu 2>"$tmp/log" &
lagand=$!
ask="$ctl --connect ipc://$tmp/run/api.sock"
worker() { # its pid, once it is ready
  for _ in {1..600}; do
    $ask workers list --json 2>/dev/null |
      sed -n 's/.*"pid":\([0-9]*\),.*"state":"ready".*/\1/p' >"$tmp/pid"
    [ ! -s "$tmp/pid" ] || { cat "$tmp/pid"; return; }
    sleep 0.05
  done
  cat "$tmp/log" >&2
  exit 1
}
IFS=$'\t' read -r question answer < <(questions numbers-t5 | grep '^999999999')
asked=$((asked + 1))
for _ in {1..20}; do # a busy machine may see the end of the answer before it has read the middle
  pid=$(worker) || exit 1
  output=
  printf '> %s\n< ' "$question"
  while IFS= read -r -N1 letter; do
    printf '%s' "$letter"
    output+=$letter
    [ ${#output} -ne 30 ] || { kill -KILL "$pid" && printf '[kill -9 %s]' "$pid"; }
  done < <($ask generate --max-tokens 128 --text "$question" 2>"$tmp/line")
  sed 's/^/  /' "$tmp/line"
  ! grep -q 'its worker failed' "$tmp/line" || break
done
if [ "$output" != "$answer"$'\n' ]; then
  echo "  expected: $answer"
elif ! grep -q 'its worker failed' "$tmp/line"; then
  echo '  the worker was not killed in time, twenty times'
else
  right=$((right + 1))
fi
tokens=$((tokens + ${#answer} + 1)) # a byte is a token, and the end is one
ms=$((($(date +%s%N) - since) / 1000000))
if [ "$right" -eq "$asked" ]; then verdict=ok; else verdict=FAILED; fi
figures='%s  %d of %d answers match golden · %d tokens · %d ms'
printf "\\n$figures, five services started, a worker killed\\n" \
  "$verdict" "$right" "$asked" "$tokens" "$ms"
[ "$right" -eq "$asked" ]
