# SPDX-License-Identifier: Apache-2.0
"""Writes tests/corpus/stored_rows_fuzz/: the smallest quantised checkpoints, what its fuzzer begins with."""
import json

import torch
from safetensors.torch import save

from common import GOLDEN, quiet
from make_quantised import Blocks, Matrix
from quant_specs import QUANT_MODELS

FOLDER = GOLDEN.parent / "corpus/stored_rows_fuzz"
VOCAB = 4


def shapes(hidden, heads_dim, ffn):
    layer = "model.layers.0."
    for name, shape in (("self_attn.q_proj", (heads_dim, hidden)), ("self_attn.k_proj", (heads_dim, hidden)),
                        ("self_attn.v_proj", (heads_dim, hidden)), ("self_attn.o_proj", (hidden, heads_dim)),
                        ("mlp.gate_proj", (ffn, hidden)), ("mlp.up_proj", (ffn, hidden)), ("mlp.down_proj", (hidden, ffn))):
        yield f"{layer}{name}.weight", shape


def checkpoint(entry):
    fp8 = entry.get("fp8")
    hidden, dim, ffn = (128, 16, 16) if fp8 else (64, 32, 32)
    tensors = {"model.embed_tokens.weight": torch.ones(VOCAB, hidden, dtype=torch.bfloat16)}
    for name in ("model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"):
        tensors[f"{name}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    for key, shape in shapes(hidden, dim, ffn):
        if shape[1] % (128 if fp8 else 32):
            tensors[key] = torch.ones(shape, dtype=torch.bfloat16)
            continue
        for end, tensor in Matrix(entry | {"block_rows": min(entry.get("block_rows", 1), 128)}, "corpus", key,
                                  shape).tensors().items():
            tensors[f"{key.removesuffix('.weight')}.{end}"] = tensor
    config = dict(architectures=["LlamaForCausalLM"], hidden_size=hidden, num_attention_heads=1, num_key_value_heads=1,
                  head_dim=dim, intermediate_size=ffn, num_hidden_layers=1, vocab_size=VOCAB, eos_token_id=1,
                  tie_word_embeddings=True, quantization_config=entry["config"])
    return json.dumps(config).encode() + b"\0" + save(tensors)


def experts_checkpoint(quant):
    """gpt-oss with two experts; their matrices in mxfp4, or plain."""
    hidden, dim, width, experts = 32, 16, 32, 2
    config = dict(architectures=["GptOssForCausalLM"], hidden_size=hidden, num_attention_heads=2, num_key_value_heads=1,
                  head_dim=dim, intermediate_size=width, num_hidden_layers=1, vocab_size=VOCAB, eos_token_id=1,
                  num_local_experts=experts, num_experts_per_tok=1, tie_word_embeddings=True)
    plain = {"model.embed_tokens.weight": (VOCAB, hidden), "model.norm.weight": (hidden,)}
    layer = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,), "self_attn.sinks": (2,),
             "mlp.router.weight": (experts, hidden), "mlp.router.bias": (experts,),
             "mlp.experts.gate_up_proj_bias": (experts, 2 * width), "mlp.experts.down_proj_bias": (experts, hidden)}
    for part, out, inner in (("q", 2 * dim, hidden), ("k", dim, hidden), ("v", dim, hidden), ("o", hidden, 2 * dim)):
        layer |= {f"self_attn.{part}_proj.weight": (out, inner), f"self_attn.{part}_proj.bias": (out,)}
    stacks = {"mlp.experts.gate_up_proj": (experts, hidden, 2 * width), "mlp.experts.down_proj": (experts, width, hidden)}
    layer |= {} if quant else stacks
    plain |= {"model.layers.0." + name: shape for name, shape in layer.items()}
    tensors = {name: torch.ones(shape, dtype=torch.bfloat16) for name, shape in plain.items()}
    if quant:
        config["quantization_config"] = quant
        for name, shape in stacks.items():
            blocks = Blocks("corpus", name, shape).tensors()
            tensors |= {f"model.layers.0.{name}_{end}": tensor.contiguous() for end, tensor in blocks.items()}
    return json.dumps(config).encode() + b"\0" + save(tensors)


def main():
    quiet()
    FOLDER.mkdir(exist_ok=True)
    for name, entry in QUANT_MODELS.items():
        of_experts = entry["store"] == "mxfp4"
        (FOLDER / name).write_bytes(experts_checkpoint(entry["config"]) if of_experts else checkpoint(entry))
    (FOLDER / "gpt-oss").write_bytes(experts_checkpoint(None))


if __name__ == "__main__":
    main()
