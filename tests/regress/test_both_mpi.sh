#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# A rank of tprun that Open MPI's MPI_Init() has made a job of its own is told
# so, and no other is.  What that call leaves in the environment is set here by
# hand; its server, which is not there, would not be missed.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

# warned COUNT VARIABLE=VALUE...: so many of two ranks with these say it.
warned()
{
    count=$1
    shift
    timeout 60 "$build/launcher/tprun" -n 2 env "$@" \
        "$build/man/examples/hello" >"$work/said" 2>&1
    said=$(grep -c 'MPI_Init() does not know tprun' "$work/said")
    if [ "$said" -eq "$count" ]; then
        pass
    else
        fail "$said ranks instead of $count were warned with $*:"
        sed 's/^/    /' "$work/said"
    fi
}
warned 2 OMPI_MCA_ess=singleton PMIX_NAMESPACE=1
warned 0 OMPI_MCA_ess=singleton
warned 0 OMPI_MCA_ess=singleton PMIX_NAMESPACE=1 TP_DOOR=
finish
