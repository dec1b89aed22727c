#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# tp_env(7) has every row of the settings table, with its default, and no other.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

page=man/man7/tp_env.7

# "TP_SPIN -": the variable and its default, from the table ...
cat >"$work/table.c" <<'END'
#define TPB_SETTING(id, variable, type, initial, values, text) \
    @ variable initial
#include "runtime/base/settings.def"
END
${CC:-cc} -E -P -I. "$work/table.c" | tr ';' '\n' | tr '\n' ' ' | tr '@' '\n' |
    sed -n 's/^ *"\([^"]*\)" *"\([^"]*\)".*/\1 \2/p' | sed 's/ *$//' |
    LC_ALL=C sort >"$work/table"
[ "$(wc -l <"$work/table")" -gt 10 ] || fail "settings.def has too few rows"

# ... and from the page: .It Ev NAME, later "Default:" or "Default: empty."
awk '
    function flush() { if (name != "") print name (value != "" ? " " value : "") }
    $1 == ".It" && $2 == "Ev" { flush(); name = $3; value = "?" }
    $1 == "Default:" { if ($2 == "empty.") value = ""; else due = 1; next }
    due && $1 == ".Ql" { value = $2; due = 0 }
    END { flush() }' "$page" | LC_ALL=C sort >"$work/page"

diff "$work/table" "$work/page" | grep '^[<>]' |
    sed 's/^</only in settings.def:/; s/^>/only in the page:/' |
    empty "$page and runtime/base/settings.def differ (name and default)"

# A variable that a page or the README names is one of them, or a test's.
for file in README.md HACKING.md ARCHITECTURE.md man/man*/*.[137]; do
    grep -v '^\.Dt' "$file" | grep -o '\bTP_[A-Z_]*[A-Z]\b' | sort -u |
        sed "s|^|$file: |"
done >"$work/named"
grep -o '\bTP_[A-Z_]*[A-Z]\b' runtime/tp.h | sort -u >"$work/public"
while read -r file name; do
    case $name in
    TP_TEST_*|TP_REQUIRE_PACKAGE) continue ;;
    esac
    grep -q "^$name\( \|$\)" "$work/table" || grep -qx "$name" "$work/public" ||
        echo "$file $name"
done <"$work/named" | empty "neither a setting nor in tp.h"

# A component that logs is known to log.c, and to people.
grep -rho 'TPB_LOG_COMPONENT("[^"]*")' --include='*.c' --include='*.h' \
    runtime fabric gpu topology launcher bench | sed 's/.*("//; s/")//' |
    LC_ALL=C sort -u >"$work/logs"
sed -n '/log_components\[\] = {/,/};/p' runtime/base/log.c | grep -o '"[^"]*"' |
    tr -d '"' >"$work/known"
diff "$work/logs" "$work/known" | grep '^[<>]' |
    sed 's/^</not in log_components:/; s/^>/logs nowhere:/' |
    empty "the components that log and those of runtime/base/log.c differ"
while read -r name; do
    grep -q "^\.Ql $name\( [,.]\)\{0,1\}$" "$page" || echo "$name"
done <"$work/known" | empty "components that $page does not name"

finish
