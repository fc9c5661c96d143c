# SPDX-License-Identifier: Apache-2.0
"""Writes cases.json and expected/NAME.safetensors: the reference's logits for every model and adapter feature."""
import itertools
import json
import math

import torch
from safetensors.torch import save_file

import case_specs
from case_specs import INVOCATION
from common import EXPECTED, GOLDEN, clean_folder, generator, quiet
from gguf_specs import GGUF_ADAPTERS, GGUF_MODELS
from model_specs import MAX_MODEL_LEN, VOCAB
from quant_specs import QUANT_MODELS
from reference import Reference

STEPS = 16
TRIES = 40
ENOUGH_MARGIN = 0.03  # of the greedy step nearest to a tie; far above any float32 rounding
ENOUGH_EFFECT = 0.5  # of an adapter on a quantised checkpoint
ENOUGH_GAP = 0.004  # of the routers' choices: far above any float32 rounding
EOS = 2


def prompt_of(model, length, attempt, options):
    """Seeded ids without the special ones; adapters of one model mostly share its prompts."""
    ids = [int(i) for i in generator("prompt", model, length, attempt).integers(3, VOCAB, length)]
    for at in options.get("invocation_at", ()):
        ids[at:at + len(INVOCATION)] = INVOCATION
    for at in options.get("broken_at", ()):
        ids[at:at + len(INVOCATION)] = INVOCATION[:-1] + [INVOCATION[-1] + 1]
    assert len(ids) == length
    return ids


class Routers:
    """How near to a tie the routers' choices of a pass were: the gap between the last expert used and the first that
    is not, of every row and layer, by the largest score (at least 1)."""

    def __init__(self, model):
        self.least = math.inf
        for module in model.modules():
            if type(module).__name__.endswith("TopKRouter"):
                module.register_forward_hook(self.look)

    def look(self, module, _, output):
        scores = output[0].float()
        best = scores.topk(module.top_k + 1, dim=-1).values
        gap = (best[:, -2] - best[:, -1]).min() / scores.abs().max().clamp(min=1)
        self.least = min(self.least, float(gap))

    def take(self):
        least, self.least = self.least, math.inf
        return least


def margins_of(rows):
    top = rows.topk(2, dim=-1).values
    return [round(float(m), 6) for m in top[:, 0] - top[:, 1]]


def positions(length):
    return sorted({0, length // 3, 2 * length // 3, length - 1})


def check_rounding(reference, ids, start, want):
    """float64 agrees, so float32 rounding of the reference is far below the tolerance of the tests."""
    reference.model.double()
    got = reference.logits(ids, start).float()
    reference.model.float()
    error = float((got - want).abs().max() / want.abs().max().clamp(min=1))
    assert error < 2e-5, f"rounding error {error}"
    return error


def generate(reference, model, length, options):
    """The first prompt whose continuation has no near tie and no end-of-sequence, else the one with most margin."""
    best, best_score = None, -1
    routers = Routers(reference.model)
    for attempt in range(TRIES):
        prompt = prompt_of(model, length, attempt, options)
        start = reference.last_invocation(prompt)
        greedy, rows = reference.greedy(prompt, STEPS, start)
        margins, gap = margins_of(rows), routers.take()
        score = min(min(margins) / ENOUGH_MARGIN, gap / ENOUGH_GAP)
        if EOS not in greedy and score > best_score:
            best, best_score = (prompt, start, greedy, margins, rows, gap), score
            if score >= 1:
                break
    return best


def path_of(adapter):
    return "adapters/" + adapter + (".gguf" if adapter in GGUF_ADAPTERS else "")


def entry(name, model, adapters, prompt):
    case = {
        "name": name,
        "model": "models/" + model + (".gguf" if model in GGUF_MODELS else ""),
        "adapters": [{"name": a, "path": path_of(a), "scale": s} for a, s in adapters],
        "prompt": prompt,
        "file": f"expected/{name}.safetensors",
    }
    if model in MAX_MODEL_LEN:
        case["max_model_len"] = MAX_MODEL_LEN[model]
    return case


def generation_case(name, reference, model, adapters, length, options):
    prompt, start, greedy, margins, rows, gap = generate(reference, model, length, options)
    full = reference.logits(prompt + greedy[:-1], start)
    at = positions(length)
    error = check_rounding(reference, prompt + greedy[:-1], start, full)
    if model in QUANT_MODELS and adapters:
        effect = float((full - Reference(model, []).logits(prompt + greedy[:-1])).abs().max())
        assert effect > ENOUGH_EFFECT, f"{name}: the adapter changes {effect} only"
    stepwise = float((full[length - 1:] - rows).abs().max())
    assert stepwise < 5e-5, f"{name}: one pass and step by step differ by {stepwise}"
    save_file({"prompt_logits": full[at].contiguous(), "greedy_logits": rows}, EXPECTED / f"{name}.safetensors")
    case = entry(name, model, adapters, prompt) | {
        "kind": "generate", "vocab": full.shape[1], "logits_at": at, "greedy": greedy, "margins": margins}
    if gap < math.inf:
        case["router_gap"] = round(gap, 6)
    if reference.invocation is not None:
        case["alora_start"] = start
    return case, ("" if gap == math.inf else f"router gap {gap:.4f}, ") + f"min margin {min(margins):.3f}, rounding {error:.1e}"


def embedding_case(name, reference, model, adapters, length):
    prompt = prompt_of(model, length, 0, {})
    hidden = reference.hidden(prompt)
    save_file({"hidden_last": hidden[-1].contiguous(), "hidden_mean": hidden.mean(0)},
              EXPECTED / f"{name}.safetensors")
    return entry(name, model, adapters, prompt) | {"kind": "embedding", "hidden": hidden.shape[1]}, "embedding"


def compact(cases):
    """One line per short list, so that the file reads well and differences show."""
    lines = []
    for case in cases:
        fields = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in case.items()]
        lines.append(" {\n" + ",\n".join(fields) + "\n }")
    return "[\n" + ",\n".join(lines) + "\n]\n"


def main():
    quiet()
    clean_folder(EXPECTED)
    cases = []
    table = itertools.chain(case_specs.base_cases(), case_specs.adapter_cases(), case_specs.scaled_cases(),
                            case_specs.alora_cases(), case_specs.gguf_cases(), case_specs.mixed_format_cases(),
                            case_specs.quantised_cases(), case_specs.embedding_cases())
    for name, model, adapters, lengths, options in table:
        reference = Reference(model, adapters, options.get("reference"))
        for length in lengths:
            full_name = f"{name}.{length}"
            if full_name.startswith("embedding-"):
                case, note = embedding_case(full_name, reference, model, adapters, length)
            else:
                case, note = generation_case(full_name, reference, model, adapters, length, options)
            cases.append(case)
            print(f"{full_name:28} {note}")
    (GOLDEN / "cases.json").write_text(compact(cases))
    print(f"{len(cases)} cases")


if __name__ == "__main__":
    main()
