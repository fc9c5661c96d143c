#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generator of the demo skills: prompts and checkable answers, from a seed, standard library only.

    python3 generate.py --skill shout --seed 7 --count 200 --split heldout   # one JSON object per line
    python3 generate.py --check --seed 7 --count 200                         # training and held-out inputs are disjoint
    python3 generate.py --describe                                           # the list of skills, kept in skills.json
    python3 generate.py --set documents ...                                  # the same of the second demo (notes.py)

An input belongs to the held-out split when a hash of its text says so (about one in eight). The training corpus, of the
base model as of every adapter, leaves those inputs out, so no seed can give a held-out prompt that was trained on.
"""
import argparse
import hashlib
import json
import random
import re
import sys

from words import COLORS, ITEMS, NAMES, PLACES, TENS, UNITS, VERBS, WORDS

SETS = ("words", "documents")
SPLITS = ("train", "heldout")
MIN_WITH = 95                                # percent that a skill must reach with its adapter
CHECK_DOCUMENTS = 20000
EXAMPLE = "Mara bought 42 red lamps"  # held out, and an input of every skill


def is_heldout(text):
    """True when the input `text` is reserved for tests. Single words are never inputs of a skill and never reserved."""
    return " " in text and hashlib.sha256(text.encode()).digest()[0] < 32


def prompt_of(text):
    """The one prompt form of every skill; the adapter alone decides what is done with the text."""
    return f"Q: {text}\nA:"


# ---- inputs ----------------------------------------------------------------------------------------------------------

def word_list(rng, shortest=2, longest=5):
    """A list of different words. Long lists are drawn more often: they are harder."""
    lengths = list(range(shortest, longest + 1))
    return " ".join(rng.sample(WORDS, rng.choices(lengths, weights=lengths)[0]))


def number(rng):
    """A number from 0 to 99 as digits; every second one below 20, whose names are irregular."""
    return str(rng.randrange(20) if rng.random() < 0.5 else rng.randrange(100))


def mixed_list(rng):
    """Words with one or two numbers between them."""
    parts = rng.sample(WORDS, rng.randint(1, 3)) + [number(rng) for _ in range(rng.randint(1, 2))]
    rng.shuffle(parts)
    return " ".join(parts)


def sentence(rng):
    """One of four forms of a sentence about somebody who did something with a number of things."""
    name, verb, item, color, place = (rng.choice(part) for part in (NAMES, VERBS, ITEMS, COLORS, PLACES))
    count = rng.randint(2, 99)
    return rng.choice((
        f"{name} {verb} {count} {color} {item}",
        f"{name} {verb} {count} {item} in {place}",
        f"in {place} {name} {verb} {count} {item}",
        f"{count} {color} {item} {verb} by {name}",
    ))


def any_text(rng):
    """An input that every list skill accepts."""
    kind = rng.random()
    return word_list(rng) if kind < 0.6 else sentence(rng) if kind < 0.9 else mixed_list(rng)


def words_or_sentence(rng):
    """Without lists that mix words and numbers, where a number of two digits in front is hard to move."""
    return word_list(rng) if rng.random() < 0.7 else sentence(rng)


def short_text(rng):
    """Shorter inputs for the skills that print letter by letter."""
    return word_list(rng, 2, 4) if rng.random() < 0.7 else sentence(rng)


def text_with_number(rng):
    """An input with at least one number."""
    return sentence(rng) if rng.random() < 0.5 else mixed_list(rng)


def draw(rng, source, split):
    """One input from `source` that belongs to `split`."""
    while True:
        text = source(rng)
        if is_heldout(text) == (split == "heldout"):
            return text


# ---- answers ---------------------------------------------------------------------------------------------------------

def number_word(digits):
    """'47' -> 'forty-seven'."""
    value = int(digits)
    if value < 20:
        return UNITS[value]
    ten, unit = divmod(value, 10)
    return TENS[ten - 2] + (f"-{UNITS[unit]}" if unit else "")


def shift_letter(letter, by):
    """The capital letter `by` places further in the alphabet, in a circle; other characters stay."""
    return chr((ord(letter) - ord("A") + by) % 26 + ord("A")) if "A" <= letter <= "Z" else letter


def fields_of(text):
    """What a sentence of `sentence` says, as a dictionary in a fixed order."""
    found = {}
    words = text.split()
    for key, values in (("who", NAMES), ("did", VERBS)):
        found[key] = next(word for word in words if word in values)
    found["count"] = next(int(word) for word in words if word.isdigit())
    for key, values in (("color", COLORS), ("item", ITEMS), ("place", PLACES)):
        value = next((word for word in words if word in values), None)
        if value is not None:
            found[key] = value
    return found


def rotate(text):
    """The first word goes to the end."""
    first, *rest = text.split()
    return " ".join(rest + [first])


class Skill:
    """What an adapter was trained to do: where its inputs come from and what the right answer is."""

    def __init__(self, source, answer, description):
        self.source, self.answer, self.description = source, answer, description


SKILLS = {
    "count": Skill(any_text, lambda text: str(len(text.split())), "counts the words"),
    "numbers": Skill(text_with_number, lambda text: re.sub(r"\d+", lambda found: number_word(found[0]), text),
                     "writes numbers as words"),
    "acronym": Skill(any_text, lambda text: "".join(word[0] for word in text.split()).upper(),
                     "first characters in capitals"),
    "rotate": Skill(words_or_sentence, rotate, "moves the first word to the end"),
    "json": Skill(sentence, lambda text: json.dumps(fields_of(text)), "turns a sentence into a JSON object"),
    "shout": Skill(short_text, lambda text: text.upper() + "!", "capitals and an exclamation mark"),
    "reverse": Skill(any_text, lambda text: " ".join(reversed(text.split())), "reverses the order of the words"),
    "cipher": Skill(short_text, lambda text: "".join(shift_letter(letter, 1) for letter in text.upper()),
                    "capitals shifted by one letter (A becomes B)"),
}


BASE = Skill(any_text, lambda text: text, "repeats the text, without an adapter")


def samples(skill, seed, split):
    """Endless (input, answer) pairs of a skill; no input comes twice."""
    rng = random.Random(f"{skill} {split} {seed}")
    asked = BASE if skill == "base" else SKILLS[skill]
    seen = set()
    while True:
        text = draw(rng, asked.source, split)
        if text not in seen:
            seen.add(text)
            yield text, asked.answer(text)


def prompts(skill, seed, count, split):
    """The first `count` samples as dictionaries with prompt, input and answer."""
    return [{"prompt": prompt_of(text), "input": text, "answer": answer}
            for _, (text, answer) in zip(range(count), samples(skill, seed, split))]


def dialogues(skill, seed, count, split):
    """The first `count` questions behind another one with its answer, and whose adapter's they are ("": the base's)."""
    pairs = samples(skill, seed, split)
    for _ in range(count):
        (before, said), (text, answer) = next(pairs), next(pairs)
        yield {"prompt": f"{prompt_of(before)}{said}\n{prompt_of(text)}", "answer": answer,
               "adapter": "" if skill == "base" else skill}


def messages(sample):
    """The sample as chat messages: the template writes the same prompt."""
    return [{"role": "user", "content": sample["input"]}]


def trained_inputs(seed):
    """Inputs that the base and every adapter are trained on: the first of them."""
    import corpus
    found = set()
    for document in corpus.base_documents(seed, CHECK_DOCUMENTS):
        found.update(document.inputs)
    for skill in SKILLS:
        for document in corpus.skill_documents(skill, seed, CHECK_DOCUMENTS):
            found.update(document.inputs)
    return found


def describe():
    """The list of skills with one prompt that can be sent to every adapter."""
    skills = [{"name": name, "description": skill.description, "example_answer": skill.answer(EXAMPLE)}
              for name, skill in SKILLS.items()]
    return {"example_input": EXAMPLE, "example_prompt": prompt_of(EXAMPLE), "skills": skills}


# ---- command line ----------------------------------------------------------------------------------------------------

def of_set(name):
    """The module of a set: SKILLS, MIN_WITH, prompts, messages, is_heldout, trained_inputs and describe."""
    if name == "documents":
        import notes
        return notes
    return sys.modules[__name__]


def check(demo, seed, count):
    """Draws training documents of the base and of every adapter and held-out inputs; returns how many inputs they share."""
    trained = demo.trained_inputs(seed)
    shared = sum(map(demo.is_heldout, trained))
    for skill in demo.SKILLS:
        held = {sample["input"] for sample in demo.prompts(skill, seed, count, "heldout")}
        shared += len(held & trained)
        print(f"{skill}: {len(held)} held-out inputs, {len(held & trained)} of them in {len(trained)} training inputs")
    return shared


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--set", choices=SETS, default="words", help="which of the two demos")
    parser.add_argument("--skill")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--split", choices=SPLITS, default="heldout")
    parser.add_argument("--dialogue", action="store_true", help="one question with its answer before each, as "
                        "loralei calibrate-kv reads them")
    parser.add_argument("--check", action="store_true", help="exit 1 when training and held-out inputs overlap")
    parser.add_argument("--describe", action="store_true", help="print the list of skills as JSON")
    options = parser.parse_args()
    demo = of_set(options.set)
    if options.describe:
        print(json.dumps(demo.describe(), indent=2))
        return 0
    if options.check:
        return 1 if check(demo, options.seed, options.count) else 0
    if options.dialogue and options.set != "words":
        parser.error("--dialogue is of the words: a document's prompts are long enough by themselves")
    if options.skill not in ([*demo.SKILLS, "base"] if options.dialogue else demo.SKILLS):
        parser.error(f"give --skill with one of {', '.join(demo.SKILLS)}, or --check or --describe")
    made = dialogues if options.dialogue else demo.prompts
    for sample in made(options.skill, options.seed, options.count, options.split):
        print(json.dumps(sample))
    return 0


if __name__ == "__main__":
    sys.exit(main())
