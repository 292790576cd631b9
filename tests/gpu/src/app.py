#!/usr/bin/env python3
"""A transformer of GPT-2 Large's shape that answers requests, to be dumped and restored under it.

Its weights are random, from a seed, made on the device. Each connection to its Unix socket asks one line and is
answered one:

    ask SEED    "answer HASH COUNT": the model reads tokens made from the seed and generates some; HASH is over the
                bytes of all its logits, COUNT, kept on the device, is how many were asked
    info        "info PID PARAMETERS BYTES": of the model, and the bytes allocated on the device
    worker N    "ok PID": a forked child that answers asks on SOCKET.N, from memory of its own, without the device

With --processes N, N-1 children do the same and answer on SOCKET.1, SOCKET.2, ... With --socket pipes a line is
written to descriptor 901 of the process and its answer read from 902, by their names in /proc: so copies of it can be
told apart.
"""
import argparse
import hashlib
import os
import signal
import socket
import subprocess
import sys
import time

import torch


class Model:
    """GPT-2's layers without its training: pre-norm blocks, learned positions, tied output weights."""

    def __init__(self, a):
        self.heads, self.width, self.vocab = a.heads, a.width, a.vocab
        g = torch.Generator(device=a.device)
        g.manual_seed(a.seed)
        kind = {"device": a.device, "dtype": getattr(torch, a.dtype)}

        def weights(*shape):
            return torch.randn(*shape, generator=g, **kind).mul_(0.02)

        w = a.width
        self.tokens, self.places = weights(a.vocab, w), weights(a.context, w)
        self.layers = []
        for _ in range(a.layers):
            self.layers.append({
                "n1": (torch.ones(w, **kind), torch.zeros(w, **kind)),
                "qkv": (weights(w, 3 * w), weights(3 * w)), "out": (weights(w, w), weights(w)),
                "n2": (torch.ones(w, **kind), torch.zeros(w, **kind)),
                "up": (weights(w, 4 * w), weights(4 * w)), "down": (weights(4 * w, w), weights(w)),
            })
        self.norm = (torch.ones(w, **kind), torch.zeros(w, **kind))
        self.count = torch.zeros(1, dtype=torch.int64, device=a.device)
        self.device, self.kind = a.device, kind

    def parameters(self):
        n = self.tokens.numel() + self.places.numel() + sum(t.numel() for t in self.norm)
        return n + sum(t.numel() for layer in self.layers for pair in layer.values() for t in pair)

    def forward(self, ids):
        f = torch.nn.functional
        n, w = ids.shape[0], self.width
        x = self.tokens[ids] + self.places[:n]
        mask = torch.full((n, n), float("-inf"), **self.kind).triu(1)
        for layer in self.layers:
            y = f.layer_norm(x, (w,), *layer["n1"])
            qkv = torch.addmm(layer["qkv"][1], y, layer["qkv"][0])
            q, k, v = qkv.view(n, 3, self.heads, w // self.heads).permute(1, 2, 0, 3)
            a = torch.softmax(q @ k.transpose(1, 2) * (w // self.heads) ** -0.5 + mask, dim=-1) @ v
            x = x + torch.addmm(layer["out"][1], a.transpose(0, 1).reshape(n, w), layer["out"][0])
            y = f.layer_norm(x, (w,), *layer["n2"])
            y = f.gelu(torch.addmm(layer["up"][1], y, layer["up"][0]))
            x = x + torch.addmm(layer["down"][1], y, layer["down"][0])
        return f.layer_norm(x[-1:], (w,), *self.norm) @ self.tokens.t()

    def answer(self, seed, prompt=32, generate=4):
        ids = [(seed * 7919 + i * 104729) % self.vocab for i in range(prompt)]
        h = hashlib.sha256()
        for _ in range(generate):
            logits = self.forward(torch.tensor(ids, device=self.device))
            h.update(logits.float().cpu().numpy().tobytes())
            ids.append(int(logits.argmax()))
        self.count += 1
        return f"answer {h.hexdigest()[:32]} {int(self.count)}"


class Worker:
    """What a forked child answers from: memory of its own."""

    def __init__(self):
        self.memory = hashlib.shake_128(b"worker").digest(1 << 20) * 16
        self.count = 0

    def answer(self, seed):
        self.count += 1
        h = hashlib.sha256(str(seed).encode())
        h.update(self.memory)
        return f"answer {h.hexdigest()[:32]} {self.count}"


def listen(path):
    if os.path.exists(path):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(16)
    return listener


def fork(path, *leave):
    """Forks a child that answers on path. It cannot use the device, and keeps nothing of what is to be left."""
    pid = os.fork()
    if pid:
        return pid
    try:
        for x in leave:
            x.close()
        model = Worker()
        serve(listen(path), lambda words, conn: model.answer(int(words[1])) if words[:1] == ["ask"] else "what?")
    finally:
        os._exit(1)


def serve(listener, obey):
    while True:
        conn, _ = listener.accept()
        with conn:
            try:
                conn.sendall((obey(conn.makefile("r").readline().split(), conn) + "\n").encode())
            except OSError as e:  # who asked is gone
                print(f"app: {e}", file=sys.stderr, flush=True)


def serve_pipes(obey, first=900):
    for at in (first, first + 2):
        for k, fd in enumerate(os.pipe()):
            os.dup2(fd, at + k)
            os.close(fd)
    asked, answers = os.fdopen(first, "r"), os.fdopen(first + 3, "w")
    while True:
        print(obey(asked.readline().split(), None), file=answers, flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--socket", required=True)
    p.add_argument("--device", default="cuda")
    p.add_argument("--layers", type=int, default=36)
    p.add_argument("--width", type=int, default=1280)
    p.add_argument("--heads", type=int, default=20)
    p.add_argument("--vocab", type=int, default=50257)
    p.add_argument("--context", type=int, default=1024)
    p.add_argument("--dtype", default="float32")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--processes", type=int, default=1)
    a = p.parse_args()
    path = a.socket
    if a.processes > 1:
        # Programs of their own, not forks: a fork of a process that uses CUDA cannot use it.
        args = [x for x in sys.argv[1:]]
        for i in range(1, a.processes):
            own = ["--socket", f"{path}.{i}", "--processes", "1"]
            subprocess.Popen([sys.executable, os.path.abspath(__file__)] + args + own)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_grad_enabled(False)
    start = time.time()
    model = Model(a)
    print(f"app: {model.parameters()} parameters in {time.time() - start:.1f} s", flush=True)
    model.answer(0)  # libraries and kernels are loaded with the first
    model.count.zero_()
    listener = None if path == "pipes" else listen(path)

    def obey(words, conn):
        if words[:1] == ["ask"]:
            return model.answer(int(words[1]))
        if words[:1] == ["info"]:
            used = torch.cuda.memory_allocated() if a.device == "cuda" else 0
            return f"info {os.getpid()} {model.parameters()} {used}"
        if words[:1] == ["worker"] and listener:
            return f"ok {fork(f'{path}.{int(words[1])}', listener, conn)}"
        return "what?"

    if listener:
        serve(listener, obey)
    serve_pipes(obey)


main()
