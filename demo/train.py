#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the demo model: tokenizer, base and adapters, seeded, in one command. It goes on where it was stopped.

    python3 train.py --out OUT --work WORK            # everything; OUT/model and OUT/adapters/NAME are written
    python3 train.py --out OUT --work WORK --only shout json        # only these adapters

One thread is used. WORK holds the checkpoints of the base; OUT holds what is published.
"""
import argparse
import json
import os
import random
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

import corpus
import generate
from tokenizer import MAX_POSITIONS, VOCABULARY, Encoder, train_tokenizer

LENGTH = 256                     # tokens of a packed row
BASE_ROWS, BASE_STEPS, BASE_RATE = 8, 4000, 2e-3
CHECKPOINT_EVERY = 500
ENDLESS = 10 ** 9

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALL_LINEAR = ATTENTION + ["gate_proj", "up_proj", "down_proj"]

# name: (packed rows of a step, steps of every round, learning rate, LoRA settings)
ADAPTERS = {
    "count": (4, [200], 5e-3, dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])),
    "rotate": (4, [500], 3e-3, dict(r=8, lora_alpha=16, target_modules=ALL_LINEAR)),
    "acronym": (4, [250, 300], 3e-3, dict(r=8, lora_alpha=16, target_modules=ALL_LINEAR,
                                rank_pattern={"down_proj": 16, "layers.0.self_attn.q_proj": 4},
                                alpha_pattern={"down_proj": 24, "layers.0.self_attn.q_proj": 8})),
    "numbers": (4, [250, 350], 3e-3, dict(r=16, lora_alpha=32, target_modules=ATTENTION + ["down_proj"])),
    "json": (4, [150], 3e-3, dict(r=16, lora_alpha=32, target_modules=ALL_LINEAR)),
    "reverse": (8, [250, 200], 3e-3, dict(r=16, lora_alpha=32, target_modules=ALL_LINEAR)),
    "shout": (4, [1000, 500], 3e-3, dict(r=32, lora_alpha=12, use_rslora=True, target_modules=ALL_LINEAR)),
    "cipher": (4, [1400, 400], 2e-3, dict(r=64, lora_alpha=64, target_modules=ALL_LINEAR)),
}


# ---- data ------------------------------------------------------------------------------------------------------------

def batches(documents, encoder, rows):
    """Endless packed batches: documents fill rows one after the other, attention stays inside a document.

    Yields ids, positions, mask (row, 1, query, key) and per-token loss weights; targets are the next ids."""
    stream = (encoder.encode(document) for document in documents)
    waiting = next(stream)
    while True:
        ids = torch.full((rows, LENGTH), encoder.pad)
        weights = torch.zeros(rows, LENGTH)
        positions = torch.zeros(rows, LENGTH, dtype=torch.long)
        owner = torch.zeros(rows, LENGTH, dtype=torch.long)
        for row in range(rows):
            filled = number = 0
            while filled + len(waiting[0]) <= LENGTH:
                span = slice(filled, filled + len(waiting[0]))
                number += 1
                ids[row, span] = torch.tensor(waiting[0])
                weights[row, span] = torch.tensor(waiting[1])
                positions[row, span] = torch.arange(len(waiting[0]))
                owner[row, span] = number
                filled = span.stop
                waiting = next(stream)
        mask = (owner[:, None, :, None] == owner[:, None, None, :]) & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        yield ids, positions, mask, weights


def next_tokens(model, core, batch):
    """Logits of the weighted tokens of a batch, the tokens themselves and their weights."""
    ids, positions, mask, weights = batch
    hidden = core(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False).last_hidden_state
    wanted = weights[:, 1:] > 0
    return model.lm_head(hidden[:, :-1][wanted]).float(), ids[:, 1:][wanted], weights[:, 1:][wanted]


def accuracy(model, encoder, documents):
    """Share of documents whose whole answer is the most likely one, token by token (what greedy decoding prints)."""
    right = 0
    for document in documents:
        ids, weights = encoder.encode(document)
        answer = [place for place, weight in enumerate(weights) if weight == Encoder.ANSWER]
        with torch.inference_mode():
            found = model(input_ids=torch.tensor([ids])).logits[0].argmax(-1).tolist()
        right += all(found[place - 1] == ids[place] for place in answer)
    return right / len(documents)


def operation_documents(tag, seed, count):
    """Held-out prompts of one operation of the base."""
    rng = random.Random(f"probe {tag} {seed}")
    _, source, answer = corpus.OPERATIONS[tag]
    for _ in range(count):
        text = source(rng)
        yield corpus.Document([text], [(generate.prompt_of(f"{tag}: {text}"), answer(text))])


def skill_documents(skill, seed, count):
    """Held-out prompts of a skill."""
    return [corpus.Document([sample["input"]], [(sample["prompt"], sample["answer"])])
            for sample in generate.prompts(skill, seed, count, "heldout")]


# ---- training --------------------------------------------------------------------------------------------------------

def rate_at(step, steps, warm_up, flat):
    """Learning rate as a share of its highest value: linear warm-up, flat part, linear decay to zero."""
    return min(1.0, (step + 1) / warm_up, (steps - step) / (steps * (1 - flat)))


def fit(model, core, data, steps, rate, start=0, optimizer=None, after_step=lambda step: None, warm_up=100, flat=0.4,
        decay=0.05):
    """Trains the parameters that need gradients; `after_step` is called with the number of finished steps."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = optimizer or make_optimizer(model, decay)
    began, shown, tokens = time.time(), 0.0, 0
    for step in range(start, steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * rate_at(step, steps, warm_up, flat)
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
        if (step + 1) % 50 == 0:
            print(f"  step {step + 1}/{steps}  loss {shown:.4f}  {tokens / (time.time() - began):.0f} tokens/s", flush=True)
        after_step(step + 1)


def make_optimizer(model, decay):
    """AdamW; no weight decay on the norms."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW([
        {"params": [parameter for parameter in parameters if parameter.dim() > 1], "weight_decay": decay},
        {"params": [parameter for parameter in parameters if parameter.dim() == 1], "weight_decay": 0.0},
    ], lr=1e-3, betas=(0.9, 0.98))


def model_settings(encoder):
    """config.json of the base."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY,
        "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "hidden_act": "silu", "max_position_embeddings": MAX_POSITIONS,
        "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "attention_bias": False,
        "mlp_bias": False, "initializer_range": 0.02, "bos_token_id": encoder.begin, "eos_token_id": encoder.end,
        "pad_token_id": encoder.pad, "use_cache": True, "torch_dtype": "bfloat16",
    }


def save_base(model, encoder, folder):
    """Writes the base in bf16 with its configuration."""
    tensors = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()
               if name != "lm_head.weight"}
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(model_settings(encoder), indent=2) + "\n")
    generation = {"bos_token_id": encoder.begin, "eos_token_id": encoder.end, "pad_token_id": encoder.pad, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    publish(folder)


def train_base(seed, encoder, folder, work, steps):
    """Pre-trains the base from the last checkpoint in `work`, if there is one, and writes it to `folder`."""
    torch.manual_seed(seed)
    settings = model_settings(encoder)
    settings.pop("torch_dtype")
    model = LlamaForCausalLM(LlamaConfig(**settings))
    optimizer = make_optimizer(model, 0.05)
    data = batches(corpus.base_documents(seed, ENDLESS), encoder, BASE_ROWS)
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
        if step % CHECKPOINT_EVERY and step != steps:
            return
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, work / "base.new")
        os.replace(work / "base.new", checkpoint)
        save_base(model, encoder, folder)
        shares = {tag: accuracy(model, encoder, list(operation_documents(tag, seed, 40))) for tag in corpus.TAGS}
        print(f"  operations after {step} steps: " +
              " ".join(f"{tag} {100 * share:.0f}" for tag, share in shares.items()), flush=True)

    fit(model, torch.compile(model.model), data, steps, BASE_RATE, start, optimizer, after_step)


def load_base(folder):
    """The published base (rounded to bf16), computed in float32."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)


def train_adapter(name, seed, encoder, out, first_round):
    """Trains one adapter on the published base, round by round, and writes it in PEFT format, in bf16.

    A later round goes on from the written adapter at half the rate, on other documents."""
    rows, rounds, rate, settings = ADAPTERS[name]
    folder = out / "adapters" / name
    for number, steps in enumerate(rounds[first_round:], first_round):
        torch.manual_seed(seed + number)
        base = load_base(out / "model")
        if number == 0:
            model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **settings))
        else:
            model = PeftModel.from_pretrained(base, folder, is_trainable=True)
        print(f"{name}: {sum(p.numel() for p in model.parameters() if p.requires_grad)} parameters, round {number}", flush=True)
        data = batches(corpus.skill_documents(name, seed + number, ENDLESS), encoder, rows)
        fit(base, base.model, data, steps, rate if number == 0 else rate / 2, warm_up=30, flat=0.3, decay=0.0)
        save_adapter(model, settings, folder)
    model = PeftModel.from_pretrained(load_base(out / "model"), folder)
    print(f"{name}: exact match {100 * accuracy(model, encoder, skill_documents(name, seed + 1000, 200)):.1f} %", flush=True)


def save_adapter(model, settings, folder):
    """Writes the adapter in bf16, without PEFT's model card and with its target modules in a fixed order."""
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_config.json"
    found = {**json.loads(path.read_text()), "base_model_name_or_path": "demo/model", "target_modules": settings["target_modules"]}
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
    parser.add_argument("--steps", type=int, default=BASE_STEPS, help="steps of the base")
    parser.add_argument("--only", nargs="*", choices=list(ADAPTERS), help="train only these adapters again")
    parser.add_argument("--first-round", type=int, default=0, help="go on from the written adapters with this round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    model_folder = options.out / "model"
    began = time.time()
    if options.only is None:
        train_tokenizer(options.seed, model_folder)
        train_base(options.seed, Encoder(model_folder), model_folder, options.work, options.steps)
        print(f"base ready after {time.time() - began:.0f} s", flush=True)
    for name in options.only or ADAPTERS:
        train_adapter(name, options.seed, Encoder(model_folder), options.out, options.first_round)
    print(f"everything done after {time.time() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
