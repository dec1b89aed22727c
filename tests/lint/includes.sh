#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# Who may include whom: every layer sees only those below it, a backend only
# itself and the contract, and third-party headers stay where they belong.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

# "file header" for every #include, as it is written.
c_files | while read -r file; do
    sed -n 's/^[ \t]*#[ \t]*include[ \t]*[<"]\([^>"]*\)[>"].*/\1/p' "$file" |
        sed "s|^|$file |"
done >"$work/includes"
grep -E ' (runtime|fabric|gpu|topology|launcher|tests|bench|man)/' \
    "$work/includes" >"$work/ours"

# may FILES HEADERS: of our headers those files include only these.
may()
{
    grep -E "^$1" "$work/ours" | grep -v -E " ($2|runtime/tp\.h$)" |
        empty "$1 may include of ours only $2"
}

base='runtime/base/'
may "$base" "$base"
may 'topology/' "$base|topology/"
may 'fabric/[^/]*$' "$base|topology/|fabric/(backend|channel|both|share|memory)\.h"
for folder in fabric/*/; do
    [ -d "$folder" ] || continue
    may "$folder" "$base|topology/|fabric/(backend|channel|both|memory|remote)\.h|$folder"
done
may 'gpu/' "$base|topology/|fabric/(backend|channel|memory|remote)\.h|gpu/"
may 'runtime/[^/]* ' "runtime/|topology/|fabric/(backend|channel|memory)\.h|gpu/gpu\.h"
may 'launcher/tpinfo' "$base|topology/|launcher/|fabric/(backend|channel|memory)\.h|gpu/gpu\.h"
grep -v '^launcher/tpinfo' "$work/ours" >"$work/rest"
mv "$work/rest" "$work/ours"
may 'launcher/' "$base|topology/|launcher/"
may 'man/' '(nothing)'
may 'bench/(calibrate|scale)' "$base|topology/|bench/"
grep -vE '^bench/(calibrate|scale)' "$work/ours" >"$work/rest"
mv "$work/rest" "$work/ours"
may 'bench/tpperf_device' 'bench/|gpu/driver_abi\.h'
grep -v '^bench/tpperf_device' "$work/ours" >"$work/rest"
mv "$work/rest" "$work/ours"
may 'bench/' '(nothing)|bench/|runtime/base/base\.h'

# home HEADERS FILES: third-party headers are included by these files only, and
# by tests, which may look inside.
home()
{
    grep -E " $1" "$work/includes" | grep -v -E "^($2|tests/)" |
        empty "<$1> belongs to $2 only"
}

home 'cuda[a-zA-Z_]*\.h' 'gpu/'
home 'hwloc' 'topology/'
home 'rdma/' 'fabric/ofi/|bench/ofi'
home 'ucp/' 'bench/ucx'
home 'pmix[a-z_]*\.h' 'runtime/bootstrap|launcher/pmix|bench/startup_pmix'
home 'nettle/' 'runtime/secret'
home 'valgrind/' 'runtime/base/seen'
home 'jansson\.h' 'topology/|launcher/tp(info|top_json)|bench/[a-z]*_json'
home 'mpi\.h' 'bench/mpi'
home 'check\.h' 'tests/'

# tp.h needs libc only, and little of it; examples see what a user sees.
grep '^runtime/tp\.h ' "$work/includes" | grep -v -E ' std(def|int)\.h$' |
    empty "runtime/tp.h includes too much"

finish
