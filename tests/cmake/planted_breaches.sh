#!/usr/bin/env bash
# Plants a breach in a copy of the tree and sees that the check in charge finds it and names it.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
. "$root/tools/find_clang.sh"
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
failed=0

fresh() { # a small copy: tools and the modules that the breaches are planted in
    rm -rf "$temp/tree"
    mkdir -p "$temp/tree/src" "$temp/tree/include"
    cp -r "$root/tools" "$root/.clang-format" "$temp/tree/"
    cp -r "$root/include/leapgrad" "$temp/tree/include/"
    cp -r "$root/src/base" "$root/src/tensor" "$temp/tree/src/"
    mkdir -p "$temp/tree/src/plan" "$temp/tree/src/cli"
}

clean() { # what, command: passes on a clean tree
    if ! "${@:2}" >"$temp/log" 2>&1; then
        echo "$1: fails on a clean tree:" >&2
        cat "$temp/log" >&2
        failed=1
    fi
}

caught() { # what, text that the message must have, command
    if [ $# -lt 3 ] || [ -z "$3" ]; then
        echo "$1: not tried, clang $LG_CLANG_VERSION is missing"
    elif CI=true "${@:3}" >"$temp/log" 2>&1; then
        echo "$1: not found" >&2
        failed=1
    elif ! grep -qF -e "$2" "$temp/log"; then
        echo "$1: the message lacks '$2':" >&2
        cat "$temp/log" >&2
        failed=1
    else
        echo "$1: found"
    fi
}

layers="$root/tools/check_layers.sh $temp/tree"
headers="$root/tools/check_headers.sh $temp/tree"

# shellcheck disable=SC2086
{
    fresh
    clean layers $layers
    clean headers $headers

    echo '#include "device/device.h"' >"$temp/tree/src/plan/bad.c"
    caught "plan includes device" 'plan may not include "device/device.h"' $layers
    fresh
    echo '#include <dnnl.h>' >"$temp/tree/src/plan/bad.c"
    caught "vendor header outside of its folder" 'vendor header "dnnl.h"' $layers
    fresh
    echo '#include "base/check.h"' >"$temp/tree/src/cli/bad.c"
    caught "the program looks inside" 'cli may not include "base/check.h"' $layers
    fresh
    echo '#include "../base/check.h"' >"$temp/tree/src/plan/bad.c"
    caught "include by .." 'without ..' $layers
    fresh
    mkdir "$temp/tree/src/misc"
    echo 'int lgi_x;' >"$temp/tree/src/misc/bad.c"
    caught "folder that is not listed" 'folder "misc"' $layers
    fresh
    cp "$temp/tree/src/base/alloc.c" "$temp/tree/src/plan/"
    caught "file name used twice" 'alloc.c: ' $layers

    fresh
    echo 'lg_status lg_bad(size_t n);' >"$temp/tree/include/leapgrad/bad.h"
    caught "header that does not stand alone" 'leapgrad/bad.h does not compile alone' $headers
    fresh
    printf '#include <stddef.h>\nstatic inline int *lg_bad(void *x)\n{\n    return x;\n}\n' >"$temp/tree/include/leapgrad/bad.h"
    caught "header that is not C++" 'c++17' $headers
    fresh
    printf '/** Text.\n * @param missing  Nothing. */\nint lg_bad(int x);\n' >"$temp/tree/include/leapgrad/bad.h"
    caught "documentation of a parameter that is not there" 'missing' ${LG_CLANG:+$headers}

    fresh
    clean format "$root/tools/check_format.sh" "$temp/tree"
    printf 'int   lgi_bad ( void ) ;\n' >"$temp/tree/src/plan/bad.c"
    caught "format" 'bad.c' ${LG_CLANG_FORMAT:+"$root/tools/check_format.sh" "$temp/tree"}
}

fresh
mkdir "$temp/tree/build"
printf 'int lgi_badName(int x);\nint lgi_badName(int x)\n{\n    return x;\n}\n' >"$temp/tree/src/plan/bad.c"
printf '[{"directory": "%s", "command": "cc -c %s", "file": "%s"}]\n' \
    "$temp/tree" "$temp/tree/src/plan/bad.c" "$temp/tree/src/plan/bad.c" >"$temp/tree/build/compile_commands.json"
cp "$root/.clang-tidy" "$temp/tree/"
caught "name that clang-tidy refuses" lgi_badName ${LG_CLANG_TIDY:+"$temp/tree/tools/check_tidy.sh" build}

printf 'int lgi_hidden(void);\nint lgi_hidden(void)\n{\n    return 1;\n}\nint lg_shown(void);\nint lg_shown(void)\n{\n    return 2;\n}\n' >"$temp/symbols.c"
"${CC:-cc}" -shared -fPIC "$temp/symbols.c" -o "$temp/symbols.so"
caught "internal symbol in a shared library" lgi_hidden "$root/tools/check_symbols.sh" "$temp/symbols.so"
sed -i 's/lgi_hidden/helper/' "$temp/symbols.c"
"${CC:-cc}" -c -fPIC "$temp/symbols.c" -o "$temp/symbols.o"
ar rcs "$temp/symbols.a" "$temp/symbols.o"
caught "symbol without prefix in a static library" helper "$root/tools/check_symbols.sh" "$temp/symbols.a"

exit "$failed"
