# SPDX-License-Identifier: Apache-2.0
"""Training text for the small tokenizers, written by seeded rules from word lists of this file."""
import random

SUBJECTS = "the server|a small model|our adapter|the old clock|every reader|my neighbour|the cache|one thread".split("|")
VERBS = "loads|answers|doesn't know|can't find|writes|has counted|will merge|I'm sure, keeps|they've sent".split("|")
OBJECTS = ("the weights|seven letters|a long sentence|its own name|the next token|two hundred rows|"
           "what it's told|the river and the hill|an empty page").split("|")
ENDS = [".", "!", "?", "...", " -- really.", ", of course.", ";", ":\n"]
OTHER = [
    "Gr\u00fc\u00dfe aus dem Norden, sch\u00f6n war die \u00dcberfahrt.", "L'\u00e9t\u00e9 dernier, o\u00f9 \u00e9tait la cl\u00e9 ?",
    "\u041a\u043d\u0438\u0433\u0430 \u043b\u0435\u0436\u0438\u0442 \u043d\u0430 \u0441\u0442\u043e\u043b\u0435.", "\u0394\u03b5\u03bd \u03be\u03ad\u03c1\u03c9 \u03c4\u03af\u03c0\u03bf\u03c4\u03b1.",
    "\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002", "\u6c34\u306f\u51b7\u305f\u3044\u3067\u3059\u3002", "\ubc14\ub78c\uc774 \ubd84\ub2e4.",
    "\u05e9\u05dc\u05d5\u05dd \u05dc\u05db\u05d5\u05dc\u05dd", "\u0627\u0644\u0643\u062a\u0627\u0628 \u062c\u062f\u064a\u062f", "\u0928\u092f\u093e \u0926\u093f\u0928", "caf\u00e9 na\u00efve \u2014 \u201cquoted\u201d",
]
CODE = ["for (int i = 0; i < n; ++i) {\n    sum += x[i];\n}", "def f(x):\n\treturn x ** 2\n", "if a != b && c >= 10:",
        "  {\"name\": \"value\", \"n\": 12}", "http://example.invalid/a?b=c&d=1", "x  =  1;    // note"]


def sentence(rng):
    kind = rng.random()
    if kind < 0.08:
        return rng.choice(OTHER)
    if kind < 0.14:
        return rng.choice(CODE)
    if kind < 0.22:
        return f"{rng.choice(OBJECTS)} {rng.randrange(10 ** rng.randrange(1, 9))}"
    text = f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)}{rng.choice(ENDS)}"
    if rng.random() < 0.5:
        text = text[0].upper() + text[1:]
    return text.upper() if rng.random() < 0.04 else text


def lines(count=3000, seed=7):
    rng = random.Random(seed)
    return [" ".join(sentence(rng) for _ in range(rng.randrange(1, 4))) for _ in range(count)]
