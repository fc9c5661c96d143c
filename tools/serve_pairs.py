# SPDX-License-Identifier: Apache-2.0
"""What a change costs requests: two builds of the server, side by side, asked in turn.

    serve_pairs.py OLD_BINARY NEW_BINARY MODEL PAIRS[:PROMPTS] [flags of both servers]

A pair is: 16 chats of 64 tokens at once, over all models that the server lists (tokens/s), then PROMPTS (20) prompts of 122
words one after the other, each new (median time to the first token). Which build comes first changes from pair to pair; the
first pair warms up. Prints medians, and the ratio new/old with a 95 % interval of its median."""
import atexit
import http.client
import json
import math
import re
import statistics
import subprocess
import sys
import threading
import time

TOKENS, TOGETHER = 64, 16


class Server:
    def __init__(self, binary, model, flags):
        command = [binary, "serve", model, "--port", "0", "-c", "1024", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        atexit.register(self.process.kill)
        self.port = None
        for line in self.process.stdout:
            if match := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.port = int(match.group(1))
                break
        if self.port is None:
            raise SystemExit(f"{binary} did not start")
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def send(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"{path} answered {answer.status}: {answer.read().decode()}")
        return answer

    def models(self):
        return [model["id"] for model in json.loads(self.send("GET", "/v1/models").read())["data"]]

    def chat(self, model, text, **options):
        body = {"model": model, "messages": [{"role": "user", "content": text}], "temperature": 0, **options}
        return self.send("POST", "/v1/chat/completions", body)

    def tokens_per_s(self, models):
        def one(index):
            self.chat(models[index % len(models)], f"apple {index} river stone", max_tokens=TOKENS, ignore_eos=True).read()

        threads = [threading.Thread(target=one, args=(index,)) for index in range(TOGETHER)]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return TOGETHER * TOKENS / (time.perf_counter() - begin)

    def first_token_s(self, models, numbers):
        times = []
        for number in numbers:
            begin = time.perf_counter()
            answer = self.chat(models[number % len(models)], f"{number} " + "word other thing " * 40, max_tokens=2, stream=True)
            for line in answer:
                if (b'"content":"' in line and b'"content":""' not in line) or b"[DONE]" in line:
                    break
            times.append(time.perf_counter() - begin)
            answer.read()
        return statistics.median(times)


def summary(name, unit, old, new):
    ratios = sorted(b / a for a, b in zip(old, new))
    half = math.ceil(0.98 * math.sqrt(len(ratios)))  # of the binomial interval of a median
    middle = len(ratios) // 2
    low, high = ratios[max(0, middle - half)], ratios[min(len(ratios) - 1, middle + half)]
    print(f"{name}: old {statistics.median(old):.2f}, new {statistics.median(new):.2f} {unit}; "
          f"new/old {statistics.median(ratios):.4f} [{low:.4f}, {high:.4f}] of {len(ratios)} pairs")


def main():
    if len(sys.argv) < 5:
        raise SystemExit(__doc__)
    servers = [Server(binary, sys.argv[3], sys.argv[5:]) for binary in sys.argv[1:3]]
    models = servers[1].models()
    pairs, _, prompts = sys.argv[4].partition(":")
    prompts = int(prompts or 20)
    rates, times, number = ([], []), ([], []), 0
    for pair in range(int(pairs) + 1):
        order = (0, 1) if pair % 2 else (1, 0)
        for measured, measure in ((rates, lambda s: s.tokens_per_s(models)), (times, lambda s: s.first_token_s(models, range(number, number + prompts)))):
            for index in order:
                value = measure(servers[index])
                if pair > 0:
                    measured[index].append(value)
                number += prompts
    for server in servers:
        server.process.terminate()
    summary("throughput", "tokens/s", *rates)
    summary("first token", "ms", *([1e3 * value for value in one] for one in times))


main()
