# SPDX-License-Identifier: Apache-2.0
"""Cold starts from outside: helper processes compute what is on its way to a device, answers stay the same, and nothing is left behind."""
import concurrent.futures
import os
import pathlib
import signal
import time
import unittest

from live_server import LiveServer

# A link so slow that a copy takes longer than a short prompt.
DEVICE = ("--device", "emulated:0.02", "--threads", "1", "--kv-cache-memory", "64MiB", "--adapter-memory", "64MiB")


def children(pid):
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:  # that thread has just ended
            pass
    return found


def is_alive(pid):
    try:
        return "Z" not in pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


class ColdStartTest(unittest.TestCase):
    def ask(self, server, model, salt=0):
        body = {"model": model, "prompt": f"Q: apple river stone {salt}\nA:", "temperature": 0, "max_tokens": 8, "logprobs": 1}
        status, _, answer = server.request("POST", "/v1/completions", body)
        self.assertEqual(status, 200, answer)
        choice = answer["choices"][0]
        return choice["text"], choice["logprobs"]["token_logprobs"]

    def models_of(self, server):
        names = [model["id"] for model in server.request("GET", "/v1/models")[2]["data"]]
        return [name for name in names if name != "model"]

    def expect_loaded(self, server, count):
        deadline = time.monotonic() + 20  # what is told of adapters may be a tenth of a second old
        while (loaded := server.metric("vllm:num_gpu_loaded_lora_adapters")) != count:
            self.assertLess(time.monotonic(), deadline, f"{loaded} of {count} are on the device")
            time.sleep(0.02)

    def expect_gone(self, pids):
        deadline = time.monotonic() + 20
        while any(is_alive(pid) for pid in pids):
            self.assertLess(time.monotonic(), deadline, f"{[pid for pid in pids if is_alive(pid)]} are left")
            time.sleep(0.02)

    def test_helpers_compute_what_is_on_its_way_and_answers_stay_the_same(self):
        server = LiveServer()
        models = self.models_of(server)
        want = [self.ask(server, model, 1) for model in models]
        self.assertEqual(server.stop(), 0)
        server = LiveServer(*DEVICE, "--cold-start", "assisted", "--assist-helpers", "2", "--adapter-cache", "none")
        helpers = children(server.process.pid)
        self.assertEqual(len(helpers), 2)
        self.assertEqual(server.metric("loralei_assist_helpers"), 2)
        for _ in range(3):
            self.assertEqual([self.ask(server, model, 1) for model in models], want)
        self.assertGreater(server.metric('loralei_cold_requests_total{way="assisted"}'), 0)
        self.assertGreater(server.metric("loralei_assisted_layers_total"), 0)
        self.assertGreater(server.metric("loralei_cold_hidden_seconds_total"), 0)
        os.kill(helpers[0], signal.SIGKILL)
        os.kill(helpers[1], signal.SIGSTOP)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            self.assertEqual(list(pool.map(lambda model: self.ask(server, model, 1), models)), want)
        server.wait_metric("loralei_assist_helpers", 2)
        self.assertGreater(server.metric("loralei_assist_helper_restarts_total"), 0)
        helpers += children(server.process.pid)
        self.assertEqual(server.stop(), 0, "\n".join(server.lines[-20:]))
        self.expect_gone(helpers)

    def test_a_server_that_is_killed_leaves_no_helper(self):
        server = LiveServer(*DEVICE, "--cold-start", "assisted", "--assist-helpers", "2")
        helpers = children(server.process.pid)
        self.assertEqual(len(helpers), 2)
        os.kill(helpers[1], signal.SIGSTOP)  # not even one that is stopped
        server.process.kill()
        server.process.wait()
        self.expect_gone(helpers)

    def test_what_changes_nothing_says_so(self):
        server = LiveServer("--cold-start", "assisted", "--assist-helpers", "2")
        self.assertEqual(children(server.process.pid), [])
        self.assertEqual(server.stop(), 0)
        told = "\n".join(server.lines)
        self.assertIn("--assist-helpers changes nothing here", told)
        self.assertIn("--cold-start assisted is layered here", told)

    def test_every_way_answers_and_none_needs_helpers(self):
        answers = set()
        for way in ["auto", "layered", "ondemand", "cached"]:
            server = LiveServer(*DEVICE, "--cold-start", way, "--assist-helpers", "0")
            self.assertEqual(children(server.process.pid), [])
            self.assertEqual(server.metric("loralei_assist_helpers"), 0)
            models = self.models_of(server)
            answers.add(tuple(repr(self.ask(server, model, 2)) for model in models))
            if way == "cached":
                self.expect_loaded(server, len(models))
            self.assertEqual(server.stop(), 0)
        self.assertEqual(len(answers), 1)


if __name__ == "__main__":
    unittest.main()
