# SPDX-License-Identifier: Apache-2.0
"""Adapters loaded over HTTP survive the end of the server, however it ends: a real process, killed at any moment."""
import http.client
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from live_server import BINARY, ROOT, LiveServer

ADAPTERS = sorted(path for path in (ROOT / "demo/adapters").iterdir() if path.is_dir())[:2]
KILLS = int(os.environ.get("REGISTRY_KILLS", "24"))


class Registry(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.file = self.folder / "adapters.db"
        self.root = self.folder / "root"
        for name, source in zip(("one", "two"), ADAPTERS):
            shutil.copytree(source, self.root / name)

    def start(self, *flags, before=None):
        server = LiveServer("-c", "256", "--max-num-seqs", "4", "--adapter-dir", str(self.root), "--registry", str(self.file),
                            *flags, adapters=None, before=before)
        self.addCleanup(server.process.kill)
        return server

    def stop(self, server):
        server.process.terminate()
        server.process.wait(60)

    def load(self, server, name, path, **more):
        return server.request("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path), **more})

    def loaded(self, server):
        """Of those over HTTP: name to path."""
        rows = server.request("GET", "/v1/adapters")[2]["data"]
        return {row["name"]: row["path"] for row in rows if row["source"] == "http"}

    def test_restart(self):
        server = self.start()
        self.assertEqual(self.load(server, "mine", "one")[0], 200)
        self.assertEqual(self.load(server, "gone", "two")[0], 200)
        self.assertEqual(server.request("POST", "/v1/unload_lora_adapter", {"lora_name": "gone"})[0], 200)
        ask = {"model": "mine", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0}
        first = server.request("POST", "/v1/chat/completions", ask)[2]["choices"]
        self.stop(server)
        server = self.start()
        self.assertEqual(self.loaded(server), {"mine": str(self.root / "one")})
        self.assertEqual(server.request("POST", "/v1/chat/completions", ask)[2]["choices"], first)
        self.stop(server)
        # The same bytes, copied: read to know, and served. Others: not served.
        shutil.copytree(self.root / "one", self.root / "copy")
        shutil.rmtree(self.root / "one")
        (self.root / "copy").rename(self.root / "one")
        server = self.start()
        self.assertEqual(self.loaded(server), {"mine": str(self.root / "one")})
        self.stop(server)
        shutil.rmtree(self.root / "one")
        shutil.copytree(ADAPTERS[1], self.root / "one")
        server = self.start()
        self.assertEqual(self.loaded(server), {})
        self.assertTrue(any("'mine' of the registry is not served" in line for line in server.lines), server.lines)
        self.assertEqual(server.request("POST", "/v1/chat/completions", ask)[0], 404)
        self.stop(server)

    def test_one_file_for_each_server(self):
        server = self.start()
        command = [str(BINARY), "serve", str(ROOT / "demo/model"), "--port", "0", "--registry", str(self.file)]
        second = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertNotEqual(second.returncode, 0)
        self.assertIn("is open in another program", second.stdout + second.stderr)
        self.assertEqual(self.load(server, "mine", "one")[0], 200)
        self.stop(server)

    def test_full_disk(self):
        server = self.start()
        self.assertEqual(self.load(server, "mine", "one")[0], 200)
        size = os.path.getsize(str(self.file) + "-wal")
        no_limit = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size + 100, no_limit[1]))
        status, _, body = self.load(server, "second", "two")
        self.assertEqual(status, 500, body)
        self.assertEqual(self.load(server, "mine", "two", load_inplace=True)[0], 500)
        self.assertEqual(server.request("POST", "/v1/unload_lora_adapter", {"lora_name": "mine"})[0], 500)
        self.assertEqual(self.loaded(server), {"mine": str(self.root / "one")})
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, no_limit)
        self.assertEqual(self.load(server, "second", "two")[0], 200)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(60)
        server = self.start()
        self.assertEqual(self.loaded(server), {"mine": str(self.root / "one"), "second": str(self.root / "two")})
        self.stop(server)

    def test_killed_at_any_moment(self):
        seed = random.randrange(1 << 30)
        print("seed", seed, flush=True)
        rng = random.Random(seed)
        known = {}  # name to what it may be: a path, or None
        self.answered, self.wrong = 0, []
        for kill in range(KILLS):
            server = self.start()
            found = self.loaded(server)
            for name, allowed in known.items():
                self.assertIn(found.get(name), allowed, f"{name} after {kill} kills, seed {seed}")
            known = {name: [found.get(name)] for name in ("a", "b", "c")}
            stop = threading.Event()
            threads = [threading.Thread(target=self.change, args=(server, name, random.Random(rng.random()), known, stop))
                       for name in ("a", "b", "c")]
            for thread in threads:
                thread.start()
            time.sleep(rng.random() * 0.6)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait(60)
            stop.set()
            for thread in threads:
                thread.join()
            self.assertEqual(self.wrong, [])
        print(self.answered, "answered changes", flush=True)
        self.assertGreater(self.answered, KILLS, "hardly anything was done between the kills")

    def change(self, server, name, rng, known, stop):
        """Loads and unloads until the server is gone. What it may find then: the last answer, or what was under way."""
        while not stop.is_set():
            now = known[name][-1]
            unload = now is not None and rng.random() < 0.4
            wanted = None if unload else str(self.root / rng.choice(("one", "two")))
            known[name] = [now, wanted]
            try:
                if unload:
                    status, _, body = server.request("POST", "/v1/unload_lora_adapter", {"lora_name": name})
                else:
                    status, _, body = self.load(server, name, wanted, load_inplace=True)
            except (OSError, http.client.HTTPException):  # its answer was cut off
                return
            if status == 0:
                return
            if status != 200:
                self.wrong.append(f"{name}: {status} {body}")
                return
            known[name] = [wanted]
            self.answered += 1


if __name__ == "__main__":
    unittest.main()
