# SPDX-License-Identifier: MIT
"""For tests that are scripts: counts checks, and shows those that are wrong with what was seen instead."""
import sys

checks = wrong = 0


def check(text, ok, seen=""):
    global checks, wrong
    checks += 1
    if not ok:
        wrong += 1
        seen = str(seen)
        print("WRONG:", text, "\n  seen:", seen if len(seen) < 1000 else seen[:400] + " ... " + seen[-500:])


def finish(more=""):
    print(f"{checks} checks, {wrong} wrong{more}")
    sys.exit(1 if wrong else 0)
