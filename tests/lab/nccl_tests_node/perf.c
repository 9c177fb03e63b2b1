#include <nccl.h>
#ifdef MPI
#include <mpi.h>
#else
#define MPI_Init() 0
#endif
int main(void) { return ncclGetVersion() + MPI_Init() + cudaGetDevice(); }
