# SPDX-License-Identifier: Apache-2.0
"""Writes nasty_strings.json: [{name, text}], what tokenizers and templates trip over. Pure ASCII with escapes."""
import json
from pathlib import Path

PATH = Path(__file__).resolve().parent / "nasty_strings.json"

STRINGS = {
    "empty": "", "space": " ", "two-spaces": "  ", "many-spaces": " " * 17, "tab": "\t", "newline": "\n",
    "newlines": "\n\n\n", "crlf": "one\r\ntwo\r\n\r\nthree\r", "space-newline": "a \n b\n  c \n\n  d",
    "leading-space": " hello", "leading-spaces": "   hello", "trailing-space": "hello ", "trailing-spaces": "hello   ",
    "inner-spaces": "a  b   c    d     e", "tabs-and-spaces": "\t a\t\tb \t c", "vertical": "a\u000bb\u000cc\u0085d\u2028e\u2029f",
    "other-spaces": "a\u00a0b\u2003c\u3000d\u202fe\u200bf\u2060g", "plain": "The server answers the next token.",
    "contractions": "I'm you're he's we'll they've can't I'd", "contractions-upper": "I'M YOU'RE HE'S WE'LL THEY'VE CAN'T I'D",
    "contractions-odd": "'s 'S 'll 'LL ''s o'clock 'tis rock'n'roll it\u2019s 'x 're", "long-s": "it'\u017f we'\u017f",
    "digits": "1 12 123 1234 12345 123456 1234567 12345678", "digits-joined": "a1b22c333d4444e55555f",
    "numbers": "3.14159 1,000,000 -42 +7 1e-9 0x1F 50% 7/8", "other-digits": "\u0661\u0662\u0663 \u0967\u0968\u0969 \uff11\uff12\uff13 \u00b2\u00b3 \u2167 \u00bd \u2460",
    "punctuation": "!?.,;:()[]{}<>/\\|@#$%^&*-_=+~`\"'", "punctuation-runs": "wait... what?!?! --- ***bold*** ==> <== ...",
    "punctuation-newline": "end.\n\nnext;\r\n  {\n}\n", "underscore": "snake_case_name __init__ a_1",
    "code": "for (int i = 0; i < n; ++i) {\n\tsum += x[i];\n}\n", "json": "{\"key\": [1, 2.5, null], \"s\": \"a\\nb\"}",
    "markdown": "# Title\n\n- one\n- two\n\n```py\nprint('x')\n```\n", "url": "https://example.invalid/a/b?c=d&e=%20f#g",
    "camel": "camelCaseWord HTTPServer iPhone", "upper": "THE SERVER LOADS", "title": "The Server Loads",
    "emoji": "\U0001f600\U0001f680\u2764\ufe0f", "emoji-zwj": "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f3\ufe0f\u200d\U0001f308",
    "emoji-skin": "\U0001f44d\U0001f3fd\U0001f44d\U0001f3ff", "emoji-flags": "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7 \U0001f1ef", "emoji-text": "ok\U0001f44cok \U0001f44c ok", "keycap": "1\ufe0f\u20e3 #\ufe0f\u20e3",
    "nfc": "caf\u00e9 \u00c5ngstr\u00f6m", "nfd": "cafe\u0301 A\u030angstro\u0308m", "marks-many": "e\u0301\u0302\u0303\u0304x\u0323\u0307 Z\u0351\u036b\u0343\u036a",
    "marks-order": "q\u0307\u0323 q\u0323\u0307", "mark-first": "\u0301abc \u0308", "hangul-jamo": "\u1112\u1161\u11ab\u1100\u1173\u11af \ud55c\uae00",
    "compatibility": "\ufb01\ufb02 \u2122 \u2126 \u212b \uff21\uff22\uff43 \u33a5 \ufdfa \u1e9b\u0323", "ligature-word": "of\ufb01ce \u0133s \u01c6",
    "cjk": "\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002\u660e\u5929\u5462\uff1f", "cjk-mixed": "\u4ecaday\u5929 is \u597d2024\u5e7403\u670807\u65e5", "cjk-rare": "\U00020000\U0002a6d6\u9fa5\u3400",
    "japanese": "\u6c34\u306f\u30b9\u30fc\u30d1\u30fc\u3067\u3001\u304b\u3099 \uff76\uff9e", "korean": "\ubc14\ub78c\uc774 \ubd84\ub2e4. \u314b\u314b\u314b",
    "arabic": "\u0627\u0644\u0643\u062a\u0627\u0628\u064f \u062c\u064e\u062f\u0650\u064a\u062f\u060c \u0661\u0662", "hebrew": "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd, \u05dc\u05db\u05d5\u05dc\u05dd!", "bidi": "abc \u202eabc\u202c \u2067\u05d0\u05d1\u2069 def",
    "devanagari": "\u0928\u092f\u093e \u0926\u093f\u0928 \u0915\u094d\u0937\u0924\u094d\u0930\u093f\u092f", "thai": "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e04\u0e23\u0e31\u0e1a \u0e19\u0e49\u0e33", "tamil": "\u0ba8\u0bbf \u0b95\u0bcd\u0bb7\u0bcc",
    "cyrillic": "\u041a\u043d\u0438\u0433\u0430 \u041b\u0415\u0416\u0418\u0422, \u0451\u043b\u043a\u0430!", "greek": "\u0394\u03b5\u03bd \u03be\u03ad\u03c1\u03c9 \u039f\u0394\u039f\u03a3 \u03bf\u03b4\u03cc\u03c2", "turkish": "\u0130stanbul \u0131\u015f\u0131k i\u0307",
    "german": "Stra\u00dfe GRO\u1e9e \u00dcber", "mixed-scripts": "a\u0431\u03b3\u05d3\u062c\u4e01\uac00z \u0430\u0440\u0440le", "mixed-words": "the \u041a\u043d\u0438\u0433\u0430 \u4eca\u5929 loads \u05e9\u05dc\u05d5\u05dd 12 \ubc14\ub78c",
    "math": "\u2211\u221a\u2264\u2260\u221e \U0001d400\U0001d4d0 x\u00b2 + y\u2081 \u2192 z", "box": "\u2554\u2550\u2557\u2502\u2592", "braille": "\u2803\u2807",
    "nul": "a\u0000b\u0000", "controls": "\u0001\u0002\u0007\u0008x\u001b[31my\u007fz\u0080\u009f", "bom-first": "\ufeffhello", "bom-inside": "a\ufeffb \ufeff c",
    "soft-hyphen": "co\u00adop\u00aderate zero\u200dwidth\u200cnon\u200bspace", "replacement": "a\ufffdb \ufffd\ufffd", "object": "\ufffc x",
    "private": "\ue000\uf8ff \U000f0000", "noncharacter": "a\uffffb \ufdd0 \U0001fffe \U0010ffff", "unassigned": "\u0378\u0379 \U000e0080 x\U0003fffd",
    "tags": "\U0001f3f4\U000e0067\U000e0062\U000e007f end", "variation": "a\ufe00b\U000e0100c",
    "metaspace": "\u2581hello\u2581world \u2581 \u2581\u2581", "metaspace-only": "\u2581", "byte-names": "<0x41><0x0A> <0xE4> <0xFF>",
    "bytelevel-letters": "\u0120hello \u010aworld \u0100\u0142", "special-bos": "<s>hello</s> <unk>", "special-inside": "a<s>b </s> c<unk>d<pad>",
    "special-llama3": "<|begin_of_text|>hi<|eot_id|> there <|end_of_text|>", "special-chatml": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "special-gpt2": "one<|endoftext|>two <|endoftext|> three", "special-broken": "<|im_start |> <|im_start <s <|eot_id| > < s>", "special-doubled": "<s><s></s></s><|im_end|><|im_end|>",
    "special-case": "<S> <|IM_START|> <|EOT_ID|>", "added-words": "lefty  lefty\tlefty, righty  righty\nx soloist solo solo-solo solos", "added-normal": "\uff26\uff4f\uff4f foo Foo FOO caf\u00e9-tok cafe\u0301-tok \ufb01x",
    "added-adjacent": "soloquietloudquiet<tool_call>loud <tool_call> quiet</tool_call>", "added-overlap": "loudlouder loude louderloud", "think": "<think>\nhm\n</think>\n\nyes",
    "long-word": "abcdefghij" * 40, "long-same": "a" * 300, "long-spaces": "x" + " " * 120 + "y", "long-newlines": "x" + "\n" * 40 + "y", "long-digits": "1234567890" * 12, "long-cjk": "\u4eca\u5929" * 60,
    "long-marks": "e" + "\u0301" * 40, "long-punctuation": "." * 50 + "-" * 50, "repeated": "the the the the the the  the", "one-letter": "x", "one-byte-high": "\u00ff", "two-letters": "\u00e9\u00e8",
    "quotes": "\u201cyes\u201d \u2018no\u2019 \u00abmaybe\u00bb \"it's\"", "sentence-long": "The old clock doesn't know the river and the hill; every reader keeps two hundred rows. " * 4,
}


def main():
    items = [{"name": name, "text": text} for name, text in STRINGS.items()]
    PATH.write_text("[\n" + ",\n".join(" " + json.dumps(item) for item in items) + "\n]\n")
    print(f"{len(items)} strings, {PATH.stat().st_size} bytes")


if __name__ == "__main__":
    main()
