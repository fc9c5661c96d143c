# SPDX-License-Identifier: Apache-2.0
"""Small vocabularies for the GGUF models: one character a token, as SentencePiece and as byte-level BPE."""
import gguf

NORMAL, UNKNOWN, CONTROL = gguf.TokenType.NORMAL, gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL
PRE = {"qwen2": "qwen2", "qwen3": "qwen2", "granite": "refact", "smollm3": "llama-bpe", "olmo2": "dbrx", "olmo3": "dbrx",
       "glm": "chatglm-bpe", "glm4": "glm4", "starcoder2": "starcoder", "qwen2_moe": "qwen2", "qwen3_moe": "qwen2",
       "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35", "gpt_oss": "gpt-4o"}
SENTENCEPIECE = ("llama", "mixtral", "gemma", "gemma2", "gemma3_text", "phi3")


def sentencepiece(size):
    characters = ["\u2581"] + [chr(c) for c in range(0x21, 0x7f)]
    pieces = ["<unk>", "<s>", "</s>"] + characters[:size - 3]
    scores = [0.0] * 3 + [-float(i) for i in range(size - 3)]
    return pieces, scores, [UNKNOWN, CONTROL, CONTROL] + [NORMAL] * (size - 3)


def byte_level(size):
    """Printable ASCII stands for itself in the byte-level alphabet; U+0120 is the space."""
    characters = ["\u0120"] + [chr(c) for c in range(0x21, 0x7f)]
    merges = ["t h", "\u0120 t"]
    joined = [m.replace(" ", "") for m in merges]
    specials = ["<|pad|>", "<|start|>", "<|end|>"]
    tokens = specials + characters[:size - 3 - len(joined)] + joined
    return tokens, merges, [CONTROL] * 3 + [NORMAL] * (size - 3)


def add_vocabulary(writer, spec):
    size = spec["vocab_size"]
    if spec["model_type"] in SENTENCEPIECE:
        tokens, scores, types = sentencepiece(size)
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(tokens)
        writer.add_token_scores(scores)
        writer.add_token_types(types)
        writer.add_unk_token_id(0)
    else:
        tokens, merges, types = byte_level(size)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(PRE[spec["model_type"]])
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(spec["model_type"] in SENTENCEPIECE)
    if "gemma" in spec["model_type"]:
        writer.add_add_space_prefix(False)
