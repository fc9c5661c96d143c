# SPDX-License-Identifier: Apache-2.0
"""Writes models/NAME/ for quantised checkpoints: packed by this script as their tools pack, no kernels needed.

The reference is transformers on the dequantised weights. Integers, scales and zero points are what is stored, so
nothing is rounded between the file and what the reference sees.
"""
import math

import torch
from safetensors.torch import save_file

from common import MODELS, clean_folder, generator, quiet, write_json
from make_models import DTYPES, build_from, fill, weight
from quant_specs import QUANT_MODELS

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
NOTICED = 0.5  # of logits: what a wrong zero point or a wrong order must change at least


def matrices_in(key, value, entry):
    """What is quantised of a parameter: names of matrices and where they lie in it; experts are stored one by one, but
    for mxfp4."""
    if entry["store"] == "mxfp4":
        if value.ndim == 3:
            yield key, ...
        return
    if ".layers." not in key or key.endswith("mlp.gate.weight"):
        return
    if value.ndim == 2:
        yield key, ...
        return
    before, _, last = key.rpartition(".")
    for expert in range(value.shape[0] if value.ndim == 3 else 0):
        half = value.shape[1] // 2
        parts = {"gate_proj": slice(0, half), "up_proj": slice(half, None)} if last == "gate_up_proj" else {last: slice(None)}
        for part, rows in parts.items():
            yield f"{before}.{expert}.{part}.weight", (expert, rows)


def pack_words(values, bits, dim, order=None):
    """Runs of 32 / bits numbers along `dim` to one int32 each, the first in the lowest bits."""
    each = 32 // bits
    if dim == 0:
        return pack_words(values.T, bits, 1).T.contiguous()
    short = -values.shape[1] % each
    values = torch.nn.functional.pad(values.long(), (0, short))
    runs = values.reshape(values.shape[0], -1, each)
    if order is not None:
        runs = runs[..., order]
    words = (runs << (torch.arange(each) * bits)).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32).contiguous()


class Matrix:
    """Unsigned integers q [out, in] (or e4m3), scales and zeros [out or blocks, groups]; value = (q - zero) * scale."""

    def __init__(self, entry, model, key, shape):
        self.entry, (out, width) = entry, shape
        group = entry["group"] or width
        rows = out if entry.get("whole") else entry.get("block_rows", 1)
        std = float(weight(model, key, shape, False).std())
        rng, grid = generator(model, key), (math.ceil(out / rows), math.ceil(width / group))
        vary = torch.from_numpy(rng.uniform(0.6, 1.4, grid)).float()
        if entry.get("fp8"):
            numbers = torch.from_numpy(rng.standard_normal(shape) * 60).float().clamp(-448, 448)
            self.q = numbers.to(torch.float8_e4m3fn)
            self.scales = (std / 60 * vary).to(DTYPES[entry["scale"]])
            self.zeros = torch.zeros(grid)
        else:
            top = 1 << entry["bits"]
            spread = rng.standard_normal(shape) * top / 5 + top / 2
            self.q = torch.from_numpy(spread).round().clamp(0, top - 1).int()
            self.scales = (std / (top / 5) * vary).to(DTYPES[entry["scale"]])
            low, high = (top // 2 - 3, top // 2 + 4) if entry["zeros"] else (top // 2, top // 2 + 1)
            self.zeros = torch.from_numpy(rng.integers(low, high, grid)).int()
        self.rows, self.group = rows, group

    def value(self, zero_off=0):
        def wide(grid):
            return grid.float().repeat_interleave(self.rows, 0)[:self.q.shape[0]].repeat_interleave(
                self.group, 1)[:, :self.q.shape[1]]

        return (self.q.float() - wide(self.zeros) - zero_off) * wide(self.scales)

    def tensors(self):
        return getattr(self, "as_" + self.entry["store"])()

    def as_gptq(self):
        bits, config = self.entry["bits"], self.entry["config"]
        less = 1 if config["checkpoint_format"] == "gptq" else 0
        width = self.q.shape[1]
        return {"qweight": pack_words(self.q.T, bits, 0), "scales": self.scales.T.contiguous(),
                "qzeros": pack_words(self.zeros.T - less, bits, 1),
                "g_idx": (torch.arange(width) // self.group).to(torch.int32)}

    def as_awq(self):
        return {"qweight": pack_words(self.q.T, 4, 1, AWQ_ORDER), "qzeros": pack_words(self.zeros.T, 4, 1, AWQ_ORDER),
                "scales": self.scales.T.contiguous()}

    def as_packed(self):
        tensors = {"weight_packed": pack_words(self.q, self.entry["bits"], 1), "weight_scale": self.scales,
                   "weight_shape": torch.tensor(self.q.shape)}
        if self.entry["zeros"]:
            tensors["weight_zero_point"] = pack_words(self.zeros, self.entry["bits"], 0)
        return tensors

    def as_bytes(self):
        entry = self.entry
        stored = self.q if entry.get("fp8") else (self.q - 128).to(torch.int8)
        scales = self.scales[0, 0] if entry.get("whole") else self.scales
        tensors = {"weight": stored, entry.get("end", "weight_scale"): scales}
        if entry.get("inputs"):
            tensors["input_scale"] = torch.tensor(0.25, dtype=DTYPES[entry["scale"]])
        return tensors


# What a nibble of mxfp4 means.
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


class Blocks:
    """All experts' matrices [experts, in, out] in blocks of 32 inputs, of which every byte holds two neighbours."""

    def __init__(self, model, key, shape):
        experts, width, out = shape
        rng = generator(model, key)
        std = float(weight(model, key, shape, False).std()) / float(E2M1.std())
        self.q = torch.from_numpy(rng.integers(0, 16, (experts, out, width // 32, 32)))
        powers = round(math.log2(std)) + rng.integers(-1, 2, (experts, out, width // 32))
        self.scales = torch.from_numpy(powers + 127).to(torch.uint8)

    def value(self, other_order=0):
        q = self.q.reshape(*self.q.shape[:-1], 16, 2).flip(-1).reshape(self.q.shape) if other_order else self.q
        numbers = E2M1[q] * torch.exp2(self.scales.float() - 127)[..., None]
        return numbers.reshape(*self.q.shape[:2], -1).transpose(-1, -2)

    def tensors(self):
        pairs = self.q.reshape(*self.q.shape[:-1], 16, 2)
        return {"blocks": (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8), "scales": self.scales}


def stored_matrix(entry, name, matrix, shape):
    return Blocks(name, matrix, shape) if entry["store"] == "mxfp4" else Matrix(entry, name, matrix, shape)


def parts_of(name):
    entry = QUANT_MODELS[name]
    model = build_from(entry["spec"])
    fill(model, name)
    matrices = {matrix: stored_matrix(entry, name, matrix, tuple(value[place].shape))
                for key, value in model.named_parameters() for matrix, place in matrices_in(key, value, entry)}
    return entry, model, matrices


def reference_model(name, zero_off=0):
    entry, model, matrices = parts_of(name)
    for key, value in model.named_parameters():
        for matrix, place in matrices_in(key, value, entry):
            value[place] = matrices[matrix].value(zero_off)
    return model


def write_model(name):
    entry, model, matrices = parts_of(name)
    tensors = {}
    for key, value in model.named_parameters():
        stored = list(matrices_in(key, value, entry))
        if not stored:
            tensors[key] = value.detach().to(torch.bfloat16).contiguous()
        for matrix, place in stored:
            base = matrix.removesuffix(".weight")
            for end, tensor in matrices[matrix].tensors().items():
                tensors[f"{base}{'_' if entry['store'] == 'mxfp4' else '.'}{end}"] = tensor
            if entry.get("bias_of_zeros"):  # as AutoGPTQ stores them
                tensors[f"{base}.bias"] = torch.zeros(value[place].shape[0], dtype=torch.float16)
    folder = clean_folder(MODELS / name)
    names = sorted(tensors)
    halves = [names[::2], names[1::2]] if entry.get("two") else [names]  # parts of a matrix in several files
    for i, half in enumerate(halves):
        path = f"model-{i + 1:05}-of-{len(halves):05}.safetensors" if len(halves) > 1 else "model.safetensors"
        save_file({key: tensors[key] for key in half}, folder / path, metadata={"format": "pt"})
        if len(halves) > 1 and i == 0:
            index = {key: f"model-{j + 1:05}-of-{len(halves):05}.safetensors"
                     for j, part in enumerate(halves) for key in part}
            write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": index})
    config = {key: value for key, value in entry["spec"].items() if value is not None}
    write_json(folder / "config.json", config | {"quantization_config": entry["config"]})
    return folder


def main():
    quiet()
    ids = torch.arange(3, 60)[None]
    for name in QUANT_MODELS:
        folder = write_model(name)
        logits = reference_model(name)(ids).logits
        effect = float((reference_model(name, 1)(ids).logits - logits).abs().max())
        assert effect > NOTICED, f"{name}: a zero point that is off by one changes {effect} only"
        size = sum(p.stat().st_size for p in folder.iterdir())
        print(f"{name:20} {size:7} bytes, logits up to {logits.abs().max():.1f}, zero point {effect:.1f}")


if __name__ == "__main__":
    main()
