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
#include <dlfcn.h>
#include <mpi.h>
#endif

int main(int, char *argv[]) {
  int library = 0, runtime = 0;
  // Both libraries have to be there to load, as for the real program.
  if (ncclGetVersion(&library) != ncclSuccess || cudaRuntimeGetVersion(&runtime) != cudaSuccess) return 1;
  std::string build = "single";
#ifdef MPI_SUPPORT
  // The model is an MPI program itself: it has to load the very library that this one has.
  int initialized = 0;
  Dl_info mpi;
  if (MPI_Initialized(&initialized) != 0 || dladdr(dlsym(RTLD_DEFAULT, "MPI_Initialized"), &mpi) == 0) return 1;
  build = std::string("mpi:") + mpi.dli_fname;
#endif
  std::string headers = std::to_string(NCCL_VERSION_CODE), found = std::to_string(library);
  std::vector<char *> words = {(char *)"python3", (char *)"-I", (char *)MODEL, (char *)PROGRAM, &headers[0], &found[0],
                               &build[0]};
  for (; *argv != nullptr; argv++) words.push_back(*argv);
  words.push_back(nullptr);
  execvp("python3", words.data());
  perror("lab: python3 cannot be run");
  return 127;
}
