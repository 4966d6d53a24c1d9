#!/usr/bin/env bash
# Failures and overload in full size: 4 GPUs (2 for the flood) with 100 ms batches of 100, at the loads and for the times
# that the promised latencies are judged by. Each scenario of tests/server starts a server of its own, drives it with the load
# generator, scripts its faults, asserts, and prints a line of figures; the script fails if one of them does.
#
#   perf/failures/run.sh          every scenario, about eight minutes
#   perf/failures/run.sh day      a day of losses, one GPU of four every ten minutes, scaled to ten minutes
#   perf/failures/run.sh property 5,000,000 requests with 10 ms batches under random faults, six to ten minutes
#
# The machine should have nothing else to do: at 20,000 requests a second, server and generator take about one core.
set -euo pipefail
cd "$(dirname "$0")/../.."

export FUNICULAR_FULL=1
what=${1:-scenarios}
case $what in
  scenarios) names=(failure:: overload:: complaints::) skip=(--skip a_day_of_losses) ;;
  day) names=(a_day_of_losses) skip=() ;;
  property) names=(property::) skip=(); export FUNICULAR_REQUESTS=${FUNICULAR_REQUESTS:-5000000} ;;
  *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac

echo "$(uname -sr), $(nproc) cores, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)"
echo "commit $(git rev-parse --short HEAD), $(date -u +%Y-%m-%d)"
exec cargo test --release --locked --test server -- "${names[@]}" "${skip[@]}" --test-threads 1 --nocapture
