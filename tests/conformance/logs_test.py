# SPDX-License-Identifier: Apache-2.0
"""What the server says and how it ends: logs that nobody reads, text from outside in them, and an end in time."""
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from live_server import BINARY, ROOT, START_SECONDS, LiveServer

SMALL = ("-c", "256", "--max-num-seqs", "1")
TIMED_OUT = 124


def start_unread(*flags):
    """A server whose output is read up to its URL and never again: (process, host and port)."""
    command = [str(BINARY), "serve", str(ROOT / "demo/model"), "--port", "0", *SMALL, *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = b""
    while not (match := re.search(rb"http://(127\.0\.0\.1:\d+)/", text)):
        chunk = os.read(process.stdout.fileno(), 4096)
        if not chunk:
            raise RuntimeError("the server did not start:\n" + text.decode())
        text += chunk
    return process, match.group(1).decode()


def end(process):
    process.kill()
    process.wait()
    process.stdout.close()


class Unread(unittest.TestCase):
    def test_a_pipe_that_nobody_reads_stops_neither_requests_nor_the_end(self):
        process, address = start_unread()
        try:
            connection = http.client.HTTPConnection(address, timeout=60)
            for _ in range(2000):  # a line each: many times what a pipe holds
                connection.request("GET", "/nothing/" + "x" * 150)
                answer = connection.getresponse()
                answer.read()
                self.assertEqual(answer.status, 404)
            connection.request("GET", "/metrics")
            metrics = connection.getresponse().read().decode()
            stuck = float(re.search(r"^loralei_log_stuck_seconds (\S+)$", metrics, re.M)[1])
            self.assertGreater(stuck, 0)
            connection.close()
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(timeout=60), 0)
        finally:
            end(process)


class EndInTime(unittest.TestCase):
    TEMPLATE = ("{% set s = 'a ' * 500000 %}{% for i in range(900) %}{% for j in range(900) %}{% set x = s.count('b') %}"
                "{% endfor %}{% endfor %}")

    def test_a_template_that_does_not_end_holds_nothing_up(self):
        folder = pathlib.Path(tempfile.mkdtemp())
        (folder / "long.jinja").write_text(self.TEMPLATE)
        process, address = start_unread("--chat-template", str(folder / "long.jinja"), "--shutdown-timeout", "1")
        try:
            connection = http.client.HTTPConnection(address, timeout=60)
            body = json.dumps({"messages": [{"role": "user", "content": "x"}]})
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            time.sleep(0.5)  # the template is under way
            process.send_signal(signal.SIGTERM)
            # Where rendering has a limit and ended, the end is an ordinary one.
            self.assertIn(process.wait(timeout=30), (0, TIMED_OUT))
            connection.close()
        finally:
            end(process)
            shutil.rmtree(folder)

    def test_a_second_signal_ends_at_once(self):
        process, address = start_unread("--shutdown-timeout", "600")
        try:
            connection = http.client.HTTPConnection(address, timeout=60)
            body = json.dumps({"prompt": "x", "max_tokens": 200, "n": 100, "ignore_eos": True, "stream": True})
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            connection.getresponse().read(1)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            self.assertIn(process.wait(timeout=60), (0, 130))
            connection.close()
        finally:
            end(process)


class Hostile(unittest.TestCase):
    """Names of folders and what files say: neither a terminal nor a reader of JSON sees anything but text."""

    def adapters(self, folder):
        shutil.copytree(ROOT / "demo/adapters/shout", folder / "good")
        for name in (b"two\nlines", b"clear\x1b[2J", b"no\xffutf8", "turned\u202e".encode(), b"model:shout"):
            shutil.copytree(os.fsencode(ROOT / "demo/adapters/shout"), os.fsencode(folder) + b"/" + name)
        (folder / "says").mkdir()
        config = json.loads((ROOT / "demo/adapters/shout/adapter_config.json").read_text())
        config["peft_type"] = "\x1b[2J\n12:00:00.000 I all is well"
        (folder / "says/adapter_config.json").write_text(json.dumps(config))
        shutil.copy(ROOT / "demo/adapters/shout/adapter_model.safetensors", folder / "says")

    def run_server(self, *flags):
        folder = pathlib.Path(tempfile.mkdtemp())
        self.adapters(folder)
        server = LiveServer(*SMALL, *flags, adapters=folder)
        try:
            models = [card["id"] for card in server.request("GET", "/v1/models")[2]["data"]]
            self.assertEqual(models, ["model", "good", "says"])
            self.assertEqual(server.request("POST", "/v1/completions", {"model": "good", "prompt": "x", "max_tokens": 1})[0], 200)
            status, _, body = server.request("POST", "/v1/completions", {"model": "says", "prompt": "x"})
            self.assertNotEqual(status, 200)
            self.assertIn("\\x1b[2J\\n12:00", body["error"]["message"])
            self.assertEqual(server.request("GET", "/v1/adapters")[0], 200)
            rescanned = server.request("POST", "/v1/adapters/rescan", {})
            self.assertEqual((rescanned[0], len(rescanned[2]["notes"])), (200, 5))
            self.assertEqual(server.request("GET", "/nothing")[0], 404)
        finally:
            code = server.stop()
            shutil.rmtree(folder)
        self.assertEqual(code, 0, "\n".join(server.lines))
        for line in server.lines:
            self.assertRegex(line, r"^[^\x00-\x1f\x7f\u2028-\u202e]*$")
        return server.lines

    def test_text(self):
        lines = self.run_server()
        self.assertEqual(len([line for line in lines if "is left out" in line and " W " in line]), 5)
        self.assertEqual(len([line for line in lines if "is left out" in line and line.startswith("adapter: ")]), 5)
        self.assertFalse([line for line in lines if line.startswith("12:00:00.000 I all")])
        self.assertTrue([line for line in lines if " I request kind=completion " in line and " adapter=good " in line])

    def test_json(self):
        events = [json.loads(line) for line in self.run_server("--log-format", "json")]
        named = {event["event"]: event for event in events if "event" in event}
        serving = named["serving"]
        self.assertEqual(serving["model"], "model")
        self.assertRegex(serving["url"], r"^http://127\.0\.0\.1:\d+$")
        shares = sum(serving[f"{use}_bytes"] for use in ("weights", "adapters", "kv", "scratch", "other"))
        self.assertGreater(serving["weights_bytes"], 0)
        self.assertLessEqual(shares, serving["budget_bytes"])
        self.assertEqual(named["request refused"]["status"], 404)
        self.assertEqual(named["request refused"]["route"], "unknown")
        self.assertIn("no route", named["request refused"]["message"])
        self.assertEqual(named["adapter loaded"]["adapter"], "good")
        self.assertEqual(named["adapter broken"]["adapter"], "says")
        self.assertEqual((serving["adapters"], serving["broken"], serving["left_out"]), (2, 1, 5))
        checked = next(event for event in events if event.get("event") == "adapters checked")
        self.assertEqual((checked["adapters"], checked["broken"]), (2, 1))
        requests = [event for event in events if event.get("event") == "request"]
        self.assertEqual(requests[0]["adapter"], "good")
        self.assertEqual(requests[0]["out"], 1)
        self.assertIsInstance(requests[0]["total_ms"], (int, float))


class Refused(unittest.TestCase):
    """What could never work is refused before the model is loaded, with a sentence."""

    def refusal(self, *flags):
        command = [str(BINARY), "serve", str(ROOT / "demo/model"), "--port", "0", *flags]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS)
        self.assertNotEqual(answer.returncode, 0)
        self.assertEqual(answer.stdout, "")
        return answer.stderr

    def test_keys_that_no_header_carries(self):
        for key in ("a\n", "a\r\n", " a", "a\t", "a\x1bb", "\ufeffa", "x" * 5000):
            for flag in ("--api-key", "--admin-key"):
                self.assertIn("no client could send it", self.refusal(flag, key))
        folder = pathlib.Path(tempfile.mkdtemp())
        (folder / "keys").write_bytes(b"good\r\nba\x00d\n")
        self.assertIn("line 2: The key has", self.refusal("--api-key-file", str(folder / "keys")))
        shutil.rmtree(folder)

    def test_sizes_beyond_any_machine(self):
        for flag in ("--memory-budget", "--kv-cache-memory", "--adapter-memory", "--host-adapter-memory", "--prefetch-window",
                     "--max-body"):
            self.assertIn("is more than any machine has", self.refusal(flag, "1025TiB"), flag)
        self.assertIn("that this machine, or its cgroup, has", self.refusal("--memory-budget", "1000TiB"))
        server = LiveServer(*SMALL)
        try:
            for budget, status, sentence in ((1 << 60, 400, "budget_bytes"), ("2000TiB", 400, "more than any machine has"),
                                             ("1000TiB", 413, "that this machine, or its cgroup, has")):
                answer = server.request("PUT", "/v1/admin/memory", {"budget_bytes": budget})
                self.assertEqual(answer[0], status)
                self.assertIn(sentence, answer[2]["error"]["message"])
        finally:
            self.assertEqual(server.stop(), 0, "\n".join(server.lines))

    def test_names(self):
        self.assertIn("cannot be seen", self.refusal("--served-model-name", "a\n"))
        shout = str(ROOT / "demo/adapters/shout")
        self.assertIn("unclear which is meant", self.refusal("--adapter", f"m:shout={shout}", "--served-model-name", "m"))


if __name__ == "__main__":
    unittest.main(verbosity=1)
