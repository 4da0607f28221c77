#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compare glmstream's tokenizer with the Hugging Face package `tokenizers` on generated strings.

    tests/text/tokenizer_corpus.py            compare the program in build/release with the package, every 20th string
    tests/text/tokenizer_corpus.py --all      ... every string
    tests/text/tokenizer_corpus.py --write    also write tests/data/tokenizer/corpus.bin, which tests/text/test_tokenizer.c replays

10,000 strings are generated from a fixed seed: every Unicode category, emoji, combining marks, CJK, runs of digits,
mixtures of white space, control characters, contractions in every case (also with the long s), texts of added tokens
whole and broken, code. Two vocabularies: the pocket model's tokenizer.json as it is, and GLM-5.2's, from which a tokenizer
is built here (all splits of entries into two entries, in the order of the result's id). Each with added tokens parsed
and without. Needs `pip install tokenizers`; nothing else does.

corpus.bin: per string u32 length, four u64 FNV-1a hashes over the ids as u32 (pocket plain, pocket parsed, glm plain,
glm parsed), the bytes; little-endian.
"""
import base64
import csv
import json
import os
import random
import struct
import subprocess
import sys
import unicodedata

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.path.join(ROOT, "tests", "data", "tokenizer")
N_STRINGS = 10000
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")


# ---- strings --------------------------------------------------------------------------------------------------------

def by_category():
    table = {}
    for c in range(0x110000):
        if unicodedata.category(chr(c)) not in ("Cs", "Cn"):  # what is unassigned today may be a letter tomorrow
            table.setdefault(unicodedata.category(chr(c)), []).append(chr(c))
    return table


WORDS = ("the of and to in is that for it was on are as with they at be this from have or by one had not but what all were "
         "when we there can an your which their said if do will each about how up out them then she many some so these would "
         "Begriff prochaine entschieden lepiej größer naïve café señor über straße Москва привет αβγ שלום مرحبا ไทย 한국어 "
         "日本語 你好 世界 テスト हिन्दी தமிழ்").split()
CONTRACTIONS = [q + t for q in "'\u2019" for t in ("s", "t", "re", "ve", "m", "ll", "d", "S", "T", "RE", "Re", "rE", "VE", "Ve", "vE",
                "M", "LL", "Ll", "lL", "D", "\u017f", "x", "r", "l", "v")]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r", "\r\n", "\n\n", " \n", "\n ", "\v", "\f", "\u00a0", "\u2003", "\u3000", "\u1680", "\u2028",
          "\u2029", "\u0085", "\u200b", "\u180e", "\ufeff", "\u202f", "\u205f", "\x1c", "\x1f"]
EMOJI = ["😀", "😁", "🚀", "👍🏽", "👩‍💻", "👨‍👩‍👧", "🇺🇸", "🇩🇪", "❤️", "☃", "1️⃣", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "✨", "🧪"]
CODE = ["def f(x):\n    return x ** 2  # square\n", "int main(void) { printf(\"%d\\n\", 42); return 0; }", "for (int i=0;i<10;++i){}\n\n\n",
        "a[i] = b->c.d(e, f);", "{\"key\": [1, 2, 3], \"n\": null}\n", "https://example.com/a/b?c=d&e=f#g", "#include <stdio.h>\r\n",
        "SELECT * FROM t WHERE a='x' AND b<>3;", "<div class=\"a\">\n\t<p>x</p>\n</div>", "if [ -f \"$x\" ]; then\n\techo $((1+2))\nfi\n",
        "x = lambda y: y['k'] if y else None", "0x1F 1e-10 3.14159 0b1010 1_000_000", "/* comment */ // another\n", "a_b-c.d/e\\f"]
MARKS = [chr(c) for c in range(0x300, 0x330)] + ["\u20dd", "\u0591", "\u0e31", "\u094d", "\u0903"]


def strings(added):
    rng = random.Random(52)
    categories = by_category()
    names = sorted(categories)
    # most of Lo and Co are alike: keep the choice of a character cheap but even over the blocks
    pick = lambda cat: rng.choice(categories[cat])

    def any_char():
        return pick(rng.choice(names))

    def word():
        w = rng.choice(WORDS)
        r = rng.random()
        return w.upper() if r < 0.1 else w.capitalize() if r < 0.25 else w

    def atom():
        k = rng.randrange(16)
        if k < 4:
            return word()
        if k == 4:
            return word() + rng.choice(CONTRACTIONS)
        if k == 5:
            return "".join(rng.choice("0123456789٠١٢٣४५²½Ⅷ①") for _ in range(rng.randint(1, 12)))
        if k == 6:
            return "".join(rng.choice(SPACES) for _ in range(rng.randint(1, 6)))
        if k == 7:
            return "".join(rng.choice("!?.,;:-_=+*/\\|<>()[]{}\"'`~@#$%^&") for _ in range(rng.randint(1, 8)))
        if k == 8:
            return rng.choice(EMOJI)
        if k == 9:
            return "".join(c + "".join(rng.choice(MARKS) for _ in range(rng.randint(0, 3))) for c in word())
        if k == 10:
            return "".join(chr(rng.randint(0x4E00, 0x9FFF)) for _ in range(rng.randint(1, 8)))
        if k == 11:
            return "".join(any_char() for _ in range(rng.randint(1, 6)))
        if k == 12:
            t = rng.choice(added)
            cut = rng.random()
            return t if cut < 0.6 else t[:rng.randint(1, len(t))] if cut < 0.8 else t[rng.randint(0, len(t) - 1):] + t
        if k == 13:
            return rng.choice(CODE)
        if k == 14:
            return chr(rng.randrange(0x20))
        return rng.choice("aAé你😀ſ \n1-") * rng.randint(1, 40)

    yield from ["", " ", "\n", "'", "''s", "'s", "'ſ", "a'ſb", "\u0000"]
    for i in range(N_STRINGS - 9):
        glue = rng.choice(["", "", " ", rng.choice(SPACES)])
        yield glue.join(atom() for _ in range(rng.randint(1, 7)))


# ---- the package ----------------------------------------------------------------------------------------------------

def spell(raw, table={}):
    if not table:
        n = 256
        for b in range(256):
            if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174:
                table[b] = chr(b)
            else:
                table[b] = chr(n)
                n += 1
    return "".join(table[b] for b in raw)


def glm_json():
    """GLM-5.2's tokenizer.json as far as its ids determine it."""
    tokens = {}
    with open(os.path.join(DATA, "glm-5.2-vocab.bpe")) as f:
        for line in f:
            word, ident = line.split()
            tokens[base64.b64decode(word)] = int(ident)
    merges = [(spell(t[:i]), spell(t[i:])) for t in tokens for i in range(1, len(t)) if t[:i] in tokens and t[i:] in tokens]
    with open(os.path.join(DATA, "special_tokens.csv")) as f:
        added = [{"id": int(r["id"]), "content": r["text"], "special": r["special"] == "1", "single_word": False, "lstrip": False,
                  "rstrip": False, "normalized": False} for r in csv.DictReader(f)]
    print(len(merges), "splits of tokens into tokens")
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                  "vocab": {spell(t): i for t, i in tokens.items()}, "merges": merges},
    }


def both(doc):
    """Tokenizers with added tokens parsed and not."""
    from tokenizers import Tokenizer
    parsed = Tokenizer.from_str(json.dumps(doc))
    plain = Tokenizer.from_str(json.dumps(dict(doc, added_tokens=[])))
    return [lambda s: plain.encode(s, add_special_tokens=False).ids, lambda s: parsed.encode(s, add_special_tokens=False).ids]


# ---- ours -----------------------------------------------------------------------------------------------------------

def ours(model, texts, parse):
    """Ids of each text by one run of the program."""
    program = os.path.join(ROOT, "build", "release", "glmstream")

    def run(s):
        out = subprocess.run([program, "tokenize", "-m", model] + (["--special"] if parse else []), input=s.encode(), check=True,
                             stdout=subprocess.PIPE).stdout
        return [int(w) for w in out.split()]

    return [run(t) for t in texts]


def fnv(ids):
    h = 0xCBF29CE484222325
    for b in struct.pack("<%dI" % len(ids), *ids):
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def main():
    with open(os.path.join(DATA, "pocket-tokenizer.json")) as f:
        pocket = json.load(f)
    texts = list(strings([t["content"] for t in pocket["added_tokens"]]))
    encoders = both(pocket) + both(glm_json())
    want = [[enc(t) for t in texts] for enc in encoders]
    if "--write" in sys.argv:
        with open(os.path.join(DATA, "corpus.bin"), "wb") as f:
            for i, t in enumerate(texts):
                raw = t.encode()
                f.write(struct.pack("<I4Q", len(raw), *(fnv(w[i]) for w in want)) + raw)
        print("wrote", f.name, os.path.getsize(f.name), "bytes")
    bad = 0
    model = os.path.join(DATA, "pocket-tokenizer.json")
    for parse in (False, True):
        step = 1 if "--all" in sys.argv else 20
        for t, got, hf in zip(texts[::step], ours(model, texts[::step], parse), want[parse][::step]):
            if got != hf:
                bad += 1
                print("MISMATCH", repr(t), got, hf)
    print(len(texts), "strings,", bad, "mismatches")
    return bad != 0


if __name__ == "__main__":
    raise SystemExit(main())
