#!/usr/bin/env bash
# Installs a build into a temporary folder, then compiles and runs a consumer by find_package and by pkg-config.
# Usage: tests/cmake/install_smoke.sh BUILD_DIR
set -euo pipefail
build=$(cd "$1" && pwd)
consumer=$(cd "$(dirname "$0")/consumer" && pwd)
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
prefix=$temp/prefix

cmake --install "$build" --prefix "$prefix" >"$temp/log" 2>&1 || { cat "$temp/log" >&2; exit 1; }
libdir=$(dirname "$(find "$prefix" -name 'libleapgrad.*' | head -n 1)")
[ -f "$prefix/include/leapgrad/status.h" ] || { echo "headers were not installed" >&2; exit 1; }
# The build tree must not be what makes it work.
if grep -rl --include='*.cmake' --include='*.pc' -e "$build" "$prefix"; then
    echo "the installed files above name the build folder" >&2
    exit 1
fi

echo "-- find_package"
cmake -S "$consumer" -B "$temp/by_cmake" -DCMAKE_PREFIX_PATH="$prefix" >"$temp/log" 2>&1 || { cat "$temp/log" >&2; exit 1; }
cmake --build "$temp/by_cmake" >"$temp/log" 2>&1 || { cat "$temp/log" >&2; exit 1; }
"$temp/by_cmake/consumer"

echo "-- pkg-config"
export PKG_CONFIG_PATH=$libdir/pkgconfig
# shellcheck disable=SC2046
"${CC:-cc}" "$consumer/consumer.c" -o "$temp/by_pkg_config" \
    $(pkg-config --cflags --libs leapgrad)
LD_LIBRARY_PATH=$libdir "$temp/by_pkg_config"

if [ -x "$prefix/bin/leapgrad" ]; then
    echo "-- program"
    LD_LIBRARY_PATH=$libdir "$prefix/bin/leapgrad" --help >"$temp/log" 2>&1 || { cat "$temp/log" >&2; exit 1; }
fi
echo "installed and used: $(cd "$prefix" && find . -type f | wc -l) files"
