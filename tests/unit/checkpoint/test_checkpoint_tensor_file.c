/* Tensor files: what is written is read back, and what is wrong is refused by name. */
#include "checkpoint_fixture.h"

#include <inttypes.h>

static const float weights[6] = {1.0f, -2.0f, 3.5f, 0.0f, -0.0f, 1e-30f};
static const int64_t steps[1] = {1234567890123};
static const uint8_t flags[3] = {0, 1, 255};

static lg_tensor_writer *make_writer(void)
{
    lg_tensor_writer *writer = NULL;
    assert_ok(lg_tensor_writer_create(&writer));
    assert_ok(lg_tensor_writer_add(writer, "flags", LG_FILE_DTYPE_U8, SHAPE(3), flags));
    assert_ok(lg_tensor_writer_add(writer, "fc.weight", LG_FILE_DTYPE_F32, SHAPE(2, 3), weights));
    assert_ok(
        lg_tensor_writer_add(writer, "step", LG_FILE_DTYPE_I64, &(lg_shape){.num_dims = 0}, steps));
    assert_ok(lg_tensor_writer_add(writer, "none", LG_FILE_DTYPE_F32, SHAPE(0, 4), NULL));
    assert_ok(lg_tensor_writer_add_metadata(writer, "format", "pt"));
    return writer;
}

static void written_tensors_are_read_back(void **state)
{
    (void)state;
    const char *path = in_scratch("a.safetensors");
    lg_tensor_writer *const writer = make_writer();
    assert_ok(lg_tensor_writer_save(writer, path));
    lg_tensor_writer_destroy(writer);
    lg_tensor_file *file = NULL;
    assert_ok(lg_tensor_file_open(&file, path));
    assert_int_equal(lg_tensor_file_num_tensors(file), 4);
    assert_string_equal(lg_tensor_file_metadata(file, "format"), "pt");
    assert_null(lg_tensor_file_metadata(file, "other"));
    float got[6];
    int64_t step = 0;
    uint8_t bytes[3];
    assert_ok(lg_tensor_file_read(file, "fc.weight", LG_FILE_DTYPE_F32, SHAPE(2, 3), got));
    assert_memory_equal(got, weights, sizeof weights);
    assert_ok(
        lg_tensor_file_read(file, "step", LG_FILE_DTYPE_I64, &(lg_shape){.num_dims = 0}, &step));
    assert_int_equal(step, steps[0]);
    assert_ok(lg_tensor_file_read(file, "flags", LG_FILE_DTYPE_U8, SHAPE(3), bytes));
    assert_memory_equal(bytes, flags, sizeof flags);
    assert_ok(lg_tensor_file_read(file, "none", LG_FILE_DTYPE_F32, SHAPE(0, 4), got));
    for (int i = 0; i < 4; i++) { /* aligned to their elements */
        const lg_tensor_info *const tensor = lg_tensor_file_tensor(file, i);
        assert_int_equal(tensor->offset_bytes % (int64_t)lg_file_dtype_bytes(tensor->dtype), 0);
    }
    lg_tensor_file_close(file);
}

static void read_of_another_shape_names_both(void **state)
{
    (void)state;
    const char *path = in_scratch("a.safetensors");
    lg_tensor_writer *const writer = make_writer();
    assert_ok(lg_tensor_writer_save(writer, path));
    lg_tensor_writer_destroy(writer);
    lg_tensor_file *file = NULL;
    float got[6];
    assert_ok(lg_tensor_file_open(&file, path));
    assert_fails(lg_tensor_file_read(file, "fc.weight", LG_FILE_DTYPE_F32, SHAPE(3, 2), got),
                 LG_INVALID_ARG, "'fc.weight': expected F32 [3,2], got F32 [2,3]", path);
    assert_fails(lg_tensor_file_read(file, "fc.weight", LG_FILE_DTYPE_I32, SHAPE(2, 3), got),
                 LG_INVALID_ARG, "expected I32", "got F32");
    assert_fails(lg_tensor_file_read(file, "fc.bias", LG_FILE_DTYPE_F32, SHAPE(2), got),
                 LG_INVALID_ARG, "no tensor 'fc.bias'", path);
    lg_tensor_file_close(file);
}

static void bad_names_and_shapes_are_refused_by_the_writer(void **state)
{
    (void)state;
    lg_tensor_writer *const writer = make_writer();
    const lg_shape one = LG_SHAPE(1);
    assert_fails(lg_tensor_writer_add(writer, "flags", LG_FILE_DTYPE_U8, &one, flags),
                 LG_INVALID_ARG, "'flags'", "second time");
    assert_fails(lg_tensor_writer_add(writer, "", LG_FILE_DTYPE_U8, &one, flags), LG_INVALID_ARG,
                 "tensor name", "expected");
    assert_fails(lg_tensor_writer_add(writer, "__metadata__", LG_FILE_DTYPE_U8, &one, flags),
                 LG_INVALID_ARG, "tensor name", "expected");
    assert_fails(lg_tensor_writer_add(writer, "\xff", LG_FILE_DTYPE_U8, &one, flags),
                 LG_INVALID_ARG, "UTF-8", "tensor name");
    assert_fails(lg_tensor_writer_add(writer, "x", LG_FILE_DTYPE_U8, SHAPE(-1), flags),
                 LG_INVALID_ARG, "'x'", "[-1]");
    assert_fails(
        lg_tensor_writer_add(writer, "x", LG_FILE_DTYPE_F32, SHAPE(INT64_MAX / 4, 2), flags),
        LG_INVALID_ARG, "'x'", "out of range");
    lg_tensor_writer_destroy(writer);
}

/* A file with this header and this many bytes of data. */
static lg_status open_with_header(const char *header, size_t data_bytes)
{
    static char file_bytes[4096];
    const char *path = in_scratch("h.safetensors");
    const uint64_t length = strlen(header);
    memset(file_bytes, 0, sizeof file_bytes);
    memcpy(file_bytes, &length, sizeof length);
    memcpy(file_bytes + 8, header, length);
    assert_ok(lgi_file_write(path, file_bytes, 8 + length + data_bytes));
    lg_tensor_file *file = NULL;
    const lg_status status = lg_tensor_file_open(&file, path);
    assert_true((status == LG_OK) == (file != NULL));
    lg_tensor_file_close(file);
    return status;
}

#define T(dtype, shape, offsets) \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void hostile_headers_are_refused_with_a_reason(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        const char *reason;
    } cases[] = {
        {"", "begin with '{'"},
        {" {}", "begin with '{'"},
        {"[]", "begin with '{'"},
        {"{\"a\":", "not JSON"},
        {"{\"a\":1}", "not an object"},
        {"{\"a\":{}}", "no dtype"},
        {"{\"a\":" T("F31", "[2]", "[0,8]") "}", "unknown dtype 'F31'"},
        {"{\"a\":" T("F32", "2", "[0,8]") "}", "shape is not a list"},
        {"{\"a\":" T("F32", "[1,1,1,1,1,1,2]", "[0,8]") "}", "shape is not a list of 0 to 6"},
        {"{\"a\":" T("F32", "[-2]", "[0,8]") "}", "dimension 0"},
        {"{\"a\":" T("F32", "[2.0]", "[0,8]") "}", "dimension 0"},
        {"{\"a\":" T("F32", "[4611686018427387904,4]", "[0,8]") "}", "out of range"},
        {"{\"a\":" T("F32", "[18446744073709551618]", "[0,8]") "}", "not JSON"},
        {"{\"a\":" T("F32", "[2]", "[0]") "}", "two integers"},
        {"{\"a\":" T("F32", "[2]", "[0,8,8]") "}", "two integers"},
        {"{\"a\":" T("F32", "[2]", "[0,\"8\"]") "}", "two integers"},
        {"{\"a\":" T("F32", "[2]", "[-8,0]") "}", "outside"},
        {"{\"a\":" T("F32", "[2]", "[8,0]") "}", "outside"},
        {"{\"a\":" T("F32", "[3]", "[0,12]") "}", "outside the 8 bytes"},
        {"{\"a\":" T("F32", "[3]", "[0,8]") "}", "F32 [3] takes 12 bytes, but its range has 8"},
        {"{\"a\":" T("F32", "[1]", "[0,4]") "}", "8 bytes of data, expected 4"},
        {"{\"a\":" T("F32", "[1]", "[4,8]") "}", "hole"},
        {"{\"a\":" T("F32", "[2]", "[0,8]") ",\"b\":" T("F32", "[1]", "[4,8]") "}", "overlaps"},
        {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"a\":" T("F32", "[1]", "[4,8]") "}", "duplicate"},
        {"{\"\":" T("F32", "[2]", "[0,8]") "}", "name is empty"},
        {"{\"__metadata__\":1,\"a\":" T("F32", "[2]", "[0,8]") "}", "__metadata__"},
        {"{\"__metadata__\":{\"k\":1},\"a\":" T("F32", "[2]", "[0,8]") "}", "'k' is not a string"},
        {"{}", "8 bytes of data, expected 0"},
    };
    assert_ok(open_with_header("{\"a\":" T("F32", "[2]", "[0,8]") "}  ", 8));
    assert_ok(open_with_header("{}", 0));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_fails(open_with_header(cases[i].header, 8), LG_CORRUPT, cases[i].reason,
                     "h.safetensors");
    }
}

static void header_length_beyond_the_file_is_refused(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {3, 1000, (uint64_t)1 << 40, UINT64_MAX, (uint64_t)1 << 63};
    const char *path = in_scratch("l.safetensors");
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        char bytes[10] = {0};
        memcpy(bytes, &lengths[i], 8);
        memcpy(bytes + 8, "{}", 2);
        assert_ok(lgi_file_write(path, bytes, sizeof bytes));
        lg_tensor_file *file = NULL;
        assert_fails(lg_tensor_file_open(&file, path), LG_CORRUPT, "header", path);
        assert_null(file);
    }
}

static void file_cut_short_anywhere_is_refused(void **state)
{
    (void)state;
    const char *path = in_scratch("a.safetensors");
    const char *cut = in_scratch("cut.safetensors");
    lg_tensor_writer *const writer = make_writer();
    assert_ok(lg_tensor_writer_save(writer, path));
    lg_tensor_writer_destroy(writer);
    char *data = NULL;
    size_t num_bytes = 0;
    assert_ok(lgi_file_read(&data, &num_bytes, path, 1 << 20));
    for (size_t i = 0; i < num_bytes; i++) {
        lg_tensor_file *file = NULL;
        assert_ok(lgi_file_write(cut, data, i));
        assert_fails(lg_tensor_file_open(&file, cut), LG_CORRUPT, cut, "");
    }
    lgi_free(data);
}

static void missing_file_and_directory_are_io_errors(void **state)
{
    (void)state;
    lg_tensor_file *file = NULL;
    assert_fails(lg_tensor_file_open(&file, in_scratch("missing")), LG_IO, "missing",
                 "No such file");
    assert_fails(lg_tensor_file_open(&file, scratch), LG_IO, scratch, "not a regular file");
    assert_fails(lg_tensor_file_open(&file, "/dev/zero"), LG_IO, "/dev/zero", "not a regular file");
}

static lg_status fill_ramp(void *user, const char *name, void *dst, size_t num_bytes)
{
    (void)name;
    int *const num_calls = user;
    float *const elems = dst;
    for (size_t i = 0; i < num_bytes / sizeof *elems; i++) {
        elems[i] = (float)i;
    }
    (*num_calls)++;
    return LG_OK;
}

static lg_status fill_fails(void *user, const char *name, void *dst, size_t num_bytes)
{
    (void)user;
    (void)name;
    (void)dst;
    (void)num_bytes;
    return LG_DEVICE;
}

static void filled_tensor_is_asked_for_once_and_its_failure_leaves_nothing(void **state)
{
    (void)state;
    int num_calls = 0;
    float got[5];
    lg_tensor_writer *writer = NULL;
    lg_tensor_file *file = NULL;
    const char *path = in_scratch("filled.safetensors");
    assert_ok(lg_tensor_writer_create(&writer));
    assert_ok(lg_tensor_writer_add_filled(writer, "ramp", LG_FILE_DTYPE_F32, SHAPE(5), fill_ramp,
                                          &num_calls));
    assert_ok(lg_tensor_writer_save(writer, path));
    assert_int_equal(num_calls, 1);
    assert_ok(lg_tensor_file_open(&file, path));
    assert_ok(lg_tensor_file_read(file, "ramp", LG_FILE_DTYPE_F32, SHAPE(5), got));
    assert_true(got[4] == 4.0f);
    lg_tensor_file_close(file);
    (void)unlink(path);
    const int num_before = num_entries(scratch);
    assert_ok(
        lg_tensor_writer_add_filled(writer, "bad", LG_FILE_DTYPE_F32, SHAPE(5), fill_fails, NULL));
    assert_int_equal(lg_tensor_writer_save(writer, path), LG_DEVICE);
    assert_int_equal(num_entries(scratch), num_before);
    lg_tensor_writer_destroy(writer);
}

static void equal_tensors_hash_alike_and_any_change_shows(void **state)
{
    (void)state;
    char hashes[5][LG_WEIGHTS_HASH_CHARS];
    const float other[6] = {1.0f, -2.0f, 3.5f, -0.0f, -0.0f, 1e-30f}; /* one sign bit */
    const struct {
        const char *name;
        lg_shape shape;
        const float *elems;
    } cases[] = {{"a", LG_SHAPE(2, 3), weights},
                 {"a", LG_SHAPE(2, 3), weights},
                 {"b", LG_SHAPE(2, 3), weights},
                 {"a", LG_SHAPE(3, 2), weights},
                 {"a", LG_SHAPE(2, 3), other}};
    for (int i = 0; i < 5; i++) {
        lg_weights_hasher *hasher = NULL;
        assert_ok(lg_weights_hasher_create(&hasher));
        lg_weights_hasher_add(hasher, cases[i].name, &cases[i].shape, cases[i].elems);
        lg_weights_hasher_format(hasher, hashes[i]);
        lg_weights_hasher_destroy(hasher);
        assert_int_equal(strlen(hashes[i]), LG_WEIGHTS_HASH_CHARS - 1);
    }
    assert_string_equal(hashes[0], hashes[1]);
    for (int i = 2; i < 5; i++) {
        assert_string_not_equal(hashes[0], hashes[i]);
    }
}

static void failed_allocations_leave_no_file_and_no_leak(void **state)
{
    (void)state;
    const char *path = in_scratch("alloc.safetensors");
    const int num_before = num_entries(scratch);
    for (int64_t n = 1; n < 1000; n++) {
        lg_tensor_writer *const writer = make_writer();
        lg_tensor_file *file = NULL;
        lgi_alloc_fail_after(n);
        lg_status status = lg_tensor_writer_save(writer, path);
        const int has_file = access(path, F_OK) == 0;
        assert_true(has_file == (status == LG_OK));
        if (status == LG_OK) {
            status = lg_tensor_file_open(&file, path);
        }
        lgi_alloc_fail_after(0);
        lg_tensor_writer_destroy(writer);
        lg_tensor_file_close(file);
        (void)unlink(path);
        assert_int_equal(num_entries(scratch), num_before);
        if (status == LG_OK) {
            assert_true(n > 5);
            return;
        }
        assert_int_equal(status, LG_OUT_OF_MEMORY);
    }
    fail_msg("never got through");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_tensors_are_read_back),
        cmocka_unit_test(read_of_another_shape_names_both),
        cmocka_unit_test(bad_names_and_shapes_are_refused_by_the_writer),
        cmocka_unit_test(hostile_headers_are_refused_with_a_reason),
        cmocka_unit_test(header_length_beyond_the_file_is_refused),
        cmocka_unit_test(file_cut_short_anywhere_is_refused),
        cmocka_unit_test(missing_file_and_directory_are_io_errors),
        cmocka_unit_test(filled_tensor_is_asked_for_once_and_its_failure_leaves_nothing),
        cmocka_unit_test(equal_tensors_hash_alike_and_any_change_shows),
        cmocka_unit_test(failed_allocations_leave_no_file_and_no_leak),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
