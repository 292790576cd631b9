#!/usr/bin/env python3
"""objects: a process whose memory is a heap of small Python objects, as a service keeps its sessions. It says in its
status file that it is ready, in the words of tests/workload, and sleeps."""
import argparse
import random
import time

p = argparse.ArgumentParser()
p.add_argument("--status", required=True)
p.add_argument("--objects", type=int, required=True)
a = p.parse_args()
r = random.Random(1)
words = [
    "".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(r.randrange(3, 11)))
    for _ in range(5000)
]
sessions = {
    "%016x" % r.getrandbits(64): {
        "user": i,
        "name": " ".join(r.sample(words, 2)),
        "seen": 1.7e9 + r.random() * 1e7,
        "tags": r.sample(words, 4),
        "cart": [(r.randrange(100_000), r.randrange(1, 9), round(r.random() * 200, 2)) for _ in range(3)],
        "note": None if r.random() < 0.5 else " ".join(r.choices(words, k=8)),
    }
    for i in range(a.objects)
}
with open(a.status, "w") as f:
    f.write(("ok passes=1 child_passes=1 ticks=0 bytes=%d" % len(sessions)).ljust(255) + "\n")
while True:
    time.sleep(3600)
