#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Documents of the second demo, each read by the base and then by every adapter, again and again, through a running server:
exact match, prompt tokens found in the prefix cache and seconds of each round, and what the cache holds at the end. With
`--set words` the texts are a question of the first demo behind another one with its answer, one for each adapter.

    loralei serve demo/documents/model --adapter-dir demo/documents/adapters --kv-cache-memory 48MiB --kv-sharing bounded
    python3 demo/share.py --url http://127.0.0.1:8080 --documents 40 --rounds 3

`--served N` writes N documents of the training split with their answers instead, as `loralei calibrate-kv --text` reads them.
"""
import argparse
import json
import random
import sys
import time
import urllib.request

import generate

OPENING = 200         # characters: more than a text of the words has, less than a document
PAUSE_SECONDS = 0.05  # between documents, as somebody who reads the answers takes


def drawn(count, seed, split, demo_set="documents"):
    """Documents with a question of each skill: [[(skill, prompt, answer)]]."""
    if demo_set == "words":
        made = [generate.dialogues(skill, seed, count, split) for skill in generate.SKILLS]
        for asked in zip(*made):
            yield [(sample["adapter"], sample["prompt"], sample["answer"]) for sample in asked]
        return
    demo, rng = generate.of_set("documents"), random.Random(seed)
    for _ in range(count):
        document = demo.draw(rng, split)
        asked = [(name, *skill.ask(rng, document)) for name, skill in demo.SKILLS.items()]
        yield [(name, document.text + demo.tail_of(question), answer) for name, question, answer in asked]


def openings(asked):
    """One of the prompts for each text that they begin with: what the base reads, so that all of it is known."""
    return {prompt[:OPENING]: prompt for _, prompt, _ in reversed(asked)}.values()


def ask(url, model, prompt):
    """The greedy answer, and how many tokens of the prompt there were and were cached."""
    body = json.dumps({"model": model, "prompt": prompt, "temperature": 0, "max_tokens": 64}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        answer = json.load(reply)
    usage = answer["usage"]
    return answer["choices"][0]["text"], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def measure(url, documents, base):
    """One round: {skill: right answers}, prompt tokens, cached tokens, seconds of the adapters' requests."""
    right, tokens, cached, seconds = {}, 0, 0, 0.0
    for asked in documents:
        if base:
            for prompt in openings(asked):
                ask(url, "model", prompt)
        began = time.monotonic()
        for skill, prompt, answer in asked:
            said, of_prompt, found = ask(url, skill, prompt)
            right[skill] = right.get(skill, 0) + (said == answer)
            tokens, cached = tokens + of_prompt, cached + found
        seconds += time.monotonic() - began
        time.sleep(PAUSE_SECONDS)
    return right, tokens, cached, seconds


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--set", choices=generate.SETS, default="documents", help="which of the two demos the server has")
    parser.add_argument("--documents", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--served", type=int, default=0)
    options = parser.parse_args()
    if options.served > 0:
        for asked in drawn(options.served, options.seed, "train", options.set):
            for skill, prompt, answer in asked:
                print(json.dumps({"prompt": prompt, "answer": answer, "adapter": skill}))
        return 0
    documents = list(drawn(options.documents, options.seed, "heldout", options.set))
    for number in range(options.rounds):
        right, tokens, cached, seconds = measure(options.url, documents, base=number == 0)
        shares = "  ".join(f"{skill} {100 * count / len(documents):.1f}" for skill, count in right.items())
        mean = 100 * sum(right.values()) / len(documents) / len(right)
        print(f"round {number + 1}: {shares}  mean {mean:.2f}  cached {cached / tokens:.3f} of {tokens}  {seconds:.1f} s", flush=True)
    with urllib.request.urlopen(f"{options.url}/v1/kv") as reply:
        held = json.load(reply)
    print(json.dumps(held["encoded"]))
    for holder in held["first"]:
        name = holder["adapters"][0]["name"] if holder["adapters"] else "base"
        print(f"{name:9} {holder['tokens']:7} tokens: raw {holder['raw_tokens']}, alone {holder['alone_coded_tokens']}, "
              f"delta {holder['delta_tokens']}, {holder['stored_bytes'] / holder['bytes']:.3f} of the blocks' bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
