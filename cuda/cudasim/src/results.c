/* Names and texts of results. */
#include "cudasim.h"
#include "results.h"

int cuGetErrorName(int code, const char **name);
int cuGetErrorString(int code, const char **text);

static const struct {
	int code;
	const char *name, *text;
} errors[] = {
	{SUCCESS, "CUDA_SUCCESS", "no error"},
	{INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{OS_ERROR, "CUDA_ERROR_OPERATING_SYSTEM", "an OS call failed"},
	{ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "not permitted in this state"},
	{NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
	{NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	{UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

int cuGetErrorName(int code, const char **name)
{
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		if (errors[i].code == code) {
			*name = errors[i].name;
			return SUCCESS;
		}
	return INVALID_VALUE;
}

int cuGetErrorString(int code, const char **text)
{
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		if (errors[i].code == code) {
			*text = errors[i].text;
			return SUCCESS;
		}
	return INVALID_VALUE;
}
