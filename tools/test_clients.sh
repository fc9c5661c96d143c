#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes build/clients, a Python environment with the official OpenAI client for the conformance test. Python serves tests only.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -x build/clients/bin/python3 ] && cmp -s tests/conformance/requirements.txt build/clients/installed.txt; then exit 0; fi
mkdir -p build
rm -rf build/clients
python3 -m venv build/clients
build/clients/bin/pip install -q --disable-pip-version-check -r tests/conformance/requirements.txt
cp tests/conformance/requirements.txt build/clients/installed.txt
