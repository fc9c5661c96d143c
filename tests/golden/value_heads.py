# SPDX-License-Identifier: Apache-2.0
"""Value heads of linear attention in the two orders that files have them in: those of a key head together (Hugging
Face), or the first of every key head, then the second (tiled: llama.cpp, whose converter moves them)."""
import numpy as np


def place_of(spec, module):
    """(axis, numbers in front that stay, numbers of a head) of what holds value heads; None: it holds none."""
    keys, width = 2 * spec["linear_num_key_heads"] * spec["linear_key_head_dim"], spec["linear_value_head_dim"]
    last = module.removesuffix(".weight").rpartition(".")[2]
    return {"in_proj_qkv": (0, keys, width), "conv1d": (0, keys, width), "in_proj_z": (0, 0, width),
            "in_proj_a": (0, 0, 1), "in_proj_b": (0, 0, 1), "A_log": (0, 0, 1), "dt_bias": (0, 0, 1),
            "out_proj": (1, 0, width)}.get(last) if "linear_attn" in module else None


def moved(spec, module, array, to_tiled, factor=None):
    """The array in the other order; `factor`: A or B of a pair for this module."""
    place = place_of(spec, module) if "linear_num_key_heads" in spec else None
    if place is None or factor in ("A", "B") and factor != "BA"[place[0]]:
        return array
    axis, before, width = place
    heads, each = spec["linear_num_key_heads"], spec["linear_num_value_heads"] // spec["linear_num_key_heads"]
    first, rest = np.split(array, [before], axis)
    grid = (heads, each) if to_tiled else (each, heads)
    shape = rest.shape[:axis] + grid + (width,) + rest.shape[axis + 1:]
    rest = rest.reshape(shape).swapaxes(axis, axis + 1).reshape(rest.shape)
    return np.ascontiguousarray(np.concatenate([first, rest], axis))
