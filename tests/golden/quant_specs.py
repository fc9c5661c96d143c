# SPDX-License-Identifier: Apache-2.0
"""The quantised checkpoints: name -> model and how its matrices are stored (make_quantised.py).

store: gptq, awq, packed (compressed-tensors words), bytes (int8 or e4m3 with scales beside them), mxfp4 (of experts)
scale: the format of the scales; group: inputs that share one, 0 for all; zeros: have zero points
"""
from model_specs import gpt_oss, llama, phi3, qwen, qwen_moe

GQA = llama(64, 4, 2, 96, tie_word_embeddings=True)  # what the adapters of llama-gqa fit
WIDE = llama(128, 4, 2, 256, layers=1)  # fp8g has blocks of 128


def gptq(bits, group, zeros, **more):
    config = dict(quant_method="gptq", bits=bits, group_size=group or -1, sym=not zeros, desc_act=False,
                  checkpoint_format="gptq", damp_percent=0.1, true_sequential=True) | more
    return dict(store="gptq", bits=bits, group=group, zeros=zeros, scale="float16", config=config)


def compressed(form, weights, scale, **more):
    fields = dict(num_bits=8, type="int", symmetric=True, strategy="channel", group_size=None, dynamic=False)
    config = dict(quant_method="compressed-tensors", format=form, quantization_status="compressed", ignore=["lm_head"],
                  config_groups=dict(group_0=dict(targets=["Linear"], weights=fields | weights, input_activations=None,
                                                  output_activations=None)), kv_cache_scheme=None)
    config["config_groups"]["group_0"] |= more.pop("scheme", {})
    return dict(group=0, zeros=False, scale=scale, config=config) | more


GROUP_32 = dict(num_bits=4, strategy="group", group_size=32)
FP8_INPUTS = dict(input_activations=dict(num_bits=8, type="float", strategy="tensor", dynamic=False, symmetric=True))

QUANT_MODELS = {
    "gptq-sym": gptq(4, 32, False) | dict(spec=GQA),
    "gptq-asym": gptq(4, 32, True) | dict(spec=GQA, bias_of_zeros=True),
    "gptq-v2": gptq(4, 0, True, checkpoint_format="gptq_v2") | dict(spec=qwen("qwen2", 64, 4, 2, 96)),
    "gptq-8bit": gptq(8, 32, False, desc_act=True) | dict(spec=GQA),  # act-order whose order is the trivial one
    "awq": dict(spec=GQA, store="awq", bits=4, group=32, zeros=True, scale="float16", config=dict(
        quant_method="awq", bits=4, group_size=32, zero_point=True, version="gemm", modules_to_not_convert=None)),
    "awq-moe": dict(spec=qwen_moe("qwen3", 64, 4, 2, 96, 4, 2, 32, num_hidden_layers=1, head_dim=16, norm_topk_prob=True),
                    store="awq", bits=4, group=32, zeros=True, scale="float16", config=dict(
                        quant_method="awq", bits=4, group_size=32, zero_point=True, version="gemm",
                        modules_to_not_convert=["gate"])),
    # q, k and v are one matrix of the file, gate and up another.
    "awq-phi3": dict(spec=phi3(64, 4, 2, 96), store="awq", bits=4, group=32, zeros=True, scale="float16", config=dict(
        quant_method="awq", bits=4, group_size=32, zero_point=True, version="gemm", modules_to_not_convert=None)),
    "gptq-phi3": gptq(4, 32, True) | dict(spec=phi3(64, 4, 2, 96)),
    "ct-int4-phi3": compressed("pack-quantized", GROUP_32 | dict(symmetric=False), "float16", store="packed", bits=4,
                               group=32, zeros=True) | dict(spec=phi3(64, 4, 2, 96)),
    "gpt-oss-mxfp4": dict(
        spec=gpt_oss(64, 4, 2, 32, 4, 2, swiglu_limit=5.0, layer_types=["sliding_attention", "full_attention"]),
        store="mxfp4", config=dict(quant_method="mxfp4", modules_to_not_convert=[
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"])),
    "ct-int4": compressed("pack-quantized", GROUP_32, "bfloat16", store="packed", bits=4, group=32) | dict(spec=GQA),
    "ct-int4-asym": compressed("pack-quantized", GROUP_32 | dict(symmetric=False), "float16", store="packed", bits=4,
                               group=32, zeros=True) | dict(spec=GQA),
    "ct-int8-packed": compressed("pack-quantized", {}, "bfloat16", store="packed", bits=8) | dict(spec=GQA),
    "ct-int8": compressed("int-quantized", {}, "bfloat16", store="bytes", bits=8, two=True) | dict(spec=GQA),
    "fp8-block": dict(spec=WIDE, store="bytes", bits=8, fp8=True, group=128, block_rows=128, zeros=False,
                      scale="float32", end="weight_scale_inv", config=dict(
                          quant_method="fp8", activation_scheme="dynamic", weight_block_size=[128, 128], fmt="e4m3")),
    "fp8-tensor": dict(spec=WIDE, store="bytes", bits=8, fp8=True, group=0, whole=True, zeros=False, scale="float32",
                       inputs=True, config=dict(quant_method="fp8", activation_scheme="static")),
    "ct-fp8": compressed("float-quantized", dict(type="float"), "bfloat16", store="bytes", bits=8, fp8=True, two=True,
                         inputs=True, scheme=FP8_INPUTS) | dict(spec=WIDE),
}
