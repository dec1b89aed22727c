#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# seen.c: memcheck has nothing to say of what peers write.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

if [ -n "${TP_TEST_SANITIZER:-}" ]; then
    skip valgrind 'sanitizers do not run under it'
elif ! command -v valgrind >/dev/null; then
    skip valgrind 'it is not installed (apt-get install valgrind)'
elif ! grep -q '^#define HAVE_VALGRIND_MEMCHECK_H' "$build/config.h"; then
    skip valgrind 'its headers were not there when this was configured'
elif timeout 300 "$build/launcher/tprun" -n 2 --wrap \
    'valgrind -q --leak-check=full --error-exitcode=9' \
    "$build/tests/regress/seen" >"$work/said" 2>&1 && [ ! -s "$work/said" ]; then
    pass
elif grep -q 'Valgrind: debuginfo reader' "$work/said"; then
    skip valgrind "it cannot read what the compiler wrote (CFLAGS=-gdwarf-4)"
else
    fail "two ranks under valgrind:"
    sed 's/^/    /' "$work/said"
fi
finish
