# SPDX-License-Identifier: Apache-2.0
"""Every demo adapter knows its skill on held-out prompts, and the base does not, through the server with all adapters in one batch."""
import subprocess
import sys

from live_server import ROOT, LiveServer

server = LiveServer()
try:
    code = subprocess.call([sys.executable, str(ROOT / "demo/evaluate.py"), "--url", server.url, "--count", "200", "--seed", "2026"])
finally:
    stopped = server.stop()
sys.exit(code or stopped)
