# SPDX-License-Identifier: Apache-2.0
"""Writes models/NAME.gguf and adapters/NAME.gguf the way llama.cpp's converters lay them out.

For architectures llama, granite and smollm3 the rows of q and k (and of their LoRA B) are permuted within each head,
because GGUF's rope of these turns neighbouring pairs; for qwen2 and qwen3 they are not.
"""
import json
import math
import re

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

from common import ADAPTERS, MODELS, fix_rope, generator, quiet
from gguf_specs import GGUF_ADAPTERS, GGUF_MODELS
from gguf_vocab import add_vocabulary
from make_models import build_from, config_of, weight
from model_specs import is_plus_one
from value_heads import moved

Type = gguf.GGMLQuantizationType
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


# Of layers with experts, whose matrices lie in one tensor for each kind.
NAMES |= {
    "mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps", "mlp.experts.down_proj": "ffn_down_exps",
}
# Of models whose norms stand behind the blocks, too; olmo2 has no pre_feedforward_layernorm.
NAMES_BEHIND = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                "post_feedforward_layernorm": "post_ffw_norm"}
LINEAR_NAMES = {
    "post_attention_layernorm": "post_attention_norm", "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.out_proj": "ssm_out", "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm",
}
LINEAR_VECTORS = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}  # whole names
FUSED_NAMES = {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
# What else single architectures have, or call so.
MORE_NAMES = {kind: NAMES_BEHIND for kind in ("olmo2", "olmo3", "gemma2", "gemma3", "gemma3_text")} | {
    "phi3": FUSED_NAMES,
    "qwen3_5_text": LINEAR_NAMES,
    "qwen3_5_moe_text": LINEAR_NAMES,
    "glm4": FUSED_NAMES | {"post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm"},
    "glm": FUSED_NAMES,
    "gpt_oss": {"post_attention_layernorm": "post_attention_norm", "mlp.router": "ffn_gate_inp",
                "self_attn.sinks": "attn_sinks"},
    "starcoder2": {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "model.norm.bias": "output_norm.bias"},
}
# general.architecture of a model_type, where they differ
ARCHITECTURES = {"olmo3": "olmo2", "gemma3_text": "gemma3", "glm": "chatglm", "qwen2_vl": "qwen2vl",
                 "qwen3_vl": "qwen3vl", "mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe",
                 "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe", "gpt_oss": "gpt-oss"}


def names_of(model_type):
    return NAMES | MORE_NAMES.get(model_type, {})


def ggml_name(name, model_type):
    names = names_of(model_type)
    if name in names:
        return names[name]
    layer, inside = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name).groups()
    if inside in LINEAR_VECTORS:
        return f"blk.{layer}.{LINEAR_VECTORS[inside]}"
    module, kind = inside.rsplit(".", 1)
    return f"blk.{layer}.{names[module]}.{kind}"


def stored_value(name, value, spec):
    """Files hold 1 + w of norms that multiply with that, and of linear attention -exp(A_log) and tiled heads."""
    value = moved(spec, name, value, True)
    if name.endswith("A_log"):
        return -np.exp(value)
    if name.endswith("conv1d.weight"):
        return value[:, 0]
    return value + 1 if is_plus_one(spec["model_type"], name) else value


def value_of_stored(name, value, spec):
    if name.endswith("A_log"):
        value = np.log(-value)
    if name.endswith("conv1d.weight"):
        value = value[:, None]
    return moved(spec, name, value - 1 if is_plus_one(spec["model_type"], name) else value, False)


def heads_of(spec, name):
    """Heads whose rows GGUF permutes in this tensor, 0 for none."""
    if spec["model_type"] not in ("llama", "granite", "mixtral", "smollm3"):
        return 0
    return spec["num_attention_heads"] if "q_proj" in name else spec["num_key_value_heads"] if "k_proj" in name else 0


def permute(array, heads):
    """Rows of a head from (half, pair) to (pair, half) order."""
    if not heads:
        return array
    rows = array.shape[0]
    return array.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(array.shape)


def unpermute(array, heads):
    if not heads:
        return array
    rows = array.shape[0]
    return array.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(array.shape)


# Of random blocks the standard deviation with a scale of one, and where the scale lies.
WITHOUT_MINIMUM = {Type.Q3_K: (43.3, 108), Type.IQ4_NL: (67.4, 0), Type.IQ4_XS: (1246, 0)}


def random_blocks(key, shape, kind, std):
    """Valid random blocks of formats that gguf does not quantise: random quants and sub-block scales, f16 scales that
    give about `std`."""
    rng = generator(*key)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (shape[0] * shape[1] // block, size), dtype=np.uint8)
    vary = rng.uniform(0.7, 1.3, len(raw))
    if kind == Type.Q6_K:  # ql[128] qh[64] scales[16] (int8) d
        raw[:, 192:208] = rng.integers(-40, 41, (len(raw), 16)).astype(np.int8).view(np.uint8)
        scales = [(std / 427 * vary, 208)]
    elif kind == Type.Q2_K:  # scales[16] (and minima) qs[64] d dmin
        scales = [(std / 13.9 * vary, 80), (std / 13.9 * 1.5 * vary, 82)]
    elif kind in WITHOUT_MINIMUM:
        spread, at = WITHOUT_MINIMUM[kind]
        scales = [(std / spread * vary, at)]
    else:  # d dmin scales[12] ...; the minimum offsets the mean of the quants
        middle, spread = (7.5, 245) if kind == Type.Q4_K else (15.5, 500)
        scales = [(std / spread * vary, 0), (std / spread * middle * vary, 2)]
    for value, at in scales:
        raw[:, at:at + 2] = value.astype(np.float16)[:, None].view(np.uint8)
    return raw.reshape(shape[0], -1)


TIED_HEADS = (Type.Q6_K, Type.Q2_K, Type.Q3_K)


def tensor_bytes(model, name, value, kind):
    if kind.name.endswith("_K") or kind in WITHOUT_MINIMUM:
        quieter = 0.25 if kind in TIED_HEADS and "embed_tokens" in name else 1  # a head as well: hidden is large
        return random_blocks((model, name), value.shape, kind, quieter * float(value.std()))
    return gguf.quantize(np.ascontiguousarray(value), kind)


def kind_of(types, name, dims):
    if dims == 1 or "ffn_gate_inp" in name or "ssm_conv1d" in name or name.endswith(".bias"):
        return Type.F32
    return Type[next((v for k, v in types.items() if k and name.endswith(k)), types[""])]


def rope_factors(spec):
    """What llama.cpp stores for Llama 3's rope: the divisor of each frequency."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = config_of(spec)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config)
    dim = spec["hidden_size"] // spec["num_attention_heads"]
    plain = 1.0 / (spec["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim))
    return (plain / scaled).numpy().astype(np.float32)


def add_phi3(writer, spec, head_dim):
    original = spec.get("original_max_position_embeddings", 4096)
    writer.add_rope_dimension_count(int(head_dim * spec.get("partial_rotary_factor", 1)))
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_sliding_window(spec["sliding_window"] or 0)
    if spec["rope_scaling"]:
        scale = spec["max_position_embeddings"] / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
        for kind in ("long", "short"):
            factors = np.array(spec["rope_scaling"][f"{kind}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{kind}.weight", factors)


def add_config(writer, name, spec):
    head_dim = spec.get("head_dim") or spec["hidden_size"] // spec["num_attention_heads"]
    writer.add_name(name)
    writer.add_context_length(spec["max_position_embeddings"])
    writer.add_embedding_length(spec["hidden_size"])
    writer.add_block_count(spec["num_hidden_layers"])
    if "intermediate_size" in spec:
        writer.add_feed_forward_length(spec["intermediate_size"])
    writer.add_head_count(spec["num_attention_heads"])
    writer.add_head_count_kv(spec["num_key_value_heads"])
    if spec["model_type"] == "starcoder2":
        writer.add_layer_norm_eps(spec["norm_epsilon"])
    else:
        writer.add_layer_norm_rms_eps(spec["rms_norm_eps"])
    writer.add_rope_freq_base(spec["rope_theta"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    if spec["model_type"] == "llama":
        writer.add_rope_dimension_count(head_dim)
        writer.add_vocab_size(spec["vocab_size"])
    if "head_dim" in spec:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if spec["model_type"] == "phi3":
        add_phi3(writer, spec, head_dim)
    if spec["model_type"] in ("glm", "glm4"):
        writer.add_rope_dimension_count(int(head_dim * spec["partial_rotary_factor"]))
    if "linear_num_key_heads" in spec:
        writer.add_rope_dimension_count(int(head_dim * spec.get("partial_rotary_factor", 0.25)))
        writer.add_rope_dimension_sections([11, 11, 10, 0])
        writer.add_ssm_conv_kernel(spec["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(spec["linear_key_head_dim"])
        writer.add_ssm_group_count(spec["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(spec["linear_num_value_heads"])
        writer.add_ssm_inner_size(spec["linear_value_head_dim"] * spec["linear_num_value_heads"])
        writer.add_full_attention_interval(4)
    if "moe_intermediate_size" in spec or "num_local_experts" in spec:
        writer.add_expert_count(spec.get("num_experts") or spec["num_local_experts"])
        writer.add_expert_used_count(spec["num_experts_per_tok"])
    if "moe_intermediate_size" in spec:
        writer.add_expert_feed_forward_length(spec["moe_intermediate_size"])
    if spec["model_type"] == "gpt_oss":
        writer.add_expert_feed_forward_length(spec["intermediate_size"])
        writer.add_sliding_window(spec["sliding_window"])
    if "shared_expert_intermediate_size" in spec:
        writer.add_expert_shared_feed_forward_length(spec["shared_expert_intermediate_size"])
    if spec["model_type"] == "granite":
        writer.add_embedding_scale(spec["embedding_multiplier"])
        writer.add_residual_scale(spec["residual_multiplier"])
        writer.add_attention_scale(spec["attention_multiplier"])
        writer.add_logit_scale(spec["logits_scaling"])
    if spec.get("sliding_window") and MORE_NAMES.get(spec["model_type"]) is NAMES_BEHIND:
        writer.add_sliding_window(spec["sliding_window"])
    if spec["model_type"] == "olmo3":
        writer.add_sliding_window_pattern([(i + 1) % 4 != 0 for i in range(spec["num_hidden_layers"])])
    if spec["model_type"] == "gemma2":
        writer.add_attn_logit_softcapping(spec["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(spec["final_logit_softcapping"])
    scaling = spec.get("rope_scaling") or {}
    if scaling.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling["factor"])
    if scaling.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(scaling["beta_slow"])
        if "attention_factor" in scaling:
            writer.add_rope_scaling_attn_factors(scaling["attention_factor"])


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def in_turn(key, value):
    """Of gpt-oss: outputs before inputs, gate and up each by itself."""
    before, dot, last = key.rpartition("experts.")
    last, kind = (last.removesuffix("_bias"), "bias") if last.endswith("_bias") else (last, "weight")
    value = value.swapaxes(-1, -2) if kind == "weight" else value
    if last == "down_proj":
        return [(f"{key.removesuffix('_bias')}.{kind}", value)]
    parts = (value[:, ::2], value[:, 1::2])
    return [(f"{before}{dot}{part}.{kind}", rows) for part, rows in zip(("gate_proj", "up_proj"), parts)]


def of_gpt_oss(key):
    return "mlp.experts." in key and (key.endswith("_proj") or key.endswith("_proj_bias"))


def stored_values(name, spec):
    """What is stored of a model: parameters, of experts those of one kind each."""
    for key, parameter in build_from(spec).named_parameters():
        tied = spec.get("tie_word_embeddings", True)
        value = weight(name, key, parameter.shape, tied, is_plus_one(spec["model_type"], key)).numpy()
        value = stored_value(key, value, spec)
        if spec["model_type"] == "gpt_oss" and of_gpt_oss(key):
            yield from in_turn(key, value)
        elif key.endswith("self_attn.sinks"):
            yield key + ".weight", value
        elif key.endswith("experts.gate_up_proj"):
            for part, rows in zip(("gate_proj", "up_proj"), np.split(value, 2, 1)):
                yield key.replace("gate_up_proj", part) + ".weight", rows
        elif key.endswith("experts.down_proj"):
            yield key + ".weight", value
        elif key.endswith("shared_expert_gate.weight"):
            yield key, value[0]
        else:
            yield key, value


def write_model(name):
    entry = GGUF_MODELS[name]
    spec, path = entry["spec"], MODELS / f"{name}.gguf"
    arch = entry.get("arch") or ARCHITECTURES.get(spec["model_type"], spec["model_type"])
    writer = gguf.GGUFWriter(path, arch)
    if "alignment" in entry:
        writer.add_custom_alignment(entry["alignment"])
    add_config(writer, name, spec)
    add_vocabulary(writer, spec)
    if (spec.get("rope_scaling") or {}).get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(spec))
    for key, value in stored_values(name, spec):
        stored = ggml_name(key, spec["model_type"])
        kind = kind_of(entry["types"], stored, value.ndim)
        value = permute(value, heads_of(spec, key))
        writer.add_tensor(stored, tensor_bytes(name, key, value, kind), raw_dtype=kind)
    finish(writer)
    if "version" in entry:  # v2 differs from v3 in this number only (v3 added big-endian files)
        data = bytearray(path.read_bytes())
        data[4:8] = entry["version"].to_bytes(4, "little")
        path.write_bytes(data)
    return path


def read_tensors(path):
    """Name -> float32 array, dequantised by the gguf package."""
    return {t.name: gguf.dequantize(t.data, t.tensor_type).reshape([int(n) for n in t.shape[::-1]])
            for t in gguf.GGUFReader(path).tensors}


def reference_model(name):
    """transformers with the weights that the GGUF file really holds."""
    spec = GGUF_MODELS[name]["spec"]
    tensors = read_tensors(MODELS / f"{name}.gguf")
    model = build_from(spec)
    for key, parameter in model.named_parameters():
        if spec["model_type"] == "gpt_oss" and of_gpt_oss(key):
            stored = parameter.detach().numpy()
            for part, place in in_turn(key, stored):  # views of the parameter
                place[...] = tensors.pop(ggml_name(part, spec["model_type"]))
            continue
        if key.endswith("experts.gate_up_proj"):
            parts = [key.replace("gate_up_proj", part) + ".weight" for part in ("gate_proj", "up_proj")]
            stored = np.concatenate([tensors.pop(ggml_name(part, spec["model_type"])) for part in parts], 1)
        else:
            weighted = key + ".weight" if key.endswith(("experts.down_proj", "self_attn.sinks")) else key
            stored = tensors.pop(ggml_name(weighted, spec["model_type"]))
            stored = stored[None] if key.endswith("shared_expert_gate.weight") else stored
        stored = value_of_stored(key, stored, spec)
        parameter.copy_(torch.from_numpy(unpermute(stored, heads_of(spec, key)).copy()))
    assert set(tensors) <= {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}, f"left over: {list(tensors)}"
    fix_rope(model, 0)
    return model.eval()


def write_adapter(name):
    entry = GGUF_ADAPTERS[name]
    spec = GGUF_MODELS[entry["base"]]["spec"]
    config = json.loads((ADAPTERS / entry["source"] / "adapter_config.json").read_text())
    kind = Type[entry["type"]]
    writer = gguf.GGUFWriter(ADAPTERS / f"{name}.gguf", ARCHITECTURES.get(spec["model_type"], spec["model_type"]))
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(config["lora_alpha"]))
    writer.add_name(name)
    if config["alora_invocation_tokens"]:
        writer.add_key_value(gguf.Keys.Adapter.ALORA_INVOCATION_TOKENS, config["alora_invocation_tokens"],
                             gguf.GGUFValueType.ARRAY, sub_type=gguf.GGUFValueType.UINT32)
    for key, value in load_file(ADAPTERS / entry["source"] / "adapter_model.safetensors").items():
        value = value.float().numpy()
        if value.ndim == 1:  # a norm that was saved whole
            writer.add_tensor(ggml_name(key.removeprefix("base_model.model."), spec["model_type"]),
                              stored_value(key, value, spec))
            continue
        module, which = re.fullmatch(r"base_model\.model\.(.*)\.lora_(?:embedding_)?([AB])(?:\.weight)?", key).groups()
        value = moved(spec, module, value, True, which)
        if which == "B":
            value = permute(value, heads_of(spec, module))
        elif module.endswith("embed_tokens"):
            value = np.ascontiguousarray(value.T)  # rows are looked up by token
        stored = ggml_name(f"{module}.weight", spec["model_type"])
        writer.add_tensor(f"{stored}.lora_{which.lower()}", gguf.quantize(value, kind),
                          raw_dtype=kind)
    finish(writer)


def check_permutation():
    value = generator("permutation").standard_normal((12, 5)).astype(np.float32)
    assert np.array_equal(unpermute(permute(value, 3), 3), value)
    assert not np.array_equal(permute(value, 3), value)


def main():
    quiet()
    check_permutation()
    for name in GGUF_MODELS:
        path = write_model(name)
        logits = reference_model(name)(torch.arange(3, 60)[None]).logits
        print(f"{name:20} {path.stat().st_size:7} bytes, logits up to {logits.abs().max():.1f}")
    for name in GGUF_ADAPTERS:
        write_adapter(name)
        print(f"{name:20} {(ADAPTERS / (name + '.gguf')).stat().st_size:7} bytes")


if __name__ == "__main__":
    main()
