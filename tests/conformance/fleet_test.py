# SPDX-License-Identifier: Apache-2.0
"""`loralei route` in front of real servers: what clients see, and what is left of their requests when servers die."""
import http.client
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

from live_server import ROOT, LiveRouter, LiveServer

FAULT_SECONDS = float(os.environ.get("FLEET_SECONDS", "12"))
ASK = {"messages": [{"role": "user", "content": "Mara bought 42 red lamps"}], "temperature": 0, "max_tokens": 40}


def stream(port, body, timeout=60):
    """(status, events, whole): data of events, and whether the answer had an end."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            return answer.status, [answer.read().decode()], True
        try:
            text = answer.read().decode()
        except http.client.IncompleteRead as cut:
            return 200, events_of(cut.partial.decode()), False
        return 200, events_of(text), True
    finally:
        connection.close()


def events_of(text):
    return [line[len("data: "):] for line in text.split("\n") if line.startswith("data: ")]


def content_of(events):
    pieces = [json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events
              if event != "[DONE]" and json.loads(event).get("choices")]
    return "".join(pieces)


class Fleet(unittest.TestCase):
    def replica(self, *flags, port=0, **more):
        server = LiveServer("-c", "256", "--max-num-seqs", "4", *flags, port=port, **more)
        self.addCleanup(self.end, server)
        return server

    def router(self, replicas, *flags):
        router = LiveRouter(replicas, *flags)
        self.addCleanup(self.end, router)
        return router

    def end(self, server):
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGCONT)
            server.process.kill()
            server.process.wait()

    def test_answers_are_those_of_a_replica(self):
        replicas = [self.replica(), self.replica()]
        router = self.router(replicas)
        router.wait_up(2)
        client = openai.OpenAI(base_url=router.url + "/v1", api_key="none")
        names = {model.id for model in client.models.list()}
        self.assertEqual(names, {model["id"] for model in replicas[0].request("GET", "/v1/models")[2]["data"]})
        self.assertEqual(client.models.retrieve("shout").id, "shout")
        for model in ("model", "shout", "reverse"):
            direct = replicas[0].request("POST", "/v1/chat/completions", {**ASK, "model": model})[2]["choices"][0]["message"]["content"]
            whole = client.chat.completions.create(model=model, **ASK).choices[0].message.content
            self.assertEqual(whole, direct)
            pieces = client.chat.completions.create(model=model, stream=True, **ASK)
            self.assertEqual("".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices), direct)
        for path, body in (("/v1/completions", {"prompt": "Hello", "max_tokens": 4, "temperature": 0}),
                           ("/v1/embeddings", {"input": "Hello"}), ("/tokenize", {"prompt": "Hello"})):
            said = [server.request("POST", path, body)[2] for server in (router, replicas[0])]
            for one in said:
                for key in ("id", "created"):
                    one.pop(key, None)
            self.assertEqual(said[0], said[1], path)
        # What a replica refuses it refuses in its own words.
        for body, status in (({**ASK, "model": "nobody"}, 404), ({"messages": 3}, 400), (b"{", 400)):
            said = [server.request("POST", "/v1/chat/completions", body) for server in (router, replicas[0])]
            self.assertEqual(said[0][0], status)
            self.assertEqual(said[0][2], said[1][2])
        status, headers, body = router.request("POST", "/v1/messages", {"model": "nobody", "max_tokens": 4, "messages": ASK["messages"]})
        self.assertEqual((status, body["type"]), (404, "error"))
        status, headers, _ = router.request("POST", "/v1/chat/completions", {**ASK, "model": "shout"}, {"X-Request-Id": "mine-1"})
        self.assertEqual(headers["X-Request-Id"], "mine-1")
        self.assertEqual(router.request("GET", "/nowhere")[0], 404)
        self.assertGreater(router.metric("loralei_router_picks_total"), 0)
        router.wait_metric("loralei_router_replica_up", 2)

    def test_keys_pass_end_to_end(self):
        replicas = [self.replica("--api-key", "secret") for _ in range(2)]
        router = self.router(replicas, "--replica-api-key", "secret")
        router.wait_up(2)
        for path, method, body in (("/v1/models", "GET", None), ("/v1/chat/completions", "POST", {**ASK, "model": "shout"})):
            self.assertEqual(router.request(method, path, body)[0], 401)
            self.assertEqual(router.request(method, path, body, {"Authorization": "Bearer wrong"})[0], 401)
            self.assertEqual(router.request(method, path, body, {"Authorization": "Bearer secret"})[0], 200)
        stranger = self.router(replicas)
        self.assertTrue(all("--replica-api-key" in row["why"] for row in stranger.replicas()), stranger.replicas())
        self.assertEqual(stranger.request("GET", "/ready")[0], 503)

    def test_adapters_come_and_go_everywhere(self):
        root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, root)
        shutil.copytree(ROOT / "demo/adapters/shout", root + "/one")
        replicas = [self.replica("--adapter-dir", root, adapters=None) for _ in range(2)]
        router = self.router(replicas)
        router.wait_up(2)
        before = {server.port: {model["id"] for model in server.request("GET", "/v1/models")[2]["data"]} for server in replicas}
        router.wait_up(2)
        status, headers, body = router.request("POST", "/v1/load_lora_adapter", {"lora_name": "mine", "lora_path": root + "/one"})
        self.assertEqual((status, headers["X-Loralei-Replicas"]), (200, "2 of 2"), body)
        for server in replicas:
            self.assertEqual({model["id"] for model in server.request("GET", "/v1/models")[2]["data"]}, before[server.port] | {"mine"})
        for _ in range(4):  # at once, whether the router has heard of it or not
            self.assertEqual(router.request("POST", "/v1/chat/completions", {**ASK, "model": "mine"})[0], 200)
        self.assertEqual(replicas[0].request("POST", "/v1/unload_lora_adapter", {"lora_name": "mine"})[0], 200)
        for _ in range(4):  # the other one still has it
            self.assertEqual(router.request("POST", "/v1/chat/completions", {**ASK, "model": "mine"})[0], 200)
        self.assertEqual(router.request("POST", "/v1/unload_lora_adapter", {"lora_name": "mine"})[0], 200)
        self.assertEqual(router.request("POST", "/v1/chat/completions", {**ASK, "model": "mine"})[0], 404)
        # Not all the same: said so.
        self.assertEqual(replicas[0].request("POST", "/v1/load_lora_adapter", {"lora_name": "two", "lora_path": root + "/one"})[0], 200)
        status, _, body = router.request("POST", "/v1/load_lora_adapter", {"lora_name": "two", "lora_path": root + "/one"})
        self.assertEqual(status, 502)
        self.assertIn("did not all do the same", body["error"]["message"])

    def test_adapters_have_homes(self):
        """Each is used on one replica; one that comes back without them is asked to bring those whose home it is."""
        replicas = [self.replica() for _ in range(3)]
        router = self.router(replicas)
        router.wait_up(3)
        names = ("acronym", "cipher", "count", "json", "numbers", "reverse", "rotate", "shout")

        def reported(replica):
            rows = replica.request("GET", "/v1/replica")[2]["adapters"]
            return {row["name"]: row for row in rows if row["name"] in names}

        asked = 0

        def ask_all(times):
            nonlocal asked
            asked += times
            for _ in range(times):
                for name in names:
                    status, _, answer = router.request("POST", "/v1/completions", {"model": name, "prompt": "a", "max_tokens": 2})
                    self.assertEqual(status, 200, answer)

        def all_reported():
            """When the last uses are told, which may be a moment later than the answers."""
            deadline = time.monotonic() + 30
            while True:
                uses = [reported(replica) for replica in replicas]
                if all(sum(one[name]["uses"] for one in uses) == asked for name in names):
                    return uses
                self.assertLess(time.monotonic(), deadline, uses)
                time.sleep(0.05)

        ask_all(24)
        uses = all_reported()
        for name in names:
            counts = sorted(one[name]["uses"] for one in uses)
            # The first ones had not been reported, and the last ones may have got another home.
            self.assertGreaterEqual(counts[-1] + counts[-2], 22, (name, counts))
        # At home by number, and given one when asked for so much; each takes an eighth, so one home is enough.
        deadline = time.monotonic() + 30
        while router.metric("loralei_router_adapters_placed") < len(names):
            self.assertLess(time.monotonic(), deadline)
            ask_all(2)
        self.assertEqual(router.metric("loralei_router_leads"), 1)
        before = all_reported()
        ask_all(5)
        after = all_reported()
        grew = {name: [b[name]["uses"] - a[name]["uses"] for a, b in zip(before, after)] for name in names}
        self.assertTrue(all(sorted(counts) == [0, 0, 5] for counts in grew.values()), grew)
        home = {name: counts.index(5) for name, counts in grew.items()}
        self.assertGreaterEqual(len(set(home.values())), 2, home)
        # One that has homes dies and comes back.
        died = home["shout"]
        at_home = {name for name in names if home[name] == died}
        port = replicas[died].port
        self.end(replicas[died])
        replicas[died] = self.replica(port=port)
        deadline = time.monotonic() + 30
        while not all(row["tier"] != "disk" for name, row in reported(replicas[died]).items() if name in at_home):
            self.assertLess(time.monotonic(), deadline, (at_home, reported(replicas[died])))
            time.sleep(0.1)
        self.assertTrue(all(row["uses"] == 0 for row in reported(replicas[died]).values()), "nobody asked for them yet")
        self.assertGreaterEqual(router.metric('loralei_router_prefetches_total{end="brought"}'), len(at_home))

    def test_who_leaves_cancels_upstream(self):
        replica = self.replica()
        router = self.router([replica])
        router.wait_up(1)
        connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)
        body = {**ASK, "model": "shout", "stream": True, "max_tokens": 200, "ignore_eos": True, "n": 4}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        connection.getresponse().read(20)
        connection.close()
        replica.wait_metric("loralei_requests_running", 0)
        router.wait_metric("loralei_router_replica_requests", 0)

    def test_drains_at_its_end(self):
        replica = self.replica()
        router = self.router([replica])
        router.wait_up(1)
        connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)
        self.addCleanup(connection.close)
        body = {**ASK, "model": "shout", "stream": True, "max_tokens": 200, "ignore_eos": True}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        begin = answer.read(20).decode()  # it runs
        router.process.send_signal(signal.SIGTERM)
        self.assertEqual(answer.status, 200)
        self.assertEqual(events_of(begin + answer.read().decode())[-1], "[DONE]")
        self.assertEqual(router.process.wait(60), 0)

    def test_refuses_what_it_cannot_use(self):
        for flags, sentence in (([], "--replica"), (["--replica", "https://a"], "TLS"), (["--replica", "a:b"], "http://HOST:PORT"),
                                (["--replica", "a", "--replica", "http://a:8080"], "named twice"),
                                (["--replica", "a", "--profile", "nothing"], "nothing")):
            done = subprocess.run([os.environ.get("SERVER_BINARY", str(ROOT / "build/loralei")), "route", *flags], capture_output=True, text=True, timeout=60)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(sentence, done.stdout + done.stderr)

    def test_replicas_die(self):
        """Every request has an answer, the right one, or one clear error; no token comes twice."""
        seed = random.randrange(1 << 30)
        print("seed", seed, flush=True)
        rng = random.Random(seed)
        replicas = [self.replica() for _ in range(3)]
        router = self.router(replicas)
        router.wait_up(3)
        models = ("model", "shout", "reverse", "acronym")
        right = {model: replicas[0].request("POST", "/v1/chat/completions", {**ASK, "model": model})[2]["choices"][0]["message"]["content"] for model in models}
        stop = threading.Event()
        ends = {"whole": 0, "error event": 0, "error": 0}
        wrong = []

        def client(number):
            own = random.Random(number + seed)
            while not stop.is_set():
                model = own.choice(models)
                if own.random() < 0.5:
                    status, _, body = router.request("POST", "/v1/chat/completions", {**ASK, "model": model})
                    if status == 200:
                        kind = "whole" if body["choices"][0]["message"]["content"] == right[model] else None
                    else:
                        kind = "error" if status in (502, 503, 504, 429) and body["error"]["message"] else None
                    said = (status, body)
                else:
                    said = status, events, whole = stream(router.port, {**ASK, "model": model})
                    if status != 200:
                        kind = "error" if status in (502, 503, 504, 429) else None
                    elif whole and events and events[-1] == "[DONE]":
                        kind = "whole" if content_of(events) == right[model] else None
                    else:  # a prefix, and then one error
                        error = json.loads(events[-1]).get("error") if events else None
                        kind = "error event" if whole and error and right[model].startswith(content_of(events[:-1])) else None
                if kind is None:
                    wrong.append((model, said))
                    return
                ends[kind] += 1

        threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        back, until, faults = [], time.monotonic() + FAULT_SECONDS, 0
        while time.monotonic() < until and not wrong:
            time.sleep(rng.uniform(0.2, 0.8))
            index = rng.randrange(len(replicas))
            faults += 1
            if rng.random() < 0.6:
                port = replicas[index].port
                replicas[index].process.kill()
                replicas[index].process.wait()
                replicas[index] = self.replica(port=port)
            else:
                replicas[index].process.send_signal(signal.SIGSTOP)
                time.sleep(rng.uniform(0.1, 6))
                replicas[index].process.send_signal(signal.SIGCONT)
            back.append(router.wait_up(3))
        stop.set()
        for thread in threads:
            thread.join(120)
        print(f"{faults} faults, {ends}, back after at most {max(back):.2f} s, "
              f"{router.metric('loralei_router_retries_total'):.0f} retries", flush=True)
        self.assertEqual(wrong, [])
        self.assertGreater(ends["whole"], 20)
        router.wait_metric("loralei_router_replica_requests", 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
