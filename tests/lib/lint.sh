# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=sh
#
# What every lint script reads first (`. tests/lib/lint.sh`): where things are,
# and pass, fail, skip and finish, which count as tests/lib/tpx.h does.
set -u
LC_ALL=C
export LC_ALL
source=${TP_TEST_SOURCE:-$(pwd)}
# shellcheck disable=SC2034 # for those who read this
build=${TP_TEST_BUILD:-$source/build}
cd "$source" || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM HUP

# Results go to a file, so that a subshell's count too.
pass() { echo passed >>"$work/results"; }

fail()
{
    echo failed >>"$work/results"
    printf 'FAIL: %s\n' "$*"
}

# empty WORDS: passes if standard input is empty; else it lists what is wrong.
empty()
{
    list=$(cat)
    if [ -z "$list" ]; then
        pass
    else
        fail "$1"
        printf '%s\n' "$list" | sed 's/^/    /'
    fi
}

# ends_well WORDS COMMAND...: passes if it does; else WORDS, and what it said.
ends_well()
{
    words=$1
    shift
    if "$@" >"$work/said" 2>&1; then
        pass
    else
        fail "$words"
        sed 's/^/    /' "$work/said"
    fi
}

# each_way "WAY ..." COMMAND...: must end well with each of them as TP_BACKENDS.
each_way()
{
    ways=$1
    shift
    for way in $ways; do
        ends_well "over $way:" env TP_BACKENDS="$way" "$@"
    done
}

# skip WHAT REASON: as tpx_skip(), a failure if TP_TEST_REQUIRE names WHAT.
skip()
{
    case ",${TP_TEST_REQUIRE:-}," in
    *",$1,"*)
        fail "$1 is required (TP_TEST_REQUIRE=$TP_TEST_REQUIRE) but: $2" ;;
    *)
        echo skipped >>"$work/results"
        printf 'SKIP: %s: %s\n' "$1" "$2" ;;
    esac
}

# needs_cma: skips the rest where ranks may not read each other's memory.
needs_cma()
{
    if ! "$build/launcher/tprun" -n 2 --timeout 60 --require node:cma \
        "$build/man/examples/ring" 1 >"$work/said" 2>&1 &&
        grep -q cma "$work/said"; then
        skip cma "$(grep cma "$work/said" | tail -n 1)"
        finish
    fi
}

finish()
{
    passed=$(grep -c passed "$work/results")
    failed=$(grep -c failed "$work/results")
    skipped=$(grep -c skipped "$work/results")
    echo "tpx: $passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ] || exit 1
    [ "$passed" -gt 0 ] || exit 77
    exit 0
}

# The C sources and headers of the project, and its scripts.
c_files()
{
    find runtime fabric gpu topology launcher tests bench man -name '*.[ch]' |
        sort
}

script_files()
{
    { echo setup; find .ci tests man bench -type f ! -name '*.*' \
        -exec grep -l '^#!.*sh$' {} +; find tests man bench -name '*.sh'; } | sort -u
}

# The functions that tp.h declares, sorted.
# shellcheck disable=SC2086 # CC may have options
declared()
{
    ${CC:-cc} -E -P runtime/tp.h | tr '\n' ' ' | tr ';' '\n' |
        grep -v '^ *typedef' |
        sed -n 's/^.*[ *]\(tp_[a-z_]*\)(.*$/\1/p' | LC_ALL=C sort
}
