#!/usr/bin/env bash
# On a bare machine with torch and a GPU: parity with the CPU, profiles, collapse and answers, in at
# most 6 minutes.
#     benchmarks/gpu.sh ARCHIVE OUT [OPTIONS of python -m benchmarks.gpu]
# ARCHIVE is what benchmarks/gpu_wheels.sh made for this machine's Python. OUT gets one JSON file a
# part.
set -euo pipefail
archive=$1 out=$2
shift 2
cd "$(dirname "$0")/.."
packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT
python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="data")' "$archive" "$packages"
# Before the machine's own packages: torch alone comes from there.
PYTHONPATH="$PWD:$packages" PYTHONDONTWRITEBYTECODE=1 python3 -m benchmarks.gpu --out "$out" "$@"
