# SPDX-License-Identifier: Apache-2.0
"""Generator of the second demo: documents of 300 to 800 tokens and the skills that read them, standard library only.

A document is a list of notes, one a line, in the order of their dates:

    Mara (3 Jan): red lamps in Oslo.

Nobody comes twice in a document; a thing comes in one to five notes or in none. The prompt is the document, then a line
that names a person ("Q: Mara"), then "A:": one prompt form for every skill. A document is reserved for tests when
a hash of its text says so (one in eight), as the inputs of the first demo are.
"""
import hashlib
import json
import random
from collections import namedtuple

from notes_words import COLORS, LONGEST_MONTH, MONTHS, PEOPLE, THINGS, TOWNS

SHORTEST, LONGEST = 28, 72       # notes of a document: 11 tokens each
MOST = 5                         # notes about one thing
RARE = 3                         # notes about a thing that is counted
WALK = 3                         # people before or after somebody
MIN_WITH = 90                    # percent that a skill must reach with its adapter
CHECK_DOCUMENTS = 1500

Note = namedtuple("Note", "who date color thing town")


class Notes:
    """A document and what its notes say about each thing."""

    def __init__(self, notes):
        self.notes = notes
        self.text = "\n".join(f"{note.who} ({note.date}): {note.color} {note.thing} in {note.town}." for note in notes)
        self.about = {}
        for note in notes:
            self.about.setdefault(note.thing, []).append(note)


def any_notes(rng, shortest=SHORTEST, longest=LONGEST):
    """A random document: things are drawn with one to five notes each until there are enough notes."""
    count = rng.randint(shortest, longest)
    things = []
    for thing in rng.sample(THINGS, len(THINGS)):
        things += [thing] * min(rng.randint(1, MOST), count - len(things))
    while len(things) < count:
        things.append(rng.choice([thing for thing in THINGS if things.count(thing) < MOST]))
    rng.shuffle(things)
    days = sorted(rng.sample(range(len(MONTHS) * LONGEST_MONTH), count))
    return Notes([Note(who, f"{day % LONGEST_MONTH + 1} {MONTHS[day // LONGEST_MONTH]}", rng.choice(COLORS), thing,
                       rng.choice(TOWNS))
                  for day, who, thing in zip(days, rng.sample(PEOPLE, count), things)])


def is_heldout(text):
    """True when the document `text` is reserved for tests."""
    return hashlib.sha256(text.encode()).digest()[0] < 32


def draw(rng, split, shortest=SHORTEST, longest=LONGEST):
    """A document that belongs to `split`."""
    while True:
        notes = any_notes(rng, shortest, longest)
        if is_heldout(notes.text) == (split == "heldout"):
            return notes


def tail_of(question):
    """What follows the document in a prompt."""
    return f"\nQ: {question}\nA:"


# ---- answers ---------------------------------------------------------------------------------------------------------

def following(document, note):
    """The person of a note and of the three after it, as far as there are notes."""
    place = document.notes.index(note)
    return [other.who for other in document.notes[place:place + WALK + 1]]


def preceding(document, note):
    """The people of the three notes before a note, the nearest first, as far as there are notes."""
    place = document.notes.index(note)
    return [other.who for other in reversed(document.notes[max(0, place - WALK):place])]


def around(document, note):
    """The person before a note, its person, the person after it."""
    place = document.notes.index(note)
    return [other.who for other in document.notes[place - 1:place + 2]]


def any_person(rng, document):
    """A question for a person, and what is known: the person's note."""
    note = rng.choice(document.notes)
    return note.who, note


def later_person(rng, document):
    """As `any_person`, but nobody who comes first."""
    note = rng.choice(document.notes[1:])
    return note.who, note


def middle_person(rng, document):
    """As `any_person`, but nobody who comes first or last."""
    note = rng.choice(document.notes[1:-1])
    return note.who, note


def any_thing(rng, document, most=MOST):
    """A question for a thing, now and then one that does not occur, and the notes about it: `most` at most."""
    lacking = [thing for thing in THINGS if thing not in document.about]
    known = [(thing, found) for thing, found in document.about.items() if len(found) <= most]
    if lacking and rng.randrange(most + 1) == 0 or not known:
        return rng.choice(lacking), []
    return rng.choice(known)


def rare_thing(rng, document):
    """As `any_thing`, with three notes at most."""
    return any_thing(rng, document, RARE)


class Skill:
    """What an adapter was trained to do: where its questions come from and what the right answer is."""

    def __init__(self, question, answer, description):
        self.question, self.answer, self.description = question, answer, description

    def ask(self, rng, document):
        """A question and its answer."""
        question, known = self.question(rng, document)
        return question, self.answer(document, known)


SKILLS = {
    "json": Skill(any_person, lambda document, note: json.dumps({"who": note.who, "item": note.thing, "date": note.date}),
                  "the person's note as a JSON object"),
    "count": Skill(any_person, lambda document, note: "/".join(f"{number}/{who}" for number, who in
                                                               enumerate(following(document, note), 1)),
                   "counts the person and the next three off"),
    "list": Skill(any_person, lambda document, note: "/".join(following(document, note)).upper(),
                  "the person and the next three in capitals"),
    "initials": Skill(middle_person, lambda document, note: "".join(f"{who[0]}." for who in around(document, note)),
                      "the first letters of the person before, the person and the next one"),
    "order": Skill(later_person, lambda document, note: " <- ".join(preceding(document, note)),
                   "the three people before, from the latest date to the earliest"),
}


def samples(skill, seed, split):
    """Endless (document, question, answer) of a skill."""
    rng = random.Random(f"notes {skill} {split} {seed}")
    while True:
        document = draw(rng, split)
        yield document, *SKILLS[skill].ask(rng, document)


def prompts(skill, seed, count, split):
    """The first `count` samples as dictionaries with prompt, input, question and answer."""
    return [{"prompt": document.text + tail_of(question), "input": document.text, "question": question, "answer": answer}
            for _, (document, question, answer) in zip(range(count), samples(skill, seed, split))]


def messages(sample):
    """The sample as chat messages: the template writes the same prompt."""
    return [{"role": "system", "content": sample["input"]}, {"role": "user", "content": sample["question"]}]


def trained_inputs(seed):
    """Documents that the base and every adapter are trained on: the first of them."""
    import notes_corpus
    streams = [notes_corpus.base_documents(seed, "train", stage) for stage in range(len(notes_corpus.STAGES))]
    streams += [notes_corpus.skill_documents(skill, seed) for skill in SKILLS]
    return {reading.text for stream in streams for _, reading in zip(range(CHECK_DOCUMENTS), stream)}


def describe():
    """The list of skills with one prompt, a held-out document and a person of it, that can be sent to every adapter."""
    rng = random.Random("notes example")
    document = draw(rng, "heldout")
    note = document.notes[len(document.notes) // 2]
    skills = [{"name": name, "description": skill.description, "example_answer": skill.answer(document, note)}
              for name, skill in SKILLS.items()]
    return {"example_input": document.text, "example_question": note.who,
            "example_prompt": document.text + tail_of(note.who), "skills": skills}
