#!/usr/bin/env bash
# run.sh COMMAND...: in a network and with a /run of its own, so that addresses of pods (10.250) and services (10.251) can
# be had without a cluster, a service account's files lie where a pod has them, and nothing of it is seen from outside.
set -euo pipefail
exec unshare --map-root-user --mount --net bash -c '
  set -e
  mount -t tmpfs tmpfs /run
  ip link set lo up
  ip route add local 10.250.0.0/15 dev lo
  exec "$@"' run "$@"
