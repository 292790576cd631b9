#!/usr/bin/env python3
"""Programs that use a GPU as people write them, each to be dumped and restored under it.

    matrix.py PROGRAM --socket S

PROGRAM is the name of one of the classes at the end, in small letters. It answers on the Unix socket S, a line for
each line:

    ask SEED    "answer HASH COUNT": HASH is over what the program computes from the seed, COUNT is how many were asked
    info        "info PID TEXT"

The same seed gives the same hash for as long as the program lives, whatever was asked before. Weights come from a seed
too.
"""
import argparse
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time


def digest(*parts):
    h = hashlib.sha256()
    for p in parts:
        if hasattr(p, "detach"):
            p = p.detach().float().cpu().numpy()
        h.update(p.tobytes() if hasattr(p, "tobytes") else repr(p).encode())
    return h.hexdigest()[:32]


class Torch:
    """A few layers on the device."""

    def __init__(self):
        import torch
        self.torch = torch
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.manual_seed(1)
        layers = [torch.nn.Linear(512, 512) for _ in range(4)]
        self.model = torch.nn.Sequential(*layers).eval().requires_grad_(False).cuda()
        self.prepare()

    def prepare(self):
        pass

    def input(self, seed, rows=64, columns=512):
        g = self.torch.Generator().manual_seed(seed)
        return self.torch.randn(rows, columns, generator=g).cuda()

    def answer(self, seed):
        return digest(self.model(self.input(seed)))


class Generate(Torch):
    """transformers' generate, greedy, with its own cache of keys and values."""

    def prepare(self):
        from transformers import GPT2Config, GPT2LMHeadModel
        c = GPT2Config(n_layer=4, n_head=8, n_embd=512, vocab_size=8192, eos_token_id=None, bos_token_id=None)
        self.lm = GPT2LMHeadModel(c).eval().cuda()
        self.vocab = c.vocab_size

    def prompt(self, seed):
        g = self.torch.Generator().manual_seed(seed)
        return self.torch.randint(0, self.vocab, (2, 16), generator=g).cuda()

    def answer(self, seed):
        with self.torch.no_grad():
            ids = self.prompt(seed)
            out = self.lm.generate(ids, attention_mask=self.torch.ones_like(ids), max_new_tokens=12, do_sample=False,
                                   pad_token_id=0)
        return digest(out)


class Cache(Generate):
    """A conversation whose keys and values stay on the device between two questions."""

    def prepare(self):
        super().prepare()
        with self.torch.no_grad():
            self.past = self.lm(self.prompt(7), use_cache=True).past_key_values
        self.length = 16

    def answer(self, seed):
        with self.torch.no_grad():
            out = self.lm(self.prompt(seed)[:, :4], past_key_values=self.past, use_cache=True)
        self.past.crop(self.length)
        return digest(out.logits[:, -1])


class Compile(Torch):
    """torch.compile, with the processes that it compiles in."""

    mode = "default"

    def prepare(self):
        self.compiled = self.torch.compile(self.model, mode=self.mode)
        for _ in range(3):
            self.answer(0)

    def answer(self, seed):
        with self.torch.no_grad():
            return digest(self.compiled(self.input(seed)).clone())


class CompileOverhead(Compile):
    mode = "reduce-overhead"


class CompileAutotune(Compile):
    mode = "max-autotune"


class Triton(Torch):
    """A kernel written in Triton."""

    def prepare(self):
        import triton
        import triton.language as tl
        global tl_  # a kernel sees its module's names only
        tl_ = tl
        self.add = triton_add(triton)

    def answer(self, seed):
        x, y = self.input(seed).flatten(), self.input(seed + 1).flatten()
        out = self.torch.empty_like(x)
        self.add[(x.numel() // 1024,)](x, y, out, BLOCK=1024)
        return digest(out)


def triton_add(triton):
    @triton.jit
    def add(x, y, out, BLOCK: tl_.constexpr):
        i = tl_.program_id(0) * BLOCK + tl_.arange(0, BLOCK)
        tl_.store(out + i, tl_.load(x + i) * 3 + tl_.load(y + i))
    return add


class Graph(Torch):
    """A captured CUDA graph."""

    def prepare(self):
        self.static = self.input(0)
        side = self.torch.cuda.Stream()
        with self.torch.cuda.stream(side), self.torch.no_grad():
            for _ in range(3):
                self.model(self.static)
        side.synchronize()
        self.graph = self.torch.cuda.CUDAGraph()
        with self.torch.no_grad(), self.torch.cuda.graph(self.graph):
            self.out = self.model(self.static)

    def answer(self, seed):
        self.static.copy_(self.input(seed))
        self.graph.replay()
        return digest(self.out)


class Streams(Torch):
    """Four streams that wait for one another by events."""

    def prepare(self):
        self.streams = [self.torch.cuda.Stream() for _ in range(4)]
        self.events = [self.torch.cuda.Event() for _ in range(4)]

    def answer(self, seed):
        x = self.input(seed)
        self.torch.cuda.synchronize()
        for s, e, layer in zip(self.streams, self.events, self.model):
            with self.torch.cuda.stream(s), self.torch.no_grad():
                x = layer(x)
                e.record(s)
            for other in self.streams:
                other.wait_event(e)
        self.torch.cuda.synchronize()
        return digest(x)


class Pinned(Torch):
    """Memory of the host that the driver allocated, copied from on two streams."""

    def prepare(self):
        g = self.torch.Generator().manual_seed(2)
        self.pinned = [self.torch.randn(1 << 20, generator=g).pin_memory() for _ in range(8)]
        self.back = self.torch.empty(1 << 20).pin_memory()

    def answer(self, seed):
        x = self.pinned[seed % 8].cuda(non_blocking=True) * seed
        self.back.copy_(x, non_blocking=True)
        self.torch.cuda.synchronize()
        return digest(self.back, self.pinned[(seed + 1) % 8])


class Registered(Torch):
    """Memory of the program's own that it registered with the driver (cudaHostRegister)."""

    def prepare(self):
        g = self.torch.Generator().manual_seed(3)
        self.memory = self.torch.randn(4 << 20, generator=g)
        r = self.torch.cuda.cudart().cudaHostRegister(self.memory.data_ptr(), self.memory.numel() * 4, 0)
        if int(r) != 0:
            raise RuntimeError(f"cudaHostRegister: {r}")

    def answer(self, seed):
        x = self.memory.to("cuda", non_blocking=True)
        self.torch.cuda.synchronize()
        return digest(x[seed::97] * seed)


class Loader(Torch):
    """A DataLoader whose workers stay; it is asked for a few batches each time."""

    method = "fork"

    def prepare(self):
        self.answer(0)

    def batches(self, seed):
        # Workers stay with one iterator; who asks for a batch goes on in it.
        if not hasattr(self, "loader"):
            self.loader = self.torch.utils.data.DataLoader(
                Rows(), batch_size=8, num_workers=2, persistent_workers=True, multiprocessing_context=self.method)
        return [b for b, _ in zip(self.loader, range(4))]

    def answer(self, seed):
        total = self.torch.zeros(512).cuda()
        for b in self.batches(seed):
            total += (b.cuda() * seed).sum(0)
        return digest(total)


class Rows:
    def __len__(self):
        return 32

    def __getitem__(self, i):
        import torch
        return torch.randn(512, generator=torch.Generator().manual_seed(i))


class LoaderSpawn(Loader):
    method = "spawn"


class LoaderForkserver(Loader):
    method = "forkserver"


class Shared(Torch):
    """A worker process that shares a tensor of the host with its parent (torch.multiprocessing)."""

    def prepare(self):
        mp = self.torch.multiprocessing.get_context("spawn")
        self.tensor = self.make()
        self.ask, self.said = mp.SimpleQueue(), mp.SimpleQueue()
        self.worker = mp.Process(target=shared_worker, args=(self.tensor, self.ask, self.said), daemon=True)
        self.worker.start()
        self.answer(0)

    def make(self):
        return self.torch.zeros(1 << 16).share_memory_()

    def answer(self, seed):
        self.ask.put(seed)
        self.said.get()
        return digest(self.tensor.cuda() * 2)


class SharedCuda(Shared):
    """The same with a tensor of the device (CUDA IPC)."""

    def make(self):
        return self.torch.zeros(1 << 16).cuda()


def shared_worker(tensor, ask, said):
    import torch
    while True:
        seed = ask.get()
        tensor.copy_(torch.randn(1 << 16, generator=torch.Generator().manual_seed(seed)))
        if tensor.is_cuda:
            torch.cuda.synchronize()
        said.put(seed)


class Jax:
    """JAX, jitted, with the share of the device's memory that it takes in advance (here a tenth)."""

    def __init__(self):
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", ".10")
        import jax
        import jax.numpy as jnp
        self.jax = jax
        self.weights = jax.random.normal(jax.random.key(1), (1024, 1024))
        self.step = jax.jit(lambda w, x: jnp.tanh(x @ w) @ w)
        self.answer(0)

    def answer(self, seed):
        x = self.jax.random.normal(self.jax.random.key(seed), (64, 1024))
        import numpy
        return digest(numpy.asarray(self.step(self.weights, x)))


class Cupy:
    """CuPy, with a kernel compiled at run time."""

    def __init__(self):
        import cupy
        self.cupy = cupy
        self.kernel = cupy.ElementwiseKernel("float32 x, float32 y", "float32 z", "z = x * 3 + y", "three")
        self.base = cupy.arange(1 << 20, dtype=cupy.float32)

    def answer(self, seed):
        return digest(self.kernel(self.base, self.cupy.float32(seed)).get())


class Managed(Cupy):
    """Managed memory (cudaMallocManaged)."""

    def __init__(self):
        import cupy
        cupy.cuda.set_allocator(cupy.cuda.MemoryPool(cupy.cuda.malloc_managed).malloc)
        super().__init__()


class Numba:
    """A kernel written in Python, compiled by Numba."""

    def __init__(self):
        import numpy
        if not hasattr(numpy, "row_stack"):  # NumPy 2.5 has dropped it, and numba-cuda 0.30 asks for it
            numpy.row_stack = numpy.vstack
        from numba import cuda
        self.numpy, self.cuda = numpy, cuda

        @cuda.jit
        def scale(x, k):
            i = cuda.grid(1)
            if i < x.size:
                x[i] = x[i] * k + 1

        self.kernel = scale
        self.base = cuda.to_device(numpy.arange(1 << 20, dtype=numpy.float32))
        self.answer(1)

    def answer(self, seed):
        x = self.cuda.device_array_like(self.base)
        x.copy_to_device(self.base)
        self.kernel[4096, 256](x, self.numpy.float32(seed))
        return digest(x.copy_to_host())


class Released(Torch):
    """A process that had a GPU and let it go (cudaDeviceReset)."""

    def prepare(self):
        import ctypes
        self.kept = self.model[0].weight.cpu().numpy()
        del self.model
        self.torch.cuda.synchronize()
        self.torch.cuda.empty_cache()
        for line in open("/proc/self/maps"):
            if "libcudart" in line:
                path = line.split(maxsplit=5)[5].strip()
        r = ctypes.CDLL(path).cudaDeviceReset()
        if r != 0:
            raise RuntimeError(f"cudaDeviceReset: {r}")

    def answer(self, seed):
        return digest(self.kept * seed)


class Busy(Torch):
    """Kernels are running at any moment, launched by a thread of its own."""

    def prepare(self):
        self.turns = 0
        threading.Thread(target=self.spin, daemon=True).start()

    def spin(self):
        stream = self.torch.cuda.Stream()
        x = self.torch.ones(4096, 4096, device="cuda")
        with self.torch.cuda.stream(stream), self.torch.no_grad():
            while True:
                for _ in range(8):
                    x = (x @ x) * 2**-12
                stream.synchronize()
                self.turns += 1

    def answer(self, seed):
        before, end = self.turns, time.time() + 20
        while self.turns == before:
            if time.time() > end:
                raise RuntimeError("the thread that launches kernels stands still")
            time.sleep(.01)
        return super().answer(seed)


class Polling(Torch):
    """A thread that asks the driver all the time: whether an event and a stream are done, how much memory is free."""

    def prepare(self):
        self.turns = 0
        threading.Thread(target=self.poll, daemon=True).start()

    def poll(self):
        cuda = self.torch.cuda
        stream, event = cuda.Stream(), cuda.Event()
        event.record(stream)
        while True:
            event.query()
            stream.query()
            cuda.mem_get_info()
            self.turns += 1
            time.sleep(.001)

    def answer(self, seed):
        before, end = self.turns, time.time() + 20
        while self.turns == before:
            if time.time() > end:
                raise RuntimeError("the thread that asks the driver stands still")
            time.sleep(.01)
        return super().answer(seed)


class Forked(Torch):
    """Two children, forked after CUDA was used, that only compute on the host."""

    def prepare(self):
        self.children = []
        for _ in range(2):
            mine, theirs = socket.socketpair()
            if os.fork() == 0:
                mine.close()
                while True:
                    line = theirs.recv(64)
                    if not line:
                        os._exit(0)
                    theirs.send(hashlib.sha256(line).digest())
            theirs.close()
            self.children.append(mine)

    def answer(self, seed):
        said = []
        for c in self.children:
            c.send(str(seed).encode())
            said.append(c.recv(64))
        return digest(self.model(self.input(seed)), *said)


class Child(Torch):
    """A child program that uses the GPU too and is asked over a pipe."""

    def prepare(self):
        self.child = subprocess.Popen([sys.executable, os.path.abspath(__file__), "torch", "--pipe"],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.answer(0)

    def answer(self, seed):
        self.child.stdin.write(f"ask {seed}\n")
        self.child.stdin.flush()
        return digest(self.model(self.input(seed)), self.child.stdout.readline().split()[1])


class Peers(Torch):
    """Two GPUs; COPY tells whether a tensor goes from one straight to the other."""

    copy = False

    def prepare(self):
        if self.torch.cuda.device_count() < 2:
            raise SystemExit("needs two GPUs")
        self.second = self.torch.ones(512, 512, device="cuda:1")
        if self.copy:
            self.model(self.input(0)).to("cuda:1")
            self.torch.cuda.synchronize()

    def answer(self, seed):
        x = self.model(self.input(seed))
        y = self.input(seed).cpu().to("cuda:1") @ self.second
        return digest(x, y, *([x.to("cuda:1")] if self.copy else []))


class PeersCopy(Peers):
    copy = True


class Aiohttp(Torch):
    """An HTTP service on asyncio; who asks keeps the connection open."""

    loop = "asyncio"

    def serve(self, path):
        import asyncio
        from aiohttp import web
        if self.loop == "uvloop":
            import uvloop
            run = uvloop.run
        else:
            run = asyncio.run

        async def ask(request):
            return web.Response(text=self.answer(int(request.match_info["seed"])))

        async def main():
            app = web.Application()
            app.router.add_get("/ask/{seed}", ask)
            runner = web.AppRunner(app, keepalive_timeout=3600)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = site._server.sockets[0].getsockname()[1]
            with open(path + ".new", "w") as f:
                f.write(str(port))
            os.rename(path + ".new", path)
            await asyncio.Event().wait()

        run(main())


class Uvloop(Aiohttp):
    """The same on uvloop."""

    loop = "uvloop"


class Worker(Torch):
    """One of torchrun's workers: all add up what they compute, by NCCL. The first is asked and asks the others."""

    def prepare(self):
        import torch.distributed as dist
        self.dist, self.rank = dist, int(os.environ["RANK"])
        self.torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        self.model.to(f"cuda:{os.environ['LOCAL_RANK']}")
        dist.init_process_group("nccl")
        self.host = dist.new_group(backend="gloo")  # who waits for a question does so on the host
        while self.rank > 0:
            self.answer(None)

    def answer(self, seed):
        asked = [seed]
        self.dist.broadcast_object_list(asked, group=self.host)
        x = self.model(self.input(asked[0] + self.rank))
        self.dist.all_reduce(x)
        return digest(x)


class Grpc(Torch):
    """A gRPC service, and a client of it in the same process with a connection that stays open."""

    def prepare(self):
        import grpc
        from concurrent import futures

        class Handler(grpc.GenericRpcHandler):
            def service(handler, details):
                return grpc.unary_unary_rpc_method_handler(
                    lambda request, context: Torch.answer(self, int(request)).encode())

        self.server = grpc.server(futures.ThreadPoolExecutor(2), handlers=(Handler(),))
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.call = self.channel.unary_unary("/matrix/Ask")
        self.answer(0)

    def answer(self, seed):
        return self.call(str(seed).encode(), timeout=20).decode()


def reply(program, line, count):
    words = line.split()
    if words[:1] == ["ask"]:
        return f"answer {program.answer(int(words[1]))} {count}"
    return f"info {os.getpid()} {type(program).__name__}"


def serve(program, path):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(16)
    count = 0
    while True:
        conn, _ = listener.accept()
        with conn:
            try:
                count += 1
                conn.sendall((reply(program, conn.makefile("r").readline(), count) + "\n").encode())
            except OSError as e:  # who asked is gone
                print(f"matrix: {e}", file=sys.stderr, flush=True)


def main():
    programs = {c.__name__.lower(): c for c in list(globals().values())
                if isinstance(c, type) and hasattr(c, "answer")}
    p = argparse.ArgumentParser()
    p.add_argument("program", choices=programs)
    p.add_argument("--socket")
    p.add_argument("--pipe", action="store_true")
    a = p.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    program = programs[a.program]()
    if a.pipe:
        for i, line in enumerate(sys.stdin):
            print(reply(program, line, i), flush=True)
    elif hasattr(program, "serve"):
        program.serve(a.socket)
    else:
        program.answer(0)
        serve(program, a.socket)


if __name__ == "__main__":
    main()
