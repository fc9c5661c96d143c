# SPDX-License-Identifier: Apache-2.0
"""The training text of the second demo model: documents, each followed by many questions that do not see each other.

The base answers questions under a tag ("Q: walk: Mara"), which are relatives of the skills: lists with other separators,
a count as a word, single fields. Without a tag it repeats the word. So an adapter has little to add, and the base alone does
none of the skills.
"""
import json
import random

import notes
from notes import around, following, preceding
from notes_words import COLORS, LONGEST_MONTH, MONTHS, NUMBERS, PEOPLE, THINGS, TOWNS


class Reading:
    """One training document: a text that comes first, and different turns (tag, prompt text, answer text) on it."""

    def __init__(self, text, turns):
        self.text, self.inputs = text, [text]
        self.turns = different(turns)


def different(turns):
    """The turns without repeated ones."""
    seen = set()
    for turn in turns:
        if turn not in seen:
            seen.add(turn)
            yield turn


# ---- operations of the base ------------------------------------------------------------------------------------------

def two_lines(document, note):
    """The note and the next one."""
    place = document.notes.index(note)
    return "\n".join(document.text.split("\n")[place:place + 2])


# tag: (weights early, late and last in training, where questions come from, answer to a document and what is known)
OPERATIONS = {
    "size": ((6, 6, 0), notes.any_thing, lambda document, found: NUMBERS[len(found)]),
    "first": ((2, 1, 0), notes.any_thing, lambda document, found: found[0].who if found else "none"),
    "copy": ((2, 0, 0), notes.any_person, two_lines),
    "what": ((2, 4, 2), notes.any_person, lambda document, note: note.thing),
    "when": ((2, 2, 2), notes.any_person, lambda document, note: note.date),
    "pair": ((3, 2, 4), notes.any_person, lambda document, note: json.dumps({"who": note.who, "date": note.date})),
    "thing": ((2, 4, 4), notes.any_person, lambda document, note: json.dumps({"item": note.thing})),
    "yell": ((1, 0, 0), notes.any_person, lambda document, note: note.who.upper()),
    "walk": ((4, 3, 4), notes.any_person, lambda document, note: "/".join(following(document, note))),
    "loud": ((3, 3, 5), notes.any_person, lambda document, note: "-".join(following(document, note)).upper()),
    "letters": ((4, 6, 0), notes.any_person, lambda document, note: "-".join(who[0] for who in following(document, note))),
    "back": ((4, 0, 0), notes.later_person, lambda document, note: "/".join(preceding(document, note))),
    "turn": ((0, 6, 6), notes.later_person, lambda document, note: " -> ".join(preceding(document, note))),
    "near": ((0, 0, 6), notes.middle_person, lambda document, note: "-".join(who[0] for who in around(document, note))),
    "few": ((0, 0, 7), notes.rare_thing, lambda document, found: NUMBERS[len(found)]),
    "prior": ((2, 2, 1), notes.later_person, lambda document, note: json.dumps(preceding(document, note)[:1])),
    "echo": ((2, 2, 2), None, None),
}
# What the tokenizer sees of answers: where questions come from, the answer.
FORMS = [
    (notes.any_person, lambda document, note: json.dumps({"who": note.who, "item": note.thing, "date": note.date})),
    (notes.any_thing, lambda document, found: str(len(found))),
    (notes.any_person, lambda document, note: "/".join(following(document, note)).upper()),
    (notes.any_person, lambda document, note: "".join(f"{who[0]}." for who in following(document, note))),
    (notes.later_person, lambda document, note: json.dumps(preceding(document, note))),
]
VOCABULARY_TAGS = [tag for tag in OPERATIONS if tag not in ("turn", "near", "few")]
DRAWS = 100                      # more than fit in a row
# Notes of a document while the base is trained, and which of the weights are taken.
STAGES = [((4, 12), 0), ((8, 28), 0), ((8, 28), 1), ((12, notes.LONGEST), 2)]


def tagged_turns(rng, document, part):
    """Questions of the base on a document."""
    tags, weights = list(OPERATIONS), [weight[part] for weight, _, _ in OPERATIONS.values()]
    for _ in range(DRAWS):
        tag = rng.choices(tags, weights=weights)[0]
        if tag == "echo":
            word = rng.choice((rng.choice(THINGS), rng.choice(PEOPLE), rng.choice(document.notes).who))
            yield tag, notes.tail_of(word), word
        else:
            _, source, answer = OPERATIONS[tag]
            question, known = source(rng, document)
            yield tag, notes.tail_of(f"{tag}: {question}"), answer(document, known)


# ---- documents -------------------------------------------------------------------------------------------------------

def readings(rng, split, lengths, turns):
    """Endless documents of `lengths` notes. The questions of one have their own random numbers: however many are taken,
    the next document is the same."""
    while True:
        document = notes.draw(rng, split, *lengths)
        yield Reading(document.text, turns(random.Random(rng.random()), document))


def base_documents(seed, split, stage):
    """Training documents of the base in a stage."""
    lengths, part = STAGES[stage]
    name = f"notes base {split} {seed} {lengths}" + ("", " late", " last")[part]
    return readings(random.Random(name), split, lengths, lambda rng, document: tagged_turns(rng, document, part))


def skill_documents(skill, seed, split="train", lengths=(notes.SHORTEST, notes.LONGEST)):
    """Training documents of an adapter."""
    def turns(rng, document):
        for _ in range(DRAWS):
            question, answer = notes.SKILLS[skill].ask(rng, document)
            yield skill, notes.tail_of(question), answer

    return readings(random.Random(f"notes adapter {skill} {split} {seed} {lengths}"), split, lengths, turns)


def vocabulary_text(seed, count):
    """Text for the tokenizer: every word alone and inside a line, single capitals and digits, names also in capitals."""
    rng = random.Random(f"notes vocabulary {seed}")
    words = PEOPLE + [name.upper() for name in PEOPLE] + THINGS + COLORS + TOWNS + MONTHS + NUMBERS + VOCABULARY_TAGS
    words += ["none", "who", "item", "date", "in"] + [str(day + 1) for day in range(LONGEST_MONTH)]
    letters = [chr(ord("A") + place) for place in range(26)] + list("0123456789")
    for _ in range(count):
        for word in rng.sample(words, len(words)):
            yield from [word, " " + word] * 2
        for letter in letters:
            yield from [" " + letter] * 8
        for _ in range(4):
            document = notes.any_notes(rng)
            yield document.text
            yield "\n".join(form(document, source(rng, document)[1]) for source, form in FORMS for _ in range(8))
