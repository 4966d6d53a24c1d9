# Sourced by serve.sh and python.sh: a server of one's own, load on it, medians of runs as rows of a Markdown table.
# The sourcing script stands in perf/; afterwards the working directory is the repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
runs=${1:-3}
target=${CARGO_TARGET_DIR:-target}
work=$(mktemp -d)
pid=
stop() { [ -z "$pid" ] || { kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null; } || true; pid=; }
trap 'stop; rm -rf "$work"' EXIT

# A server with these flags; returns when every GPU serves. Sets pid, address and admin.
start() {
  : >"$work/screen"   # or the look below might see the last server's
  "$target/release/funicular" serve --listen 127.0.0.1:0 --admin 127.0.0.1:0 "$@" >"$work/screen" 2>"$work/log" &
  pid=$!
  until grep -q '^Try it' "$work/screen"; do kill -0 "$pid" || { cat "$work/log" >&2; exit 1; }; sleep 0.05; done
  address=$(sed -n 's/^  listening on http:\/\///p' "$work/screen")
  admin=$(sed -n 's/^  admin on //p' "$work/screen")
  until curl -sf "$admin/status" >"$work/status" && ! grep -q '"up": false' "$work/status"; do sleep 0.1; done
}

# User and system time so far of the server and of its worker processes, if it has any, in µs.
cpu_us() {
  # A process that ends meanwhile can't be read.
  { cat /proc/[0-9]*/stat 2>/dev/null || true; } | awk -v tick="$(getconf CLK_TCK)" -v pid="$pid" '
    { own = $1; sub(/^.*\) /, ""); if ($2 == pid || own == pid) sum += $12 + $13 } END { print int(sum * 1000000 / tick) }'
}

# wrk, started by the command in `on` if there is one.
on=()
wrk_run() { "${on[@]}" wrk "$@" --latency -s perf/wrk/post.lua "http://$address/" >"$work/wrk"; }
# The same, and the requests/s to file $1, the CPU time of a request in µs to $1-cost.
wrk_cost() {
  local file=$work/$1 before after
  shift
  before=$(cpu_us)
  wrk_run "$@"
  after=$(cpu_us)
  awk '/Requests\/sec/ { print $2 }' "$work/wrk" >>"$file"
  awk -v spent=$((after - before)) '/requests in/ { printf "%.1f\n", spent / $1 }' "$work/wrk" >>"$file-cost"
}

# Load by the generator, its result to $work/run.json; errors and refusals are results, too.
offered() {
  "$target/release/funicular-perf" run "http://$address" --quiet --json "$work/run.json" "$@" >/dev/null 2>"$work/perf" \
    || { cat "$work/perf" >&2; exit 1; }
}
json() { python3 -c "import json; r = json.load(open('$work/run.json')); s = r['latency']['corrected']['summary']; print($1)"; }

median() { sort -g "$work/$1" | awk '{ v[NR] = $0 } END { print v[int((NR + 1) / 2)] }'; }
row() { printf '| %s | %s | %s |\n' "$1" "$2" "$3"; }
printf '| question | goal | median of %s |\n| --- | --- | --- |\n' "$runs"
