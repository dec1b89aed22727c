#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# The table in tp_backends(7) has every backend of the build, with its role and
# reach, in the order of tpinfo, and no other.  The example of tp_explain(7) is
# what tpinfo prints.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

"$build/launcher/tpinfo" --backends |
    awk '$2 == "transport" || $2 == "channel" { print $1, $2, $3 }' \
    >"$work/build"
[ "$(wc -l <"$work/build")" -ge 6 ] || fail "tpinfo --backends lists too few"

awk '$1 == ".It" && $3 == "Ta" && $5 == "Ta" && $2 != "Sy" { print $2, $4, $6 }' \
    man/man7/tp_backends.7 >"$work/page"
# A build without CUDA has none of its channels.
if ! grep -q '^cuda_' "$work/build"; then
    sed -i '/^cuda_/d' "$work/page"
fi
diff "$work/build" "$work/page" | grep '^[<>]' |
    sed 's/^</only in this build:/; s/^>/only in the page:/' |
    empty "the table of tp_backends(7) is not what tpinfo --backends lists"

TP_COSTS=none TP_BACKENDS=^shm "$build/launcher/tpinfo" --plan \
    --topo tests/data/topology/one-socket.xml | tr -s ' ' >"$work/plan"
sed -n '/^\$ TP_BACKENDS=^shm tpinfo/,/^\.Ed/s/^  */ /p' man/man7/tp_explain.7 |
    tr -s ' ' >"$work/example"
[ "$(wc -l <"$work/example")" -ge 6 ] || fail "tp_explain(7) has no example"
grep -vxFf "$work/plan" "$work/example" |
    empty "lines in the example of tp_explain(7) that tpinfo does not print"

finish
