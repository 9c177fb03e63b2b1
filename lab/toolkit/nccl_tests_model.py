# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the programs of nccl-tests 2.19.6 would print on the simulated nodes that they run on.

Run by the lab's stand-ins: PROGRAM HEADERS LIBRARY mpi:LIBMPI|single ARGV... (versions as NCCL's codes; LIBMPI: file of
the MPI that the program is linked with). Options, layouts, error texts and exit codes are nccl-tests'; the figures are
made from what each node has right now: the GPUs and NVLinks that nvidia-smi answers with, the links, RDMA devices and
PCIe paths in its /sys, NCCL's variables as NCCL would find them, and what nccl_model/fabric.py has between nodes.
With NCCL_DEBUG=INFO there is NCCL's log of it. Stands alone, Python >= 3.9.
"""

import importlib
import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
    sys.exit(importlib.import_module("nccl_model.program").main(sys.argv[1:]))
