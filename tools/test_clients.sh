#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes build/clients, a Python environment with the official OpenAI client for the conformance tests, and in build/clients/of a folder
# for each client and router of tests/conformance/tool_call_clients.txt, and for Prometheus. What is there already is kept. Python serves tests only.
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
# Unpacked and not installed, which would start it.
if ! [ -x build/clients/of/prometheus/usr/bin/prometheus ]; then
  folder=$(mktemp -d)
  if (cd "$folder" && apt-get -o APT::Sandbox::User=root download -qq prometheus >/dev/null); then
    dpkg -x "$folder"/prometheus_*.deb build/clients/of/prometheus
  else
    echo "clients: no package of Prometheus could be fetched (apt-get update brings the lists); its test is left out" >&2
  fi
  rm -rf "$folder"
fi
