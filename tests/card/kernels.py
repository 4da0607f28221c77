#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Where the time of a decode step goes, kernel by kernel: kernels.py FILE

FILE is what `ncu --csv --print-units base --metrics gpu__time_duration.sum,dram__bytes_read.sum` printed of two
steps or more (check.sh, step profile). One line for each kernel, grid and first digit of the MB read, of the first
whole step: how often it runs, its time and the bytes it reads from memory. Kernels run one by one there, so their
sum is more than a step takes.
Exit status 1: there is no whole step.
"""
import csv
import sys

FIRST = "embed_kernel"  # begins a step


def launches(path):
    """(name, grid, us, MB) of each launch, in order."""
    found = {}
    with open(path, encoding="utf-8") as f:
        for row in csv.DictReader(line for line in f if line.startswith('"')):
            name = row["Kernel Name"].split("(")[0].removeprefix("void ")
            x = found.setdefault(int(row["ID"]), {"key": (name, row["Grid Size"].replace(" ", ""))})
            x[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    return [(*found[i]["key"], found[i]["gpu__time_duration.sum"] / 1e3, found[i]["dram__bytes_read.sum"] / 1e6)
            for i in sorted(found)]


def main():
    every = launches(sys.argv[1])
    begins = [i for i, x in enumerate(every) if x[0].startswith(FIRST)]
    if len(begins) < 2:
        print(f"no whole step among {len(every)} launches")
        return 1
    step = every[begins[0]:begins[1]]
    sums = {}
    for name, grid, us, megabytes in step:
        key = (name, grid, float(f"{megabytes:.1g}"))  # matrices of one grid differ in size
        n, all_us, all_megabytes = sums.get(key, (0, 0, 0))
        sums[key] = (n + 1, all_us + us, all_megabytes + megabytes)
    print(f"{'kernel':44} {'grid':14} {'times':>5} {'us':>9} {'us each':>8} {'MB each':>8} {'GB/s':>6}")
    for (name, grid, _), (n, us, megabytes) in sorted(sums.items(), key=lambda x: -x[1][1]):
        print(f"{name[:44]:44} {grid:14} {n:5} {us:9.1f} {us / n:8.1f} {megabytes / n:8.2f} {megabytes / us * 1e3:6.0f}")
    print(f"{len(step)} launches, {sum(x[2] for x in step):.0f} us one by one")
    return 0


sys.exit(main())
