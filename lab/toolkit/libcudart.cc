// Copyright: Busbar contributors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// A CUDA runtime without devices, to link with: what the node's GPUs do is the model's affair.
#include "cuda_runtime.h"

extern "C" {

cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
  *count = 0;
  return cudaErrorNoDevice;
}

cudaError_t cudaGetDevice(int *device) {
  *device = 0;
  return cudaErrorNoDevice;
}

const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorSystemNotReady: return "system not yet initialized";
  }
  return "unrecognized error code";
}
}
