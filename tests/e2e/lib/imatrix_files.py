# SPDX-License-Identifier: MIT
"""Importance matrices in both containers, read without the program."""
import struct


def read_gguf(path):
    """({key: value}, {tensor: (shape, floats)}) of a GGUF that has F32 tensors only."""
    data = open(path, "rb").read()
    at = 24

    def take(fmt):
        nonlocal at
        v, = struct.unpack_from("<" + fmt, data, at)
        at += struct.calcsize("<" + fmt)
        return v

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return data[at - n:at].decode()

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            of, n = take("I"), take("Q")
            return [value(of) for _ in range(n)]
        return take({4: "I", 5: "i", 6: "f", 7: "?", 10: "Q"}[kind])

    assert data[:4] == b"GGUF" and struct.unpack_from("<I", data, 4)[0] == 3
    n_tensors, n_keys = struct.unpack_from("<QQ", data, 8)
    keys, table = {}, []
    for _ in range(n_keys):
        name = text()
        keys[name] = value(take("I"))
    for _ in range(n_tensors):
        name, n_dims = text(), take("I")
        shape = [take("Q") for _ in range(n_dims)]
        assert take("I") == 0, f"{name} is not F32"
        table.append((name, shape, take("Q")))
    align = keys.get("general.alignment", 32)
    start = (at + align - 1) // align * align
    tensors = {}
    for name, shape, offset in table:
        n = 1
        for d in shape:
            n *= d
        tensors[name] = shape, struct.unpack_from(f"<{n}f", data, start + offset)
    return keys, tensors


def read_dat(path):
    """({tensor: (calls, floats)}, chunks, dataset)"""
    data = open(path, "rb").read()
    at = 4
    out = {}
    for _ in range(struct.unpack_from("<i", data)[0]):
        n, = struct.unpack_from("<i", data, at)
        name = data[at + 4:at + 4 + n].decode()
        calls, m = struct.unpack_from("<ii", data, at + 4 + n)
        out[name] = calls, struct.unpack_from(f"<{m}f", data, at + 12 + n)
        at += 12 + n + 4 * m
    chunks, n = struct.unpack_from("<ii", data, at)
    assert at + 8 + n == len(data), "bytes behind the end"
    return out, chunks, data[at + 8:].decode()
