#!/usr/bin/env bash
# The figures of the Python executor in perf/RESULTS.md: the gap between batches, throughput and latency with a function of
# 100 ms, and a function that costs nothing; that one beside Mosec with the same function, if a Python with Mosec is named.
#
# Usage: perf/python.sh [RUNS [PYTHON]]      medians of RUNS (default 3) runs, as a Markdown table on standard output
# GAP_S, SATURATION_S and OFFERED_S are the seconds of each run.
# Needs wrk, python3 and release builds of both binaries. Load and server share this machine.
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${1:-3}
mosec=${2:-}
target=${CARGO_TARGET_DIR:-target}
work=$(mktemp -d)
pid=
stop() { [ -z "$pid" ] || { kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null; } || true; pid=; }
trap 'stop; rm -rf "$work"' EXIT

printf 'def batchstring(inputs):\n    return [text.upper() for text in inputs]\n' >"$work/zero.py"
# Notes when each batch begins and ends, as the function itself sees it.
cat >"$work/clocked.py" <<'PYTHON'
import os, sys, time
ended = 0.0
gaps = []
def batchstring(inputs):
    global ended
    began = time.perf_counter()
    if ended and len(inputs) == 100:
        gaps.append(began - ended)
    if len(gaps) == 50:
        print("median_gap_ms %.3f" % (sorted(gaps)[25] * 1000))
        gaps.clear()
    time.sleep(0.1)
    outputs = [text.upper() for text in inputs]
    ended = time.perf_counter()
    return outputs
PYTHON

start() {
  # Emptied first: what the last server said must not be taken for what this one says.
  : >"$work/screen"
  "$target/release/funicular" serve --listen 127.0.0.1:0 --admin 127.0.0.1:0 "$@" >"$work/screen" 2>"$work/log" &
  pid=$!
  until grep -q '^Try it' "$work/screen"; do kill -0 "$pid" || { cat "$work/log" >&2; exit 1; }; sleep 0.05; done
  address=$(sed -n 's/^  listening on http:\/\///p' "$work/screen")
  admin=$(sed -n 's/^  admin on //p' "$work/screen")
  until ! curl -s "$admin/status" | grep -q '"up": false'; do sleep 0.2; done
}
# Server and workers together: user and system time of every process whose parent, or self, is $pid.
cpu_us() {
  awk -v tick="$(getconf CLK_TCK)" -v pid="$pid" '
    { own = $1; sub(/^.*\) /, ""); if ($2 == pid || own == pid) sum += $12 + $13 } END { print int(sum * 1000000 / tick) }' \
    /proc/[0-9]*/stat 2>/dev/null || true # a process that ends meanwhile can't be read
}
median() { sort -g | awk '{ v[NR] = $0 } END { print v[int((NR + 1) / 2)] }'; }
wrk_run() { wrk "$@" --latency -s perf/wrk/post.lua >"$work/wrk"; }
offered() { "$target/release/funicular-perf" run "http://$address" --quiet --json "$work/run.json" "$@" >/dev/null || true; }
json() { python3 -c "import json,sys; r=json.load(open('$work/run.json'))['latency']['corrected']['summary']; print($1)"; }
row() { printf '| %s | %s | %s |\n' "$1" "$2" "$3"; }
zero_cost() {
  before=$(cpu_us)
  wrk_run -t1 -c400 -d10s "$1"
  after=$(cpu_us)
  awk '/Requests\/sec/ { print $2 }' "$work/wrk" >>"$work/$2"
  requests=$(awk '/requests in/ { print $1 }' "$work/wrk")
  python3 -c "print('%.1f' % (($after - $before) / $requests))" >>"$work/$2-cost"
}

printf '| question | goal | median of %s |\n| --- | --- | --- |\n' "$runs"

for _ in $(seq "$runs"); do
  start --python "$work/clocked.py" --gpus 1
  wrk_run -t1 -c300 -d${GAP_S:-25}s "http://$address/"
  stop
  sed -n 's/.*median_gap_ms //p' "$work/log" >>"$work/gap"
done
row "1 worker that sleeps 100 ms, 300 connections: median gap between two calls, ms" "≤ 0.5" "$(median <"$work/gap")"

for _ in $(seq "$runs"); do
  start --python perf/peers/batchstring.py --gpus 14
  before=$(cpu_us)
  wrk_run -t2 -c3000 -d${SATURATION_S:-20}s "http://$address/"
  after=$(cpu_us)
  awk '/Requests\/sec/ { print $2 }' "$work/wrk" >>"$work/saturation"
  requests=$(awk '/requests in/ { print $1 }' "$work/wrk")
  python3 -c "print('%.1f' % (($after - $before) / $requests))" >>"$work/saturation-cost"
  stop
done
row "14 workers, 100 ms, 3,000 connections, closed loop: requests/s" "≥ 13,850" "$(median <"$work/saturation")"
row "the same: CPU per request of server and workers, µs" "" "$(median <"$work/saturation-cost")"

for _ in $(seq "$runs"); do
  start --python perf/peers/batchstring.py --gpus 1
  offered --rate 700 --arrivals poisson --duration ${OFFERED_S:-20}s --warmup 2s
  json "'%.1f / %.1f' % (r['p50_ms'], r['p95_ms'])" >>"$work/seven"
  stop
done
row "1 worker, 100 ms, 700 requests/s: p50 / p95 ms" "≤ 155 / ≤ 200" "$(median <"$work/seven")"

for _ in $(seq "$runs"); do
  start --python perf/peers/batchstring.py --gpus 1
  offered --rate 5 --duration ${OFFERED_S:-20}s
  json "'%.1f' % r['p50_ms']" >>"$work/lone"
  stop
done
row "1 worker, 100 ms, a lone request every 200 ms: p50 ms" "≤ 101.5" "$(median <"$work/lone")"

for _ in $(seq "$runs"); do
  start --python "$work/zero.py" --gpus 1
  zero_cost "http://$address/" zero
  stop
  [ -n "$mosec" ] || continue
  # The same function behind Mosec, with as many workers and as large batches.
  sed 's/^def batchstring.*/def batchstring(inputs):/; s/^    time.sleep.*//' perf/peers/batchstring.py >"$work/batchstring.py"
  cp perf/peers/mosec_server.py "$work/"
  sed 's|"/v1/inference"|"/inference"|; s|/v1/inference|/inference|' perf/wrk/post.lua >"$work/mosec.lua"
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  (cd "$work" && exec setsid "$mosec" mosec_server.py --address 127.0.0.1 --port "$port" --log-level warning) >"$work/log" 2>&1 &
  pid=$!
  until curl -sf -o "$work/answer" "http://127.0.0.1:$port/inference" -d '{"input": "x"}'; do sleep 0.2; done
  # Its Rust controller is a child of its Python main process, as the workers are.
  before=$(cpu_us)
  wrk -t1 -c400 -d10s --latency -s "$work/mosec.lua" "http://127.0.0.1:$port/inference" >"$work/wrk"
  after=$(cpu_us)
  awk '/Requests\/sec/ { print $2 }' "$work/wrk" >>"$work/mosec"
  requests=$(awk '/requests in/ { print $1 }' "$work/wrk")
  python3 -c "print('%.1f' % (($after - $before) / $requests))" >>"$work/mosec-cost"
  kill -TERM -- "-$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null || true
  pid=
done
row "1 worker that returns at once, 400 connections: requests/s" "2 x Mosec" "$(median <"$work/zero")"
row "the same: CPU per request of server and worker, µs" "half of Mosec" "$(median <"$work/zero-cost")"
if [ -n "$mosec" ]; then
  row "Mosec with that function: requests/s" "" "$(median <"$work/mosec")"
  row "the same: CPU per request, µs" "" "$(median <"$work/mosec-cost")"
fi
