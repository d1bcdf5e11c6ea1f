/* The reference backend in f64. */
#include "device/device.h"

extern const struct lgi_device_ops lgi_device_reference_f64;

#define REAL double
#define DEVICE lgi_device_reference_f64
#define DEVICE_NAME "reference-f64"
#define DEVICE_HELP "plain C loops in f64, one thread"
#include "device/reference/reference_table.inc.h"
