#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# What test_gdr.sh runs inside its virtual machine, from the build tree that it
# shares with the host: cuda_gdr between two ranks, over a software RDMA device,
# with doubles of libcuda, of the kernel's GPUDirect RDMA, and of a libfabric
# that is newer than the installed one.
# Says "good: WORDS" or "bad: WORDS" of everything it has tried.
set -u
# shellcheck source=tests/hosts/guest.sh
. "$(dirname "$0")/guest.sh"
libs=$build/.libs
newer=/tmp/newer

export TP_CUDA_LIBRARY="$libs/libcudadouble.so"
export TP_BACKENDS=loop,ofi:verbs,cuda_gdr TP_LOG=warn,gdr=info
export CUDADOUBLE_REUSE=1 CUDADOUBLE_MODE=lazy
mkdir -p $newer
ln -s "$libs/libfabricdouble.so" $newer/libfabric.so.1
FABRICDOUBLE_REAL=$(ldconfig -p | sed -n 's/.*libfabric\.so\.1 .*=> //p' |
    head -n 1)
export FABRICDOUBLE_REAL

# ranks PROGRAM [VARIABLE=VALUE]... -- TEST...: two ranks run a test.
ranks()
{
    program=$build/tests/gpu/$1 begun=$(date +%s)
    shift
    (
        while [ "$1" != -- ]; do
            export "${1?}"
            shift
        done
        shift
        export LD_PRELOAD="$libs/libverbsdouble.so"
        timeout 300 "$build/launcher/tprun" -n 2 "$program" "$@"
    ) >"$said" 2>&1 </dev/null
    status=$?
    took=$(($(date +%s) - begun))
}

# try WORDS [VARIABLE=VALUE]... -- TEST...: must end well.
try()
{
    words=$1
    shift
    ranks spmd_device "$@"
    if [ $status -eq 0 ]; then
        good "$words ($took s)"
    else
        bad "$words: status $status, $took s"
    fi
}

# mutant NAME PATTERN [VARIABLE=VALUE]... -- TEST...: a planted fault, which
# must be found, and by what PATTERN says.
mutant()
{
    words="mutant $1" pattern=$2 TPX_MUTANT=$1
    shift 2
    export TPX_MUTANT
    ranks spmd_mutant "$@"
    unset TPX_MUTANT
    if [ $status -ne 0 ] && grep -qE "$pattern" "$said"; then
        good "$words is found ($took s)"
    else
        bad "$words is not found: status $status, no /$pattern/"
    fi
}

# Every way by itself, in every mode of the double.
try "plain" VERBSDOUBLE_PLAIN=1 -- gdr_mix direct
also "... after the better ones" \
    'rxe0 \(plain\); not dmabuf: .*knows no dmabuf.*; hmem: .*no FI_HMEM'
try "dmabuf" LD_LIBRARY_PATH=$newer FABRICDOUBLE_DMABUF=1 \
    CUDADOUBLE_MODE=delay CUDADOUBLE_GDR_ORDER=100 -- gdr_mix direct
also "... it is the first" 'rxe0 \(dmabuf\)$'
try "hmem" LD_LIBRARY_PATH=$newer FABRICDOUBLE_HMEM=1 \
    CUDADOUBLE_MODE=eager -- gdr_mix direct
also "... it is the second" 'rxe0 \(hmem\); not dmabuf'

# Ways that only seem to be there.
try "hmem that is the host's memory, then plain" LD_LIBRARY_PATH=$newer \
    FABRICDOUBLE_HMEM=host VERBSDOUBLE_PLAIN=1 -- gdr_reuse
also "... the trial finds it" 'rxe0 \(plain\); .*hmem: wrong bytes'
try "none: staged" LD_LIBRARY_PATH=$newer FABRICDOUBLE_HMEM=refuse \
    CUDADOUBLE_DMABUF=0 -- gdr_mix staged
also "... and why" \
    'staged: dmabuf: .*no dmabufs.*hmem: .*plain: Bad address.*nvidia_peermem'

# What goes wrong later.
try "only a piece is registered: the rest comes staged" VERBSDOUBLE_PLAIN=1 \
    VERBSDOUBLE_SHORT=2097152 -- gdr_falls
try "registration is refused from some time on" VERBSDOUBLE_PLAIN=1 \
    VERBSDOUBLE_REFUSE=6 -- gdr_mix staged

# The order of streams, kinds of memory.
for test in device_order_sender device_order_receiver device_borrow gdr_alloc
do
    try "$test" VERBSDOUBLE_PLAIN=1 -- $test
done

# Rank 0 dies while rank 1 reads; without tprun, which would end both.
death()
{
    mkdir /tmp/death
    set -- env TP_BOOTSTRAP=dir:/tmp/death TP_SIZE=2 VERBSDOUBLE_PLAIN=1 \
        LD_PRELOAD="$libs/libverbsdouble.so"
    "$@" TP_RANK=0 "$build/tests/gpu/spmd_device" device_death &
    "$@" TP_RANK=1 timeout 300 "$build/tests/gpu/spmd_device" device_death
}
death >"$said" 2>&1 </dev/null
status=$?
if [ $status -eq 0 ]; then good "device_death"; else bad "death: $status"; fi

# A small write is inlined by the CPU, unless lines see to it.
small()
{
    begun=$(date +%s)
    LD_PRELOAD="$libs/libverbsdouble.so" LD_LIBRARY_PATH=$newer \
        VERBSDOUBLE_PLAIN=1 timeout 300 "$build/tests/gpu/gdr_inline" \
        >"$said" 2>&1 </dev/null
    status=$? took=$(($(date +%s) - begun))
}
small
if [ $status -eq 0 ]; then good "64 bytes ($took s)"; else bad "64 bytes"; fi
export FABRICDOUBLE_INLINE=256
small
unset FABRICDOUBLE_INLINE
if [ $status -eq 0 ]; then bad "inlined, and nobody sees it"; fi
also "inlining is found" 'the host touches device memory: device 0'

mutant gdr_address '' VERBSDOUBLE_PLAIN=1 -- gdr_reuse
mutant gdr_no_flush 'suite_gdr' VERBSDOUBLE_PLAIN=1 -- gdr_mix direct
mutant gdr_no_trial 'suite_gdr' LD_LIBRARY_PATH=$newer FABRICDOUBLE_HMEM=host \
    -- gdr_reuse
mutant gdr_no_sync 'without SYNC_MEMOPS' VERBSDOUBLE_PLAIN=1 -- gdr_reuse
echo "end"
