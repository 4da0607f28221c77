#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How much of the library the tests have reached, by folder, from a build with COVERAGE=1.

    coverage.py BUILD                 a table; exit status 1 below the floors of tests/coverage.txt
    coverage.py BUILD raise           writes the floors: a little below what was reached, never lower
    coverage.py BUILD lines [PATH]    the lines of files below PATH that were never reached

A line counts as reached when one of its instructions ran, a branch when it was taken. Lines that
call bug() are left out: they run when the program is wrong.
"""
import collections
import glob
import gzip
import json
import os
import subprocess
import sys
import tempfile

FOLDERS = ["src/format", "src/text", "src/serve", "src/engine", "cache", "stream"]
FLOORS = "tests/coverage.txt"
SLACK = 0.3  # per cent that threads and time make of a difference from run to run


def read_counts(build):
    """{path: {line: count}} and {path: {line: [counts of branches]}}"""
    lines = collections.defaultdict(lambda: collections.defaultdict(int))
    branches = collections.defaultdict(dict)
    notes = sorted(glob.glob(f"{build}/**/*.gcno", recursive=True))
    if not notes:
        sys.exit(f"{build}: holds no *.gcno: build it with COVERAGE=1")
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.abspath(p) for p in notes]
        # one call for all: gcov looks for the counts beside the notes
        subprocess.run(["gcov", "--json-format", "--branch-probabilities", "--hash-filenames", *paths],
                       cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        for name in sorted(os.listdir(folder)):
            with gzip.open(f"{folder}/{name}", "rt", encoding="utf-8") as f:
                data = json.load(f)
            for source in data["files"]:
                path = os.path.normpath(source["file"])
                for line in source["lines"]:
                    number, taken = line["line_number"], [b["count"] for b in line["branches"]]
                    lines[path][number] += line["count"]
                    old = branches[path].get(number, [])
                    if len(old) == len(taken):
                        taken = [a + b for a, b in zip(old, taken)]
                    branches[path][number] = max(old, taken, key=len) if old else taken
    return lines, branches


def drop_bugs(path, lines, branches):
    """Takes out the lines of calls of bug(), and the branches of conditions right above them."""
    with open(path, encoding="utf-8") as f:
        text = f.read().split("\n")
    for number in list(lines):
        if number <= len(text) and text[number - 1].lstrip().startswith("bug("):
            del lines[number]
            branches.pop(number, None)


def sums(lines, branches):
    out = {}
    for folder in FOLDERS:
        n = [0, 0, 0, 0]
        for path in lines:
            if not path.startswith(folder + "/"):
                continue
            n[0] += sum(c > 0 for c in lines[path].values())
            n[1] += len(lines[path])
            n[2] += sum(c > 0 for b in branches[path].values() for c in b)
            n[3] += sum(len(b) for b in branches[path].values())
        out[folder] = n
    return out


def per_cent(part, whole):
    return 100 * part / whole if whole else 100.0


def read_floors():
    floors = {}
    if os.path.exists(FLOORS):
        for line in open(FLOORS, encoding="utf-8"):
            if line.strip() and line[0] != "#":
                folder, a, b = line.split()
                floors[folder] = (float(a), float(b))
    return floors


def print_table(found, floors):
    low = []
    print(f"{'':12} {'lines':>14} {'%':>6} {'floor':>6} {'branches':>14} {'%':>6} {'floor':>6}")
    total = [sum(n[i] for n in found.values()) for i in range(4)]
    for folder, n in [*found.items(), ("all", total)]:
        a, b = per_cent(n[0], n[1]), per_cent(n[2], n[3])
        floor = floors.get(folder, (0.0, 0.0)) if folder != "all" else (0.0, 0.0)
        print(f"{folder:12} {n[0]:6} of {n[1]:5} {a:6.2f} {floor[0]:6.1f} "
              f"{n[2]:6} of {n[3]:5} {b:6.2f} {floor[1]:6.1f}")
        if a < floor[0] or b < floor[1]:
            low.append(folder)
    return low


def write_floors(found, floors):
    with open(FLOORS, "w", encoding="utf-8") as f:
        f.write("# Per cent of lines and branches that the tests reach at least, by folder;\n"
                "# tests/coverage.py BUILD raise writes it. The goal is 95 % of lines.\n")
        for folder, n in found.items():
            old = floors.get(folder, (0.0, 0.0))
            new = [max(o, int(10 * (per_cent(n[i], n[i + 1]) - SLACK)) / 10)
                   for o, i in ((old[0], 0), (old[1], 2))]
            f.write(f"{folder} {new[0]:.1f} {new[1]:.1f}\n")


def print_lines(lines, below):
    for path in sorted(lines):
        if not path.startswith(below) or not path.startswith(tuple(FOLDERS)):
            continue
        missed = sorted(n for n, c in lines[path].items() if not c)
        runs = []
        for n in missed:
            if runs and n - runs[-1][1] <= 1:
                runs[-1][1] = n
            else:
                runs.append([n, n])
        if missed:
            print(f"{path}: {len(missed)} of {len(lines[path])}: "
                  + " ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs))


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    lines, branches = read_counts(sys.argv[1])
    lines = {p: c for p, c in lines.items() if p.startswith(tuple(f + "/" for f in FOLDERS))}
    for path in lines:
        drop_bugs(path, lines[path], branches[path])
    mode = sys.argv[2] if len(sys.argv) > 2 else ""
    if mode == "lines":
        print_lines(lines, sys.argv[3] if len(sys.argv) > 3 else "")
        return
    found, floors = sums(lines, branches), read_floors()
    low = print_table(found, floors)
    if mode == "raise":
        write_floors(found, floors)
    elif low:
        sys.exit(f"below the floor of {FLOORS}: {', '.join(low)}; "
                 f"{sys.argv[0]} {sys.argv[1]} lines FOLDER says which lines")


if __name__ == "__main__":
    main()
