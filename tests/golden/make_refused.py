# SPDX-License-Identifier: Apache-2.0
"""Writes refused/NAME/: adapters that must not load, and refused.json: which words the refusal must contain.

Each would load if it were not for the one thing it is named after. All are for models/llama-mqa.
"""
import json

import torch
from safetensors.torch import load_file, save_file

from common import MODELS, REFUSED, clean_folder, load_model, quiet, randn, write_json

BASE = "llama-mqa"
PREFIX = "base_model.model.model.layers.0.self_attn.q_proj.lora_"


def plain_config(**changes):
    from peft import LoraConfig

    config = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], layers_to_transform=[0], inference_mode=True)
    values = json.loads(json.dumps(config.to_dict(), default=sorted))
    return values | {"base_model_name_or_path": "golden/" + BASE} | changes


def plain_tensors():
    return {PREFIX + "A.weight": randn(("refused", "A"), (2, 32), 0.2),
            PREFIX + "B.weight": randn(("refused", "B"), (32, 2), 0.2)}


def write(name, config, tensors):
    folder = clean_folder(REFUSED / name)
    if config is not None:
        write_json(folder / "adapter_config.json", config)
    if tensors is not None:
        save_file({k: v.to(torch.bfloat16).contiguous() for k, v in tensors.items()},
                  folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


# One key with a value that is not PEFT's default and that is not applied: name -> (changes, words of the refusal).
KEYS = {
    "key-target-parameters": ({"target_parameters": ["mlp.experts.down_proj"]}, ["target_parameters"]),
    "key-init-pissa": ({"init_lora_weights": "pissa"}, ["init_lora_weights", "pissa"]),
    "key-init-pissa-niter": ({"init_lora_weights": "pissa_niter_16"}, ["init_lora_weights", "pissa"]),
    "key-init-olora": ({"init_lora_weights": "olora"}, ["init_lora_weights", "olora"]),
    "key-init-corda": ({"init_lora_weights": "corda"}, ["init_lora_weights", "corda"]),
    "key-init-loftq": ({"init_lora_weights": "loftq"}, ["init_lora_weights", "loftq"]),
    "key-layer-replication": ({"layer_replication": [[0, 2], [1, 2]]}, ["layer_replication"]),
    "key-qalora": ({"use_qalora": True}, ["use_qalora"]),
    "key-unknown": ({"use_sideways_rank": True}, ["use_sideways_rank"]),
    "key-unknown-value": ({"rank_multiplier": 3}, ["rank_multiplier"]),
    "key-unknown-nested": ({"twist_config": {"angle": 0.5}}, ["twist_config"]),
    "key-rank-zero": ({"r": 0}, ["r"]),
    "key-rank-negative": ({"r": -2}, ["r"]),
    "key-bias-unknown": ({"bias": "sometimes"}, ["bias"]),
    "key-target-missing": ({"target_modules": ["query_key_value"]}, ["query_key_value"]),
    "key-regex-broken": ({"target_modules": ".*(q_proj"}, ["target_modules"]),
    "key-peft-type-unknown": ({"peft_type": "SOMETHING"}, ["SOMETHING"]),
}


def tensor_faults():
    """name -> (tensors, words): the file does not fit its config or its base."""
    good = plain_tensors()
    a, b = good[PREFIX + "A.weight"], good[PREFIX + "B.weight"]
    yield "tensor-wide-a", good | {PREFIX + "A.weight": torch.cat([a, a], 1)}, ["lora_A", "64", "32"]
    yield "tensor-long-b", good | {PREFIX + "B.weight": torch.cat([b, b], 0)}, ["lora_B", "64", "32"]
    yield "tensor-rank-differs", {PREFIX + "A.weight": torch.cat([a, a], 0), PREFIX + "B.weight": b}, ["q_proj"]
    yield "tensor-rank-not-config", {PREFIX + "A.weight": torch.cat([a, a], 0),
                                     PREFIX + "B.weight": torch.cat([b, b], 1)}, ["rank", "4", "2"]
    yield "tensor-b-missing", {PREFIX + "A.weight": a}, ["lora_B"]
    yield "tensor-a-missing", {PREFIX + "B.weight": b}, ["lora_A"]
    yield "tensor-nan", good | {PREFIX + "B.weight": b * float("nan")}, ["lora_B"]
    yield "tensor-layer-missing", {k.replace("layers.0", "layers.7"): v for k, v in good.items()}, ["layers.7"]
    yield "tensor-unknown", good | {"base_model.model.model.layers.0.gadget.weight": a}, ["gadget"]
    yield "tensor-none", {}, ["q_proj"]


def other_kinds():
    """Configs and tensors of other PEFT methods, written by PEFT: name -> (config, words)."""
    import peft

    where = dict(target_modules=["q_proj"], layers_to_transform=[0])
    tokens = dict(task_type="CAUSAL_LM", num_virtual_tokens=2)
    yield "kind-dora", peft.LoraConfig(r=2, use_dora=True, **where), ["use_dora"]
    yield "kind-vera", peft.VeraConfig(r=2, save_projection=False, **where), ["VERA"]
    yield "kind-ia3", peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[]), ["IA3"]
    yield "kind-loha", peft.LoHaConfig(r=2, **where), ["LOHA"]
    yield "kind-lokr", peft.LoKrConfig(r=2, **where), ["LOKR"]
    yield "kind-adalora", peft.AdaLoraConfig(init_r=2, target_r=1, total_step=10, **where), ["ADALORA"]
    yield "kind-prefix", peft.PrefixTuningConfig(**tokens), ["PREFIX_TUNING"]
    yield "kind-prompt", peft.PromptTuningConfig(**tokens), ["PROMPT_TUNING"]
    yield "kind-p-tuning", peft.PromptEncoderConfig(encoder_hidden_size=4, **tokens), ["P_TUNING"]
    yield "kind-oft", peft.OFTConfig(oft_block_size=4, **where), ["OFT"]


def write_kind(name, config):
    from peft import get_peft_model

    torch.manual_seed(0)
    model = get_peft_model(load_model(MODELS / BASE), config)
    folder = clean_folder(REFUSED / name)
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_config.json"
    values = json.loads(path.read_text())
    values["base_model_name_or_path"] = "golden/" + BASE
    for key, value in values.items():
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            value.sort()
    write_json(path, values)
    weights = folder / "adapter_model.safetensors"
    save_file(load_file(weights), weights, metadata={"format": "pt"})


def main():
    quiet()
    REFUSED.mkdir(exist_ok=True)
    table = []

    def note(name, words):
        table.append({"name": name, "path": f"refused/{name}", "base": f"models/{BASE}", "words": words})

    for name, (changes, words) in KEYS.items():
        write(name, plain_config(**changes), plain_tensors())
        note(name, words)
    for name, tensors, words in tensor_faults():
        write(name, plain_config(), tensors)
        note(name, words)
    for name, config, words in other_kinds():
        write_kind(name, config)
        note(name, words)

    score = plain_tensors() | {"base_model.model.score.weight": randn(("refused", "score"), (2, 32), 0.2)}
    write("save-score", plain_config(modules_to_save=["score"]), score)
    note("save-score", ["modules_to_save", "score"])
    layer = plain_tensors() | {
        "base_model.model.model.layers.0.mlp.up_proj.weight": randn(("refused", "up"), (64, 32), 0.2)}
    write("save-up-proj", plain_config(modules_to_save=["up_proj"]), layer)
    note("save-up-proj", ["modules_to_save", "up_proj"])

    folder = write("pickle", plain_config(), None)
    torch.save(plain_tensors(), folder / "adapter_model.bin")
    note("pickle", ["adapter_model.bin", "pickle"])
    write("config-missing", None, plain_tensors())
    note("config-missing", ["adapter_config.json"])
    write("weights-missing", plain_config(), None)
    note("weights-missing", ["adapter_model.safetensors"])
    folder = write("config-not-json", None, plain_tensors())
    (folder / "adapter_config.json").write_text('{"r": 2, "lora_alpha": \n')
    note("config-not-json", ["adapter_config.json"])
    write_json(REFUSED / "refused.json", table)
    print(f"{len(table)} refusals")


if __name__ == "__main__":
    main()
