# SPDX-License-Identifier: Apache-2.0
"""Reads models and adapters from their files alone (no transformers, no PEFT), for check_golden.py."""
import json
import re

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

import plain_quant
from make_gguf import LINEAR_VECTORS, names_of, unpermute, value_of_stored
from model_specs import is_plus_one
from value_heads import moved


def alone(name):
    """A tensor of a text model inside of another one as if it stood alone."""
    for inside, outside in INSIDE:
        if name.startswith(inside):
            return outside + name.removeprefix(inside)
    return name


def tensors_of(path):
    return {k: v.double().numpy() for k, v in load_file(path).items()}


INSIDE = (("model.language_model.", "model."), ("language_model.model.", "model."), ("language_model.lm_head", "lm_head"))
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def split_weights(config, weights):
    """Rows of fused matrices under the names of their parts."""
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    result = {}
    for name, value in weights.items():
        before, last, kind = name.rsplit(".", 2) if name.count(".") > 1 else ("", name, "")
        if last not in FUSED:
            result[name] = value
            continue
        dim = len(value) // (heads + 2 * kv)
        sizes = [heads * dim, kv * dim, kv * dim] if last == "qkv_proj" else [len(value) // 2] * 2
        for part, rows in zip(FUSED[last], np.split(value, np.cumsum(sizes)[:-1])):
            result[f"{before}.{part}.{kind}"] = rows
    return result
def one_by_one(name, value):
    """The matrices of a tensor that holds those of all experts of a layer; others as they are."""
    found = re.fullmatch(r"(.*\.mlp\.experts\.)(gate_up_proj|gate_proj|up_proj|down_proj)(\.weight|\.bias)?", name)
    if not found:
        yield name, value
        return
    if found[3] == ".bias":
        yield from ((f"{found[1]}{expert}.{found[2]}.bias", row) for expert, row in enumerate(value))
        return
    for expert, matrix in enumerate(value):
        parts = ("gate_proj", "up_proj") if found[2] == "gate_up_proj" else (found[2],)
        for part, rows in zip(parts, np.split(matrix, len(parts))):
            yield f"{found[1]}{expert}.{part}.weight", rows


MIXTRAL = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def experts_named(name):
    """Mixtral's names as those of the others."""
    name = re.sub(r"\.mlp\.router\b", ".mlp.gate", name.replace(".block_sparse_moe.", ".mlp."))
    return re.sub(r"(\.experts\.\d+\.)(w[123])\b", lambda m: m[1] + MIXTRAL[m[2]], name)


def parts_in_turn(weights):
    """gpt-oss: inputs before outputs, columns of gate and of up in turn -> rows of each."""
    result = {}
    for name, value in weights.items():
        found = re.fullmatch(r"(.*\.mlp\.experts\.)(gate_up_proj|down_proj)(_bias)?", name)
        if not found:
            result[name] = value
            continue
        value, kind = (value, "bias") if found[3] else (value.swapaxes(-1, -2), "weight")
        parts = {"down_proj": value} if found[2] == "down_proj" else {"gate_proj": value[:, ::2], "up_proj": value[:, 1::2]}
        result |= {f"{found[1]}{part}.{kind}": rows for part, rows in parts.items()}
    return result


def each_expert(weights):
    return dict(pair for name, value in weights.items() for pair in one_by_one(experts_named(name), value))


def read_directory(folder):
    config = json.loads((folder / "config.json").read_text())
    weights = {}
    if "quantization_config" in config:
        weights = plain_quant.read(folder, config["quantization_config"])
    else:
        for path in sorted(folder.glob("*.safetensors")):
            weights |= {alone(name): value for name, value in tensors_of(path).items()}
    config |= config.get("text_config", {})
    rope = config.get("rope_parameters") or (config.get("rope_scaling") or {}) | {"rope_theta": config["rope_theta"]}
    sliding = rope.get("sliding_attention")
    rope = rope.get("full_attention", rope)
    sliding = sliding or {"rope_theta": config.get("rope_local_base_freq", rope["rope_theta"])}
    for one in (rope, sliding):
        one["rope_type"] = one.get("rope_type", one.get("type", "default"))
    if "original_max_position_embeddings" in config:
        rope["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    config |= {"rope": rope, "sliding_rope": sliding}
    if config["model_type"].startswith("qwen3_5"):
        config.setdefault("partial_rotary_factor", rope.get("partial_rotary_factor", 0.25))
    if config["model_type"].startswith("gemma"):
        dtype = getattr(torch, config.get("torch_dtype") or config["dtype"])
        config.setdefault("tie_word_embeddings", True)
        config["embedding_multiplier"] = float(torch.tensor(config["hidden_size"] ** 0.5).to(dtype))
    if config["model_type"] == "gpt_oss":
        weights = parts_in_turn(weights)
    weights = split_weights(config, each_expert(weights))
    return config, {name: plus_one(name, value, config) for name, value in weights.items()}


def plus_one(name, value, config):
    """What a norm multiplies with; files of PEFT and transformers hold one less of some models."""
    return value + 1 if is_plus_one(config["model_type"], name) else value


def hf_name(name, model_type):
    """blk.N.attn_q.weight -> model.layers.N.self_attn.q_proj.weight"""
    modules = {v: k for k, v in names_of(model_type).items()}
    if name in modules:
        return modules[name]
    layer, inside = re.fullmatch(r"blk\.(\d+)\.(.*)", name).groups()
    vectors = {v: k for k, v in LINEAR_VECTORS.items()}
    if inside in vectors:
        return f"model.layers.{layer}.{vectors[inside]}"
    module, kind = inside.rsplit(".", 1)
    return f"model.layers.{layer}.{modules[module]}.{kind}"


def heads_of(config, name):
    if config["model_type"] not in ("llama", "granite", "smollm3", "mistral3"):  # Mixtral's files are llama's
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
    arch = {"chatglm": "glm", "qwen2vl": "qwen2_vl", "qwen3vl": "qwen3_vl", "gpt-oss": "gpt_oss",
            "qwen35": "qwen3_5_text", "qwen35moe": "qwen3_5_moe_text"}.get(arch, arch)  # as in a config.json
    config = {
        "model_type": arch, "hidden_size": get("embedding_length"), "num_hidden_layers": get("block_count"),
        "num_attention_heads": get("attention.head_count"), "num_key_value_heads": get("attention.head_count_kv"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"), "head_dim": get("attention.key_length"),
        "max_position_embeddings": get("context_length"),
        "rope": {"rope_type": get("rope.scaling.type") or "default", "rope_theta": get("rope.freq_base"),
                 "factor": get("rope.scaling.factor"),
                 "original_max_position_embeddings": get("rope.scaling.original_context_length"),
                 "beta_fast": get("rope.scaling.yarn_beta_fast"), "beta_slow": get("rope.scaling.yarn_beta_slow")}}
    if arch in ("glm", "glm4"):
        config |= {"head_dim": get("attention.key_length")}
        config |= {"partial_rotary_factor": get("rope.dimension_count") / config["head_dim"]}
    if arch.startswith("qwen3_5"):
        values = get("ssm.time_step_rank")
        config |= {"partial_rotary_factor": get("rope.dimension_count") / config["head_dim"],
                   "linear_num_key_heads": get("ssm.group_count"), "linear_num_value_heads": values,
                   "linear_key_head_dim": get("ssm.state_size"), "linear_value_head_dim": get("ssm.inner_size") // values}
    config |= {"norm_epsilon": get("attention.layer_norm_epsilon")}
    pattern = get("attention.sliding_window_pattern", [(i + 1) % (2 if arch == "gemma2" else 6) for i in range(99)])
    if "gemma" in arch:
        config |= {"embedding_multiplier": config["hidden_size"] ** 0.5}
    if arch in ("gemma2", "gemma3", "olmo2") and get("attention.sliding_window"):
        config |= {"sliding_window": get("attention.sliding_window"),
                   "layer_types": [("full", "sliding")[bool(s)] + "_attention" for s in pattern],
                   "attn_logit_softcapping": get("attn_logit_softcapping"),
                   "final_logit_softcapping": get("final_logit_softcapping")}
    config["sliding_rope"] = {"rope_type": "default",
                              "rope_theta": 10000.0 if arch == "gemma3" else config["rope"]["rope_theta"]}
    config["rope"]["attention_factor"] = get("rope.scaling.attn_factor")
    if arch == "gpt_oss":
        config |= {"sliding_window": get("attention.sliding_window")}
        config["rope"]["truncate"] = False
    if arch == "granite":
        config |= {"embedding_multiplier": get("embedding_scale"), "residual_multiplier": get("residual_scale"),
                   "attention_multiplier": get("attention.scale"), "logits_scaling": get("logit_scale")}
    if arch == "phi3":
        config |= {"sliding_window": get("attention.sliding_window"), "partial_rotary_factor":
                   get("rope.dimension_count") * config["num_attention_heads"] / config["hidden_size"]}
        if "rope_factors_long.weight" in tensors:
            config["rope"] |= {"rope_type": "longrope", "attention_factor": get("rope.scaling.attn_factor"),
                               "long_factor": tensors.pop("rope_factors_long.weight"),
                               "short_factor": tensors.pop("rope_factors_short.weight")}
    config["rope"]["divisors"] = tensors.pop("rope_freqs.weight", None)
    weights = split_weights(config, {hf_name(name, arch): value for name, value in tensors.items()})
    if get("expert_count"):
        config |= {"num_experts_per_tok": get("expert_used_count"), "norm_topk_prob": arch != "qwen2moe"}
    if arch.startswith("qwen3_5"):  # sums of norms stay as they are
        weights = {n: v if n.endswith("norm.weight") else value_of_stored(n, v, config) for n, v in weights.items()}
    weights = {n: v[None] if n.endswith("shared_expert_gate.weight") else v for n, v in each_expert(weights).items()}
    return config, {name: unpermute(value, heads_of(config, name)) for name, value in weights.items()}


def read_model(path):
    config, weights = read_gguf(path) if path.suffix == ".gguf" else read_directory(path)
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    return config, weights


def split_stacks(pairs, settings, config):
    """Pairs of parameters of all experts of a layer -> one for each expert and matrix; that of gate_up_proj is the
    inner one where both are targeted."""
    named = [name.rpartition(".")[2] for name in settings.get("target_parameters") or []]
    result = {}
    for module, pair in pairs.items():
        found = re.fullmatch(r"(.*\.mlp\.experts)(\.base_layer)?", module)
        if not found:
            result[module] = pair, module
            continue
        both = "gate_up_proj" in named and "down_proj" in named
        gate_up = bool(found[2]) if both else "gate_up_proj" in named
        key = f"{found[1]}.{'gate_up_proj' if gate_up else 'down_proj'}"
        rank = Adapter.pattern(settings.get("rank_pattern", {}), key, settings["r"])
        experts = pair["A"].shape[0] // rank
        for expert in range(experts):
            own = slice(expert * rank, (expert + 1) * rank)
            a, b = pair["A"][own], pair["B"][:, own if config.get("columns_together") else slice(expert, None, experts)]
            parts = ("gate_proj", "up_proj") if gate_up else ("down_proj",)
            in_turn = config["model_type"] == "gpt_oss" and not config.get("rows_together")
            split = [b[i::len(parts)] for i in range(len(parts))] if in_turn else np.split(b, len(parts))
            for part, rows in zip(parts, split):
                result[f"{found[1]}.{expert}.{part}"] = {"A": a, "B": rows}, key
    return result


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
        arch = config["model_type"]
        self.full = {hf_name(name, arch): value for name, value in tensors.items() if value.ndim == 1}
        pairs = {}
        for name in [n[:-len(".lora_a")] for n in tensors if n.endswith(".lora_a")]:
            key = hf_name(name, arch)
            a, b = tensors[name + ".lora_a"], unpermute(tensors[name + ".lora_b"], heads_of(config, key))
            a, b = (moved(config, key, t, False, which) for t, which in ((a, "A"), (b, "B")))
            pairs[key.removesuffix(".weight")] = {"A": a.T if "embed_tokens" in key else a, "B": b}
        for module, pair in self.split_fused(pairs, weights).items():
            self.deltas[module] = pair["A"], pair["B"], None, values["adapter.lora.alpha"] / pair["B"].shape[1]

    def from_directory(self, path, config, weights):
        settings = json.loads((path / "adapter_config.json").read_text())
        self.invocation = settings.get("alora_invocation_tokens")
        pairs, spelled = {}, {}
        for name, value in tensors_of(path / "adapter_model.safetensors").items():
            stored = name.removeprefix("base_model.model.")
            name = alone(stored).replace("model.unembed_tokens", "lm_head")
            name = name.replace(".default", "")  # the adapter's name
            if ".original_module." in name:
                continue  # what the saved module replaces
            name = name.replace(".modules_to_save.", ".")
            lora = re.fullmatch(r"(.*)\.lora_(?:embedding_)?([AB])(\.bias|\.weight)?", name)
            if lora:
                spelled[lora[1]] = stored.rpartition(".lora_")[0]
                pairs.setdefault(lora[1], {})["bias" if lora[3] == ".bias" else lora[2]] = value
            elif name.endswith(".token_adapter.trainable_tokens_delta"):
                self.rows[name.removesuffix(".token_adapter.trainable_tokens_delta")] = value
            else:
                name = name.replace(".token_adapter.", ".").replace(".base_layer.", ".")
                self.full[name] = plus_one(name, value, config)
        for module, (pair, key) in split_stacks(self.split_fused(pairs, weights), settings, config).items():
            self.deltas[experts_named(module)] = pair["A"], pair["B"], pair.get("bias"), self.scale(settings, spelled.get(key, key))
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
                result[name] = {key: value if key == "A" else value[at:at + rows] for key, value in pair.items()}
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
