# SPDX-License-Identifier: Apache-2.0
"""Adapters loaded over HTTP survive the end of the server, however it ends: a real process, killed at any moment."""
import http.client
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

from live_server import BINARY, ROOT, LiveServer

ADAPTERS = sorted(path for path in (ROOT / "demo/adapters").iterdir() if path.is_dir())[:2]
KILLS = int(os.environ.get("REGISTRY_KILLS", "24"))
STEPS = 20  # of a training that publishes each
STREAM_TOKENS = 120
ETCD = ROOT / "build/clients/of/etcd/usr/bin/etcd"


class Registry(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.file = self.folder / "adapters.db"
        self.root = self.folder / "root"
        for name, source in zip(("one", "two"), ADAPTERS):
            shutil.copytree(source, self.root / name)

    def start(self, *flags, before=None, at_once=4):
        server = LiveServer("-c", "256", "--max-num-seqs", str(at_once), "--adapter-dir", str(self.root), "--registry", str(self.file),
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
        self.assertTrue(any("'mine@1' of the registry is not served" in line for line in server.lines), server.lines)
        self.refused(server, "mine", "mine@1", "one")
        self.stop(server)
        shutil.rmtree(self.root / "one")
        server = self.start()
        self.assertEqual(self.loaded(server), {})
        self.assertEqual(server.request("POST", "/v1/chat/completions", ask)[0], 404)
        self.stop(server)

    def refused(self, server, name, version, folder):
        """Other files are at a version's path: its requests are told which and where, and what to do."""
        status, _, body = self.ask(server, name)
        self.assertEqual(status, 400, body)
        for part in (f'adapter "{version}" was not loaded', f"the files at {self.root / folder} are others than those",
                     "bring those back, or load what is there now as a new version"):
            self.assertIn(part, body["error"]["message"])

    def ask(self, server, name, **more):
        body = {"model": name, "prompt": "Mara went to the river", "max_tokens": STREAM_TOKENS, "temperature": 0,
                "ignore_eos": True, **more}
        return server.request("POST", "/v1/completions", body)

    def text_of(self, server, name):
        status, _, body = self.ask(server, name)
        self.assertEqual(status, 200, body)
        self.assertEqual(body["model"], name)
        return body["choices"][0]["text"]

    def put_step(self, folder, step):
        """What a training step leaves behind: every one answers something else."""
        shutil.rmtree(self.root / folder, ignore_errors=True)
        shutil.copytree(ADAPTERS[0], self.root / folder)
        config = self.root / folder / "adapter_config.json"
        values = json.loads(config.read_text())
        values["lora_alpha"] = values["lora_alpha"] * (0.2 + 0.1 * step)
        config.write_text(json.dumps(values))

    def stream(self, server, name, key, begun, texts):
        """Appends the text, and which version was the newest when it ended."""
        body = json.dumps({"model": name, "prompt": "Mara went to the river", "max_tokens": STREAM_TOKENS, "temperature": 0,
                           "ignore_eos": True, "stream": True}).encode()
        request = urllib.request.Request(server.url + "/v1/completions", data=body, headers={"Content-Type": "application/json"})
        text = ""
        with urllib.request.urlopen(request, timeout=120) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    begun.set()
                    text += json.loads(line[6:])["choices"][0]["text"]
        texts.append((key, text, self.published))

    def test_a_version_for_each_training_step(self):
        for step in range(1, STEPS + 1):
            self.put_step(f"step-{step}", step)
        plain = LiveServer("-c", "256", "--adapter-dir", str(self.root), adapters=None)
        self.addCleanup(plain.process.kill)
        alone = {step: self.text_of(plain, f"step-{step}") for step in range(1, STEPS + 1)}
        self.stop(plain)
        self.assertGreater(len(set(alone.values())), STEPS // 2, "the steps hardly differ")
        server = self.start("--keep-versions", "3", at_once=12)
        texts, threads, self.published = [], [], 0
        for step in range(1, STEPS + 1):
            self.assertEqual(self.load(server, "policy", f"step-{step}", load_inplace=True)[0], 200)
            self.published = step
            for name, key in (("policy", step), (f"policy@{max(1, step - 2)}", max(1, step - 2))):
                begun = threading.Event()
                threads.append(threading.Thread(target=self.stream, args=(server, name, key, begun, texts)))
                threads[-1].start()
                self.assertTrue(begun.wait(60), "what a name means is known when its answer begins")
            status, _, body = self.ask(server, f"policy@{step - 3}")
            if step > 3:
                self.assertEqual(status, 404)
                self.assertIn(f"there are `policy@{step - 2}`, `policy@{step - 1}` and `policy@{step}`", body["error"]["message"])
        for thread in threads:
            thread.join()
        self.assertEqual(len(texts), 2 * STEPS)
        for key, text, _ in texts:
            self.assertEqual(text, alone[key], f"version {key}")
        outlived = sum(published - key >= 3 for key, _, published in texts)
        print(outlived, "of", len(texts), "streams outlived their version", flush=True)
        self.assertGreater(outlived, 0)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(60)
        self.put_step(f"step-{STEPS - 1}", 1)
        server = self.start("--keep-versions", "3")
        self.assertTrue(any(f"'policy@{STEPS - 1}' of the registry is not served" in line for line in server.lines), server.lines)
        self.assertEqual(self.text_of(server, "policy"), alone[STEPS])
        self.assertEqual(self.text_of(server, f"policy@{STEPS}"), alone[STEPS])
        self.refused(server, f"policy@{STEPS - 1}", f"policy@{STEPS - 1}", f"step-{STEPS - 1}")
        # Between the start and its first use.
        self.put_step(f"step-{STEPS - 2}", 2)
        self.refused(server, f"policy@{STEPS - 2}", f"policy@{STEPS - 2}", f"step-{STEPS - 2}")
        for step in (STEPS - 1, STEPS - 2):
            self.put_step(f"step-{step}", step)
            self.assertEqual(self.text_of(server, f"policy@{step}"), alone[step], "its files are back")
        states = server.request("GET", "/v1/adapters")[2]["data"]
        policy = next(row for row in states if row["name"] == "policy")
        self.assertEqual((policy["number"], [one["number"] for one in policy["versions"]]), (STEPS, [STEPS - 2, STEPS - 1, STEPS]))
        self.assertEqual(server.request("DELETE", f"/v1/adapters/policy@{STEPS}")[0], 200)
        self.assertEqual(self.text_of(server, "policy"), alone[STEPS - 1])
        self.stop(server)
        server = self.start("--keep-versions", "3")
        self.assertEqual(self.text_of(server, "policy"), alone[STEPS - 1])
        self.assertEqual(self.load(server, "policy", "step-1", load_inplace=True)[0], 200)
        self.assertEqual(self.text_of(server, f"policy@{STEPS + 1}"), alone[1])
        self.stop(server)

    def test_steps_that_overwrite_one_folder(self):
        """Room for one adapter: the older version leaves memory, and cannot come back."""
        self.put_step("now", 1)
        room = sum(file.stat().st_size for file in (self.root / "now").iterdir()) * 3 // 2
        server = self.start("--keep-versions", "2", "--adapter-memory", str(room))
        self.assertEqual(self.load(server, "policy", "now", load_inplace=True)[0], 200)
        first = self.text_of(server, "policy")
        self.put_step("now", 9)
        self.assertEqual(self.text_of(server, "policy@1"), first, "it is in memory")
        self.assertEqual(self.load(server, "policy", "now", load_inplace=True)[0], 200)
        second = self.text_of(server, "policy")
        self.assertNotEqual(first, second)
        for _ in range(3):
            self.refused(server, "policy@1", "policy@1", "now")
            self.assertEqual(self.text_of(server, "policy"), second)
        # Once it has left memory, and other files are there, the newest is an error, too.
        self.put_step("now", 1)
        self.assertEqual(self.text_of(server, "policy@1"), first, "the first step's files are back")
        self.refused(server, "policy", "policy@2", "now")
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


@unittest.skipUnless(ETCD.exists(), "etcd could not be fetched: run apt-get update and tools/test_clients.sh")
class RegistryInEtcd(unittest.TestCase):
    """The same for several servers, with a real etcd."""
    start, stop, load, loaded = Registry.start, Registry.stop, Registry.load, Registry.loaded

    def setUp(self):
        Registry.setUp(self)
        self.ports = [self.free_port() for _ in range(2)]
        self.file = f"etcd://127.0.0.1:{self.ports[0]}"
        self.start_etcd()

    def free_port(self):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            return one.getsockname()[1]

    def start_etcd(self):
        client, peer = (f"http://127.0.0.1:{port}" for port in self.ports)
        self.etcd = subprocess.Popen([str(ETCD), "--data-dir", str(self.folder / "etcd"), "--listen-client-urls", client, "--advertise-client-urls", client,
                                      "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
                                      "--logger", "zap", "--log-outputs", "/dev/null"])
        self.addCleanup(self.end_etcd, self.etcd)

    def end_etcd(self, process):
        process.kill()
        process.wait()

    def until_loaded(self, server, name, path, **more):
        """As often as etcd needs to be there."""
        until = time.monotonic() + 60
        while (answer := self.load(server, name, path, **more))[0] == 503 and time.monotonic() < until:
            time.sleep(0.1)
        self.assertEqual(answer[0], 200, answer)

    def test_several_servers_and_etcd_away(self):
        one, two = self.start(), self.start()
        self.until_loaded(one, "mine", "one")
        self.until_loaded(two, "theirs", "two")
        ask = {"model": "mine", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0}
        first = one.request("POST", "/v1/chat/completions", ask)[2]["choices"]
        self.stop(two)
        two = self.start()  # what the other loaded is served, too
        self.assertEqual(self.loaded(two), {"mine": str(self.root / "one"), "theirs": str(self.root / "two")})
        self.assertEqual(two.request("POST", "/v1/chat/completions", ask)[2]["choices"], first)
        self.end_etcd(self.etcd)
        status, _, body = self.load(one, "more", "two")
        self.assertEqual(status, 503, body)
        self.assertIn("could not be kept", str(body))
        self.assertEqual(one.request("POST", "/v1/unload_lora_adapter", {"lora_name": "mine"})[0], 503)
        self.assertEqual(one.request("POST", "/v1/chat/completions", ask)[2]["choices"], first)
        refused = subprocess.run([str(BINARY), "serve", str(ROOT / "demo/model"), "--port", "0", "--registry", self.file],
                                 capture_output=True, text=True, timeout=60)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("does not answer", refused.stdout + refused.stderr)
        self.start_etcd()
        self.until_loaded(one, "more", "two")
        one.process.kill()
        one.process.wait(60)
        self.stop(two)
        one = self.start()
        self.assertEqual(set(self.loaded(one)), {"mine", "theirs", "more"})
        self.assertEqual(one.request("POST", "/v1/unload_lora_adapter", {"lora_name": "mine"})[0], 200)
        self.stop(one)
        two = self.start()
        self.assertEqual(set(self.loaded(two)), {"theirs", "more"})
        self.stop(two)


if __name__ == "__main__":
    unittest.main()
