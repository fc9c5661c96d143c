# SPDX-License-Identifier: Apache-2.0
"""Recomputes every case from the committed files in float64, without transformers and PEFT, and compares.

It keeps the reference honest (a quirk of how it was driven would show here) and says in 300 lines what a case means.
"""
import json

import numpy as np
from safetensors.numpy import load_file

from common import GOLDEN
from model_specs import LONGROPE
from plain_files import Adapter, read_model
from plain_model import Plain

TOLERANCE = 2e-5  # relative to the largest logit; the reference is float32


NOTICED = 1e-2  # a wrong detail changes a case at least this much
# case -> a wrong way to read its config, to show that the case would notice
MISTAKES = [
    ("rope-llama3.90", {"rope": {"rope_type": "default"}}),
    ("rope-linear.90", {"rope": {"rope_type": "default"}}),
    ("rope-yarn.90", {"rope": {"rope_type": "linear"}}),
    ("rope-yarn.24", {"rope": {"beta_slow": None}}),
    ("rope-yarn-factor.90", {"rope": {"attention_factor": None}}),
    ("rope-yarn-mscale.90", {"rope": {"truncate": True}}),
    ("rope-yarn-mscale.90", {"rope": {"mscale": None}}),
    ("rope-dynamic.24", {"rope": {"rope_type": "default"}}),
    ("gguf-rope-freqs.90", {"rope": {"divisors": None}}),
    ("gguf-rope-yarn.90", {"rope": {"beta_fast": None}}),
    ("gguf-rope-linear.90", {"rope": {"factor": 2.0}}),
    ("mistral-window.40", {"sliding_window": 17}),
    ("mistral-window.57", {"sliding_window": 15}),
    ("qwen2-window.40", {"max_window_layers": 0}),
    ("qwen2-window.57", {"use_sliding_window": False}),
    ("qwen2.60", {"use_sliding_window": True}),
    ("qwen3.60", {"rms_norm_eps": 1e-2}),
    ("granite.60", {"embedding_multiplier": 1}),
    ("granite.60", {"residual_multiplier": 1}),
    ("granite.60", {"attention_multiplier": 0.35}),
    ("granite.60", {"logits_scaling": 1}),
    ("gguf-granite-f16.40", {"residual_multiplier": 1}),
    ("olmo2.60", {"rms_norm_eps": 1e-2}),
    ("phi3.40", {"sliding_window": 17}),
    ("phi3.40", {"partial_rotary_factor": 1}),
    ("phi3-long.60", {"rope": {"attention_factor": 1}}),
    ("phi3-long.60", {"rope": {"original_max_position_embeddings": 128}}),
    ("phi3-short.8", {"rope": {"short_factor": LONGROPE["long_factor"]}}),
    ("gguf-phi3-q8_0.40", {"rope": {"rope_type": "default"}}),
    ("glm.60", {"partial_rotary_factor": 1}),
    ("glm4.60", {"partial_rotary_factor": 0.25}),
    ("glm4.60", {"model_type": "llama"}),
    ("gguf-glm4-f16.40", {"partial_rotary_factor": 1}),
    ("gguf-glm-q8_0.40", {"model_type": "llama"}),
    ("starcoder2.60", {"norm_epsilon": 1.0}),
    ("starcoder2.60", {"sliding_window": None}),
    ("olmo3.60", {"rope": {"rope_type": "default"}}),
    ("olmo3.60", {"sliding_rope": {"rope_theta": 10000.0}}),
    ("olmo3.60", {"sliding_window": 15}),
    ("gguf-olmo3-f16.40", {"rope": {"attention_factor": None}}),
    ("gguf-olmo3-f16.40", {"sliding_window": 17}),
    ("gemma.60", {"activation": "silu"}),
    ("gemma.60", {"embedding_multiplier": 1}),
    ("gemma.60", {"query_pre_attn_scalar": 8}),
    ("gemma2.60", {"attn_logit_softcapping": None}),
    ("gemma2.60", {"final_logit_softcapping": None}),
    ("gemma2.60", {"query_pre_attn_scalar": 12}),
    ("gemma2.60", {"sliding_window": 17}),
    ("gemma2.60", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
    ("gguf-gemma2-f16.40", {"attn_logit_softcapping": None}),
    ("gguf-gemma2-f16.40", {"embedding_multiplier": 1}),
    ("gemma3.60", {"rope": {"factor": 1.0}}),
    ("gemma3.60", {"sliding_rope": {"rope_theta": 500.0}}),
    ("gemma3.60", {"sliding_rope": {"rope_type": "linear", "factor": 4.0}}),
    ("gemma3.60", {"sliding_window_pattern": 2}),
    ("gemma3-new.60", {"final_logit_softcapping": None}),
    ("gemma3-new.60", {"layer_types": ["sliding_attention", "full_attention"]}),
    ("gguf-gemma3-q8_0.40", {"sliding_rope": {"rope_theta": 1000.0}}),
    ("qwen3-moe.20", {"norm_topk_prob": False}),
    ("qwen3-moe.20", {"num_experts_per_tok": 3}),
    ("qwen3-moe.20", {"next_expert": 1}),
    ("qwen3-moe-experts.12", {"columns_together": True}),
    ("qwen2-moe-experts.12", {"columns_together": True}),
    ("gguf-qwen2-moe-f16.12", {"next_expert": 1}),
    ("gguf-mixtral-q4_0.12", {"norm_topk_prob": False}),
    ("gpt-oss.20", {"sinks": False}),
    ("gpt-oss.20", {"swiglu_alpha": 1.0}),
    ("gpt-oss.20", {"swiglu_limit": 1e9}),
    ("gpt-oss.20", {"swiglu_limit": 6.5}),
    ("gpt-oss.20", {"up_plus": 0}),
    ("gpt-oss.20", {"norm_topk_prob": False}),
    ("gpt-oss.20", {"num_experts_per_tok": 3}),
    ("gpt-oss.20", {"sliding_window": 9}),
    ("gpt-oss.20", {"layer_types": ["full_attention", "sliding_attention"]}),
    ("gpt-oss.20", {"rope": {"truncate": True}}),
    ("gpt-oss.20", {"without_bias": "gate_proj"}),
    ("gpt-oss.20", {"without_bias": "up_proj"}),
    ("gpt-oss.20", {"without_bias": "down_proj"}),
    ("gpt-oss.20", {"without_bias": "mlp.gate"}),
    ("gpt-oss.20", {"without_bias": "o_proj"}),
    ("gpt-oss-mxfp4.40", {"swiglu_limit": 7.0}),
    ("gpt-oss-mxfp4.40", {"sinks": False}),
    ("gguf-gpt-oss-f16.12", {"sinks": False}),
    ("gguf-gpt-oss-f16.12", {"rope": {"truncate": True}}),
    ("gguf-gpt-oss-mxfp4.12", {"swiglu_limit": 1e9}),
    ("gguf-gpt-oss-mxfp4.12", {"without_bias": "down_proj"}),
    ("gguf-gpt-oss-mxfp4.12", {"sliding_window": 9}),
    ("gpt-oss-experts.12", {"columns_together": True}),
    ("gpt-oss-experts.12", {"rows_together": True}),
    ("gpt-oss-mxfp4-lora.20", {"rows_together": True}),
    ("qwen2-moe.20", {"norm_topk_prob": True}),
    ("qwen2-moe.20", {"num_experts_per_tok": 2}),
    ("mixtral.20", {"num_experts_per_tok": 1}),
    ("mixtral.20", {"norm_topk_prob": False}),
    ("qwen3_5.50", {"attn_output_gate": False}),
    ("qwen3_5.50", {"partial_rotary_factor": 0.5}),
    ("qwen3_5.50", {"conv": False}),
    ("qwen3_5.50", {"dt_bias": False}),
    ("qwen3_5.50", {"beta": False}),
    ("qwen3_5.50", {"tiled": True}),
    ("qwen3_5.50", {"unit_eps": 1.0}),
    ("qwen3_5.50", {"gated_plus_one": True}),
    ("qwen3_5.50", {"norms_less_one": True}),
    ("gguf-qwen3_5-f16.40", {"tiled": True}),
    ("gguf-qwen3_5-q8_0.40", {"conv": False}),
    ("qwen3_5-moe.20", {"norm_topk_prob": False}),
    ("qwen3_5-moe.20", {"num_experts_per_tok": 1}),
    ("qwen3_5-moe.20", {"conv": False}),
    ("qwen3_5-types.50", {"attn_output_gate": False}),
    ("qwen3_5-types.50", {"partial_rotary_factor": 0.25}),
    ("smollm3.60", {"no_rope_layers": [1, 1, 1]}),
    ("smollm3.60", {"no_rope_layers": [0, 0, 0]}),
]


def compare(case, mistake=None):
    config, weights = read_model(GOLDEN / case["model"])
    for key, value in (mistake or {}).items():
        config[key] = config[key] | value if isinstance(value, dict) else value
    adapters = [(Adapter(GOLDEN / a["path"], config, weights), a["scale"]) for a in case["adapters"]]
    model = Plain(config, weights, adapters, case.get("max_model_len", 0))
    want, prompt = load_file(GOLDEN / case["file"]), case["prompt"]
    if case["kind"] == "embedding":
        hidden = model.hidden(prompt, prompt)
        pairs = [(hidden[-1], want["hidden_last"]), (hidden.mean(0), want["hidden_mean"])]
    else:
        logits = model.logits(prompt + case["greedy"][:-1], prompt)
        rows = logits[len(prompt) - 1:]
        assert mistake or list(rows.argmax(-1)) == case["greedy"], case["name"]
        pairs = [(logits[case["logits_at"]], want["prompt_logits"]), (rows, want["greedy_logits"])]
    return max(np.abs(got - expected).max() / max(1, np.abs(expected).max()) for got, expected in pairs)


def main():
    cases = json.loads((GOLDEN / "cases.json").read_text())
    errors = {case["name"]: compare(case) for case in cases}
    worst = max(errors, key=errors.get)
    wrong = {name: error for name, error in errors.items() if not error < TOLERANCE}
    assert not wrong, f"differ: {wrong}"
    by_name = {case["name"]: case for case in cases}
    for name, mistake in MISTAKES:
        effect = compare(by_name[name], mistake)
        assert effect > NOTICED, f"{name} would not notice {mistake}: {effect:.1e}"
    print(f"{len(cases)} cases recomputed, largest relative error {errors[worst]:.1e} ({worst})")


if __name__ == "__main__":
    main()
