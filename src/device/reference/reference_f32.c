/* The reference backend in f32. */
#include "device/device.h"

extern const struct lgi_device_ops lgi_device_reference;

#define REAL float
#define DEVICE lgi_device_reference
#define DEVICE_NAME "reference"
#define DEVICE_HELP "plain C loops in f32, one thread"
#include "device/reference/reference_table.inc.h"
