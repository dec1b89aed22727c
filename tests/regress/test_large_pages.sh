#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# Where pages are larger than 4 KiB: what is mapped in parts, the shared memory
# between two ranks and the record of a job.  On small pages large_pages.c makes
# them large.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

# large COMMAND...: ends well.
large()
{
    ends_well "with pages of 64 KiB, $1:" env TP_BACKENDS=shm,loop \
        LD_PRELOAD="$build/.libs/liblargepages.so" timeout 300 "$@"
}

large "$build/launcher/tprun" -n 4 "$build/man/examples/ring"
for test in conformance/test_shm launcher/test_looks launcher/test_record \
    unit/test_ring; do
    large "$build/tests/$test"
done
finish
