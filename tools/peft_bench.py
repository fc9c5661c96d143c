# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of transformers + PEFT with a different adapter for every sequence of a batch: the peer of `gpu_bench mixed`.

    python3 tools/peft_bench.py [--ours gpu-report/mixed.json] [--json FILE]

A Llama of random bf16 weights, as many adapters as sequences (rank 16 on q, k and v), prompts of --context tokens, then
--new tokens greedily. A decode rate is what --new tokens take beyond one token; the median of --rounds. With --ours the ratio of
our rate to this one is printed, against the target of three times. Needs torch, transformers and peft; says what is missing.
"""
import argparse
import json
import statistics
import sys
import time

try:
    import peft
    import torch
    import transformers
except ImportError as missing:
    sys.exit(f"peft_bench: {missing}. It needs torch, transformers and peft.")

SHAPES = {  # hidden, layers, heads, KV heads, FFN: those of `loralei bench`
    "llama-7b": (4096, 32, 32, 32, 11008),
    "llama-1b": (2048, 22, 32, 4, 5632),
    "tiny": (64, 2, 4, 2, 128),
}
TARGET = 3.0


def make_model(shape, device):
    hidden, layers, heads, kv_heads, ffn = SHAPES[shape]
    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, intermediate_size=ffn, max_position_embeddings=4096)
    config._attn_implementation = "sdpa"
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return transformers.LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(default)


def add_adapters(model, count, rank):
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["q_proj", "k_proj", "v_proj"])
    names = [f"adapter-{i}" for i in range(count)]
    wrapped = peft.get_peft_model(model, config, adapter_name=names[0], autocast_adapter_dtype=False)
    for name in names[1:]:
        wrapped.add_adapter(name, config)
    with torch.no_grad():
        for key, weight in wrapped.named_parameters():
            if "lora_B" in key:  # zero as PEFT begins, which no trained adapter is
                weight.normal_(std=0.02)
    return wrapped.to(torch.bfloat16).eval(), names


class Clock:
    def __init__(self, device):
        self.cuda = device.startswith("cuda")

    def now(self):
        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


def generate_s(model, clock, prompts, tokens, names):
    start = clock.now()
    out = model.generate(input_ids=prompts, attention_mask=torch.ones_like(prompts), do_sample=False, adapter_names=names,
                         min_new_tokens=tokens, max_new_tokens=tokens, pad_token_id=0)
    taken = clock.now() - start
    if out.shape[1] != prompts.shape[1] + tokens:
        sys.exit(f"peft_bench: {out.shape[1] - prompts.shape[1]} tokens were generated instead of {tokens}.")
    return taken


def our_rate(path, count):
    with open(path, encoding="utf-8") as file:
        rows = json.load(file)["rows"]
    rates = [row["value"] for row in rows if row["name"].endswith(f".n{count}.tok_s")]
    if not rates:
        sys.exit(f"peft_bench: {path} has no row of {count} adapters; run gpu_bench mixed with as many.")
    return rates[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="llama-7b")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--ours", help="the JSON that gpu_bench mixed wrote")
    parser.add_argument("--json", help="where to write the figures")
    args = parser.parse_args()
    if args.new < 2 or min(args.batch, args.rank, args.context, args.rounds) < 1:
        parser.error("--new takes 2 or more, the other numbers 1 or more")

    torch.manual_seed(0)
    model, names = add_adapters(make_model(args.shape, args.device), args.batch, args.rank)
    prompts = torch.randint(259, 32000, (args.batch, args.context), device=args.device)
    clock = Clock(args.device)
    rates = {"peft": [], "base": []}
    base = ["__base__"] * args.batch
    with torch.inference_mode():
        for turn in range(args.rounds + 1):
            for name, adapters in (("peft", names), ("base", base)):
                one = generate_s(model, clock, prompts, 1, adapters)
                many = generate_s(model, clock, prompts, args.new, adapters)
                if turn > 0:  # the first warms up
                    rates[name].append(args.batch * (args.new - 1) / (many - one))
    figures = {"versions": {module.__name__: module.__version__ for module in (torch, transformers, peft)},
               "device": torch.cuda.get_device_name() if clock.cuda else args.device,
               "args": {key: value for key, value in vars(args).items() if key not in ("json", "ours")},
               "tok_s": {name: {"median": statistics.median(of), "min": min(of), "max": max(of)} for name, of in rates.items()}}
    rate = figures["tok_s"]["peft"]["median"]
    print(f"transformers {transformers.__version__} + PEFT {peft.__version__}, torch {torch.__version__}, {figures['device']}: "
          f"{args.batch} sequences with {args.batch} adapters {rate:.1f} tok/s, without {figures['tok_s']['base']['median']:.1f}")
    if args.ours:
        figures["ratio"] = our_rate(args.ours, args.batch) / rate
        print(f"| mixed.over_peft | {figures['ratio']:.2f} | >= {TARGET:.2f} | {'yes' if figures['ratio'] >= TARGET else 'NO'} |")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
