# SPDX-License-Identifier: Apache-2.0
"""Regenerates everything in this folder."""
import check_golden
import make_adapters
import make_cases
import make_corpus
import make_gguf
import make_models
import make_quantised
import make_refused


def main():
    make_models.main()
    make_quantised.main()
    make_corpus.main()
    make_adapters.main()
    make_gguf.main()
    make_refused.main()
    make_cases.main()
    check_golden.main()


if __name__ == "__main__":
    main()
