// Copyright: Busbar contributors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// As much of the CUDA runtime as the lab's programs name.
#pragma once

#define CUDART_VERSION 13000

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cudaError { cudaSuccess = 0, cudaErrorNoDevice = 100, cudaErrorSystemNotReady = 802 } cudaError_t;
typedef struct CUstream_st *cudaStream_t;

cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDevice(int *device);
const char *cudaGetErrorString(cudaError_t error);

#ifdef __cplusplus
}
#endif
