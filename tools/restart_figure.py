#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time to the first token of a long prompt: computed, found in memory, and found on disk (--kv-dir) by the next process.

    tools/restart_figure.py build/loralei MODEL [--adapter NAME=PATH] [--tokens 2000] [--rounds 5] [-- flags of serve]

Each round has prompts of its own. Before the new process asks, nothing of the files is in the page cache.
"""
import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request


def start(options, folder):
    command = [options.binary, "serve", options.model, "--port", "0", "--kv-dir", folder, *options.flags]
    if options.adapter:
        command += ["--adapter", options.adapter]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in process.stdout:
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if found:
            return process, f"http://127.0.0.1:{found.group(1)}"
    sys.exit("the server did not start")


def ask(url, options, prompt):
    """Seconds to the only token, and the tokens found."""
    with urllib.request.urlopen(f"{url}/v1/models") as reply:
        base = json.load(reply)["data"][0]["id"]
    name = options.adapter.split("=")[0] if options.adapter else base
    body = json.dumps({"model": name, "prompt": prompt, "max_tokens": 1, "temperature": 0}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    began = time.monotonic()
    with urllib.request.urlopen(request) as reply:
        answer = json.load(reply)
    return time.monotonic() - began, answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--adapter", default="")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--vocab", type=int, default=30000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("flags", nargs="*")
    options = parser.parse_args()
    seconds = {"cold": [], "warm": [], "restart": []}
    generator = random.Random(1)
    for _ in range(options.rounds):
        prompt = [3 + generator.randrange(options.vocab) for _ in range(options.tokens)]
        with tempfile.TemporaryDirectory(dir=".") as folder:
            process, url = start(options, folder)
            ask(url, options, prompt[:40][::-1])  # adapters are loaded
            seconds["cold"].append(ask(url, options, prompt)[0])
            time.sleep(2)  # nothing runs: prefixes are encoded, and written
            seconds["warm"].append(ask(url, options, prompt)[0])
            process.terminate()
            process.wait()
            process, url = start(options, folder)
            ask(url, options, prompt[:40][::-1])
            took, found = ask(url, options, prompt)
            seconds["restart"].append(took)
            process.terminate()
            process.wait()
        print(f"round: found {found} of {options.tokens}; " + ", ".join(f"{name} {values[-1]:.3f} s" for name, values in seconds.items()), flush=True)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print("medians: " + ", ".join(f"{name} {value:.3f} s" for name, value in medians.items())
          + f"; cold / restart {medians['cold'] / medians['restart']:.1f} (target 5)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
