# SPDX-License-Identifier: Apache-2.0
"""The training text of the second demo model: documents, each followed by many questions that do not see each other.

The base answers questions under a tag ("Q: who: lamps"), which are relatives of the skills: lists with other separators,
a count as a word, single fields; and questions about one person, which teach it to find a note and its neighbours about
the same thing. Without a tag it repeats the word. So an adapter has little to add, and the base alone does none of the skills.
"""
import json
import random

import notes
from notes import people
from notes_words import COLORS, DEEDS, LONGEST_MONTH, MONTHS, NUMBERS, PEOPLE, THINGS, TOWNS


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

# tag: (weight, answer to the notes about a thing)
ABOUT_THING = {
    "who": (5, lambda found: ", ".join(people(found))),
    "loud": (4, lambda found: "/".join(people(found)).upper()),
    "letters": (4, lambda found: "-".join(who[0] for who in people(found))),
    "back": (5, lambda found: "/".join(reversed(people(found)))),
    "size": (4, lambda found: NUMBERS[len(found)]),
    "first": (2, lambda found: found[0].who),
    "last": (2, lambda found: found[-1].who),
    "when": (2, lambda found: found[0].date),
    "days": (2, lambda found: ", ".join(note.date for note in found)),
    "pair": (2, lambda found: json.dumps({"item": found[0].thing, "who": found[0].who})),
}


def neighbour(document, note, by):
    """The person of the next or previous note about the same thing."""
    found = document.about[note.thing]
    place = found.index(note) + by
    return found[place].who if 0 <= place < len(found) else "none"


# tag: (weight, answer to a document and the note of a person)
ABOUT_PERSON = {
    "what": (1, lambda document, note: note.thing),
    "day": (1, lambda document, note: note.date),
    "town": (1, lambda document, note: note.town),
    "yell": (1, lambda document, note: note.who.upper()),
    "note": (1, lambda document, note: json.dumps({"who": note.who, "date": note.date})),
    "rank": (2, lambda document, note: NUMBERS[document.about[note.thing].index(note) + 1]),
    "prior": (2, lambda document, note: neighbour(document, note, -1)),
    "after": (2, lambda document, note: neighbour(document, note, 1)),
}
STAGES = [(4, 12), (8, 32), (12, notes.LONGEST)]     # notes of a document while the base is trained: they get longer
ECHO = 2
DRAWS = 100                      # more than fit in a row
TAGS = list(ABOUT_THING) + list(ABOUT_PERSON) + ["echo"]
WEIGHTS = [weight for weight, _ in [*ABOUT_THING.values(), *ABOUT_PERSON.values()]] + [ECHO]


def tagged_turns(rng, document):
    """Different questions of the base on a document."""
    things, lacking = list(document.about.items()), [thing for thing in THINGS if thing not in document.about]
    for _ in range(DRAWS):
        tag = rng.choices(TAGS, weights=WEIGHTS)[0]
        if tag in ABOUT_THING:
            thing, found = rng.choice(things)
            if tag == "size" and lacking and rng.randrange(notes.MOST + 1) == 0:
                thing, found = rng.choice(lacking), []
            yield tag, notes.tail_of(f"{tag}: {thing}"), ABOUT_THING[tag][1](found)
        elif tag in ABOUT_PERSON:
            note = rng.choice(document.notes)
            yield tag, notes.tail_of(f"{tag}: {note.who}"), ABOUT_PERSON[tag][1](document, note)
        else:
            word = rng.choice(PEOPLE if rng.random() < 0.2 else THINGS)
            yield tag, notes.tail_of(word), word


# ---- documents -------------------------------------------------------------------------------------------------------

def readings(rng, split, lengths, turns):
    """Endless documents of `lengths` notes. The questions of one have their own random numbers: however many are taken,
    the next document is the same."""
    while True:
        document = notes.draw(rng, split, *lengths)
        yield Reading(document.text, turns(random.Random(rng.random()), document))


def base_documents(seed, split="train", lengths=(notes.SHORTEST, notes.LONGEST)):
    """Training documents of the base."""
    return readings(random.Random(f"notes base {split} {seed} {lengths}"), split, lengths, tagged_turns)


def skill_documents(skill, seed, split="train", lengths=(notes.SHORTEST, notes.LONGEST)):
    """Training documents of an adapter."""
    def turns(rng, document):
        for _ in range(DRAWS):
            question, found = notes.SKILLS[skill].question(rng, document)
            yield skill, notes.tail_of(question), notes.SKILLS[skill].answer(found)

    return readings(random.Random(f"notes adapter {skill} {split} {seed} {lengths}"), split, lengths, turns)


def vocabulary_text(seed, count):
    """Text for the tokenizer: every word alone and inside a line, single capitals and digits, names also in capitals."""
    rng = random.Random(f"notes vocabulary {seed}")
    words = PEOPLE + [name.upper() for name in PEOPLE] + THINGS + DEEDS + COLORS + TOWNS + MONTHS + NUMBERS + TAGS
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
            yield "\n".join(skill.answer(found) for skill in notes.SKILLS.values() for found in document.about.values())
