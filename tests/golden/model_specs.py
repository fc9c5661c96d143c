# SPDX-License-Identifier: Apache-2.0
"""The tiny models: name -> what its config.json says (the widely used older form)."""

VOCAB = 96


def llama(hidden, heads, kv, ffn, layers=2, **more):
    return dict(
        architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu",
        hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv,
        intermediate_size=ffn, num_hidden_layers=layers, vocab_size=VOCAB,
        max_position_embeddings=128, rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None,
        attention_bias=False, mlp_bias=False, tie_word_embeddings=False,
        bos_token_id=1, eos_token_id=2, torch_dtype="bfloat16") | more


def small(**more):
    return llama(32, 2, 1, 48, **more)


def mistral(hidden, heads, kv, ffn, **more):
    spec = llama(hidden, heads, kv, ffn, **more)
    spec.update(architectures=["MistralForCausalLM"], model_type="mistral")
    for key in ("attention_bias", "mlp_bias", "rope_scaling"):
        del spec[key]
    return spec


def qwen(kind, hidden, heads, kv, ffn, **more):
    spec = llama(hidden, heads, kv, ffn, **more)
    spec.update(architectures=[kind.capitalize() + "ForCausalLM"], model_type=kind, rms_norm_eps=1e-6,
                rope_theta=1000000.0, bos_token_id=None)
    for key in ("attention_bias", "mlp_bias", "rope_scaling"):
        del spec[key]
    return spec


def granite(hidden, heads, kv, ffn, **more):
    spec = llama(hidden, heads, kv, ffn, tie_word_embeddings=True)
    spec.update(architectures=["GraniteForCausalLM"], model_type="granite", rms_norm_eps=1e-6,
                embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.7, logits_scaling=2.5)
    return spec | more


def smollm3(hidden, heads, kv, ffn, **more):
    spec = llama(hidden, heads, kv, ffn, **more)
    spec.update(architectures=["SmolLM3ForCausalLM"], model_type="smollm3", rms_norm_eps=1e-6, rope_theta=500.0,
                use_sliding_window=False, sliding_window=None, pad_token_id=0)
    return spec


def olmo2(hidden, heads, kv, ffn, **more):
    spec = llama(hidden, heads, kv, ffn, **more)
    spec.update(architectures=["Olmo2ForCausalLM"], model_type="olmo2", rope_theta=500.0, pad_token_id=0)
    del spec["mlp_bias"]
    return spec


def olmo3(hidden, heads, kv, ffn, **more):
    """Every fourth layer is full; yarn is of these alone."""
    spec = olmo2(hidden, heads, kv, ffn, layers=4)
    spec.update(architectures=["Olmo3ForCausalLM"], model_type="olmo3", rope_theta=500000.0, sliding_window=16)
    return spec | more


def gemma(hidden, heads, kv, ffn, **more):
    spec = llama(hidden, heads, kv, ffn, **more)
    spec.update(architectures=["GemmaForCausalLM"], model_type="gemma", rms_norm_eps=1e-6, pad_token_id=0,
                hidden_act="gelu", hidden_activation=None, head_dim=more.get("head_dim", hidden // heads))
    for key in ("mlp_bias", "rope_scaling", "tie_word_embeddings"):  # tied, although files do not say so
        del spec[key]
    return spec


def gemma2(hidden, heads, kv, ffn, layers=2, **more):
    spec = gemma(hidden, heads, kv, ffn, layers=layers, **more)
    spec.update(architectures=["Gemma2ForCausalLM"], model_type="gemma2", hidden_activation="gelu_pytorch_tanh",
                query_pre_attn_scalar=20, attn_logit_softcapping=2.0, final_logit_softcapping=5.0, sliding_window=16)
    del spec["hidden_act"]
    return spec | more


def gemma3(hidden, heads, kv, ffn, layers=2, **more):
    spec = gemma2(hidden, heads, kv, ffn, layers=layers, **more)
    spec.update(architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", attn_logit_softcapping=None,
                final_logit_softcapping=None, rope_theta=500.0, rope_local_base_freq=100.0)
    return spec | more


def phi3(hidden, heads, kv, ffn, **more):
    spec = llama(hidden, heads, kv, ffn, rope_theta=500.0, sliding_window=None, pad_token_id=0)
    spec.update(architectures=["Phi3ForCausalLM"], model_type="phi3")
    for key in ("attention_bias", "mlp_bias"):
        del spec[key]
    return spec | more


def glm(kind, hidden, heads, kv, ffn, **more):
    spec = llama(hidden, heads, kv, ffn, rope_theta=500.0, head_dim=16, partial_rotary_factor=0.5, pad_token_id=0,
                 attention_bias=True)
    spec.update(architectures=[kind.capitalize() + "ForCausalLM"], model_type=kind)
    for key in ("mlp_bias", "rope_scaling"):
        del spec[key]
    return spec | more


def starcoder2(hidden, heads, kv, ffn, **more):
    spec = llama(hidden, heads, kv, ffn, rope_theta=500.0)
    spec.update(architectures=["Starcoder2ForCausalLM"], model_type="starcoder2", hidden_act="gelu_pytorch_tanh",
                norm_epsilon=0.01, use_bias=True, tie_word_embeddings=True, sliding_window=None)
    for key in ("mlp_bias", "attention_bias", "rms_norm_eps", "rope_scaling"):
        del spec[key]
    return spec | more


def wrapper(class_name, kind, text, vision, **more):
    """A text model inside of one that reads images."""
    text = {k: v for k, v in text.items() if k not in ("architectures", "torch_dtype")}
    return dict(architectures=[class_name], model_type=kind, text_config=text, vision_config=vision,
                tie_word_embeddings=text.get("tie_word_embeddings", True), torch_dtype="bfloat16") | more


def qwen_vl(kind, **more):
    text = qwen(kind.split("_")[0], 32, 4, 2, 48)
    return text | dict(model_type=kind + "_text", rope_theta=500.0,
                       rope_scaling=dict(type="mrope" if kind == "qwen2_vl" else "default", mrope_section=[1, 1, 2])) | more


QWEN_VISION = dict(depth=1, embed_dim=16, hidden_size=32, num_heads=2, mlp_ratio=2, patch_size=4, in_channels=3)
QWEN3_VISION = dict(depth=1, hidden_size=16, intermediate_size=32, num_heads=2, patch_size=4, in_channels=3,
                    out_hidden_size=32, num_position_embeddings=16, deepstack_visual_indexes=[0])
QWEN2_5_VISION = dict(depth=1, hidden_size=16, intermediate_size=32, num_heads=2, patch_size=4, in_channels=3,
                      out_hidden_size=32, fullatt_block_indexes=[0], window_size=16)
SIGLIP = dict(model_type="siglip_vision_model", hidden_size=16, intermediate_size=32, num_hidden_layers=1,
              num_attention_heads=2, image_size=16, patch_size=4)
PIXTRAL = dict(model_type="pixtral", hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
               image_size=16, patch_size=4, head_dim=8)

def qwen_moe(kind, hidden, heads, kv, ffn, experts, used, width, **more):
    spec = qwen("qwen2", hidden, heads, kv, ffn, use_sliding_window=False)
    spec.update(architectures=[f"{kind.capitalize()}MoeForCausalLM"], model_type=f"{kind}_moe", num_experts=experts,
                num_experts_per_tok=used, moe_intermediate_size=width, decoder_sparse_step=1, mlp_only_layers=[],
                output_router_logits=False, router_aux_loss_coef=0.001)
    return spec | more


def mixtral(hidden, heads, kv, ffn, experts, used, **more):
    spec = mistral(hidden, heads, kv, ffn, sliding_window=None)
    spec.update(architectures=["MixtralForCausalLM"], model_type="mixtral", num_local_experts=experts,
                num_experts_per_tok=used, output_router_logits=False, router_aux_loss_coef=0.02)
    return spec | more


def gpt_oss(hidden, heads, kv, width, experts, used, **more):
    """Layers slide and are full in turn; the keys that OpenAI's files have, beside those that are read."""
    spec = llama(hidden, heads, kv, width, rope_theta=500.0, rope_scaling=YARN | dict(truncate=False),
                 attention_bias=True, pad_token_id=0)
    spec.update(architectures=["GptOssForCausalLM"], model_type="gpt_oss", head_dim=16, num_local_experts=experts,
                num_experts_per_tok=used, experts_per_token=used, sliding_window=8, swiglu_limit=7.0,
                initial_context_length=32, output_router_logits=False, router_aux_loss_coef=0.9)
    del spec["mlp_bias"]
    return spec | more


def qwen3_5(hidden, heads, kv, ffn, layers=4, **more):
    """Every fourth layer is full; the others have linear attention."""
    spec = qwen("qwen3", hidden, heads, kv, ffn, layers=layers, head_dim=16)
    spec.update(architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text", rope_theta=500.0,
                linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12,
                linear_conv_kernel_dim=4)
    return spec | more


def qwen3_5_moe(hidden, heads, kv, experts, used, width, **more):
    spec = qwen3_5(hidden, heads, kv, 0)
    del spec["intermediate_size"]
    spec.update(architectures=["Qwen3_5MoeForCausalLM"], model_type="qwen3_5_moe_text", num_experts=experts,
                num_experts_per_tok=used, moe_intermediate_size=width, shared_expert_intermediate_size=40)
    return spec | more


QWEN3_5_VISION = dict(depth=1, hidden_size=16, intermediate_size=32, num_heads=2, patch_size=4, in_channels=3,
                      out_hidden_size=32, num_position_embeddings=16)
LLAMA3_ROPE = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=32)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=2.0, beta_slow=0.25)
LONGROPE = dict(type="longrope", short_factor=[1.0, 1.5, 1.0, 2.5, 1.25, 3.0],
                long_factor=[1.5, 4.0, 2.0, 9.0, 5.0, 17.0])
PHI4 = dict(partial_rotary_factor=0.75, rope_scaling=LONGROPE, original_max_position_embeddings=32,
            tie_word_embeddings=True)
WINDOW = dict(use_sliding_window=True, sliding_window=16, max_window_layers=1)

SPECS = {
    # attention shapes and heads
    "llama2": llama(48, 4, 4, 80),
    "llama-gqa": llama(64, 4, 2, 96, tie_word_embeddings=True),
    "llama-mqa": llama(32, 4, 1, 64),
    "llama-bias": llama(32, 4, 2, 48, attention_bias=True, mlp_bias=True),
    # rope
    "rope-llama3": small(rope_scaling=LLAMA3_ROPE, rope_theta=500.0),
    "rope-llama3-new": small(rope_scaling=LLAMA3_ROPE, rope_theta=500.0),
    "rope-linear": small(rope_scaling=dict(type="linear", factor=4.0)),
    "rope-yarn": small(rope_scaling=YARN, rope_theta=500.0),
    "rope-yarn-factor": small(rope_scaling=YARN | dict(attention_factor=0.75), rope_theta=500.0),
    "rope-yarn-mscale": small(
        rope_scaling=YARN | dict(mscale=1.5, mscale_all_dim=0.5, truncate=False), rope_theta=500.0),
    "rope-dynamic": small(rope_scaling=dict(type="dynamic", factor=2.0), max_position_embeddings=32),
    # other families
    "mistral-window": mistral(32, 4, 2, 64, sliding_window=16),
    "mistral-full": mistral(32, 4, 2, 64, sliding_window=None, head_dim=12),
    "qwen2": qwen("qwen2", 32, 4, 2, 64, tie_word_embeddings=True, use_sliding_window=False,
                  sliding_window=8, max_window_layers=0),  # the window is off although a size is given
    "qwen2-untied": qwen("qwen2", 32, 4, 2, 64, use_sliding_window=False),
    "qwen2-window": qwen("qwen2", 32, 4, 2, 48, layers=3, **WINDOW),
    "qwen3": qwen("qwen3", 32, 4, 2, 64, head_dim=16, tie_word_embeddings=True, attention_bias=False),
    "granite": granite(32, 4, 2, 64),
    "olmo2": olmo2(32, 4, 2, 64),
    "smollm3": smollm3(32, 4, 2, 48, layers=3, no_rope_layers=[1, 0, 1]),
    "olmo3": olmo3(32, 4, 2, 48, rope_scaling=YARN),
    "gemma": gemma(32, 4, 1, 64, head_dim=12),
    "gemma2": gemma2(32, 4, 2, 48, layers=3, head_dim=12),
    "gemma3": gemma3(32, 4, 2, 48, layers=3, head_dim=16, sliding_window_pattern=3,
                     rope_scaling=dict(rope_type="linear", factor=4.0)),
    "gemma3-new": gemma3(36, 2, 1, 48, layers=2, final_logit_softcapping=4.0,
                         layer_types=["full_attention", "sliding_attention"]),
    "phi3": phi3(32, 4, 2, 48, sliding_window=16, partial_rotary_factor=0.5),
    "phi3-long": phi3(64, 4, 2, 48, **PHI4),
    "phi3-short": phi3(64, 4, 2, 48, **PHI4),
    "glm": glm("glm", 32, 4, 2, 48),
    "glm4": glm("glm4", 32, 4, 2, 48),
    "starcoder2": starcoder2(32, 4, 2, 48, sliding_window=16),
    # text models inside of others
    "mistral3": wrapper("Mistral3ForConditionalGeneration", "mistral3",
                        mistral(32, 4, 2, 48, sliding_window=None, head_dim=8), PIXTRAL, image_token_index=95,
                        spatial_merge_size=2, vision_feature_layer=-1),
    "qwen2-vl": wrapper("Qwen2VLForConditionalGeneration", "qwen2_vl", qwen_vl("qwen2_vl"), QWEN_VISION,
                        image_token_id=95, video_token_id=94, vision_start_token_id=93, vision_end_token_id=92),
    "qwen2_5-vl": wrapper("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", qwen_vl("qwen2_5_vl"), QWEN2_5_VISION,
                          image_token_id=95, video_token_id=94, vision_start_token_id=93, vision_end_token_id=92),
    "gemma3-vision": wrapper("Gemma3ForConditionalGeneration", "gemma3",
                             gemma3(32, 4, 2, 48, layers=3, head_dim=16, sliding_window_pattern=3), SIGLIP,
                             image_token_index=95, boi_token_index=94, eoi_token_index=93, mm_tokens_per_image=4),
    "qwen3-vl": wrapper("Qwen3VLForConditionalGeneration", "qwen3_vl",
                        qwen_vl("qwen3_vl", head_dim=8, tie_word_embeddings=True, attention_bias=False), QWEN3_VISION,
                        image_token_id=95, video_token_id=94, vision_start_token_id=93, vision_end_token_id=92),
    # linear attention between full one
    "qwen3_5": qwen3_5(32, 4, 2, 48),
    "qwen3_5-types": qwen3_5(32, 2, 1, 48, layers=3, linear_num_value_heads=2, linear_key_head_dim=16,
                             linear_value_head_dim=8, linear_conv_kernel_dim=3,
                             partial_rotary_factor=0.5, tie_word_embeddings=True,
                             layer_types=["linear_attention", "full_attention", "linear_attention"]),
    "qwen3_5-vision": wrapper("Qwen3_5ForConditionalGeneration", "qwen3_5", qwen3_5(32, 4, 2, 48), QWEN3_5_VISION,
                              image_token_id=95, video_token_id=94, vision_start_token_id=93, vision_end_token_id=92),
    "qwen3_5-moe": qwen3_5_moe(32, 4, 2, 6, 2, 24),
    "qwen3_5-moe-vision": wrapper("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", qwen3_5_moe(32, 4, 2, 4, 2, 16),
                                  QWEN3_5_VISION, image_token_id=95, video_token_id=94, vision_start_token_id=93,
                                  vision_end_token_id=92),
    # mixtures of experts
    "qwen3-moe": qwen_moe("qwen3", 32, 4, 2, 48, 6, 2, 24, num_hidden_layers=3, head_dim=16, norm_topk_prob=True,
                          mlp_only_layers=[1], attention_bias=False),
    "qwen3-moe-stacked": qwen_moe("qwen3", 32, 4, 2, 48, 6, 2, 24, num_hidden_layers=3, head_dim=16, norm_topk_prob=True,
                                  mlp_only_layers=[1], attention_bias=False),
    "qwen3-moe-every": qwen_moe("qwen3", 32, 2, 2, 48, 4, 2, 16, head_dim=16, norm_topk_prob=False),
    "qwen2-moe": qwen_moe("qwen2", 32, 4, 2, 48, 5, 3, 24, norm_topk_prob=False,
                          shared_expert_intermediate_size=40),
    "mixtral": mixtral(32, 4, 2, 48, 4, 2),
    "gpt-oss": gpt_oss(64, 4, 2, 32, 4, 2),
    # files
    "sharded": llama(32, 4, 2, 64),
    "dtype-f32": small(torch_dtype="float32"),
    "dtype-f16": small(torch_dtype="float16"),
    "dtype-bf16": small(torch_dtype="bfloat16"),
}

# Models that share the weights of another, to show that only the config or the storage differs.
SAME_WEIGHTS = {"phi3-short": "phi3-long", "qwen3-moe-stacked": "qwen3-moe", "rope-llama3-new": "rope-llama3",
                "dtype-f16": "dtype-f32", "dtype-bf16": "dtype-f32"}
# config.json as transformers 5 writes it (rope_parameters, dtype, layer_types) instead of the older form.
NEW_FORM = {"rope-llama3-new", "qwen2-window", "gemma3-new", "qwen3-vl", "qwen3_5-types", "qwen3_5-vision",
            "qwen3_5-moe-vision"}
# Keys of the text model beside the others, as old files of Qwen have them.
FLAT = {"qwen2-vl"}
# Whose norms multiply with 1 + w, but for those of linear attention.
PLUS_ONE = ("gemma", "gemma2", "gemma3_text", "qwen3_5_text", "qwen3_5", "qwen3_5_moe_text", "qwen3_5_moe")


def is_plus_one(model_type, name):
    return model_type in PLUS_ONE and name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight")


# All experts of a layer in one tensor, as newer files have them, not one by one.
STACKED = {"qwen3-moe-stacked"}
# Served with this --max-model-len; the dynamic NTK factor follows from it.
MAX_MODEL_LEN = {"rope-dynamic": 128, "phi3-short": 32}
