#!/usr/bin/env bash
# The serving figures of perf/RESULTS.md: throughput at saturation, latency at 10,000 requests/s, of a lone request and of
# one GPU at 700 requests/s, the cost of a request and of a parked connection, the gap between batches.
#
# Usage: perf/serve.sh [RUNS]        medians of RUNS (default 3) runs, as a Markdown table on standard output
# Needs wrk, at least two cores and release builds of both binaries; nginx, if there, is what a plain epoll loop costs on the
# machine of the day. Load and server share the machine.
. "$(dirname "$0")/lib.sh"

# One worker process for each core, no log, a fixed answer of the usual size. Sets pid and address as start does.
start_nginx() {
  cat >"$work/nginx.conf" <<EOF
worker_processes 2; worker_cpu_affinity auto; daemon off; pid $work/nginx.pid; error_log $work/nginx.log;
events { worker_connections 4096; }
http {
  access_log off; keepalive_requests 1000000000;
  server { listen 127.0.0.1:18099 reuseport; location / {
    return 200 '{"request_id":"req_0123456789abcdef","output":"WHAT IS THE CAPITAL OF FRANCE?","metadata":{"latency_ms":1.2,"queue_wait_ms":0.1,"tokens_used":14}}';
  } }
}
EOF
  nginx -p "$work" -c "$work/nginx.conf" &
  pid=$!
  address=127.0.0.1:18099
  until curl -sf -o "$work/status" "http://$address/"; do kill -0 "$pid"; sleep 0.05; done
}

for _ in $(seq "$runs"); do
  start --log-level warn --gpus 14
  wrk_run -t2 -c3000 -d20s
  awk '/Requests\/sec/ { print $2 }' "$work/wrk" >>"$work/saturation"
  curl -s "$admin/metrics" | python3 perf/median_gap.py >>"$work/gap"
  stop
done
row "14 GPUs, 3,000 connections, closed loop: requests/s" "≥ 13,800" "$(median saturation)"
row "the same: median gap between batches of a GPU, ms" "≤ 0.3" "$(median gap)"

for _ in $(seq "$runs"); do
  start --log-level warn --gpus 14
  offered --rate 10000 --arrivals poisson --duration 20s --warmup 2s --connections 3000
  json "'%.1f / %.1f / %d' % (s['p50_ms'], s['p95_ms'], r['totals']['errors'])" >>"$work/ten"
  stop
done
row "14 GPUs, 10,000 requests/s offered: p50 / p95 ms / errors" "≤ 106 / ≤ 112 / 0" "$(median ten)"

for _ in $(seq "$runs"); do
  start --log-level warn --gpus 4
  offered --rate 5 --duration 20s
  json "'%.1f' % s['p95_ms']" >>"$work/lone"
  stop
done
row "a lone request every 200 ms: p95 ms" "≤ 102" "$(median lone)"

for _ in $(seq "$runs"); do
  start --log-level warn --gpus 1
  offered --rate 700 --arrivals poisson --duration 20s --warmup 2s
  json "'%.1f / %.1f' % (s['p50_ms'], s['p95_ms'])" >>"$work/seven"
  stop
done
row "1 GPU, 700 requests/s: p50 / p95 ms" "≤ 155 / ≤ 200" "$(median seven)"

# A core for each side, and both cores for both: on two cores the second is a contest between wrk and the server.
for _ in $(seq "$runs"); do
  start --log-level warn --gpus 4 --sim-latency-ms 0 --cores 0-0
  on=(taskset -c 1)
  wrk_cost zero -t1 -c400 -d10s
  on=()
  stop
  start --log-level warn --gpus 4 --sim-latency-ms 0
  wrk_cost shared -t1 -c400 -d10s
  stop
  if command -v nginx >/dev/null; then
    start_nginx
    wrk_cost nginx -t1 -c400 -d10s
    stop
  fi
done
row "batches of 0 ms, 400 connections, one acceptor core, wrk on the other: requests/s" "≥ 100,000" "$(median zero)"
row "the same: server CPU per request, µs" "≤ 12" "$(median zero-cost)"
row "batches of 0 ms, acceptors and wrk on both cores: requests/s" "" "$(median shared)"
row "the same: server CPU per request, µs" "≤ 12" "$(median shared-cost)"
if [ -s "$work/nginx" ]; then
  row "nginx in its place, which answers with a fixed text: requests/s" "" "$(median nginx)"
  row "the same: nginx's CPU per request, µs" "" "$(median nginx-cost)"
fi

start --log-level warn --gpus 200 --sim-latency-ms 1000 --deadline-ms 10000
parked=$(python3 perf/parked.py "$address" "$pid" 8000)
each() { python3 -c "import json, sys; print(json.loads(sys.argv[1])[sys.argv[2]])" "$parked" "$1"; }
row "a parked connection, idle / waiting for its answer: KiB" "≤ 12" "$(each idle_kib_each) / $(each waiting_kib_each)"
stop
