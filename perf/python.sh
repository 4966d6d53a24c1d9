#!/usr/bin/env bash
# The figures of the Python executor in perf/RESULTS.md: the gap between batches, throughput and latency with a function of
# 100 ms, and a function that costs nothing. `perf/peers/pairs.py` has the same beside another server.
#
# Usage: perf/python.sh [RUNS]       medians of RUNS (default 3) runs, as a Markdown table on standard output
# GAP_S, SATURATION_S and OFFERED_S are the seconds of each run.
# Needs wrk, python3 and release builds of both binaries. Load and server share this machine.
. "$(dirname "$0")/lib.sh"

# Notes when each batch begins and ends, as the function itself sees it.
cat >"$work/clocked.py" <<'PYTHON'
import time
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

for _ in $(seq "$runs"); do
  start --python "$work/clocked.py" --gpus 1
  wrk_run -t1 -c300 -d"${GAP_S:-25}s"
  stop
  sed -n 's/.*median_gap_ms //p' "$work/log" >>"$work/gap"
done
row "1 worker that sleeps 100 ms, 300 connections: median gap between two calls, ms" "≤ 0.5" "$(median gap)"

for _ in $(seq "$runs"); do
  start --python perf/peers/batchstring.py --gpus 14
  before=$(cpu_us)
  # Warmed up: until the first batches are back nothing is answered, which is no property of the server.
  offered --connections 3000 --duration "${SATURATION_S:-20}s" --warmup 2s
  after=$(cpu_us)
  json "'%.0f' % r['totals']['achieved_rate']" >>"$work/saturation"
  json "'%.1f' % (($after - $before) / (r['totals']['sent'] + 2 * r['totals']['achieved_rate']))" >>"$work/saturation-cost"
  stop
done
row "14 workers, 100 ms, 3,000 connections, closed loop: requests/s" "≥ 13,850" "$(median saturation)"
row "the same: CPU per request of server and workers, µs" "" "$(median saturation-cost)"

for _ in $(seq "$runs"); do
  start --python perf/peers/batchstring.py --gpus 1
  offered --rate 700 --arrivals poisson --duration "${OFFERED_S:-20}s" --warmup 2s
  json "'%.1f / %.1f' % (s['p50_ms'], s['p95_ms'])" >>"$work/seven"
  stop
done
row "1 worker, 100 ms, 700 requests/s: p50 / p95 ms" "≤ 155 / ≤ 200" "$(median seven)"

for _ in $(seq "$runs"); do
  start --python perf/peers/batchstring.py --gpus 1
  offered --rate 5 --duration "${OFFERED_S:-20}s"
  json "'%.1f' % s['p50_ms']" >>"$work/lone"
  stop
done
row "1 worker, 100 ms, a lone request every 200 ms: p50 ms" "≤ 101.5" "$(median lone)"

for _ in $(seq "$runs"); do
  start --python perf/peers/at_once.py --gpus 1
  wrk_cost zero -t1 -c400 -d10s
  stop
done
row "1 worker that returns at once, 400 connections: requests/s" "" "$(median zero)"
row "the same: CPU per request of server and worker, µs" "" "$(median zero-cost)"
