#!/usr/bin/env bash
# Build wheel and sdist, build both again from the sdist in another folder, and compare byte for byte; then
# install each alone and use it away from the checkout.
#
#   tools/check_build.sh
#
# PYTHON chooses the interpreter. Everything happens in a temporary folder; the checkout is only read. KEEP names a folder
# that gets the two archives when all is well.
set -euo pipefail

PYTHON=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Times inside the archives; any fixed number will do.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1700000000}

"$PYTHON" -m venv "$scratch/tools"
"$scratch/tools/bin/python" -m pip install --quiet build uv
uv=$scratch/tools/bin/uv
build() { # from folder $1 into folder $2
  "$scratch/tools/bin/python" -m build --outdir "$2" "$1" >"$2.log" 2>&1 || {
    cat "$2.log"
    exit 1
  }
}
build "$root" "$scratch/first"
mkdir "$scratch/elsewhere"
tar -xzf "$scratch"/first/*.tar.gz --strip-components 1 -C "$scratch/elsewhere"
build "$scratch/elsewhere" "$scratch/second"
for file in "$scratch"/first/*; do
  cmp "$file" "$scratch/second/$(basename "$file")"
  (cd "$scratch/first" && sha256sum "$(basename "$file")")
done
echo "two builds: the same bytes"

here=$PWD
cd "$scratch"
for file in "$scratch"/first/*; do
  "$uv" venv --quiet --clear --python "$PYTHON" "$scratch/alone"
  "$uv" pip install --quiet --python "$scratch/alone/bin/python" "$file"
  rm -rf "$scratch/empty" && mkdir "$scratch/empty"
  (
    cd "$scratch/empty"
    kmifqe=$scratch/alone/bin/kmifqe
    "$kmifqe" --version
    "$kmifqe" example >/dev/null
    "$kmifqe" evaluate log.npz --policy policy.safetensors -e fqe --set hidden=16 --seeds 2 --steps 200 --out run >/dev/null
    "$kmifqe" report run --out page.html --csv table.csv --latex table.tex
  )
  "$scratch/alone/bin/python" - <<'PYTHON_CODE'
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import kmifqe

folder = Path(kmifqe.__file__).parent
assert "site-packages" in folder.parts, folder
assert find_spec("torch") is None, "a core install pulls PyTorch"
actors = sorted((folder / "worlds" / "actors").glob("*.safetensors"))
assert actors, "the shipped actors are missing"
for actor in actors:
    action = kmifqe.load_policy(str(actor))(np.zeros((1, 3), np.float32))
    assert np.isfinite(action).all(), actor
print(f"installed alone: {folder.name} {kmifqe.__version__}, {len(actors)} shipped actors load")
PYTHON_CODE
done
if [ -n "${KEEP:-}" ]; then
  cd "$here" && mkdir -p "$KEEP" && cp "$scratch"/first/*.whl "$scratch"/first/*.tar.gz "$KEEP"
fi
