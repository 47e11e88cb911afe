#!/usr/bin/env bash
# Builds the environment of the real engine (SGLang on plain CPUs) and the tiny model it serves.
#
# What stays true: a second run with the same recipe does nothing; two runs at once wait for each other; the stamp
# is written last, so that an interrupted run is repeated and never taken for a finished one. pip's own settings
# say where packages come from.
#
#   .ci/sglang_env.sh            build what is missing, print the interpreter and the model folder
#   .ci/sglang_env.sh --check    exit 1 when something is missing, build nothing
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/infctl"
venv="${INFCTL_SGLANG_ENV:-$cache/sglang}"
model="$cache/models/tiny-llama"
model_script="$here/../tests/support/tiny_model.py"
python="${INFCTL_SGLANG_PYTHON:-python3}"
sglang_version=0.5.23

requirements=(
  torch==2.14.1 torchvision==0.29.1 transformers==5.19.0 tokenizers==0.23.2 xgrammar==0.2.7 outlines==0.1.11
  blobfile==3.0.0 compressed-tensors==0.18.0 openai==2.8.0 openai-harmony==0.0.4 sentencepiece==0.2.1
  soundfile==0.13.1 timm==1.0.25 'mistral_common>=1.11.5' 'pyzmq>=25.1.2' 'uvicorn>=0.51'
  aiohttp anthropic datasets distro einops fastapi gguf interegular IPython llguidance msgspec ninja numpy
  nvidia-ml-py orjson packaging partial_json_parser pillow prometheus-client psutil pybase64 pydantic
  python-multipart regex requests scipy setproctitle smg-grpc-servicer tiktoken tqdm uvloop watchfiles xxhash
  zstandard
)

# SGLang imports names from its CUDA kernels when it starts; on this path nothing calls them.
stub='"""Stand-in for the CUDA kernels: names resolve, calls fail."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} needs a GPU build")

    return missing
'

recipe() { printf '%s\n' "$sglang_version" "${requirements[@]}" "$stub"; }
hash_of() { sha256sum | cut -c1-16; }
env_stamp="$venv/.infctl-recipe"
model_stamp="$model/.infctl-recipe"
env_hash="$(recipe | hash_of)"
model_hash="$(hash_of <"$model_script")"

env_done() { [[ -x "$venv/bin/python" && "$(cat "$env_stamp" 2>/dev/null)" == "$env_hash" ]]; }
model_done() { [[ -f "$model/config.json" && "$(cat "$model_stamp" 2>/dev/null)" == "$model_hash" ]]; }

report() {
  printf 'python=%s\nmodel=%s\n' "$venv/bin/python" "$model"
}

if env_done && model_done; then
  report
  exit 0
fi
if [[ "${1:-}" == "--check" ]]; then
  echo "sglang environment: not built (run .ci/sglang_env.sh)" >&2
  exit 1
fi

mkdir -p "$cache" "$(dirname "$venv")"
exec 9>"$cache/sglang.lock"
if ! flock -w 1800 9; then
  echo "sglang environment: another build has held $cache/sglang.lock for 30 minutes" >&2
  exit 1
fi

if ! env_done; then
  echo "sglang environment: building in $venv (minutes, 7 GB)" >&2
  rm -f "$env_stamp"
  [[ -x "$venv/bin/python" ]] || "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet "${requirements[@]}"
  "$venv/bin/python" -m pip install --quiet --no-deps "sglang==$sglang_version"
  site="$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
  mkdir -p "$site/sgl_kernel"
  printf '%s' "$stub" >"$site/sgl_kernel/__init__.py"
  "$venv/bin/python" -c "import torch, transformers, sgl_kernel; from importlib.metadata import version; assert version('sglang') == '$sglang_version'"
  printf '%s\n' "$env_hash" >"$env_stamp"
fi

if ! model_done; then
  mkdir -p "$(dirname "$model")"
  fresh="$(mktemp -d "$(dirname "$model")/.tiny-llama.XXXXXX")"
  trap 'rm -rf "$fresh"' EXIT
  HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false "$venv/bin/python" "$model_script" "$fresh" >&2
  printf '%s\n' "$model_hash" >"$fresh/.infctl-recipe"
  chmod 755 "$fresh"
  stale="$fresh.old" # a reader never meets half a folder
  [[ ! -e "$model" ]] || mv "$model" "$stale"
  mv "$fresh" "$model"
  rm -rf "$stale"
  trap - EXIT
fi
report
