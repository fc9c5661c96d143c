# SPDX-License-Identifier: Apache-2.0
"""A server at the pace of another machine (--pace): its answers are its own, its times the profile's, and nobody mistakes it for a measurement."""
import http.client
import json
import pathlib
import subprocess
import tempfile
import time
import unittest

from live_server import BINARY, ROOT, LiveServer

MODELS = ["model", "json", "cipher"]
TOKENS = 12
ROW_S, LOAD_S = 0.02, 0.2


def profile(row_s, load_s):
    """A step takes `row_s` and nothing else, a load `load_s`: half of it on the disk, half on the link."""
    half = {"seconds": load_s / 2, "bytes_per_second": 1e15, "at_once": 1}
    return {"format": "loralei-profile", "version": 1, "name": "slow", "source": "a test",
            "model": {"name": "none", "max_tokens": 4096, "kv_bytes_per_token": 1024, "adapter_bytes_per_rank": 1000},
            "memory": {"kv_bytes": 1 << 30, "adapter_bytes": 1 << 30, "host_adapter_bytes": 1 << 30},
            "step": {"linear": [[1, row_s]]}, "disk": half, "link": half}


class Paced(unittest.TestCase):
    def server(self, pace=None, *flags, **more):
        """One that reads this profile, by name or as it is."""
        with tempfile.TemporaryDirectory() as folder:
            if isinstance(pace, dict):
                path = pathlib.Path(folder) / "profile.json"
                path.write_text(json.dumps(pace))
                pace = str(path)
            return LiveServer(*(["--pace", pace] if pace else []), *flags, **more)

    def ask(self, server, model):
        body = {"model": model, "prompt": "Q: apple river stone\nA:", "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, "logprobs": 1}
        begin = time.monotonic()
        status, _, answer = server.request("POST", "/v1/completions", body)
        self.assertEqual(status, 200, answer)
        choice = answer["choices"][0]
        return (choice["text"], choice["logprobs"]["token_logprobs"]), time.monotonic() - begin

    def test_answers_are_the_same_and_take_their_time(self):
        server = self.server()
        self.assertEqual(server.metric("loralei_paced"), 0)
        self.assertIsNone(server.request("GET", "/server_info")[2]["paced_as"])
        want = [self.ask(server, model)[0] for model in MODELS]
        server.stop()
        server = self.server(profile(ROW_S, LOAD_S))
        for model, text in zip(MODELS, want):
            answer, seconds = self.ask(server, model)
            self.assertEqual(answer, text)
            # The prompt's step, and one for every token behind the first; with an adapter its load before them.
            self.assertGreaterEqual(seconds, TOKENS * ROW_S + (LOAD_S if model != "model" else 0), model)
        self.assertGreaterEqual(server.metric("loralei_steps_total"), len(MODELS) * TOKENS)
        self.assertEqual(server.metric("loralei_paced"), 1)
        self.assertGreaterEqual(server.metric("loralei_paced_steps_late_total"), 0)
        self.assertEqual(server.request("GET", "/server_info")[2]["paced_as"], "slow")
        report = server.request("GET", "/v1/replica")[2]
        self.assertEqual(report["cost"]["name"], "slow")
        self.assertEqual(report["cost"]["step"]["linear"], [[1, ROW_S]])
        self.assertNotIn("link", {key for key, value in report["cost"].items() if value})  # memory is where steps use adapters
        self.assertAlmostEqual(report["cost"]["disk"]["seconds"], LOAD_S)
        self.assertGreater(report["capacity"]["sequences"], 0)
        loaded = [adapter for adapter in report["adapters"] if adapter["tier"] == "memory"]
        self.assertEqual(len(loaded), len(MODELS) - 1)
        for adapter in loaded:
            self.assertEqual(adapter["bytes"], 1000 * adapter["rank"])
        self.assertEqual(server.stop(), 0)
        told = "\n".join(server.lines)
        self.assertIn("This server is paced", told)
        self.assertIn("PACED as slow", told)

    def test_a_cost_file_comes_first(self):
        server = self.server("h100-llama2-7b", "--cost-file", "a40-llama2-7b", adapters=None)
        self.assertEqual(server.request("GET", "/v1/replica")[2]["cost"]["name"], "a40-llama2-7b")
        self.assertEqual(server.request("GET", "/server_info")[2]["paced_as"], "h100-llama2-7b")
        self.assertEqual(server.stop(), 0)

    def test_steps_that_take_longer_are_counted(self):
        server = self.server(profile(0, 0), adapters=None)
        prompt = "river stone apple " * 400  # more than a millisecond of any machine
        self.assertEqual(server.request("POST", "/v1/completions", {"model": "model", "prompt": prompt, "max_tokens": 1})[0], 200)
        self.assertGreater(server.metric("loralei_paced_steps_late_total"), 0)
        self.assertGreater(server.metric("loralei_paced_late_seconds_total"), 0)
        self.assertEqual(server.stop(), 0)

    def test_the_end_waits_for_no_pace(self):
        never = profile(0, 0)
        never["step"]["linear"] = [[1, 1e6], [2, 0]]  # a step of one row alone takes days
        server = self.server(never, "--shutdown-timeout", "0", adapters=None)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        body = {"model": "model", "prompt": "Mara bought 42 red lamps", "max_tokens": 4, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        self.assertTrue(connection.getresponse().readline().startswith(b"data: "))  # the prompt's step is over
        self.assertEqual(server.stop(), 0)  # which kills it after a minute
        connection.close()

    def test_what_is_no_profile_is_refused_with_a_sentence(self):
        ran = subprocess.run([BINARY, "serve", ROOT / "demo/model", "--pace", "b200"], capture_output=True, text=True, timeout=60, check=False)
        self.assertNotEqual(ran.returncode, 0)
        self.assertIn("--pace: a profile is a file or one of a40-llama2-7b, ", ran.stdout + ran.stderr)


if __name__ == "__main__":
    unittest.main()
