#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# libfabric is loaded without what takes it 0.3 s for hardware that is not there
# (fabric/ofi/quick.c): in the build tree and where it is installed; and as it
# is, where what stands in for two of its libraries is missing or does not fit.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

for device in /sys/class/infiniband/* /dev/hfi1* /dev/ipath*; do
    if [ -e "$device" ]; then
        skip card "there is $device, for which nothing is left out"
        finish
    fi
done

# meet HOW: two ranks that meet over TCP; what they say is in $work/said.
meet()
{
    TP_BACKENDS=ofi:tcp "$build/launcher/tprun" -n 2 --timeout 60 \
        "$build/tests/regress/quick" >"$work/said" 2>&1 && return
    fail "two ranks do not meet, $1:"
    sed 's/^/    /' "$work/said"
    finish
}

# mapped FILE: by both ranks?
mapped()
{
    for rank in 0 1; do
        grep -q "^rank $rank: .*$1" "$work/said" || return 1
    done
}

# real: of the libraries that may be stood in for, those that are what they say.
real()
{
    grep -v -e "$here/tp/" -e "/fabric/ofi/absent/" "$work/said" |
        grep -o 'libpsm[2_].*' | sort -u
}

# stands_in HOW FOLDER: the libraries of that folder are there, and not those.
stands_in()
{
    for name in libpsm_infinipath.so.1 libpsm2.so.2; do
        if ! grep -q "^${name%.so*}" "$work/needed"; then
            skip "$name" "this libfabric does not need it"
        elif mapped "$2/$name" && ! real | grep -q "^${name%.so*}"; then
            pass
        else
            fail "no $name of ours, $1:"
            grep "${name%.so*}" "$work/said" | sed 's/^/    /'
        fi
    done
}

# As if it were installed here, where at first nothing stands in.
here=$(cd "$work" && pwd -P)/lib
mkdir "$here"
cp "$build"/.libs/libtp.so.0 "$here/"
before=${LD_LIBRARY_PATH:-}
LD_LIBRARY_PATH=$here${before:+:$before}
export LD_LIBRARY_PATH
meet "nothing stands in"
if ! mapped "$here/libtp.so.0"; then
    skip libtp "this linker does not look where LD_LIBRARY_PATH says"
    finish
fi
real >"$work/needed"

mkdir "$here/tp"
cp "$build"/fabric/ofi/absent/lib* "$here/tp/"
meet "installed"
stands_in "installed" "$here/tp"

# An empty library lacks every function.
for name in libpsm_infinipath.so.1 libpsm2.so.2; do
    rm "$here/tp/$name"
    ${CC:-cc} -shared -nostdlib -Wl,-soname,"$name" -o "$here/tp/$name" \
        -x c /dev/null
done
meet "what stands in does not fit"
real | diff "$work/needed" - | empty "not the libraries that libfabric needs:"

if [ -n "$before" ]; then
    LD_LIBRARY_PATH=$before
else
    unset LD_LIBRARY_PATH
fi
meet "in the build tree"
stands_in "in the build tree" /fabric/ofi/absent

# The kernel's list, of which one look is more than all else that is read.
symbols=$(tee </proc/kallsyms 2>/dev/null | wc -c)
case $(uname -m)-$(getconf LONG_BIT) in
x86_64-64 | aarch64-64) ;;
*) symbols=0 ;;
esac
if [ "$symbols" -lt 4000000 ] || ! grep -q 'rchar: ' "$work/said"; then
    skip kallsyms "no long list of the kernel's, or nobody tells who reads it"
else
    sed -n 's/^\(rank .\): rchar: \([0-9]*\)/\1 \2/p' "$work/said" |
        awk -v most=$((symbols / 2)) '$3 > most' |
        empty "read more than half of what is in /proc/kallsyms, bytes:"
fi
finish
