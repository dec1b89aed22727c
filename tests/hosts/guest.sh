# shellcheck shell=sh
# SPDX-License-Identifier: BSD-3-Clause
#
# What the scripts that run inside a virtual machine share; they read it.  In
# $said is what the last command printed.

# shellcheck disable=SC2034 # for those who read this
build=${TP_TEST_BUILD:?}
said=/tmp/said
export TP_TEST_FEW=1
# Half of the time of a rank's start goes by in libfabric, which looks through
# all the kernel's symbols for what GPUs need, and for other providers.
[ ! -w /proc/kallsyms ] || mount --bind /dev/null /proc/kallsyms

good() { echo "good: $*"; }

bad()
{
    echo "bad: $*"
    tail -n 20 "$said" | cut -c 1-400 | sed 's/^/    /'
}

# also WORDS PATTERN: what the last one said.
also()
{
    if grep -qE "$2" "$said"; then good "$1"; else bad "$1: no /$2/"; fi
}
