# SPDX-License-Identifier: Apache-2.0
"""What is trained on what: the two demos' settings, batches and measures of progress, for train.py."""
import itertools
import random

import torch

import corpus
import generate
import notes
import notes_corpus
from prepare import prepare
from tokenizer import ROUNDS, VOCABULARY, Encoder

ENDLESS = 10 ** 9
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALL_LINEAR = ATTENTION + ["gate_proj", "up_proj", "down_proj"]


# ---- batches ---------------------------------------------------------------------------------------------------------

LENGTH = 256                     # tokens of a packed row


def batches(documents, encoder, rows):
    """Endless packed batches: documents fill rows one after the other, attention stays inside a document.

    Yields ids, positions, mask (row, 1, query, key) and per-token loss weights; targets are the next ids."""
    stream = (encoder.encode(document) for document in documents)
    waiting = next(stream)
    while True:
        ids = torch.full((rows, LENGTH), encoder.pad)
        weights = torch.zeros(rows, LENGTH)
        positions = torch.zeros(rows, LENGTH, dtype=torch.long)
        owner = torch.zeros(rows, LENGTH, dtype=torch.long)
        for row in range(rows):
            filled = number = 0
            while filled + len(waiting[0]) <= LENGTH:
                span = slice(filled, filled + len(waiting[0]))
                number += 1
                ids[row, span] = torch.tensor(waiting[0])
                weights[row, span] = torch.tensor(waiting[1])
                positions[row, span] = torch.arange(len(waiting[0]))
                owner[row, span] = number
                filled = span.stop
                waiting = next(stream)
        mask = (owner[:, None, :, None] == owner[:, None, None, :]) & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        yield ids, positions, mask, weights


def branched_batch(documents, encoder, rows, length):
    """One batch of readings, one a row, each with as many turns as fit. A turn sees the text and itself.

    Returns what `batches` yields, and beside it the branch of every token and the tags of every row's branches."""
    ids = torch.full((rows, length), encoder.pad)
    weights = torch.zeros(rows, length)
    positions = torch.zeros(rows, length, dtype=torch.long)
    branches = torch.full((rows, length), -1)
    tags = []
    for row in range(rows):
        found = encoder.encode_reading(next(documents), length)
        filled = slice(0, len(found[0]))
        for target, values in zip((ids, weights, positions, branches), found):
            target[row, filled] = torch.tensor(values, dtype=target.dtype)
        tags.append(found[4])
    keys = branches[:, None, None, :]
    mask = ((keys == branches[:, None, :, None]) | (keys == 0)) & torch.ones(length, length, dtype=torch.bool).tril()
    return (ids, positions, mask, weights), branches, tags


def branched_batches(documents, encoder, rows, length):
    """Endless batches of readings."""
    while True:
        yield branched_batch(documents, encoder, rows, length)[0]


def next_tokens(model, core, batch):
    """Logits of the weighted tokens of a batch, the tokens themselves and their weights."""
    ids, positions, mask, weights = batch
    hidden = core(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False).last_hidden_state
    wanted = weights[:, 1:] > 0
    return model.lm_head(hidden[:, :-1][wanted]).float(), ids[:, 1:][wanted], weights[:, 1:][wanted]


# ---- progress --------------------------------------------------------------------------------------------------------

def accuracy(model, encoder, documents):
    """Share of documents whose whole answer is the most likely one, token by token (what greedy decoding prints)."""
    right = 0
    for document in documents:
        ids, weights = encoder.encode(document)
        answer = [place for place, weight in enumerate(weights) if weight == Encoder.ANSWER]
        with torch.inference_mode():
            found = model(input_ids=torch.tensor([ids])).logits[0].argmax(-1).tolist()
        right += all(found[place - 1] == ids[place] for place in answer)
    return right / len(documents)


def branch_accuracy(model, documents, encoder, rows, length):
    """{tag: share of turns whose whole answer is the most likely one, token by token}."""
    batch, branches, tags = branched_batch(documents, encoder, rows, length)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        logits, targets, _ = next_tokens(model, model.model, batch)
    row_of, place_of = torch.nonzero(batch[3][:, 1:] > 0, as_tuple=True)
    missed = logits.argmax(-1) != targets
    wrong = set(zip(row_of[missed].tolist(), branches[row_of, place_of + 1][missed].tolist()))
    right, seen = {}, {}
    for row, names in enumerate(tags):
        for branch, tag in enumerate(names, 1):
            seen[tag] = seen.get(tag, 0) + 1
            right[tag] = right.get(tag, 0) + ((row, branch) not in wrong)
    return {tag: right[tag] / seen[tag] for tag in sorted(seen)}


def operation_documents(tag, seed, count):
    """Held-out prompts of one operation of the base."""
    rng = random.Random(f"probe {tag} {seed}")
    _, source, answer = corpus.OPERATIONS[tag]
    for _ in range(count):
        text = source(rng)
        yield corpus.Document([text], [(generate.prompt_of(f"{tag}: {text}"), answer(text))])


def skill_documents(skill, seed, count):
    """Held-out prompts of a skill."""
    return [corpus.Document([sample["input"]], [(sample["prompt"], sample["answer"])])
            for sample in generate.prompts(skill, seed, count, "heldout")]


# ---- the two sets ----------------------------------------------------------------------------------------------------

class Words:
    """The first demo: short prompts, packed."""

    model_name, skills, vocabulary = "demo/model", generate.SKILLS, VOCABULARY
    shape = {}                       # what differs from train.py's model_settings
    steps, rate, checkpoint_every, flat, muon, prepare = 4000, 2e-3, 500, 0.4, False, None
    schedule = steps
    rows = 8

    # name: (packed rows of a step, steps of every round, learning rate, LoRA settings)
    adapters = {
        "count": (4, [200], 5e-3, dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])),
        "rotate": (4, [500], 3e-3, dict(r=8, lora_alpha=16, target_modules=ALL_LINEAR)),
        "acronym": (4, [250, 300], 3e-3, dict(r=8, lora_alpha=16, target_modules=ALL_LINEAR,
                                              rank_pattern={"down_proj": 16, "layers.0.self_attn.q_proj": 4},
                                              alpha_pattern={"down_proj": 24, "layers.0.self_attn.q_proj": 8})),
        "numbers": (4, [250, 350], 3e-3, dict(r=16, lora_alpha=32, target_modules=ATTENTION + ["down_proj"])),
        "json": (4, [150], 3e-3, dict(r=16, lora_alpha=32, target_modules=ALL_LINEAR)),
        "reverse": (8, [250, 200], 3e-3, dict(r=16, lora_alpha=32, target_modules=ALL_LINEAR)),
        "shout": (4, [1000, 500], 3e-3, dict(r=32, lora_alpha=12, use_rslora=True, target_modules=ALL_LINEAR)),
        "cipher": (4, [1400, 400], 2e-3, dict(r=64, lora_alpha=64, target_modules=ALL_LINEAR)),
    }

    def vocabulary_text(self, seed):
        """Text for the tokenizer."""
        return corpus.vocabulary_text(seed, ROUNDS)

    def base_batches(self, seed, encoder):
        """Batches of the base."""
        return batches(corpus.base_documents(seed, ENDLESS), encoder, self.rows)

    def base_shares(self, model, encoder, seed):
        """Share of every operation of the base that is right."""
        return {tag: accuracy(model, encoder, list(operation_documents(tag, seed, 40))) for tag in corpus.TAGS}

    def skill_batches(self, name, number, seed, encoder):
        """Batches of an adapter."""
        return batches(corpus.skill_documents(name, seed, ENDLESS), encoder, self.adapters[name][0])

    def skill_share(self, name, model, encoder, seed):
        """Share of a skill's held-out prompts that is right."""
        return accuracy(model, encoder, skill_documents(name, seed, 200))


class Documents:
    """The second demo: long documents, each with as many questions as fit in its row. Documents get longer in stages."""

    model_name, skills, vocabulary = "demo/documents/model", notes.SKILLS, 1408
    shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 5, "rope_theta": 1e6}
    rate, checkpoint_every, flat, muon, prepare = 4e-3, 100, 0.6, True, staticmethod(prepare)
    stages = [(320, 16, 300), (576, 10, 200), (576, 10, 300), (1056, 6, 100)]      # tokens of a row, rows of a step, steps
    steps = sum(stage[-1] for stage in stages)
    schedule = 1150                  # steps that the learning rate is planned for: training ends before it is zero

    # Notes of the adapters' documents and tokens of their rows. Half length gives twice as many questions for the same time.
    long, half = ((notes.SHORTEST, notes.LONGEST), 1056), ((12, 40), 640)
    # name: (rows of a step, steps of every round, learning rate, LoRA settings), and beside it the documents of every round
    documents = {"json": [long, half, half], "count": [half], "list": [half], "initials": [half], "order": [half]}
    adapters = {
        "json": (2, [70, 80, 80], 3e-3, dict(r=16, lora_alpha=32, target_modules=ALL_LINEAR)),
        "count": (2, [100], 5e-3, dict(r=16, lora_alpha=32, target_modules=ALL_LINEAR)),
        "list": (2, [100], 5e-3, dict(r=8, lora_alpha=16, target_modules=ALL_LINEAR)),
        "initials": (2, [100], 5e-3, dict(r=8, lora_alpha=16, target_modules=ALL_LINEAR)),
        "order": (2, [100], 5e-3, dict(r=16, lora_alpha=32, target_modules=ATTENTION + ["down_proj"])),
    }

    def vocabulary_text(self, seed):
        """Text for the tokenizer."""
        return notes_corpus.vocabulary_text(seed, ROUNDS)

    def base_batches(self, seed, encoder):
        """Batches of the base, stage by stage."""
        for stage, (length, rows, steps) in enumerate(self.stages):
            documents = notes_corpus.base_documents(seed, "train", stage)
            yield from itertools.islice(branched_batches(documents, encoder, rows, length), steps)

    def base_shares(self, model, encoder, seed):
        """Share of every operation of the base that is right, on held-out documents of the last stage."""
        last = len(self.stages) - 1
        return branch_accuracy(model, notes_corpus.base_documents(seed, "heldout", last), encoder, 24, self.stages[last][0])

    def skill_batches(self, name, number, seed, encoder):
        """Batches of an adapter's round."""
        lengths, length = self.documents[name][number]
        documents = notes_corpus.skill_documents(name, seed, "train", lengths)
        return branched_batches(documents, encoder, self.adapters[name][0], length)

    def skill_share(self, name, model, encoder, seed):
        """Share of a skill's held-out prompts that is right."""
        return accuracy(model, encoder, [corpus.Document([sample["input"]], [(sample["prompt"], sample["answer"])])
                                         for sample in notes.prompts(name, seed, 60, "heldout")])


COURSES = {"words": Words(), "documents": Documents()}
