# SPDX-License-Identifier: Apache-2.0
"""Which requests have golden values: (name, model, [(adapter, scale)], prompt lengths, options)."""
from adapter_specs import FUSED, MINIMAL, SINGLE_EXPERTS, SPECS as ADAPTER_SPECS, TWINS
from gguf_specs import GGUF_ADAPTERS, GGUF_MODELS
from model_specs import SPECS as MODEL_SPECS
from quant_specs import QUANT_MODELS

SHORT_TOO = ("gqa-qv-r8", "gqa-all-r16", "gqa-rank-pattern", "llama2-resized", "gqa-tokens-tied", "qwen3-all-r4")
INVOCATION = ADAPTER_SPECS["gqa-alora"]["alora_invocation_tokens"]


def is_mixture(name):
    return any(part in name for part in ("moe", "mixtral", "gpt-oss"))


def lengths_of(model):
    if model.startswith("rope-"):
        return (90,) if model in ("rope-llama3-new", "rope-yarn-factor", "rope-yarn-mscale") else (24, 90)
    if "window" in model or model == "phi3":
        return (12, 40, 57)
    if "-vl" in model or model in ("mistral3", "gemma3-vision", "qwen3_5-vision"):
        return (33,)
    if model == "phi3-short":
        return (8, 16)
    if model in ("qwen3_5", "qwen3_5-types"):
        return (8, 50)  # with what follows more than a chunk of the reference, which rounds more than others
    if model.startswith("dtype") or model == "sharded":
        return (33,)
    if is_mixture(model):
        return (8, 20)
    return (8, 21, 60) if model == "llama-gqa" else (8, 60)


def base_cases():
    for model in MODEL_SPECS:
        yield model, model, [], lengths_of(model), {}


def adapter_lengths(name, spec):
    if spec["base"].startswith("rope-"):
        return (90,)
    if "window" in name:
        return (40,)
    if is_mixture(name):
        return (12,)
    return (9, 34) if name in SHORT_TOO else (34,)


def adapter_cases():
    for name, spec in ADAPTER_SPECS.items():
        if name != "gqa-alora":
            yield name, spec["base"], [(name, 1.0)], adapter_lengths(name, spec), {}
    for name, (base, _) in SINGLE_EXPERTS.items():
        yield name, base, [(name, 1.0)], (12,), {}
    for name, source in MINIMAL.items():
        yield name, ADAPTER_SPECS[source]["base"], [(name, 1.0)], (34,), {}
    for name, source in (FUSED | TWINS).items():
        yield name, ADAPTER_SPECS[source]["base"], [(name, 1.0)], (34,), {"reference": [source]}


def scaled_cases():
    gqa = "llama-gqa"
    yield "scale-half", gqa, [("gqa-all-r16", 0.5)], (15, 40), {}
    yield "scale-double", gqa, [("gqa-qv-r8", 2.0)], (15,), {}
    yield "scale-zero", gqa, [("gqa-qv-r8", 0.0)], (15,), {}
    yield "scale-lora-bias", gqa, [("gqa-lora-bias", 0.5)], (15,), {}
    yield "scale-save-norm", "llama2", [("llama2-save-norm", 0.5)], (15,), {}
    yield "scale-embed", "llama2", [("llama2-embed-head", 0.25)], (15,), {}
    yield "sum-two", gqa, [("gqa-qv-r8", 0.7), ("gqa-all-r16", 0.4)], (15, 40), {}
    yield "sum-minus", gqa, [("gqa-rslora", 1.0), ("gqa-regex", -0.5)], (15,), {}
    yield "sum-three", gqa, [("gqa-rank-pattern", 0.5), ("gqa-qv-r8", 0.25), ("gqa-head-tied", 1.0)], (15,), {}
    yield "sum-embed", "llama2", [("llama2-embed-head", 1.0), ("llama2-lm-head", 0.5)], (15,), {}


def alora_cases():
    one, two = dict(invocation_at=(20,)), dict(invocation_at=(6, 27))
    first, last = dict(invocation_at=(0,)), dict(invocation_at=(37,))
    broken = dict(invocation_at=(12,), broken_at=(30,))  # a later prefix of the invocation does not count
    for name, options in (("none", {}), ("once", one), ("twice", two), ("start", first), ("end", last),
                          ("broken", broken)):
        yield f"alora-{name}", "llama-gqa", [("gqa-alora", 1.0)], (40,), options
    yield "alora-scaled", "llama-gqa", [("gqa-alora", 0.5)], (40,), one
    yield "alora-sum", "llama-gqa", [("gqa-alora", 1.0), ("gqa-qv-r8", 0.5)], (40,), one


def gguf_cases():
    for name in GGUF_MODELS:
        yield name, name, [], (90,) if "rope" in name else (12,) if is_mixture(name) else (40,), {}
    for name, spec in GGUF_ADAPTERS.items():
        yield name, spec["base"], [(name, 1.0)], spec.get("lengths", (34,)), spec.get("options", {})


def mixed_format_cases():
    """A PEFT adapter on a GGUF base and the other way round, on quantised weights too."""
    yield "peft-on-gguf", "gguf-llama-f16", [("gqa-all-r16", 1.0)], (34,), {}
    yield "peft-on-q8_0", "gguf-llama-q8_0", [("gqa-all-r16", 1.0)], (34,), {}
    yield "gguf-lora-on-q8_0", "gguf-llama-q8_0", [("gguf-lora-f32", 1.0)], (34,), {}
    yield "gguf-lora-on-peft-base", "llama-gqa", [("gguf-lora-f16", 1.0)], (34,), {}
    yield "gguf-lora-on-glm4", "glm4", [("gguf-lora-glm4", 1.0)], (34,), {}
    yield "gguf-lora-on-phi3", "phi3", [("gguf-lora-phi3", 0.5)], (34,), {}
    yield "gguf-lora-on-starcoder2", "starcoder2", [("gguf-lora-starcoder2", 1.0)], (34,), {}
    yield "peft-on-gguf-glm", "gguf-glm-q8_0", [("glm-qk-bias", 1.0)], (34,), {}
    yield "peft-on-gguf-phi3", "gguf-phi3-f16", [("phi3-qkv-bias", 1.0)], (34,), {}
    yield "peft-on-gguf-starcoder2", "gguf-starcoder2-f16", [("starcoder2-all-r4", 1.0)], (34,), {}
    # heads in another order
    yield "peft-on-gguf-qwen3_5", "gguf-qwen3_5-f16", [("qwen3_5-linear", 1.0)], (34,), {}
    yield "gguf-lora-on-qwen3_5", "qwen3_5", [("gguf-lora-qwen3_5", 1.0)], (34,), {}
    # norms by 1 + w, which PEFT files hold less one and GGUF files do not
    yield "peft-norms-on-gguf", "gguf-gemma2-f16", [("gemma2-save-norms", 1.0)], (34,), {}
    yield "gguf-norms-on-peft-base", "gemma2", [("gguf-lora-gemma2", 1.0)], (34,), {}
    yield "peft-on-gguf-gpt-oss", "gguf-gpt-oss-f16", [("gpt-oss-experts", 1.0)], (12,), {}
    yield "gguf-lora-sum", "gguf-llama-f16", [("gguf-lora-f32", 0.5), ("gqa-all-r16", 0.5)], (34,), {}


def quantised_cases():
    """Quantised checkpoints alone and with PEFT adapters, whose deltas meet inputs that nothing rounds."""
    for name in QUANT_MODELS:
        yield name, name, [], (40,), {}
    for name in ("gptq-sym", "gptq-asym", "gptq-8bit", "awq", "ct-int4-asym", "ct-int8"):
        yield f"{name}-lora", name, [("gqa-all-r16", 1.0)], (34,), {}
    yield "gpt-oss-mxfp4-lora", "gpt-oss-mxfp4", [("gpt-oss-experts", 1.0)], (20,), {}
    yield "ct-fp8-lora", "ct-fp8", [("fp8-all-r4", 1.0)], (34,), {}


def embedding_cases():
    for name, model, adapters in (("llama-gqa", "llama-gqa", []), ("qwen3", "qwen3", []), ("llama2", "llama2", []),
                                  ("gqa-all-r16", "llama-gqa", [("gqa-all-r16", 1.0)]),
                                  ("llama2-save-norm", "llama2", [("llama2-save-norm", 1.0)])):
        yield f"embedding-{name}", model, adapters, (11, 40), {}
