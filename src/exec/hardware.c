#include "exec/hardware.h"

#include <hwloc.h>
#include <stdint.h>

#include "base/alloc.h"
#include "base/check.h"

struct lgi_hardware {
    hwloc_topology_t topology;
    hwloc_cpuset_t *core_sets; /* by core that the process may use: its first hardware thread */
    int num_core_sets;
    int first_core; /* of the rank's share */
    bool is_crowded;
    int num_cores;
    int num_machine_cores;
};

/* Leaves out what the process may not use (taskset, a batch system): lanes bind to cores, and must not escape from there. */
static void keep_allowed(hwloc_topology_t topology)
{
    hwloc_bitmap_t allowed = hwloc_bitmap_alloc();
    if (allowed != NULL && hwloc_get_cpubind(topology, allowed, HWLOC_CPUBIND_PROCESS) == 0 &&
        !hwloc_bitmap_iszero(allowed)) {
        (void)hwloc_topology_restrict(topology, allowed, 0);
    }
    hwloc_bitmap_free(allowed);
}

static lg_status find_cores(lgi_hardware *hardware)
{
    const int num_objects = hwloc_get_nbobjs_by_type(hardware->topology, HWLOC_OBJ_CORE);
    LG_TRY(lgi_calloc(&hardware->core_sets, (size_t)(num_objects > 0 ? num_objects : 1),
                      sizeof(hwloc_cpuset_t)));
    for (int i = 0; i < num_objects; i++) {
        const hwloc_obj_t core =
            hwloc_get_obj_by_type(hardware->topology, HWLOC_OBJ_CORE, (unsigned)i);
        hwloc_cpuset_t set = hwloc_bitmap_dup(core->cpuset);
        if (set == NULL) {
            LG_FAIL(LG_OUT_OF_MEMORY, "out of memory: the list of cores");
        }
        hwloc_bitmap_singlify(set);
        hardware->core_sets[hardware->num_core_sets++] = set;
    }
    hardware->num_cores = hardware->num_core_sets;
    return LG_OK;
}

lg_status lgi_hardware_open(lgi_hardware **out)
{
    lg_status status = LG_OK;
    LG_TRY(lgi_calloc(out, 1, sizeof **out));
    lgi_hardware *hardware = *out;
    if (hwloc_topology_init(&hardware->topology) != 0) {
        hardware->topology = NULL;
        LG_TRY_GOTO(lgi_fail(LG_OUT_OF_MEMORY, "out of memory: the machine's topology"));
    }
    if (hwloc_topology_load(hardware->topology) != 0) {
        LG_TRY_GOTO(lgi_fail(LG_DEVICE, "cannot read the machine's topology"));
    }
    hardware->num_machine_cores = hwloc_get_nbobjs_by_type(hardware->topology, HWLOC_OBJ_CORE);
    keep_allowed(hardware->topology);
    LG_TRY_GOTO(find_cores(hardware));
out:
    if (status != LG_OK) {
        lgi_hardware_close(hardware);
        *out = NULL;
    }
    return status;
}

void lgi_hardware_close(lgi_hardware *hardware)
{
    if (hardware == NULL) {
        return;
    }
    for (int i = 0; i < hardware->num_core_sets; i++) {
        hwloc_bitmap_free(hardware->core_sets[i]);
    }
    lgi_free(hardware->core_sets);
    if (hardware->topology != NULL) {
        hwloc_topology_destroy(hardware->topology);
    }
    lgi_free(hardware);
}

void lgi_hardware_share(lgi_hardware *hardware, int idx, int num)
{
    const int num_cores = hardware->num_core_sets;
    if (num_cores > num) {
        hardware->first_core = (int)((int64_t)num_cores * idx / num);
        hardware->num_cores = (int)((int64_t)num_cores * (idx + 1) / num) - hardware->first_core;
    } else if (num_cores > 0) {
        hardware->first_core = idx % num_cores;
        hardware->num_cores = 1;
    }
    hardware->is_crowded = num > num_cores;
}

bool lgi_hardware_is_crowded(const lgi_hardware *hardware)
{
    return hardware->is_crowded;
}

int lgi_hardware_num_cores(const lgi_hardware *hardware)
{
    return hardware->num_cores > 0 ? hardware->num_cores : 1;
}

int lgi_hardware_num_machine_cores(const lgi_hardware *hardware)
{
    return hardware->num_machine_cores > 0 ? hardware->num_machine_cores : 1;
}

const char *lgi_hardware_cpu_name(const lgi_hardware *hardware)
{
    const hwloc_obj_t package = hwloc_get_obj_by_type(hardware->topology, HWLOC_OBJ_PACKAGE, 0);
    const char *name = package != NULL ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
    return name != NULL ? name : "";
}

void lgi_hardware_bind_thread(const lgi_hardware *hardware, int core)
{
    if (hardware->num_cores > 0) {
        const int idx = hardware->first_core + core % hardware->num_cores;
        (void)hwloc_set_cpubind(hardware->topology, hardware->core_sets[idx], HWLOC_CPUBIND_THREAD);
    }
}
