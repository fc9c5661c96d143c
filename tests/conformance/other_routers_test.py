# SPDX-License-Identifier: Apache-2.0
"""What others put in front of servers and beside them works with ours unchanged: vLLM's and SGLang's routers, Prometheus."""
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

import openai

from live_server import ROOT, LiveRouter, LiveServer

CLIENTS = ROOT / "build/clients/of"
ASK = {"messages": [{"role": "user", "content": "Mara bought 42 red lamps"}], "temperature": 0, "max_tokens": 40}
ADAPTERS = ("shout", "reverse", "acronym")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class OtherRouters(unittest.TestCase):
    def setUp(self):
        self.replicas = [LiveServer("-c", "256") for _ in range(2)]
        for replica in self.replicas:
            self.addCleanup(replica.stop)
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def program(self, *words, packages=None):
        """Started, and its output where something fails."""
        log = open(self.folder / "log", "w+")
        self.addCleanup(log.close)
        environment = {**os.environ, "PYTHONPATH": str(CLIENTS / packages)} if packages else None
        process = subprocess.Popen([str(word) for word in words], stdout=log, stderr=subprocess.STDOUT, env=environment,
                                   cwd=self.folder)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def wait(self, process, so, seconds=60):
        deadline = time.monotonic() + seconds
        while True:
            try:
                if so():
                    return
            except (OSError, openai.APIError, urllib.error.URLError):
                pass
            if process.poll() is not None or time.monotonic() > deadline:
                self.fail("\n" + (self.folder / "log").read_text()[-4000:])
            time.sleep(0.1)

    def check_router(self, module, packages, *flags):
        port = free_port()
        process = self.program(sys.executable, "-W", "ignore", "-m", module, "--host", "127.0.0.1", "--port", port, "--worker-urls",
                               *[replica.url for replica in self.replicas], *flags, packages=packages)
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
        self.wait(process, lambda: client.chat.completions.create(model="shout", **ASK))
        for model in ADAPTERS:
            right = self.replicas[0].request("POST", "/v1/chat/completions", {**ASK, "model": model})[2]["choices"][0]["message"]["content"]
            for _ in range(3):
                said = client.chat.completions.create(model=model, **ASK)
                self.assertEqual((said.model, said.choices[0].message.content), (model, right))
                pieces = client.chat.completions.create(model=model, stream=True, **ASK)
                self.assertEqual("".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices), right)
        with self.assertRaises(openai.APIStatusError) as refused:
            client.chat.completions.create(model="nobody", **ASK)
        self.assertEqual(refused.exception.status_code, 404)

    def test_routers_of_sglang(self):
        self.check_router("sglang_router.launch_router", "sglang-router", "--prometheus-port", free_port(), "--policy", "cache_aware")

    def test_routers_of_vllm(self):
        self.check_router("vllm_router.launch_router", "vllm-router", "--prometheus-port", free_port(), "--policy", "round_robin")

    @unittest.skipUnless((CLIENTS / "prometheus").exists(), "Prometheus could not be fetched: run apt-get update and tools/test_clients.sh")
    def test_prometheus(self):
        router = LiveRouter(self.replicas)
        self.addCleanup(router.stop)
        router.wait_up(2)
        for model in ADAPTERS:
            self.assertEqual(router.request("POST", "/v1/chat/completions", {**ASK, "model": model})[0], 200)
        servers = [*self.replicas, router]
        (self.folder / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": "250ms", "scrape_timeout": "250ms"},
            "scrape_configs": [{"job_name": "loralei", "static_configs": [{"targets": [f"127.0.0.1:{server.port}" for server in servers]}]}]}))
        port = free_port()
        process = self.program(CLIENTS / "prometheus/usr/bin/prometheus", "--config.file=prometheus.yml",
                               f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={self.folder / 'data'}")

        def value(query):
            answer = urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}", timeout=10)
            found = json.load(answer)["data"]["result"]
            return float(found[0]["value"][1]) if found else None

        self.wait(process, lambda: value("sum(up)") == len(servers))
        self.wait(process, lambda: value("sum(loralei_router_replica_up)") == 2)
        self.wait(process, lambda: value("sum(loralei_router_picks_total)") == len(ADAPTERS))
        self.wait(process, lambda: value("sum(vllm:request_success_total)") == len(ADAPTERS))
        self.wait(process, lambda: value("count(vllm:lora_requests_info)") == 2)
        # Every family of both pages has a kind and a sentence.
        for server in servers:
            page = server.request("GET", "/metrics")[2]
            done = subprocess.run([str(CLIENTS / "prometheus/usr/bin/promtool"), "check", "metrics"], input=page, capture_output=True, text=True)
            self.assertNotIn("error while linting", done.stdout + done.stderr)
            self.assertNotIn("no help text", done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
