# SPDX-License-Identifier: MIT
"""Requests whose end one parser sees here and another there. The techniques are the published ones, written anew:
- "smuggler" (defparam): names and values of Transfer-Encoding with every odd byte in every place
- HTTP Request Smuggler (PortSwigger): wrapped, joined, doubled and commented headers; CL.0; pauses
- HTTP Desync Attacks (Kettle 2019), HTTP Request Smuggling in 2020 (Klein): CL.TE, TE.CL, TE.TE, CL.CL, junk before the colon
- the HTTP Garden (Kallus, Anantharaman): numbers as int() of scripting languages reads them, sizes, line ends, versions, targets
- Funky chunks (Jeppe Bonde Weikop 2025): line ends within extensions, chunks that are longer than they say
- Http11Probe (mda2av), llhttp's and h11's reports on folded headers, lone CR and trailers
HTTP/2 downgrades do not apply: the proxy speaks HTTP/1.1 to the server.

Each entry: a name, and the pieces of a request (more than one: with a pause between them). MARK stands for the entry's number; the
path /smuggled-MARK must never be seen by a server whose proxy has not seen it."""

HOST = b"Host: 127.0.0.1\r\n"
LINE = b"POST /apply-template HTTP/1.1\r\n"
HIDDEN = b"GET /smuggled-MARK HTTP/1.1\r\n" + HOST + b"\r\n"
OWN = b'{"messages":[{"role":"user","content":"own-MARK"}]}'
CHUNKED = b"%x\r\n" % len(OWN) + OWN + b"\r\n0\r\n\r\n"
TE = b"Transfer-Encoding: chunked\r\n"


def length(body):
    return b"Content-Length: %d\r\n" % len(body)


def cl_te(header):
    """By Content-Length one request, by chunks two."""
    body = b"0\r\n\r\n" + HIDDEN
    return LINE + HOST + length(body) + header + b"\r\n" + body


def te_cl(header):
    """By chunks one request, by Content-Length two."""
    first = b"%x\r\n" % len(HIDDEN)
    return LINE + HOST + length(first) + header + b"\r\n" + first + HIDDEN + b"\r\n0\r\n\r\n"


def odd_headers():
    name, value = b"Transfer-Encoding", b"chunked"
    plain = {
        "plain": name + b": " + value, "no blank": name + b":" + value, "two blanks": name + b":  " + value,
        "tab": name + b":\t" + value, "upper case": b"TRANSFER-ENCODING: CHUNKED", "mixed case": b"tRANSFER-eNCODING: cHuNkEd",
        "underscore": b"Transfer_Encoding: chunked", "blank for the dash": b"Transfer Encoding: chunked",
        "backslash": b"Transfer\\Encoding: chunked", "percent": b"Transfer-%45ncoding: chunked",
        "prefix": b"X-Transfer-Encoding: chunked", "other header": b"Content-Encoding: chunked", "TE": b"TE: chunked",
        "junk before the colon": b"Transfer-Encoding x: chunked", "no colon": b"Transfer-Encoding chunked",
        "two colons": b"Transfer-Encoding:: chunked", "quoted": name + b': "chunked"', "apostrophes": name + b": 'chunked'",
        "cut": name + b": chunk", "longer": name + b": chunkedx", "shorter": name + b": xchunked",
        "list, chunked last": name + b": identity, chunked", "list, chunked first": name + b": chunked, identity",
        "list twice": name + b": chunked, chunked", "list with nothing": name + b": , chunked", "comma": name + b": chunked,",
        "nested": name + b": identity, chunked, identity", "gzip": name + b": gzip, chunked", "parameter": name + b": chunked;q=1",
        "comment": name + b": chunked (x)", "empty": name + b":", "identity": name + b": identity", "number": name + b": 0",
        "twice": name + b": chunked\r\n" + name + b": chunked", "twice, identity first": name + b": identity\r\n" + name + b": chunked",
        "twice, identity last": name + b": chunked\r\n" + name + b": identity", "twice, empty": name + b":\r\n" + name + b": chunked",
        "in Connection": b"Connection: Transfer-Encoding\r\n" + name + b": chunked",
        "length in Connection": b"Connection: close, Content-Length\r\n" + name + b": chunked",
        "folded": b"X: a\r\n " + name + b": chunked", "folded with a tab": b"X: a\r\n\t" + name + b": chunked",
        "folded value": name + b":\r\n chunked", "folded value, tab": name + b":\r\n\tchunked", "folded value, LF": name + b":\n chunked",
        "folded name": b"Transfer\r\n -Encoding: chunked", "folded colon": name + b"\r\n : chunked",
        "after CR": b"X: a\r" + name + b": chunked", "after LF": b"X: a\n" + name + b": chunked",
        "after LF LF": b"X: a\n\n" + name + b": chunked", "after CR at a line's start": b"X: a\r\n\r" + name + b": chunked",
        "after LF CR": b"X: a\n\r" + name + b": chunked", "after NUL": b"X: a\0" + name + b": chunked",
        "CR in the name": b"Tra\rnsfer-Encoding: chunked", "CR before the end": name + b": chunked\r",
        "accent in the name": b"Transf\x82r-Encoding: chunked", "accent in the value": name + b": ch\x96nked",
        "UTF-8 in the value": name + b": chun\xe2\x84\xaaed", "UTF-8 in the name": b"Tran\xc5\xbffer-Encoding: chunked",
        "escaped": name + b": \\x63hunked", "colon first": b": " + name + b": chunked",
    }
    for text, header in plain.items():
        yield text, header
    for odd in (0x00, 0x01, 0x08, 0x09, 0x0b, 0x0c, 0x0d, 0x1b, 0x1f, 0x20, 0x22, 0x7f, 0x80, 0x85, 0xa0, 0xad, 0xff):
        b = bytes([odd])
        for place, header in (("before the name", b + name + b": " + value), ("after the name", name + b + b": " + value),
                              ("in the name", b"Transfer-" + b + b"Encoding: " + value), ("before the value", name + b":" + b + value),
                              ("after the value", name + b": " + value + b)):
            yield f"byte {odd:02x} {place}", header


def lengths():
    n = len(OWN)
    values = {"plus": b"+%d" % n, "minus": b"-%d" % n, "minus 0": b"-0", "hex": b"0x%x" % n, "octal": b"0%o" % n, "zeros": b"000%d" % n,
              "underscore": b"%d_%d" % (n // 10, n % 10), "fraction": b"%d.0" % n, "exponent": b"%de0" % n, "list": b"%d, %d" % (n, n),
              "other list": b"0, %d" % n, "blank within": b"%d %d" % (n // 10, n % 10), "blank and 0": b"%d 0" % n, "empty": b"",
              "a blank": b" ",
              "letters after": b"%dx" % n, "semicolon": b"%d;" % n, "comma": b"%d," % n, "quoted": b'"%d"' % n, "NUL": b"%d\0" % n,
              "NUL before": b"\0%d" % n, "form feed": b"\x0c%d" % n, "no-break space": b"\xa0%d" % n,
              "full-width": b"\xef\xbc\x95\xef\xbc\x91",
              "2^64 more": b"%d" % (2**64 + n), "2^32 more": b"%d" % (2**32 + n), "CR": b"%d\r" % n, "tab": b"\t%d\t" % n,
              "folded": b"\r\n %d" % n,
              "0": b"0", "name of a number": b"NaN", "many zeros": b"0" * 300 + b"%d" % n}
    for text, value in values.items():
        yield "length: " + text, LINE + HOST + b"Content-Length: " + value + b"\r\n\r\n" + OWN
    for text, first, second in (("equal", b"%d" % n, b"%d" % n), ("0 first", b"0", b"%d" % n), ("0 last", b"%d" % n, b"0"),
                                ("empty first", b"", b"%d" % n), ("longer", b"%d" % n, b"%d" % (n + len(HIDDEN)))):
        yield "two lengths: " + text, LINE + HOST + b"Content-Length: " + first + b"\r\nContent-Length: " + second + b"\r\n\r\n" + OWN + HIDDEN
    for text, header in (("blank before the colon", b"Content-Length : %d\r\n"), ("tab before the colon", b"Content-Length\t: %d\r\n"),
                         ("underscore", b"Content_Length: %d\r\n"), ("folded", b"X: a\r\n Content-Length: %d\r\n"),
                         ("after LF", b"X: a\nContent-Length: %d\r\n"), ("after CR", b"X: a\rContent-Length: %d\r\n"),
                         ("first line folded", None), ("NUL in the name", b"Content-Length\0: %d\r\n"),
                         ("prefix", b"X-Content-Length: %d\r\n")):
        if header is None:
            yield "length: " + text, LINE + b" Content-Length: %d\r\n" % len(HIDDEN) + HOST + b"\r\n" + HIDDEN
        else:
            yield "length: " + text, LINE + HOST + header % len(HIDDEN) + b"\r\n" + HIDDEN


def chunks():
    n, head = len(OWN), LINE + HOST + TE + b"\r\n"
    for text, size in {"0x": b"0x%x" % n, "0X": b"0X%X" % n, "plus": b"+%x" % n, "minus": b"-%x" % n,
                       "underscore": b"%x_%x" % (n >> 4, n & 15),
                       "blank before": b" %x" % n, "blank after": b"%x " % n, "tab after": b"%x\t" % n, "zeros": b"000%x" % n,
                       "many zeros": b"0" * 40 + b"%x" % n,
                       "2^64 more": b"1%016x" % n, "2^32 more": b"1%08x" % n, "NUL": b"%x\0" % n, "no digits": b"", "letters": b"%xg" % n,
                       "quoted": b'"%x"' % n, "CR": b"%x\r" % n, "comma": b"%x,0" % n, "point": b"%x.0" % n, "minus 0": b"-0",
                       "form feed": b"%x\x0c" % n,
                       "extension": b"%x;a" % n, "extension with a value": b"%x;a=b" % n, "quoted extension": b'%x;a="b;\\""' % n,
                       "no name": b"%x;" % n,
                       "blanks and an extension": b"%x ; a" % n, "LF in an extension": b"%x;a\nb" % n, "CR in an extension": b"%x;a\rb" % n,
                       "LF in quotes": b'%x;a="\n"' % n, "CRLF in quotes": b'%x;a="\r\n"' % n, "NUL in an extension": b"%x;a\0" % n,
                       "8-bit extension": b"%x;\xff" % n, "long extension": b"%x;" % n + b"a" * 20000}.items():
        yield "size: " + text, head + size + b"\r\n" + OWN + b"\r\n0\r\n\r\n" + HIDDEN
    size = b"%x" % n
    for text, body in {"LF after the size": size + b"\n" + OWN + b"\r\n0\r\n\r\n",
                       "CR after the size": size + b"\r" + OWN + b"\r\n0\r\n\r\n",
                       "LF after the data": size + b"\r\n" + OWN + b"\n0\r\n\r\n",
                       "CR after the data": size + b"\r\n" + OWN + b"\r0\r\n\r\n",
                       "nothing after the data": size + b"\r\n" + OWN + b"0\r\n\r\n",
                       "two bytes after the data": size + b"\r\n" + OWN + b"XX0\r\n\r\n",
                       "longer data": size + b"\r\n" + OWN + b"X\r\n0\r\n\r\n",
                       "shorter data": b"%x\r\n" % (n + 1) + OWN + b"\r\n0\r\n\r\n",
                       "LF after the last size": size + b"\r\n" + OWN + b"\r\n0\n\n",
                       "LF at the end": size + b"\r\n" + OWN + b"\r\n0\r\n\n",
                       "LF CR at the end": size + b"\r\n" + OWN + b"\r\n0\r\n\n\r\n", "only LF": (size + b"\n" + OWN + b"\n0\n\n"),
                       "extension of the last chunk with LF": size + b"\r\n" + OWN + b"\r\n0;\n\r\n\r\n",
                       "several zeros": size + b"\r\n" + OWN + b"\r\n000\r\n\r\n",
                       "an empty line between": size + b"\r\n" + OWN + b"\r\n\r\n0\r\n\r\n",
                       "no last chunk": size + b"\r\n" + OWN + b"\r\n\r\n",
                       "trailer": size + b"\r\n" + OWN + b"\r\n0\r\nX: a\r\n\r\n",
                       "trailer with LF": size + b"\r\n" + OWN + b"\r\n0\r\nX: a\n\r\n",
                       "length as a trailer": size + b"\r\n" + OWN + b"\r\n0\r\n" + length(HIDDEN) + b"\r\n",
                       "coding as a trailer": size + b"\r\n" + OWN + b"\r\n0\r\n" + TE + b"\r\n",
                       "folded trailer": size + b"\r\n" + OWN + b"\r\n0\r\nX: a\r\n b\r\n\r\n",
                       "trailer without a colon": size + b"\r\n" + OWN + b"\r\n0\r\nGET /smuggled-MARK HTTP/1.1\r\n\r\n",
                       "Host as a trailer": size + b"\r\n" + OWN + b"\r\n0\r\nHost: b\r\n\r\n",
                       "16 digits": b"0" * 14 + size + b"\r\n" + OWN + b"\r\n0\r\n\r\n"}.items():
        yield "chunks: " + text, head + body + HIDDEN
    for text, header in {"chunks in HTTP/1.0": TE, "chunks and keep-alive in HTTP/1.0": TE + b"Connection: keep-alive\r\n"}.items():
        yield text, LINE.replace(b"1.1", b"1.0") + HOST + header + b"\r\n" + CHUNKED + HIDDEN


def lines():
    get = b"GET /health HTTP/1.1\r\n"
    for text, line in {"HTTP/0.9": b"GET /health\r\n", "LF": b"GET /health HTTP/1.1\n", "CR": b"GET /health HTTP/1.1\r",
                       "HTTP/1.2": b"GET /health HTTP/1.2\r\n",
                       "HTTP/1.10": b"GET /health HTTP/1.10\r\n", "HTTP/1.": b"GET /health HTTP/1.\r\n",
                       "HTTP/2.0": b"GET /health HTTP/2.0\r\n", "HTTP/11": b"GET /health HTTP/11\r\n",
                       "http/1.1": b"GET /health http/1.1\r\n", "HTTP/01.1": b"GET /health HTTP/01.1\r\n",
                       "blank after": b"GET /health HTTP/1.1 \r\n", "two blanks": b"GET  /health HTTP/1.1\r\n",
                       "tab": b"GET\t/health\tHTTP/1.1\r\n", "version twice": b"GET /health HTTP/1.1 HTTP/1.1\r\n",
                       "blank first": b" GET /health HTTP/1.1\r\n", "two empty lines": b"\r\n\r\n" + get,
                       "LF first": b"\n" + get, "CR first": b"\r" + get, "NUL in the target": b"GET /health\0 HTTP/1.1\r\n",
                       "fragment": b"GET /health#a HTTP/1.1\r\n", "8 bit": b"GET /h\xffalth HTTP/1.1\r\n",
                       "absolute": b"GET http://127.0.0.1/health HTTP/1.1\r\n",
                       "absolute, other host": b"GET http://evil/health HTTP/1.1\r\n",
                       "absolute, user": b"GET http://a@127.0.0.1/health HTTP/1.1\r\n",
                       "absolute, no path": b"GET http://127.0.0.1 HTTP/1.1\r\n", "https": b"GET https://127.0.0.1/health HTTP/1.1\r\n",
                       "star": b"GET * HTTP/1.1\r\n", "OPTIONS star": b"OPTIONS * HTTP/1.1\r\n",
                       "CONNECT": b"CONNECT 127.0.0.1:80 HTTP/1.1\r\n", "no slash": b"GET health HTTP/1.1\r\n",
                       "encoded CRLF": b"GET /health%0d%0aX:a HTTP/1.1\r\n", "encoded NUL": b"GET /health%00 HTTP/1.1\r\n",
                       "two slashes": b"GET //smuggled/../health HTTP/1.1\r\n", "odd method": b"G@T /health HTTP/1.1\r\n",
                       "small method": b"get /health HTTP/1.1\r\n", "long method": b"A" * 40 + b" /health HTTP/1.1\r\n",
                       "LF as a blank": b"GET /health\nHTTP/1.1\r\n", "PRI": b"PRI * HTTP/2.0\r\n"}.items():
        yield "line: " + text, line + HOST + b"\r\n" + HIDDEN
    for text, host in {"none": b"", "two": HOST + b"Host: b\r\n", "two equal": HOST + HOST, "empty": b"Host:\r\n",
                       "list": b"Host: 127.0.0.1, b\r\n", "path": b"Host: 127.0.0.1/x\r\n", "user": b"Host: a@127.0.0.1\r\n",
                       "blank": b"Host: 127.0.0.1 b\r\n", "folded": b"Host: 127.0.0.1\r\n b\r\n", "NUL": b"Host: 127.0.0.1\0\r\n",
                       "blank before the colon": b"Host : 127.0.0.1\r\n", "port": b"Host: 127.0.0.1:x\r\n"}.items():
        yield "Host: " + text, get + host + b"\r\n" + HIDDEN


def bodies():
    for method in (b"GET", b"HEAD", b"DELETE", b"OPTIONS", b"PUT", b"PATCH", b"TRACE", b"FOO"):
        for path in (b"/health", b"/nothing-here", b"/apply-template", b"/favicon.ico", b"//x/../health", b"/%2e%2e/x"):
            yield f"CL.0: {method.decode()} {path.decode()}", method + b" " + path + b" HTTP/1.1\r\n" + HOST + length(HIDDEN) + b"\r\n" + HIDDEN
    for text, header in {"Expect": b"Expect: 100-continue\r\n", "odd Expect": b"Expect: y 100-continue\r\n",
                         "folded Expect": b"Expect:\r\n 100-continue\r\n", "two Expects": b"Expect: 100-continue\r\nExpect: x\r\n",
                         "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
                         "websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n",
                         "close": b"Connection: close\r\n", "keep-alive, close": b"Connection: keep-alive, close\r\n",
                         "Keep-Alive": b"Connection: keep-alive\r\nKeep-Alive: timeout=1, max=1\r\n",
                         "other method": b"X-HTTP-Method-Override: GET\r\n", "other length": b"X-Content-Length: 0\r\n",
                         "Trailer": b"Trailer: Content-Length\r\n",
                         "TE": b"TE: trailers, chunked\r\n", "multipart": b"Content-Type: multipart/byteranges; boundary=x\r\n"}.items():
        for path in (b"/apply-template", b"/nothing-here"):
            yield f"body: {text} {path.decode()}", b"POST " + path + b" HTTP/1.1\r\n" + HOST + length(HIDDEN) + header + b"\r\n" + HIDDEN
            yield f"chunks: {text} {path.decode()}", b"POST " + path + b" HTTP/1.1\r\n" + HOST + TE + header + b"\r\n" + b"%x\r\n" % len(HIDDEN) + HIDDEN + b"\r\n0\r\n\r\n"
    yield "body beyond the limit", b"POST /apply-template HTTP/1.1\r\n" + HOST + b"Content-Length: 33000000\r\n\r\n" + HIDDEN
    yield "many headers", LINE + HOST + b"".join(b"X-%d: y\r\n" % i for i in range(300)) + length(OWN) + b"\r\n" + OWN
    yield "long header", LINE + HOST + b"X: " + b"a" * 7000 + b"\r\n" + length(OWN) + b"\r\n" + OWN


def pauses():
    """A server that answers early, or reads on after a pause, takes the rest for a request."""
    head = LINE + HOST + length(HIDDEN) + b"\r\n"
    yield "pause before the body", [head, HIDDEN]
    yield "pause before the body of a refused request", [head.replace(b"/apply-template", b"/nothing-here"), HIDDEN]
    yield "pause before the chunks", [LINE + HOST + TE + b"\r\n", b"%x\r\n" % len(HIDDEN) + HIDDEN + b"\r\n0\r\n\r\n"]
    yield "pause in the head", [LINE + b"Host: 127.", b"0.0.1\r\n" + length(OWN) + b"\r\n" + OWN]
    yield "pause between CR and LF", [LINE + HOST + length(OWN) + b"\r", b"\n\r\n" + OWN]
    yield "pause after Expect", [LINE + HOST + length(HIDDEN) + b"Expect: 100-continue\r\n\r\n", HIDDEN]


def entries():
    """(name, pieces), numbered by their place."""
    for text, header in odd_headers():
        yield "CL.TE: " + text, [cl_te(header + b"\r\n")]
        yield "TE.CL: " + text, [te_cl(header + b"\r\n")]
    for source in (lengths, chunks, lines, bodies):
        for text, data in source():
            yield text, [data]
    yield from pauses()


def with_mark(pieces, mark):
    """Every number has three digits, so that lengths stay what they are."""
    return [p.replace(b"MARK", mark.encode()) for p in pieces]
