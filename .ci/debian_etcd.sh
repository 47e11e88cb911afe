#!/usr/bin/env bash
# Debian's etcd 3.4, the oldest server that the client must pass on: unpacked into the cache, nothing is installed.
# Does nothing where an etcd 3.4 is on PATH already. Needs apt; as root it brings the package lists up to date first.
set -euo pipefail

folder="${XDG_CACHE_HOME:-$HOME/.cache}/infctl/etcd-debian"

is_34() { [ -x "$1" ] && "$1" --version 2>/dev/null | grep -q '^etcd Version: 3\.4\.'; }

if is_34 "$(command -v etcd || true)" || is_34 "$folder/usr/bin/etcd"; then
  exit 0
fi
if ! command -v apt-get >/dev/null; then
  echo "no apt here: etcd 3.4 is not tested" >&2
  exit $(( ${CI:+1} + 0 ))
fi
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
if [ "$(id -u)" = 0 ]; then
  apt-get update -qq
fi
(cd "$work" && apt-get download -qq etcd-server)
mkdir -p "$folder"
dpkg -x "$work"/etcd-server_*.deb "$folder"
is_34 "$folder/usr/bin/etcd" || { echo "apt's etcd-server is not 3.4" >&2; exit 1; }
