# SPDX-License-Identifier: Apache-2.0
"""What the golden scripts share: folders, seeds, the reference model and its logits."""
import json
import os
import zlib
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)
torch.set_grad_enabled(False)

GOLDEN = Path(__file__).resolve().parent
MODELS = GOLDEN / "models"
ADAPTERS = GOLDEN / "adapters"
REFUSED = GOLDEN / "refused"
EXPECTED = GOLDEN / "expected"


def generator(*key):
    """A generator that depends on the key alone, so adding a file never changes another."""
    return np.random.default_rng(zlib.crc32("/".join(map(str, key)).encode()))


def randn(key, shape, std):
    return torch.from_numpy(generator(*key).standard_normal(tuple(shape)) * std).float()


def round_to(tensor, dtype):
    """The nearest value that `dtype` holds, as float32: what is stored is what the reference sees."""
    return tensor.to(dtype).float()


def write_json(path, value, sort_keys=True):
    path.write_text(json.dumps(value, indent=2, sort_keys=sort_keys) + "\n")


def clean_folder(path):
    path.mkdir(parents=True, exist_ok=True)
    for item in path.iterdir():
        if item.is_file():
            item.unlink()
    return path


def fix_rope(model, max_model_len):
    """Dynamic NTK and longrope with the factors that the server fixes at start: constant for all positions."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rotary = getattr(model.model, "rotary_emb", None)
    kind = getattr(rotary, "rope_type", None)
    if kind != "longrope" and not (kind == "dynamic" and max_model_len):
        return
    length = max_model_len or model.config.max_position_embeddings
    inv_freq, scaling = ROPE_INIT_FUNCTIONS[rotary.rope_type](model.config, seq_len=length)
    rotary.inv_freq = inv_freq
    rotary.attention_scaling = scaling
    rotary.rope_type = "default"  # no update in forward


def quiet():
    import warnings

    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    warnings.filterwarnings("ignore")


def round_embed_scale(model, dtype):
    """Gemma's embedding is multiplied in the dtype of its weights, which here are float32 for other reasons."""
    embed = model.get_input_embeddings()
    if hasattr(embed, "embed_scale"):
        embed.embed_scale = round_to(embed.embed_scale, dtype)


def model_class(architectures):
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    return AutoModelForImageTextToText if "Conditional" in architectures[0] else AutoModelForCausalLM


def load_model(folder, max_model_len=0):
    quiet()
    config = json.loads((folder / "config.json").read_text())
    model = model_class(config["architectures"]).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager")
    round_embed_scale(model, getattr(torch, config.get("torch_dtype") or config["dtype"]))
    fix_rope(model, max_model_len)
    return model.eval()
