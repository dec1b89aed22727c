#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# Where something is missing configure names its package: pkg-config itself too,
# without which nothing else is found either.  Of what is too old it says which
# version that is.  A prefix with which
# `make install` would fail is refused, and so is a machine on which nothing
# would work, with the reason.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

mkdir "$work/tree" "$work/nothing" || exit 1

# names PACKAGE VARIABLE=VALUE...: configure ends, and says to install it.
names()
{
    package=$1
    shift
    (cd "$work/tree" && env CONFIG_SITE=/dev/null "$@" "$source/configure" -q \
        --cache-file="$work/cache") >"$work/said" 2>&1
    status=$?
    if [ "$status" -eq 1 ] &&
       grep -q "apt-get install $package\$" "$work/said"; then
        pass
    else
        fail "without $package: status $status, and:"
        sed 's/^/    /' "$work/said"
    fi
}
names pkg-config PKG_CONFIG="$work/nothing/pkg-config"
(cd "$work/tree" && "$source/configure" -q --cache-file="$work/cache" \
    --prefix="$work/a b") >"$work/said" 2>&1
grep -q 'cannot install into a folder with blanks' "$work/said" ||
    { fail "with a blank in the prefix:" && cat "$work/said"; }
names nettle-dev PKG_CONFIG_PATH= PKG_CONFIG_LIBDIR="$work/nothing"
mkdir "$work/old"
printf 'Name: nettle\nDescription: old\nVersion: 2.7\n' >"$work/old/nettle.pc"
(cd "$work/tree" && PKG_CONFIG_PATH="$work/old" "$source/configure" -q \
    --cache-file="$work/cache") >"$work/said" 2>&1
grep -q 'needs nettle >= 3.4, but what is here is 2.7' "$work/said" ||
    { fail "with an old nettle:" && cat "$work/said"; }

# refuses WORDS OPTION...: configure ends with these, where the compiler says
# what it says on such a machine.
refuses()
{
    words=$1
    shift
    if (cd "$work/tree" && "$source/configure" -q CC="${CC:-gcc} $*") \
           >"$work/said" 2>&1 || ! grep -q "a machine that $words" "$work/said"
    then
        fail "not refused for $words:"
        sed 's/^/    /' "$work/said"
    else
        pass
    fi
}
refuses 'runs Linux' -U__linux__
refuses 'is little-endian' -U__BYTE_ORDER__ -D__BYTE_ORDER__=4321
refuses 'has 64-bit addresses' -U__SIZEOF_POINTER__ -D__SIZEOF_POINTER__=4
finish
