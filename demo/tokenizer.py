# SPDX-License-Identifier: Apache-2.0
"""Byte-level BPE tokenizer of the demo model, in Hugging Face format."""
import json
import re
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
VOCABULARY = 1792
ROUNDS = 6
MAX_POSITIONS = 4096

# "Q: ...\nA:" for every user message, the line itself for any other role; the answer ends with <|end|>.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ 'Q: ' + message['content'] + '\\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ 'A:' + message['content'] + eos_token + '\\n' }}"
    "{% else %}{{ message['content'] + '\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'A:' }}{% endif %}"
)


def train_tokenizer(texts, folder, vocabulary=VOCABULARY):
    """Trains the tokenizer on the project's own texts and writes tokenizer.json and tokenizer_config.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[BEGIN, END, PAD], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A $B", special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BEGIN, "eos_token": END, "pad_token": PAD,
        "add_bos_token": True, "add_eos_token": False, "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS, "model_input_names": ["input_ids", "attention_mask"],
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


class Encoder:
    """Turns documents into token ids with the weight of every token in the loss."""

    PROMPT, ANSWER, PLAIN = 0.05, 1.0, 0.3

    def __init__(self, folder):
        self.tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        self.begin, self.end, self.pad = map(self.tokenizer.token_to_id, (BEGIN, END, PAD))
        self._cache = {}

    def ids(self, text):
        """Token ids of a text without the leading <|begin|>. Encoded piece by piece, since pieces come again and again."""
        found = []
        for piece in PIECE.findall(text):
            if piece not in self._cache:
                self._cache[piece] = self.tokenizer.encode(piece, add_special_tokens=False).ids
            found += self._cache[piece]
        return found

    def encode(self, document):
        """(ids, weights): weights[i] is the weight of predicting ids[i]."""
        ids, weights = [self.begin], [0.0]

        def add(tokens, weight):
            ids.extend(tokens)
            weights.extend([weight] * len(tokens))

        if document.plain:
            add(self.ids(document.plain) + [self.end], self.PLAIN)
        if document.line:
            add(self.ids(document.line + "\n"), self.PROMPT)
        for number, (prompt, answer) in enumerate(document.turns):
            add(self.ids(("\n" if number else "") + prompt), self.PROMPT)
            add(self.ids(answer) + [self.end], self.ANSWER)
        return ids, weights

    def encode_reading(self, reading, length):
        """(ids, weights, positions, branches, tags) of a reading in at most `length` tokens: its text is branch 0, every turn
        that fits is a branch of its own whose positions follow the text. `tags[branch - 1]` is the turn's tag."""
        ids = [self.begin] + self.ids(reading.text)
        start = len(ids)
        weights, positions, branches, tags = [0.0] * start, list(range(start)), [0] * start, []
        for tag, prompt, answer in reading.turns:
            prompt, answer = self.ids(prompt), self.ids(answer) + [self.end]
            if len(ids) + len(prompt) + len(answer) > length:
                break
            tags.append(tag)
            ids += prompt + answer
            weights += [0.0] * len(prompt) + [self.ANSWER] * len(answer)
            positions += range(start, start + len(prompt) + len(answer))
            branches += [len(tags)] * (len(prompt) + len(answer))
        return ids, weights, positions, branches, tags


# The pre-tokeniser's pieces (ASCII form of GPT-2's pattern): merges never cross them.
PIECE = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")
