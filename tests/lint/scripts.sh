#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# Every script through shellcheck.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

if ! command -v shellcheck >/dev/null; then
    skip shellcheck "not installed (apt-get install shellcheck)"
    finish
fi
for file in $(script_files); do
    shellcheck -x "$file" >"$work/said" 2>&1
    empty "$file" <"$work/said"
done
finish
