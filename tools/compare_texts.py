#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Do two builds of the server say the same? 300 mixed requests, answered by both, compared word for word.

    tools/compare_texts.py OLD_BINARY NEW_BINARY MODEL_FOLDER ADAPTER_DIR [COUNT]

The requests follow from their number: chats and completions, base and adapters and sums of them, greedy and drawn with a
seed, n, schemas, stop strings, penalties, log-probabilities of answers and prompts, embeddings, streams, and streams whose
reader leaves (of those what came is compared). 24 are under way at once, in three ways: with room for everything; with a KV
cache so small that sequences are preempted; with a memory budget under which weights are streamed. Prints the first
differences, and ends with 1 where there is one.

Answers must be equal, log-probabilities too. What may differ is left out: ids, times, fingerprints."""
import atexit
import concurrent.futures
import http.client
import json
import random
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading

TOGETHER = 24
WORDS = "river stone apple seven north paper silver window green garden yellow engine mountain letter quiet winter".split()
WAYS = {
    "room for everything": [],
    "a small KV cache": ["--kv-cache-memory", "640KiB", "-c", "288"],
    "streamed weights": ["--memory-budget", "50MiB", "--kv-cache-memory", "2MiB", "--request-memory", "6MiB", "-c", "512",
                         "--max-num-seqs", "8"],
}
LEFT_OUT = {"id", "created", "system_fingerprint", "usage", "timings"}


class Server:
    def __init__(self, binary, model, adapters, flags):
        command = [binary, "serve", model, "--adapter-dir", adapters, "--port", "0", "--speculate", "off", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        atexit.register(self.process.kill)
        self.port, lines = None, []
        for line in self.process.stdout:
            lines.append(line)
            if match := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.port = int(match.group(1))
                break
        if self.port is None:
            raise SystemExit(f"{binary} {' '.join(flags)} did not start:\n{''.join(lines)}")
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)

    def get(self, path):
        connection = self.connect()
        connection.request("GET", path)
        return connection.getresponse().read().decode()

    def answer(self, request):
        path, body, events_max = request
        connection = self.connect()
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if not body.get("stream"):
            return response.status, json.loads(response.read())
        events = []
        for line in response:
            if line.startswith(b"data: {"):
                events.append(json.loads(line[6:]))
            if events_max and len(events) == events_max:
                break
        connection.close()  # where events are left, the reader has gone
        return response.status, events

    def stop(self):
        self.process.terminate()
        self.process.wait()


def request_of(number, adapters):
    """What is asked: (path, body, how many events of a stream are read; 0: all)."""
    draw = random.Random(number)
    text = " ".join(draw.choice(WORDS) for _ in range(draw.choice((2, 5, 20, 60))))
    body = {"model": draw.choice([None, *adapters, *adapters]), "max_tokens": draw.choice((1, 8, 24, 120))}
    if body["model"] is None:
        body["model"] = "base-model"
    kind = number % 10
    if kind == 9:
        return "/v1/embeddings", {"model": body["model"], "input": [text, text[: len(text) // 2]]}, 0
    if draw.random() < 0.6:
        body.update(temperature=0.9, seed=number, top_p=draw.choice((1.0, 0.9)), top_k=draw.choice((-1, 40)))
    else:
        body["temperature"] = 0
    if draw.random() < 0.3:
        body["n"] = draw.choice((2, 3))
        body.update(temperature=0.8, seed=number)
    if draw.random() < 0.3:
        body.update(repetition_penalty=1.1, presence_penalty=0.2)
    if draw.random() < 0.3:
        body["ignore_eos"] = True
    if draw.random() < 0.2:
        body["stop"] = [draw.choice(WORDS)[:3]]
    if draw.random() < 0.15 and len(adapters) > 1:
        body["model"] = "+".join(draw.sample(adapters, 2))
    if kind in (7, 8):
        body["prompt"] = text
        if draw.random() < 0.5:
            body["logprobs"] = 3
        if draw.random() < 0.3:
            body.update(echo=True, logprobs=1)
        return "/v1/completions", body, 0
    body["messages"] = [{"role": "user", "content": text}]
    if kind == 6:
        properties = {"word": {"type": "string", "maxLength": 12}, "count": {"type": "integer", "minimum": 0, "maximum": 99}}
        schema = {"type": "object", "properties": properties, "required": ["word", "count"], "additionalProperties": False}
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "one", "schema": schema}}
    if draw.random() < 0.3:
        body.update(logprobs=True, top_logprobs=2)
    events_max = 0
    if kind in (3, 4, 5):
        body["stream"] = True
        body.pop("n", None)  # choices of a stream come in the order of their steps
        events_max = draw.choice((0, 0, 3, 6))
    return "/v1/chat/completions", body, events_max


def without(value):
    if isinstance(value, dict):
        return {key: without(inner) for key, inner in value.items() if key not in LEFT_OUT}
    return [without(inner) for inner in value] if isinstance(value, list) else value


def told(answer, stream):
    """Of a stream what it says in all: events may be cut in other places."""
    status, body = answer
    if not stream:
        return status, without(body)
    text, logprobs, finish = "", [], None
    for event in body:
        for choice in event.get("choices", []):
            text += choice.get("delta", {}).get("content") or ""
            logprobs += ((choice.get("logprobs") or {}).get("content")) or []
            finish = choice.get("finish_reason") or finish
    return status, text, logprobs, finish


def same(request, old, new):
    _, body, events_max = request
    old, new = told(old, body.get("stream")), told(new, body.get("stream"))
    if not events_max or old[0] != 200:
        return old == new
    # Its reader left: one text begins with the other.
    shorter = min(len(old[1]), len(new[1]))
    return old[0] == new[0] and old[1][:shorter] == new[1][:shorter]


def preemptions(server):
    match = re.search(r"^loralei_preemptions_total (\S+)$", server.get("/metrics"), re.M)
    return int(float(match.group(1))) if match else -1


def main():
    if len(sys.argv) not in (5, 6):
        raise SystemExit(__doc__)
    old_binary, new_binary, model, adapter_dir = sys.argv[1:5]
    count = int(sys.argv[5]) if len(sys.argv) > 5 else 300
    failed = False
    # A copy for each: what a build lays out for streaming stands beside the model, and is neither the other's nor left behind.
    copies = tempfile.TemporaryDirectory()
    models = [shutil.copytree(model, pathlib.Path(copies.name) / side / pathlib.Path(model).name,
                              ignore=shutil.ignore_patterns("loralei.pack")) for side in ("old", "new")]
    for way, flags in WAYS.items():
        answers, preempted, requests = [], [], []
        for binary, copy in zip((old_binary, new_binary), models):
            server = Server(binary, str(copy), adapter_dir, ["--served-model-name", "base-model", *flags])
            if not requests:
                names = sorted(entry["id"] for entry in json.loads(server.get("/v1/models"))["data"])
                names.remove("base-model")
                requests = [request_of(number, names) for number in range(count)]
            with concurrent.futures.ThreadPoolExecutor(TOGETHER) as pool:
                answers.append(list(pool.map(server.answer, requests)))
            preempted.append(preemptions(server))
            server.stop()
        different = [number for number in range(count) if not same(requests[number], answers[0][number], answers[1][number])]
        refused = sum(answer[0] != 200 for answer in answers[1])
        print(f"{way}: {count} requests, {len(different)} differ; {refused} refused alike; preemptions {preempted[0]}, {preempted[1]}")
        for number in different[:3]:
            print(f"  request {number}: {json.dumps(requests[number])}\n    old {json.dumps(answers[0][number])[:600]}\n    new {json.dumps(answers[1][number])[:600]}")
        failed = failed or bool(different)
    raise SystemExit(1 if failed else 0)


main()
