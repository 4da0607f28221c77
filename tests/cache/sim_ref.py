#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""An independent, slow simulator of expert caches: the oracle for cache/trace/sim.c.

    sim_ref.py TRACE --experts N[,N...] [--policy all|NAME,...] [--order rank|layer] [--per-layer]
               [--skip TOKENS] [--half-life TOKENS] [--tokens N]

Reads a GLTR1 file and prints one line per policy and size: policy, slots, accesses, hits. Nothing here is clever: every
victim is found by looking at all that is resident (LRU and SIEVE keep plain lists), so that it can be checked by
reading. Plain Python, no packages. The policies are

  lru            the resident key whose last use is the oldest
  sieve          a list in order of insertion, a bit per key, a hand that walks from the oldest to the newest; with
                 `--order layer` keys used within the last 17/16 tokens are spared while there are others, if a token's fit
  lfu            the least sum of weights of all uses so far (also of those while not resident), where the weight of a
                 use grows by 1 + ln 2 / half_life with every access; ties: oldest last use, then least key. With
                 `--order layer` keys used within the last 17/16 tokens are spared while there are others, if a token's fit; then the
                 oldest of them leaves
  belady         the resident key with the farthest next use; what is missed is always cached
  belady-bypass  the same, but a missed key whose next use is not nearer than that of the victim is not cached

`--order rank` handles one expert after the other. `--order layer` looks up all experts of a layer first, and those
found may not leave until the missing ones have been placed.
"""
import argparse
import struct
import sys
from collections import OrderedDict

NEVER = 1 << 62


def read_trace(path, limit):
    data = open(path, "rb").read()
    if data[:8] != b"GLTR1\0\0\0":
        sys.exit(f"{path}: not a GLTR1 file")
    tokens, layers, k, experts = struct.unpack("<4I", data[8:24])
    at, batches = 24, []                       # batches[token][layer] = list of keys, best first
    for _ in range(min(tokens, limit or tokens)):
        token = []
        for layer in range(layers):
            token.append([layer * experts + x for x in data[at:at + k]])
            at += 2 * k
        batches.append(token)
    return batches, layers, k, experts


class Lru:
    def __init__(self, **_):
        self.keys = OrderedDict()              # oldest first

    def access(self, key, now):
        if key in self.keys:
            self.keys.move_to_end(key)

    def insert(self, key, now):
        self.keys[key] = True

    def victim(self, pinned):
        return next(k for k in self.keys if k not in pinned)

    def remove(self, key):
        del self.keys[key]


class Sieve:
    def __init__(self, recency_window=0, **_):
        self.last, self.now, self.recency_window = {}, 0, recency_window
        self.newer, self.older, self.bit = {}, {}, {}
        self.head = self.tail = self.hand = None

    def access(self, key, now):
        self.now = self.last[key] = now
        if key in self.bit:
            self.bit[key] = True

    def insert(self, key, now):
        self.newer[key], self.older[key], self.bit[key] = None, self.head, False
        if self.head is not None:
            self.newer[self.head] = key
        self.head = key
        if self.tail is None:
            self.tail = key

    def victim(self, pinned):
        old = {k for k in self.bit if k not in pinned and self.last[k] + self.recency_window <= self.now} if self.recency_window else ()
        at = self.hand if self.hand is not None else self.tail
        while True:
            if at in old if old else at not in pinned:
                if not self.bit[at]:
                    break
                self.bit[at] = False
            at = self.newer[at] if self.newer[at] is not None else self.tail
        self.hand = at
        return at

    def remove(self, key):
        newer, older = self.newer.pop(key), self.older.pop(key)
        del self.bit[key]
        if self.hand == key:
            self.hand = newer
        if newer is None:
            self.head = older
        else:
            self.older[newer] = older
        if older is None:
            self.tail = newer
        else:
            self.newer[older] = newer


class Lfu:
    def __init__(self, half_life=1.0, recency_window=0, **_):
        self.recent, self.old = OrderedDict(), set()        # the resident keys; recent: oldest first
        self.score, self.last, self.now, self.recency_window = {}, {}, 0, recency_window
        self.weight, self.growth = 1.0, 1 + 0.6931471805599453 / max(half_life, 1.0)

    def access(self, key, now):
        self.now = now
        self.weight *= self.growth
        if self.weight > 2.0 ** 500:           # only ratios matter
            for other in self.score:
                self.score[other] *= 2.0 ** -500
            self.weight *= 2.0 ** -500
        self.score[key] = self.score.get(key, 0.0) + self.weight
        self.last[key] = now
        if key in self.recent or key in self.old:
            self.remove(key)
            self.recent[key] = True

    def insert(self, key, now):
        self.recent[key] = True

    def victim(self, pinned):
        for key in list(self.recent):
            if self.last[key] + self.recency_window > self.now:
                break
            del self.recent[key]
            self.old.add(key)
        score, last = self.score, self.last
        found = [k for k in self.old if k not in pinned]
        if found:
            return min(found, key=lambda k: (score[k], last[k], k))
        return next(k for k in self.recent if k not in pinned)

    def remove(self, key):
        self.old.discard(key)
        self.recent.pop(key, None)


class Belady:
    def __init__(self, next_use=None, **_):
        self.resident, self.next_use = set(), next_use

    def access(self, key, now):
        pass                                   # next_use has just been renewed by the caller

    def insert(self, key, now):
        self.resident.add(key)

    def victim(self, pinned):
        next_use = self.next_use
        return max((k for k in self.resident if k not in pinned), key=lambda k: (next_use[k], -k))

    def remove(self, key):
        self.resident.remove(key)


POLICIES = {"lru": Lru, "lfu": Lfu, "sieve": Sieve, "belady": Belady, "belady-bypass": Belady}


def simulate(batches, name, slots, order, half_life, skip, token_accesses):
    """Hits and accesses after the first `skip` tokens. `batches` as read_trace gives them."""
    n_accesses = sum(len(b) for token in batches for b in token)
    next_at, seen, i = [NEVER] * n_accesses, {}, n_accesses
    for token in reversed(batches):
        for batch in reversed(token):
            for key in reversed(batch):
                i -= 1
                next_at[i], seen[key] = seen.get(key, NEVER), i
    next_use = {}
    half_life = half_life * token_accesses or max(1.75 * slots, 16.0 * token_accesses)
    spare = order == "layer" and slots >= token_accesses  # less than a token fits: all would be recent
    recency_window = token_accesses + token_accesses // 16 if spare else 0
    policy = POLICIES[name](half_life=half_life, recency_window=recency_window, next_use=next_use)
    resident, now, hits, accesses = set(), 0, 0, 0

    def place(key, pinned):
        if len(resident) == slots:
            victim = policy.victim(pinned)
            if name == "belady-bypass" and next_use[key] >= next_use[victim]:
                return
            policy.remove(victim)
            resident.remove(victim)
        resident.add(key)
        policy.insert(key, now)

    for t, token in enumerate(batches):
        for batch in token:
            found, missing = set(), []
            for key in batch:
                next_use[key] = next_at[now]
                now += 1
                policy.access(key, now)
                hit = key in resident
                hits += hit and t >= skip
                accesses += t >= skip
                if hit:
                    found.add(key)
                elif order == "rank":
                    place(key, ())
                else:
                    missing.append(key)
            for key in missing:
                if len(resident) == slots and resident <= found:
                    continue                   # every slot is in use by this layer
                place(key, found)
                if key in resident:
                    found.add(key)
    return hits, accesses


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("trace")
    ap.add_argument("--experts", required=True, help="slots, a list separated by commas")
    ap.add_argument("--policy", default="all")
    ap.add_argument("--order", choices=("rank", "layer"), default="rank")
    ap.add_argument("--per-layer", action="store_true", help="a pool of that many slots for every layer")
    ap.add_argument("--skip", type=int, default=0)
    ap.add_argument("--half-life", type=float, default=0.0, help="in tokens; 0: as cache.h")
    ap.add_argument("--tokens", type=int, default=0, help="only the first N tokens")
    args = ap.parse_args()
    batches, layers, k, experts = read_trace(args.trace, args.tokens)
    names = POLICIES if args.policy == "all" else args.policy.split(",")
    for slots in map(int, args.experts.split(",")):
        for name in names:
            if args.per_layer:
                parts = [simulate([[token[l]] for token in batches], name, slots, args.order, args.half_life,
                                  args.skip, k) for l in range(layers)]
                hits, accesses = sum(p[0] for p in parts), sum(p[1] for p in parts)
            else:
                hits, accesses = simulate(batches, name, slots, args.order, args.half_life, args.skip, k * layers)
            print(name, slots, accesses, hits)


if __name__ == "__main__":
    main()
