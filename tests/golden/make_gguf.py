# SPDX-License-Identifier: Apache-2.0
"""Writes models/NAME.gguf and adapters/NAME.gguf the way llama.cpp's converters lay them out.

For architectures llama, granite and smollm3 the rows of q and k (and of their LoRA B) are permuted within each head,
because GGUF's rope of these turns neighbouring pairs; for qwen2 and qwen3 they are not.
"""
import json
import re

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

from common import ADAPTERS, MODELS, generator, quiet
from gguf_specs import GGUF_ADAPTERS, GGUF_MODELS
from gguf_vocab import add_vocabulary
from make_models import build_from, config_of, weight

Type = gguf.GGMLQuantizationType
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


# Of olmo2, whose norms stand behind the blocks.
NAMES_BEHIND = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}


def ggml_name(name, kind_of_model):
    if name in NAMES:
        return NAMES[name]
    layer, module, kind = re.fullmatch(r"model\.layers\.(\d+)\.(.*)\.(weight|bias)", name).groups()
    names = NAMES | NAMES_BEHIND if kind_of_model == "olmo2" else NAMES
    return f"blk.{layer}.{names[module]}.{kind}"


def heads_of(spec, name):
    """Heads whose rows GGUF permutes in this tensor, 0 for none."""
    if spec["model_type"] not in ("llama", "granite", "smollm3"):
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
    if dims == 1:
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


def add_config(writer, name, spec):
    head_dim = spec.get("head_dim") or spec["hidden_size"] // spec["num_attention_heads"]
    writer.add_name(name)
    writer.add_context_length(spec["max_position_embeddings"])
    writer.add_embedding_length(spec["hidden_size"])
    writer.add_block_count(spec["num_hidden_layers"])
    writer.add_feed_forward_length(spec["intermediate_size"])
    writer.add_head_count(spec["num_attention_heads"])
    writer.add_head_count_kv(spec["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(spec["rms_norm_eps"])
    writer.add_rope_freq_base(spec["rope_theta"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    if spec["model_type"] == "llama":
        writer.add_rope_dimension_count(head_dim)
        writer.add_vocab_size(spec["vocab_size"])
    if "head_dim" in spec:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if spec["model_type"] == "granite":
        writer.add_embedding_scale(spec["embedding_multiplier"])
        writer.add_residual_scale(spec["residual_multiplier"])
        writer.add_attention_scale(spec["attention_multiplier"])
        writer.add_logit_scale(spec["logits_scaling"])
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


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_model(name):
    entry = GGUF_MODELS[name]
    spec, path = entry["spec"], MODELS / f"{name}.gguf"
    writer = gguf.GGUFWriter(path, spec["model_type"])
    if "alignment" in entry:
        writer.add_custom_alignment(entry["alignment"])
    add_config(writer, name, spec)
    add_vocabulary(writer, spec)
    if (spec.get("rope_scaling") or {}).get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(spec))
    for key, parameter in build_from(spec).named_parameters():
        value = weight(name, key, parameter.shape, spec["tie_word_embeddings"]).numpy()
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
        stored = tensors.pop(ggml_name(key, spec["model_type"]))
        parameter.copy_(torch.from_numpy(unpermute(stored, heads_of(spec, key)).copy()))
    assert set(tensors) <= {"rope_freqs.weight"}, f"left over: {list(tensors)}"
    return model.eval()


def write_adapter(name):
    entry = GGUF_ADAPTERS[name]
    spec = GGUF_MODELS[entry["base"]]["spec"]
    config = json.loads((ADAPTERS / entry["source"] / "adapter_config.json").read_text())
    kind = Type[entry["type"]]
    writer = gguf.GGUFWriter(ADAPTERS / f"{name}.gguf", spec["model_type"])
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
            writer.add_tensor(ggml_name(key.removeprefix("base_model.model."), spec["model_type"]), value)
            continue
        module, which = re.fullmatch(r"base_model\.model\.(.*)\.lora_(?:embedding_)?([AB])(?:\.weight)?", key).groups()
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
