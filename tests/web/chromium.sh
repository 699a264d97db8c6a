#!/usr/bin/env bash
# Debian's Chromium for the tests of the page. Where it is there, nothing is touched; where it cannot be had, this says so,
# and the tests leave themselves out.
set -euo pipefail
command -v chromium >/dev/null && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } && exit 0
fi
echo "no Chromium (apt-get install chromium): the tests of the page are left out" >&2
