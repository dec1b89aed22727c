#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# Each SYNOPSIS compiles against tp.h, as C11 and as C++: a page that declares
# something else than the header does not.
# shellcheck disable=SC2086 # CC may have options
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

# The declarations of a page in C, from .In, .Ft, .Fn and .Fo .Fa .Fc.
declarations()
{
    awk '
    # The words of a macro line; "several words" are one.
    function words(line,    n) {
        n = 0
        while (match(line, /"[^"]*"|[^ ]+/)) {
            word[++n] = substr(line, RSTART, RLENGTH)
            gsub(/"/, "", word[n])
            line = substr(line, RSTART + RLENGTH)
        }
        return n
    }
    $1 == ".Sh" { inside = $2 == "SYNOPSIS" }
    !inside { next }
    $1 == ".In" { print "#include <" $2 ">" }
    $1 == ".Ft" { sub(/^\.Ft /, ""); gsub(/"/, ""); type = $0 }
    $1 == ".Fn" {
        n = words($0); list = ""
        for (i = 3; i <= n; i++) list = list (i > 3 ? ", " : "") word[i]
        print type " " word[2] "(" list ");"
    }
    $1 == ".Fo" { name = $2; list = "" }
    $1 == ".Fa" && name != "" {
        words($0); list = list (list == "" ? "" : ", ") word[2]
    }
    $1 == ".Fc" { print type " " name "(" list ");"; name = "" }
    ' "$1"
}

# compile WORDS COMMAND...: the file as it is.
compile()
{
    words=$1
    shift
    "$@" -Wall -Wextra -Werror -fsyntax-only -Iruntime >"$work/said" 2>&1
    empty "$words" <"$work/said"
}

for page in man/man3/*.3; do
    declarations "$page" >"$work/page.c"
    cp "$work/page.c" "$work/page.cc"
    compile "$page as C11" ${CC:-cc} -std=c11 -pedantic "$work/page.c"
    if [ -n "${CXX-g++}" ]; then
        compile "$page as C++" "${CXX-g++}" -std=c++11 "$work/page.cc"
    fi
    # Every name of the page is declared in its synopsis.
    awk '$1 == ".Sh" { name = $2 == "NAME" } name && $1 == ".Nm" { print $2 }' \
        "$page" | while read -r function; do
        grep -q "[ *]$function(" "$work/page.c" || echo "$function"
    done | empty "$page names functions that its SYNOPSIS lacks"
done
[ -n "${CXX-g++}" ] || skip c++ "no C++ compiler (apt-get install g++)"

# A declaration that is wrong is noticed.
echo '#include <tp.h>
void tp_rank(int);' >"$work/wrong.c"
if ${CC:-cc} -std=c11 -fsyntax-only -Iruntime "$work/wrong.c" 2>/dev/null; then
    fail "a wrong declaration compiled"
else
    pass
fi
finish
