# SPDX-License-Identifier: Apache-2.0
"""SentencePiece models trained on corpus.py, and what the sentencepiece library does with the nasty strings."""
import io
import os
import tempfile
from pathlib import Path

import sentencepiece as spm

from corpus import lines
from vectors_common import VOCAB, case, decode_cases, folder, nasty, write_vectors

IDENTITY = dict(normalization_rule_name="identity", remove_extra_whitespaces=False)
LLAMA = dict(split_digits=True, allow_whitespace_only_pieces=True)
# A small character map, since the one of nmt_nfkc takes 240 KB: full-width letters, a ligature, two characters at once.
RULES = ["FF21\t41", "FF22\t42", "FF43\t63", "FB01\t66 69", "65 301\tE9", "AD\t", "3000\t20", "A0\t20", "E000\t2581"]

MODELS = {
    "spm-bpe": ("BPE, byte fallback, identity, dummy prefix: as Llama 2", dict(model_type="bpe") | IDENTITY | LLAMA),
    "spm-bpe-no-prefix": ("BPE without dummy prefix, with user-defined symbols", dict(
        model_type="bpe", add_dummy_prefix=False, user_defined_symbols=["<|im_start|>", "loud", "\u2581\u2581"])
        | IDENTITY),
    "spm-bpe-rules": ("BPE with a small character map, extra spaces removed", dict(
        model_type="bpe", remove_extra_whitespaces=True)),
    "spm-bpe-suffix": ("BPE, the space sign is a suffix of words", dict(
        model_type="bpe", treat_whitespace_as_suffix=True) | IDENTITY),
    "spm-unigram": ("unigram, byte fallback, identity", dict(model_type="unigram") | IDENTITY | LLAMA),
    "spm-unigram-nmt": ("unigram, byte fallback, nmt_nfkc (the default normaliser)", dict(model_type="unigram")),
    "spm-unigram-unk": ("unigram without byte fallback: unknown characters become <unk>", dict(
        model_type="unigram", byte_fallback=False, vocab_size=300) | IDENTITY),
}


def train(options):
    """The serialised model. No path of this machine gets into it: texts come and go through memory."""
    out = io.BytesIO()
    settings = dict(vocab_size=VOCAB, byte_fallback=True, character_coverage=0.995, num_threads=1, minloglevel=2,
                    unk_id=0, bos_id=1, eos_id=2, pad_id=-1) | options
    spm.SentencePieceTrainer.train(sentence_iterator=iter(lines()), model_writer=out, **settings)
    return out.getvalue()


def train_with_rules(options):
    """The trainer reads its character map from a file and stores the name it was given: keep it relative."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        Path("rules.tsv").write_text("".join(rule + "\n" for rule in RULES))
        data = train(options | {"normalization_rule_tsv": "rules.tsv"})
        os.chdir(before)
    return data


def vectors(processor):
    cases = []
    for item in nasty():
        plain = processor.encode(item["text"])
        ids = [processor.bos_id()] + plain
        cases.append(case(item, ids, plain, processor.decode(ids), processor.decode(plain)))
    return cases


def decodes_of(name, processor):
    return decode_cases(name, processor.get_piece_size(), lambda ids, skip: processor.decode(ids))


def main():
    for name, (about, options) in MODELS.items():
        data = train_with_rules(options) if name == "spm-bpe-rules" else train(options)
        path = folder(name)
        (path / "tokenizer.model").write_bytes(data)
        processor = spm.SentencePieceProcessor(model_proto=data)
        write_vectors(path, "tokenizer.model", about + "; ids begin with bos, texts are not searched for control symbols",
                      vectors(processor), decodes_of(name, processor))


if __name__ == "__main__":
    main()
