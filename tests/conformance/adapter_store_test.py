# SPDX-License-Identifier: Apache-2.0
"""Adapters uploaded with curl to real servers that fetch from each other, are killed, and have files changed behind their backs."""
import hashlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from live_server import ROOT, LiveRouter, LiveServer

ADAPTERS = sorted(path for path in (ROOT / "demo/adapters").iterdir() if path.is_dir())
ETCD = ROOT / "build/clients/of/etcd/usr/bin/etcd"
KEY = "of-the-fleet"
ADMIN = {"Authorization": f"Bearer {KEY}"}
STEPS = 12  # of a training that publishes each
FLEET_STEPS = 20


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class AdapterStore(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.ports = free_ports(3)
        self.servers = {}

    def start(self, index, *flags, peers=True):
        """peers: their indices; True: the other one of the first two."""
        peers = [1 - index] if peers is True else peers or []
        more = [word for peer in peers for word in ("--adapter-peer", f"http://127.0.0.1:{self.ports[peer]}")]
        server = LiveServer("-c", "256", "--admin-key", KEY, "--adapter-store", str(self.store(index)), *more, *flags,
                            adapters=None, port=self.ports[index])
        self.servers[index] = server
        self.addCleanup(server.process.kill)
        return server

    def store(self, index):
        return self.folder / f"store-{index}"

    def stop(self, server):
        server.process.terminate()
        server.process.wait(60)

    def upload(self, server, source, key=KEY, **fields):
        """As a user would: curl -F."""
        command = ["curl", "-s", "-w", "\n%{http_code}", server.url + "/v1/adapters", "-H", f"Authorization: Bearer {key}"]
        for name, value in fields.items():
            command += ["-F", f"{name}={value}"]
        for file in sorted(pathlib.Path(source).iterdir()):
            command += ["-F", f"file=@{file}"]
        body, status = subprocess.run(command, check=True, capture_output=True, text=True).stdout.rsplit("\n", 1)
        return int(status), json.loads(body)

    def load(self, server, name, path, **more):
        return server.request("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path, **more}, ADMIN)

    def ask(self, server, model, **more):
        return server.request("POST", "/v1/completions", {"model": model, "prompt": "Hello", "max_tokens": 12, "temperature": 0, **more})

    def text(self, server, model, **more):
        status, _, body = self.ask(server, model, **more)
        self.assertEqual(status, 200, body)
        return body["choices"][0]["text"]

    def texts_without_a_store(self):
        """What each adapter says, and that each says something of its own."""
        server = LiveServer("-c", "256")
        texts = {path.name: self.text(server, path.name) for path in ADAPTERS}
        base = self.text(server, "model")
        server.stop()
        self.assertTrue(all(text != base for text in texts.values()), texts)
        return texts

    def test_uploaded_here_loaded_there(self):
        want = self.texts_without_a_store()
        source, other = ADAPTERS[0], ADAPTERS[1]
        first, second = self.start(0), self.start(1, "--registry", str(self.folder / "second.db"))
        status, body = self.upload(first, source)
        self.assertEqual(status, 200, body)
        for file in body["files"]:
            data = (source / file["name"]).read_bytes()
            self.assertEqual((file["bytes"], file["sha256"]), (len(data), hashlib.sha256(data).hexdigest()))
        path = body["path"]
        with LiveRouterOf(first, second) as router:
            status, _, answer = self.load(router, "mine", path)
            self.assertEqual(status, 200, answer)
            self.assertEqual([self.text(server, "mine") for server in (first, second, router)], [want[source.name]] * 3)
            self.assertEqual(self.load(router, "no", "store:" + "0" * 64)[0], 503)  # neither has it
        # Without the key neither the upload nor a blob.
        self.assertEqual(self.upload(first, other, key="wrong")[0], 401)
        self.assertEqual(second.request("GET", "/v1/adapters/blobs/" + body["files"][0]["sha256"])[0], 401)
        # The second one is killed, its store goes, and its registry brings the adapter back from the first, when asked.
        second.process.send_signal(signal.SIGKILL)
        second.process.wait()
        shutil.rmtree(self.store(1))
        second = self.start(1, "--registry", str(self.folder / "second.db"))
        self.assertFalse(list((self.store(1) / "adapters").iterdir()), "fetched before anybody asked")
        status, _, answer = self.ask(second, "mine")  # nobody else waits for it meanwhile
        self.assertEqual(status, 503, answer)
        self.assertIn("is being fetched from a peer; try again in a moment", answer["error"]["message"])
        self.assertEqual(self.ask(second, "model")[0], 200)
        deadline = time.monotonic() + 60
        while self.ask(second, "mine")[0] == 503:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        self.assertEqual(self.text(second, "mine"), want[source.name])
        self.assertTrue(list((self.store(1) / "adapters").iterdir()))
        # And where nobody has it, a request is told, and told again when it could be had: it is.
        second.process.send_signal(signal.SIGKILL)
        second.process.wait()
        shutil.rmtree(self.store(1))
        self.stop(first)
        second = self.start(1, "--registry", str(self.folder / "second.db"))
        deadline = time.monotonic() + 60
        while True:
            status, _, answer = self.ask(second, "mine")
            self.assertEqual(status, 503, answer)
            if "No peer gave the adapter" in answer["error"]["message"]:
                break
            self.assertLess(time.monotonic(), deadline, answer)
            time.sleep(0.05)
        first = self.start(0)
        deadline = time.monotonic() + 60
        while self.ask(second, "mine")[0] != 200:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.2)
        self.assertEqual(self.text(second, "mine"), want[source.name])

    @unittest.skipUnless(ETCD.exists(), "etcd could not be fetched: run apt-get update and tools/test_clients.sh")
    def test_peers_that_etcd_knows(self):
        client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
        etcd = subprocess.Popen([str(ETCD), "--data-dir", str(self.folder / "etcd"), "--listen-client-urls", client, "--advertise-client-urls", client,
                                 "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(etcd.wait)
        self.addCleanup(etcd.kill)
        flags = "--etcd", client.removeprefix("http://")
        first, second = (self.start(index, *flags, peers=False) for index in (0, 1))
        status, body = self.upload(first, ADAPTERS[0])
        self.assertEqual(status, 200, body)
        deadline = time.monotonic() + 60
        while True:  # until each has heard of the other
            status, _, answer = self.load(second, "mine", body["path"])
            if status == 200:
                break
            self.assertEqual(status, 503, answer)
            self.assertLess(time.monotonic(), deadline, answer)
            time.sleep(0.1)
        self.assertEqual(self.ask(second, "mine")[0], 200)

    def test_a_peer_whose_files_were_changed(self):
        source = ADAPTERS[0]
        first, second = self.start(0), self.start(1)
        _, body = self.upload(first, source)
        weights = next(file for file in body["files"] if file["name"].endswith(".safetensors"))
        blob = self.store(0) / "blobs" / weights["sha256"]
        good = blob.read_bytes()
        blob.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        status, _, answer = self.load(second, "mine", body["path"])
        self.assertEqual(status, 503, answer)
        self.assertIn("has " + str(len(good)) + " bytes and the SHA-256", json.dumps(answer))
        self.assertEqual(second.request("GET", "/v1/adapters")[2]["data"], [])
        self.assertFalse(list((self.store(1) / "adapters").iterdir()))
        blob.write_bytes(good)
        self.assertEqual(self.load(second, "mine", body["path"])[0], 200)

    def test_a_training_publishes_steps_while_requests_run(self):
        want = self.texts_without_a_store()
        server = self.start(0, "--keep-versions", "2", peers=False)
        self.assertEqual(self.upload(server, ADAPTERS[0], name="policy")[0], 200)
        wrong, over = [], threading.Event()
        served = [0]

        def requests():
            while not over.is_set():
                status, _, body = self.ask(server, "policy")
                if status != 200 or body["choices"][0]["text"] not in want.values():
                    wrong.append((status, body))
                served[0] += 1

        threads = [threading.Thread(target=requests) for _ in range(3)]
        for thread in threads:
            thread.start()
        for step in range(1, STEPS + 1):
            source = ADAPTERS[step % len(ADAPTERS)]
            status, body = self.upload(server, source, name="policy", load_inplace="true")
            self.assertEqual(status, 200, body)
            self.assertEqual(self.text(server, "policy"), want[source.name])
        over.set()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertGreater(served[0], 0)
        versions = server.request("GET", "/v1/adapters")[2]["data"][0]["versions"]
        self.assertEqual([row["number"] for row in versions], [STEPS, STEPS + 1])
        kept = {pathlib.Path(row["path"]).name for row in versions}
        deadline = time.monotonic() + 30
        while {path.name for path in (self.store(0) / "adapters").iterdir()} != kept:
            self.assertLess(time.monotonic(), deadline, "what is not kept leaves the store")
            time.sleep(0.05)

    def fleet(self, *flags):
        """Three servers that are each other's peers, and a router in front of them."""
        servers = [self.start(index, "--keep-versions", "2", peers=[peer for peer in range(3) if peer != index]) for index in range(3)]
        router = LiveRouter(servers, "--admin-key", KEY, "--replica-api-key", KEY, *flags)
        self.addCleanup(router.stop)
        router.wait_up(3, headers=ADMIN)
        return servers, router

    def test_a_training_publishes_through_the_router(self):
        want = self.texts_without_a_store()
        servers, router = self.fleet("--max-body", "64KiB")
        self.assertEqual(self.upload(router, ADAPTERS[1], key="wrong", name="policy")[0], 401)
        self.assertEqual([server.request("GET", "/v1/adapters/blobs", headers=ADMIN)[2]["data"] for server in servers], [[], [], []])
        status, body = self.upload(router, ADAPTERS[0], name="policy")
        self.assertEqual(status, 200, body)
        published = {want[ADAPTERS[0].name]}
        wrong, over, served = [], threading.Event(), [0]

        def requests():
            while not over.is_set():
                status, _, body = self.ask(router, "policy")
                if status != 200 or body["choices"][0]["text"] not in published:
                    wrong.append((status, body))
                served[0] += 1

        threads = [threading.Thread(target=requests) for _ in range(3)]
        for thread in threads:
            thread.start()
        for step in range(1, FLEET_STEPS + 1):
            source = ADAPTERS[step % len(ADAPTERS)]
            published.add(want[source.name])
            status, body = self.upload(router, source, name="policy", load_inplace="true")
            self.assertEqual(status, 200, body)
            self.assertEqual((body["name"], body["number"]), ("policy", step + 1))
            self.assertEqual([self.text(server, "policy") for server in (*servers, router)], [want[source.name]] * 4, f"step {step}")
        over.set()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertGreater(served[0], FLEET_STEPS)
        self.assertEqual(router.metric('loralei_router_requests_total{route="/v1/adapters",status="200"}'), FLEET_STEPS + 1)
        # Each has the same versions, the last two, and only these in its store.
        versions = [server.request("GET", "/v1/adapters")[2]["data"][0]["versions"] for server in servers]
        numbers = [[(row["number"], row["digest"]) for row in rows] for rows in versions]
        self.assertEqual([number for number, _ in numbers[0]], [FLEET_STEPS, FLEET_STEPS + 1])
        self.assertEqual(numbers, [numbers[0]] * 3)
        deadline = time.monotonic() + 30
        for index, rows in enumerate(versions):
            kept = {pathlib.Path(row["path"]).name for row in rows}
            while {path.name for path in (self.store(index) / "adapters").iterdir()} != kept:
                self.assertLess(time.monotonic(), deadline, f"what is not kept leaves store {index}")
                time.sleep(0.05)

    def test_a_replica_is_away_while_an_adapter_is_published(self):
        want = self.texts_without_a_store()
        servers, router = self.fleet()
        servers[2].process.send_signal(signal.SIGKILL)
        servers[2].process.wait()
        status, body = self.upload(router, ADAPTERS[0], name="policy")
        self.assertEqual(status, 502, body)
        self.assertIn(f"127.0.0.1:{self.ports[2]}", body["error"]["message"])
        self.assertEqual([self.text(server, "policy") for server in servers[:2]], [want[ADAPTERS[0].name]] * 2)
        servers[2] = self.start(2, "--keep-versions", "2", peers=[0, 1])
        router.wait_up(3, headers=ADMIN)
        status, body = self.upload(router, ADAPTERS[1], name="policy", load_inplace="true")
        self.assertEqual(status, 200, body)
        self.assertEqual([self.text(server, "policy") for server in (*servers, router)], [want[ADAPTERS[1].name]] * 4)

    def test_what_a_router_refuses_of_uploads(self):
        servers, router = self.fleet("--max-upload", "256KiB")
        status, body = self.upload(router, ADAPTERS[0])
        self.assertEqual(status, 413, body)
        self.assertIn("limit of 262144 bytes", body["error"]["message"])
        self.assertEqual(router.request("POST", "/v1/adapters", {}, ADMIN)[0], 415)
        status, _, body = router.request("POST", "/v1/adapters", b"no form", {**ADMIN, "Content-Type": "multipart/form-data; boundary=XX"})
        self.assertEqual(status, 400, body)
        # In the words of the replica that was asked.
        self.assertEqual(body, servers[0].request("POST", "/v1/adapters", b"no form", {**ADMIN, "Content-Type": "multipart/form-data; boundary=XX"})[2])
        alone = LiveServer("-c", "256", "--admin-key", KEY, adapters=None)
        self.addCleanup(alone.stop)
        without = LiveRouter([alone], "--admin-key", KEY)
        self.addCleanup(without.stop)
        without.wait_up(1, headers=ADMIN)
        status, body = self.upload(without, ADAPTERS[0])
        self.assertEqual(status, 403, body)
        self.assertIn("--adapter-store DIR", body["error"]["message"])

    def test_killed_while_uploads_run(self):
        for at in (0.0, 0.02, 0.1):
            server = self.start(0, peers=False)
            threads = [threading.Thread(target=lambda source=source: self.try_upload(server, source)) for source in ADAPTERS[:4]]
            for thread in threads:
                thread.start()
            time.sleep(at)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            for thread in threads:
                thread.join()
        server = self.start(0, peers=False)
        # What is there is whole, and nothing is on its way.
        stored = server.request("GET", "/v1/adapters/blobs", headers=ADMIN)[2]["data"]
        blobs = {file["sha256"] for row in stored for file in row["files"]} | {row["digest"] for row in stored}
        self.assertEqual({path.name for path in (self.store(0) / "blobs").iterdir()}, blobs)
        for path in (self.store(0) / "blobs").iterdir():
            self.assertEqual(hashlib.sha256(path.read_bytes()).hexdigest(), path.name)
        self.assertFalse(list((self.store(0) / "incoming").iterdir()))
        for source in ADAPTERS[:4]:
            self.assertEqual(self.upload(server, source)[0], 200)

    def try_upload(self, server, source):
        try:
            self.upload(server, source)
        except subprocess.CalledProcessError:
            pass  # it was killed


class LiveRouterOf:
    def __init__(self, *servers):
        self.router = LiveRouter(servers, "--admin-key", KEY, "--replica-api-key", KEY)
        self.router.wait_ready()

    def __enter__(self):
        return self.router

    def __exit__(self, *_):
        self.router.stop()


if __name__ == "__main__":
    unittest.main()
