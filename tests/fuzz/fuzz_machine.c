/* libFuzzer target: machine files. What is accepted is in range; what is not leaves the machine alone. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "leapgrad/plan.h"
#include "plan/plan_machine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes)
{
    lg_machine machine;
    lg_machine untouched;
    memset(&machine, 0x5a, sizeof machine);
    memset(&untouched, 0x5a, sizeof untouched);
    if (lg_machine_parse(&machine, (const char *)data, num_bytes) != LG_OK) {
        if (memcmp(&machine, &untouched, sizeof machine) != 0 ||
            strchr(lg_last_error(), '\n') != NULL) {
            abort();
        }
        return 0;
    }
    if (lgi_machine_check(&machine) != LG_OK ||
        lgi_machine_check_links(&machine, machine.num_ranks) != LG_OK) {
        abort();
    }
    return 0;
}
