#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# A caller sleeps while the context's own thread, which woke before he came, is
# about to look: it must not take from him what is to wake him.  preempted.c
# stops both where that is possible.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

if [ "$(uname -m)" = x86_64 ]; then
    ends_well "threads that lose their cpus:" \
        env LD_PRELOAD="$build/.libs/libpreempted.so" timeout 100 \
        "$build/launcher/tprun" -n 2 "$build/tests/regress/pauses"
else
    skip x86-64 "threads are led in single steps there only"
fi
finish
