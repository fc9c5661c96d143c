# SPDX-License-Identifier: Apache-2.0
"""tokenizer.json files: byte-level BPE trained here, and the SentencePiece models of make_spm.py in this form."""
import json

import sentencepiece as spm
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from corpus import lines
from vectors_common import TOKENIZERS, VOCAB, case, decode_cases, folder, nasty, write_vectors

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = WORDS + r"|\p{N}{1,3}" + REST
QWEN2 = WORDS + r"|\p{N}" + REST
META = "\u2581"


def special(*texts):
    return [AddedToken(text, special=True, normalized=False) for text in texts]


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train_byte_level(pre_tokenizer, normalizer=None, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(lines(), trainers.BpeTrainer(
        vocab_size=VOCAB - 16, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def bos(tokenizer, token):
    return processors.TemplateProcessing(single=f"{token} $A", special_tokens=[(token, tokenizer.token_to_id(token))])


def gpt2():
    tokenizer = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
    tokenizer.add_special_tokens(special("<|endoftext|>"))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def gpt2_prefix_nfkc():
    tokenizer = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True), normalizers.NFKC())
    tokenizer.add_special_tokens(special("<|endoftext|>"))
    return tokenizer


def with_unreachable(tokenizer, *pieces):
    """Pieces that no merge leads to: with ignore_merges a word that is a piece is taken whole."""
    value = json.loads(tokenizer.to_str())
    vocabulary = value["model"]["vocab"]
    vocabulary |= {piece: len(vocabulary) + i for i, piece in enumerate(pieces)}
    return Tokenizer.from_str(json.dumps(value))


def llama3():
    tokenizer = with_unreachable(train_byte_level(split(LLAMA3), ignore_merges=True), "\u0120hello", "hello", "345")
    tokenizer.add_special_tokens(special("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"))
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True),
                                                    bos(tokenizer, "<|begin_of_text|>")])
    return tokenizer


def qwen2():
    tokenizer = train_byte_level(split(QWEN2), normalizers.NFC())
    tokenizer.add_special_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in (
        "<tool_call>", "</tool_call>", "<think>", "</think>")])
    return tokenizer


def added_tokens():
    """Every flag of an added token, over a normaliser that changes text."""
    tokenizer = train_byte_level(split(QWEN2), normalizers.NFKC())
    tokenizer.add_special_tokens(special("<|im_start|>", "<|im_end|>", "<s>", "</s>"))
    tokenizer.add_tokens([
        AddedToken("lefty", lstrip=True, normalized=False), AddedToken("righty", rstrip=True, normalized=False),
        AddedToken("solo", single_word=True, normalized=False),
        AddedToken("foo", normalized=True), AddedToken("Foo", normalized=True),
        AddedToken("caf\u00e9-tok", normalized=True),
        AddedToken("loud", normalized=False), AddedToken("louder", normalized=False),
        AddedToken("<tool_call>", normalized=False)])
    tokenizer.add_special_tokens([AddedToken("quiet", lstrip=True, rstrip=True, special=True, normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[(t, tokenizer.token_to_id(t)) for t in ("<s>", "</s>")])
    return tokenizer


def pieces_of(name):
    processor = spm.SentencePieceProcessor(model_file=str(TOKENIZERS / name / "tokenizer.model"))
    return [(processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.get_piece_size())]


def merges_of(pieces):
    """A pair may merge if the whole is a piece; better-scored pieces first: the usual conversion of SentencePiece BPE."""
    ids = {piece: i for i, (piece, _) in enumerate(pieces)}
    merges = []
    for piece, score in pieces:
        pairs = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in ids and piece[i:] in ids]
        merges += [(left, right, score) for left, right in sorted(pairs, key=lambda p: (ids[p[0]], ids[p[1]]))]
    merges.sort(key=lambda m: -m[2])
    return ids, [(left, right) for left, right, _ in merges]


def llama_decoder(strip):
    steps = [decoders.Replace(META, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + ([decoders.Strip(content=" ", left=1, right=0)] if strip else []))


def spm_bpe():
    ids, merges = merges_of(pieces_of("spm-bpe"))
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.add_special_tokens(special("<unk>", "<s>", "</s>"))
    tokenizer.post_processor = bos(tokenizer, "<s>")
    return tokenizer


def llama_legacy():
    tokenizer = spm_bpe()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(META), normalizers.Replace(" ", META)])
    tokenizer.decoder = llama_decoder(strip=True)
    return tokenizer


def llama_metaspace(scheme):
    tokenizer = spm_bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=META, prepend_scheme=scheme, split=False)
    tokenizer.decoder = llama_decoder(strip=scheme != "never")
    return tokenizer


def gemma():
    """A split that finds no space any more, and added tokens for runs of line ends and of marks."""
    tokenizer = spm_bpe()
    tokenizer.normalizer = normalizers.Replace(" ", META)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = llama_decoder(strip=False)
    tokenizer.add_special_tokens(special("<start_of_turn>", "<end_of_turn>"))
    runs = [mark * count for mark in ("\n", META) for count in (2, 3, 4)]
    tokenizer.add_tokens([AddedToken(run, special=False, normalized=False) for run in runs])
    return tokenizer


def unigram():
    tokenizer = Tokenizer(models.Unigram(pieces_of("spm-unigram"), unk_id=0, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=META, prepend_scheme="always", split=True)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(),
                                           decoders.Metaspace(replacement=META, prepend_scheme="always")])
    tokenizer.add_special_tokens(special("<unk>", "<s>", "</s>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return tokenizer


MAKERS = {
    "bl-gpt2": ("byte-level BPE, GPT-2 expression through ByteLevel", gpt2),
    "bl-gpt2-prefix-nfkc": ("the same with a prefix space and NFKC", gpt2_prefix_nfkc),
    "bl-llama3": ("byte-level BPE, Llama 3 expression, ignore_merges, bos", llama3),
    "bl-qwen2": ("byte-level BPE, Qwen2 expression, NFC, added tokens that are not special", qwen2),
    "bl-added-tokens": ("every flag of added tokens, NFKC, bos and eos", added_tokens),
    "hf-llama-legacy": ("spm-bpe as tokenizer.json: Prepend and Replace (legacy), merges as strings", llama_legacy),
    "hf-llama-first": ("spm-bpe: Metaspace, prepend_scheme first, not legacy", lambda: llama_metaspace("first")),
    "hf-llama-always": ("spm-bpe: Metaspace, prepend_scheme always", lambda: llama_metaspace("always")),
    "hf-llama-never": ("spm-bpe: Metaspace, prepend_scheme never", lambda: llama_metaspace("never")),
    "hf-gemma": ("spm-bpe: Replace alone, Split by a string, added tokens of whitespace", gemma),
    "hf-unigram": ("spm-unigram as tokenizer.json: NFKC, Replace by expression, Metaspace with split, eos", unigram),
}
STRING_MERGES = {"hf-llama-legacy", "bl-gpt2"}


def vectors(tokenizer):
    cases = []
    for item in nasty():
        ids = tokenizer.encode(item["text"]).ids
        plain = tokenizer.encode(item["text"], add_special_tokens=False).ids
        cases.append(case(item, ids, plain, tokenizer.decode(ids, skip_special_tokens=False),
                          tokenizer.decode(ids, skip_special_tokens=True)))
    return cases


def save(name, tokenizer):
    path = folder(name) / "tokenizer.json"
    value = json.loads(tokenizer.to_str())
    if name in STRING_MERGES:  # the older form of the file
        value["model"]["merges"] = [" ".join(pair) for pair in value["model"]["merges"]]
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    return path


def decodes_of(name, tokenizer):
    return decode_cases(name, tokenizer.get_vocab_size(),
                        lambda ids, skip: tokenizer.decode(ids, skip_special_tokens=skip))


def main():
    for name, (about, make) in MAKERS.items():
        path = save(name, make())
        tokenizer = Tokenizer.from_file(str(path))
        write_vectors(path.parent, "tokenizer.json", about, vectors(tokenizer), decodes_of(name, tokenizer))


if __name__ == "__main__":
    main()
