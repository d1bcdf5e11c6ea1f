/* What launched this process is known by its environment; a module that is not there is an error that says where it was sought. */
#include "unit/comm/comm_fixture.h"

static const char *const variables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS",
                                        "PMI_RANK", "LEAPGRAD_COMM"};
enum { NUM_VARIABLES = sizeof variables / sizeof variables[0], NUM_SIZES = 3 };

static int clear_environment(void **state)
{
    (void)state;
    for (int v = 0; v < NUM_VARIABLES; v++) {
        (void)unsetenv(variables[v]);
    }
    return 0;
}

static void several_processes_are_known_by_each_launcher(void **state)
{
    (void)state;
    assert_false(lg_comm_is_launched());
    for (int v = 0; v < NUM_SIZES; v++) {
        (void)setenv(variables[v], "2", 1);
        assert_true(lg_comm_is_launched());
        (void)setenv(variables[v], "1", 1);
        assert_false(lg_comm_is_launched());
        (void)setenv(variables[v], "two", 1);
        assert_false(lg_comm_is_launched());
        (void)unsetenv(variables[v]);
    }
}

static void assert_not_supported(const char *module, const char *text)
{
    lg_comm *comm = NULL;
    (void)setenv("LEAPGRAD_COMM", module, 1);
    assert_int_equal(lg_comm_mpi_create(&comm), LG_NOT_SUPPORTED);
    assert_null(comm);
    assert_non_null(strstr(lg_last_error(), text));
}

static void a_module_that_is_not_there_is_named(void **state)
{
    (void)state;
    assert_not_supported("/nowhere/leapgrad-mpi.so", "/nowhere/leapgrad-mpi.so cannot be loaded");
    assert_not_supported("/dev/null", "/dev/null cannot be loaded");
    assert_not_supported("nompi", "no module leapgrad-nompi.so beside");
    assert_not_supported("libz.so.1/", "cannot be loaded");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(several_processes_are_known_by_each_launcher, clear_environment),
        cmocka_unit_test_setup(a_module_that_is_not_there_is_named, clear_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
