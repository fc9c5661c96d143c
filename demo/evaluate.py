#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exact match of the demo skills through a running server, standard library only.

    loralei serve demo/model --adapter-dir demo/adapters --port 8080
    python3 demo/evaluate.py --url http://127.0.0.1:8080 --count 200 --seed 7

With `--set documents` it measures the second demo, through a server of demo/documents/model and demo/documents/adapters.

Every held-out prompt goes to its adapter and to the base. The requests of all skills are in flight together, so that the
server mixes the adapters in one batch. Exit status 1 when a skill stays below --min-with percent with its adapter or
reaches --max-without percent without it, 2 when the server cannot be asked.
"""
import argparse
import json
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import generate

MAX_TOKENS = 96
TIMEOUT_SECONDS = 300
BUSY_TRIES = 60


def call(url, body=None, key=None):
    """GET, or POST when there is a body; waits and tries again while the server says that it is busy (429)."""
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    for _ in range(BUSY_TRIES):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=TIMEOUT_SECONDS) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            if error.code != 429:
                raise RuntimeError(f"{url}: {error.code} {error.read().decode(errors='replace')[:500]}") from error
            time.sleep(float(error.headers.get("Retry-After") or 1))
    raise RuntimeError(f"{url}: still busy after {BUSY_TRIES} tries")


def ask(options, model, sample):
    """The greedy answer of `model` to a sample."""
    body = {"model": model, "temperature": 0, "max_tokens": MAX_TOKENS}
    if options.chat:
        body["messages"] = options.demo.messages(sample)
        return call(f"{options.url}/v1/chat/completions", body, options.api_key)["choices"][0]["message"]["content"]
    body["prompt"] = sample["prompt"]
    return call(f"{options.url}/v1/completions", body, options.api_key)["choices"][0]["text"]


def base_name(options):
    """The base model's name: the listed model that is none of the adapters."""
    listed = [model["id"] for model in call(f"{options.url}/v1/models", key=options.api_key)["data"]]
    names = [name for name in listed if name not in options.demo.SKILLS]
    if not names:
        raise RuntimeError(f"no base model among {listed}; give --base")
    return names[0]


def measure(options):
    """Asks everything; returns {skill: [right with the adapter, right without]} and up to three wrong answers per skill."""
    base = None if options.adapters_only else options.base or base_name(options)
    samples = {skill: options.demo.prompts(skill, options.seed, options.count, "heldout") for skill in options.skills}
    # One prompt of every skill after the other: neighbours in the queue belong to different adapters.
    jobs = [(skill, with_adapter, samples[skill][place])
            for place in range(options.count) for skill in options.skills
            for with_adapter in ((True,) if options.adapters_only else (True, False))]

    def run(job):
        skill, with_adapter, sample = job
        return ask(options, skill if with_adapter else base, sample)

    right = {skill: [0, 0] for skill in options.skills}
    wrong = {skill: [] for skill in options.skills}
    with ThreadPoolExecutor(options.concurrency) as pool:
        for (skill, with_adapter, sample), answer in zip(jobs, pool.map(run, jobs)):
            if answer == sample["answer"]:
                right[skill][0 if with_adapter else 1] += 1
            elif with_adapter and len(wrong[skill]) < 3:
                wrong[skill].append(f"{sample.get('question', sample['input'])!r}: {answer!r}, not {sample['answer']!r}")
    return right, wrong


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--set", choices=generate.SETS, default="words", help="which of the two demos the server has")
    parser.add_argument("--count", type=int, default=200, help="held-out prompts per skill")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--min-with", type=float,
                        help="percent that a skill must reach with its adapter (default: 95, for documents 90)")
    parser.add_argument("--max-without", type=float, default=20, help="percent that a skill must not reach without it")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--skills", nargs="+", help="only these (default: all of the set)")
    parser.add_argument("--adapters-only", action="store_true", help="do not ask the base, which halves the time")
    parser.add_argument("--base", help="name of the base model (default: asked from the server)")
    parser.add_argument("--chat", action="store_true", help="through /v1/chat/completions instead of /v1/completions")
    parser.add_argument("--api-key")
    options = parser.parse_args()
    options.demo = generate.of_set(options.set)
    options.skills = options.skills or list(options.demo.SKILLS)
    if unknown := set(options.skills) - set(options.demo.SKILLS):
        parser.error(f"no skill {', '.join(sorted(unknown))} in the set {options.set}")
    options.min_with = options.demo.MIN_WITH if options.min_with is None else options.min_with
    options.url = options.url.rstrip("/")
    began = time.time()
    try:
        right, wrong = measure(options)
    except (RuntimeError, OSError) as error:
        print(f"{options.url}: {error}", file=sys.stderr)
        return 2
    failed = False
    print(f"{'skill':10} {'with':>7} {'without':>8}")
    for skill in options.skills:
        share, without = (100 * number / options.count for number in right[skill])
        good = share >= options.min_with and without < options.max_without
        failed |= not good
        base = "" if options.adapters_only else f"{without:.1f}%"
        print(f"{skill:10} {share:6.1f}% {base:>8}  {'ok' if good else 'FAILED'}")
        for line in wrong[skill]:
            print(f"    {line}")
    prompts = options.count * len(options.skills)
    print(f"{'all':10} {100 * sum(with_adapter for with_adapter, _ in right.values()) / prompts:6.1f}%")
    requests = prompts if options.adapters_only else 2 * prompts
    print(f"{requests} requests, {options.concurrency} at a time, in {time.time() - began:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
