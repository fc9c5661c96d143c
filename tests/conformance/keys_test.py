# SPDX-License-Identifier: Apache-2.0
"""Keys with names (`--keys`) on a real server: limits, adapters, days, metrics, and the file read again."""
import http.client
import json
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

import openai
from prometheus_client.parser import text_string_to_metric_families

from live_server import BINARY, ROOT, LiveServer

SECRET = "sk-nobody-may-read-this-"
KEYS = [
    {"name": "free"},
    {"name": "few", "requests_per_minute": 3},
    {"name": "tokens", "tokens_per_minute": 200},
    {"name": "one", "max_running": 1},
    {"name": "team", "adapters": ["sh*", "c*r"]},
    {"name": "base-only", "adapters": []},
    {"name": "ops", "admin": True},
    {"name": "old", "expires": "2001-01-01"},
]


def lines_of(keys):
    return "# keys of a test\n\n" + "".join(json.dumps({"key": SECRET + key["name"], **key}) + "\n" for key in keys)


class Keys(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.file = cls.folder / "keys.jsonl"
        cls.file.write_text(lines_of(KEYS))
        cls.file.chmod(0o644)
        cls.server = LiveServer("-c", "512", "--max-num-seqs", "4", "--keys", str(cls.file), "--api-key", "plain")

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        if code != 0:
            raise AssertionError(f"the server ended with {code}: {cls.server.lines[-20:]}")

    def ask(self, name, path="/v1/completions", method="POST", **fields):
        body = {"model": "model", "prompt": "hi", "max_tokens": 4, **fields} if method == "POST" else None
        key = "plain" if name == "plain" else SECRET + name
        return self.server.request(method, path, body, headers={"Authorization": f"Bearer {key}"})

    def reload(self, text, part):
        since = len(self.server.lines)
        self.file.write_text(text)
        self.server.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 30
        while not any(part in line for line in self.server.lines[since:]):
            self.assertLess(time.monotonic(), deadline, f"the log never said {part!r}: {self.server.lines[since:]}")
            time.sleep(0.02)
        return "\n".join(self.server.lines[since:])

    def figures(self):
        """{(family, key, reason)}: value."""
        found = {}
        for family in text_string_to_metric_families(self.server.request("GET", "/metrics")[2]):
            for sample in family.samples:
                if sample.name.startswith("loralei_key_"):
                    found[sample.name, sample.labels["key"], sample.labels.get("reason", "")] = sample.value
        return found

    def test_requests(self):
        for left in (2, 1, 0):
            status, headers, body = self.ask("few")
            self.assertEqual(status, 200, body)
            self.assertEqual(headers["x-ratelimit-limit-requests"], "3")
            self.assertEqual(headers["x-ratelimit-remaining-requests"], str(left))
            self.assertRegex(headers["x-ratelimit-reset-requests"], r"^(\d+m)?[\d.]+(ms|s)$")
        status, headers, body = self.ask("few")
        self.assertEqual((status, body["error"]["code"]), (429, "rate_limit_exceeded"))
        self.assertLessEqual(int(headers["Retry-After"]), 20)
        self.assertIn("'few' may send 3 requests a minute", body["error"]["message"])
        self.assertEqual(self.ask("few", "/v1/models", "GET")[0], 200, "what costs nothing is not counted")
        self.assertEqual(self.ask("free")[0], 200, "others are not held up")
        client = openai.OpenAI(base_url=self.server.url + "/v1", api_key=SECRET + "few", max_retries=0)
        with self.assertRaises(openai.RateLimitError):
            client.completions.create(model="model", prompt="hi")
        figures = self.figures()
        self.assertEqual(figures["loralei_key_requests_total", "few", ""], 3)
        self.assertEqual(figures["loralei_key_refused_total", "few", "requests"], 2)

    def test_tokens(self):
        status, _, body = self.ask("tokens", max_tokens=300)
        self.assertEqual(status, 413, body)
        self.assertIn("the key 'tokens' may use 200 a minute", body["error"]["message"])
        status, headers, body = self.ask("tokens", max_tokens=100, stop=["e", "a", "i", " ", "o"])
        self.assertEqual(status, 200, body)
        self.assertEqual(headers["x-ratelimit-limit-tokens"], "200")
        used = 0
        for _ in range(40):
            status, headers, body = self.ask("tokens", max_tokens=30, ignore_eos=True)
            if status != 200:
                break
            used += body["usage"]["total_tokens"]
        self.assertEqual((status, body["error"]["code"]), (429, "rate_limit_exceeded"))
        self.assertIn("Retry-After", headers)
        self.assertGreater(used, 100)
        figures = self.figures()
        self.assertEqual(figures["loralei_key_refused_total", "tokens", "tokens"], 2)
        self.assertGreaterEqual(figures["loralei_key_prompt_tokens_total", "tokens", ""] +
                                figures["loralei_key_generation_tokens_total", "tokens", ""], used)

    def test_running(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps({"model": "model", "prompt": "hi", "max_tokens": 500, "stream": True,
                                                                  "ignore_eos": True}),
                           {"Content-Type": "application/json", "Authorization": f"Bearer {SECRET}one"})
        answer = connection.getresponse()
        answer.read(20)
        status, headers, body = self.ask("one")
        self.assertEqual((status, headers["Retry-After"]), (429, "1"), body)
        answer.read()
        for _ in range(20):  # one after the other: each may begin once the one before has answered
            self.assertEqual(self.ask("one")[0], 200)
            self.assertEqual(self.ask("one", stream=True)[0], 200)
        connection.close()

    def test_adapters(self):
        listed = [model["id"] for model in self.ask("team", "/v1/models", "GET")[2]["data"]]
        self.assertEqual(sorted(listed), ["cipher", "model", "shout"])
        self.assertEqual(self.ask("team", model="shout")[0], 200)
        self.assertEqual(self.ask("team")[0], 200)
        for name, asked in (("team", "json"), ("team", "nobody"), ("base-only", "shout")):
            status, _, body = self.ask(name, model=asked)
            self.assertEqual((status, body["error"]["code"]), (404, "model_not_found"))
            self.assertIn(f"the key '{name}' may use", body["error"]["message"])
        same = {self.ask("team", model=asked)[2]["error"]["message"] for asked in ("json", "nobody")}
        self.assertEqual(len(same), 1, "what it may not use is as what is not there")
        self.assertEqual(self.ask("team", "/v1/models/json", "GET")[0], 404)
        self.assertEqual(self.ask("team", "/v1/models/shout", "GET")[0], 200)
        self.assertEqual(self.ask("team", "/tokenize", model="json")[0], 404)
        self.assertEqual(self.ask("team", lora=[{"id": "json", "scale": 0.5}])[0], 404)
        self.assertEqual(self.ask("free", model="json")[0], 200)
        self.assertEqual(self.figures()["loralei_key_refused_total", "base-only", "adapter"], 1)

    def test_days_and_admin(self):
        status, _, body = self.ask("old")
        self.assertEqual((status, body["error"]["message"]), (401, "The key 'old' has expired."))
        self.assertEqual(self.ask("nobody")[0], 401)
        self.assertEqual(self.ask("plain")[0], 200, "--api-key stands beside them")
        self.assertEqual(self.ask("ops", "/v1/queues", "GET")[0], 200)
        self.assertEqual(self.ask("free", "/v1/queues", "GET")[0], 403)

    def test_reading_again_under_load(self):
        stop, failed = threading.Event(), []

        def load():
            while not stop.is_set():
                status, _, body = self.ask("free")
                if status != 200:
                    failed.append(body)

        threads = [threading.Thread(target=load) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            self.reload(lines_of([{"name": "new"}, *reversed(KEYS)]), "keys: 9 of --keys are in use")
            self.assertEqual(self.ask("new")[0], 200)
            self.reload(lines_of(KEYS), "keys: 8 of --keys are in use")
            self.assertEqual(self.ask("new")[0], 401)
            said = self.reload(lines_of(KEYS) + '{"name": "typo", "key": "' + SECRET + 'typo", "request_per_minute": 1}\n',
                               "The keys in use stay: ")
            self.assertIn(f"line {len(KEYS) + 3}: ", said)
            self.assertIn("'request_per_minute', which is none", said)
            self.assertEqual(self.ask("typo")[0], 401)
            self.assertEqual(self.ask("team")[0], 200)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            self.reload(lines_of(KEYS), "keys: 8 of --keys are in use")
        self.assertEqual(failed, [])

    def test_what_is_shown(self):
        self.assertEqual(self.ask("free")[0], 200)
        self.assertTrue(any("chmod 600" in line for line in self.server.lines), self.server.lines)
        deadline = time.monotonic() + 20
        while not any("request kind=completion" in line and "key=free" in line for line in self.server.lines):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        self.ask("base-only", model="json")
        texts = ["\n".join(self.server.lines), self.server.request("GET", "/metrics")[2], json.dumps(self.ask("team", model="json")[2])]
        for text in texts:
            self.assertNotIn(SECRET, text)

    def refused(self, text):
        path = self.folder / "wrong.jsonl"
        path.write_text(text)
        done = subprocess.run([str(BINARY), "serve", str(ROOT / "demo/model"), "--port", "0", "--keys", str(path)], capture_output=True,
                              text=True, timeout=120)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertNotIn(SECRET, done.stdout + done.stderr)
        return done.stderr

    def test_the_start_says_what_is_wrong(self):
        self.assertIn("line 2: is no JSON object", self.refused('{"name": "a", "key": "b"}\n' + SECRET))
        self.assertIn("line 1: 'expires' is no date", self.refused('{"name": "a", "key": "' + SECRET + '", "expires": "soon"}'))
        self.assertIn("holds no key", self.refused("# nothing\n"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
