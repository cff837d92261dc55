#!/usr/bin/env python3
"""Measures peers that are not written in Rust beside ours: in turns, two processes pinned to a core each, one table.

What they need is in the README beside this file. A round in which the host took more than 2 % of the processors is dropped.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SIZES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def size(text):
    for unit, factor in SIZES.items():
        if text.endswith(unit):
            return int(text.removesuffix(unit)) * factor
    return int(text)


def output(command, env=None):
    done = subprocess.run(command, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def last_json(text):
    lines = [line for line in text.splitlines() if line.startswith("{")]
    return json.loads(lines[-1])["p50_us"]


class Peers:
    def __init__(self, options):
        self.options, self.port = options, 19_000 + os.getpid() % 10_000

    def ours(self, case, bytes, over):
        command = [self.options.tp_bench, "rpc", "--case", case, "--size", str(bytes), "--transport", over]
        return last_json(output([*command, "--seconds", self.seconds(), "--pin", "--json", "--warm", "always"]))

    def tokio(self, case, bytes, over):
        # By hand, over what it has.
        over = {"shm": "unix"}.get(over, over)
        command = [self.options.tp_bench, "baseline", "--case", case, "--size", str(bytes), "--transport", over]
        lines = output([*command, "--seconds", self.seconds(), "--pin", "--json"])
        return min(json.loads(line)["p50_us"] for line in lines.splitlines() if '"system":"tokio"' in line)

    def tensorpipe(self, bytes, over, channel):
        over = {"shm": "shm", "tcp": "uv"}[over]
        return last_json(output([HERE / "tensorpipe", over, channel, str(bytes), self.seconds(), "0", "1"]))

    def nixl(self, bytes, over):
        if bytes == 0:
            return None
        ways = {"shm": "cma,posix,sysv,self,tcp", "tcp": "tcp,self"}[over]
        command = [self.options.python, HERE / "nixl_write.py", str(bytes), self.seconds(), "0", "1"]
        return last_json(output(command, {"UCX_TLS": ways}))

    def ucx(self, bytes, over):
        ways = {"shm": "posix,cma,self", "tcp": "tcp,self"}[over]
        self.port += 1
        env = {"UCX_TLS": ways, "LD_LIBRARY_PATH": f"{self.options.ucx}/lib", "UCX_WARN_UNUSED_ENV_VARS": "n"}
        program = f"{self.options.ucx}/bin/ucx_perftest"
        many = str(max(20, min(20_000, (1 << 31) // max(bytes, 1))))
        server = subprocess.Popen(
            [program, "-p", str(self.port), "-c", "1"],
            env={**os.environ, **env},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            time.sleep(0.3)
            client = [program, "127.0.0.1", "-p", str(self.port), "-c", "0", "-t", "tag_lat", "-s", str(max(bytes, 1))]
            lines = output([*client, "-n", many, "-f", "-v"], env).splitlines()
            at = lines[-2].split(",").index("50.0_percentile_lat")
            return float(lines[-1].split(",")[at])
        finally:
            server.kill()
            server.wait()

    def seconds(self):
        return str(self.options.seconds)

    def of(self, work, over):
        """The columns of a table: ours first."""
        if work == "upload":
            return {
                "ours": lambda n: self.ours("upload", n, over),
                "tokio, by hand": lambda n: self.tokio("upload", n, over),
                "NIXL write + answer": lambda n: self.nixl(n, over),
                "UCX tag, half a trip": lambda n: self.ucx(n, over),
            }
        return {
            "ours": lambda n: self.ours("exchange", n, over),
            "tokio, by hand": lambda n: self.tokio("echo", n, over),
            "C++ TensorPipe, basic": lambda n: self.tensorpipe(n, over, "basic"),
            "C++ TensorPipe, cma": lambda n: self.tensorpipe(n, over, "cma") if over == "shm" and n else None,
        }


def stolen():
    """Time that the host took, and all time, so far."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return fields[7], sum(fields[:8])


def measure(columns, bytes, rounds):
    kept = {name: [] for name in columns}
    dropped = 0
    while min(map(len, kept.values())) < rounds:
        for name, run in columns.items():
            before = stolen()
            figure = run(bytes)
            after = stolen()
            if after[0] - before[0] > 0.02 * (after[1] - before[1]) and dropped < 3 * rounds:
                dropped += 1
            elif len(kept[name]) < rounds:
                kept[name].append(figure)
    return kept, dropped


def cell(figures, ours):
    if None in figures:
        return "–"
    middle = statistics.median(figures)
    ratio = "" if ours is None else f" ({ours / middle:.2f})"
    return f"{middle:,.1f} [{min(figures):,.1f} {max(figures):,.1f}]{ratio}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=["upload", "exchange"])
    parser.add_argument("--over", choices=["shm", "tcp"], default="shm")
    parser.add_argument("--sizes", default="4KiB,64KiB,1MiB,16MiB,128MiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--tp-bench", default=HERE.parents[1] / "target/release/tp-bench")
    parser.add_argument("--python", default=sys.executable, help="of an environment with nixl-cu12")
    parser.add_argument("--ucx", default="/usr", help="where bin/ucx_perftest and lib/libucp.so are")
    parser.add_argument("--without", default="", help="beginnings of columns that are left out, with commas")
    options = parser.parse_args()
    columns = Peers(options).of(options.work, options.over)
    without = tuple(name for name in options.without.split(",") if name)
    columns = {name: run for name, run in columns.items() if not name.startswith(without or ("\0",))}
    print(f"{options.work} over {options.over}, µs: median of {options.rounds} [lowest highest] (ours, of it)\n")
    print("| size | " + " | ".join(columns) + " |")
    print("|---:" * (len(columns) + 1) + "|")
    for text in options.sizes.split(","):
        kept, dropped = measure(columns, size(text), options.rounds)
        ours = statistics.median(kept["ours"])
        cells = [cell(figures, None if name == "ours" else ours) for name, figures in kept.items()]
        note = f" ({dropped} dropped)" if dropped else ""
        print(f"| {text}{note} | " + " | ".join(cells) + " |", flush=True)


main()
