#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of docs/models.md that says what of each family is proved by golden values.

Every cell is read from the files that tests/golden/cases.json runs: number formats from the heads of
the models, modules from the names of the adapters' tensors.

    tools/golden_table.py           prints it
    tools/golden_table.py --write   puts it into the page
"""
import json
import pathlib
import re
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests/golden"
PAGE = ROOT / "docs/models.md"
BEGIN, END = "<!-- golden table -->", "<!-- end of the golden table -->"

GGUF_TYPES = {0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 10: "q2_k", 11: "q3_k", 12: "q4_k",
              13: "q5_k", 14: "q6_k", 20: "iq4_nl", 23: "iq4_xs", 30: "bf16", 39: "mxfp4"}
SAFETENSORS_TYPES = {"F32": "f32", "F16": "f16", "BF16": "bf16", "F64": "f64", "I32": "int32", "I64": "int64", "U8": "uint8",
                     "I8": "int8", "F8_E4M3": "fp8"}
MODULES = ["q", "k", "v", "o", "gate", "up", "down", "qkv", "gate_up", "linear attention", "experts", "router", "shared expert", "embedding",
           "head", "norms", "biases"]
NAMES = [(r"linear_attn|ssm_|attn_gate", "linear attention"), (r"experts", "experts"), (r"_exps\b", "experts"), (r"(mlp|block_sparse_moe)\.(gate|router)\b|ffn_gate_inp", "router"),
         (r"shared_expert|_shexp", "shared expert"), (r"qkv_proj|query_key_value|attn_qkv", "qkv"), (r"gate_up_proj", "gate_up"),
         (r"q_proj|attn_q\b", "q"), (r"k_proj|attn_k\b", "k"), (r"v_proj|attn_v\b", "v"), (r"o_proj|attn_output\b", "o"),
         (r"gate_proj|ffn_gate\b", "gate"), (r"up_proj|ffn_up\b|c_fc\b", "up"), (r"down_proj|ffn_down\b|c_proj\b", "down"),
         (r"embed_tokens|token_embd", "embedding"), (r"lm_head|unembed_tokens|output\.weight", "head"), (r"norm", "norms")]


class Gguf:
    """The head of a GGUF file: architecture, names and types of tensors."""

    def __init__(self, path):
        self.data = path.read_bytes()
        self.at = 4
        self.version, tensors, pairs = self.take("<IQQ")
        self.values = {}
        for _ in range(pairs):
            key = self.text()
            self.values[key] = self.value(self.take("<I")[0])
        self.tensors = []
        for _ in range(tensors):
            name = self.text()
            dims = self.take("<I")[0]
            self.take(f"<{dims}Q")
            self.tensors.append((name, GGUF_TYPES.get(self.take("<I")[0], "?")))
            self.take("<Q")

    def take(self, form):
        values = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return values

    def text(self):
        size = self.take("<Q")[0]
        self.at += size
        return self.data[self.at - size:self.at].decode("utf-8", "replace")

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, count = self.take("<IQ")
            return [self.value(inner) for _ in range(count)]
        return self.take("<" + "BbHhIif?__QQd"[kind].replace("_", "B"))[0] if kind < 8 else self.take({10: "<Q", 11: "<q", 12: "<d"}[kind])[0]


def heads_of(folder):
    for file in sorted(folder.glob("*.safetensors")):
        data = file.read_bytes()
        size = struct.unpack_from("<Q", data)[0]
        yield {name: one for name, one in json.loads(data[8:8 + size]).items() if name != "__metadata__"}


def modules_of(names):
    found = set()
    for name in names:
        if name.endswith((".bias", "base_layer.bias")) and "lora" not in name and "norm" not in name:
            found.add("biases")
            continue
        found.update([module for pattern, module in NAMES if re.search(pattern, name)][:1])
    return found


def model_of(path):
    """The name of its class (or GGUF architecture), and its number format."""
    if path.suffix == ".gguf":
        file = Gguf(path)
        types = {kind for name, kind in file.tensors if name.startswith("blk.") and "norm" not in name and "bias" not in name}
        types = types - {"f32"} or types
        return file.values["general.architecture"], types
    config = json.loads((path / "config.json").read_text())
    quantised = config.get("quantization_config")
    types = {SAFETENSORS_TYPES[one["dtype"]] for head in heads_of(path) for name, one in head.items()
             if len(one["shape"]) >= 2}
    if quantised:
        method = quantised["quant_method"]
        types = {method if method != "compressed-tensors" else f"compressed-tensors {quantised.get('format', '')}".strip()}
    return config["architectures"][0], types


def adapter_modules(path):
    if path.suffix == ".gguf":
        names = [name for name, _ in Gguf(path).tensors]
        linear = [name.split(".ssm_")[0] for name in names if ".ssm_" in name]  # whose attn_qkv is another one
        return modules_of([name.replace(".attn_qkv", ".ssm_qkv") if name.split(".attn_")[0] in linear else name
                           for name in names])
    return modules_of([name for head in heads_of(path) for name in head])


def families():
    """{class: GGUF architectures}, in the order of the sources."""
    text = "".join(file.read_text() for file in sorted((ROOT / "src/formats").glob("*famil*.cc")))
    found = {}
    for entry in re.split(r"\.class_name = ", text)[1:]:
        gguf = re.search(r'\.gguf_name = "([\w.-]+)"', entry)
        found[re.match(r'"(\w+)"', entry)[1]] = gguf[1] if gguf else None
    return found


def rows():
    known = families()
    first_of = {}
    for name, gguf in known.items():
        first_of.setdefault(gguf, name)
    cells = {name: [set(), set(), set(), set()] for name in known}
    for case in json.loads((GOLDEN / "cases.json").read_text()):
        path = GOLDEN / case["model"]
        kind, types = model_of(path)
        is_gguf = path.suffix == ".gguf"
        row = cells[first_of[kind] if is_gguf else kind]
        row[1 if is_gguf else 0] |= types
        for adapter in case["adapters"]:
            file = GOLDEN / adapter["path"]
            row[3 if file.suffix == ".gguf" else 2] |= adapter_modules(file)
    return known, cells


def table():
    known, cells = rows()
    lines = ["| class | Hugging Face | GGUF | adapters in PEFT's form | GGUF adapters |", "|---|---|---|---|---|"]
    for name, row in cells.items():
        gguf = ", ".join(sorted(row[1]))
        if not gguf and known[name]:
            others = [other for other, of in known.items() if of == known[name] and cells[other][1]]
            gguf = f"as `{others[0]}`" if others else ""
        parts = [", ".join(sorted(row[0])), gguf] + [", ".join(one for one in MODULES if one in row[at]) for at in (2, 3)]
        lines.append(f"| `{name}` | " + " | ".join(part or "-" for part in parts) + " |")
    return "\n".join(lines)


def written():
    text = PAGE.read_text()
    return text[text.index(BEGIN) + len(BEGIN):text.index(END)].strip()


def main():
    if sys.argv[1:] != ["--write"]:
        return print(table())
    text = PAGE.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(text[:begin] + "\n" + table() + "\n" + text[end:])


if __name__ == "__main__":
    main()
