#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# losing.c, with each way in which ranks learn of each other.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

# well WHAT: what was started ended well?
well()
{
    if [ "$1" -eq 0 ]; then
        pass
    else
        fail "$2:"
        sed 's/^/    /' "$work/said"
    fi
}

program=$build/tests/regress/losing
for how in auto pmix; do
    rm -f "$work/left"
    TP_BOOTSTRAP=$how "$build/launcher/tprun" -n 2 --timeout 60 "$program" \
        "$work/left" >"$work/said" 2>&1
    well $? "under tprun, TP_BOOTSTRAP=$how"
done

mkdir "$work/job"
rm -f "$work/left"
TP_BOOTSTRAP=dir:$work/job TP_SIZE=2
export TP_BOOTSTRAP TP_SIZE
TP_RANK=0 timeout 60 "$program" "$work/left" >"$work/said" 2>&1 &
TP_RANK=1 timeout 60 "$program" "$work/left" >>"$work/said" 2>&1
well $? "in a directory, who reads"
wait $!
well $? "in a directory, who leaves"
finish
