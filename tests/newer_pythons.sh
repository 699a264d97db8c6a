#!/usr/bin/env bash
# The unit tests on each Python newer than 3.11 that pyenv has or that is on PATH, each with an environment of its own.
set -euo pipefail
cd "$(dirname "$0")/.."

found() {  # found VERSION: the newest of it that runs; pyenv's shims on PATH run only where pyenv is told to use it
  local python
  for python in $(ls -rvd "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/"python$1" 2>/dev/null) "python$1"; do
    if "$python" -c "" 2>/dev/null; then echo "$python"; return; fi
  done
}

failed=()
for version in 3.12 3.13 3.14; do
  python=$(found "$version")
  if [ -z "$python" ]; then
    echo "== left out: no Python $version was found"
    continue
  fi
  echo "== $("$python" --version)"
  environment=build/python$version
  "$python" install.py "$environment" -c constraints.txt -e ".[export,kubernetes,simulate]" --group dev
  "$environment/bin/python" -m pytest -q -p tests.forked_workers --workers 2 -p no:cacheprovider tests/unit || failed+=("$version")
done
[ ${#failed[@]} -eq 0 ] || { echo "failed on ${failed[*]}" >&2; exit 1; }
