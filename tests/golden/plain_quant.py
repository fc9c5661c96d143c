# SPDX-License-Identifier: Apache-2.0
"""Quantised checkpoints decoded from their files alone, number by number, for plain_files.py."""
import numpy as np
import torch
from safetensors.torch import load_file


def numbers(words, bits):
    """[rows, words] -> [rows, words * 32 / bits], the lowest bits of a word first."""
    words = words.numpy().astype(np.int64) & 0xFFFFFFFF
    each = [(words >> shift) & ((1 << bits) - 1) for shift in range(0, 32, bits)]
    return np.stack(each, -1).reshape(words.shape[0], -1)


def awq_numbers(words):
    in_file = numbers(words, 4).reshape(words.shape[0], -1, 8)
    return in_file[..., [0, 4, 1, 5, 2, 6, 3, 7]].reshape(words.shape[0], -1)


def over(grid, shape, rows=None, cols=None):
    """Scales or zero points of a grid, for each weight."""
    rows, cols = rows or -(-shape[0] // grid.shape[0]), cols or -(-shape[1] // grid.shape[1])
    return np.repeat(np.repeat(grid, rows, 0), cols, 1)[:shape[0], :shape[1]]


def gptq(parts, config):
    bits = config["bits"]
    q = numbers(parts["qweight"].T, bits)
    zeros = numbers(parts["qzeros"], bits).T + (config["checkpoint_format"] == "gptq")
    of_input = parts["g_idx"].numpy()
    return (q - zeros[:, of_input]) * parts["scales"].double().numpy().T[:, of_input]


def awq(parts, config):
    q = awq_numbers(parts["qweight"]).T
    zeros, scales = awq_numbers(parts["qzeros"]).T, parts["scales"].double().numpy().T
    return (q - over(zeros, q.shape)) * over(scales, q.shape)


def packed(parts, config):
    bits = next(iter(config["config_groups"].values()))["weights"]["num_bits"]
    q = numbers(parts["weight_packed"], bits)
    zeros = np.full((q.shape[0], 1), 1 << (bits - 1))
    if "weight_zero_point" in parts:
        zeros = numbers(parts["weight_zero_point"].T, bits).T[:q.shape[0]]
    return (q - over(zeros, q.shape)) * over(parts["weight_scale"].double().numpy(), q.shape)


def by_bytes(parts, config):
    q = parts["weight"].double().numpy()
    scales = parts.get("weight_scale_inv", parts.get("weight_scale")).double().numpy()
    scales = scales.reshape(1, 1) if scales.ndim == 0 else scales
    block = config.get("weight_block_size") or [None, None]
    return q * over(scales, q.shape, *block)


ENDS = ("qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_scale", "weight_scale_inv", "weight_shape",
        "weight_zero_point", "input_scale")


def e2m1(code):
    """A sign, two bits of exponent, one of mantissa."""
    exponent, mantissa = code >> 1 & 3, code & 1
    size = np.where(exponent == 0, mantissa / 2, (1 + mantissa / 2) * 2.0 ** (exponent - 1))
    return np.where(code & 8, -size, size)


def experts_of_blocks(tensors):
    """"experts.gate_up_proj_blocks" and "_scales" -> "experts.gate_up_proj", inputs before outputs."""
    weights = {name: value.double().numpy() for name, value in tensors.items() if value.dtype != torch.uint8}
    for name in [n for n in tensors if n.endswith("_blocks")]:
        base, pairs = name.removesuffix("_blocks"), tensors[name].numpy().astype(np.int64)
        scales = 2.0 ** (tensors[base + "_scales"].numpy().astype(np.int64) - 127)
        codes = np.stack([pairs & 15, pairs >> 4], -1).reshape(*pairs.shape[:-1], 32)
        rows = (e2m1(codes) * scales[..., None]).reshape(*pairs.shape[:2], -1)
        weights[base] = rows.swapaxes(-1, -2)
    return weights


def dequantise(tensors, config):
    """All tensors of a model, with its quantised matrices as what they mean."""
    if config["quant_method"] == "mxfp4":
        return experts_of_blocks(tensors)
    plain, parts = {}, {}
    for name, value in tensors.items():
        base, _, end = name.rpartition(".")
        if end in ENDS:
            parts.setdefault(base, {})[end] = value
        else:
            plain[name] = value
    weights = {}
    for base, of_matrix in parts.items():
        if f"{base}.bias" in plain and not plain[f"{base}.bias"].any():
            del plain[f"{base}.bias"]
        if "weight_scale" in of_matrix or "weight_scale_inv" in of_matrix:
            decode = packed if "weight_packed" in of_matrix else by_bytes
            if decode is by_bytes:
                of_matrix["weight"] = plain.pop(f"{base}.weight")
        else:
            decode = gptq if config["quant_method"] == "gptq" else awq
        weights[f"{base}.weight"] = decode(of_matrix, config)
    return weights | {name: value.double().numpy() for name, value in plain.items()}


def read(folder, config):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    return dequantise(tensors, config)
