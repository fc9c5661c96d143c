# SPDX-License-Identifier: Apache-2.0
"""The training text of the demo model: plain text, operations of the base under a tag, and the skills of the adapters.

The base learns the formats of the skills through other operations (for instance capitals joined by '/', a list reversed
with commas, letters shifted the other way), each named by a tag in the prompt ("Q: back: apple river\nA:river, apple").
Without a tag it repeats the text. So an adapter has little to add, and the base alone does none of the skills.
"""
import json
import random

import generate
from generate import draw, fields_of, number, number_word, prompt_of, shift_letter
from words import COLORS, ITEMS, NAMES, PLACES, ROOMS, UNITS, VERBS, WORDS

SYSTEM_SHARE = 0.04
TWO_TURN_SHARE = 0.08


class Document:
    """One training document: turns of (prompt text, answer text) after an optional first line, or plain text.

    `inputs` are the texts a prompt of a skill could hold; they are what the held-out check looks at."""

    def __init__(self, inputs=(), turns=(), line="", plain=""):
        self.inputs, self.turns, self.line, self.plain = list(inputs), list(turns), line, plain


# ---- operations of the base ------------------------------------------------------------------------------------------

def one_word(rng):
    """A single word of any kind."""
    return rng.choice(rng.choice((WORDS, WORDS, WORDS, NAMES, PLACES, VERBS, COLORS, ITEMS)))


def few_words(rng):
    """One to three words of any kind."""
    return " ".join(one_word(rng) for _ in range(rng.randint(1, 3)))


def number_list(rng):
    """One to four numbers."""
    return " ".join(number(rng) for _ in range(rng.randint(1, 4)))


def letter_list(rng):
    """Capital letters with spaces between them."""
    return " ".join(chr(ord("A") + rng.randrange(26)) for _ in range(rng.randint(2, 8)))


def letters_shifted(text, by):
    """The text in capitals, every letter shifted."""
    return "".join(shift_letter(letter, by) for letter in text.upper())


def turned(text):
    """The last word comes to the front."""
    words = text.split()
    return " ".join(words[-1:] + words[:-1])


def swapped(text):
    """The first two words change places."""
    first, second, *rest = text.split()
    return " ".join([second, first, *rest])


# tag: (weight, where inputs come from, answer)
OPERATIONS = {
    "first": (1, generate.any_text, lambda text: text.split()[0]),
    "last": (1, generate.any_text, lambda text: text.split()[-1]),
    "second": (1, generate.any_text, lambda text: text.split()[1]),
    "drop": (2, generate.any_text, lambda text: " ".join(text.split()[1:])),
    "chop": (1, generate.any_text, lambda text: " ".join(text.split()[:-1])),
    "evens": (1, generate.any_text, lambda text: " ".join(text.split()[1::2])),
    "swap": (2, generate.any_text, swapped),
    "turn": (2, generate.any_text, turned),
    "back": (6, generate.any_text, lambda text: ", ".join(reversed(text.split()))),
    "size": (2, generate.any_text, lambda text: UNITS[len(text.split())]),
    "letters": (1, one_word, lambda text: str(len(text))),
    "spell": (3, one_word, lambda text: "-".join(text.lower())),
    "initials": (2, generate.any_text, lambda text: " ".join(word[0] for word in text.lower().split())),
    "yell": (6, few_words, lambda text: "/".join(text.upper().split())),
    "loud": (5, generate.any_text, lambda text: " ".join(text.split()[:-1] + [text.split()[-1].upper()]) + "!"),
    "prior": (7, few_words, lambda text: letters_shifted(text, -1)),
    "after": (3, letter_list, lambda text: letters_shifted(text, 1)),
    "say": (3, number_list, lambda text: ", ".join(map(number_word, text.split()))),
    "list": (2, generate.any_text, lambda text: json.dumps(text.split())),
    "pair": (1, generate.any_text, lambda text: json.dumps({"first": text.split()[0], "last": text.split()[-1]})),
    "who": (1, generate.sentence, lambda text: json.dumps({"who": fields_of(text)["who"]})),
    "what": (1, generate.sentence, lambda text: json.dumps({"item": fields_of(text)["item"], "did": fields_of(text)["did"]})),
    "many": (1, generate.sentence, lambda text: json.dumps({"count": fields_of(text)["count"]})),
    "where": (1, generate.sentence, lambda text: json.dumps({"place": fields_of(text).get("place")})),
    "color": (1, generate.sentence, lambda text: json.dumps({"color": fields_of(text).get("color")})),
}
TAGS = list(OPERATIONS)
WEIGHTS = [weight for weight, _, _ in OPERATIONS.values()]


def tagged_turn(rng):
    """(input, prompt, answer) of one operation of the base."""
    tag = rng.choices(TAGS, weights=WEIGHTS)[0]
    _, source, answer = OPERATIONS[tag]
    text = draw(rng, source, "train")
    return text, prompt_of(f"{tag}: {text}"), answer(text)


def echo_turn(rng):
    """Without a tag the base repeats any kind of text."""
    text = draw(rng, rng.choice((generate.any_text, generate.short_text, generate.text_with_number, generate.sentence)), "train")
    return text, prompt_of(text), text


# ---- plain text ------------------------------------------------------------------------------------------------------

def plain_sentence(rng):
    """One sentence of plain text."""
    name, other = rng.sample(NAMES, 2)
    place, room, color, item, verb = (rng.choice(part) for part in (PLACES, ROOMS, COLORS, ITEMS, VERBS))
    word, second = rng.sample(WORDS, 2)
    return rng.choice((
        f"{name} lives in {place}.",
        f"The {item} are in the {room}.",
        f"{name} {verb} the {color} {item}.",
        f"{name} {verb} {number_word(number(rng))} {item} in {place}.",
        f"One {word} is near the {second}.",
        f"The {word} and the {second} are {color}.",
        f"{name} and {other} met in the {room}.",
        f"{other} asked {name} about the {word}.",
        f"There is a {color} {word} in {place}.",
        f"In the {room} {name} {verb} the {item}.",
    ))


def plain_text(rng):
    """A paragraph of one to eight sentences."""
    return " ".join(plain_sentence(rng) for _ in range(rng.randint(1, 8)))


# ---- documents -------------------------------------------------------------------------------------------------------

def dialogue(rng, turn):
    """A document of one turn or two, now and then after a line such as a system message would give."""
    turns = [turn(rng) for _ in range(2 if rng.random() < TWO_TURN_SHARE else 1)]
    line = plain_sentence(rng) if rng.random() < SYSTEM_SHARE else ""
    return Document([text for text, _, _ in turns], [(prompt, answer) for _, prompt, answer in turns], line)


def base_documents(seed, count):
    """Training documents of the base."""
    rng = random.Random(f"base {seed}")
    for _ in range(count):
        kind = rng.random()
        if kind < 0.12:
            yield Document(plain=plain_text(rng))
        elif kind < 0.25:
            yield dialogue(rng, echo_turn)
        else:
            yield dialogue(rng, tagged_turn)


def skill_documents(skill, seed, count):
    """Training documents of an adapter."""
    rng = random.Random(f"adapter {skill} {seed}")
    source, answer = generate.SKILLS[skill].source, generate.SKILLS[skill].answer

    def turn(rng):
        text = draw(rng, source, "train")
        return text, prompt_of(text), answer(text)

    for _ in range(count):
        yield dialogue(rng, turn)


def vocabulary_text(seed, count):
    """Text for the tokenizer: every word alone and inside a line, single capitals and digits, quotes and braces.

    Words in capitals and numbers of several digits are left out, so that these stay single characters."""
    rng = random.Random(f"vocabulary {seed}")
    words = WORDS + NAMES + PLACES + VERBS + COLORS + ITEMS + ROOMS + UNITS + generate.TENS
    letters = [chr(ord("A") + place) for place in range(26)] + list("0123456789")
    for _ in range(count):
        for word in rng.sample(words, len(words)):
            yield word
            yield " " + word
        for letter in letters + [letter.lower() for letter in letters[:26]]:
            yield from [" " + letter] * 8
        for tag in TAGS:
            yield from [f" {tag}"] * 2
        for _ in range(40):
            yield plain_text(rng)
        for _ in range(20):
            yield json.dumps({**fields_of(generate.sentence(rng)), "count": 1})
            yield json.dumps(rng.sample(WORDS, 3))
