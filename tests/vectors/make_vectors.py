# SPDX-License-Identifier: Apache-2.0
"""Regenerates everything in this folder."""
import make_gguf_vocabs
import make_hf_tokenizers
import make_nasty_strings
import make_peft_matching
import make_quant
import make_spm
import make_templates


def main():
    for part in (make_nasty_strings, make_spm, make_hf_tokenizers, make_gguf_vocabs, make_quant, make_templates,
                 make_peft_matching):
        part.main()


if __name__ == "__main__":
    main()
