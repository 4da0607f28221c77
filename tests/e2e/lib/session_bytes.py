# SPDX-License-Identifier: MIT
"""All bytes of a session file with its compressed blocks unpacked, so that a test can search them."""
import struct


def unpack_lz4_block(data):
    """One block of LZ4's format."""
    out, at = bytearray(), 0

    def length(n, at):
        if n == 15:
            while data[at] == 255:
                n, at = n + 255, at + 1
            n, at = n + data[at], at + 1
        return n, at

    while at < len(data):
        token = data[at]
        n, at = length(token >> 4, at + 1)
        out += data[at : at + n]
        at += n
        if at >= len(data):
            break
        offset = data[at] | data[at + 1] << 8
        n, at = length(token & 15, at + 2)
        for _ in range(n + 4):
            out.append(out[-offset])
    return bytes(out)


def unpack_lz4_frame(data):
    flags, at = data[4], 6
    at += (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0) + 1
    out = b""
    while True:
        (n,) = struct.unpack_from("<I", data, at)
        at += 4
        if not n:
            return out
        body = data[at : at + (n & 0x7FFFFFFF)]
        out += body if n >> 31 else unpack_lz4_block(body)
        at += len(body) + (4 if flags & 0x10 else 0)


def session_bytes(path):
    with open(path, "rb") as f:
        data = f.read()
    out, at = data[:256], 256
    while at < len(data):
        stored, coding, _ = struct.unpack_from("<IIQ", data, at)
        body = data[at + 16 : at + 16 + stored]
        out += unpack_lz4_frame(body) if coding == 1 else body
        at += 16 + stored
    return out
