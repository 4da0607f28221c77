# SPDX-License-Identifier: MIT
"""Checks the figures of inspect, dump-logits, compare, perplexity and bench; called by figures.sh with the program and an
empty folder. Only the standard library: rows are lists of floats."""
import array
import csv
import json
import math
import os
import random
import struct
import subprocess
import sys

from checks import check, finish

PROGRAM, WORK = sys.argv[1], sys.argv[2]
TEXT = "A river is a large natural stream of water. An island is land that is surrounded by water. Größe 日本語."


def run(*args, status=0, stdin=None):
    p = subprocess.run([PROGRAM, *args], stdin=subprocess.DEVNULL if stdin is None else None, input=stdin,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=170, check=False)
    check(f"{args[0]} ends with status {status}", p.returncode == status, (args, p.returncode, p.stderr))
    return p


def path(name):
    return os.path.join(WORK, name)


def floats(name):
    a = array.array("f")
    with open(path(name), "rb") as f:
        a.frombytes(f.read())
    return a


def near(a, b, relative=1e-6, absolute=1e-9):
    return abs(a - b) <= absolute + relative * max(abs(a), abs(b))


def log_softmax(row):
    top = max(row)
    z = top + math.log(math.fsum(math.exp(x - top) for x in row))
    return [x - z for x in row]


def safetensors(name):
    with open(path(name), "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + n]), raw[8 + n:]


def compare():
    """Against the formulas, on made-up rows."""
    random.seed(7)
    vocab, rows = 97, 3
    a = [[random.gauss(0, 3) for _ in range(vocab)] for _ in range(rows)]
    b = [[x + random.gauss(0, 0.1) for x in r] for r in a]
    b[2][5] = 50.0  # another favourite
    for name, m in (("a.f32", a), ("b.f32", b)):
        with open(path(name), "wb") as f:
            for r in m:
                array.array("f", r).tofile(f)
    a, b = [floats(n) for n in ("a.f32", "b.f32")]
    a, b = [[m[i * vocab:(i + 1) * vocab] for i in range(rows)] for m in (a, b)]
    o = json.loads(run("compare", path("a.f32"), path("b.f32"), "--vocab", str(vocab), "--json").stdout)
    check("compare counts rows", o["rows"] == rows and o["vocab"] == vocab and len(o["per_row"]) == rows, o)
    kls = []
    for x, y, r in zip(a, b, o["per_row"]):
        p, q = log_softmax(x), log_softmax(y)
        kls.append(math.fsum(math.exp(u) * (u - v) for u, v in zip(p, q)))
        dot = math.fsum(u * v for u, v in zip(x, y))
        cosine = dot / math.sqrt(math.fsum(u * u for u in x) * math.fsum(v * v for v in y))
        check("largest difference", near(r["max_abs_diff"], max(abs(u - v) for u, v in zip(x, y))), r)
        check("cosine", near(r["cosine"], cosine), r)
        check("KL", near(r["kl"], kls[-1]), (r, kls[-1]))
        check("top 1", r["top1_equal"] == (max(range(vocab), key=x.__getitem__) == max(range(vocab), key=y.__getitem__)), r)
    check("mean KL", near(o["kl"], sum(kls) / rows), o)
    check("two of three rows agree", near(o["top1_agreement"], 2 / 3), o)
    o = json.loads(run("compare", path("a.f32"), path("a.f32"), "--vocab", str(vocab), "--json").stdout)
    check("a file equals itself", o["max_abs_diff"] == 0 and o["kl"] == 0 and o["top1_agreement"] == 1, o)
    with open(path("nan.f32"), "wb") as f:
        array.array("f", [1.0, math.nan] + [0.0] * (rows * vocab - 2)).tofile(f)
    p = run("compare", path("a.f32"), path("nan.f32"), "--vocab", str(vocab), status=3)
    check("NaN is refused by place", b"row 0, column 1" in p.stderr, p.stderr)
    run("compare", path("a.f32"), path("b.f32"), "--vocab", "96", status=3)


def logits():
    """dump-logits, its taps, and perplexity computed again from the rows."""
    with open(path("text"), "wb") as f:
        f.write(TEXT.encode())
    ids = run("tokenize", stdin=TEXT.encode()).stdout
    with open(path("ids"), "wb") as f:
        f.write(ids)
    ids = [int(i) for i in ids.split()]
    n = len(ids)
    shape = json.loads(run("inspect", "--json").stdout)
    config = shape["config"]
    vocab = config["vocab"]
    o = json.loads(run("dump-logits", "--ids", path("ids"), "--all", "-o", path("all.f32"), "--taps", path("taps")).stdout)
    check("a row for every token", o["rows"] == n and o["vocab"] == vocab, o)
    rows = floats("all.f32")
    check("the file holds them", len(rows) == n * vocab, len(rows))
    o = json.loads(run("dump-logits", "--ids", path("ids"), "-o", path("last.f32")).stdout)
    check("without --all there is one", o["rows"] == 1, o)
    check("the last of all is the last", floats("last.f32") == rows[-vocab:])
    step = lambda h, word: (h ^ word) * 0x100000001b3 & (1 << 64) - 1
    h = 0xcbf29ce484222325
    lanes = [step(h, k) for k in range(8)]
    for i, word in enumerate(struct.iter_unpack("<I", struct.pack(f"<{vocab}f", *floats("last.f32")))):
        lanes[i % 8] = step(lanes[i % 8], word[0])
    for lane in lanes:
        h = step(h, lane)
    check("the hash is FNV-1a over the words, in eight lanes", o["logits_hash"] == f"{h:016x}", o)

    header, data = safetensors("taps")
    check("residuals of every layer", header["resid_last"]["shape"] == [config["layers"], config["embedding"]], header)
    id_shape = [n, config["moe_layers"], config["experts_used"]]
    check("expert ids of every token", header["router"]["shape"] == id_shape and header["router"]["dtype"] == "U8", header)
    begin, end = header["router"]["data_offsets"]
    k = config["experts_used"]
    sets = [data[i:i + k] for i in range(begin, end, k)]
    check("each sorted, distinct and in range",
          all(sorted(set(s)) == list(s) and s[-1] < config["experts"] for s in sets))
    for layer in shape["index_share"]["full"]:
        t = header.get(f"index_topk_last.{layer}")
        check("selections of full layers", t and t["shape"] == [min(n, config["index_top_k"])], header.keys())
    check("and of no others", sum(1 for name in header if name.startswith("index")) == len(shape["index_share"]["full"]))

    nll = [-log_softmax(rows[i * vocab:(i + 1) * vocab])[ids[i + 1]] for i in range(n - 1)]
    mean = sum(nll) / len(nll)
    error = math.sqrt(sum((v - mean) ** 2 for v in nll) / (len(nll) - 1) / len(nll))
    o = json.loads(run("perplexity", "-f", path("text"), "-c", str(n), "--json").stdout)
    # padding rows have logits too, but no probability: a little of the mass above is theirs
    check("nats per token", near(o["nats_per_token"], mean, 1e-3), (o, mean))
    check("standard error", near(o["standard_error"], error, 1e-3), (o, error))
    check("perplexity is its exponential", near(o["perplexity"], math.exp(o["nats_per_token"])), o)
    check("all tokens but the first", o["scored"] == n - 1 and o["tokens"] == n, o)
    o = json.loads(run("perplexity", "-f", path("text"), "-c", "16", "--json").stdout)
    check("a chunk's first token is not scored", o["scored"] == n - (n + 15) // 16, o)
    run("perplexity", "-f", path("text"), "-c", "1", status=2)

    o = json.loads(run("dump-logits", "--ids", path("ids"), "--mtp-steps", "4", "-o", path("mtp.f32")).stdout)
    drafts = floats("mtp.f32")
    best = [max(range(vocab), key=drafts[i * vocab:(i + 1) * vocab].__getitem__) for i in range(4)]
    last = floats("last.f32")
    check("four rows of drafts", o["rows"] == 4 and len(drafts) == 4 * vocab and drafts[:vocab] != last, o)
    check("their ids are the likeliest ones", o["draft_ids"] == best and o["next_id"] == last.index(max(last)), (o, best))
    o = json.loads(run("dump-logits", "--ids", path("ids"), "--mtp-steps", "1", "-o", path("mtp1.f32")).stdout)
    check("a shorter round begins alike", floats("mtp1.f32") == drafts[:vocab] and o["draft_ids"] == best[:1], o)
    run("dump-logits", "--ids", path("ids"), "--mtp-steps", "8", "-o", path("mtp8.f32"), status=2)


def files():
    """Output files appear whole or stay as they were."""
    with open(path("kept"), "wb") as f:
        f.write(b"as it was")
    with open(path("bad"), "wb") as f:
        f.write(b"1 2 99999999")
    run("dump-logits", "--ids", path("bad"), "-o", path("kept"), "--force", status=3)
    with open(path("kept"), "rb") as f:
        check("a failed dump leaves the old file", f.read() == b"as it was")
    run("dump-logits", "--ids", path("ids"), "-o", path("kept"), status=3)
    with open(path("kept"), "rb") as f:
        check("an old file is not replaced unasked", f.read() == b"as it was")
    before = sorted(os.listdir(WORK))
    run("dump-logits", "--ids", path("ids"), "-o", path("no/such/folder/x"), status=3)
    run("dump-logits", "--ids", path("ids"), "-o", WORK, status=3)
    run("dump-logits", "--ids", path("ids"), "-o", "/dev/full", status=1)
    check("and no rubbish", sorted(os.listdir(WORK)) == before, os.listdir(WORK))
    os.symlink("kept", path("link"))
    run("dump-logits", "--ids", path("ids"), "-o", path("link"), "--force")
    check("a link stays a link", os.path.islink(path("link")))
    check("and its target is written", os.path.getsize(path("kept")) > 9 and floats("kept") == floats("last.f32"))


def inspect():
    o = json.loads(run("inspect", "--json", "--tensors").stdout)
    check("classes add up", sum(c["bytes"] for c in o["classes"].values()) == o["tensor_bytes"], o["classes"])
    check("types add up", all(sum(t["bytes"] for t in c["types"].values()) == c["bytes"] for c in o["classes"].values()))
    check("every tensor is listed", len(o["tensors"]) == o["n_tensors"])
    check("tensors lie in the file", all(t["offset"] + t["bytes"] <= o["files"][t["file"]]["bytes"] for t in o["tensors"]))
    s, c = o["sizes"], o["config"]
    check("experts", s["n_experts"] == c["moe_layers"] * c["experts"] and s["experts_bytes"] == o["classes"]["experts"]["bytes"])
    check("working set", s["working_set_experts"] == c["moe_layers"] * c["experts_used"] and
          s["working_set_bytes"] * c["experts"] == s["experts_bytes"] * c["experts_used"], s)
    full = len(o["index_share"]["full"])
    check("cache", s["kv_bytes_per_token"] == 2 * (c["layers"] * (c["kv_rank"] + c["head_rope"]) + full * c["index_dim"]), s)


def bench():
    quick = ["--repeats", "3", "--seconds", "0.001", "--mb", "16"]
    o = json.loads(run("bench", "copy", *quick, "--json").stdout)
    check("bench copy has its four figures", len(o["figures"]) == 4 and all(f["median"] > 0 for f in o["figures"]), o)
    p = subprocess.run([PROGRAM, "bench", "copy", *quick, "--cards", "0,0", "--json"], stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=170, check=False)
    if p.returncode == 0:
        pairs = [f for f in json.loads(p.stdout)["figures"] if "cards 0 and 0" in f["name"]]
        check("two stages on a card hand over", len(pairs) >= 4 and all(f["median"] > 0 for f in pairs), pairs)
    else:
        check("without a card bench copy --cards says so", p.returncode == 1 and
              any(s in p.stderr for s in (b"no graphics card answers", b"built without CUDA")), p.stderr)
    check("copies need two cards", b"takes two numbers" in run("bench", "copy", *quick, "--cards", "0", status=2).stderr)
    check("other parts take no cards", b"--cards belongs to" in run("bench", "ops", "--cards", "0,0", status=2).stderr)
    check("the median lies between the extremes", all(f["low"] <= f["median"] <= f["high"] for f in o["figures"]), o)
    o = json.loads(run("bench", "ops", "--only", "pocket expert_ffn", *quick, "--json").stdout)
    check("ops are chosen by name", o["figures"] and all("expert_ffn" in f["name"] for f in o["figures"]), o)
    check("and held against a limit", all(near(f["share"], f["median"] / f["limit"]) for f in o["figures"]), o)
    run("bench", "ops", "--only", "no such op", *quick, status=2)
    check("bench alone lists what there is", b"Usage: glmstream bench read|copy" in run("bench").stdout)
    run("bench", "nothing", status=2)
    rows = run("bench", "decode", *quick, "-p", "16", "-n", "4", "--csv").stdout.decode().splitlines()
    check("CSV has a head and three rows, one of --verify", len(rows) == 4 and rows[0].startswith("section,name,unit,median"), rows)
    check("of equal width", len({len(r) for r in csv.reader(rows)}) == 1, rows)
    rows = list(csv.reader(run("bench", "session", "-t", "1", "--repeats", "1", "-p", "16", "--dir", WORK, "--csv").stdout.decode().splitlines()))
    check("names of limits may hold a comma", len(rows) > 1 and {len(r) for r in rows} == {len(rows[0])}, rows)
    o = json.loads(run("bench", "prefill", *quick, "-p", "16", "--json").stdout)
    check("prefill is a rate", [f["unit"] for f in o["figures"]] == ["tok/s"], o)
    run("bench", "decode", *quick, "-p", "4096", "-n", "4096", status=2)


for part in (compare, logits, files, inspect, bench):
    part()
finish()
