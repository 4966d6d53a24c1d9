#!/usr/bin/env bash
# What Funicular does on a real GPU: right results, the gap between kernels, copies and how far they hide behind kernels, what
# the server adds to copies and kernel, and the sanitizer's verdict. For a machine that has a GPU and little else.
#
# Usage: perf/gpu.sh FUNICULAR FUNICULAR_PERF [JSON]
#        a table on standard output; the same, with every figure behind it, in the file JSON (default: gpu.json)
#
# The two programs may have been built elsewhere. Needs bash, awk and coreutils; no network, no Rust, no Python, no curl.
# compute-sanitizer and nvidia-smi are used if they are there. One GPU is used (the first; CUDA_VISIBLE_DEVICES chooses another).
# Takes a minute or two. SHORT=1 asks the same questions in seconds: to try the script, not to measure.
# Ends with 1 if a result was wrong or the sanitizer complained, with 0 however slow it was: the table says which goals were missed.
set -euo pipefail
export LC_ALL=C   # lengths are bytes

usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d' >&2; exit 2; }
[ $# -ge 2 ] && [ $# -le 3 ] || usage
funicular=$1 generator=$2 json=${3:-gpu.json}
[ -x "$funicular" ] && [ -x "$generator" ] || { echo "gpu.sh: can't run $funicular or $generator" >&2; exit 2; }
short=${SHORT:-}
work=$(mktemp -d)
pid=
failed=0
# The processes at the ends of a process's tree: the server itself, whatever it was started through.
leaves() {
  local child children
  children=$(cat /proc/"$1"/task/*/children 2>/dev/null || true)
  [ -n "$children" ] || { echo "$1"; return; }
  for child in $children; do leaves "$child"; done
}
stop() {
  # shellcheck disable=SC2046 # one word for each process
  [ -z "$pid" ] || { kill $(leaves "$pid") 2>/dev/null && wait "$pid" 2>/dev/null; } || true
  pid=
}
trap 'stop; rm -rf "$work"' EXIT

# --- a server, load, and what its metrics say

# Sends the request $2 to host:port $1; the body of the answer on standard output.
ask() {
  exec 3<>"/dev/tcp/${1%:*}/${1##*:}"
  printf '%s' "$2" >&3
  local line length=0
  while IFS= read -r line <&3 && [ "$line" != $'\r' ]; do
    case ${line,,} in content-length:*) length=${line#*:} length=${length//[!0-9]/} ;; esac
  done
  head -c "$length" <&3
  exec 3>&-
}
get() { ask "$1" $'GET '"$2"$' HTTP/1.1\r\nHost: gpu.sh\r\n\r\n'; }
infer() {
  local body='{"input": "'$1'"}'
  ask "$address" $'POST /v1/inference HTTP/1.1\r\nHost: gpu.sh\r\nContent-Type: application/json\r\nContent-Length: '"${#body}"$'\r\n\r\n'"$body"
}

# A server on one GPU with these flags, behind the program in `under` if any; returns when it is ready.
under=()
start() {
  : >"$work/screen"
  "${under[@]}" "$funicular" serve --executor cuda --gpus 1 --listen 127.0.0.1:0 --admin 127.0.0.1:0 --deadline-ms 60000 \
    --default-tier enterprise --target-latency-ms 60000 "$@" >"$work/screen" 2>"$work/log" &
  pid=$!
  until grep -q '^Try it' "$work/screen"; do
    kill -0 "$pid" 2>/dev/null || { echo "gpu.sh: the server did not start:" >&2; cat "$work/log" >&2; exit 1; }
    sleep 0.1
  done
  address=$(sed -n 's/^  listening on http:\/\///p' "$work/screen")
  admin=$(sed -n 's/^  admin on http:\/\///p' "$work/screen")
  local tries=0
  until get "$admin" /status | grep -q '"up": *true'; do
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || { echo "gpu.sh: the GPU does not come into service:" >&2; cat "$work/log" >&2; exit 1; }
    sleep 0.1
  done
}

# Load of $1 callers for $2 seconds with further flags of the generator; then the server's metrics are read.
load() {
  local callers=$1 seconds=$2 status=0
  shift 2
  "$generator" run "http://$address" --connections "$callers" --duration "${seconds}s" --timeout 60s --quiet \
    --json "$work/run.json" "$@" >"$work/run" 2>&1 || status=$?
  if [ "$status" != 0 ]; then
    cat "$work/run" >&2
    failed=1
  fi
  # A page is rendered once a second; the second new one was begun after the load.
  local seen="" news=0 uptime
  while [ "$news" -lt 3 ]; do
    get "$admin" /metrics >"$work/metrics"
    uptime=$(awk '$1 == "funicular_uptime_seconds" { print $2 }' "$work/metrics")
    [ "$uptime" = "$seen" ] || { seen=$uptime; news=$((news + 1)); }
    sleep 0.2
  done
}

# The number behind "$1" in the first object called "$2" of the generator's result.
result() {
  awk -v want="\"$1\":" -v object="\"$2\":" '$1 == object { inside = 1 } inside && $1 == want { gsub(/,/, "", $2); print $2; exit }' \
    "$work/run.json"
}

# The sum of a metric's series that have label $2 in them.
metric() { awk -v name="$1" -v label="${2:-}" 'index($1, name) == 1 && index($1, label) { sum += $2 } END { printf "%.9f\n", sum }' "$work/metrics"; }

# Mean of phase $1 in µs, and its quantile $2 interpolated within a bucket; nothing if it was never measured.
mean() {
  awk -v phase="phase=\"$1\"" '/^funicular_cuda_phase_seconds_/ && index($1, phase) {
    if ($1 ~ /_sum/) sum += $2; if ($1 ~ /_count/) count += $2 } END { if (count) printf "%.2f\n", sum / count * 1e6 }' "$work/metrics"
}
quantile() {
  awk -v phase="phase=\"$1\"" -v q="$2" '/^funicular_cuda_phase_seconds_bucket/ && index($1, phase) {
      bound = $1; sub(/.*le="/, "", bound); sub(/".*/, "", bound); bounds[++n] = bound; counts[n] = $2 }
    END { want = q * counts[n]
      for (i = 1; i <= n; i++) if (counts[i] >= want && counts[i] > 0) {
        low = i > 1 ? bounds[i - 1] : 0; below = i > 1 ? counts[i - 1] : 0; high = bounds[i] == "+Inf" ? low : bounds[i]
        printf "%.2f\n", (low + (high - low) * (want - below) / (counts[i] - below)) * 1e6; exit } }' "$work/metrics"
}
# A number, or nothing where one of its parts is none.
calc() { awk "BEGIN { printf \"%.2f\", $1 }" 2>/dev/null || true; }

# --- the table and the file

rows=()
# question, goal, measured (text), name, value, unit, and whether the goal was met: true, false or null.
row() {
  printf '| %s | %s | %s |\n' "$1" "$2" "$3"
  rows+=("$(printf '{"name": "%s", "value": %s, "unit": "%s", "goal": "%s", "met": %s}' "$4" "${5:-null}" "$6" "$2" "$7")")
}
# Whether $1 is at most $2, in JSON's words.
at_most() { awk "BEGIN { print (${1:-1e99} <= $2) ? \"true\" : \"false\" }"; }
quoted() { sed 's/\\/\\\\/g; s/"/\\"/g; s/\t/ /g' | awk '{ printf "%s\"%s\"", (NR > 1) ? ", " : "", $0 }'; }

# --- the questions

results_are_exact() {
  local kernel sizes=16-65536 checked errors pair
  for kernel in batchstring busy; do
    start --cuda-entry "$kernel" --cuda-work-us 100
    load 150 "$1" --size "$sizes"
    checked=$(result ok totals) errors=$(result errors totals)
    # What the generator does not send.
    for pair in "=" "x=X" "Gr\303\274\303\237e, 7 \360\237\232\240=GR\303\274\303\237E, 7 \360\237\232\240"; do
      pair=$(printf '%b' "$pair") checked=$((checked + 1))
      case $(infer "${pair%%=*}") in *"\"output\":\"${pair#*=}\""*) ;; *) errors=$((errors + 1)) ;; esac
    done
    [ "$errors" = 0 ] && [ "${checked:-0}" -gt 0 ] || failed=1
    row "\`$kernel\`, inputs of $sizes B: results checked / wrong or missing" "0" "$checked / $errors" \
      "results_$kernel" "$errors" requests "$(at_most "$errors" 0)"
    stop
  done
}

gap_between_kernels() {
  local work_us p50 works="1000 10000 100000"
  [ -z "$short" ] || works=10000
  for work_us in $works; do
    start --cuda-entry busy --cuda-work-us "$work_us"
    load 300 "$1"
    p50=$(quantile gap 0.5)
    row "\`busy\` of $((work_us / 1000)) ms at saturation: from one kernel's end to the next one's start, p50 / p99 µs" "≤ 20" \
      "${p50:-none} / $(quantile gap 0.99)" "gap_us_$work_us" "$p50" us "$(at_most "$p50" 20)"
    row "the same: kernel mean ms; requests/s" "" "$(calc "$(mean kernel) / 1000"); $(result achieved_rate totals)" \
      "requests_per_second_$work_us" "$(result achieved_rate totals)" 1/s null
    stop
  done
}

copies() {
  local size=65000 up down gap batches fill bytes
  start --cuda-entry busy --cuda-work-us 20000
  load 300 "$1" --size "$size"
  up=$(mean h2d) down=$(mean d2h) gap=$(mean gap)
  batches=$(metric funicular_batch_size_count) fill=$(calc "$(metric funicular_batch_size_sum) / ($batches ? $batches : 1)")
  bytes=$(calc "$fill * ($size + 8)")
  row "copies of $(calc "$bytes / 1e6") MB: to the device / back, µs" "" "$up / $down" h2d_us "$up" us null
  row "the same: GB/s to the device / back" "" "$(calc "$bytes / ($up * 1e3)") / $(calc "($bytes + $fill * 256) / ($down * 1e3)")" \
    h2d_gigabytes_per_second "$(calc "$bytes / ($up * 1e3)")" GB/s null
  row "the same: gap between kernels µs; part of the copies that hides behind kernels" "" \
    "${gap:-no batch boarded ahead}; $(calc "100 * (1 - $gap / ($up + $down))") %" copies_hidden "$(calc "1 - $gap / ($up + $down)")" "" null
  stop
}

# What one caller waits for beyond the copies and the kernel.
overhead() {
  local work_us flags device p50 over
  for work_us in 0 1000 100000; do
    flags=(--cuda-entry busy --cuda-work-us "$work_us")
    [ "$work_us" != 0 ] || flags=(--cuda-entry batchstring)
    start "${flags[@]}"
    load 1 "$1"
    device=$(calc "$(mean h2d) + $(mean kernel) + $(mean d2h)")
    p50=$(calc "1000 * $(result p50_ms summary)") over=$(calc "$p50 - $device")
    row "one caller, kernel of $((work_us / 1000)) ms: answer p50 µs; of that, copies and kernel; the rest" "≤ 200" \
      "$p50; $device; $over" "overhead_us_$work_us" "$over" us "$(at_most "$over" 200)"
    stop
  done
}

shapes() {
  local size callers p50 kernel gap sizes="16 1024 65000" counts="1 10 100"
  [ -z "$short" ] || { sizes="16 65000" counts="1 100"; }
  for size in $sizes; do
    for callers in $counts; do
      start --batch-max "$callers"
      # Twice as many callers as places: the next batch boards while one runs.
      load $((callers > 1 ? 2 * callers : 1)) "$1" --size "$size"
      p50=$(calc "1000 * $(result p50_ms summary)") kernel=$(mean kernel) gap=$(quantile gap 0.5)
      row "up to $callers inputs of $size B: answer p50 µs; requests/s; h2d, kernel, d2h µs; gap p50 µs" "" \
        "$p50; $(result achieved_rate totals); $(mean h2d), $kernel, $(mean d2h); ${gap:-none}" \
        "shape_${callers}x$size" "$p50" us null
      stop
    done
  done
}

sanitizer() {
  local tool found said
  found=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
  if [ -z "$found" ]; then
    row "compute-sanitizer" "0 errors" "not there" sanitizer null "" null
    return
  fi
  for tool in memcheck racecheck; do
    under=("$found" --tool "$tool" --target-processes all)
    start --batch-timeout-ms 30000
    under=()
    load 8 "$1" --size 16-4096
    stop
    said=$(cat "$work/screen" "$work/log" | grep -o 'ERROR SUMMARY: [0-9]* error\|RACECHECK SUMMARY: [0-9]* hazard' | tail -1 || true)
    said=${said#*: } said=${said%% *}
    [ "$said" = 0 ] || failed=1
    row "compute-sanitizer $tool, inputs of 16-4096 B" "0" "${said:-no summary}" "sanitizer_$tool" "${said:-null}" errors \
      "$(at_most "${said:-1}" 0)"
  done
}

# --- all of them

began=$(date +%s)
"$funicular" devices >"$work/devices" || { cat "$work/devices"; exit 1; }
smi=$(nvidia-smi --query-gpu=name,driver_version,pstate,clocks.max.sm --format=csv,noheader 2>/dev/null || echo "nvidia-smi is not there")
echo "$(date -u +%Y-%m-%d), $(uname -sr), $(nproc) cores, $("$funicular" --version)"
echo "$smi"
cat "$work/devices"
printf '\n| question | goal | measured |\n| --- | --- | --- |\n'
span() { [ -n "$short" ] && echo 1 || echo "$1"; }
results_are_exact "$(span 5)"
gap_between_kernels "$(span 5)"
copies "$(span 5)"
overhead "$(span 3)"
shapes "$(span 2)"
sanitizer "$(span 3)"
took=$(($(date +%s) - began))
{
  printf '{\n  "date": "%s",\n  "short": %s,\n  "took_seconds": %s,\n  "gpu": [%s],\n  "devices": [%s],\n  "rows": [\n' \
    "$(date -u +%Y-%m-%d)" "$([ -n "$short" ] && echo true || echo false)" "$took" "$(quoted <<<"$smi")" "$(quoted <"$work/devices")"
  for i in "${!rows[@]}"; do printf '    %s%s\n' "${rows[$i]}" "$([ "$i" = $((${#rows[@]} - 1)) ] || echo ,)"; done
  printf '  ]\n}\n'
} >"$json"
printf '\n%s seconds; the figures are in %s\n' "$took" "$json"
exit "$failed"
