# SPDX-License-Identifier: Apache-2.0
"""Writes quant/TYPE.safetensors: blocks of every number format as the gguf package reads (and writes) them."""
import zlib

import gguf
import numpy as np
from safetensors.numpy import save_file

from vectors_common import HERE

Type = gguf.GGMLQuantizationType
OUT = HERE / "quant"
COLUMNS = 512
ROWS = 4
# Where the f16 scales of a block lie; all other bytes of a block may hold anything.
SCALES = {"Q8_0": [0], "Q4_0": [0], "Q5_0": [0], "Q4_1": [0, 2], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208], "Q2_K": [80, 82], "Q3_K": [108], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": []}
E8M0 = {"MXFP4": 0}  # where the block's scale is a power of two of one byte
QUANTISED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")


def rng_of(*key):
    return np.random.default_rng(zlib.crc32("/".join(key).encode()))


def random_blocks(name):
    """Any bits in the quants; scales of both signs, zero, subnormal and large."""
    rng = rng_of("blocks", name)
    block, size = gguf.GGML_QUANT_SIZES[Type[name]]
    raw = rng.integers(0, 256, (ROWS * COLUMNS // block, size), dtype=np.uint8)
    for at in SCALES[name]:
        scale = rng.normal(0, 0.02, len(raw)).astype(np.float16)
        special = np.array([0.0, 6e-8, -3e-5, 12.5, 1.0], np.float16)
        scale[rng.choice(len(raw), len(special), replace=False)] = special
        raw[:, at:at + 2] = scale[:, None].view(np.uint8)
    if name in E8M0:  # the smallest ones, which are subnormal, and the largest whose products are finite
        raw[:, E8M0[name]] = rng.integers(110, 136, len(raw))
        raw[rng.choice(len(raw), 6, replace=False), E8M0[name]] = [0, 1, 2, 3, 127, 251]
    return raw.reshape(ROWS, -1)


def floats(name):
    """Rows to quantise: plain, one outlier, zeros and equal values, very small and large."""
    rng = rng_of("floats", name)
    value = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    value[1, ::37] *= 60
    value[2, :64] = 0
    value[2, 64:128] = 0.75
    value[2, 128:192] = -0.75
    value[3, :256] *= 1e-6
    value[3, 256:] *= 1e3
    return value


def halves():
    """Every f16 exponent with some mantissas, both signs, infinities; no NaN."""
    bits = np.array([e << 10 | m for e in range(31) for m in (0, 1, 2, 0x155, 0x2aa, 0x3fe, 0x3ff)] + [0x7c00], np.uint16)
    return np.concatenate([bits, bits | 0x8000])


def to_bf16_cases():
    """Ties to even, overflow to infinity, subnormals."""
    bits = np.array([0x3f800000, 0x3f808000, 0x3f818000, 0x3f807fff, 0x3f808001, 0x7f7fffff, 0x7f7f7fff, 0x00000001,
                     0x00008000, 0x00018000, 0x00007fff, 0x80000000, 0xbf808000, 0xbf818000, 0x7f800000, 0xff800000],
                    np.uint32)
    more = rng_of("bf16").integers(0, 0x7f000000, 240, dtype=np.uint32)
    return np.concatenate([bits, more, more[:120] | 0x80000000]).view(np.float32)


def to_f16_cases():
    exact = np.array([0, 1, -1, 65504, 65519.996, 65520, 6.1035156e-05, 6.0975552e-05, 5.9604645e-08, 2.9802322e-08,
                      2.9802326e-08, 8.940697e-08, 1.00048828125, 1.00146484375, 1e-12, 1e30], np.float32)
    return np.concatenate([exact, -exact, (rng_of("f16").standard_normal(96) * 10.0 ** rng_of("f16e").integers(
        -8, 5, 96)).astype(np.float32)])


def main():
    OUT.mkdir(exist_ok=True)
    for name in SCALES:
        raw = random_blocks(name)
        tensors = {"blocks": raw, "values": gguf.dequantize(raw, Type[name])}
        assert np.isfinite(tensors["values"]).all()
        if name in QUANTISED:
            source = floats(name)
            tensors |= {"source": source, "source_blocks": gguf.quantize(source, Type[name])}
        save_file(tensors, OUT / f"{name.lower()}.safetensors")
    bits = halves()
    narrow = to_f16_cases()
    with np.errstate(over="ignore"):
        half = narrow.astype(np.float16)
    save_file({"bits": bits, "values": bits.view(np.float16).astype(np.float32), "source": narrow,
               "source_bits": half.view(np.uint16)}, OUT / "f16.safetensors")
    wide = to_bf16_cases()
    rounded = gguf.quantize(wide[None], Type.BF16).view(np.uint16)[0]
    save_file({"bits": rounded, "values": (rounded.astype(np.uint32) << 16).view(np.float32), "source": wide,
               "source_bits": rounded}, OUT / "bf16.safetensors")
    for path in sorted(OUT.glob("*.safetensors")):
        print(f"{path.name:18} {path.stat().st_size:6} bytes")


if __name__ == "__main__":
    main()
