/*
 * What programs do that the driver does not bear well.
 *
 * With $CUDASIM_ASKS a thread looks at memory of the driver every millisecond, which a checkpoint takes down: the
 * process is gone then, as with the real one.
 *
 * $CUDASIM_REGISTERED is how many MiB of its own memory the process has registered with the driver. They have to be
 * there at a restore, page by page: the driver does not wait for them, and serves the process no more when one is
 * missing.
 *
 * $CUDASIM_ROOM is how many MiB of addresses the driver keeps. A checkpoint gives them up, and a restore takes them
 * back, whatever somebody has put there.
 */
#include <stdbool.h>

bool hazards_begin(void);        /* with the driver */
void hazards_checkpointed(void); /* the GPU is taken */
bool hazards_restored(void);     /* and given back */
bool pin_registered(void);       /* finds all pages of registered memory, as they were */
