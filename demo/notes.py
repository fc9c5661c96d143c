# SPDX-License-Identifier: Apache-2.0
"""Generator of the second demo: documents of 300 to 800 tokens and the skills that read them, standard library only.

A document is a list of notes, one a line, in the order of their dates:

    3 Jan: Mara bought red lamps in Oslo.

Nobody comes twice in a document; a thing comes in one to five notes or in none. The prompt is the document, then a line
that names a thing ("Q: lamps"), then "A:": one and the same prompt for every skill. A document is reserved for tests when
a hash of its text says so (one in eight), as the inputs of the first demo are.
"""
import hashlib
import json
import random
from collections import namedtuple

from notes_words import COLORS, DEEDS, LONGEST_MONTH, MONTHS, PEOPLE, THINGS, TOWNS

SHORTEST, LONGEST = 28, 72       # notes of a document: 11 tokens each
MOST = 5                         # notes about one thing
MIN_WITH = 90                    # percent that a skill must reach with its adapter
CHECK_DOCUMENTS = 1500

Note = namedtuple("Note", "date who deed color thing town")


class Notes:
    """A document and what its notes say about each thing."""

    def __init__(self, notes):
        self.notes = notes
        self.text = "\n".join(f"{note.date}: {note.who} {note.deed} {note.color} {note.thing} in {note.town}." for note in notes)
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
    return Notes([Note(f"{day % LONGEST_MONTH + 1} {MONTHS[day // LONGEST_MONTH]}", who, rng.choice(DEEDS), rng.choice(COLORS),
                       thing, rng.choice(TOWNS))
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

def people(found):
    """The people of some notes."""
    return [note.who for note in found]


class Skill:
    """What an adapter was trained to do: the answer to the notes about a thing, and whether there may be none."""

    def __init__(self, answer, description, may_lack=False):
        self.answer, self.description, self.may_lack = answer, description, may_lack

    def question(self, rng, notes):
        """A thing that is asked about, and its notes."""
        if self.may_lack and rng.randrange(MOST + 1) == 0:
            lacking = [thing for thing in THINGS if thing not in notes.about]
            if lacking:
                return rng.choice(lacking), []
        return rng.choice(list(notes.about.items()))


SKILLS = {
    "json": Skill(lambda found: json.dumps({"who": found[0].who, "item": found[0].thing, "date": found[0].date}),
                  "the first note about the thing as a JSON object"),
    "count": Skill(lambda found: str(len(found)), "how many notes are about the thing", may_lack=True),
    "list": Skill(lambda found: " ".join(people(found)).upper(), "the people of these notes in capitals"),
    "initials": Skill(lambda found: "".join(f"{who[0]}." for who in people(found)), "the first letters of their names"),
    "order": Skill(lambda found: ", ".join(reversed(people(found))), "the people from the latest date to the earliest"),
}


def samples(skill, seed, split):
    """Endless (document, question, answer) of a skill."""
    rng = random.Random(f"notes {skill} {split} {seed}")
    while True:
        notes = draw(rng, split)
        question, found = SKILLS[skill].question(rng, notes)
        yield notes, question, SKILLS[skill].answer(found)


def prompts(skill, seed, count, split):
    """The first `count` samples as dictionaries with prompt, input, question and answer."""
    return [{"prompt": notes.text + tail_of(question), "input": notes.text, "question": question, "answer": answer}
            for _, (notes, question, answer) in zip(range(count), samples(skill, seed, split))]


def messages(sample):
    """The sample as chat messages: the template writes the same prompt."""
    return [{"role": "system", "content": sample["input"]}, {"role": "user", "content": sample["question"]}]


def trained_inputs(seed):
    """Documents that the base and every adapter are trained on: the first of them."""
    import notes_corpus
    streams = [notes_corpus.base_documents(seed, "train", lengths) for lengths in notes_corpus.STAGES]
    streams += [notes_corpus.skill_documents(skill, seed) for skill in SKILLS]
    return {reading.text for stream in streams for _, reading in zip(range(CHECK_DOCUMENTS), stream)}


def describe():
    """The list of skills with one prompt that can be sent to every adapter: the first held-out one with three notes to find."""
    notes, question = next((notes, question) for notes, question, _ in samples("json", "example", "heldout")
                           if len(notes.about[question]) == 3)
    found = notes.about[question]
    skills = [{"name": name, "description": skill.description, "example_answer": skill.answer(found)}
              for name, skill in SKILLS.items()]
    return {"example_input": notes.text, "example_question": question, "example_prompt": notes.text + tail_of(question),
            "skills": skills}
