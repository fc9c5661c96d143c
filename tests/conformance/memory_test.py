# SPDX-License-Identifier: Apache-2.0
"""The server in a memory group of the size of its budget: no request kills it, and when a load has gone by its memory is back."""
import concurrent.futures
import http.client
import json
import os
import pathlib
import shutil
import socket
import tempfile
import time
import unittest

from live_server import ROOT, LiveServer

ADAPTERS = sorted(path.name for path in (ROOT / "demo/adapters").iterdir() if path.is_dir())
MIB = 1 << 20
REFUSED = (400, 413, 429, 503)
MANY_READINGS = ("((a|b|ab|ba|[a-z ]{1,3})*x){50}", "(.|..|...|....){1,400}", "((a|b)?[a-z]{0,9}[ b-y]{0,9}){0,30}", "(a?[a-c]?.?.?.?){0,60}",
                 ".*a.{0,8}.*b.{0,9}.*", "(.{0,20}x|.{0,19}y|.{0,18}z){0,20}")


class Group:
    """A memory group of the kernel's, of version 1 or 2; `make` answers None where none can be made."""

    def __init__(self, folder, version):
        self.folder, self.version = folder, version

    @staticmethod
    def make(limit):
        for root, version in ((pathlib.Path("/sys/fs/cgroup/memory"), 1), (pathlib.Path("/sys/fs/cgroup"), 2)):
            folder = root / f"loralei-test-{os.getpid()}"
            try:
                if version == 2:
                    (root / "cgroup.subtree_control").write_text("+memory")
                folder.mkdir()
                group = Group(folder, version)
                (folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")).write_text(str(limit))
                return group
            except OSError:
                if folder.exists():
                    folder.rmdir()
        return None

    def enter(self):
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def killed(self):
        events = self.folder / ("memory.events" if self.version == 2 else "memory.oom_control")
        return sum(int(line.split()[1]) for line in events.read_text().splitlines() if line.startswith("oom_kill "))

    def remove(self):
        for _ in range(50):
            try:
                return self.folder.rmdir()
            except OSError:
                time.sleep(0.1)


class ConfinedServer(LiveServer):
    """Confined where a group can be made; elsewhere its resident memory is watched all the same."""

    def __init__(self, limit, *flags):
        self.group = Group.make(limit)
        super().__init__(*flags, before=self.group.enter if self.group else None)

    def resident(self):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the server is gone")

    def stop(self):
        code = super().stop()
        killed = self.group.killed() if self.group else 0
        if self.group:
            self.group.remove()
        return code if killed == 0 else f"killed by the kernel ({killed})"


def chat(server, model=None, text="apple river stone", **options):
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8, **options}
    if model:
        body["model"] = model
    return server.request("POST", "/v1/chat/completions", body)


class MemoryOfRequests(unittest.TestCase):
    def confined(self, limit, *flags):
        server = ConfinedServer(limit, *flags)
        self.addCleanup(lambda: self.assertEqual(server.stop(), 0, "\n".join(server.lines[-30:])))
        return server

    def assert_recovers(self, server, before):
        """Adapters load within seconds, and what is resident is within a tenth and 16 MiB of what it was."""
        status, _, body = chat(server, ADAPTERS[0])
        self.assertEqual(status, 200, body)
        limit = before * 1.1 + 16 * MIB
        deadline = time.monotonic() + 10
        while server.resident() > limit and time.monotonic() < deadline:
            time.sleep(0.2)
        self.assertLessEqual(server.resident() / MIB, limit / MIB)
        for name in ADAPTERS[1:4]:
            status, _, body = chat(server, name)
            self.assertEqual(status, 200, body)

    def test_one_long_request_leaves_adapters_their_room(self):
        server = self.confined(200 * MIB, "--memory-budget", "200MiB", "-c", "512")
        self.assertEqual(chat(server)[0], 200)
        before = server.resident()
        status, _, body = chat(server, text="x" * (8 * MIB - 1000))
        self.assertIn(status, REFUSED, body)
        self.assert_recovers(server, before)

    def test_bodies_of_every_shape(self):
        server = self.confined(200 * MIB, "--memory-budget", "200MiB", "-c", "512")
        self.assertEqual(chat(server)[0], 200)
        before = server.resident()
        for piece in ("[],", "1,", '"",', '{"a":[{}]},', '{"role":"user","content":"x"},'):
            for size in (1, 4, 8):
                body = '{"messages":[' + piece * ((size * MIB - 1000) // len(piece)) + "1]}"
                status, _, answer = server.request("POST", "/v1/chat/completions", body.encode())
                self.assertIn(status, REFUSED, answer)
        self.assert_recovers(server, before)

    def test_the_default_budget_is_the_group(self):
        server = self.confined(150 * MIB, "-c", "512")
        if not server.group:
            self.skipTest("no memory group can be made here; run as root where the memory controller is mounted")
        status, _, body = chat(server, text="x" * (8 * MIB - 1000))
        self.assertIn(status, REFUSED, body)
        self.assertEqual(chat(server)[0], 200)

    def test_many_long_requests(self):
        server = self.confined(512 * MIB, "--memory-budget", "512MiB", "-c", "512")
        self.assertEqual(chat(server)[0], 200)
        before = server.resident()
        text = "x" * (8 * MIB - 1000)
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(lambda _: chat(server, text=text), range(32)))
        for status, _, body in answers:
            self.assertIn(status, REFUSED + (0,), body)  # 0: refused by its head, while it still sent
        self.assert_recovers(server, before)

    def test_many_choices_with_logprobs(self):
        server = self.confined(400 * MIB, "--memory-budget", "400MiB", "-c", "512")
        self.assertEqual(chat(server)[0], 200)
        before = server.resident()
        status, _, body = chat(server, n=64, logprobs=True, top_logprobs=20, max_tokens=400, ignore_eos=True)
        self.assertIn(status, (200,) + REFUSED)
        if status == 200:
            self.assertEqual(len(body["choices"]), 64)
            self.assertEqual([len(c["logprobs"]["content"]) for c in body["choices"]], [400] * 64)
        self.assert_recovers(server, before)

    def test_many_choices_of_a_form_with_many_readings(self):
        server = self.confined(200 * MIB, "--memory-budget", "200MiB", "-c", "512", "--max-num-seqs", "64")
        self.assertEqual(chat(server)[0], 200)
        before = server.resident()
        for form in MANY_READINGS:
            status, _, body = chat(server, n=64, structured_outputs={"regex": form}, max_tokens=24, temperature=1)
            self.assertIn(status, (200,) + REFUSED, body)
        self.assert_recovers(server, before)

    def test_forms_of_the_largest_grammars(self):
        server = self.confined(200 * MIB, "--memory-budget", "200MiB", "-c", "512")
        self.assertEqual(chat(server)[0], 200)
        before = server.resident()

        def of_length(count):
            schema = {"name": "s", "schema": {"type": "string", "maxLength": count}}
            return chat(server, response_format={"type": "json_schema", "json_schema": schema}, max_tokens=4)

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(of_length, [400_000 + index for index in range(32)] + [1000]))
        for status, _, body in answers:
            self.assertIn(status, (200,) + REFUSED, body)
        self.assertEqual(of_length(100)[0], 200)
        self.assert_recovers(server, before)

    def test_texts_of_adapters(self):
        """What adapters bring as tokenizer files, however it is filled."""
        with tempfile.TemporaryDirectory() as folder:
            tokens = [{"id": 2000 + index, "content": f"<token {index}>"} for index in range(60_000)]
            texts = ('{"added_tokens":[' + "[]," * 20_000_000 + "[]]}", '{"added_tokens":["' + "x" * 60_000_000 + '"]}',
                     '{"model":"' + "x" * 60_000_000 + '"}', '{"x":[' + "0," * 30_000_000 + "0]}")
            names = []
            for index in range(8):
                name = f"heavy{index}"
                names.append(name)
                shutil.copytree(ROOT / "demo/adapters" / ADAPTERS[0], pathlib.Path(folder) / name)
                if index < len(texts):
                    text = texts[index]
                else:
                    text = json.dumps({"added_tokens": [{**one, "content": one["content"] + name} for one in tokens]})
                (pathlib.Path(folder) / name / "tokenizer.json").write_text(text)
                (pathlib.Path(folder) / name / "chat_template.jinja").write_text(f"{name}" + "{{messages[0].content}}" * 5000)
            server = self.confined(200 * MIB, "--memory-budget", "200MiB", "-c", "512", "--adapter-dir", folder)
            self.assertEqual(chat(server)[0], 200)
            before = server.resident()
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                for status, _, body in pool.map(lambda name: chat(server, name), names * 3):
                    self.assertIn(status, (200,) + REFUSED, body)
            self.assert_recovers(server, before)

    def test_slow_readers_of_large_answers(self):
        server = self.confined(600 * MIB, "--memory-budget", "600MiB", "-c", "512", "--max-num-seqs", "64")
        self.assertEqual(chat(server)[0], 200)
        before = server.resident()
        request = {"messages": [{"role": "user", "content": "apple"}], "n": 16, "logprobs": True, "top_logprobs": 20,
                   "max_tokens": 400, "ignore_eos": True, "temperature": 0}
        host, port = server.url.removeprefix("http://").split(":")
        readers = []
        for index in range(80):
            connection = http.client.HTTPConnection(host, int(port), timeout=120)
            connection.connect()
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            body = json.dumps({**request, "stream": index % 2 == 0})
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            readers.append(connection)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and server.metric("loralei_requests_running") > 0:
            self.assertLess(server.resident(), 600 * MIB)
            time.sleep(0.5)
        self.assertEqual(server.request("GET", "/health")[0], 200)
        for connection in readers:
            connection.close()
        self.assert_recovers(server, before)


if __name__ == "__main__":
    unittest.main()
