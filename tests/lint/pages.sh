#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# The manual: well formed, complete, its links and cross references lead
# somewhere, and what its examples quote stands in a real program.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

pages=$(ls man/man[137]/*.[137])

if command -v mandoc >/dev/null; then
    for page in $pages; do
        mandoc -T lint -W warning "$page" >"$work/said" 2>&1
        empty "$page" <"$work/said"
    done
else
    skip mandoc "not installed (apt-get install mandoc)"
fi

# groff breaks the cells of a table that is too wide for the terminal, and puts
# the rest of them far to the right.  Examples may be some columns wider.
if command -v groff >/dev/null; then
    for page in $pages; do
        groff -mandoc -Tascii -rLL=78n -P-cbou "$page" 2>/dev/null |
            awk -v page="$page" 'length > 90 { print page ": " $0 }'
    done | empty "tables too wide for 80 columns"
else
    skip groff "not installed (apt-get install groff-base)"
fi

# names PAGE: what stands under NAME, each with the section: "tp_init 3".
names()
{
    awk '$1 == ".Sh" { name = $2 == "NAME" }
         name && $1 == ".Nm" { print $2, section }' section="${1##*.}" "$1"
}
for page in $pages; do
    names "$page"
done | sort >"$work/names"

uniq -d "$work/names" | empty "named by two pages"

declared | sed 's/$/ 3/' | sort | comm -13 "$work/names" - |
    empty "functions of tp.h without a page"
grep ' 3$' "$work/names" | sed 's/ 3$//' >"$work/functions"
declared | LC_ALL=C sort | comm -13 - "$work/functions" |
    empty "pages of functions that tp.h does not have"

# A name that is not its page's own file is installed as a link to it.
for page in man/man3/*.3; do
    own=$(basename "$page" .3)
    names "$page" | sed 's/ .*//' | grep -vx "$own"
done | sort >"$work/linked"
sed -n '/^man3_links =/,/[^\\]$/p' man/Makefile.include |
    grep -o 'tp_[a-z_]*\.3' | sed 's/\.3$//' | sort >"$work/links"
diff "$work/links" "$work/linked" | grep '^[<>]' |
    empty "man3_links in man/Makefile.include: < too many, > missing"

# Cross references to pages of ours.
for page in $pages; do
    sed -n 's/^\.Xr \(tp[a-z_]*\) \([0-9]\).*/\1 \2/p' "$page"
done | sort -u | comm -13 "$work/names" - >"$work/nowhere"
for name in 'tprun 1' 'tpinfo 1' 'tp_explain 7'; do
    file="man/man${name#* }/${name% *}.${name#* }"
    [ -f "$file" ] || skip page "$file is not part of this tree"
done
grep -v -E '^(tprun 1|tpinfo 1|tp_explain 7)$' "$work/nowhere" |
    empty "cross references that lead nowhere"

# Function pages have all that a reader looks for.
for page in man/man3/*.3; do
    for section in NAME SYNOPSIS DESCRIPTION 'RETURN VALUES' EXAMPLES ERRORS \
        'SEE ALSO'; do
        grep -qx "\.Sh $section" "$page" || echo "$page: no $section"
    done
    grep -q '^\.Pa examples/[a-z]*\.c' "$page" || echo "$page: no program named"
done | empty "incomplete pages"

# The lines of a literal block in EXAMPLES stand in the program that was named
# last, in this order; "/* ... */" is where lines were left out.
quotes()
{
    awk '
    function trim(text) { gsub(/^[ \t]+|[ \t]+$/, "", text); return text }
    function load(name) {
        file = "man/examples/" name; count = 0; at = 0
        while ((getline line < file) > 0) source[++count] = trim(line)
        close(file)
        if (count == 0) print page ": there is no " file
    }
    $1 == ".Sh" { examples = $2 == "EXAMPLES"; file = "" }
    examples && /^\.(Pa|It Pa) examples\// {
        sub(/.*examples\//, ""); sub(/[ ].*/, ""); load($0)
    }
    examples && $1 == ".Bd" { literal = 1; at = 0; next }
    $1 == ".Ed" { literal = 0 }
    examples && literal && file != "" {
        gsub(/\\e/, "\\"); gsub(/\\-/, "-"); gsub(/\\&/, "")
        want = trim($0)
        if (want == "" || want == "/* ... */") next
        for (i = at + 1; i <= count && source[i] != want; i++) continue
        if (i > count) print page ": not in " file " (or not here): " want
        else at = i
    }' page="$1" "$1"
}
for page in $pages; do
    quotes "$page"
done | empty "examples that no program has"

# The README shows the first program, whole.
# shellcheck disable=SC2016 # no command in there
sed -n '/^```c$/,/^```$/p' README.md | grep -v '^```' >"$work/readme"
sed '1,/\*\/$/d' man/examples/hello.c | sed '1{/^\/\*.*\*\/$/d}' >"$work/hello"
diff "$work/readme" "$work/hello" | empty "README.md differs from hello.c"

# Every example is mentioned in tp(7).
for file in man/examples/*.c; do
    grep -q "examples/$(basename "$file")" man/man7/tp.7 || echo "$file"
done | empty "examples that tp(7) does not list"

finish
