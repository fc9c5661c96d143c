# SPDX-License-Identifier: Apache-2.0
"""Prefixes on disk, through the server: found again behind a restart and behind a kill, with the answers of a server that keeps none."""
import os
import random
import signal
import tempfile
import time
import unittest

from live_server import LiveServer

WORDS = "apple river stone lamp garden window letter music winter silver paper field".split()
MODELS = ["model", "json", "cipher"]


def texts():
    generator = random.Random(43)
    return ["Q: " + " ".join(generator.choice(WORDS) for _ in range(80)) + "\nA:" for _ in range(3)]


class KvDirTest(unittest.TestCase):
    def ask_all(self, server):
        """{(model, text): (what was said, cached tokens)}"""
        answers = {}
        for text in texts():
            for model in MODELS:
                body = {"model": model, "prompt": text, "temperature": 0, "max_tokens": 12, "logprobs": 1}
                status, _, answer = server.request("POST", "/v1/completions", body)
                self.assertEqual(status, 200, answer)
                choice = answer["choices"][0]
                said = (choice["text"], choice["logprobs"]["token_logprobs"])
                answers[model, text] = said, answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return answers

    def expect_found(self, server, cold):
        for one, (said, cached) in self.ask_all(server).items():
            self.assertEqual(said, cold[one][0], one)
            self.assertGreaterEqual(cached, 64, one)
        self.assertGreater(server.metric("loralei_kv_disk_restored_total"), 30)

    def test_found_behind_a_restart_and_behind_a_kill(self):
        server = LiveServer()
        cold = self.ask_all(server)
        server.stop()
        with tempfile.TemporaryDirectory() as folder:
            flags = ["--kv-dir", folder, "--kv-dir-size", "64MiB"]
            server = LiveServer(*flags)
            self.ask_all(server)
            server.stop()
            for _ in range(2):
                server = LiveServer(*flags)
                self.expect_found(server, cold)
                shown = server.request("GET", "/v1/kv")[2]["disk"]
                self.assertGreater(shown["found_tokens"], 500)
                self.assertLessEqual(shown["bytes"], shown["bytes_most"])
                server.stop()
            for path, _, names in os.walk(folder):
                for name in names:
                    with open(os.path.join(path, name), "rb") as file:
                        self.assertNotIn(WORDS[0].encode(), file.read(), "texts are not written")

        with tempfile.TemporaryDirectory() as folder:
            server = LiveServer("--kv-dir", folder)
            self.ask_all(server)
            before = -1
            while before != (before := server.metric("loralei_kv_disk_written_bytes_total")):  # written while it is idle
                time.sleep(0.3)
            self.assertGreater(before, 0)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            server.stop()
            server = LiveServer("--kv-dir", folder)
            self.expect_found(server, cold)
            server.stop()

    def test_what_cannot_be_is_refused_with_a_sentence(self):
        with tempfile.TemporaryDirectory() as folder:
            server = LiveServer("--kv-dir", folder)
            with self.assertRaises(Exception) as refused:
                LiveServer("--kv-dir", folder)
            self.assertIn(folder, str(refused.exception))
            server.stop()
        with self.assertRaises(Exception) as refused:
            LiveServer("--kv-dir", "/proc/none")
        self.assertIn("/proc/none", str(refused.exception))


if __name__ == "__main__":
    unittest.main()
