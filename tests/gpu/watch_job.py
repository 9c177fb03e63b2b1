"""One rank of a training on this machine, for tests/gpu/test_watch.py: matrix products and an all-reduce in each step.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29511 python watch_job.py FOLDER

FOLDER/phase has what all do next: ``train``; ``late N``: rank N sleeps 30 ms in every step; ``checkpoint N`` and
``evaluate N``: rank N alone does that, the others wait in a barrier; ``data``: no rank runs a kernel; ``small``: only
all-reduces of 4 KB; ``compile``: every rank compiles a new model once in 20 steps. A checkpoint is written to FOLDER.
The phase is read by rank 0 and broadcast, so that all ranks change in the same step.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def compile_and_run(number: int) -> None:
    """A model that Inductor has not seen: its width is a new one."""
    width = 256 + 8 * number
    layers = [torch.nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True) for _layer in range(4)]
    model = torch.nn.Sequential(*layers).cuda()
    torch.compiler.reset()
    torch.compile(model)(torch.randn(8, 128, width, device="cuda")).sum().backward()


def main(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    weights = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    gradients = torch.randn(32 << 20, device="cuda")
    words = ["train", "late", "checkpoint", "evaluate", "data", "small", "compile"]
    compiled = 0
    (folder / f"up-{rank}").touch()
    while True:
        phase, of = 0, -1
        if rank == 0:
            name, _blank, number = (folder / "phase").read_text().partition(" ")
            phase, of = words.index(name), int(number or -1)
        both = torch.tensor([phase, of], device="cuda")
        dist.broadcast(both, 0)
        phase, of = both.tolist()
        for step in range(20):
            if words[phase] == "data":
                time.sleep(0.5)
            if words[phase] == "checkpoint" and rank == of:
                torch.save(weights.cpu(), folder / "checkpoint.pt")
                time.sleep(1)
            if words[phase] == "late" and rank == of:
                time.sleep(0.03)
            if words[phase] in ("train", "late") or (words[phase] == "evaluate" and rank == of):
                for _product in range(4 if words[phase] != "evaluate" else 400):
                    weights @ weights
            if words[phase] in ("train", "late"):
                dist.all_reduce(gradients)
            if words[phase] == "compile" and step == 0:
                compiled += 1
                compile_and_run(compiled)
            for _message in range(1000 if words[phase] == "small" else 0):
                dist.all_reduce(gradients[:1024])
            torch.cuda.synchronize()
            if words[phase] in ("checkpoint", "evaluate") and rank == of:
                continue
        dist.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
