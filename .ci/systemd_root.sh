#!/usr/bin/env bash
# A small Debian with systemd in a folder of the cache: tests boot it in namespaces, because PID 1 of a build machine is
# seldom systemd.
#
# What stays true: a second run with the same recipe does nothing; two runs at once wait for each other; a folder of that
# name is whole, since it is moved there when it is finished. It holds python3 too, not for its own sake but for the
# libraries that any python of this system is linked with. Takes root and apt; without them the tests are skipped, and
# in CI this fails instead.
#
#   .ci/systemd_root.sh            build what is missing, print the folder
#   .ci/systemd_root.sh --check    exit 1 when it is missing, build nothing
set -euo pipefail

cache="${XDG_CACHE_HOME:-$HOME/.cache}/infctl"
packages=systemd,systemd-sysv,dbus,python3,procps
suite="$(. /etc/os-release 2>/dev/null && [ "${ID:-}" = debian ] && echo "${VERSION_CODENAME:-}" || true)"
suite="${suite:-bookworm}"
recipe="$suite $packages 1"
root="$cache/systemd-root"
stamp="$root/.infctl-recipe"

if [ "$(cat "$stamp" 2>/dev/null)" = "$recipe" ]; then
  echo "$root"
  exit 0
fi
if [ "${1:-}" = --check ]; then
  echo "systemd root: not built (run .ci/systemd_root.sh as root)" >&2
  exit 1
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "systemd root: not root with apt; the units are not tested in a real systemd" >&2
  exit $(( ${CI:+1} + 0 ))
fi

mkdir -p "$cache"
exec 9>"$cache/systemd-root.lock"
if ! flock -w 900 9; then
  echo "systemd root: another build has held $cache/systemd-root.lock for 15 minutes" >&2
  exit 1
fi
if [ "$(cat "$stamp" 2>/dev/null)" = "$recipe" ]; then
  echo "$root"
  exit 0
fi
if ! command -v debootstrap >/dev/null; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends debootstrap >/dev/null
fi
fresh="$(mktemp -d "$cache/.systemd-root.XXXXXX")"
trap 'rm -rf --one-file-system "$fresh"' EXIT
echo "systemd root: building in $root (a minute, about 300 MB)" >&2
# in a mount namespace of its own: what debootstrap mounts is gone when it ends, however it ends
unshare --mount debootstrap --variant=minbase --include="$packages" "$suite" "$fresh" >"$cache/systemd-root.log" 2>&1 || {
  tail -n 20 "$cache/systemd-root.log" >&2
  exit 1
}
rm -rf "$fresh/var/cache/apt/archives"/*.deb "$fresh/var/lib/apt/lists"/*
chmod 755 "$fresh"
# nothing to wait for and nothing to write to a disk: boots in a second or two
: >"$fresh/etc/fstab"
printf '%s\n' "$recipe" >"$fresh/.infctl-recipe"
if [ -e "$root" ]; then
  rm -rf --one-file-system "$root"
fi
mv "$fresh" "$root"
trap - EXIT
echo "$root"
