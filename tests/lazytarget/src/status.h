#include <stdatomic.h>
#include <stdint.h>

/* The layout is known to the test: see status in the Go package. */
struct status {
	_Atomic uint64_t ready;     /* memory is set up */
	_Atomic uint64_t stop;      /* set by the test: finish and exit */
	_Atomic uint64_t check;     /* set by the test: quiet mode checks up to this count */
	_Atomic uint64_t checked;   /* quiet mode: checks done */
	_Atomic uint64_t pages;     /* pages compared */
	_Atomic uint64_t ops;       /* changes made */
	_Atomic uint64_t forks;     /* children that were checked */
	_Atomic uint64_t mismatches;
	_Atomic uint64_t sigbus;    /* pages that raised SIGBUS */
	_Atomic uint64_t exited;    /* the last word */
	_Atomic uint64_t hot_ns;    /* quiet mode: CLOCK_REALTIME when the hot set was passed */
	_Atomic uint64_t beats;     /* counts while it runs */
	_Atomic uint64_t hot_only;  /* set by the test: checks stop after the hot set */
	_Atomic uint64_t hot_passes; /* quiet mode: how often the hot set was passed */
	_Atomic uint64_t damaged;   /* set by the test: pages may raise SIGBUS, on stacks too */
	char message[4000];
};
