#!/usr/bin/env bash
# Installs what is missing of the sections of tools/packages.txt: as root or with a sudo that asks nothing; otherwise
# prints the one command to type and exits with 3. On a system without apt-get it only says what is wanted.
# Usage: tools/install_packages.sh SECTION...   (build, test, demo)
set -euo pipefail
list=$(dirname "$0")/packages.txt
[ $# -gt 0 ] || { echo "usage: $0 SECTION...  (build, test, demo)" >&2; exit 2; }

wanted=()
for section in "$@"; do
    mapfile -t packages < <(awk -v section="[$section]" '
        { sub(/#.*/, ""); gsub(/[ \t]/, "") }
        /^\[/ { inside = $0 == section; next }
        inside && $0 != "" { print }' "$list")
    [ ${#packages[@]} -gt 0 ] || { echo "$list has no section [$section]" >&2; exit 2; }
    for package in "${packages[@]}"; do
        [[ " ${wanted[*]:-} " == *" $package "* ]] || wanted+=("$package")
    done
done

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    echo "No apt-get here. leapgrad wants what Debian 12 calls: ${wanted[*]}"
    echo "CMake will name what it does not find."
    exit 0
fi

missing=()
for package in "${wanted[@]}"; do
    # A virtual or multi-arch name counts as soon as one installed package has or provides it.
    status=$(dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null || true)
    grep -qx installed <<<"$status" || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        as_root=(sudo -n)
    else
        echo "Some Debian packages are missing. Type this, then try again:" >&2
        echo >&2
        echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
        echo >&2
        exit 3
    fi
fi

echo "Installing: ${missing[*]}"
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! "${apt[@]}" update </dev/null >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    echo "apt-get update failed; trying with the lists that are there" >&2
fi
if ! "${apt[@]}" install -y --no-install-recommends "${missing[@]}" </dev/null >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    exit 1
fi
