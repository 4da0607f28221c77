#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains the pocket model: GLM-5.2's architecture at 64 million parameters, in the released checkpoint layout.

Stages: corpus and tokenizer; trunk with dense attention; indexers taught by the attention they will replace; sparse
fine-tuning of everything; the MTP layer; export. Needs a CUDA device, torch 2.11, transformers 5.17, tokenizers and
safetensors. The time budgets are what decides the length of a stage.
"""
import argparse
import os
import subprocess
import sys

N_CORPUS_PARTS = 8


def parse_args():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out", help="folder for checkpoint and tokenizer")
    ap.add_argument("--work", default=".", help="folder for the corpus parts and words.txt (%(default)s)")
    ap.add_argument("--wordnet", default="/usr/share/wordnet", help="WordNet 3.0's data files (%(default)s)")
    ap.add_argument("--documents", type=int, default=80000,
                    help=f"documents in each of the {N_CORPUS_PARTS} corpus parts (%(default)s)")
    for stage, seconds in (("trunk", 420), ("index", 60), ("sparse", 200), ("mtp", 150)):
        ap.add_argument(f"--{stage}-seconds", type=float, default=seconds, metavar="S", help="budget (%(default)s)")
    ap.add_argument("--device", default="cuda", help="%(default)s")
    return ap.parse_args()


def make_corpus(args):
    """Writes the corpus parts in parallel; returns their paths."""
    here = os.path.dirname(os.path.abspath(__file__))
    paths = [os.path.join(args.work, f"corpus.{part}.jsonl.gz") for part in range(N_CORPUS_PARTS)]
    running = []
    for part, path in enumerate(paths):
        command = [sys.executable, os.path.join(here, "gen.py"), path, "--wordnet", args.wordnet,
                   "--documents", str(args.documents), "--seed", str(100 + part)]
        if part == 0:
            command += ["--words", os.path.join(args.work, "words.txt")]
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
    for process in running:
        if process.wait() != 0:
            sys.exit("train.py: gen.py failed")
    return paths


def main():
    args = parse_args()
    os.makedirs(args.out, exist_ok=True)
    os.makedirs(args.work, exist_ok=True)
    from trainer import Trainer  # torch is imported only now, so that --help works without it

    trainer = Trainer(args.out, args.device)
    trainer.load_corpus(make_corpus(args))
    trainer.make_model()
    trainer.train_trunk(args.trunk_seconds)
    trainer.train_indexers(args.index_seconds)
    trainer.train_sparse(args.sparse_seconds)
    trainer.train_mtp(args.mtp_seconds)
    trainer.export()


if __name__ == "__main__":
    main()
