# SPDX-License-Identifier: Apache-2.0
"""GGUF files without tensors that hold the same vocabularies as other folders here, in llama.cpp's keys."""
import json

import gguf
import sentencepiece as spm
from tokenizers import Tokenizer

from make_hf_tokenizers import decodes_of, vectors
from make_spm import decodes_of as spm_decodes
from vectors_common import TOKENIZERS, case, folder, nasty, write_vectors

Kind = gguf.TokenType
# name -> (source, tokenizer.ggml.pre, bos token or None)
BYTE_LEVEL = {
    "gguf-gpt2": ("bl-gpt2", "gpt-2", None),
    "gguf-llama3": ("bl-llama3", "llama-bpe", "<|begin_of_text|>"),
    "gguf-qwen2": ("bl-qwen2", "qwen2", None),
}


def start(name, model, pre):
    path = folder(name) / "vocab.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    return path, writer


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def piece_kind(processor, i):
    if processor.is_unknown(i):
        return Kind.UNKNOWN
    if processor.is_control(i):
        return Kind.CONTROL
    return Kind.BYTE if processor.is_byte(i) else Kind.NORMAL


def sentencepiece_vocab(name, source):
    path, writer = start(name, "llama", "default")
    processor = spm.SentencePieceProcessor(model_file=str(TOKENIZERS / source / "tokenizer.model"))
    ids = range(processor.get_piece_size())
    writer.add_token_list([processor.id_to_piece(i) for i in ids])
    writer.add_token_scores([processor.get_score(i) for i in ids])
    writer.add_token_types([piece_kind(processor, i) for i in ids])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(True)
    finish(writer)
    cases = []
    for item in nasty():
        if not any(mark in item["text"] for mark in ("<s>", "</s>", "<unk>")):  # servers differ in what they match
            plain = processor.encode(item["text"])
            cases.append(case(item, [1] + plain, plain, processor.decode([1] + plain), processor.decode(plain)))
    write_vectors(path.parent, "vocab.gguf", f"{source} as GGUF; control symbols do not occur in the texts", cases,
                  spm_decodes(source, processor))


def byte_level_vocab(name, source, pre, bos):
    path, writer = start(name, "gpt2", pre)
    text = json.loads((TOKENIZERS / source / "tokenizer.json").read_text(encoding="utf-8"))
    kinds = {}
    for added in text["added_tokens"]:
        kinds[added["content"]] = Kind.CONTROL if added["special"] else Kind.USER_DEFINED
    tokens = dict(text["model"]["vocab"]) | {added["content"]: added["id"] for added in text["added_tokens"]}
    ordered = sorted(tokens, key=tokens.get)
    assert [tokens[t] for t in ordered] == list(range(len(ordered)))
    merges = [m if isinstance(m, str) else " ".join(m) for m in text["model"]["merges"]]
    writer.add_token_list(ordered)
    writer.add_token_types([kinds.get(t, Kind.NORMAL) for t in ordered])
    writer.add_token_merges(merges)
    if bos:
        writer.add_bos_token_id(tokens[bos])
    writer.add_add_bos_token(bos is not None)
    finish(writer)
    text["normalizer"] = None  # GGUF has no normaliser for these
    tokenizer = Tokenizer.from_str(json.dumps(text))
    write_vectors(path.parent, "vocab.gguf", f"{source} as GGUF, no normaliser; special tokens in the text are matched",
                  vectors(tokenizer), decodes_of(source, tokenizer))


def main():
    sentencepiece_vocab("gguf-spm", "spm-bpe")
    for name, (source, pre, bos) in BYTE_LEVEL.items():
        byte_level_vocab(name, source, pre, bos)


if __name__ == "__main__":
    main()
