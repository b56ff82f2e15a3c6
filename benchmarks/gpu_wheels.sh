#!/usr/bin/env bash
# Pack what benchmarks/gpu.sh needs beside torch into one archive of at most 60 MiB.
#     benchmarks/gpu_wheels.sh [ARCHIVE] [PYTHON_VERSION]     (gpu-wheels.tar.xz, and this Python's version)
# The versions are those of requirements.lock. Only what a measurement imports is packed: nothing
# that draws, stores tables, sweeps or probes. TransformerLens imports `datasets`, which needs
# pyarrow (48 MiB), for names that no measurement uses: empty classes of those names stand in.
# What a package carries for its own tests is left out.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
archive=${1:-gpu-wheels.tar.xz}
version=${2:-$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')}
packages="accelerate annotated-types anyio click certifi cloudpickle charset-normalizer einops fancy-einsum
  filelock fsspec h11 httpcore2 httpx2 huggingface_hub idna jaxtyping joblib markdown-it-py mdurl
  narwhals numpy packaging pandas patsy psutil pydantic pydantic_core Pygments python-dateutil PyYAML
  regex rich safetensors scikit-learn scipy six sniffio statsmodels threadpoolctl tokenizers tqdm
  transformer-lens transformers truststore typing-inspection typing_extensions wadler_lindig"
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
pinned=$(for name in $packages; do grep -iE "^$name==" "$here/requirements.lock" | sed 's/[ ;\\].*//'; done)
python3 -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --only-binary=:all: \
  --python-version "$version" --target "$target" $pinned
find "$target" -depth -type d \( -name tests -o -name test -o -name __pycache__ -o -name bin \) -exec rm -rf {} +
find "$target" \( -name '*.pyi' -o -name '*.c' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.h' \) -delete
mkdir "$target/datasets"
echo 'load_dataset = None' | tee "$target/datasets/load.py" > "$target/datasets/__init__.py"
echo 'class Dataset: ...' > "$target/datasets/arrow_dataset.py"
echo 'class IterableDataset: ...' > "$target/datasets/iterable_dataset.py"
# Results say the version of this project, which a bare machine runs from its folder.
own=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/pyproject.toml")
mkdir "$target/oversquashing_tools-$own.dist-info"
printf 'Metadata-Version: 2.1\nName: oversquashing-tools\nVersion: %s\n' "$own" \
  > "$target/oversquashing_tools-$own.dist-info/METADATA"
tar -C "$target" -cf - . | xz -6 > "$archive"
size=$(stat -c %s "$archive")
echo "$archive: $((size >> 20)) MiB"
if [ "$size" -gt $((60 << 20)) ]; then echo "expected at most 60 MiB" >&2; exit 1; fi
