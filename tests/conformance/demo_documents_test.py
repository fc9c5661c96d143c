# SPDX-License-Identifier: Apache-2.0
"""Every adapter of the second demo knows its skill on held-out documents, and the base does not, through the server with all
adapters in one batch; its chat template writes the same prompts; and no held-out document was trained on."""
import subprocess
import sys

from live_server import ROOT, LiveServer

DEMO = ROOT / "demo"
EVALUATE = [sys.executable, str(DEMO / "evaluate.py"), "--set", "documents", "--seed", "2026"]


def failures(server):
    """Exit statuses of everything that is checked, added up."""
    evaluate = [*EVALUATE, "--url", server.url]
    return (subprocess.call([*evaluate, "--count", "100"])
            + subprocess.call([*evaluate, "--count", "20", "--chat", "--adapters-only", "--min-with", "75"])
            + subprocess.call([sys.executable, str(DEMO / "generate.py"), "--set", "documents", "--check", "--count", "100"]))


server = LiveServer(model="demo/documents/model", adapters="demo/documents/adapters")
try:
    code = failures(server)
finally:
    stopped = server.stop()
sys.exit(code or stopped)
