/* What cudasim offers beside the driver's own calls. All return a CUresult. */
#ifndef CUDASIM_H
#define CUDASIM_H

#include <stddef.h>
#include <stdint.h>

int cuInit(unsigned flags);
int cuDeviceGetCount(int *count);
int cuDeviceGetUuid_v2(unsigned char uuid[16], int dev);
int cuMemAlloc_v2(uint64_t *ptr, size_t size);
int cuMemcpyHtoD_v2(uint64_t dst, const void *src, size_t size);
int cuMemcpyDtoH_v2(void *dst, uint64_t src, size_t size);

/* cudasimDevice makes the following allocations on a GPU. */
int cudasimDevice(int dev);
/* cudasimWork gives the GPU work for some milliseconds, and returns at once. */
int cudasimWork(int ms);
/* cudasimFail lets the next driver action of that name fail with a CUresult. */
int cudasimFail(const char *action, int result);
/*
 * cudasimStall lets the next driver action of that name take some milliseconds longer; a file stalls.ACTION.PID is in
 * the simulator's folder meanwhile.
 */
int cudasimStall(const char *action, int ms);

#endif
