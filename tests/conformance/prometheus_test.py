# SPDX-License-Identifier: Apache-2.0
"""tools/grafana and tools/prometheus against the real thing: promtool checks and tests the rules, and a Prometheus scrapes a
server with keys, one without, and the router before it, while requests come. Each query of the dashboard and each rule is
then evaluated, and every metric they name is one that these three show."""
import concurrent.futures
import importlib.util
import json
import math
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.parse
import urllib.request

from live_server import BINARY, ROOT, LiveRouter, LiveServer

RULES, BOARD = ROOT / "tools/prometheus", ROOT / "tools/grafana"
KEY = "a-key-for-prometheus"
START_SECONDS, LOAD_SECONDS = 30, 8
# Nothing to show until something of it happens.
EMPTY_WHILE_WELL = ("loralei_requests_refused_total",)
# What the load of this test moves.
MOVES = ("loralei_requests_total", "loralei_generation_tokens_total", "loralei_prompt_tokens_total", "loralei_adapter_requests_total", "loralei_steps_total",
         "loralei_time_to_first_token_seconds_bucket", "loralei_inter_token_latency_seconds_bucket", "loralei_request_latency_seconds_bucket",
         "loralei_request_decode_seconds_sum", "loralei_work_seconds_total", "loralei_ready", "loralei_adapters", "loralei_memory_bytes", "loralei_adapter_bytes",
         "loralei_key_requests_total", "loralei_key_generation_tokens_total", "loralei_key_refused_total", "http_requests_total", "loralei_router_requests_total",
         "loralei_router_first_bytes_seconds_bucket", "loralei_router_picks_total", "loralei_router_replica_up", "loralei_cached_prompt_tokens_total")
NAME = r"\b(?:loralei_[a-z0-9_]+|http_requests_total)\b"


def board_text():
    spec = importlib.util.spec_from_file_location("dashboard", BOARD / "dashboard.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.text()


def queries(board):
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def promtool(*words):
    return subprocess.run(["promtool", *map(str, words)], cwd=RULES, capture_output=True, text=True, timeout=60)


class Board(unittest.TestCase):
    def setUp(self):
        self.board = json.loads((BOARD / "loralei.json").read_text())

    def test_is_what_its_script_writes(self):
        self.assertEqual((BOARD / "loralei.json").read_text(), board_text(), "run tools/grafana/dashboard.py")

    def test_panels_have_numbers_of_their_own_and_do_not_overlap(self):
        self.assertEqual(len({panel["id"] for panel in self.board["panels"]}), len(self.board["panels"]))
        taken = {}
        for panel in self.board["panels"]:
            at = panel["gridPos"]
            self.assertLessEqual(at["x"] + at["w"], 24, panel["title"])
            for x in range(at["x"], at["x"] + at["w"]):
                for y in range(at["y"], at["y"] + at["h"]):
                    self.assertNotIn((x, y), taken, f"{panel['title']} lies on {taken.get((x, y))}")
                    taken[x, y] = panel["title"]

    def test_asks_the_chosen_source_about_the_chosen_instances(self):
        names = [variable["name"] for variable in self.board["templating"]["list"]]
        self.assertEqual(names, ["datasource", "instance", "router"])
        titles = []
        for panel in self.board["panels"]:
            if panel["type"] == "row":
                titles.clear()
                continue
            self.assertNotIn(panel["title"], titles)
            titles.append(panel["title"])
            self.assertTrue(panel["description"], panel["title"])
            for where in (panel, *panel["targets"]):
                self.assertEqual(where["datasource"], {"type": "prometheus", "uid": "$datasource"})
            self.assertEqual(len({target["refId"] for target in panel["targets"]}), len(panel["targets"]))
            for target in panel["targets"]:
                named = re.findall(NAME + r"(\{[^}]*\})?", target["expr"])
                self.assertTrue(named, target["expr"])
                for match in named:
                    self.assertRegex(match, r'instance=~"\$(instance|router)"', target["expr"])


class Options(unittest.TestCase):
    def test_that_are_named_exist(self):
        known = set()
        for command in ("serve", "route"):
            said = subprocess.run([str(BINARY), command, "--help-all" if command == "serve" else "--help"], capture_output=True, text=True, timeout=60)
            known |= set(re.findall(r"--[a-z][a-z0-9-]+", said.stdout))
        self.assertGreater(len(known), 50)
        for path in (BOARD / "loralei.json", RULES / "alerts.yml"):
            self.assertEqual(set(re.findall(r"--[a-z][a-z0-9-]+", path.read_text())) - known, set(), path.name)


@unittest.skipUnless(shutil.which("promtool"), "prometheus is not installed: tools/setup.sh test brings it")
class Rules(unittest.TestCase):
    def test_are_rules(self):
        for words in (("check", "rules", "alerts.yml"), ("check", "config", "prometheus.yml")):
            done = promtool(*words)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_each_alert_fires_and_does_not(self):
        done = promtool("test", "rules", "alerts_test.yml")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        alerts = re.findall(r"- alert: (\w+)", (RULES / "alerts.yml").read_text())
        cases = (RULES / "alerts_test.yml").read_text()
        for alert in alerts:
            self.assertIn(f"{{alertname: {alert}, eval_time", cases, "not told of")
            self.assertRegex(cases, rf"alertname: {alert}\n +eval_time: \d+m\n +exp_alerts:\n +- exp_labels", "told of")
        self.assertEqual(len(alerts), len(set(alerts)))

    def test_a_rule_that_is_wrong_fails_its_case(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("alerts.yml", "alerts_test.yml"):
                shutil.copy(RULES / name, folder)
            path = pathlib.Path(folder) / "alerts.yml"
            path.write_text(path.read_text().replace("loralei_ready == 0", "loralei_ready == 1"))
            done = subprocess.run(["promtool", "test", "rules", "alerts_test.yml"], cwd=folder, capture_output=True, text=True, timeout=60)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("LoraleiNotReady", done.stdout + done.stderr)


@unittest.skipUnless(shutil.which("prometheus"), "prometheus is not installed: tools/setup.sh test brings it")
class Live(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="loralei-prometheus-"))
        keys = cls.folder / "keys.jsonl"
        keys.write_text(json.dumps({"name": "reader", "key": KEY}) + "\n" + json.dumps({"name": "poor", "key": "poor-key", "requests_per_minute": 1}) + "\n")
        cls.ends = []
        try:
            cls.keyed, cls.plain = LiveServer("--keys", keys.as_posix()), LiveServer()
            cls.ends += [cls.keyed, cls.plain]
            cls.router = LiveRouter([cls.plain])
            cls.ends.append(cls.router)
            cls.router.wait_up(1)
            cls.start_prometheus()
            cls.load()
        except BaseException:
            cls.tearDownClass()
            raise

    @classmethod
    def start_prometheus(cls):
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            cls.port = found.getsockname()[1]
        config = (RULES / "prometheus.yml").read_text()
        config = config.replace("10s", "500ms").replace("alerts.yml", (RULES / "alerts.yml").as_posix())
        for old, servers in (('["127.0.0.1:8080", "127.0.0.1:8081"]', (cls.keyed, cls.plain)), ('["127.0.0.1:8000"]', (cls.router,))):
            assert old in config
            config = config.replace(old, json.dumps([f"127.0.0.1:{server.port}" for server in servers]))
        key = cls.folder / "key"
        key.write_text(KEY)
        config = config.replace("# authorization:", "authorization:").replace("#   credentials_file: /etc/prometheus/loralei-key", f"  credentials_file: {key}")
        path = cls.folder / "prometheus.yml"
        path.write_text(config)
        cls.log = open(cls.folder / "log", "w")
        cls.prometheus = subprocess.Popen(["prometheus", f"--config.file={path}", f"--storage.tsdb.path={cls.folder}/data",
                                           f"--web.listen-address=127.0.0.1:{cls.port}"], stdout=cls.log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                if len(cls.ask("query", query="up == 1")["result"]) == 3:
                    return
            except OSError:
                pass
            if time.monotonic() > deadline or cls.prometheus.poll() is not None:
                raise RuntimeError("Prometheus does not scrape all three:\n" + (cls.folder / "log").read_text())
            time.sleep(0.1)

    @classmethod
    def ask(cls, what, **words):
        with urllib.request.urlopen(f"http://127.0.0.1:{cls.port}/api/v1/{what}?" + urllib.parse.urlencode(words), timeout=20) as answer:
            return json.loads(answer.read())["data"]

    @classmethod
    def load(cls):
        """Prompts that begin alike, to several adapters, for as long as a rate needs to be one."""
        def one(number):
            key, server = ("poor-key" if number % 5 == 0 else KEY), (cls.keyed, cls.router)[number % 2]
            body = {"model": ("count", "shout", "demo")[number % 3] if number % 3 < 2 else "count", "prompt": "one two three four five six seven eight nine ten " * 4 + str(number),
                    "max_tokens": 12}
            return server.request("POST", "/v1/completions", body, {"Authorization": "Bearer " + key})[0]

        statuses, number, end = [], 0, time.monotonic() + LOAD_SECONDS
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            while time.monotonic() < end:
                statuses += pool.map(one, range(number, number + 8))
                number += 8
        assert set(statuses) == {200, 429}, set(statuses)

    @classmethod
    def tearDownClass(cls):
        if hasattr(cls, "prometheus"):
            cls.prometheus.terminate()
            cls.prometheus.wait(30)
            cls.log.close()
        for server in reversed(cls.ends):
            server.stop()
        shutil.rmtree(cls.folder, ignore_errors=True)

    def names(self):
        """Of all metrics that servers and router show."""
        texts = [self.keyed.request("GET", "/metrics", headers={"Authorization": "Bearer " + KEY})[2], self.plain.request("GET", "/metrics")[2],
                 self.router.request("GET", "/metrics")[2]]
        return set(re.findall(r"^([a-z][a-z0-9_:]*)(?=[ {])", "\n".join(texts), re.M))

    def test_every_query_of_the_dashboard_has_an_answer(self):
        for name in EMPTY_WHILE_WELL:
            self.assertIn(f"| `{name}` |", (ROOT / "docs/api.md").read_text())
        known, board = self.names(), json.loads((BOARD / "loralei.json").read_text())
        moved = set()
        for title, expr in queries(board):
            with self.subTest(title, expr=expr):
                names = set(re.findall(NAME, expr))
                self.assertEqual(names - known - set(EMPTY_WHILE_WELL), set(), "no server shows these")
                filled = expr.replace("$__rate_interval", "10s").replace("$instance", ".*").replace("$router", ".*")
                result = self.ask("query", query=filled)["result"]
                if names & set(EMPTY_WHILE_WELL):
                    continue
                self.assertTrue(result, "no series")
                if any(math.isfinite(float(one["value"][1])) and float(one["value"][1]) > 0 for one in result):
                    moved |= names
        self.assertEqual(set(MOVES) - moved, set(), "the load should show in these")

    def test_every_rule_is_evaluated_and_names_what_there_is(self):
        known = self.names()
        rules = [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]
        self.assertEqual(len(rules), (RULES / "alerts.yml").read_text().count("expr:"))
        for rule in rules:
            with self.subTest(rule["name"]):
                self.assertEqual((rule["health"], rule.get("lastError")), ("ok", None))
                self.assertEqual(set(re.findall(NAME, rule["query"])) - known - set(EMPTY_WHILE_WELL), set())
                self.assertNotEqual(rule.get("state"), "firing", "all is well")
        recorded = {rule["name"] for rule in rules if rule["type"] == "recording"}
        self.assertEqual(set(re.findall(r"\bloralei:[a-z0-9_:]+", " ".join(rule["query"] for rule in rules))), recorded, "used, and no other")

    def test_z_an_end_of_a_server_is_told_of(self):
        """The real one, beside promtool's cases: a server goes, and its alert is pending at once."""
        self.assertEqual(self.ask("query", query='ALERTS{alertname="LoraleiRouterAlone"}')["result"], [])
        self.plain.stop()
        deadline = time.monotonic() + 30
        while not self.ask("query", query='ALERTS{alertname="LoraleiDown",alertstate="pending"}')["result"]:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.1)


if __name__ == "__main__":
    unittest.main()
