#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# forked.c: tprun's own way serves a child as well (0), libpmix does not (13,
# TP_ERR_BACKEND).
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

# ThreadSanitizer ends a child that starts a thread.
[ "${TP_TEST_SANITIZER:-}" != thread ] || export TP_PROGRESS=manual
for way in auto:0 pmix:13; do
    ends_well "TP_BOOTSTRAP=${way%:*}:" env TP_BOOTSTRAP="${way%:*}" \
        timeout 60 "$build/launcher/tprun" -n 2 \
        "$build/tests/regress/forked" "${way#*:}"
done
finish
