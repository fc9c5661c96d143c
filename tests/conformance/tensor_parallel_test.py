# SPDX-License-Identifier: Apache-2.0
"""Ranks as threads and, where mpirun is, as processes: the demo's answers are those of one rank; a rank that is killed ends the group, and requests with it."""
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import time
import unittest

from live_server import BINARY, ROOT, LiveServer

PROMPTS = ["Q: hello there\nA:", "shout: stone river", "count the letters of window"]
MPIRUN = shutil.which("mpirun")


RANKS = 2
MPI = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class MpiServer(LiveServer):
    LAUNCH = [str(MPIRUN), "--oversubscribe", "-n", str(RANKS), str(BINARY)]
    ENVIRONMENT = MPI

    def ranks(self):
        """Process numbers of the servers, rank 0 (which listens) first."""
        children = [int(word) for word in subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True).stdout.split()]
        order = {}
        for pid in children:
            with open(f"/proc/{pid}/environ", "rb") as file:
                found = re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)", file.read())
            if found:
                order[int(found.group(1))] = pid
        return [order[rank] for rank in sorted(order)]


def answers(server):
    """{(model, prompt): (text, log-probabilities)}"""
    said = {}
    for model in ["model", "json", "shout", "count", "cipher"]:
        for prompt in PROMPTS:
            body = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": 16, "logprobs": 1}
            status, _, answer = server.request("POST", "/v1/completions", body)
            assert status == 200, answer
            choice = answer["choices"][0]
            said[model, prompt] = choice["text"], choice["logprobs"]["token_logprobs"]
    return said


class TensorParallelTest(unittest.TestCase):
    def expect_close(self, got, want):
        self.assertEqual(got.keys(), want.keys())
        for one, (text, logprobs) in want.items():
            self.assertEqual(got[one][0], text, one)
            for mine, other in zip(got[one][1], logprobs):
                self.assertLess(abs(mine - other), 0.05, one)
        for (model, prompt), said in got.items():
            if model != "model":
                self.assertNotEqual(said[1], got["model", prompt][1], f"{model} does nothing")

    def test_threads_and_processes_answer_as_one_rank(self):
        server = LiveServer()
        want = answers(server)
        server.stop()
        server = LiveServer("--tensor-parallel", "2")
        threads = answers(server)
        self.expect_close(threads, want)
        self.assertEqual(server.stop(), 0)
        if not MPIRUN:
            self.skipTest("no mpirun here: ranks as threads alone")
        server = MpiServer("--tensor-parallel", str(RANKS))
        processes = answers(server)
        self.assertEqual(processes, threads, "sums have one order whoever computes them")
        ranks = server.ranks()
        self.assertEqual(len(ranks), 2)
        os.kill(ranks[0], signal.SIGTERM)
        self.assertEqual(server.process.wait(timeout=60), 0, "\n".join(server.lines))

    @unittest.skipUnless(MPIRUN, "no mpirun here")
    def test_a_rank_that_is_killed_ends_the_group_and_its_requests(self):
        server = MpiServer("--tensor-parallel", str(RANKS))
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        body = {"model": "json", "prompt": PROMPTS[0], "max_tokens": 200, "stream": True, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        self.assertEqual(answer.status, 200)
        self.assertTrue(answer.readline().startswith(b"data: "))
        os.kill(server.ranks()[1], signal.SIGKILL)
        begin = time.monotonic()
        rest = answer.read()
        self.assertLess(time.monotonic() - begin, 20, "it hangs")
        self.assertIn(b"has ended, and the tensor-parallel group with it", rest)
        server.process.wait(timeout=60)
        self.assertNotEqual(server.process.returncode, 0)
        server.reader.join(timeout=10)
        log = "\n".join(server.lines)
        self.assertRegex(log, r"Rank 1 of 2 \(process \d+\) has ended", log)

    @unittest.skipUnless(MPIRUN, "no mpirun here")
    def test_what_mpirun_started_is_what_was_asked_for(self):
        command = [MPIRUN, "--oversubscribe", "-n", "2", str(BINARY), "serve", str(ROOT / "demo/model"), "--port", "0"]
        for flags, sentence in [
            ([], "mpirun has started 2 processes for --tensor-parallel 1"),
            (["--tensor-parallel", "2", "--memory-sharing", "joint"], "leave --memory-sharing joint out"),
        ]:
            ended = subprocess.run(command + flags, capture_output=True, text=True, timeout=120, env=MPI)
            self.assertNotEqual(ended.returncode, 0)
            self.assertIn(sentence, ended.stdout + ended.stderr)


if __name__ == "__main__":
    unittest.main()
