# SPDX-License-Identifier: Apache-2.0
"""The adapters: name -> base model, the LoraConfig that makes it, and how its file is stored.

Keys beside LoraConfig's own: base; store (dtype of the file); vocab (resize before); layers (save embedding and head
as PEFT does of a resized model, with all it has of them); tamper (what is done to the written files, see
make_adapters.py).
"""

QKVO = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
ALL = QKVO + MLP


def lora(base, targets, r, alpha, **more):
    return dict(base=base, target_modules=targets, r=r, lora_alpha=alpha) | more


SPECS = {
    # ranks and targets
    "gqa-qv-r8": lora("llama-gqa", ["q_proj", "v_proj"], 8, 16),
    "gqa-all-r16": lora("llama-gqa", "all-linear", 16, 16, tamper="all_linear"),
    "llama2-r1": lora("llama2", QKVO, 1, 2, store="float32"),
    "llama2-r3-mlp": lora("llama2", MLP, 3, 3, store="float16", lora_dropout=0.1, init_lora_weights="gaussian",
                          task_type="CAUSAL_LM"),  # keys that change training only
    "llama2-r64": lora("llama2", ["o_proj"], 64, 32),
    "mqa-qkvo-r4": lora("llama-mqa", QKVO, 4, 8),
    "mistral-window-r8": lora("mistral-window", QKVO, 8, 8),
    "mistral-full-r4": lora("mistral-full", ALL, 4, 8),
    "qwen2-qv-r8": lora("qwen2", ["q_proj", "v_proj"], 8, 8),
    "qwen2-untied-all-r4": lora("qwen2-untied", ALL, 4, 8),
    "qwen3-all-r4": lora("qwen3", "all-linear", 4, 8),
    "granite-all-r4": lora("granite", ALL + ["embed_tokens", "lm_head"], 4, 8),
    "granite-qk-r4": lora("granite", ["q_proj", "k_proj", "down_proj"], 4, 8),
    "granite-save-all": lora("granite", ["o_proj", "down_proj"], 4, 8, modules_to_save=["embed_tokens", "norm"]),
    "olmo2-all-r4": lora("olmo2", "all-linear", 4, 8),
    "olmo2-save-norms": lora("olmo2", ["v_proj"], 4, 8, modules_to_save=["q_norm", "k_norm", "post_attention_layernorm",
                                                                        "post_feedforward_layernorm"]),
    "smollm3-all-r4": lora("smollm3", "all-linear", 4, 8),
    "phi3-all-r4": lora("phi3", "all-linear", 4, 8),
    "phi3-qkv-bias": lora("phi3", ["qkv_proj", "o_proj"], 4, 8, lora_bias=True),
    "phi3-long-r4": lora("phi3-long", ["qkv_proj", "gate_up_proj"], 4, 8, use_rslora=True),
    "glm-all-r4": lora("glm", "all-linear", 4, 8),
    "glm-qk-bias": lora("glm", ["q_proj", "k_proj"], 4, 8, bias="all"),
    "glm4-all-r4": lora("glm4", "all-linear", 4, 8),
    "glm4-lora-bias": lora("glm4", ["q_proj", "gate_up_proj"], 4, 8, lora_bias=True),
    "glm4-save-norms": lora("glm4", ["k_proj"], 4, 8, modules_to_save=["post_self_attn_layernorm",
                                                                       "post_mlp_layernorm"]),
    "starcoder2-all-r4": lora("starcoder2", "all-linear", 4, 8),
    "starcoder2-mlp-r4": lora("starcoder2", ["c_fc", "c_proj"], 4, 8),
    "mistral3-r4": lora("mistral3", r".*language_model.*\.(q_proj|v_proj|down_proj)", 4, 8),
    "gemma3-vision-r4": lora("gemma3-vision", r".*language_model.*\.(q_proj|gate_proj)", 4, 8),
    "qwen2-vl-r4": lora("qwen2-vl", r".*language_model.*\.(k_proj|o_proj|up_proj)", 4, 8, alpha_pattern={
        r"model\.language_model\.layers\.1\.self_attn\.k_proj": 20}),
    "qwen2_5-vl-r4": lora("qwen2_5-vl", r".*language_model.*\.(q_proj|v_proj|gate_proj)", 4, 8),
    "qwen3-vl-r4": lora("qwen3-vl", r".*language_model.*\.(q_proj|v_proj|down_proj)", 4, 8),
    "olmo3-all-r4": lora("olmo3", "all-linear", 4, 8),
    "gemma-tokens": lora("gemma", ["q_proj"], 4, 8, trainable_token_indices=[3, 7, 40, 95]),
    "gemma-save-embed": lora("gemma", ["down_proj"], 4, 8, modules_to_save=["embed_tokens"]),
    "gemma2-all-r4": lora("gemma2", ALL + ["embed_tokens", "lm_head"], 4, 8),
    "gemma2-save-norms": lora("gemma2", ["v_proj"], 4, 8, modules_to_save=["norm"]),
    "gemma2-resized": lora("gemma2", ["o_proj"], 4, 8, vocab=99, modules_to_save=["embed_tokens", "lm_head"]),
    "gemma3-all-r4": lora("gemma3", "all-linear", 4, 8),
    "gemma3-save-norms": lora("gemma3", ["up_proj"], 4, 8, store="float32", modules_to_save=[
        "q_norm", "k_norm", "post_attention_layernorm", "pre_feedforward_layernorm", "model.norm"]),
    # on linear attention
    "qwen3_5-all-r4": lora("qwen3_5", "all-linear", 4, 8, tamper="all_linear"),
    "qwen3_5-linear": lora("qwen3_5", ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"], 4, 8,
                           rank_pattern={"in_proj_a": 2}, alpha_pattern={"in_proj_b": 20}),
    "qwen3_5-save-norms": lora("qwen3_5", ["q_proj", "in_proj_a"], 4, 8, modules_to_save=[
        "q_norm", "k_norm", "input_layernorm", "post_attention_layernorm"]),
    "qwen3_5-moe-vision-r4": lora("qwen3_5-moe-vision", r".*language_model.*\.(k_proj|in_proj_z|in_proj_b)", 4, 8),
    "qwen3_5-vision-r4": lora("qwen3_5-vision", r".*language_model.*\.(q_proj|in_proj_qkv|out_proj|up_proj)", 4, 8),
    "qwen3_5-moe-all": lora("qwen3_5-moe", "all-linear", 4, 8),
    "qwen3_5-moe-experts": lora("qwen3_5-moe", ["out_proj", "q_proj"], 2, 4, target_parameters=[
        "mlp.experts.gate_up_proj", "mlp.experts.down_proj", "gate.weight"]),
    # on a mixture of experts: beside it, on all experts as parameters, on the router
    "qwen3-moe-attn": lora("qwen3-moe", QKVO, 4, 8),
    "qwen3-moe-experts": lora("qwen3-moe", ["q_proj"], 3, 6, target_parameters=[
        "mlp.experts.gate_up_proj", "mlp.experts.down_proj"], rank_pattern={r".*\.experts\.gate_up_proj": 4}),
    "qwen3-moe-down": lora("qwen3-moe", ["o_proj"], 2, 4, target_parameters=["experts.down_proj"]),
    "qwen3-moe-router": lora("qwen3-moe", ["v_proj"], 2, 4, target_parameters=["gate.weight"]),
    "qwen2-moe-all": lora("qwen2-moe", "all-linear", 4, 8),
    "qwen2-moe-experts": lora("qwen2-moe", ["shared_expert.up_proj"], 2, 4, target_parameters=[
        "mlp.experts.gate_up_proj", "mlp.experts.down_proj", "gate.weight"]),
    "gpt-oss-attn": lora("gpt-oss", QKVO, 4, 8),
    "gpt-oss-experts": lora("gpt-oss", ["q_proj"], 3, 6, target_parameters=[
        "mlp.experts.gate_up_proj", "mlp.experts.down_proj"], rank_pattern={r".*\.experts\.gate_up_proj": 4}),
    "gpt-oss-down": lora("gpt-oss", ["o_proj"], 2, 4, target_parameters=["experts.down_proj"]),
    "gpt-oss-router": lora("gpt-oss", ["v_proj"], 2, 4, target_parameters=["router.weight"]),
    "dynamic-r4": lora("rope-dynamic", ["q_proj", "k_proj"], 4, 8),
    "sharded-r4": lora("sharded", ALL, 4, 4),
    "fp8-all-r4": lora("fp8-block", ALL, 4, 8),
    # which modules
    "gqa-regex": lora("llama-gqa", r".*\.layers\.\d+\.(self_attn\.[qk]_proj|mlp\.down_proj)", 4, 8),
    "gqa-exclude-list": lora("llama-gqa", ALL, 4, 8, exclude_modules=["up_proj", "layers.0.self_attn.k_proj"]),
    "gqa-exclude-regex": lora("llama-gqa", ALL, 4, 8, exclude_modules=r".*\.0\.(mlp|self_attn)\.(gate|up|v)_proj"),
    "gqa-layers-list": lora("llama-gqa", ALL, 4, 8, layers_to_transform=[1]),
    "gqa-layers-pattern": lora("llama-gqa", ["q_proj", "down_proj"], 4, 8, layers_to_transform=0,
                               layers_pattern="layers"),
    # scale and rank per module
    "gqa-rank-pattern": lora(
        "llama-gqa", ALL, 4, 8,
        rank_pattern={r"model\.layers\.1\.self_attn\.q_proj": 2, "v_proj": 6, r"mlp\.(gate|up)_proj": 5,
                      r"^model\.layers\.0\.self_attn\.o_proj": 7},
        alpha_pattern={"v_proj": 3, r"layers\.0\.mlp\.down_proj": 20, r"self_attn\.[qk]_proj": 12}),
    # the first key that matches wins, in the file's order, which here is not the sorted one
    "gqa-pattern-order": lora(
        "llama-gqa", ["q_proj", "v_proj"], 4, 8, tamper="keep_order",
        rank_pattern={"v_proj": 3, "q_proj": 5, r"layers\.1\.self_attn\.q_proj": 2},
        alpha_pattern={r"self_attn\.(q|v)_proj": 6, r"layers\.0\.self_attn\.v_proj": 1}),
    "gqa-rslora": lora("llama-gqa", QKVO, 16, 8, use_rslora=True),
    "gqa-rslora-pattern": lora("llama-gqa", QKVO, 4, 8, use_rslora=True, rank_pattern={"q_proj": 9},
                               alpha_pattern={"o_proj": 2}),
    # head and embeddings
    "llama2-lm-head": lora("llama2", ["lm_head", "q_proj"], 8, 8),
    "llama2-embed": lora("llama2", ["embed_tokens", "v_proj"], 4, 8),
    "llama2-embed-head": lora("llama2", ["embed_tokens", "lm_head"], 4, 4),
    "gqa-embed-tied": lora("llama-gqa", ["embed_tokens"], 4, 8),
    "gqa-head-tied": lora("llama-gqa", ["lm_head", "k_proj"], 4, 8),
    # biases
    "qwen2-bias-all": lora("qwen2", ["q_proj", "v_proj"], 4, 8, bias="all"),
    "qwen2-bias-lora-only": lora("qwen2", ["q_proj", "v_proj"], 4, 8, bias="lora_only"),
    "llama-bias-all": lora("llama-bias", ["q_proj", "o_proj", "up_proj"], 4, 8, bias="all"),
    "llama-bias-lora-only": lora("llama-bias", ["k_proj", "down_proj"], 4, 8, bias="lora_only"),
    "gqa-lora-bias": lora("llama-gqa", ALL, 4, 8, lora_bias=True),
    "llama-bias-lora-bias": lora("llama-bias", ["q_proj", "down_proj"], 4, 8, lora_bias=True),
    "gqa-fan-in": lora("llama-gqa", ["q_proj", "v_proj"], 4, 8, tamper="fan_in_fan_out"),
    # full tensors
    "llama2-save-head": lora("llama2", ["q_proj"], 4, 8, modules_to_save=["lm_head"]),
    "llama2-save-embed": lora("llama2", ["q_proj"], 4, 8, modules_to_save=["embed_tokens"]),
    "llama2-save-norm": lora("llama2", ["q_proj"], 4, 8, modules_to_save=["norm"]),
    "llama2-save-layer-norms": lora("llama2", ["v_proj"], 4, 8, modules_to_save=[
        "input_layernorm", "post_attention_layernorm"]),
    "llama2-save-all": lora("llama2", ALL, 2, 4, modules_to_save=["embed_tokens", "lm_head", "model.norm"]),
    "gqa-save-embed-tied": lora("llama-gqa", ["q_proj"], 4, 8, modules_to_save=["embed_tokens"]),
    "gqa-save-head-tied": lora("llama-gqa", ["q_proj"], 4, 8, modules_to_save=["lm_head"]),
    "qwen3-save-qk-norm": lora("qwen3", ["v_proj"], 4, 8, modules_to_save=["q_norm", "k_norm"]),
    "llama2-resized": lora("llama2", ["q_proj", "v_proj"], 4, 8, vocab=101, modules_to_save=[
        "embed_tokens", "lm_head"]),
    "gqa-resized-tied": lora("llama-gqa", ["q_proj", "v_proj"], 4, 8, vocab=99, modules_to_save=[
        "embed_tokens", "lm_head"]),
    "llama2-tokens": lora("llama2", ["q_proj"], 4, 8, trainable_token_indices=[3, 7, 40, 95]),
    "llama2-tokens-both": lora("llama2", ["q_proj"], 4, 8, trainable_token_indices={
        "embed_tokens": [3, 7, 40], "lm_head": [5, 11, 60, 61]}),
    "gqa-tokens-tied": lora("llama-gqa", ["q_proj"], 4, 8, trainable_token_indices=[3, 7, 40, 95]),
    # added tokens, as PEFT saves them where it knows that the vocabulary grew
    "llama2-added-head": lora("llama2", ["q_proj"], 4, 8, vocab=101, layers=True, modules_to_save=["lm_head"]),
    "gqa-added-embed": lora("llama-gqa", ["q_proj"], 4, 8, vocab=99, layers=True, modules_to_save=["embed_tokens"]),
    "gqa-added-both": lora("llama-gqa", ["q_proj"], 4, 8, vocab=99, layers=True, modules_to_save=[
        "embed_tokens", "lm_head"]),
    "gqa-added-tokens": lora("llama-gqa", ["q_proj"], 4, 8, vocab=99, layers=True,
                             trainable_token_indices=[98, 96, 97, 5]),
    # embedding and head of a tied model changed as one
    "gqa-tied-pair": lora("llama-gqa", ["lm_head", "q_proj"], 4, 8, ensure_weight_tying=True),
    "gqa-tied-save": lora("llama-gqa", ["q_proj"], 4, 8, ensure_weight_tying=True, modules_to_save=["embed_tokens"]),
    # other number formats, and what a GGUF adapter can hold beside pairs
    "gqa-f64": lora("llama-gqa", ["v_proj", "up_proj"], 4, 8, store="float64"),
    "gqa-save-norms": lora("llama-gqa", ["v_proj"], 4, 8, modules_to_save=["norm"]),
    # activated LoRA
    "gqa-alora": lora("llama-gqa", QKVO, 8, 16, alora_invocation_tokens=[5, 17, 9], task_type="CAUSAL_LM"),
    # the same split adapter, and its twin with fused names as some tools write it
    "qwen2-split": lora("qwen2", ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"], 4, 8, tamper="share_a"),
}
# Fused twins are written from the split adapter: one A, B stacked in the order q,k,v and gate,up.
FUSED = {"qwen2-fused": "qwen2-split"}
# Adapters with pairs for single experts, as PEFT wrote them while experts were modules: base and target_modules.
SINGLE_EXPERTS = {
    "qwen3-moe-single": ("qwen3-moe-every", ["down_proj", "gate", "gate_proj", "k_proj", "up_proj"]),
    "mixtral-single": ("mixtral", ["gate", "q_proj", "v_proj", "w1", "w2", "w3"]),
}
# Twins whose tensors are named as in the state of a model: "lora_A.NAME.weight".
NAMED = {"gqa-named": "gqa-lora-bias", "llama2-named": "llama2-embed-head", "gqa-added-named": "gqa-added-both",
         "llama2-tokens-named": "llama2-tokens-both"}
# Twins whose list of targets was made for other models as well.
MORE_TARGETS = {"gqa-more-targets": "gqa-qv-r8"}
# A twin as Tinker writes it.
TINKER = {"llama2-unembed": "llama2-lm-head"}
TWINS = NAMED | MORE_TARGETS | TINKER
# A twin with the few keys that adapters made by early PEFT versions have.
MINIMAL = {"gqa-minimal": "gqa-qv-r8"}
MINIMAL_KEYS = ("base_model_name_or_path", "bias", "fan_in_fan_out", "inference_mode", "lora_alpha", "lora_dropout",
                "modules_to_save", "peft_type", "r", "target_modules", "task_type")
