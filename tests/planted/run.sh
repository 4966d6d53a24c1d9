#!/usr/bin/env bash
# Plants each bug of this folder in a copy of the tree and demands that the test which it names catches it.
#
#   tests/planted/run.sh [NAME…]      all patches, or those named (without .patch)
#
# A patch says in its head what it breaks and, after `Caught-by:`, which tests must fail (arguments of `cargo test`). One
# that no longer applies or no longer compiles is an error: a bug that isn't planted isn't caught either.
# The copy and its builds go to PLANTED_DIR (default: target/planted), the builds are kept there for the next run.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
work="${PLANTED_DIR:-$root/target/planted}"
tree="$work/tree"
export CARGO_TARGET_DIR="$work/build"

fresh_copy() {
  # With new times: what was built last may hold the last bug of the run before.
  mkdir -p "$tree"
  (cd "$root" && git ls-files -z -co --exclude-standard | while IFS= read -r -d '' file; do
    [ -e "$file" ] && printf '%s\0' "$file"
  done | tar --null -T - -cf -) | tar -C "$tree" -xmf -
}

# Runs the tests $1 (arguments of `cargo test`) in the copy.
run_tests() { # shellcheck disable=SC2086
  (cd "$tree" && cargo test --locked --quiet $1) >"$work/log" 2>&1
}

build_tests() { # shellcheck disable=SC2086
  (cd "$tree" && cargo test --locked --quiet --no-run $1) >"$work/log" 2>&1
}

caught_by() { sed -n 's/^Caught-by: //p' "$1"; }

fail() {
  echo "$1"
  tail -n 30 "$work/log" 2>/dev/null || true
  exit 1
}

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  for patch in "$here"/*.patch; do names+=("$(basename "$patch" .patch)"); done
fi

rm -rf "$tree"
fresh_copy
for tests in $(for name in "${names[@]}"; do caught_by "$here/$name.patch" | tr ' ' ,; done | sort -u); do
  run_tests "${tests//,/ }" || fail "without any planted bug: ${tests//,/ } fails"
done

for name in "${names[@]}"; do
  patch="$here/$name.patch"
  tests="$(caught_by "$patch")"
  [ -n "$tests" ] || fail "$name: says no tests after Caught-by:"
  # A touched file is newer than the last build, both when the bug comes and when it goes.
  patch -d "$tree" -p1 --no-backup-if-mismatch --silent <"$patch" >"$work/log" || fail "$name: does not apply"
  build_tests "$tests" || fail "$name: does not compile"
  if run_tests "$tests"; then
    fail "$name: NOT caught by $tests"
  fi
  echo "$name: caught by $tests"
  patch -d "$tree" -p1 --no-backup-if-mismatch --silent -R <"$patch" >"$work/log"
done
echo "all ${#names[@]} planted bugs were caught"
