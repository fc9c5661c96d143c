# SPDX-License-Identifier: Apache-2.0
"""The GGUF files: base models by number format, and adapters converted from those of adapter_specs.py.

types: the format of each two-dimensional tensor by the end of its GGUF name, "" for the rest.
"""
from model_specs import (LLAMA3_ROPE, PHI4, YARN, gemma, gemma2, gemma3, glm, gpt_oss, granite, llama, mixtral, olmo2, olmo3,
                         phi3, qwen, qwen3_5, qwen3_5_moe, qwen_moe, smollm3, starcoder2)


def gguf(spec, types, **more):
    return dict(spec=spec, types=types if isinstance(types, dict) else {"": types}) | more


def small(**more):
    return llama(32, 2, 1, 48, layers=1, **more)


BLOCKS = llama(64, 4, 2, 96, layers=1)  # two or three blocks of 32 a row
GQA = llama(64, 4, 2, 96, tie_word_embeddings=True)  # what the adapters of llama-gqa fit
Q4_K_M = {"": "Q4_K", "attn_v.weight": "Q6_K", "ffn_down.weight": "Q6_K", "token_embd.weight": "Q6_K"}
Q5_K_M = {"": "Q5_K", "attn_v.weight": "Q6_K", "ffn_down.weight": "Q6_K", "output.weight": "Q6_K"}
# Mixed as llama-quantize does, with an embedding (which is the head as well) of the low bits.
Q2_K_M = {"": "Q2_K", "attn_v.weight": "Q4_K", "ffn_down.weight": "Q3_K"}
Q3_K_M = {"": "Q3_K", "attn_v.weight": "Q5_K", "ffn_down.weight": "Q4_K"}
IQ4_XS_M = {"": "IQ4_XS", "attn_v.weight": "Q5_K", "output.weight": "Q6_K"}

GGUF_MODELS = {
    "gguf-llama-f32": gguf(small(), "F32"),
    "gguf-llama-f16": gguf(GQA, "F16"),
    "gguf-llama-bf16": gguf(small(), "BF16", alignment=64),
    "gguf-llama-v2": gguf(small(), {"": "F16", "output.weight": "F32"}, version=2),
    "gguf-llama-q8_0": gguf(GQA, {"": "Q8_0", "token_embd.weight": "F16"}),
    "gguf-llama-q4_0": gguf(BLOCKS, {"": "Q4_0", "output.weight": "Q8_0"}),
    "gguf-llama-q4_1": gguf(BLOCKS, "Q4_1"),
    "gguf-llama-q5_0": gguf(BLOCKS, {"": "Q5_0", "token_embd.weight": "Q4_0"}),
    "gguf-llama-q5_1": gguf(BLOCKS, {"": "Q5_1", "attn_k.weight": "F16"}),
    "gguf-llama-q4_k_m": gguf(llama(256, 8, 2, 256, layers=1, tie_word_embeddings=True), Q4_K_M),
    "gguf-qwen2-q5_k_m": gguf(qwen("qwen2", 256, 8, 1, 256, layers=1), Q5_K_M),
    "gguf-llama-q2_k_m": gguf(llama(256, 8, 2, 256, layers=1, tie_word_embeddings=True), Q2_K_M),
    "gguf-llama-q3_k_m": gguf(llama(256, 8, 2, 256, layers=1, tie_word_embeddings=True), Q3_K_M),
    "gguf-llama-iq4_nl": gguf(BLOCKS, {"": "IQ4_NL", "attn_v.weight": "Q5_0"}),
    "gguf-qwen2-iq4_xs_m": gguf(qwen("qwen2", 256, 8, 1, 256, layers=1), IQ4_XS_M),
    "gguf-llama-mxfp4": gguf(BLOCKS, {"": "MXFP4", "attn_v.weight": "Q8_0"}),
    "gguf-qwen2-f16": gguf(qwen("qwen2", 32, 4, 2, 64, tie_word_embeddings=True), "F16"),
    "gguf-qwen3-q8_0": gguf(qwen("qwen3", 32, 4, 2, 64, head_dim=16), {"": "Q8_0", "token_embd.weight": "BF16"}),
    "gguf-granite-f16": gguf(granite(32, 4, 2, 64), "F16"),  # what granite-all-r4 fits
    "gguf-olmo2-f16": gguf(olmo2(32, 4, 2, 64), "F16"),  # what olmo2-save-norms fits
    "gguf-olmo3-f16": gguf(olmo3(32, 4, 2, 48, rope_scaling=YARN | dict(attention_factor=1.3)), "F16"),
    "gguf-gemma-q8_0": gguf(gemma(32, 4, 1, 64), {"": "Q8_0", "token_embd.weight": "F16"}),
    # what gemma2-save-norms fits; files do not say the scale of scores, which is that of a head
    "gguf-gemma2-f16": gguf(gemma2(32, 4, 2, 48, layers=3, head_dim=12, query_pre_attn_scalar=12), "F16"),
    "gguf-gemma3-q8_0": gguf(gemma3(32, 2, 1, 32, layers=6, query_pre_attn_scalar=16, rope_theta=1000.0,
                                    rope_local_base_freq=10000.0, rope_scaling=dict(rope_type="linear", factor=4.0)),
                             {"": "Q8_0", "token_embd.weight": "F16"}),
    "gguf-smollm3-q8_0": gguf(smollm3(32, 4, 2, 64, layers=4), {"": "Q8_0", "token_embd.weight": "F16"}),
    "gguf-phi3-q8_0": gguf(phi3(64, 4, 2, 96, **PHI4), {"": "Q8_0", "token_embd.weight": "F16"}),
    "gguf-phi3-f16": gguf(phi3(32, 4, 2, 48, sliding_window=16, partial_rotary_factor=0.5), "F16"),  # what phi3-all-r4 fits
    "gguf-glm-q8_0": gguf(glm("glm", 32, 4, 2, 64), {"": "Q8_0", "token_embd.weight": "F16"}),
    "gguf-glm4-f16": gguf(glm("glm4", 32, 4, 2, 48), "F16"),  # what glm4-all-r4 fits
    "gguf-starcoder2-f16": gguf(starcoder2(32, 4, 2, 48), "F16"),  # what starcoder2-mlp-r4 fits
    "gguf-qwen3_5-f16": gguf(qwen3_5(32, 4, 2, 48), "F16"),  # what qwen3_5-all-r4 fits
    "gguf-qwen3_5-q8_0": gguf(qwen3_5(64, 4, 2, 96, linear_key_head_dim=12, linear_value_head_dim=16),
                              {"": "Q8_0", "token_embd.weight": "F16"}),
    "gguf-qwen3_5-moe-f16": gguf(qwen3_5_moe(32, 4, 2, 6, 2, 24), "F16"),
    # the text models inside of others, which llama.cpp calls by other names
    "gguf-mistral3-f16": gguf(small(), "F16", arch="mistral3"),
    "gguf-qwen2vl-f16": gguf(qwen("qwen2", 32, 4, 2, 48, layers=1), "F16", arch="qwen2vl"),
    "gguf-qwen3vl-f16": gguf(qwen("qwen3", 32, 4, 2, 48, layers=1, head_dim=16), "F16", arch="qwen3vl"),
    "gguf-qwen3-moe-q8_0": gguf(qwen_moe("qwen3", 32, 4, 2, 64, 6, 2, 32, head_dim=16, norm_topk_prob=True),
                                {"": "Q8_0", "token_embd.weight": "F16"}),
    "gguf-qwen2-moe-f16": gguf(qwen_moe("qwen2", 32, 4, 2, 48, 5, 3, 24, shared_expert_intermediate_size=40), "F16"),
    "gguf-mixtral-q4_0": gguf(mixtral(64, 4, 2, 96, 4, 2, num_hidden_layers=1), {"": "Q4_0", "output.weight": "Q8_0"}),
    "gguf-gpt-oss-f16": gguf(gpt_oss(64, 4, 2, 32, 4, 2), "F16"),  # what the adapters of gpt-oss fit
    "gguf-gpt-oss-mxfp4": gguf(gpt_oss(64, 4, 2, 32, 5, 3), {
        "": "Q8_0", "ffn_gate_exps.weight": "MXFP4", "ffn_up_exps.weight": "MXFP4", "ffn_down_exps.weight": "MXFP4",
        "token_embd.weight": "F16"}),
    "gguf-rope-linear": gguf(small(rope_scaling=dict(rope_type="linear", factor=4.0)), "F16"),
    "gguf-rope-yarn": gguf(small(rope_scaling=YARN, rope_theta=500.0), "F16"),
    "gguf-rope-freqs": gguf(small(rope_scaling=LLAMA3_ROPE, rope_theta=500.0), "F16"),
}

GGUF_ADAPTERS = {
    "gguf-lora-f32": dict(base="gguf-llama-f16", source="gqa-qv-r8", type="F32"),
    "gguf-lora-f16": dict(base="gguf-llama-f16", source="gqa-exclude-list", type="F16"),
    "gguf-lora-embed": dict(base="gguf-llama-f16", source="gqa-embed-tied", type="F32"),
    "gguf-lora-norms": dict(base="gguf-llama-f16", source="gqa-save-norms", type="F32"),
    "gguf-lora-alora": dict(base="gguf-llama-f16", source="gqa-alora", type="F16", lengths=(40,),
                            options=dict(invocation_at=(20,))),
    "gguf-lora-olmo2": dict(base="gguf-olmo2-f16", source="olmo2-save-norms", type="F32"),
    "gguf-lora-gemma2": dict(base="gguf-gemma2-f16", source="gemma2-save-norms", type="F32"),
    "gguf-lora-granite": dict(base="gguf-granite-f16", source="granite-qk-r4", type="F32"),
    "gguf-lora-phi3": dict(base="gguf-phi3-f16", source="phi3-all-r4", type="F32"),
    "gguf-lora-glm4": dict(base="gguf-glm4-f16", source="glm4-all-r4", type="F32"),
    "gguf-lora-starcoder2": dict(base="gguf-starcoder2-f16", source="starcoder2-mlp-r4", type="F32"),
    "gguf-lora-qwen3_5": dict(base="gguf-qwen3_5-f16", source="qwen3_5-all-r4", type="F32"),
    "gguf-lora-bf16": dict(base="gguf-qwen2-f16", source="qwen2-split", type="BF16"),
}
