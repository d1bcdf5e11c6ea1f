/* The backends of this build. Adding one: its folder, its name in LG_DEVICES, nothing here. */
#include <string.h>

#include "base/check.h"
#include "device/device.h"
#include "device_list.h"

#define DECLARE(name) extern const struct lgi_device_ops lgi_device_##name;
#define ENTRY(name) &lgi_device_##name,
LG_DEVICE_LIST(DECLARE)
extern const struct lgi_device_ops lgi_device_reference;
extern const struct lgi_device_ops lgi_device_reference_f64;

/* clang-format off */
static const struct lgi_device_ops *const registry[] = {
    LG_DEVICE_LIST(ENTRY)
    &lgi_device_reference,
    &lgi_device_reference_f64,
    NULL,
};
/* clang-format on */

const struct lgi_device_ops *const *lgi_device_registry(void)
{
    return registry;
}

lg_status lgi_device_find(const struct lgi_device_ops **out, const char *name)
{
    char names[256] = "auto";
    *out = NULL;
    for (int i = 0; registry[i] != NULL; i++) {
        if (strcmp(name, "auto") == 0 || strcmp(name, registry[i]->name) == 0) {
            *out = registry[i];
            return LG_OK;
        }
        (void)strncat(names, ", ", sizeof names - strlen(names) - 1);
        (void)strncat(names, registry[i]->name, sizeof names - strlen(names) - 1);
    }
    LG_FAIL(LG_INVALID_ARG, "device '%s' is not one of %s", name, names);
}
