#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# A contract for tensors on devices that is found broken when a message is sent,
# or when its reader cannot open it, ends the job of a program that looks at no
# status (stubborn.c), with the pair, the reason and the remedy, once.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

CUDADOUBLE_VMM=0                   # handles of the older kind
export CUDADOUBLE_VMM

# broken RANKS BACKENDS FAILS WORDS
broken()
{
    TP_BACKENDS=$2 CUDADOUBLE_FAIL=$3 "$build/launcher/tprun" -n "$1" \
        --timeout 100 --require cuda:cuda_ipc "$build/tests/gpu/stubborn" \
        >"$work/said" 2>&1
    status=$?
    if [ "$status" -eq 1 ] \
        && [ "$(grep -c 'goes no way that is allowed' "$work/said")" -eq 1 ] \
        && grep -q "ended the job with status 1: to rank 0 on .*$4" \
            "$work/said"; then
        pass
    else
        fail "$1 ranks, TP_BACKENDS=$2, CUDADOUBLE_FAIL=$3: status $status"
        sed 's/^/    /' "$work/said"
    fi
}

broken 1 loop,cuda_staged '' 'remedy: add cuda_ipc to TP_BACKENDS'
broken 2 shm,cuda_staged '' 'remedy: add cuda_ipc to TP_BACKENDS'
broken 2 shm,cuda_ipc,cuda_staged cuIpcOpenMemHandle_v2:1+:201 \
    'trial_failed: .*CUDA_ERROR_INVALID_CONTEXT'
finish
