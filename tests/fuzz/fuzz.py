#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs libFuzzer over the targets that `make` built in build/fuzz, and keeps what it finds.

    fuzz.py run SECONDS NAME ...   each for so long, as many at a time as there are cores
    fuzz.py merge NAME ...         minimises all inputs into tests/fuzz/corpus/NAME.pack

Inputs of a target: the files of tests/fuzz/corpus/NAME, which people wrote or which once found a
fault, and the pack of inputs that reach code of their own. A run begins with both; what it finds
stays in build/fuzz/corpus/NAME until a merge. An input that crashes is printed in base64, stays as
build/fuzz/NAME-crash-..., and the exit status is 1. Environment: FUZZ_JOBS (number of cores).
"""
import base64
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

CORPUS = "tests/fuzz/corpus"
BUILD = "build/fuzz"
PACK_MOST = 100_000  # bytes of a pack: some 25 of them are 2.5 MB at most
INPUT_MOST = 4_096  # bytes of an input in it

# What a target may take, where it is not this:
LIMITS = {"rss_limit_mb": 1024, "timeout": 20, "max_len": 4096}
LIMITS_OF = {
    "gguf": {"max_len": 8192},
    "safetensors": {"max_len": 8192},
    "session": {"max_len": 65536},
    "schema_mask": {"max_len": 2048},
}


def files_of(folder):
    if not os.path.isdir(folder):
        return []
    return sorted(f.path for f in os.scandir(folder) if f.is_file() and f.name[0] != ".")


def unpack(name, folder):
    """Writes the inputs of a target's pack into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    path = f"{CORPUS}/{name}.pack"
    data = open(path, "rb").read() if os.path.exists(path) else b""
    at = number = 0
    while at < len(data):
        (n,) = struct.unpack_from("<I", data, at)
        if at + 4 + n > len(data):
            sys.exit(f"{path}: is damaged")
        with open(f"{folder}/{number:05}", "wb") as f:
            f.write(data[at + 4 : at + 4 + n])
        at += 4 + n
        number += 1


def command(name, *options):
    limits = LIMITS | LIMITS_OF.get(name, {})
    return [f"{BUILD}/fuzz_{name}", *[f"-{k}={v}" for k, v in limits.items()], *options]


def environment(tmp):
    return os.environ | {
        "TMPDIR": tmp,
        # what a sanitizer should not do: keep freed memory until the limit of memory is reached
        "ASAN_OPTIONS": "quarantine_size_mb=16:malloc_context_size=8:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def memory_folder():
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def artifacts(name):
    return {p for p in files_of(BUILD) if re.match(rf"{name}-(crash|leak|timeout|oom|slow)", os.path.basename(p))}


def run_one(name, seconds):
    kept, found = f"{BUILD}/kept/{name}", f"{BUILD}/corpus/{name}"
    unpack(name, kept)
    os.makedirs(found, exist_ok=True)
    before = artifacts(name)
    seeds = [d for d in (kept, f"{CORPUS}/{name}") if os.path.isdir(d)]
    with tempfile.TemporaryDirectory(dir=memory_folder()) as tmp:
        done = subprocess.run(
            command(name, f"-max_total_time={seconds}", "-print_final_stats=1",
                    f"-artifact_prefix={BUILD}/{name}-", found, *seeds),
            env=environment(tmp), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, check=False)
    log = done.stdout.decode("utf-8", "replace")
    with open(f"{BUILD}/{name}.log", "w", encoding="utf-8") as f:
        f.write(log)
    stat = dict(re.findall(r"^stat::(\w+):\s+(\d+)", log, re.M))
    cov = re.findall(r"cov: (\d+)", log)
    line = (f"{'ok  ' if not done.returncode else 'FAIL'} {name:18} "
            f"{int(stat.get('number_of_executed_units', 0)):9} inputs, "
            f"{cov[-1] if cov else '?':>6} edges, {stat.get('new_units_added', '?'):>5} new, "
            f"{stat.get('peak_rss_mb', '?'):>4} MB")
    if done.returncode:
        for path in sorted(artifacts(name) - before):
            data = open(path, "rb").read()
            line += (f"\n---- {path}, {len(data)} bytes in base64 (base64 -d >FILE; "
                     f"{BUILD}/fuzz_{name} FILE):\n{base64.b64encode(data).decode()}")
        line += f"\n---- {name}, exit status {done.returncode}; the end of {BUILD}/{name}.log:\n"
        line += "\n".join([x for x in log.splitlines() if not re.match(r"#\d+\t", x)][-40:])
    print(line, flush=True)
    return done.returncode == 0


def merge_one(name):
    kept, found, merged = (f"{BUILD}/{d}/{name}" for d in ("kept", "corpus", "merged"))
    unpack(name, kept)
    shutil.rmtree(merged, ignore_errors=True)
    os.makedirs(merged)
    own = set()
    for path in files_of(f"{CORPUS}/{name}"):  # what these reach needs no other input
        shutil.copy(path, merged)
        own.add(os.path.basename(path))
    with tempfile.TemporaryDirectory(dir=memory_folder()) as tmp:
        subprocess.run(
            command(name, "-merge=1", f"-artifact_prefix={BUILD}/{name}-", merged, kept,
                    *([found] if os.path.isdir(found) else [])),
            env=environment(tmp), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, check=True)
    inputs = [open(p, "rb").read() for p in files_of(merged) if os.path.basename(p) not in own]
    inputs.sort(key=lambda x: (len(x), x))
    pack, left_out = b"", 0
    for x in inputs:
        if len(x) <= INPUT_MOST and len(pack) + 4 + len(x) <= PACK_MOST:
            pack += struct.pack("<I", len(x)) + x
        else:
            left_out += 1
    if pack:
        with open(f"{CORPUS}/{name}.pack", "wb") as f:
            f.write(pack)
    print(f"{name:18} {len(inputs) - left_out:5} inputs, {len(pack):7} bytes kept"
          + (f", {left_out} are too large" if left_out else ""), flush=True)


def main():
    if len(sys.argv) > 3 and sys.argv[1] == "run":
        with ThreadPoolExecutor(int(os.environ.get("FUZZ_JOBS", os.cpu_count()))) as pool:
            good = list(pool.map(lambda name: run_one(name, int(sys.argv[2])), sys.argv[3:]))
        print(f"{sum(good)} targets found nothing, {len(good) - sum(good)} failed")
        sys.exit(not all(good))
    if len(sys.argv) > 2 and sys.argv[1] == "merge":
        for name in sys.argv[2:]:
            merge_one(name)
        return
    sys.exit(__doc__)


if __name__ == "__main__":
    main()
