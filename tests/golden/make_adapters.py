# SPDX-License-Identifier: Apache-2.0
"""Writes adapters/NAME/{adapter_config.json,adapter_model.safetensors} with PEFT, from random non-zero values."""
import json
import math

import torch
from safetensors.torch import load_file, save_file

from adapter_specs import FUSED, MINIMAL, MINIMAL_KEYS, MORE_TARGETS, NAMED, SINGLE_EXPERTS, SPECS, TINKER
from common import ADAPTERS, MODELS, clean_folder, load_model, randn, round_to, write_json
from make_quantised import reference_model
from quant_specs import QUANT_MODELS
from model_specs import SPECS as MODEL_SPECS, is_plus_one

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16,
          "float64": torch.float64}
OURS = ("base", "store", "vocab", "tamper", "layers")


def base_for(name):
    """The base model as the adapter's author had it: loaded, and resized where the adapter says so."""
    spec = SPECS[name]
    quantised = spec["base"] in QUANT_MODELS
    model = reference_model(spec["base"]) if quantised else load_model(MODELS / spec["base"])
    if "vocab" in spec:
        torch.manual_seed(0)  # the new rows are drawn here
        model.resize_token_embeddings(spec["vocab"], mean_resizing=False)
        if spec.get("layers"):  # they are stored as they are
            for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
                layer.weight.copy_(round_to(layer.weight, torch.bfloat16))
    return model


def is_adapter_value(key):
    marks = ("lora_", "modules_to_save", "trainable_tokens_delta")
    return any(mark in key for mark in marks)


def fill(model, name):
    """Random values for everything that the adapter stores; biases only where the config trains them."""
    bias = SPECS[name].get("bias", "none")
    kind = MODEL_SPECS.get(SPECS[name]["base"], {}).get("model_type")
    for key, value in model.named_parameters():
        trained_bias = key.endswith(".bias") and "lora_" not in key and (
            bias == "all" or bias == "lora_only" and "base_layer" in key)
        if not (is_adapter_value(key) or trained_bias):
            continue
        shape = tuple(value.shape)
        if trained_bias or key.endswith("bias"):
            new = randn((name, key), shape, 0.4)
        elif "lora_A" in key or "lora_embedding_B" in key:
            new = randn((name, key), shape, 1 / math.sqrt(shape[1]))
        elif "lora_B" in key or "lora_embedding_A" in key:
            new = randn((name, key), shape, 0.5 / math.sqrt(shape[-1] if "lora_B" in key else shape[0]))
        elif "norm" in key:
            new = (0 if is_plus_one(kind, "norm.weight") else 1) + randn((name, key), shape, 0.4)
        else:  # full rows: the old ones, clearly changed
            new = value + randn((name, key), shape, 0.6 * float(value.std()) + 0.05)
        value.copy_(round_to(new, torch.bfloat16))


def share_first_factor(model):
    """Fused projections have one A: give q,k,v (and gate,up) of the split adapter the same one."""
    values = dict(model.named_parameters())
    for key, value in values.items():
        for first, others in (("q_proj", ("k_proj", "v_proj")), ("gate_proj", ("up_proj",))):
            if first in key and "lora_A" in key:
                for other in others:
                    values[key.replace(first, other)].copy_(value)


def finish_config(folder, spec):
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    config["base_model_name_or_path"] = "golden/" + spec["base"]
    for key in ("target_modules", "modules_to_save", "exclude_modules", "target_parameters"):
        if isinstance(config.get(key), list):
            config[key].sort()  # PEFT writes sets in no fixed order
    tamper = spec.get("tamper")
    if tamper == "fan_in_fan_out":
        config["fan_in_fan_out"] = True
    if tamper == "all_linear":
        config["target_modules"] = "all-linear"  # PEFT itself writes the expanded list
    if tamper == "keep_order":
        config |= {key: spec[key] for key in ("rank_pattern", "alpha_pattern")}
    write_json(path, config, sort_keys=tamper != "keep_order")


def store(folder, dtype):
    path = folder / "adapter_model.safetensors"
    tensors = {k: v.to(dtype).contiguous() for k, v in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})
    return tensors


def make(name):
    from peft import LoraConfig, get_peft_model

    spec = SPECS[name]
    options = {k: v for k, v in spec.items() if k not in OURS}
    model = get_peft_model(base_for(name), LoraConfig(inference_mode=True, **options)).eval()
    fill(model, name)
    if spec.get("tamper") == "share_a":
        share_first_factor(model)
    folder = clean_folder(ADAPTERS / name)
    model.save_pretrained(folder, save_embedding_layers=spec.get("layers", False))
    (folder / "README.md").unlink(missing_ok=True)
    finish_config(folder, spec)
    tensors = store(folder, DTYPES[spec.get("store", "bfloat16")])
    return model, folder, tensors


def check(name, model, folder, tensors):
    """PeftModel.from_pretrained gives back the model that was saved, and the adapter changes the result."""
    from peft import PeftModel

    ids = torch.arange(0, 60)[None] * 7 % 96
    ids[0, 30:33] = torch.tensor([5, 17, 9])
    offsets = {"alora_offsets": [30]} if "alora_invocation_tokens" in SPECS[name] else {}
    loaded = PeftModel.from_pretrained(base_for(name), folder).eval()
    want = model(input_ids=ids, **offsets).logits
    got = loaded(input_ids=ids, **offsets).logits
    assert torch.equal(want, got), f"{name}: differs by {(want - got).abs().max()} after loading"
    base = base_for(name)(ids).logits
    effect = (got - base).abs().max()
    assert effect > 0.5, f"{name}: hardly any effect ({effect})"
    size = sum(p.stat().st_size for p in folder.iterdir())
    print(f"{name:24} {size:7} bytes, {len(tensors):3} tensors, effect {effect:.1f}")


def make_fused(name, source):
    """As tools that fuse projections write it: qkv_proj and gate_up_proj, A shared, B stacked."""
    split = load_file(ADAPTERS / source / "adapter_model.safetensors")
    groups = {"q_proj": ("qkv_proj", ("q_proj", "k_proj", "v_proj")),
              "gate_proj": ("gate_up_proj", ("gate_proj", "up_proj"))}
    fused = {}
    for key, value in split.items():
        for first, (joined, parts) in groups.items():
            if first + ".lora_A" in key:
                assert all(torch.equal(value, split[key.replace(first, part)]) for part in parts)
                fused[key.replace(first, joined)] = value
            elif first + ".lora_B" in key:
                fused[key.replace(first, joined)] = torch.cat([split[key.replace(first, part)] for part in parts])
    folder = clean_folder(ADAPTERS / name)
    save_file(fused, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = json.loads((ADAPTERS / source / "adapter_config.json").read_text())
    config["target_modules"] = ["gate_up_proj", "qkv_proj"]
    write_json(folder / "adapter_config.json", config)
    print(f"{name:24} from {source}: {len(fused)} tensors")


def make_minimal(name, source):
    folder = clean_folder(ADAPTERS / name)
    config = json.loads((ADAPTERS / source / "adapter_config.json").read_text())
    write_json(folder / "adapter_config.json", {key: config[key] for key in MINIMAL_KEYS})
    save_file(load_file(ADAPTERS / source / "adapter_model.safetensors"), folder / "adapter_model.safetensors")
    print(f"{name:24} from {source}: {len(MINIMAL_KEYS)} keys, no metadata")


def make_single_experts(name, base, targets):
    """Names and shapes are those of the base's file; PEFT has no model any more that would write them."""
    tensors = {}
    for key, value in load_file(MODELS / base / "model.safetensors").items():
        module = key.removesuffix(".weight")
        if value.ndim != 2 or module.rpartition(".")[2] not in targets:
            continue
        out, inner = value.shape
        for part, shape, std in (("A", (3, inner), inner ** -0.5), ("B", (out, 3), 0.5 * 3 ** -0.5)):
            full = f"base_model.model.{module}.lora_{part}.weight"
            tensors[full] = randn((name, full), shape, std).to(torch.bfloat16)
    folder = clean_folder(ADAPTERS / name)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = json.loads((ADAPTERS / "qwen3-moe-attn" / "adapter_config.json").read_text())
    write_json(folder / "adapter_config.json", config | {
        "base_model_name_or_path": "golden/" + base, "r": 3, "lora_alpha": 6, "target_modules": targets})
    print(f"{name:24} for single experts of {base}: {len(tensors)} tensors")


def make_twin(name, source, rename, **settings):
    folder = clean_folder(ADAPTERS / name)
    tensors = load_file(ADAPTERS / source / "adapter_model.safetensors")
    if name in NAMED:  # a model's state has a saved module only once
        twice = [key for key in tensors if key.removesuffix(".weight") + ".modules_to_save.weight" in tensors]
        tensors = {key: value for key, value in tensors.items() if key not in twice}
    save_file({rename(key): value for key, value in tensors.items()}, folder / "adapter_model.safetensors",
              metadata={"format": "pt"})
    config = json.loads((ADAPTERS / source / "adapter_config.json").read_text())
    write_json(folder / "adapter_config.json", config | settings)
    print(f"{name:24} from {source}: {len(tensors)} tensors")


def with_adapter_name(key):
    """As in the state_dict() of a model with this adapter."""
    for part in ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "modules_to_save", "trainable_tokens_delta"):
        key = key.replace("." + part, f".{part}.default") if "." + part in key else key
    return key


def make_twins():
    for name, source in NAMED.items():
        make_twin(name, source, with_adapter_name)
    for name, source in MORE_TARGETS.items():
        targets = SPECS[source]["target_modules"]
        make_twin(name, source, lambda key: key, target_modules=sorted(targets + ["c_attn", "dense", "qkv"]))
    for name, source in TINKER.items():
        make_twin(name, source, lambda key: key.replace("model.lm_head", "model.model.unembed_tokens"),
                  target_modules="all-linear")


def main():
    for name in SPECS:
        check(name, *make(name))
    for name, source in FUSED.items():
        make_fused(name, source)
    for name, source in MINIMAL.items():
        make_minimal(name, source)
    for name, (base, targets) in SINGLE_EXPERTS.items():
        make_single_experts(name, base, targets)
    make_twins()


if __name__ == "__main__":
    main()
