# SPDX-License-Identifier: Apache-2.0
"""A workload from its file to figures: made, asked of a running server, run again under virtual time."""
import contextlib
import csv
import http.server
import json
import pathlib
import subprocess
import tempfile
import threading
import unittest

from live_server import BINARY, ROOT, LiveServer


def run(*words, status=0):
    done = subprocess.run([str(BINARY), *map(str, words)], capture_output=True, text=True, timeout=300)
    if done.returncode != status:
        raise AssertionError(f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def rows(path):
    return {row["name"]: row["value"] for row in json.loads(path.read_text())["rows"]}


@contextlib.contextmanager
def foreign_server(usage, adapter_files=None, asked=None, idle_s=None):
    """Answers as OpenAI's shape has it, with this `usage` in the last event; with adapters by number, as llama-server has them."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = idle_s  # of a connection; None: for ever

        def answer(self, text, kind="application/json"):
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def do_GET(self):
            if self.path == "/lora-adapters" and adapter_files:
                return self.answer(json.dumps([{"id": i, "path": path, "scale": 0.0} for i, path in enumerate(adapter_files)]))
            self.answer(json.dumps({"data": [{"id": "base", "parent": None}]}))

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if asked is not None and self.path != "/tokenize":
                asked.append((body["model"], json.dumps(body.get("lora"))))
            if self.path == "/tokenize":
                return self.answer(json.dumps({"tokens": list(range(100, 140))}))
            events = [{"choices": [{"text": "a"}], "error": None}, {"choices": [{"text": " b"}]}, {"choices": [], "usage": usage}]
            text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
            return self.answer(text, "text/event-stream")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


class Trace(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.workload = cls.folder / "w.jsonl"
        run("workload", "--arrivals", "poisson:40", "--lengths", "fixed:30:8", "--adapters", "uniform:3:4",
            "--count", 120, "--seed", 5, "-o", cls.workload)
        cls.steps = cls.folder / "steps.csv"
        cls.server = LiveServer("--step-log", str(cls.steps))

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_a_server_that_closes_idle_connections_fails_nobody(self):
        slow = self.folder / "slow.jsonl"
        slow.write_text("".join(f'{{"t": {t}, "adapter": "a000", "prompt_tokens": 30, "output_tokens": 8}}\n' for t in (0, 0.6, 1.2)))
        out = self.folder / "idle.json"
        with foreign_server({"prompt_tokens": 30, "completion_tokens": 8}, idle_s=0.2) as url:
            run("bench", "trace", "--url", url, "--workload", slow, "--json", out)
        self.assertNotIn("trace.all.failed", rows(out))

    def test_adapters_that_a_server_has_by_number_are_asked_by_number(self):
        asked, usage = [], {"prompt_tokens": 30, "completion_tokens": 8}
        with foreign_server(usage, ["/x/a002.gguf", "/x/a000.gguf", "/x/a001.gguf"], asked) as url:
            run("bench", "trace", "--url", url, "--workload", self.workload, "--json", self.folder / "numbers.json")
            wanted = [json.loads(line)["adapter"] for line in self.workload.read_text().splitlines()]
            numbers = {"a000": 1, "a001": 2, "a002": 0}
            self.assertEqual(sorted(asked), sorted(("base", json.dumps([{"id": numbers[name], "scale": 1.0}])) for name in wanted))
            # One that is not there is never asked of the base instead.
            said = run("bench", "trace", "--url", url, "--workload", self.workload, "--adapter", "nobody", status=3).stderr
            self.assertIn('The server has no adapter "nobody"', said)

    def test_a_live_server_answers_it(self):
        out = self.folder / "trace.json"
        run("bench", "trace", "--url", self.server.url, "--workload", self.workload, "--adapter", "count", "--adapter",
            "shout", "--slo-ttft", 60000, "--slo-tpot", 60000, "--json", out)
        figures = rows(out)
        self.assertNotIn("trace.all.failed", figures)
        self.assertGreater(figures["trace.tokens_per_s"], 0)
        self.assertAlmostEqual(figures["trace.good_per_s"], figures["trace.requests_per_s"])
        self.assertAlmostEqual(figures["trace.tokens_per_s"] / figures["trace.requests_per_s"], 8)
        self.assertGreater(figures["trace.all.end.p50_ms"], figures["trace.all.first_token.p50_ms"])
        self.assertEqual(figures["trace.good_share"], 1)
        run("bench", "trace", "--url", self.server.url, "--workload", self.workload, "--adapter", "count", "--slo-tpot", 0.001, "--json", out)
        self.assertEqual(rows(out)["trace.good_share"], 0)

    def test_a_live_run_stands_beside_the_simulated_one(self):
        """With a profile of this server: rows of both, their ratio, the targets; curves of both in one page."""
        profile, workload, out, page = (self.folder / name for name in ("p.json", "named.jsonl", "both.json", "both.html"))
        run("profile", ROOT / "demo/model", "--adapter", ROOT / "demo/adapters/count", "--minutes", 0.1, "--together", 8,
            "--prompt", 64, "-o", profile)
        run("workload", "--arrivals", "poisson:20", "--lengths", "fixed:30:8", "--adapters", "uniform:2:32",
            "--count", 60, "--seed", 6, "-o", workload)
        done = run("bench", "trace", "--url", self.server.url, "--workload", workload, "--adapter", "count", "--adapter",
                   "shout", "--simulate", profile, "--max-num-seqs", 256, "--json", out, "--html", page)
        both = {row["name"]: row for row in json.loads(out.read_text())["rows"]}
        for name in ("trace.all.first_token.p50_ms", "trace.requests_per_s", "trace.steps", "trace.between_tokens.p50_ms"):
            self.assertGreater(both[name]["value"], 0, name)
            self.assertGreater(both[name]["peer"], 0, name)
        self.assertGreater(sum(row["value"] for name, row in both.items() if name.startswith("trace.waited.")), 0)
        self.assertNotIn("peer", both["trace.client_cores"])
        self.assertEqual(len(json.loads(out.read_text())["targets"]), 3)
        text = page.read_text()
        for title in ("Time to the first token", "Time between tokens", "Memory by use, over time", "Requests, over time"):
            self.assertIn(f"<h2>{title}</h2>", text)
        self.assertIn(">live</text>", text)
        self.assertIn(">simulated</text>", text)
        self.assertIn("is for bench trace with --simulate",
                      run("bench", "machine", "--max-num-seqs", 3, status=3).stderr)

    def test_a_simulated_run_is_drawn(self):
        page = self.folder / "simulated.html"
        run("simulate", "--profile", "a40-llama2-7b", "--workload", self.workload, "--html", page)
        for title in ("Time to the first token", "Requests a second, over time", "Requests, over time", "All figures"):
            self.assertIn(f"<h2>{title}</h2>", page.read_text())
        self.assertIn("simulated, idle adapters", page.read_text())

    def test_what_the_server_refuses_is_counted_and_told(self):
        out = self.folder / "refused.json"
        done = run("bench", "trace", "--url", self.server.url, "--workload", self.workload, "--json", out)
        self.assertEqual(rows(out)["trace.all.failed"], 120)  # it has no adapter of these names
        self.assertIn("requests failed, the first of them: the server answered 404", done.stderr + done.stdout)
        for words, sentence in ((("--workload", self.workload), "needs --url"), (("--url", self.server.url), "needs --workload"),
                                (("--url", "localhost", "--workload", self.workload), "is not a server's address")):
            self.assertIn(sentence, run("bench", "trace", *words, status=3).stderr)

    def test_a_server_that_says_nonsense_of_its_answers_is_told_of(self):
        """Numbers that are none, errors that are null, answers cut short: rows and a warning, never an end by a signal."""
        for usage, others in (({"completion_tokens": None}, 120), ({"completion_tokens": -3}, 120), ({"completion_tokens": "8"}, 120),
                              ("none", 120), ({"completion_tokens": 2**70}, 120), ({"completion_tokens": 8}, 0)):
            with self.subTest(usage=usage), foreign_server(usage) as url:
                out = self.folder / "foreign.json"
                done = run("bench", "trace", "--url", url, "--workload", self.workload, "--json", out)
                figures = rows(out)
                self.assertNotIn("trace.all.failed", figures)
                self.assertEqual(figures["trace.answers_of_other_length"], others)
                self.assertEqual("another number of tokens" in done.stdout + done.stderr, others > 0)

    def test_the_step_log_tells_of_every_step(self):
        run("bench", "trace", "--url", self.server.url, "--workload", self.workload, "--adapter", "count")
        whole = self.steps.read_text().rpartition("\n")[0]  # the last line may be half written
        steps = list(csv.DictReader(line for line in whole.splitlines() if not line.startswith("#")))
        self.assertGreater(len(steps), 8)
        self.assertEqual([int(step["step"]) for step in steps], list(range(len(steps))))
        self.assertGreaterEqual(sum(len(step["admitted"].split()) for step in steps), 120)
        self.assertTrue(all(int(step["ns"]) > 0 for step in steps))

    def test_the_same_file_runs_under_virtual_time_twice_the_same(self):
        words = ("simulate", "--profile", "a40-llama2-7b", "--workload", self.workload, "--replicas", 2)
        first, second = run(*words), run(*words)
        self.assertEqual(first.stdout, second.stdout)
        self.assertIn("simulate.all.first_token.p99_ms", first.stdout)
        self.assertIn("events in", first.stderr)
        faulty = run(*words, "--faults", 7)
        self.assertNotEqual(first.stdout, faulty.stdout)
        self.assertIn("a profile is a file or one of a40-llama2-7b",
                      run("simulate", "--profile", "a41", "--workload", self.workload, status=1).stderr)

    def test_a_profile_is_a_file_that_is_read_with_its_lines(self):
        profile = self.folder / "p.json"
        profile.write_text(run("profile", "--show", "h100-llama2-7b").stdout)
        run("simulate", "--profile", profile, "--workload", self.workload)
        profile.write_text(profile.read_text().replace('"kv_bytes"', '"kv_byte"'))
        told = run("simulate", "--profile", profile, "--workload", self.workload, status=1).stderr
        self.assertRegex(told, r"p\.json:\d+: .*kv_byte")

    def test_a_profile_of_the_demo_is_measured(self):
        profile = self.folder / "demo.json"
        run("profile", ROOT / "demo/model", "--adapter", ROOT / "demo/adapters/count", "--minutes", 0.1, "--together", 4,
            "--prompt", 64, "-o", profile)
        made = json.loads(profile.read_text())
        self.assertEqual(made["format"], "loralei-profile")
        self.assertGreater(made["fit"]["steps"], 50)
        self.assertGreater(made["model"]["adapter_bytes_per_rank"], 0)
        run("simulate", "--profile", profile, "--workload", self.workload)

    def test_a_profile_without_adapters_says_so(self):
        profile, base = self.folder / "bare.json", self.folder / "base.jsonl"
        run("profile", ROOT / "demo/model", "--minutes", 0.05, "--together", 2, "--prompt", 32, "-o", profile)
        run("workload", "--arrivals", "poisson:5", "--lengths", "fixed:20:4", "--count", 20, "-o", base)
        run("simulate", "--profile", profile, "--workload", base)
        told = run("simulate", "--profile", profile, "--workload", self.workload, status=1).stderr
        self.assertIn("does not say what they take", told)


if __name__ == "__main__":
    unittest.main()
