/* The results of the driver's calls that the simulator gives. */
#ifndef RESULTS_H
#define RESULTS_H

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
	OS_ERROR = 304, ILLEGAL_STATE = 401,
       NOT_READY = 600, NOT_SUPPORTED = 801, UNKNOWN = 999 };

#endif
