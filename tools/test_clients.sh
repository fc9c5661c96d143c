#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes build/clients, a Python environment with the official OpenAI client for the conformance tests, and in build/clients/of a folder
# for each client and router of tests/conformance/tool_call_clients.txt, and for Prometheus, etcd and HAProxy. What is there already is kept.
# Python serves tests only.
set -euo pipefail
cd "$(dirname "$0")/.."
pip() { build/clients/bin/pip "$@" -q --disable-pip-version-check </dev/null; }
if ! [ -x build/clients/bin/python3 ] || ! cmp -s tests/conformance/requirements.txt build/clients/installed.txt; then
  mkdir -p build
  rm -rf build/clients
  python3 -m venv build/clients
  pip install -r tests/conformance/requirements.txt
  cp tests/conformance/requirements.txt build/clients/installed.txt
fi
while read -r name packages; do
  case "$name" in "" | "#"*) continue ;; esac
  folder=build/clients/of/$name
  if [ "$(cat "$folder/installed.txt" 2>/dev/null)" = "$packages" ]; then continue; fi
  rm -rf "$folder"
  # shellcheck disable=SC2086  # several packages
  pip install --no-compile --target "$folder" $packages
  echo "$packages" >"$folder/installed.txt"
done <tests/conformance/tool_call_clients.txt
# unpacked NAME FILE PACKAGE...: Debian's packages, unpacked into build/clients/of/NAME and not installed, which would start them.
unpacked() {
  local name=$1 file=$2 folder
  shift 2
  if [ -x "build/clients/of/$name/$file" ]; then return; fi
  folder=$(mktemp -d)
  if (cd "$folder" && apt-get -o APT::Sandbox::User=root download -qq "$@" >/dev/null); then
    for package in "$folder"/*.deb; do dpkg -x "$package" "build/clients/of/$name"; done
  else
    echo "clients: no package of $name could be fetched (apt-get update brings the lists); its tests are left out" >&2
  fi
  rm -rf "$folder"
}
mkdir -p build/clients/of
unpacked prometheus usr/bin/prometheus prometheus
unpacked etcd usr/bin/etcd etcd-server
unpacked haproxy usr/sbin/haproxy haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1
