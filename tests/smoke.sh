#!/usr/bin/env bash
# What a newcomer does first: starts the server with the README's command, pastes the curl line that it prints, sends one
# request of each tier, reads the metrics, and stops it. Exits non-zero with the reason if anything is not as promised.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
server=
cleanup() { [ -z "$server" ] || kill -9 "$server" 2>/dev/null || true; rm -rf "$work"; }
trap cleanup EXIT
fail() { echo "smoke: $*" >&2; cat "$work/screen" "$work/log" >&2; exit 1; }

# It has to start where there is no driver for GPUs, so it must not be linked with one.
if command -v ldd >/dev/null && ldd target/release/funicular | grep libcuda; then fail "the binary needs a CUDA driver to start"; fi

# With deadlines that a machine which stands still for a while does not trip over.
target/release/funicular --listen 127.0.0.1:0 --admin 127.0.0.1:0 --deadline-ms 30000 --batch-timeout-ms 30000 \
  >"$work/screen" 2>"$work/log" &
server=$!
for _ in $(seq 600); do grep -q '^  curl ' "$work/screen" && break; kill -0 "$server" 2>/dev/null || fail "the server ended"; sleep 0.1; done
line=$(grep '^  curl ' "$work/screen") || fail "no curl line on the start-up screen"
# Only where the GPUs take their time; the screen says so, and the line is there to be pasted later.
if grep -q '^No GPU is in service yet' "$work/screen"; then
  ready=$(sed -n 's/^  listening on //p' "$work/screen")/v2/health/ready
  for _ in $(seq 600); do [ "$(curl -s -o /dev/null -w '%{http_code}' "$ready")" = 200 ] && break; sleep 0.1; done
fi
answer=$(eval "$line") || fail "the curl line failed"
case $answer in *'"output":"HELLO, FUNICULAR!"'*) ;; *) fail "unexpected answer: $answer" ;; esac

address=$(sed -n 's/^  listening on //p' "$work/screen")
admin=$(sed -n 's/^  admin on //p' "$work/screen")
for tier in enterprise paid free; do
  code=$(curl -s -o "$work/answer" -w '%{http_code}' "$address/v1/inference" -H 'Content-Type: application/json' \
    -H "X-Tier: $tier" -d "{\"input\": \"from $tier\"}")
  [ "$code" = 200 ] || fail "tier $tier: $code $(cat "$work/answer")"
done
[ "$(curl -s -o /dev/null -w '%{http_code}' "$address/v2/health/ready")" = 200 ] || fail "not ready"
for _ in $(seq 300); do
  curl -s "$admin/metrics" >"$work/metrics"
  grep -q '^funicular_requests_total{tier="paid",code="200"} 1$' "$work/metrics" && break
  sleep 0.1
done
grep -q '^funicular_requests_total{tier="paid",code="200"} 1$' "$work/metrics" || fail "the paid request is not in the metrics"
curl -s "$admin/status" >"$work/status"
grep -q '"zone"' "$work/status" || fail "no status"
# A connection that has been served costs one touched page of stack and little else. Another frame on the deepest call can make
# it two, which no other test would notice.
if command -v python3 >/dev/null; then
  parked=$(python3 perf/parked.py "${address#http://}" "$server" 2000) || fail "parked connections could not be measured"
  echo "smoke: $parked"
  echo "$parked" | python3 -c 'import json, sys; sys.exit(json.load(sys.stdin)["idle_kib_each"] > 9)' \
    || fail "an idle connection takes more than 9 KiB: see STACK_WORDS in src/http/core.rs"
else
  echo "smoke: no python3, so the memory of a connection is not measured"
fi
target/release/funicular check --config funicular.example.toml >/dev/null || fail "the example configuration is refused"

kill -TERM "$server"
wait "$server" || fail "the server did not end with status 0"
server=
echo "smoke: the README's commands work"
