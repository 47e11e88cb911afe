#!/usr/bin/env bash
# ip and nsenter, with which tests make hosts of network namespaces. Installs what is missing, which takes root and apt;
# without them those tests are skipped, and in CI this fails instead.
set -euo pipefail

if command -v ip >/dev/null && command -v nsenter >/dev/null; then
  exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "ip or nsenter is not installed, and not root with apt; tests over several hosts are skipped" >&2
  exit $(( ${CI:+1} + 0 ))
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends iproute2 util-linux >/dev/null
