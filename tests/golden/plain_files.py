# SPDX-License-Identifier: Apache-2.0
"""Reads models and adapters from their files alone (no transformers, no PEFT), for check_golden.py."""
import json
import re

import gguf
import numpy as np
from safetensors.torch import load_file

import plain_quant
from make_gguf import NAMES, NAMES_BEHIND, unpermute

GGUF_MODULES = {v: k for k, v in (NAMES | NAMES_BEHIND).items()} | {NAMES["post_attention_layernorm"]: "post_attention_layernorm"}


def tensors_of(path):
    return {k: v.double().numpy() for k, v in load_file(path).items()}


def read_directory(folder):
    config = json.loads((folder / "config.json").read_text())
    weights = {}
    if "quantization_config" in config:
        weights = plain_quant.read(folder, config["quantization_config"])
    else:
        for path in sorted(folder.glob("*.safetensors")):
            weights |= tensors_of(path)
    rope = config.get("rope_parameters") or (config.get("rope_scaling") or {}) | {"rope_theta": config["rope_theta"]}
    rope["rope_type"] = rope.get("rope_type", rope.get("type", "default"))
    return config | {"rope": rope}, weights


def hf_name(name):
    """blk.N.attn_q.weight -> model.layers.N.self_attn.q_proj.weight"""
    if name in GGUF_MODULES:
        return GGUF_MODULES[name]
    layer, module, kind = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name).groups()
    return f"model.layers.{layer}.{GGUF_MODULES[module]}.{kind}"


def heads_of(config, name):
    if config["model_type"] not in ("llama", "granite", "smollm3"):
        return 0
    return (config["num_attention_heads"] if "q_proj" in name else
            config["num_key_value_heads"] if "k_proj" in name else 0)


def gguf_values(reader):
    return {name: field.contents() for name, field in reader.fields.items()}


def gguf_tensors(reader):
    return {t.name: gguf.dequantize(t.data, t.tensor_type).reshape([int(n) for n in t.shape[::-1]]).astype(np.float64)
            for t in reader.tensors}


def read_gguf(path):
    reader = gguf.GGUFReader(path)
    values, tensors = gguf_values(reader), gguf_tensors(reader)
    arch = values["general.architecture"]
    get = {name[len(arch) + 1:]: value for name, value in values.items() if name.startswith(arch + ".")}.get
    config = {
        "model_type": arch, "hidden_size": get("embedding_length"), "num_hidden_layers": get("block_count"),
        "num_attention_heads": get("attention.head_count"), "num_key_value_heads": get("attention.head_count_kv"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"), "head_dim": get("attention.key_length"),
        "max_position_embeddings": get("context_length"),
        "rope": {"rope_type": get("rope.scaling.type") or "default", "rope_theta": get("rope.freq_base"),
                 "factor": get("rope.scaling.factor"),
                 "original_max_position_embeddings": get("rope.scaling.original_context_length"),
                 "beta_fast": get("rope.scaling.yarn_beta_fast"), "beta_slow": get("rope.scaling.yarn_beta_slow")}}
    if arch == "granite":
        config |= {"embedding_multiplier": get("embedding_scale"), "residual_multiplier": get("residual_scale"),
                   "attention_multiplier": get("attention.scale"), "logits_scaling": get("logit_scale")}
    config["rope"]["divisors"] = tensors.pop("rope_freqs.weight", None)
    weights = {hf_name(name): value for name, value in tensors.items()}
    return config, {name: unpermute(value, heads_of(config, name)) for name, value in weights.items()}


def read_model(path):
    config, weights = read_gguf(path) if path.suffix == ".gguf" else read_directory(path)
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    return config, weights


FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


class Adapter:
    """deltas: module -> (A [r, in], B [out, r], bias or None, scale); full: tensor name -> its replacement;
    rows: module -> (ids, rows); invocation: ids or None."""

    def __init__(self, path, config, weights):
        self.deltas, self.full, self.rows, self.invocation = {}, {}, {}, None
        (self.from_gguf if path.suffix == ".gguf" else self.from_directory)(path, config, weights)

    def from_gguf(self, path, config, weights):
        reader = gguf.GGUFReader(path)
        values, tensors = gguf_values(reader), gguf_tensors(reader)
        self.invocation = values.get("adapter.alora.invocation_tokens")
        self.full = {hf_name(name): value for name, value in tensors.items() if value.ndim == 1}
        for name in [n[:-len(".lora_a")] for n in tensors if n.endswith(".lora_a")]:
            key = hf_name(name)
            a, b = tensors[name + ".lora_a"], unpermute(tensors[name + ".lora_b"], heads_of(config, key))
            a = a.T if "embed_tokens" in key else a
            self.deltas[key.removesuffix(".weight")] = a, b, None, values["adapter.lora.alpha"] / b.shape[1]

    def from_directory(self, path, config, weights):
        settings = json.loads((path / "adapter_config.json").read_text())
        self.invocation = settings.get("alora_invocation_tokens")
        pairs = {}
        for name, value in tensors_of(path / "adapter_model.safetensors").items():
            name = name.removeprefix("base_model.model.").replace("model.unembed_tokens", "lm_head")
            name = name.replace(".default", "")  # the adapter's name
            if ".original_module." in name:
                continue  # what the saved module replaces
            name = name.replace(".modules_to_save.", ".")
            lora = re.fullmatch(r"(.*)\.lora_(?:embedding_)?([AB])(\.bias|\.weight)?", name)
            if lora:
                pairs.setdefault(lora[1], {})["bias" if lora[3] == ".bias" else lora[2]] = value
            elif name.endswith(".token_adapter.trainable_tokens_delta"):
                self.rows[name.removesuffix(".token_adapter.trainable_tokens_delta")] = value
            else:
                self.full[name.replace(".token_adapter.", ".").replace(".base_layer.", ".")] = value
        for module, pair in self.split_fused(pairs, weights).items():
            self.deltas[module] = pair["A"], pair["B"], pair.get("bias"), self.scale(settings, module)
        self.rows = {module: (self.row_ids(settings, module), rows) for module, rows in self.rows.items()}
        embed = "model.embed_tokens"
        if embed in self.rows and "lm_head" not in self.rows and config.get("tie_word_embeddings"):
            self.rows["lm_head"] = self.rows[embed]  # a tied head follows its trained rows

    @staticmethod
    def split_fused(pairs, weights):
        result = {}
        for module, pair in pairs.items():
            before, _, last = module.rpartition(".")
            at = 0
            for part in FUSED.get(last, (last,)):
                name = f"{before}.{part}" if before else part
                rows = pair["B"].shape[0] if last not in FUSED else weights[name + ".weight"].shape[0]
                result[name] = pair | {"B": pair["B"][at:at + rows]}
                at += rows
        return result

    @staticmethod
    def pattern(patterns, module, default):
        return next((v for k, v in patterns.items() if re.match(rf"(.*\.)?({k})$", module)), default)

    def scale(self, settings, module):
        r = self.pattern(settings.get("rank_pattern", {}), module, settings["r"])
        alpha = self.pattern(settings.get("alpha_pattern", {}), module, settings["lora_alpha"])
        return alpha / r ** 0.5 if settings.get("use_rslora") else alpha / r

    @staticmethod
    def row_ids(settings, module):
        indices = settings["trainable_token_indices"]
        return indices if isinstance(indices, list) else indices[module.rpartition(".")[2]]
