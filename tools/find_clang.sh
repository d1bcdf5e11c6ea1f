# Sourced by the checks: LG_CLANG, LG_CLANG_FORMAT, LG_CLANG_TIDY are the version that the project uses, or empty.
LG_CLANG_VERSION=14

lgi_clang_tool() { # name
    local tool
    for tool in "$1-$LG_CLANG_VERSION" "$1"; do
        if command -v "$tool" >/dev/null && "$tool" --version 2>/dev/null | grep -q "version $LG_CLANG_VERSION\."; then
            command -v "$tool"
            return
        fi
    done
}

# Without the tool a check is passed over with a note; where CI is set it fails.
lgi_clang_missing() { # tool, consequence
    echo "$1 $LG_CLANG_VERSION not found (Debian: $1-$LG_CLANG_VERSION): $2" >&2
    [ -z "${CI:-}" ]
}

LG_CLANG=${CLANG:-$(lgi_clang_tool clang)}
LG_CLANG_FORMAT=${CLANG_FORMAT:-$(lgi_clang_tool clang-format)}
LG_CLANG_TIDY=${CLANG_TIDY:-$(lgi_clang_tool clang-tidy)}
