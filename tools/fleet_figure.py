#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Routing policies, live and simulated side by side: paced replicas (serve --pace) behind a router, as CaraServe's figure 20.

    tools/fleet_figure.py build/loralei --lengths CSV [--popularity CSV] [--rounds N] [--policies P,P] [--rate R] [...]

Each round has requests of its own (another seed) and takes the policies in turn; servers and router are started anew for
every run, with all adapters loaded before the first request. The model that is served is a small generated one: times come
from the profile alone. A request's place depends on everything before it, so that a millisecond more or less changes what
becomes of a run: each workload is simulated ten times, its arrivals moved by at most a millisecond, and how far these lie
apart is what a live run may be off by chance. Figures are means. Exit 3: steps were late, so that the times are not the
profile's.
"""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

NOT_MEASURED = 3
SIMULATIONS, MOVED_S = 10, 1e-3
LATE_STEPS_MOST, LATE_TIME_MOST = 0.02, 0.005  # of all steps, and of their time


class Process:
    """One that says on a line where it listens."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.url, self.lines = None, []
        for line in self.process.stdout:
            self.lines.append(line)
            if match := re.search(r"(?:serves|routes) .* at (http://127\.0\.0\.1:\d+)", line):
                self.url = match.group(1)
                break
        if self.url is None:
            raise SystemExit("".join(self.lines) + f"{' '.join(command[:3])} did not start")
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return answer.read().decode()

    def metric(self, name):
        values = [float(line.rsplit(" ", 1)[1]) for line in self.get("/metrics").splitlines() if re.match(re.escape(name) + "[ {]", line)]
        return sum(values)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(str(word) for word in words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def until(what, condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {seconds} s: {what}")
        time.sleep(0.1)


def rows_of(path, prefix):
    rows = json.loads(path.read_text())["rows"]
    return {row["name"].removeprefix(prefix): row["value"] for row in rows if row["name"].startswith(prefix)}


class Figure:
    def __init__(self, options, work):
        self.options, self.work = options, work
        self.model, self.kv_bytes, self.kv_tokens = None, 0, 0
        path = pathlib.Path(options.profile)
        self.profile = json.loads(path.read_text() if path.is_file() else run(options.binary, "profile", "--show", options.profile))
        self.common = ["--max-num-seqs", str(options.max_num_seqs), "--max-model-len", str(options.max_model_len), "--cold-start", "cached"]

    def make_workload(self, seed):
        options, path = self.options, self.work / f"requests-{seed}.jsonl"
        adapters = f"functions:1250:{options.popularity}" if options.popularity else "powerlaw:100"
        run(options.binary, "workload", "--arrivals", f"poisson:{options.rate}", "--lengths", f"draw:{options.lengths}", "--adapters", adapters,
            "--count", options.requests, "--seed", seed, "-o", path)
        return path

    def make_adapters(self, workloads):
        """Of the names and ranks that the requests have; each has numbers of its own."""
        ranks = {}
        for path in workloads:
            for line in path.read_text().splitlines():
                request = json.loads(line)
                if request.get("adapter"):
                    ranks[request["adapter"]] = request["rank"]
        folder = self.work / "adapters"
        for rank in sorted(set(ranks.values())):
            names = sorted(name for name in ranks if ranks[name] == rank)
            paths = run(self.options.binary, "bench", "generate", "--shape", self.options.shape, "--rank", rank, "--adapters", len(names),
                        "--targets", "qkv", "--cache-dir", self.work / "cache").split()
            self.model = paths[0]
            for name, path in zip(names, paths[1:]):
                shutil.copytree(path, folder / name, copy_function=os.link)
        self.names = sorted(ranks)
        print(f"{len(ranks)} adapters of ranks {', '.join(str(rank) for rank in sorted(set(ranks.values())))}", flush=True)

    def size_kv(self):
        """As many tokens as the profile's machine would have in --kv-cache-memory."""
        tokens = self.options.kv_cache_bytes // self.profile["model"]["kv_bytes_per_token"]
        probe_bytes = 1 << 26
        server = Process([self.options.binary, "serve", self.model, "--port", "0", "--threads", "1", *self.common, "--kv-cache-memory", str(probe_bytes)])
        probed = json.loads(server.get("/v1/replica"))["capacity"]["kv_tokens"]
        server.stop()
        self.kv_bytes = int(probe_bytes / probed * (tokens + 16))

    def start_replicas(self):
        options = self.options
        command = [options.binary, "serve", self.model, "--port", "0", "--threads", "1", "--adapter-dir", str(self.work / "adapters"), "--pace",
                   options.profile, *self.common, "--kv-cache-memory", str(self.kv_bytes), "--max-queued", "100000"]
        replicas = []
        starts = [threading.Thread(target=lambda: replicas.append(Process(command))) for _ in range(options.replicas)]
        for start in starts:
            start.start()
        for start in starts:
            start.join()
        if len(replicas) < options.replicas:
            raise SystemExit("a replica did not start")

        def loaded(replica):
            return sum(adapter["tier"] != "disk" for adapter in json.loads(replica.get("/v1/replica"))["adapters"]) == len(self.names)

        until("all adapters are loaded", lambda: all(loaded(replica) for replica in replicas))
        self.kv_tokens = json.loads(replicas[0].get("/v1/replica"))["capacity"]["kv_tokens"]
        return replicas

    def live(self, policy, workload):
        options, report = self.options, self.work / "live.json"
        replicas = self.start_replicas()
        router = Process([options.binary, "route", "--port", "0", "--policy", policy, "--placement", "off", "--slo-tpot", str(options.slo),
                          *(word for replica in replicas for word in ("--replica", replica.url))])

        def knows(row):
            return row["state"] == "up" and row["adapters_in_memory"] == len(self.names)

        until("the router knows all adapters", lambda: all(knows(row) for row in json.loads(router.get("/v1/replicas"))["data"]))
        run(options.binary, "bench", "trace", "--url", router.url, "--workload", workload, "--slo-tpot", options.slo, "--json", report)
        rows = rows_of(report, "trace.")
        for name, metric in (("steps", "loralei_steps_total"), ("step_s", "loralei_work_seconds_total"),
                             ("late", "loralei_paced_steps_late_total"), ("late_s", "loralei_paced_late_seconds_total")):
            rows[name] = sum(replica.metric(metric) for replica in replicas)
        picks = [row["picks"] for row in json.loads(router.get("/v1/replicas"))["data"]]
        for process in (router, *replicas):
            process.stop()
        print(f"live {policy}: good {100 * rows['good_share']:.1f} %, {rows['all.token.mean_ms']:.2f} ms a token, first token "
              f"{rows['all.first_token.mean_ms']:.0f} ms, failed {rows.get('all.failed', 0):.0f}, picks {picks}, late {rows['late']:.0f} of "
              f"{rows['steps']:.0f} steps ({100 * rows['late_s'] / rows['step_s']:.2f} % of their time), sent late at most {rows['sent_late_most_ms']:.1f} ms", flush=True)
        return rows

    def moved(self, workload):
        """The same requests, each up to a millisecond later."""
        requests = [json.loads(line) for line in workload.read_text().splitlines()]
        yield workload
        for number in range(1, SIMULATIONS):
            generator, path = random.Random(number), self.work / "moved.jsonl"
            later = sorted(({**request, "t": round(request["t"] + generator.random() * MOVED_S, 9)} for request in requests), key=lambda request: request["t"])
            path.write_text("".join(json.dumps(request) + "\n" for request in later))
            yield path

    def simulated(self, policy, workload):
        """Means of these rows, and how far runs of the same workload lie apart."""
        runs = [self.simulate(policy, path) for path in self.moved(workload)]
        rows = {name: statistics.mean(one[name] for one in runs) for name in ("good_share", "all.token.mean_ms", "all.first_token.mean_ms")}
        rows["deviation"] = statistics.stdev(one["good_share"] for one in runs)
        print(f"simulated {policy}: good {100 * rows['good_share']:.1f} % (+- {100 * rows['deviation']:.1f}), {rows['all.token.mean_ms']:.2f} ms a token, "
              f"first token {rows['all.first_token.mean_ms']:.0f} ms", flush=True)
        return rows

    def simulate(self, policy, workload):
        options, report = self.options, self.work / "simulated.json"
        run(options.binary, "simulate", "--profile", options.profile, "--workload", workload, "--replicas", options.replicas, "--route", policy, "--slo-tpot",
            options.slo, *self.common, "--adapters-in-memory", "--kv-cache-memory", self.kv_tokens * self.profile["model"]["kv_bytes_per_token"],
            "--json", report)
        return rows_of(report, "simulate.")

    def run(self):
        options = self.options
        workloads = [self.make_workload(options.seed + number) for number in range(options.rounds)]
        self.make_adapters(workloads)
        self.size_kv()
        live, simulated = {}, {}
        for workload in workloads:
            for policy in options.policies:
                live.setdefault(policy, []).append(self.live(policy, workload))
                simulated.setdefault(policy, []).append(self.simulated(policy, workload))
        return self.table(live, simulated)

    def table(self, live, simulated):
        def mean(runs, name):
            return statistics.mean(rows[name] for rows in runs)

        print("\n| policy | ms a token, live | simulated | within | simulated | a run's deviation | points | TTFT mean | simulated | late steps |\n|---|---|---|---|---|---|---|---|---|---|")
        apart = []
        for policy in self.options.policies:
            ran, meant = live[policy], simulated[policy]
            points = 100 * (mean(ran, "good_share") - mean(meant, "good_share"))
            apart.append(abs(points))
            late = sum(rows["late"] for rows in ran) / sum(rows["steps"] for rows in ran)
            print(f"| {policy} | {mean(ran, 'all.token.mean_ms'):.2f} | {mean(meant, 'all.token.mean_ms'):.2f} "
                  f"| {100 * mean(ran, 'good_share'):.1f} % | {100 * mean(meant, 'good_share'):.1f} % | {100 * mean(meant, 'deviation'):.1f} | {points:+.1f} "
                  f"| {mean(ran, 'all.first_token.mean_ms'):.0f} ms | {mean(meant, 'all.first_token.mean_ms'):.0f} ms | {100 * late:.2f} % |")

        def order(runs):
            return sorted(self.options.policies, key=lambda policy: -mean(runs[policy], "good_share"))

        print(f"\nbest first, live: {', '.join(order(live))}; simulated: {', '.join(order(simulated))}; apart by at most {max(apart):.1f} points")
        everything = [rows for runs in live.values() for rows in runs]
        failed = sum(rows.get("all.failed", 0) for rows in everything)
        dishonest = [rows for rows in everything if rows["late"] > LATE_STEPS_MOST * rows["steps"] or rows["late_s"] > LATE_TIME_MOST * rows["step_s"]]
        if failed or dishonest:
            print(f"NOT MEASURED: {failed:.0f} requests failed, and in {len(dishonest)} runs more than {100 * LATE_STEPS_MOST:.0f} % of the steps were late, "
                  f"or by more than {100 * LATE_TIME_MOST:.1f} % of their time; fewer replicas, or a machine that does nothing else", file=sys.stderr)
            return NOT_MEASURED
        return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("binary")
    parser.add_argument("--lengths", required=True, help="table with ContextTokens and GeneratedTokens")
    parser.add_argument("--popularity", help="table of functions and their calls (default: powerlaw:100)")
    parser.add_argument("--profile", default="a10-llama2-7b-bgmv")
    parser.add_argument("--policies", type=lambda text: text.split(","), default=["rank-aware", "most-idle", "random", "first-fit"])
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--rate", type=float, default=30, help="requests a second, of all replicas")
    parser.add_argument("--requests", type=int, default=1200)
    parser.add_argument("--slo", type=float, default=43, help="milliseconds a token")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shape", default="llama-nano")
    parser.add_argument("--max-num-seqs", type=int, default=32)
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--kv-cache-bytes", type=int, default=4_000_000_000, help="of a replica, on the profile's machine")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return Figure(options, pathlib.Path(folder)).run()


if __name__ == "__main__":
    sys.exit(main())
