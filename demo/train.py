#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the demo model: tokenizer, base and adapters, seeded, in one command. It goes on where it was stopped.

    python3 train.py --out OUT --work WORK            # everything; OUT/model and OUT/adapters/NAME are written
    python3 train.py --out OUT --work WORK --only shout json        # only these adapters
    python3 train.py --set documents --out OUT/documents --work WORK --threads 2        # the second demo

One thread is used, if no other number is given. WORK holds the checkpoints of the base; OUT holds what is published.
"""
import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
    os.environ.setdefault(variable, "1")

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from courses import COURSES, next_tokens
from tokenizer import MAX_POSITIONS, Encoder, train_tokenizer


# ---- training --------------------------------------------------------------------------------------------------------

def rate_at(step, steps, warm_up, flat):
    """Learning rate as a share of its highest value: linear warm-up, flat part, linear decay to zero."""
    return min(1.0, (step + 1) / warm_up, (steps - step) / (steps * (1 - flat)))


def fit(model, core, data, steps, rate, start=0, optimizer=None, after_step=lambda step: None, warm_up=100, flat=0.4,
        decay=0.05, schedule=None):
    """Trains the parameters that need gradients; `after_step` is called with the number of finished steps."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = optimizer or make_optimizer(model, decay)
    began, shown, tokens = time.time(), 0.0, 0
    for step in range(start, steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * rate_at(step, schedule or steps, warm_up, flat) * group.get("share", 1.0)
        batch = next(data)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits, targets, weights = next_tokens(model, core, batch)
        losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
        loss = (losses * weights).sum() / weights.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        tokens += batch[0].numel()
        shown = loss.item() if not shown else 0.95 * shown + 0.05 * loss.item()
        if (step + 1) % (50 if steps > 500 else 10) == 0:
            print(f"  step {step + 1}/{steps}  loss {shown:.4f}  {tokens / (time.time() - began):.0f} tokens/s", flush=True)
        after_step(step + 1)


class Muon(torch.optim.AdamW):
    """AdamW whose groups with `orthogonal` set are matrices moved by Muon instead (Jordan et al. 2024): the momentum's
    nearest orthogonal matrix, by five Newton-Schulz steps, scaled to the size of an AdamW step."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            if not group.get("orthogonal"):
                continue
            for matrix in group["params"]:
                state = self.state[matrix]
                if not state:
                    state["momentum"] = torch.zeros_like(matrix)
                    state["step"] = torch.tensor(0.0)       # AdamW asks for it when a checkpoint is read
                state["momentum"].lerp_(matrix.grad, 0.05)
                update = self.orthogonal(matrix.grad.lerp(state["momentum"], 0.95))
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(update, alpha=-0.2 * group["lr"] * max(matrix.shape) ** 0.5)
                matrix.grad = None               # AdamW passes by what has no gradient
        return super().step(closure)

    @staticmethod
    def orthogonal(matrix):
        """About the nearest matrix whose rows or columns are orthonormal."""
        found = (matrix / (matrix.norm() + 1e-7)).to(torch.bfloat16)
        tall = found.shape[0] > found.shape[1]
        found = found.T if tall else found
        for _ in range(5):
            square = found @ found.T
            found = 3.4445 * found + (2.0315 * square @ square - 4.7750 * square) @ found
        return (found.T if tall else found).float()


def make_muon(model, decay):
    """Muon for the matrices inside the layers, AdamW for the embedding and the norms."""
    named = dict(model.named_parameters())
    inside = [parameter for name, parameter in named.items() if parameter.dim() > 1 and "embed" not in name]
    others = [parameter for name, parameter in named.items() if parameter.dim() == 1 or "embed" in name]
    return Muon([{"params": inside, "weight_decay": decay, "orthogonal": True},
                 {"params": others, "weight_decay": 0.0, "share": 0.5}], lr=1e-3, betas=(0.9, 0.98))


def make_optimizer(model, decay):
    """AdamW; no weight decay on the norms."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW([
        {"params": [parameter for parameter in parameters if parameter.dim() > 1], "weight_decay": decay},
        {"params": [parameter for parameter in parameters if parameter.dim() == 1], "weight_decay": 0.0},
    ], lr=1e-3, betas=(0.9, 0.98))


def model_settings(encoder, course):
    """config.json of a base."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": course.vocabulary,
        "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "hidden_act": "silu", "max_position_embeddings": MAX_POSITIONS,
        "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "attention_bias": False,
        "mlp_bias": False, "initializer_range": 0.02, "bos_token_id": encoder.begin, "eos_token_id": encoder.end,
        "pad_token_id": encoder.pad, "use_cache": True, "torch_dtype": "bfloat16", **course.shape,
    }


def save_base(model, encoder, course, folder):
    """Writes the base in bf16 with its configuration."""
    tensors = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()
               if name != "lm_head.weight"}
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(model_settings(encoder, course), indent=2) + "\n")
    generation = {"bos_token_id": encoder.begin, "eos_token_id": encoder.end, "pad_token_id": encoder.pad, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    publish(folder)


def train_base(course, seed, encoder, folder, work, steps):
    """Pre-trains the base from the last checkpoint in `work`, if there is one, and writes it to `folder`."""
    torch.manual_seed(seed)
    settings = model_settings(encoder, course)
    settings.pop("torch_dtype")
    model = LlamaForCausalLM(LlamaConfig(**settings))
    if course.prepare:
        course.prepare(model, encoder)
    optimizer = make_muon(model, 0.05) if course.muon else make_optimizer(model, 0.05)
    data = course.base_batches(seed, encoder)
    checkpoint = work / "base.pt"
    start = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]
        for _ in range(start):
            next(data)
    print(f"base: {sum(parameter.numel() for parameter in model.parameters())} parameters, from step {start}", flush=True)

    def after_step(step):
        if step % course.checkpoint_every and step != steps:
            return
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, work / "base.new")
        os.replace(work / "base.new", checkpoint)
        save_base(model, encoder, course, folder)
        print(f"  operations after {step} steps: " + " ".join(
            f"{tag} {100 * share:.0f}" for tag, share in course.base_shares(model, encoder, seed).items()), flush=True)

    fit(model, torch.compile(model.model, dynamic=False), data, steps, course.rate, start, optimizer, after_step,
        flat=course.flat, schedule=steps if steps != course.steps else course.schedule)


def load_base(folder):
    """The published base (rounded to bf16), computed in float32."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)


def train_adapter(course, name, seed, encoder, out, first_round):
    """Trains one adapter on the published base, round by round, and writes it in PEFT format, in bf16.

    A later round goes on from the written adapter at half the rate, on other documents."""
    _, rounds, rate, settings = course.adapters[name]
    folder = out / "adapters" / name
    for number, steps in enumerate(rounds[first_round:], first_round):
        torch.manual_seed(seed + number)
        base = load_base(out / "model")
        if number == 0:
            model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **settings))
        else:
            model = PeftModel.from_pretrained(base, folder, is_trainable=True)
        print(f"{name}: {sum(p.numel() for p in model.parameters() if p.requires_grad)} parameters, round {number}", flush=True)
        data = course.skill_batches(name, number, seed + number, encoder)
        fit(base, base.model, data, steps, rate if number == 0 else rate / 2, warm_up=30, flat=0.3, decay=0.0)
        save_adapter(model, course, settings, folder)
    model = PeftModel.from_pretrained(load_base(out / "model"), folder)
    print(f"{name}: exact match {100 * course.skill_share(name, model, encoder, seed + 1000):.1f} %", flush=True)


def save_adapter(model, course, settings, folder):
    """Writes the adapter in bf16, without PEFT's model card and with its target modules in a fixed order."""
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_config.json"
    found = {**json.loads(path.read_text()), "base_model_name_or_path": course.model_name,
             "target_modules": settings["target_modules"]}
    path.write_text(json.dumps(found, indent=2) + "\n")
    publish(folder)


def publish(folder):
    """Files that everybody may read: safetensors writes them for the owner only."""
    for path in folder.iterdir():
        path.chmod(0o644)


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where model/ and adapters/ are written")
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", choices=list(COURSES), default="words", help="which of the two demos")
    parser.add_argument("--steps", type=int, help="steps of the base (default: the set's)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="train only these adapters again; without a name, all")
    parser.add_argument("--skip-adapters", action="store_true", help="stop after the base")
    parser.add_argument("--first-round", type=int, default=0, help="go on from the written adapters with this round")
    options = parser.parse_args()
    course = COURSES[options.set]
    if unknown := set(options.only or ()) - set(course.adapters):
        parser.error(f"no adapter {', '.join(sorted(unknown))} in the set {options.set}")
    torch.set_num_threads(options.threads)
    options.work.mkdir(parents=True, exist_ok=True)
    model_folder = options.out / "model"
    began = time.time()
    if options.only is None:
        train_tokenizer(course.vocabulary_text(options.seed), model_folder, course.vocabulary)
        train_base(course, options.seed, Encoder(model_folder), model_folder, options.work, options.steps or course.steps)
        print(f"base ready after {time.time() - began:.0f} s", flush=True)
    for name in [] if options.skip_adapters else options.only or course.adapters:
        train_adapter(course, name, options.seed, Encoder(model_folder), options.out, options.first_round)
    print(f"everything done after {time.time() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
