#!/usr/bin/env bash
# The serving figures of perf/RESULTS.md: throughput at saturation, latency at 10,000 requests/s, of a lone request and of
# one GPU at 700 requests/s, the cost of a request and of a parked connection, the gap between batches.
#
# Usage: perf/serve.sh [RUNS]        medians of RUNS (default 3) runs, as a Markdown table on standard output
# Needs wrk and release builds of both binaries. Load and server share this machine.
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${1:-3}
target=${CARGO_TARGET_DIR:-target}
work=$(mktemp -d)
pid=
stop() { [ -z "$pid" ] || { kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null; } || true; pid=; }
trap 'stop; rm -rf "$work"' EXIT

start() {
  : >"$work/screen"   # or the look below might see the last server's
  "$target/release/funicular" --listen 127.0.0.1:0 --admin 127.0.0.1:0 --log-level warn "$@" >"$work/screen" 2>"$work/log" &
  pid=$!
  until grep -q '^Try it' "$work/screen"; do kill -0 "$pid" || { cat "$work/log" >&2; exit 1; }; sleep 0.05; done
  address=$(sed -n 's/^  listening on http:\/\///p' "$work/screen")
  admin=$(sed -n 's/^  admin on //p' "$work/screen")
}
cpu_us() { awk -v tick="$(getconf CLK_TCK)" '{ print int(($14 + $15) * 1000000 / tick) }' "/proc/$pid/stat"; }
median() { sort -g | awk '{ v[NR] = $0 } END { print v[int((NR + 1) / 2)] }'; }
wrk_run() { wrk "$@" --latency -s perf/wrk/post.lua "http://$address/" >"$work/wrk"; }
offered() { "$target/release/funicular-perf" run "http://$address" --quiet --json "$work/run.json" "$@" >/dev/null 2>"$work/perf" || { cat "$work/perf" >&2; exit 1; }; }
json() { python3 -c "import json,sys; r=json.load(open('$work/run.json')); print($1)"; }
row() { printf '| %s | %s | %s |\n' "$1" "$2" "$3"; }

printf '| question | goal | median of %s |\n| --- | --- | --- |\n' "$runs"

for _ in $(seq "$runs"); do
  start --gpus 14
  wrk_run -t2 -c3000 -d20s
  awk '/Requests\/sec/ { print $2 }' "$work/wrk" >>"$work/saturation"
  curl -s "$admin/metrics" | python3 perf/median_gap.py >>"$work/gap"
  stop
done
row "14 GPUs, 3,000 connections, closed loop: requests/s" "≥ 13,800" "$(median <"$work/saturation")"
row "the same: median gap between batches of a GPU, ms" "≤ 0.3" "$(median <"$work/gap")"

for _ in $(seq "$runs"); do
  start --gpus 14
  offered --rate 10000 --arrivals poisson --duration 20s --warmup 2s --connections 3000
  json "'%.1f / %.1f / %d' % (r['latency']['corrected']['summary']['p50_ms'], r['latency']['corrected']['summary']['p95_ms'], r['totals']['errors'])" >>"$work/ten"
  stop
done
row "14 GPUs, 10,000 requests/s offered: p50 / p95 ms / errors" "≤ 106 / ≤ 112 / 0" "$(median <"$work/ten")"

for _ in $(seq "$runs"); do
  start --gpus 4
  offered --rate 5 --duration 20s
  json "'%.1f' % r['latency']['corrected']['summary']['p95_ms']" >>"$work/lone"
  stop
done
row "a lone request every 200 ms: p95 ms" "≤ 102" "$(median <"$work/lone")"

for _ in $(seq "$runs"); do
  start --gpus 1
  offered --rate 700 --arrivals poisson --duration 20s --warmup 2s
  json "'%.1f / %.1f' % (r['latency']['corrected']['summary']['p50_ms'], r['latency']['corrected']['summary']['p95_ms'])" >>"$work/seven"
  stop
done
row "1 GPU, 700 requests/s: p50 / p95 ms" "≤ 155 / ≤ 200" "$(median <"$work/seven")"

for _ in $(seq "$runs"); do
  start --gpus 4 --sim-latency-ms 0
  before=$(cpu_us)
  wrk_run -t1 -c400 -d10s
  after=$(cpu_us)
  awk '/Requests\/sec/ { print $2 }' "$work/wrk" >>"$work/zero"
  requests=$(awk '/requests in/ { print $1 }' "$work/wrk")
  python3 -c "print('%.1f' % (($after - $before) / $requests))" >>"$work/cost"
  stop
done
row "batches of 0 ms, 400 connections: requests/s" "≥ 100,000" "$(median <"$work/zero")"
row "the same: server CPU per request, µs" "≤ 12" "$(median <"$work/cost")"

start --gpus 200 --sim-latency-ms 1000 --deadline-ms 10000
parked=$(python3 perf/parked.py "$address" "$pid" 8000)
each() { python3 -c "import json, sys; print(json.loads(sys.argv[1])[sys.argv[2]])" "$parked" "$1"; }
row "a parked connection, idle / waiting for its answer: KiB" "≤ 12" "$(each idle_kib_each) / $(each waiting_kib_each)"
stop
