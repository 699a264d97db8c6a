#!/usr/bin/env bash
# install.sh DIR: the kube-apiserver of Debian bookworm's source (1.20.2) as DIR/kube-apiserver. About five minutes and
# 3 GB the first time, of which 110 MB stay; nothing afterwards. Installs no package, but says what is missing.
#
# Another one is taken instead by KUBE_APISERVER=path, and with KUBE_CONTROLLER_MANAGER=path its controllers, too; resources
# of others (Gateway API, prometheus-operator) come from the files of TEST_CRDS=folder. Debian from 13 on has no server in
# its source.
set -euo pipefail

mkdir -p "$1"
dir=$(cd "$1" && pwd)
reflect2=/usr/share/gocode/src/github.com/modern-go/reflect2
lacks=()
need() { command -v "$1" >/dev/null || [ -x "$1" ] || lacks+=("$2"); }
need unshare util-linux
need ip iproute2
[ -n "${ETCD:-}" ] || need etcd etcd-server
if [ -z "${KUBE_APISERVER:-}" ] && [ ! -x "$dir/kube-apiserver" ]; then
  need /usr/lib/go-1.19/bin/go golang-1.19-go
  need dpkg-source dpkg-dev
  need rsync rsync
  need make make
  need gcc gcc
  need "$reflect2" golang-github-modern-go-reflect2-dev
fi
if [ ${#lacks[@]} -gt 0 ]; then
  echo "install.sh: install these packages first: ${lacks[*]}" >&2
  exit 1
fi
unshare --map-root-user --mount --net true || { echo "install.sh: no namespaces may be made here" >&2; exit 1; }
[ -z "${KUBE_APISERVER:-}" ] && [ ! -x "$dir/kube-apiserver" ] || exit 0

echo "building kube-apiserver in $dir"
[ ! -e "$dir/build" ] || { chmod -R u+w "$dir/build"; rm -rf "$dir/build"; }
mkdir "$dir/build"
cd "$dir/build"
apt-get source -qq --only-source kubernetes >apt.log 2>&1 || {
  tail -3 apt.log >&2
  echo "install.sh: Debian bookworm's source packages are needed: add deb-src to apt's sources" >&2
  exit 1
}
cd kubernetes-*/
[ -d cmd/kube-apiserver ] || { echo "install.sh: $PWD has no kube-apiserver: this is not bookworm's" >&2; exit 1; }
# Its own reflect2, 1.0.1, reads maps of custom resources wrongly when built with Go 1.18 or newer, and crashes.
rsync -a --delete "$reflect2/" vendor/github.com/modern-go/reflect2/
export PATH=/usr/lib/go-1.19/bin:$PATH CGO_ENABLED=0 GOFLAGS=-p=${JOBS:-2} GOPROXY=off GOPATH=$PWD/.go
export GOCACHE=$dir/build/cache KUBE_GIT_COMMIT=debian KUBE_GIT_TREE_STATE=archive KUBE_GIT_VERSION=v1.20.2
mkdir -p .go/src/k8s.io
ln -s ../../.. .go/src/k8s.io/kubernetes
nice -n 19 make WHAT=cmd/kube-apiserver >../make.log 2>&1 || { tail -20 ../make.log >&2; exit 1; }
mv _output/local/bin/linux/*/kube-apiserver "$dir"
cd "$dir"
chmod -R u+w build
rm -rf build
./kube-apiserver --version
