"""NIXL: a WRITE into a second process's registered memory, its notification, and that process's answer.

usage: nixl_write.py BYTES SECONDS [CORE CORE]
Prints one line of JSON: the median and the number of writes. UCX_TLS chooses the way (cma,posix,sysv,self,tcp or tcp,self).
"""

import ctypes
import json
import os
import signal
import socket
import statistics
import struct
import sys
import time

from nixl_cu12._api import nixl_agent, nixl_agent_config


def memory(size):
    """Ordinary memory, resident."""
    buffer = ctypes.create_string_buffer(b"", size)
    ctypes.memset(buffer, 1, size)
    return buffer


def send(link, data):
    link.sendall(struct.pack("<Q", len(data)) + data)


def receive(link):
    def exactly(many):
        data = b""
        while len(data) < many:
            piece = link.recv(many - len(data))
            if not piece:
                raise EOFError("the other process has gone")
            data += piece
        return data

    return exactly(struct.unpack("<Q", exactly(8))[0])


def agent(name):
    # No thread of its own: both ends poll.
    return nixl_agent(name, nixl_agent_config(enable_prog_thread=False, backends=["UCX"]))


def hear(nixl):
    while True:
        notes = nixl.get_new_notifs()
        if notes:
            return notes


def serve(link, size):
    nixl, target = agent("target"), memory(size)
    entry = (ctypes.addressof(target), size, 0)
    nixl.register_memory([entry + ("",)], "DRAM")
    send(link, nixl.get_agent_metadata())
    send(link, nixl.get_serialized_descs(nixl.get_xfer_descs([entry], "DRAM")))
    writer = nixl.add_remote_agent(receive(link))
    nixl.make_connection(writer)
    send(link, b"ready")
    while True:
        hear(nixl)
        nixl.send_notif(writer, b"ack")


def measure(link, size, seconds):
    nixl, source = agent("writer"), memory(size)
    entry = (ctypes.addressof(source), size, 0)
    nixl.register_memory([entry + ("",)], "DRAM")
    target = nixl.add_remote_agent(receive(link))
    theirs = nixl.deserialize_descs(receive(link))
    send(link, nixl.get_agent_metadata())
    receive(link)
    nixl.make_connection(target)
    write = nixl.initialize_xfer("WRITE", nixl.get_xfer_descs([entry], "DRAM"), theirs, target, b"done")
    micros, begun, rounds = [], time.perf_counter(), 0
    while rounds < 8 or time.perf_counter() < begun + 1.2 * seconds:
        ctypes.memset(source, rounds % 256, size)
        rounds += 1
        start = time.perf_counter_ns()
        state = nixl.transfer(write)
        while state == "PROC":
            state = nixl.check_xfer_state(write)
        if state != "DONE":
            raise RuntimeError(f"the write ended as {state}")
        hear(nixl)
        took = time.perf_counter_ns() - start
        if time.perf_counter() > begun + 0.2 * seconds:
            micros.append(took / 1000)
    print(json.dumps({"p50_us": statistics.median(micros), "n": len(micros)}), flush=True)


def main():
    size, seconds = int(sys.argv[1]), float(sys.argv[2])
    cores = [int(core) for core in sys.argv[3:5]]
    near, far = socket.socketpair()
    child = os.fork()
    if child == 0:
        near.close()
        if cores:
            os.sched_setaffinity(0, {cores[1]})
        try:
            serve(far, size)
        finally:
            os._exit(1)
    far.close()
    if cores:
        os.sched_setaffinity(0, {cores[0]})
    try:
        measure(near, size, seconds)
        code = 0
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    # It crashes where it ends in good order.
    os._exit(code)


main()
