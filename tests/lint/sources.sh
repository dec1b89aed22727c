#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# What every source file has: the licence, its purpose, 80 columns; and what
# none has: paths of the machine it was written on.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

# Everything that is written by hand, whether git or a tarball brought it.
sources()
{
    c_files
    script_files
    find runtime topology fabric gpu launcher bench man tests m4 configure.ac \
        Makefile.am -type f \( -name '*.include' -o -name '*.m4' \
        -o -name '*.def' -o -name '*.ac' -o -name '*.am' -o -name '*.[1-8]' \
        -o -name '*.in' \) |
        grep -v -E '^m4/(libtool|lt.*)\.m4$' |
        grep -v -E '\.in$|^tests/data/' | sort
}
sources | sort -u >"$work/sources"
c_files | sort -u >"$work/c"

[ "$(wc -l <"$work/sources")" -gt 20 ] || fail "too few sources were found"

# without LIST PATTERN: the files in which awk finds no such line, empty ones too.
# One process for all: where forks are dear, one for each takes minutes.
without()
{
    # shellcheck disable=SC2094 # both read
    xargs awk "$2 { print FILENAME }" <"$1" | sort -u | comm -13 - "$1"
}

without "$work/sources" \
    'FNR <= 3 && /SPDX-License-Identifier: BSD-3-Clause( \*\/)?$/' |
    empty "no SPDX line among the first three"
without "$work/c" 'FNR == 2 && /^\/\*/' |
    empty "the second line begins no comment with the purpose"

while read -r file; do
    sed -n '2,5p' "$file" | grep -q '^# [A-Z]' ||
        echo "$file"
done <<END | empty "no comment with the purpose in the first lines"
$(script_files | grep -v '^tests/lib/lint.sh$')
END

# Columns: those with a tab are told of below.
# shellcheck disable=SC2016 # for awk
xargs awk 'length($0) > 80 {
    print FILENAME ":" FNR ": " length($0) " columns" }' <"$work/c" |
    empty "longer than 80 columns"

xargs grep -n "$(printf '\t')" <"$work/c" | empty "tabs in C"
xargs grep -n '[[:space:]]$' <"$work/sources" | empty "blanks at line ends"
while read -r file; do
    [ -z "$(tail -c 1 "$file")" ] || echo "$file"
done <"$work/sources" | empty "no newline at the end"

# A path of somebody's own machine works nowhere else.
{ cat "$work/sources"; ls ./*.md; } |
    xargs grep -n -E '(^|[^A-Za-z0-9_.])/(home|work|root)/[A-Za-z]' |
    grep -v '^tests/lint/sources.sh:' | empty "paths of one machine"

# Big files hide their duties.
xargs awk 'FNR == 901 { print FILENAME ": over 900 lines" }' <"$work/c" |
    empty "over 900 lines"

# Every header has its guard.
grep '\.h$' "$work/c" | while read -r file; do
    grep -q '^#ifndef [A-Z_]*_H$' "$file" || echo "$file"
done | empty "a header without include guard"

finish
