#!/bin/bash
# check.sh - lagand --check names everything that would make a start fail, in one run, and exits
# with 78, or with 77 if only permissions are missing.
set -u
build=$PWD
top=$(cd "${srcdir:-$(dirname "$0")/../..}" && pwd)
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
chmod 755 "$dir"
cp -r "$top/models/recall-gemma3" "$dir/good"
cp -r "$dir/good" "$dir/half"
chmod -R u+w,go+rX "$dir"
truncate -s 700000 "$dir/half/model.safetensors"
mkdir "$dir/empty"

check() { # CODE, arguments of lagand --check
  want=$1
  shift
  "$build/lagand" --check "$@" >"$dir/out" 2>&1
  code=$?
  [ "$code" = "$want" ] || { cat "$dir/out"; echo "exit code $code, not $want: $*"; exit 1; }
}
says() { # TEXT that the last check printed
  grep -qF -- "$1" "$dir/out" || { cat "$dir/out"; echo "not printed: $1"; exit 1; }
}

cat >"$dir/all.yaml" <<END
api:
  tcp: tcp://127.0.0.1:7
  keys: $dir/none
models:
  - path: $dir/half
    device: cpu
  - name: odd
    path: $dir/good
    device: gpu
  - path: $dir/empty
    device: cpu
  - name: big
    path: $dir/good
    device: cpu
    kv.dtype: fp16
END
check 78 --config "$dir/all.yaml" --runtime-dir "$dir/none/run"
says "$dir/all.yaml:5: model half: load $dir/half: model.safetensors is truncated"
says "$dir/all.yaml:8: model odd: device \"gpu\" is not cpu, cuda"
says "$dir/all.yaml:10: model empty: load $dir/empty: $dir/empty has no config.json; lagan needs"
says "$dir/all.yaml:13: model big: kv.dtype is fp16"
says "api.keys: cannot open $dir/none"
says "runtime_dir: lagand cannot create files in $dir/none"
check 0 --model "$dir/good" --device cpu --runtime-dir "$dir/run"
says 'the configuration is valid: 1 model, 1 worker'

cp -r "$dir/good" "$dir/lfs"
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n' \
  >"$dir/lfs/model.safetensors"
check 78 --model "$dir/lfs" --device cpu --runtime-dir "$dir/run"
says 'model.safetensors is a git-lfs pointer'
: >"$dir/x.gguf"
check 78 --model "$dir/x.gguf" --device cpu --runtime-dir "$dir/run"
says 'x.gguf is not a directory; lagan does not read GGUF files'

# Two models that fit alone, but not together: a limit of 400 MiB, then 200 MiB of use.
mkdir "$dir/cgroup"
echo memory >"$dir/cgroup/cgroup.controllers"
echo $((400 << 20)) >"$dir/cgroup/memory.max"
echo 0 >"$dir/cgroup/memory.current"
for kv in 200 100; do
  for name in a b; do
    printf '  - { name: %s, path: %s, device: cpu, kv.memory: %sMiB }\n' $name "$dir/good" $kv
  done | sed '1i models:' >"$dir/$kv.yaml"
done
check 78 --config "$dir/200.yaml" --runtime-dir "$dir/run" --cgroup-root "$dir/cgroup"
says 'models that share cgroup / need 5'
says 'MiB together, but it has 400.0 MiB: a 2'
says 'MiB, b 2'
timeout 30 "$build/lagand" --config "$dir/200.yaml" --runtime-dir "$dir/run" \
  --cgroup-root "$dir/cgroup" >"$dir/out" 2>&1
[ $? = 78 ] || { cat "$dir/out"; echo 'lagand starts models that do not fit together'; exit 1; }
says 'models that share cgroup / need 5'
check 0 --config "$dir/100.yaml" --runtime-dir "$dir/run" --cgroup-root "$dir/cgroup"
echo $((200 << 20)) >"$dir/cgroup/memory.current"
check 78 --config "$dir/100.yaml" --runtime-dir "$dir/run" --cgroup-root "$dir/cgroup"
says 'together, but it has 200.0 MiB free: a 1'

# The port: in use by another program.
if command -v python3 >/dev/null; then
  "$build/laganctl" keygen "$dir/keys" >/dev/null || exit 1
  coproc PORT { exec timeout 60 python3 -c 'import socket, sys
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
sys.stdin.read()'; }
  read -r port <&"${PORT[0]}"
  check 78 --model "$dir/good" --device cpu --runtime-dir "$dir/run" --api.keys "$dir/keys" \
    --api.tcp "tcp://127.0.0.1:$port"
  says "api.tcp: cannot bind tcp://127.0.0.1:$port: Address already in use"
  kill "$PORT_PID"
fi

# Root checks as the user of the unit, which a systemctl of the test prints.
[ "$(id -u)" = 0 ] && getent passwd nobody >/dev/null || exit 0
mkdir "$dir/bin"
cat >"$dir/bin/systemctl" <<'END'
#!/bin/sh
printf 'User=nobody\nSupplementaryGroups=\nProtectHome=yes\nPrivateNetwork=yes\n'
END
chmod 755 "$dir/bin/systemctl"
su nobody -s /bin/sh -c "test -x '$build/lagan-worker'" 2>/dev/null || exit 0
PATH=$dir/bin:$PATH
getent group lagan lagan-admin >/dev/null && code=77 || code=78 # 78: the groups are missing, too
chmod 600 "$dir/good/config.json"
check $code --model "$dir/good" --device cpu
says 'checking as user nobody, as lagand.service has it'
says 'config.json: Permission denied'
exit 0
