#!/usr/bin/env bash
# Checks that bundled.ptx is what clang 14 makes of its source, and that ptxas assembles it, and the example, for the GPUs that it
# is meant for: without a warning, so without spilled registers and without local memory. A missing tool is said and its
# check skipped: ptxas is taken from PATH or from a virtual environment in target/ptxas (PyPI's nvidia-cuda-nvcc-cu12).
set -euo pipefail
cd "$(dirname "$0")"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0

# Comments say which compiler it was; the code counts.
code() { sed -e 's,[[:space:]]*//.*$,,' -e '/^[[:space:]]*$/d' "$1"; }

modules=(bundled.ptx)
if command -v clang-14 >/dev/null; then
  clang-14 @clang.flags bundled.cu -o "$scratch/bundled.ptx"
  if diff -u <(code bundled.ptx) <(code "$scratch/bundled.ptx"); then
    echo "bundled.ptx agrees with its source"
  else
    echo "bundled.ptx is not what its source compiles to; in kernels/: clang-14 @clang.flags bundled.cu -o bundled.ptx" >&2
    failed=1
  fi
  clang-14 @clang.flags example.cu -o "$scratch/example.ptx"
  modules+=("$scratch/example.ptx")
else
  echo "skipped: clang-14 is not installed, so bundled.ptx is not compared with its source"
fi

ptxas=$(command -v ptxas || find ../target/ptxas -name ptxas -type f -perm -u+x 2>/dev/null | head -n 1 || true)
if [ -n "$ptxas" ]; then
  for module in "${modules[@]}"; do
    for gpu in sm_80 sm_90; do
      if "$ptxas" --warn-on-spills --warn-on-local-memory-usage -Werror -arch="$gpu" "$module" -o "$scratch/cubin"; then
        echo "ptxas assembles $(basename "$module") for $gpu"
      else
        failed=1
      fi
    done
  done
else
  echo "skipped: no ptxas, so nothing is assembled"
fi
exit "$failed"
