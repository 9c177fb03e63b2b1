"""A rank of a NCCL job, by ctypes alone: all-reduces for ever, or until it calls no more, as one whose data is late.

rank.py LIBRARY FOLDER RANK RANKS GPU [LATE]     LATE: all-reduces that it launches before it launches nothing more
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

FLOAT32, SUM = 7, 0
COUNT = 1 << 20


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


def good(code: int, what: str) -> None:
    if code:
        raise SystemExit(f"{what} returned {code}")


def main(library: str, folder: str, rank: int, ranks: int, gpu: int, late: int) -> None:
    cuda, nccl = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(library)
    good(cuda.cuInit(0), "cuInit")
    context, stream, buffer = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    good(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), gpu), "cuDevicePrimaryCtxRetain")
    good(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    good(cuda.cuMemAlloc_v2(ctypes.byref(buffer), ctypes.c_size_t(4 * COUNT)), "cuMemAlloc")
    good(cuda.cuStreamCreate(ctypes.byref(stream), 1), "cuStreamCreate")
    told = Path(folder) / "id"
    identity = UniqueId()
    if rank == 0:
        good(nccl.ncclGetUniqueId(ctypes.byref(identity)), "ncclGetUniqueId")
        part = told.with_suffix(".part")
        part.write_bytes(bytes(identity))
        part.rename(told)
    while not told.exists():
        time.sleep(0.1)
    identity = UniqueId.from_buffer_copy(told.read_bytes())
    communicator = ctypes.c_void_p()
    nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
    good(nccl.ncclCommInitRank(ctypes.byref(communicator), ranks, identity, rank), "ncclCommInitRank")
    nccl.ncclAllReduce.argtypes = [
        *(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t),
        *(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
    ]
    launched = 0
    while True:
        if launched == late:
            print(f"rank {rank} pid {os.getpid()}: waits for data", flush=True)
            time.sleep(3600)
        good(nccl.ncclAllReduce(buffer, buffer, COUNT, FLOAT32, SUM, communicator, stream), "ncclAllReduce")
        launched += 1
        good(cuda.cuStreamSynchronize(stream), "cuStreamSynchronize")
        if launched == 1:
            print(f"rank {rank} pid {os.getpid()}: running", flush=True)
        time.sleep(0.02)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[3:]]
    main(sys.argv[1], sys.argv[2], numbers[0], numbers[1], numbers[2], numbers[3] if len(numbers) > 3 else -1)
