# SPDX-License-Identifier: Apache-2.0
"""Writes peft_matching.json: what PEFT's own functions answer for module names, and what Python's re answers for patterns."""
import json
import re
import warnings
from pathlib import Path

from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.other import get_pattern_key

LAYERS = 12
LINEAR = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
          "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
KEYS = [f"model.layers.{n}.{name}" for n in (0, 1, 2, 10, 11) for name in LINEAR] + ["model.embed_tokens", "lm_head"]

CONFIGS = [
    {"target_modules": ["q_proj", "v_proj"]},
    {"target_modules": ["proj"]},
    {"target_modules": ["self_attn.q_proj", "lm_head", "model.layers.1.mlp.up_proj"]},
    {"target_modules": ["1.self_attn.k_proj", "embed_tokens"]},
    {"target_modules": r".*\.layers\.[0-1]\.self_attn\.(q|v)_proj"},
    {"target_modules": r"model\.layers\.\d+\.mlp\..*_proj|lm_head"},
    {"target_modules": r"q_proj"},
    {"target_modules": r".*[kq]_proj$"},
    {"target_modules": r"(?!.*layers\.1\.).*(q|k)_proj"},
    {"target_modules": r".*layers\.1\d?\.mlp.*"},
    {"target_modules": r"^model.*(?:gate|up)_proj\Z"},
    {"target_modules": r".*\.(?P<part>self_attn|mlp)\.\w{1,2}_proj"},
    {"target_modules": ["q_proj", "up_proj"], "exclude_modules": ["layers.1.self_attn.q_proj", "up_proj"]},
    {"target_modules": ["q_proj", "up_proj"], "exclude_modules": r".*\.1\d*\..*"},
    {"target_modules": ["q_proj", "up_proj", "lm_head"], "exclude_modules": ["proj", "head", "lm_head"]},
    {"target_modules": ["q_proj", "lm_head", "embed_tokens"], "modules_to_save": ["lm_head"]},
    {"target_modules": ["q_proj", "up_proj"], "modules_to_save": ["mlp", "model.layers.1"]},
    {"target_modules": ["q_proj", "up_proj", "lm_head"], "layers_to_transform": [1, 11]},
    {"target_modules": ["q_proj", "up_proj", "embed_tokens"], "layers_to_transform": 0},
    {"target_modules": ["q_proj", "model.layers.2.mlp.up_proj"], "layers_to_transform": [1]},
    {"target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": "layers"},
    {"target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": ["h", "layers"]},
    {"target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": "blocks"},
    {"target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": "lay[a-f]rs"},
    {"target_modules": ["q_proj"], "layers_to_transform": []},
]

PATTERN_KEYS = [
    ["q_proj"], ["proj"], ["self_attn.q_proj"], ["^model.layers.1.self_attn.q_proj"], ["^layers.1.self_attn.q_proj"],
    [r"layers\.1\..*"], ["layers.1.mlp.up_proj", "up_proj"], ["up_proj", "layers.1.mlp.up_proj"],
    [r".*\.[01]\.mlp\.(gate|up)_proj"], ["q_proj|k_proj"], ["mlp.*"], ["model"], ["lm_head", "embed_tokens"],
    [r"(self_attn\.)?[qv]_proj"], ["q_proj$"], ["_proj"], [r"\w+_proj"], [r"layers\.1{1,2}\.mlp\.\w*"], [r"1.mlp.up_proj"],
]

PATTERNS = [
    r"a*", r"a+?b", r"(a|ab)(c|bcd)(d*)", r"[^a-c]+", r"[a\-c]*", r"[]a]+", r"[\d_]+x?", r"a{2}", r"a{,2}b", r"a{2,}", r"a{1,2}?b",
    r"a{", r"a{x}", r"{2}", r"x{2,1}", r"\bfoo\b.*", r"\Bo", r"^a|b$", r"(?:ab)*c", r"(?P<n>a)(?P<m>b)?", r"(?=ab)a.", r"(?!ab)a.",
    r"\.\*\\", r"a\.b", r"(((a)))", r"(a", r"a)", r"*a", r"a**", r"[a", r"[b-a]", r"\d\D\w\W\s\S", r"", r"|a", r"(|a)+b", r"(a*)*b",
    r"(a+)+b", r".", r"a.c", r"\Aab\Z", r"a$b", r"[.]", r"[\]]", r"[a-]", r"[-a]", r"(?P<n>a)(?P<n>b)",
]
TEXTS = ["", "a", "b", "aa", "ab", "aab", "aaab", "abc", "abcd", "a.b", "a{", "a{x}", "foo", "foo bar", "xfoo", "o", "fo", "_1x", "12_x",
         "]a", "a-c", ".*\\", "c", "ababc", "\n", "a\nc", "1aa  b", "1 a .b", "-", "x"]


def matching():
    rows = []
    for values in CONFIGS:
        config = LoraConfig(r=4, **values)
        rows.append({"config": values, "targeted": [key for key in KEYS if check_target_module_exists(config, key)]})
    return rows


def patterns():
    return [{"keys": keys, "found": [keys.index(k) if (k := get_pattern_key(keys, key)) in keys else -1 for key in KEYS]}
            for keys in PATTERN_KEYS]


def regexes():
    rows = []
    for pattern in PATTERNS:
        try:
            compiled = re.compile(pattern)
        except re.error:
            rows.append({"pattern": pattern, "error": True})
            continue
        rows.append({"pattern": pattern, "full": [t for t in TEXTS if compiled.fullmatch(t)],
                     "start": [t for t in TEXTS if compiled.match(t)]})
    return rows


def main():
    warnings.simplefilter("ignore")
    out = {"modules": KEYS, "matching": matching(), "patterns": patterns(), "texts": TEXTS, "regexes": regexes()}
    path = Path(__file__).parent / "peft_matching.json"
    path.write_text(json.dumps(out, indent=1) + "\n")
    print(f"peft_matching.json: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
