// Copyright: Busbar contributors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// One program for each collective. There is no GPU to run on: the lab's model prints what the simulated node would.
#include <cstdio>
#include <string>
#include <unistd.h>
#include <vector>

#include <cuda_runtime.h>
#include <nccl.h>
#ifdef MPI_SUPPORT
#include <mpi.h>
#endif

int main(int, char *argv[]) {
  int library = 0, runtime = 0;
  // Both libraries have to be there to load, as for the real program.
  if (ncclGetVersion(&library) != ncclSuccess || cudaRuntimeGetVersion(&runtime) != cudaSuccess) return 1;
  int several = 0;
#ifdef MPI_SUPPORT
  int initialized = 0;
  MPI_Initialized(&initialized);
  several = 1;
#endif
  std::string headers = std::to_string(NCCL_VERSION_CODE), found = std::to_string(library);
  std::vector<char *> words = {(char *)"python3", (char *)"-I", (char *)MODEL, (char *)PROGRAM, &headers[0], &found[0],
                               (char *)(several ? "mpi" : "single")};
  for (; *argv != nullptr; argv++) words.push_back(*argv);
  words.push_back(nullptr);
  execvp("python3", words.data());
  perror("busbar lab: python3 cannot be run");
  return 127;
}
