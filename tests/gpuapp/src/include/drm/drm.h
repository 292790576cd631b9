/* linux/kfd_ioctl.h asks for <drm/drm.h> and needs only its integer types;
 * distributions that move the DRM headers elsewhere leave it without. This
 * folder is searched last. */
#include <linux/types.h>
