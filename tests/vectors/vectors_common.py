# SPDX-License-Identifier: Apache-2.0
"""Folders and the one way vectors are written."""
import json
import os
import random
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

HERE = Path(__file__).resolve().parent
TOKENIZERS = HERE / "tokenizers"
VOCAB = 512


def nasty():
    return json.loads((HERE / "nasty_strings.json").read_text())


def folder(name):
    path = TOKENIZERS / name
    path.mkdir(parents=True, exist_ok=True)
    for item in path.iterdir():
        item.unlink()
    return path


def case(item, ids, ids_plain, decoded, decoded_plain):
    """Decoded texts are left out where they equal the text, or the other decoded text."""
    value = {"name": item["name"], "with_specials": ids, "ids": ids_plain}
    if decoded != item["text"]:
        value["decoded"] = decoded
    if decoded_plain != decoded:
        value["decoded_plain"] = decoded_plain
    return value


def decode_cases(name, size, decode):
    """Random ids that no text encodes to. `decode(ids, skip_special)`; tokens that are no text alone are left out,
    since libraries differ in what they make of broken UTF-8."""
    rng = random.Random(name)
    whole = [i for i in range(size) if "\ufffd" not in decode([i], False)]
    result = []
    for _ in range(24):
        ids = [rng.choice(whole) for _ in range(rng.randrange(1, 14))]
        value = {"ids": ids, "decoded": decode(ids, False)}
        if decode(ids, True) != value["decoded"]:
            value["decoded_plain"] = decode(ids, True)
        result.append(value)
    return result


def write_vectors(path, file, about, cases, decodes):
    """Special tokens are the same prefix and suffix for every text: written once, checked for all."""
    empty = next(c for c in cases if not c["ids"])["with_specials"]
    split = next(i for i in range(len(empty) + 1)
                 if all(c["with_specials"] == empty[:i] + c["ids"] + empty[i:] for c in cases))
    for c in cases:
        del c["with_specials"]
    head = json.dumps({"file": file, "about": about, "prefix": empty[:split], "suffix": empty[split:]})[:-1]
    decodes = ",\n".join(" " + json.dumps(d, separators=(",", ":")) for d in decodes)
    body = ",\n".join(" " + json.dumps(c, separators=(",", ":")) for c in cases)
    (path / "vectors.json").write_text(f'{head}, "cases": [\n{body}\n], "decode": [\n{decodes}\n]}}\n')
    size = sum(item.stat().st_size for item in path.iterdir())
    print(f"{path.name:22} {len(cases):4} cases, {size:7} bytes")
