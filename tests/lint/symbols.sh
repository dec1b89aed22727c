#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# What tp.h declares, what libtp.sym lists and what libtp.so exports are the
# same names, in the same order; and of the macros of pmix.h, which call other
# functions of libpmix from one version to the next, libtp uses none but those
# that call what it has loaded.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

declared >"$work/declared"
[ "$(wc -l <"$work/declared")" -gt 30 ] || fail "tp.h declares too little"

diff runtime/libtp.sym "$work/declared" | grep '^[<>]' |
    sed 's/^</only in libtp.sym:/; s/^>/only in tp.h:/' |
    empty "runtime/libtp.sym is not the sorted list of tp.h's functions"

grep -oE '\bPMIX_[A-Z_]+\(' runtime/*.c runtime/*.h |
    grep -vE 'PMIX_(INFO_LOAD|VALUE_LOAD|VALUE_GET_NUMBER)\(' |
    empty "not in every pmix.h without a call; see runtime/bootstrap_libpmix.h"

library=$build/.libs/libtp.so
if [ -e "$library" ]; then
    nm -D --defined-only "$library" | awk '{ print $3 }' |
        sed 's/@.*//' | LC_ALL=C sort >"$work/exported"
    diff "$work/exported" "$work/declared" | grep '^[<>]' |
        sed 's/^</exported, not declared:/; s/^>/declared, not exported:/' |
        empty "libtp.so exports something else"
else
    skip libtp "$library is not built"
fi

finish
