# SPDX-License-Identifier: MIT
"""An independent reader and writer of session files; called by session_notes.sh: PROGRAM GOOD_FILE FOLDER.

Checks every value of a file that the program wrote, then gives the program files whose note (what the chat knows besides the
tokens) is wrong in one point while all check values are right: each is refused with one sentence.
"""
import json
import os
import struct
import subprocess
import sys

from checks import check, finish

PROGRAM, GOOD, FOLDER = sys.argv[1:4]
MASK = (1 << 64) - 1


P1, P2, P3, P4, P5 = (
    0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
)  # fmt: skip


def rotate(x, n):
    return (x << n | x >> 64 - n) & MASK


def take(h, word):
    return rotate(h + word * P2 & MASK, 31) * P1 & MASK


def hash_bytes(seed, data):
    """XXH64, as its specification has it."""
    stripes, whole = len(data) // 32 * 32, len(data) // 8 * 8
    h = seed + P5 & MASK
    if stripes:
        lanes = [seed + P1 + P2 & MASK, seed + P2 & MASK, seed, seed - P1 & MASK]
        for words in struct.iter_unpack("<4Q", data[:stripes]):
            lanes = [take(lane, word) for lane, word in zip(lanes, words)]
        h = sum(rotate(lane, n) for lane, n in zip(lanes, (1, 7, 12, 18))) & MASK
        for lane in lanes:
            h = ((h ^ take(0, lane)) * P1 + P4) & MASK
    h = h + len(data) & MASK
    for (word,) in struct.iter_unpack("<Q", data[stripes:whole]):
        h = (rotate(h ^ take(0, word), 27) * P1 + P4) & MASK
    if len(data) & 4:
        word = int.from_bytes(data[whole : whole + 4], "little")
        h = (rotate(h ^ word * P1 & MASK, 23) * P2 + P3) & MASK
        whole += 4
    for byte in data[whole:]:
        h = rotate(h ^ byte * P5 & MASK, 11) * P1 & MASK
    h = (h ^ h >> 33) * P2 & MASK
    h = (h ^ h >> 29) * P3 & MASK
    return h ^ h >> 32


def hash_word(seed, word):
    return hash_bytes(seed, struct.pack("<Q", word))


START = 0


def parse(data):
    """Head and blocks [(coding, stored bytes)]; every check value is looked at."""
    head = data[:256]
    check("magic and version", head[:16] == b"GLMSESS\0" + struct.pack("<II", 2, 256), head[:16])
    seed = struct.unpack("<Q", head[248:])[0]
    check("the head's check value", seed == hash_bytes(START, head[:248]), hex(seed))
    blocks, at = [], 256
    while at < len(data):
        stored, coding, value = struct.unpack_from("<IIQ", data, at)
        body = data[at + 16 : at + 16 + stored]
        h = hash_word(hash_word(seed, len(blocks)), stored | coding << 32)
        check(f"the check value of block {len(blocks)}", value == hash_bytes(h, body), hex(value))
        if coding == 1:
            check("an lz4 frame with content size and checksum", body[:4] == b"\x04\x22\x4d\x18" and body[4] & 0x0C == 0x0C)
        blocks.append((coding, body))
        at += 16 + stored
    check("the file ends with a block", at == len(data), at)
    return head, blocks


def build(head, blocks, note):
    """The file with another note, stored as it is."""
    head = head[:56] + struct.pack("<Q", len(note)) + head[64:248]
    seed = hash_bytes(START, head)
    out = [head, struct.pack("<Q", seed)]
    for i, (coding, body) in enumerate([blocks[0]] + ([(0, note)] if note else []) + blocks[2:]):
        h = hash_word(hash_word(seed, i), len(body) | coding << 32)
        out.append(struct.pack("<IIQ", len(body), coding, hash_bytes(h, body)) + body)
    return b"".join(out)


def run(path, *more):
    p = subprocess.run(
        [PROGRAM, "-t", "1", "--temp", "0", "-q", "-n", "0", "--session", path, "-p", "x", *more],
        capture_output=True,
        timeout=60,
    )
    return p.returncode, p.stderr.decode(errors="replace")


GOOD_NOTE = {
    "glmstream_chat": 1,
    "raw": False,
    "think": "off",
    "turns": 1,
    "seed": 3,
    "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
    "raw_ids": [],
    "marks": [0],
}


def changed(**members):
    note = dict(GOOD_NOTE)
    for key, value in members.items():
        if value is None:
            del note[key]
        else:
            note[key] = value
    return json.dumps(note).encode()


with open(GOOD, "rb") as f:
    head, blocks = parse(f.read())
n_tokens = struct.unpack_from("<I", head, 48)[0]
check("the first block is the tokens", len(blocks[0][1]) == 4 * n_tokens or blocks[0][0] == 1, len(blocks[0][1]))

path = os.path.join(FOLDER, "note.session")
cases = [
    (changed(), None),
    (changed(marks=[]), None),
    (changed(messages=[{"role": "user", "content": "null \0 byte, \U0001f642"}], marks=[0]), None),
    (b"", "holds no chat"),
    (b"{", "holds no chat"),
    (b"[]", "holds no chat"),
    (b"\xff", "holds no chat"),
    (b'{"a": 1}', "holds no chat of a kind"),
    (changed(glmstream_chat=2), "holds no chat of a kind"),
    (changed(think="loud"), "holds no chat of a kind"),
    (changed(think=None), "holds no chat of a kind"),
    (changed(turns="1"), "holds no chat of a kind"),
    (changed(seed=None), "holds no chat of a kind"),
    (changed(messages=None), "messages"),
    (changed(messages=[{"role": "king"}]), "messages"),
    (changed(messages=[{"role": "user", "content": 1}]), "messages"),
    (changed(raw_ids=[-1]), "raw_ids"),
    (changed(raw_ids=[8192]), "raw_ids"),
    (changed(raw_ids=7), "raw_ids"),
    (changed(raw_ids=[0.5]), "raw_ids"),
    (changed(marks=None), "marks"),
    (changed(marks=[2]), "marks"),
    (changed(marks=[1]), "marks"),  # an answer
    (changed(marks=[0, 0]), "marks"),
    (changed(marks=[-1]), "marks"),
    (changed(marks=[1 << 62]), "marks"),
    (changed(messages=[{"role": "user"}]), "marks"),  # no text to take back
    (changed(raw=True, marks=[0]), "marks"),
    (json.dumps({"a": [[[]]] * 9}).encode() + b"]", "holds no chat"),
    (b"[" * 100000, "holds no chat"),
]
for note, says in cases:
    with open(path, "wb") as f:
        f.write(build(head, blocks, note))
    code, err = run(path)
    if says is None:
        check(f"taken: {note[:60]}", code == 0, err)
    else:
        lines = [x for x in err.splitlines() if not x.startswith("hint: ")]
        check(f"refused: {note[:60]}", code == 3 and len(lines) == 1 and says in err and path in err, err)

# other numbers under right check values: refused or harmless, never a crash
for at in list(range(24, 64, 4)):
    for value in (0, 1, 3, 0x7FFFFFFF, 0xFFFFFFFF):
        other = head[:at] + struct.pack("<I", value) + head[at + 4 :]
        seed = hash_bytes(START, other[:248])
        out = [other[:248], struct.pack("<Q", seed)]
        for i, (coding, body) in enumerate(blocks):
            h = hash_word(hash_word(seed, i), len(body) | coding << 32)
            out.append(struct.pack("<IIQ", len(body), coding, hash_bytes(h, body)) + body)
        with open(path, "wb") as f:
            f.write(b"".join(out))
        code, err = run(path)
        check(f"head word at {at} = {value}", code in (0, 3) and "Sanitizer" not in err, err)

finish()
