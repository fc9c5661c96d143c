#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the published files with transformers and PEFT in float32, without the server.

    python3 reference.py --seeds 7 8 --count 200       # table of exact match with and without every adapter
    python3 reference.py --expected                    # writes expected.json: greedy token ids of the reference
    python3 reference.py --set documents ...           # the same of the second demo, in documents/

expected.json holds, for the base (adapter null) and every adapter, prompts with their token ids, the greedy ids that
follow (the last is <|end|> unless the limit was reached), their text, and the smallest distance between the two best
logits on the way: a server may differ where that margin is of the size of its rounding errors.
"""
import argparse
import json
import sys
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

import generate

HERE = Path(__file__).parent
MAX_TOKENS = 96
BATCH = 50
EXPECTED_SEED = 11
EXPECTED_COUNT = {"words": 20, "documents": 6}


def load(folder, adapters):
    """The base in float32 and all adapters beside it, and the tokenizer."""
    base = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    model = None
    for name in adapters:
        if model is None:
            model = PeftModel.from_pretrained(base, folder / "adapters" / name, adapter_name=name)
        else:
            model.load_adapter(folder / "adapters" / name, adapter_name=name)
    return model.eval(), AutoTokenizer.from_pretrained(folder / "model", padding_side="left")


def answers(model, tokenizer, prompts):
    """Greedy answers of the active adapter to a list of prompts."""
    found = []
    for start in range(0, len(prompts), BATCH):
        batch = tokenizer(prompts[start:start + BATCH], return_tensors="pt", padding=True)
        with torch.inference_mode():
            output = model.generate(**batch, max_new_tokens=MAX_TOKENS, do_sample=False)
        found += tokenizer.batch_decode(output[:, batch["input_ids"].shape[1]:], skip_special_tokens=True)
    return found


def exact_match(demo, model, tokenizer, skill, seed, count):
    """Percent of held-out prompts answered exactly, with the skill's adapter and without any."""
    samples = demo.prompts(skill, seed, count, "heldout")
    prompts = [sample["prompt"] for sample in samples]

    def share():
        found = answers(model, tokenizer, prompts)
        return 100 * sum(answer == sample["answer"] for answer, sample in zip(found, samples)) / count

    model.set_adapter(skill)
    with_adapter = share()
    with model.disable_adapter():
        return with_adapter, share()


def greedy(model, tokenizer, adapter, prompt):
    """One entry of expected.json."""
    ids = tokenizer(prompt)["input_ids"]
    with torch.inference_mode():
        output = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                                max_new_tokens=MAX_TOKENS, do_sample=False, output_logits=True, return_dict_in_generate=True)
    best = torch.stack([logits[0].topk(2).values for logits in output.logits])
    found = output.sequences[0, len(ids):].tolist()
    return {"adapter": adapter, "prompt": prompt, "prompt_ids": ids, "ids": found,
            "text": tokenizer.decode(found, skip_special_tokens=True),
            "margin": round((best[:, 0] - best[:, 1]).min().item(), 4)}


def write_expected(demo, model, tokenizer, path, count):
    """Writes the greedy ids of the base (on prompts of all skills) and of every adapter, `count` each."""
    entries = []
    per_skill = {skill: [sample["prompt"] for sample in demo.prompts(skill, EXPECTED_SEED, count, "heldout")]
                 for skill in demo.SKILLS}
    mixed = [prompts[place] for place in range(count) for prompts in per_skill.values()]
    with model.disable_adapter():
        entries += [greedy(model, tokenizer, None, prompt) for prompt in mixed[:count]]
    for skill, prompts in per_skill.items():
        model.set_adapter(skill)
        entries += [greedy(model, tokenizer, skill, prompt) for prompt in prompts]
    path.write_text("[\n" + ",\n".join(map(json.dumps, entries)) + "\n]\n")
    print(f"{path.name}: {len(entries)} entries, smallest margin {min(entry['margin'] for entry in entries)}")


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--set", choices=generate.SETS, default="words", help="which of the two demos")
    parser.add_argument("--folder", type=Path, help="holds model/ and adapters/ (default: the set's)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--skills", nargs="+", help="only these (default: all of the set)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--expected", action="store_true", help="write expected.json instead of the table")
    options = parser.parse_args()
    demo = generate.of_set(options.set)
    folder = options.folder or (HERE / "documents" if options.set == "documents" else HERE)
    skills = options.skills or list(demo.SKILLS)
    torch.set_num_threads(options.threads)
    if options.expected:
        model, tokenizer = load(folder, list(demo.SKILLS))
        write_expected(demo, model, tokenizer, folder / "expected.json", EXPECTED_COUNT[options.set])
        return 0
    model, tokenizer = load(folder, skills)
    print("| skill | " + " | ".join(f"with, seed {seed} | without" for seed in options.seeds) + " |")
    print("|---" * (1 + 2 * len(options.seeds)) + "|")
    failed = False
    for skill in skills:
        shares = [share for seed in options.seeds for share in exact_match(demo, model, tokenizer, skill, seed, options.count)]
        failed |= min(shares[0::2]) < demo.MIN_WITH or max(shares[1::2]) >= 20
        print(f"| {skill} | " + " | ".join(f"{share:.1f} %" for share in shares) + " |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
