#!/bin/sh
# Writes the King James Bible as plain text, one verse a line, from Debian's package bible-kjv.
# Usage: tools/make_kjv.sh [FILE]    (kjv.txt if no FILE is given; its folder is made if missing)
set -eu

target=${1:-kjv.txt}
if [ $# -gt 1 ]; then
    echo "usage: $0 [FILE]" >&2
    exit 2
fi
if ! command -v bible >/dev/null 2>&1; then
    echo "$0: the program 'bible' is missing; install it with: apt-get install bible-kjv" >&2
    exit 1
fi
mkdir -p "$(dirname "$target")"
temp=$(mktemp "$target.tmp-XXXXXX")
trap 'rm -f "$temp"' EXIT INT TERM
bible -f gen1:1-rev22:21 >"$temp" </dev/null
# The first and the last verse tell a whole text from an error message or half a text.
if ! head -n 1 "$temp" | grep -q '^Ge1:1 In the beginning' || ! tail -n 1 "$temp" | grep -q '^Rev22:21 '; then
    echo "$0: 'bible -f gen1:1-rev22:21' did not print the text from Ge1:1 to Rev22:21" >&2
    exit 1
fi
chmod 644 "$temp"
mv "$temp" "$target"
trap - EXIT INT TERM
echo "$target: $(wc -c <"$target") bytes"
