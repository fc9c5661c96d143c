# SPDX-License-Identifier: Apache-2.0
"""Writes models/NAME/{config.json,*.safetensors}: tiny seeded models in Hugging Face form."""
import math

import torch
from safetensors.torch import save_file

from common import (MODELS, clean_folder, load_model, model_class, quiet, randn, round_embed_scale, round_to,
                    write_json)
from model_specs import FLAT, NEW_FORM, SAME_WEIGHTS, SPECS, STACKED, is_plus_one

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def config_of(spec):
    from transformers import AutoConfig

    fields = {k: v for k, v in spec.items() if k not in ("architectures", "model_type", "torch_dtype")}
    if fields.get("rope_scaling") is None:
        fields.pop("rope_scaling", None)
    else:
        fields["rope_scaling"] = dict(fields["rope_scaling"])
    return AutoConfig.for_model(spec["model_type"], attn_implementation="eager", **fields)


def weight(seed_name, key, shape, tied, plus_one=False):
    """Values large enough that attention is sharp, positions matter and a wrong detail shows."""
    if key.endswith("norm.weight"):
        value = (0 if plus_one else 1) + randn((seed_name, key), shape, 0.2)
    elif key.endswith("bias"):
        value = randn((seed_name, key), shape, 0.3)
    elif key.endswith("A_log"):  # some heads forget at once, others hardly
        value = randn((seed_name, key), shape, 1.0) - 1
    elif key.endswith("sinks"):
        value = randn((seed_name, key), shape, 1.5)
    elif len(shape) < 2:
        value = randn((seed_name, key), shape, 0.3)
    elif "embed_tokens" in key:
        value = randn((seed_name, key), shape, 0.4 if tied else 1.0)
    else:
        gain = 3 if "mlp.gate.weight" in key or "mlp.router" in key else 2.5 if "lm_head" in key else 1.6 if ("q_proj" in key or "k_proj" in key) else 1.2
        if "gpt-oss" in seed_name and key.endswith("experts.gate_up_proj"):
            gain = 6  # so that the limit is met
        value = randn((seed_name, key), shape, gain / math.sqrt(shape[-1]))
    # Representable in bf16 and, since nothing is below its smallest normal number, in f16 too.
    value[value.abs() < 2.0 ** -14] = 0
    return round_to(value, torch.bfloat16)


def fill(model, seed_name):
    tied = model.config.tie_word_embeddings
    for key, value in model.named_parameters():
        value.copy_(weight(seed_name, key, value.shape, tied, is_plus_one(model.config.model_type, key)))


def build_from(spec):
    return model_class(spec["architectures"]).from_config(config_of(spec), dtype=torch.float32).eval()


def build(name):
    model = build_from(SPECS[name])
    fill(model, SAME_WEIGHTS.get(name, name))
    round_embed_scale(model, DTYPES[SPECS[name]["torch_dtype"]])
    return model


def save(name, model):
    folder = clean_folder(MODELS / name)
    spec = SPECS[name]
    model = model.to(DTYPES[spec["torch_dtype"]])
    model.save_pretrained(folder, max_shard_size="20KB" if name == "sharded" else "1GB")
    if name in STACKED:
        save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / "model.safetensors",
                  metadata={"format": "pt"})
    (folder / "generation_config.json").unlink(missing_ok=True)
    if name in FLAT:
        text = {k: v for k, v in spec["text_config"].items() if k != "model_type"}
        spec = text | {k: v for k, v in spec.items() if k != "text_config"}
    if name not in NEW_FORM:
        (folder / "config.json").unlink()
        write_json(folder / "config.json", {
            k: v for k, v in spec.items() if v is not None or k in ("sliding_window", "hidden_activation") or "softcap" in k})
    return folder


def main():
    quiet()
    ids = torch.arange(3, 83)[None] * 7 % 96
    for name in SPECS:
        model = build(name)
        before = model(ids).logits
        folder = save(name, model)
        loaded = load_model(folder)
        after = loaded(ids).logits
        assert torch.equal(before, after), f"{name}: what was written loads to something else"
        files = sorted(p.name for p in folder.iterdir())
        print(f"{name:18} {sum(p.stat().st_size for p in folder.iterdir()):8} bytes, logits up to "
              f"{after.abs().max():.1f}, {', '.join(files)}")


if __name__ == "__main__":
    main()
