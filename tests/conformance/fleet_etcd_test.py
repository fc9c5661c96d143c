# SPDX-License-Identifier: Apache-2.0
"""A fleet that finds itself through etcd: three etcd members, four replicas, two routers behind HAProxy, each in a network
namespace of its own. One of each is killed, stopped and cut off from the others, all of etcd goes, history is compacted
under a watch, routers are started again. Every request has the right answer, or one clear error; no token comes twice.

Where network namespaces may not be made, and where etcd or HAProxy could not be fetched, it is skipped and says so.
FLEET_SECONDS: so long goes on a random choice of faults after the list of them."""
import base64
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from fleet_test import content_of, events_of
from live_server import BINARY, ROOT

CLIENTS = ROOT / "build/clients/of"
ETCD, HAPROXY = CLIENTS / "etcd/usr/bin/etcd", CLIENTS / "haproxy/usr/sbin/haproxy"
MORE_SECONDS = float(os.environ.get("FLEET_SECONDS", "0"))
INSIDE = "FLEET_ETCD_INSIDE"  # its own network and mounts
ASK = {"messages": [{"role": "user", "content": "Mara bought 42 red lamps"}], "temperature": 0, "max_tokens": 24}
MODELS = ("model", "shout", "reverse", "acronym")
PATIENCE = 90


def ip(*words):
    subprocess.run(["ip", *words], check=True, stdout=subprocess.DEVNULL)


def request(host, port, method, path, body=None, timeout=60):
    """(status, body)"""
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def wait_for(what, so, patience=PATIENCE):
    """Seconds that it took."""
    begin = time.monotonic()
    while True:
        try:
            if so():
                return time.monotonic() - begin
        except (OSError, http.client.HTTPException, ValueError):
            pass
        if time.monotonic() - begin > patience:
            raise AssertionError(f"{what}: not within {patience} s")
        time.sleep(0.05)


class Node:
    """A process in a namespace of its own, at an address of its own."""

    def __init__(self, name, number, command):
        self.name, self.address, self.link = name, f"10.77.0.{number}", f"to-{name}"
        self.command = command(self.address)
        self.log = open(f"{name}.log", "ab")
        self.process = None
        ip("netns", "add", name)
        ip("link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", self.link, "master", "hub", "up")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")

    def start(self):
        self.process = subprocess.Popen(["ip", "netns", "exec", self.name, *map(str, self.command)], stdout=self.log, stderr=self.log)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def signal(self, number):
        self.process.send_signal(number)

    def connected(self, is_):
        ip("link", "set", self.link, "up" if is_ else "down")

    def ready(self):
        return request(self.address, 8080, "GET", "/ready", timeout=2)[0] == 200


class Load:
    """Clients that ask without an end, and what became of it."""

    def __init__(self, right, seed):
        self.right, self.seed, self.stop, self.wrong = right, seed, threading.Event(), []
        self.ends = {"whole": 0, "error": 0, "error event": 0, "cut": 0}
        self.cuts = []  # begin and end of times in which a router could say nothing more, which cuts its requests off
        self.threads = [threading.Thread(target=self.client, args=(number,)) for number in range(3)]
        for thread in self.threads:
            thread.start()

    def client(self, number):
        rng = random.Random(self.seed + number)
        while not self.stop.is_set():
            model, streams = rng.choice(MODELS), rng.random() < 0.6
            begin = time.monotonic()
            said = self.ask(model, streams)
            kind = self.kind_of(model, *said)
            if kind is None or (kind == "cut" and not self.may_be_cut(begin)):
                self.wrong.append((begin, time.monotonic(), self.cuts, model, streams, said))
                return
            self.ends[kind] += 1
            if kind == "error":
                time.sleep(0.05)

    def begin_cuts(self):
        self.cuts.append([time.monotonic(), None])

    def end_cuts(self):
        """HAProxy needs a moment to see that it is over."""
        self.cuts[-1][1] = time.monotonic() + 2

    def may_be_cut(self, begin):
        return any(end is None or begin <= end for _, end in self.cuts)

    def ask(self, model, streams):
        """(status, text, whole)"""
        connection = http.client.HTTPConnection("10.77.0.1", 8000, timeout=120)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps({**ASK, "model": model, "stream": streams}), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            try:
                return answer.status, answer.read().decode(), True
            except http.client.IncompleteRead as cut:
                return answer.status, cut.partial.decode(), False
        except (ConnectionError, http.client.RemoteDisconnected):
            return 0, "", False
        finally:
            connection.close()

    def kind_of(self, model, status, text, whole):
        right = self.right[model]
        if status in (429, 502, 503, 504):
            return "error"
        if status not in (0, 200):
            return None
        if not text.startswith("data:") and whole:
            return "whole" if json.loads(text)["choices"][0]["message"]["content"] == right else None
        if not text.startswith("data:"):
            return "cut"
        events = events_of(text if whole else text[:text.rfind("\n\n") + 2])
        last = json.loads(events[-1]) if events and events[-1] != "[DONE]" else {}
        if whole and events and events[-1] == "[DONE]":
            return "whole" if content_of(events) == right else None
        if not right.startswith(content_of([event for event in events if "error" not in json.loads(event)] if events else [])):
            return None
        if whole:
            return "error event" if "error" in last else None
        return "cut"

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(150)


class FleetThroughEtcd(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="fleet-etcd-")
        os.chdir(cls.folder)
        cls.etcds, cls.replicas, cls.routers, cls.others = [], [], [], []
        cls.seed = random.randrange(1 << 30)
        cls.rng = random.Random(cls.seed)
        print("seed", cls.seed, "in", cls.folder, flush=True)
        ip("link", "set", "lo", "up")
        ip("link", "add", "hub", "type", "bridge")
        ip("addr", "add", "10.77.0.1/24", "dev", "hub")
        ip("link", "set", "hub", "up")
        try:
            cls.start_all()
        except BaseException:
            cls.tearDownClass()
            raise

    @classmethod
    def start_all(cls):
        cluster = ",".join(f"e{i}=http://10.77.0.{11 + i}:2380" for i in range(3))
        endpoints = ",".join(f"10.77.0.{11 + i}:2379" for i in range(3))
        for i in range(3):
            cls.etcds.append(Node(f"e{i}", 11 + i, lambda at, i=i: [
                ETCD, "--name", f"e{i}", "--data-dir", f"{cls.folder}/e{i}", "--listen-client-urls", f"http://{at}:2379",
                "--advertise-client-urls", f"http://{at}:2379", "--listen-peer-urls", f"http://{at}:2380",
                "--initial-advertise-peer-urls", f"http://{at}:2380", "--initial-cluster", cluster, "--logger", "zap", "--log-level", "warn"]))
        for i in range(4):
            cls.replicas.append(Node(f"s{i}", 21 + i, lambda at: [
                BINARY, "serve", ROOT / "demo/model", "--adapter-dir", ROOT / "demo/adapters", "-c", "256", "--max-num-seqs", "4",
                "--host", at, "--port", "8080", "--etcd", endpoints]))
        for i in range(2):
            cls.routers.append(Node(f"r{i}", 31 + i, lambda at: [BINARY, "route", "--etcd", endpoints, "--host", at, "--port", "8080",
                                                                 "--admin-key", "boss", "--allowed-host", "*"]))
        for node in cls.etcds + cls.replicas + cls.routers:
            node.start()
        servers = "".join(f"  server {node.name} {node.address}:8080 check inter 200ms fall 2 rise 1 on-marked-down shutdown-sessions\n" for node in cls.routers)
        pathlib.Path("haproxy.cfg").write_text(
            "global\n  maxconn 200\ndefaults\n  mode http\n  timeout connect 500ms\n  timeout client 120s\n  timeout server 120s\n"
            "  timeout check 500ms\n  option redispatch\n  retries 3\nfrontend all\n  bind 10.77.0.1:8000\n  default_backend routers\n"
            f"backend routers\n  option httpchk GET /health\n  balance roundrobin\n{servers}")
        environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, (CLIENTS / "haproxy/usr/lib").glob("*-linux-gnu")))}
        with open("haproxy.log", "wb") as log:
            cls.others.append(subprocess.Popen([HAPROXY, "-db", "-f", "haproxy.cfg"], env=environment, stdout=log, stderr=log))
        print(f"all is up after {cls.wait_whole():.1f} s", flush=True)
        cls.right = {}
        for model in MODELS:
            status, text = request(cls.replicas[0].address, 8080, "POST", "/v1/chat/completions", {**ASK, "model": model})
            assert status == 200, text
            cls.right[model] = json.loads(text)["choices"][0]["message"]["content"]
        cls.load = Load(cls.right, cls.seed)

    @classmethod
    def tearDownClass(cls):
        if hasattr(cls, "load"):
            cls.load.end()
        for node in cls.etcds + cls.replicas + cls.routers:
            node.log.close()
        for node in cls.etcds + cls.replicas + cls.routers:
            if node.process and node.process.poll() is None:
                node.signal(signal.SIGCONT)
                node.kill()
        for process in cls.others:
            process.kill()
            process.wait()
        os.chdir("/")
        if not getattr(cls, "load", None) or cls.load.wrong:
            for path in sorted(pathlib.Path(cls.folder).glob("*.log")):
                print(f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-25:]), flush=True)
        shutil.rmtree(cls.folder)

    # How it stands.
    @classmethod
    def up(cls, router):
        connection = http.client.HTTPConnection(router.address, 8080, timeout=2)
        try:
            connection.request("GET", "/v1/replicas", headers={"Authorization": "Bearer boss"})
            rows = json.loads(connection.getresponse().read())["data"]
        finally:
            connection.close()
        return sorted(row["replica"] for row in rows if row["state"] in ("up", "returning"))

    @classmethod
    def members(cls, router):
        connection = http.client.HTTPConnection(router.address, 8080, timeout=2)
        try:
            connection.request("GET", "/v1/replicas", headers={"Authorization": "Bearer boss"})
            rows = json.loads(connection.getresponse().read())["data"]
        finally:
            connection.close()
        return sorted(row["replica"] for row in rows if row["state"] != "left")

    @classmethod
    def wait_whole(cls):
        everybody = sorted(f"{node.address}:8080" for node in cls.replicas)
        return max(wait_for(f"{router.name} has all replicas up", lambda router=router: cls.up(router) == everybody) for router in cls.routers)

    def etcd(self, path, body, without=None):
        for node in self.etcds:
            if node is without:
                continue
            try:
                status, text = request(node.address, 2379, "POST", path, body, timeout=3)
                if status == 200:
                    return json.loads(text)
            except OSError:
                continue
        raise OSError("no etcd answers")

    def expect_right(self, what, seconds):
        self.assertEqual(self.load.wrong, [], what)
        print(f"{what}: whole again after {seconds:.2f} s; {self.load.ends}", flush=True)

    def answers_come(self, count=3):
        """Some more requests have their whole answers, whatever stands still."""
        before = self.load.ends["whole"]
        wait_for("answers", lambda: self.load.ends["whole"] >= before + count or self.load.wrong)

    # Faults, and what shows that they were seen; each leaves the fleet as it found it.
    def killed(self, node):
        node.kill()
        self.seen(node)
        node.start()

    def paused(self, node):
        node.signal(signal.SIGSTOP)
        self.seen(node)
        node.signal(signal.SIGCONT)

    def cut_off(self, node):
        node.connected(False)
        self.seen(node)
        if node in self.replicas:
            here = f"{node.address}:8080"
            seconds = max(wait_for("its lease is over", lambda router=router: here not in self.members(router)) for router in self.routers)
            print(f"{node.name} cut off: it is no member any more {seconds:.2f} s later", flush=True)
        node.connected(True)

    def seen(self, node):
        begin = time.monotonic()
        if node in self.replicas:
            for router in self.routers:
                wait_for("a router sees it", lambda router=router: f"{node.address}:8080" not in self.up(router))
        if node in self.etcds:  # with another leader, if it was that
            others = [other for other in self.etcds if other is not node]
            wait_for("the other members take writes", lambda: any(self.writes(other) for other in others))
            self.news_come(node)
        if node in self.routers:
            time.sleep(1)
        print(f"{node.name}: seen after {time.monotonic() - begin:.2f} s", flush=True)
        self.answers_come(6)

    def news_come(self, node):
        """Routers that watched the member that is gone hear of who joins and leaves."""
        stranger = "10.77.0.99:1"
        key = base64.b64encode(f"/loralei/default/members/{stranger}".encode()).decode()
        value = base64.b64encode(json.dumps({"format": 1, "host": "10.77.0.99", "port": 1}).encode()).decode()
        self.etcd("/v3/kv/put", {"key": key, "value": value}, without=node)
        joined = max(wait_for("it joins", lambda router=router: stranger in self.members(router)) for router in self.routers)
        self.etcd("/v3/kv/deleterange", {"key": key}, without=node)
        left = max(wait_for("it leaves", lambda router=router: stranger not in self.members(router)) for router in self.routers)
        print(f"without {node.name}: a member that joins is known after {joined:.2f} s, one that leaves after {left:.2f} s", flush=True)

    def writes(self, node):
        try:
            return request(node.address, 2379, "POST", "/v3/kv/put", {"key": "YQ=="}, timeout=2)[0] == 200
        except OSError:
            return False

    def leader(self):
        leads = []

        def ask():
            for node in self.etcds:
                status = json.loads(request(node.address, 2379, "POST", "/v3/maintenance/status", {}, timeout=3)[1])
                if status["leader"] == status["header"]["member_id"]:
                    leads.append(node)
            return leads

        wait_for("a member of etcd leads", ask)
        return leads[0]

    def strike(self, fault, node):
        if node in self.routers:
            self.load.begin_cuts()
        fault(node)
        seconds = self.wait_whole()
        if node in self.routers:
            self.load.end_cuts()
        self.expect_right(f"{node.name} {fault.__name__}", seconds)

    def test_1_one_of_each(self):
        for nodes in (self.replicas, self.routers, self.etcds):
            for fault in (self.killed, self.paused, self.cut_off):
                node = self.leader() if nodes is self.etcds else self.rng.choice(nodes)
                self.strike(fault, node)

    def test_2_all_of_etcd_is_gone(self):
        for node in self.etcds:
            node.kill()
        gone = self.rng.choice(self.replicas)
        gone.kill()  # what fails is left out as ever
        self.answers_come()
        gone.start()
        wait_for("it serves", gone.ready)
        self.answers_come(6)
        for node in self.etcds:
            node.start()
        self.expect_right("all etcd members gone", self.wait_whole())

    def test_3_a_compaction_under_a_watch(self):
        """While a router is cut off a replica leaves and history is forgotten."""
        router, leaves = self.routers[0], self.rng.choice(self.replicas)
        self.load.begin_cuts()
        router.connected(False)
        leaves.signal(signal.SIGTERM)
        leaves.process.wait(PATIENCE)
        wait_for("it has left", lambda: f"{leaves.address}:8080" not in self.members(self.routers[1]))
        for node in self.etcds:  # so that the end of the watch's connection cannot bring what it was not told
            node.kill()
            node.start()
        wait_for("etcd is back", lambda: self.etcd("/v3/kv/range", {"key": "YQ=="}))
        put = self.etcd("/v3/kv/put", {"key": base64.b64encode(b"other").decode(), "value": ""})
        self.etcd("/v3/kv/compaction", {"revision": put["header"]["revision"], "physical": True})
        router.connected(True)
        seconds = wait_for("it knows who left", lambda: f"{leaves.address}:8080" not in self.members(router))
        print(f"a compaction under a watch: known after {seconds:.2f} s", flush=True)
        leaves.start()
        seconds = self.wait_whole()
        self.load.end_cuts()
        self.expect_right("a replica that left and came back", seconds)

    def test_4_routers_are_started_again(self):
        for router in self.routers:
            self.load.begin_cuts()
            router.signal(signal.SIGTERM)  # it drains
            router.process.wait(PATIENCE)
            router.start()
            seconds = self.wait_whole()
            self.load.end_cuts()
            self.expect_right(f"{router.name} started again", seconds)

    def test_5_random_faults(self):
        until = time.monotonic() + MORE_SECONDS
        while time.monotonic() < until and not self.load.wrong:
            nodes = self.rng.choice((self.replicas, self.routers, self.etcds))
            self.strike(self.rng.choice((self.killed, self.paused, self.cut_off)), self.rng.choice(nodes))

    def test_6_nothing_is_left(self):
        self.load.end()
        self.assertEqual(self.load.wrong, [])
        print("in the end:", self.load.ends, flush=True)
        self.assertGreater(self.load.ends["whole"], 20)
        for router in self.routers:
            connection_rows = lambda: [line for line in request(router.address, 8080, "GET", "/metrics")[1].splitlines()
                                       if line.startswith("loralei_router_replica_requests{")]
            wait_for("no request is counted", lambda: all(float(line.rsplit(" ", 1)[1]) == 0 for line in connection_rows()))


def may_not():
    """Why it cannot run here; empty: it can."""
    if not ETCD.exists() or not HAPROXY.exists():
        return "etcd or HAProxy could not be fetched: run apt-get update and tools/test_clients.sh"
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("ip") is None:
        return "only root may make network namespaces, and that with unshare and ip"
    trial = ("mount -t tmpfs none /run && ip netns add trial && ip link add trial0 type veth peer name trial1 netns trial && "
             "ip link add hub type bridge && ip netns exec trial true")
    done = subprocess.run(["unshare", "--net", "--mount", "sh", "-c", trial], capture_output=True, text=True)
    return "" if done.returncode == 0 else "network namespaces may not be made here: " + done.stderr.strip()


if __name__ == "__main__":
    if os.environ.get(INSIDE) is None:
        why = may_not()
        if why:
            print("skipped:", why)
            sys.exit(0)
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--net", "--mount", "sh", "-c", 'mount -t tmpfs none /run && exec "$@"', "sh", sys.executable, *sys.argv])
    unittest.main(verbosity=2)
