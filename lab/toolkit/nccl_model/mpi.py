# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""As much of MPI as the programs need: who else there is, and one exchange between all.

By ctypes on the libmpi that the program is linked with, which has to be Open MPI. What waits for other ranks sleeps in
between: many ranks of a simulated cluster share few cores.
"""

from __future__ import annotations

import ctypes
import time

from .stop import NOT_SIMULATED, Stop

# Bytes that one process may share.
BLOCK = 1 << 14


class Alone:
    """A program that was built without MPI."""

    rank, size = 0, 1

    def share(self, mine: bytes) -> list[bytes]:
        return [mine]

    def close(self) -> None:
        pass


class Mpi(Alone):
    """Raises Stop where there is no Open MPI. That MPI itself refuses to start ends the process, with its own words."""

    def __init__(self, library: str) -> None:
        try:
            self._lib = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
            self._world, self._byte = (
                ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self._lib, name)))
                for name in ("ompi_mpi_comm_world", "ompi_mpi_byte")
            )
        except (OSError, ValueError) as error:
            raise Stop(NOT_SIMULATED, err=f"lab: the programs know Open MPI only: {error}") from error
        self._lib.MPI_Init(None, None)
        self.rank, self.size = self._number("MPI_Comm_rank"), self._number("MPI_Comm_size")

    def _number(self, function: str) -> int:
        found = ctypes.c_int()
        self._lib[function](self._world, ctypes.byref(found))
        return found.value

    def share(self, mine: bytes) -> list[bytes]:
        """Return what every process has to say, by rank. Raises OverflowError for more than BLOCK."""
        if len(mine) > BLOCK - 8:
            raise OverflowError(f"a process shares at most {BLOCK} bytes, not {len(mine)}")
        sent = len(mine).to_bytes(8, "little") + mine.ljust(BLOCK - 8, b"\0")
        found, request = ctypes.create_string_buffer(BLOCK * self.size), ctypes.c_void_p()
        block = (sent, BLOCK, self._byte)
        self._lib.MPI_Iallgather(*block, found, BLOCK, self._byte, self._world, ctypes.byref(request))
        self._wait(request)
        blocks = [found.raw[n : n + BLOCK] for n in range(0, BLOCK * self.size, BLOCK)]
        return [block[8 : 8 + int.from_bytes(block[:8], "little")] for block in blocks]

    def _wait(self, request: ctypes.c_void_p) -> None:
        done = ctypes.c_int()
        while not done.value:
            time.sleep(0.002)
            self._lib.MPI_Test(ctypes.byref(request), ctypes.byref(done), None)

    def close(self) -> None:
        request = ctypes.c_void_p()
        self._lib.MPI_Ibarrier(self._world, ctypes.byref(request))
        self._wait(request)
        self._lib.MPI_Finalize()
