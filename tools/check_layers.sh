#!/usr/bin/env bash
# Checks who includes whom against tools/layers.txt, and that no two source files have the same name.
# Usage: tools/check_layers.sh [ROOT]   (ROOT: a source tree, default this one; the table is always its own)
set -euo pipefail
root=$(cd "${1:-$(dirname "$0")/..}" && pwd)
cd "$root"

sources() { # folders: the source files in those of them that exist
    local existing=() folder
    for folder in "$@"; do
        [ -d "$folder" ] && existing+=("$folder")
    done
    find "${existing[@]}" -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) | sort
}

mapfile -t files < <(sources src examples bench)
[ ${#files[@]} -gt 0 ] || { echo "check_layers: no source files under $root" >&2; exit 1; }

awk '
function pattern(shell,  regex) {
    regex = shell
    gsub(/\./, "\\.", regex)
    gsub(/\*/, ".*", regex)
    return "^" regex "$"
}
function folder(path) {
    if (path !~ /\//) {
        return ""
    }
    sub(/\/[^\/]*$/, "", path)
    return path
}
function fail(text) {
    printf "%s:%d: %s\n", FILENAME, FNR, text > "/dev/stderr"
    bad = 1
}
FILENAME == ARGV[1] {
    sub(/#.*/, "")
    if ($0 !~ /:/) {
        next
    }
    split($0, sides, ":")
    count = split(sides[2], right, " ")
    if (sides[1] ~ /^vendor /) {
        sub(/^vendor /, "", sides[1])
        vendors[++num_vendors] = pattern(sides[1])
        for (i = 1; i <= count; i++) {
            vendor_in[num_vendors, right[i]] = 1
        }
        next
    }
    known[sides[1]] = 1
    for (i = 1; i <= count; i++) {
        allowed[sides[1], right[i]] = 1
        mentioned[right[i]] = 1
    }
    next
}
FNR == 1 {
    module = folder(FILENAME)
    sub(/^src\//, "", module)
    is_program = FILENAME !~ /^src\//
    if (is_program) {
        sub(/\/.*/, "", module)
    }
    if (!(module in known)) {
        fail("folder \"" module "\" is not in tools/layers.txt")
    }
}
/^[ \t]*#[ \t]*include[ \t]*["<]/ {
    quoted = $0 ~ /include[ \t]*"/
    path = $0
    sub(/^[^"<]*["<]/, "", path)
    sub(/[">].*$/, "", path)
    for (v = 1; v <= num_vendors; v++) {
        if (path ~ vendors[v] && !((v, module) in vendor_in)) {
            fail(module " may not include the vendor header \"" path "\"")
        }
    }
    if (path ~ /^leapgrad\//) {
        next
    }
    target = folder(path)
    if (path ~ /\.\.\//) {
        fail("include \"" path "\" by its module, without ..")
    } else if (target in known) {
        if (target != module && !((module, target) in allowed)) {
            fail(module " may not include \"" path "\"")
        }
    } else if (quoted && target != "") {
        fail("\"" path "\" is of no module in tools/layers.txt")
    } else if (quoted && !is_program && path != "device_list.h") {
        fail("include \"" path "\" by its module: \"" module "/" path "\"")
    }
}
END {
    exit bad
}
' tools/layers.txt "${files[@]}"

twice=$(sources src include tests examples bench |
    awk -F/ '{ count[$NF]++; paths[$NF] = paths[$NF] " " $0 } END { for (n in count) if (count[n] > 1) print "  " n ":" paths[n] }')
if [ -n "$twice" ]; then
    printf 'file names that are used twice:\n%s\n' "$twice" >&2
    exit 1
fi
echo "layers: ${#files[@]} files follow tools/layers.txt, file names are unique"
