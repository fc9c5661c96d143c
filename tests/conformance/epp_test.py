# SPDX-License-Identifier: Apache-2.0
"""A real Envoy asks loralei-epp where each request goes, and sends it to real servers."""
import http.client
import http.server
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

import openai

from fleet_test import content_of, events_of, stream
from live_gateway import (ENDPOINT, PICKER, LiveEnvoy, LivePicker, external_processor, free_port, replicas_by_metadata,
                          subset_hint, why_not)
from live_server import ROOT, LiveServer

ASK = {"messages": [{"role": "user", "content": "Mara bought 42 red lamps"}], "temperature": 0, "max_tokens": 40}
LONG = {**ASK, "model": "shout", "stream": True, "max_tokens": 200, "ignore_eos": True}
MODELS = ("model", "shout", "reverse", "acronym")
ETCD = ROOT / "build/clients/of/etcd/usr/bin/etcd"
CHAT = "/v1/chat/completions"
SOAK_REQUESTS = int(os.environ.get("EPP_REQUESTS", "500"))


class HeldReplica:
    """Reports adapters and their ranks; begins answers and does not end them before it is told."""

    def __init__(self, ranks):
        self.end = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                adapters = [{"name": name, "version": None, "tier": "device", "rank": rank, "bytes": 1, "failed": False}
                            for name, rank in ranks.items()]
                text = json.dumps({"object": "replica", "boot": "b", "cursor": 1, "since": 0, "more": False, "ready": True,
                                   "models": ["base"], "base": "d", "adapters": adapters, "gone": [], "cost": None,
                                   "capacity": {"sequences": 64, "kv_tokens": 1 << 20}, "load": {}}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def do_POST(self):
                while size := int(self.rfile.readline(), 16):  # Envoy sends bodies in chunks
                    self.rfile.read(size + 2)
                self.rfile.readline()
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(b"data: {}\n\n")
                self.wfile.flush()
                outer.end.wait()
                self.close_connection = True

            def log_message(self, *words):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.end.set()
        self.server.shutdown()
        self.server.server_close()


@unittest.skipIf(why_not(), why_not())
class EndpointPicker(unittest.TestCase):
    def replica(self, *flags, port=0, **more):
        server = LiveServer("-c", "256", "--max-num-seqs", "4", *flags, port=port, **more)
        self.addCleanup(self.kill, server)
        return server

    def kill(self, server):
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
        server.reader.join(5)
        server.process.stdout.close()

    def picker(self, replicas, *flags, **more):
        picker = LivePicker(replicas, *flags, **more)
        self.addCleanup(self.kill, picker)
        picker.wait_up(len(replicas))
        return picker

    def envoy(self, picker, **more):
        envoy = LiveEnvoy(picker, **more)
        self.addCleanup(envoy.stop)
        return envoy

    def ask(self, server, model="shout", **more):
        return server.request("POST", CHAT, {**ASK, "model": model, **more})

    def begin(self, server, body=None, headers=None):
        """A stream of which the first event has come."""
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self.addCleanup(connection.close)
        connection.request("POST", CHAT, json.dumps(body or LONG), {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        self.assertEqual(answer.status, 200)
        return connection, answer, answer.read1(8)

    def at_rest(self, picker):
        picker.wait_metric("loralei_router_replica_requests", 0)
        picker.wait_metric("loralei_router_clients", 0)

    def test_answers_are_those_of_a_replica(self):
        replicas = [self.replica() for _ in range(3)]
        picker = self.picker(replicas)
        # By the header, and by the metadata among a list that Envoy has.
        for envoy in (self.envoy(picker), self.envoy(picker, replicas=replicas_by_metadata([one.port for one in replicas]))):
            client = openai.OpenAI(base_url=envoy.url + "/v1", api_key="none", max_retries=0)
            self.assertEqual({model.id for model in client.models.list()},
                             {model["id"] for model in replicas[0].request("GET", "/v1/models")[2]["data"]})
            self.assertEqual(client.models.retrieve("shout").id, "shout")
            for model in MODELS:
                direct = self.ask(replicas[0], model)[2]["choices"][0]["message"]["content"]
                self.assertEqual(client.chat.completions.create(model=model, **ASK).choices[0].message.content, direct)
                pieces = client.chat.completions.create(model=model, stream=True, **ASK)
                self.assertEqual("".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices), direct)
            for path, body in (("/v1/completions", {"prompt": "Hello", "max_tokens": 4, "temperature": 0}),
                               ("/v1/embeddings", {"input": "Hello"}), ("/tokenize", {"prompt": "Hello " * 20000})):
                said = [server.request("POST", path, body)[2] for server in (envoy, replicas[0])]
                for one in said:
                    for key in ("id", "created"):
                        one.pop(key, None)
                self.assertEqual(said[0], said[1], path)
            # What a replica refuses it refuses in its own words.
            for body, status in (({**ASK, "model": "nobody"}, 404), ({"messages": 3}, 400), (b"{", 400), (b"\xff\x00", 400), (b"", 400)):
                said = [server.request("POST", CHAT, body) for server in (envoy, replicas[0])]
                self.assertEqual(said[0][0], status)
                self.assertEqual(said[0][2], said[1][2])
        self.assertGreater(picker.metric("loralei_router_picks_total"), 35)
        self.at_rest(picker)

    def test_streams_come_in_pieces(self):
        picker = self.picker([self.replica()])
        envoy = self.envoy(picker)
        connection = http.client.HTTPConnection("127.0.0.1", envoy.port, timeout=60)
        self.addCleanup(connection.close)
        replica = HeldReplica({"large": 64})  # its first event is all that there is until it is told
        self.addCleanup(replica.stop)
        held = self.picker([replica])
        connection, answer, _ = self.begin(self.envoy(held))
        self.assertEqual(held.metric("loralei_router_replica_requests"), 1)
        self.assertEqual(held.metric("loralei_router_replica_waiting"), 0)
        replica.end.set()
        answer.read()
        self.at_rest(held)
        status, events, whole = stream(envoy.port, LONG)
        self.assertEqual((status, whole, events[-1]), (200, True, "[DONE]"))
        self.at_rest(picker)

    def test_requests_go_where_their_adapter_is(self):
        bare, owner = self.replica(adapters=None), self.replica()
        picker = self.picker([bare, owner])
        envoy = self.envoy(picker)
        for _ in range(5):
            for model in MODELS[1:]:
                self.assertEqual(self.ask(envoy, model)[0], 200)
        self.assertEqual(picker.of_replica("loralei_router_picks_total", bare), 0)
        self.assertEqual(self.ask(envoy, "model")[0], 200)
        self.assertEqual(envoy.request("GET", "/v1/models/reverse")[2]["id"], "reverse")

    def test_ranks_decide(self):
        """A small adapter goes to where small ones are, though that one has more to do; a large one to the large ones."""
        replicas = [HeldReplica({"large": 64, "small": 8}) for _ in range(2)]
        for replica in replicas:
            self.addCleanup(replica.stop)
        for policy, small in (("rank-aware", 1), ("most-idle", 0)):
            picker = self.picker(replicas, "--policy", policy, "--profile", "a10-llama2-7b-bgmv")
            only = [self.envoy(picker, filters=[subset_hint([f"127.0.0.1:{replica.port}"]), external_processor()]) for replica in replicas]
            free = self.envoy(picker)
            for count, envoy, model in ((4, only[0], "large"), (6, only[1], "small")):
                for _ in range(count):
                    self.begin(envoy, {**LONG, "model": model})
            self.assertEqual([picker.of_replica("loralei_router_replica_requests", replica) for replica in replicas], [4, 6])
            self.begin(free, {**LONG, "model": "small"})
            self.assertEqual(picker.of_replica("loralei_router_replica_requests", replicas[small]), (4, 6)[small] + 1)
            self.begin(free, {**LONG, "model": "large"})
            self.assertEqual(picker.of_replica("loralei_router_replica_requests", replicas[0]), 5 + (small == 0))

    def test_keys_pass_end_to_end(self):
        replicas = [self.replica("--api-key", "secret") for _ in range(2)]
        picker = self.picker(replicas, "--replica-api-key", "secret")
        envoy = self.envoy(picker)
        for path, method, body in (("/v1/models", "GET", None), (CHAT, "POST", {**ASK, "model": "shout"})):
            self.assertEqual(envoy.request(method, path, body)[0], 401)
            self.assertEqual(envoy.request(method, path, body, {"Authorization": "Bearer wrong"})[0], 401)
            self.assertEqual(envoy.request(method, path, body, {"Authorization": "Bearer secret"})[0], 200)
        self.assertEqual(envoy.request("POST", "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "b"})[0], 403)

    def test_a_killed_replica_is_avoided(self):
        replicas = [self.replica() for _ in range(3)]
        picker = self.picker(replicas, "--policy", "first-fit")
        envoy = self.envoy(picker)
        self.assertEqual(self.ask(envoy)[0], 200)
        self.assertEqual(picker.of_replica("loralei_router_picks_total", replicas[0]), 1)
        self.kill(replicas[0])
        refused = 0
        while (status := self.ask(envoy)[0]) != 200:
            self.assertEqual(status, 503)
            refused += 1
        print(refused, "requests were sent to one that was gone", flush=True)
        for _ in range(20):
            self.assertEqual(self.ask(envoy)[0], 200)
        replicas[0] = self.replica(port=replicas[0].port)
        picker.wait_up(3)
        before = picker.of_replica("loralei_router_picks_total", replicas[0])
        self.assertEqual(self.ask(envoy)[0], 200)
        self.assertEqual(picker.of_replica("loralei_router_picks_total", replicas[0]), before + 1)
        for replica in replicas:
            self.kill(replica)
        picker.wait_up(0)
        status, headers, body = self.ask(envoy)
        self.assertEqual((status, headers["x-llm-d-request-dropped-reason"], headers["retry-after"]), (503, "rejected-no-endpoints", "1"))
        self.assertIn("error", body)
        self.assertEqual(picker.request("GET", "/ready")[0], 503)

    def test_a_gateway_goes_on_to_the_next(self):
        """Of endpoints that it is told in order; the picker learns which one served."""
        replicas = [self.replica() for _ in range(3)]
        picker = self.picker(replicas, "--policy", "first-fit", "--fallbacks", "2")
        envoy = self.envoy(picker, replicas=replicas_by_metadata([one.port for one in reversed(replicas)]))
        self.assertEqual(self.ask(envoy)[0], 200)
        self.kill(replicas[0])
        self.assertEqual(self.ask(envoy)[0], 200)
        self.assertEqual(picker.metric("loralei_router_retries_total"), 1)
        self.assertEqual([picker.of_replica("loralei_router_picks_total", replica) for replica in replicas], [2, 1, 0])
        picker.wait_up(2)  # for it was looked at
        self.assertEqual(self.ask(envoy)[0], 200)
        self.assertEqual(picker.metric("loralei_router_retries_total"), 1)
        self.at_rest(picker)

    def test_subsets(self):
        replicas = [self.replica() for _ in range(2)]
        picker = self.picker(replicas, "--policy", "first-fit")
        envoy = self.envoy(picker, filters=[subset_hint([f"127.0.0.1:{replicas[1].port}", "10.0.0.1:1"]), external_processor()])
        for _ in range(4):
            self.assertEqual(self.ask(envoy)[0], 200)
        self.assertEqual(picker.of_replica("loralei_router_picks_total", replicas[0]), 0)
        for allowed in ([], ["10.0.0.1:1"]):
            nobody = self.envoy(picker, filters=[subset_hint(allowed), external_processor()])
            status, headers, _ = self.ask(nobody)
            self.assertEqual((status, headers["x-llm-d-request-dropped-reason"]), (503, "rejected-no-endpoints"))

    def test_clients_choose_no_endpoint(self):
        replica, other = self.replica(), self.replica()
        picker = self.picker([replica])
        envoy = self.envoy(picker)
        for count in (1, 3):
            connection = http.client.HTTPConnection("127.0.0.1", envoy.port, timeout=60)
            connection.putrequest("GET", "/v1/models")
            for _ in range(count):
                connection.putheader(ENDPOINT, f"127.0.0.1:{other.port}")
                connection.putheader("X-Gateway-Destination-Endpoint-Subset", f"127.0.0.1:{other.port}")
            connection.endheaders()
            self.assertEqual(connection.getresponse().status, 200)
            connection.close()
        self.assertEqual(other.request("GET", "/metrics")[0], 200)
        self.assertNotIn("/v1/models", "".join(line for line in other.request("GET", "/metrics")[2].splitlines() if "http_requests" in line))
        self.assertIn("/v1/models", "".join(line for line in replica.request("GET", "/metrics")[2].splitlines() if "http_requests" in line))

    @unittest.skipUnless(ETCD.exists(), "etcd could not be fetched: run apt-get update and tools/test_clients.sh")
    def test_replicas_join_through_etcd(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        ports = [free_port() for _ in range(2)]
        client, peer = (f"http://127.0.0.1:{port}" for port in ports)
        etcd = subprocess.Popen([ETCD, "--data-dir", folder + "/etcd", "--listen-client-urls", client, "--advertise-client-urls", client,
                                 "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
                                 "--logger", "zap", "--log-outputs", "/dev/null"])
        self.addCleanup(etcd.wait)
        self.addCleanup(etcd.kill)
        at = ("--etcd", f"127.0.0.1:{ports[0]}")
        picker = self.picker([], *at)
        envoy = self.envoy(picker)
        self.assertEqual(self.ask(envoy)[0], 503)
        replica = self.replica(*at)
        picker.wait_up(1)
        self.assertEqual(self.ask(envoy)[0], 200)
        port = free_port()
        self.replica(*at, "--advertise", f"localhost:{port}", port=port)
        deadline = time.monotonic() + 60
        while not any("--advertise IP:PORT" in line for line in picker.lines):
            self.assertLess(time.monotonic(), deadline, picker.lines)
            time.sleep(0.05)
        self.assertEqual(self.ask(envoy)[0], 200)
        self.assertEqual(replica.stop(), 0)
        picker.wait_up(0)
        self.assertEqual(self.ask(envoy)[0], 503)

    def test_objectives_and_shedding(self):
        picker = self.picker([self.replica()], "--shed")
        envoy = self.envoy(picker)
        status, headers, body = envoy.request("POST", CHAT, {**ASK, "model": "shout"}, {"x-llm-d-slo-ttft-ms": "0.001"})
        self.assertEqual((status, headers["x-llm-d-request-dropped-reason"], headers["retry-after"]), (429, "rejected-saturated", "1"), body)
        self.assertEqual(envoy.request("POST", CHAT, {**ASK, "model": "shout"}, {"x-llm-d-slo-ttft-ms": "600000"})[0], 200)
        self.assertEqual(envoy.request("POST", CHAT, {**ASK, "model": "shout"}, {"x-llm-d-slo-ttft-ms": "soon"})[0], 400)
        self.assertEqual(picker.metric("loralei_router_shed_total"), 1)

    def test_malformed_requests(self):
        picker = self.picker([self.replica()], "--max-body", "1MiB", "--max-streams", "64")
        envoy = self.envoy(picker)
        self.assertEqual(envoy.request("POST", CHAT, b"x" * (1 << 20))[0], 400)
        self.assertEqual(envoy.request("POST", CHAT, b"x" * ((1 << 20) + 1))[0], 413)
        self.assertEqual(self.ask(envoy, lora=[{"id": 0}])[0], 400)
        for method, path, body in (("PUT", CHAT, b"{}"), ("DELETE", "/v1/models/shout", None), ("GET", "/%ff?%", None), ("OPTIONS", CHAT, None),
                                   ("HEAD", "/v1/models", None), ("POST", "/v1/models/%", b"[" * 100_000)):
            self.assertIn(envoy.request(method, path, body)[0], (200, 204, 400, 404, 405), (method, path))

        def pieces():  # longer than is said anywhere
            for _ in range(40):
                yield b"y" * 40_000

        connection = http.client.HTTPConnection("127.0.0.1", envoy.port, timeout=60)
        connection.request("POST", CHAT, pieces(), {"Content-Type": "application/json"}, encode_chunked=True)
        self.assertEqual(connection.getresponse().status, 413)
        connection.close()
        connection.request("POST", CHAT, iter([b'{"model": "sho', b'ut", "max_tokens": 2, "prompt": 1}']), {"Content-Type": "application/json"},
                           encode_chunked=True)
        self.assertEqual(connection.getresponse().status, 400)
        connection.close()
        self.assertEqual(self.ask(envoy)[0], 200)
        self.at_rest(picker)

    def test_other_modes(self):
        picker = self.picker([self.replica()])
        for mode in ("BUFFERED", "STREAMED", "NONE"):
            status, _, body = self.ask(self.envoy(picker, filters=[external_processor(mode)]))
            self.assertEqual(status, 500)
            self.assertIn("FULL_DUPLEX_STREAMED", body["error"]["message"])

    def test_who_leaves_cancels(self):
        replica = self.replica()
        picker = self.picker([replica])
        envoy = self.envoy(picker)
        connection, _, _ = self.begin(envoy, {**LONG, "n": 4})
        connection.close()
        replica.wait_metric("loralei_requests_running", 0)
        # With a request in part.
        connection = http.client.HTTPConnection("127.0.0.1", envoy.port, timeout=60)
        connection.putrequest("POST", CHAT)
        connection.putheader("Content-Length", "1000")
        connection.endheaders(b'{"model": ')
        picker.wait_metric("loralei_router_clients", 1)
        connection.close()
        self.at_rest(picker)

    def test_drains_at_its_end(self):
        replica = HeldReplica({"large": 64})
        self.addCleanup(replica.stop)
        picker = self.picker([replica])
        envoy = self.envoy(picker)
        _, answer, _ = self.begin(envoy)
        picker.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 60
        while (status := envoy.request("DELETE", "/v1/adapters/a")[0]) == 403:  # of the picker's, as long as it takes requests
            self.assertLess(time.monotonic(), deadline)
        self.assertIn(status, (500, 503))
        self.assertIsNone(picker.process.poll())
        replica.end.set()
        self.assertTrue(answer.read().endswith(b"\n\n"))
        self.assertEqual(picker.process.wait(60), 0)
        self.assertTrue(picker.lines[-1].endswith("stopped"), picker.lines)
        # Those that outlive the time are cut off, and the picker ends.
        replica.end.clear()
        picker = self.picker([replica], "--shutdown-timeout", "0")
        self.begin(self.envoy(picker))
        picker.process.send_signal(signal.SIGTERM)
        self.assertEqual(picker.process.wait(60), 0)
        self.assertIn("cut off", picker.lines[-1])

    def test_a_picker_that_dies_comes_back(self):
        replicas = [self.replica()]
        picker = self.picker(replicas)
        envoy = self.envoy(picker)
        self.assertEqual(self.ask(envoy)[0], 200)
        self.kill(picker)
        self.assertIn(self.ask(envoy)[0], (500, 503, 504))
        picker = self.picker(replicas, port=picker.grpc)
        deadline = time.monotonic() + 60
        while self.ask(envoy)[0] != 200:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)

    def test_refuses_what_it_cannot_use(self):
        for flags, sentence in (([], "--replica"), (["--replica", "http://localhost:1"], "http://IP:PORT"), (["--replica", "a:b"], "http://HOST:PORT"),
                                (["--replica", "1.2.3.4", "--replica", "http://1.2.3.4:8080"], "named twice"), (["--max-body", "x"], "--max-body"),
                                (["--replica", "1.2.3.4", "--profile", "nothing"], "nothing"), (["--nothing"], "--nothing")):
            done = subprocess.run([PICKER, *flags], capture_output=True, text=True, timeout=60)
            self.assertIn(done.returncode, (1, 2), done)
            self.assertIn(sentence, done.stdout + done.stderr)
        replica = self.replica()
        picker = self.picker([replica])
        done = subprocess.run([PICKER, "--replica", replica.url, "--port", str(picker.grpc)], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("--port", done.stderr)

    def test_soak(self):
        """Streams, answers and clients that leave, at once: every answer is right, and in the end nothing is counted anywhere."""
        seed = random.randrange(1 << 30)
        print("seed", seed, flush=True)
        replicas = [self.replica() for _ in range(3)]
        picker = self.picker(replicas)
        envoy = self.envoy(picker)
        right = {model: self.ask(replicas[0], model)[2]["choices"][0]["message"]["content"] for model in MODELS}
        left = iter(range(SOAK_REQUESTS))
        lock, wrong, kinds = threading.Lock(), [], {"whole": 0, "stream": 0, "left": 0}

        def client(number):
            rng = random.Random(seed + number)
            while True:
                with lock:
                    if next(left, None) is None or wrong:
                        return
                model, kind = rng.choice(MODELS), rng.choice(("whole", "stream", "stream", "left"))
                try:
                    if kind == "whole":
                        status, _, body = self.ask(envoy, model)
                        good = status == 200 and body["choices"][0]["message"]["content"] == right[model]
                    elif kind == "stream":
                        status, events, whole = stream(envoy.port, {**ASK, "model": model})
                        good = status == 200 and whole and events[-1] == "[DONE]" and content_of(events) == right[model]
                    else:
                        connection = http.client.HTTPConnection("127.0.0.1", envoy.port, timeout=60)
                        connection.request("POST", CHAT, json.dumps({**LONG, "model": model}), {"Content-Type": "application/json"})
                        if rng.random() < 0.7:
                            connection.getresponse().read(rng.randrange(1, 400))
                        connection.close()
                        good = True
                except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                    good, kind = False, f"{kind}: {error!r}"
                with lock:
                    if good:
                        kinds[kind] += 1
                    else:
                        wrong.append((model, kind))

        threads = [threading.Thread(target=client, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        print(kinds, "picks", [picker.of_replica("loralei_router_picks_total", replica) for replica in replicas], flush=True)
        self.assertEqual(wrong, [])
        self.assertEqual(sum(kinds.values()), SOAK_REQUESTS)
        self.at_rest(picker)
        for replica in replicas:
            replica.wait_metric("loralei_requests_running", 0)
        self.assertIsNone(picker.process.poll())
        self.assertEqual(picker.stop(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
