/* A writer replaces files, and only files; a link stays, a pipe is written, a full disk is called so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"

static char folder[] = "/tmp/leapgrad-file.XXXXXX";

static int enter_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) != NULL && chdir(folder) == 0 ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    (void)unlink("pipe");
    (void)unlink("link");
    (void)unlink("file");
    return chdir("/") == 0 && rmdir(folder) == 0 ? 0 : -1; /* a temporary left behind fails it */
}

static void assert_content(const char *path, const char *expected)
{
    char *text = NULL;
    size_t num_bytes = 0;
    assert_int_equal(lgi_file_read(&text, &num_bytes, path, 1000), LG_OK);
    assert_string_equal(text, expected);
    lgi_free(text);
}

static void a_pipe_is_written_and_stays_a_pipe(void **state)
{
    (void)state;
    char got[16] = "";
    struct stat info;
    assert_int_equal(mkfifo("pipe", 0600), 0);
    const int reader = open("pipe", O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    assert_int_equal(lgi_file_write("pipe", "text", 4), LG_OK);
    assert_int_equal(read(reader, got, sizeof got), 4);
    assert_string_equal(got, "text");
    assert_int_equal(stat("pipe", &info), 0);
    assert_true(S_ISFIFO(info.st_mode));
    (void)close(reader);
}

static void a_link_stays_and_leads_to_the_new_file(void **state)
{
    (void)state;
    struct stat info;
    assert_int_equal(lgi_file_write("file", "old", 3), LG_OK);
    assert_int_equal(symlink("file", "link"), 0);
    assert_int_equal(lgi_file_write("link", "new", 3), LG_OK);
    assert_int_equal(lstat("link", &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_content("file", "new");
}

/* Longer than any buffer of the stream: the write that fails is not the last one. */
static void a_file_that_is_too_large_is_called_so_and_the_old_one_stays(void **state)
{
    (void)state;
    enum { NUM_BYTES = 100000, LIMIT_BYTES = 4096 };
    struct rlimit old;
    char *const text = calloc(NUM_BYTES, 1);
    assert_non_null(text);
    assert_int_equal(lgi_file_write("file", "old", 3), LG_OK);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    const struct rlimit tight = {LIMIT_BYTES, old.rlim_max};
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    const lg_status status = lgi_file_write("file", text, NUM_BYTES);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    free(text);
    assert_int_equal(status, LG_IO);
    assert_string_equal(lg_last_error(), "cannot write 'file': File too large");
    assert_content("file", "old");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pipe_is_written_and_stays_a_pipe),
        cmocka_unit_test(a_link_stays_and_leads_to_the_new_file),
        cmocka_unit_test(a_file_that_is_too_large_is_called_so_and_the_old_one_stays),
    };
    return cmocka_run_group_tests(tests, enter_folder, remove_folder);
}
