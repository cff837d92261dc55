"""What PyTorch takes for the same: tensors on one GPU, from one process to another. One JSON object a line.

torch rpc        torch.distributed.rpc, as it chooses
torch rpc basic  the same without cuda_ipc: by way of main memory
torch queue      torch.multiprocessing, which passes CUDA's IPC handles; with the answer that it came
"""

import json
import os
import socket
import sys
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp

SECONDS = 0.3


def take(x):
    torch.cuda.current_stream().synchronize()
    return x.numel()


def measure(case, sizes, call):
    for size in sizes:
        x = torch.empty(size, dtype=torch.uint8, device="cuda:0")
        small = torch.ones(1, dtype=torch.uint8, device="cuda:0")
        times, begun, number = [], time.perf_counter(), 0
        while True:
            x.fill_(number % 256)
            torch.cuda.synchronize()
            # Both processes are awake.
            for _ in range(4):
                assert call(small) == 1
            started = time.perf_counter()
            assert call(x) == size
            took = time.perf_counter() - started
            number += 1
            if number > 2:
                times.append(took)
            enough = sum(times) >= SECONDS or time.perf_counter() - begun >= 5 * SECONDS
            if len(times) >= 5 and enough:
                break
        times.sort()
        p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
        row = {"case": case, "bytes": size, "p50_us": p50 * 1e6, "p99_us": p99 * 1e6, "n": len(times)}
        print(json.dumps(row, separators=(",", ":")), flush=True)


def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def end_of_rpc(rank, case, channels, sizes, at):
    names = ["here", "there"]
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://127.0.0.1:{at}",
        num_worker_threads=4,
        device_maps={names[1 - rank]: {0: 0}},
        _channels=channels,
    )
    rpc.init_rpc(names[rank], rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        measure(case, sizes, lambda x: rpc.rpc_sync("there", take, args=(x,)))
    rpc.shutdown()


def end_of_queue(there, back):
    while (x := there.get()) is not None:
        back.put(take(x))
        del x


def over_queue(sizes):
    spawn = mp.get_context("spawn")
    there, back = spawn.SimpleQueue(), spawn.SimpleQueue()
    other = spawn.Process(target=end_of_queue, args=(there, back), daemon=True)
    other.start()

    def call(x):
        there.put(x)
        return back.get()

    measure("torch queue", sizes, call)
    there.put(None)
    other.join(30)


def main():
    sizes = [int(size) for size in sys.argv[1].split(",")]
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    basic = ["cma", "basic", "cuda_basic"]
    for case, channels in [("torch rpc", None), ("torch rpc basic", basic)]:
        mp.spawn(end_of_rpc, args=(case, channels, sizes, port()), nprocs=2, join=True)
    over_queue(sizes)


if __name__ == "__main__":
    main()
