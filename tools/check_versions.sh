#!/usr/bin/env bash
# Run the tests with the oldest and with the newest version of every dependency that pyproject.toml allows.
#
#   tools/check_versions.sh [oldest|newest|both] [pytest arguments, e.g. tests/io]
#
# Each run has a fresh environment in a temporary folder, with the package built and installed: nothing is
# imported from the checkout's src/. PYTHON chooses the interpreter, WORKERS the number of test processes.
set -euo pipefail

EXTRAS=dev,minari,parquet,mujoco,onnx,frames,tensorboard # all but torch and cuda: gigabytes, and no bound of ours is tight there
PYTHON=${PYTHON:-python3}
WORKERS=${WORKERS:-2}

which=${1:-both}
shift || true
case $which in
oldest | newest) sets=$which ;;
both) sets="oldest newest" ;;
*)
  echo "$0: '$which' is unknown; expected oldest, newest or both" >&2
  exit 2
  ;;
esac

root=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$PYTHON" -m venv "$scratch/tools"
"$scratch/tools/bin/python" -m pip install --quiet uv
uv=$scratch/tools/bin/uv

failed=0
for set in $sets; do
  # "lowest-direct": the lower bounds themselves for what we name, the newest that fits for what they need.
  resolution=highest
  [ "$set" = oldest ] && resolution=lowest-direct
  python=$scratch/$set/bin/python
  "$uv" venv --quiet --python "$PYTHON" "$scratch/$set"
  # --refresh-package: a wheel of an earlier state of the checkout may lie in uv's cache.
  "$uv" pip install --quiet --python "$python" --resolution "$resolution" --refresh-package kmifqe \
    "$root[$EXTRAS]"
  echo "== $set =="
  "$uv" pip list --quiet --python "$python" --format freeze | grep -v '^kmifqe'
  "$uv" pip check --python "$python" || failed=1
  (cd "$root" && "$python" -m pytest -p no:cacheprovider -n "$WORKERS" --dist loadfile "$@") || failed=1
done
exit $failed
