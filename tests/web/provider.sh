#!/usr/bin/env bash
# The certified OpenID provider of tests/web/identity_provider.mjs, in build/. Where it cannot be had, this says so, and the
# test leaves itself out.
set -euo pipefail
folder=build/oidc-provider version=9.13.3
[ -f "$folder/$version" ] && exit 0
if command -v npm >/dev/null; then
  mkdir -p "$folder"
  npm install --prefix "$folder" --no-save --ignore-scripts --no-audit --no-fund --silent "oidc-provider@$version" &&
    touch "$folder/$version" && exit 0
fi
echo "no oidc-provider (npm): the test of the sign-in at it is left out" >&2
