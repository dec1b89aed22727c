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

# meet: two ranks that meet over TCP; what they say is in $work/said.
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

# stands_in WHERE FOLDER: the libraries of that folder are there, not the real.
stands_in()
{
    for name in libpsm_infinipath.so.1 libpsm2.so.2; do
        if ! grep -q "$name" "$work/real"; then
            skip "$name" "this libfabric does not need it"
        elif mapped "$2/$name" && ! mapped "/usr/.*$name"; then
            pass
        else
            fail "no $name of ours, $1:"
            grep "$name" "$work/said" | sed 's/^/    /'
        fi
    done
}

# As if it were installed in $work/lib, where at first nothing stands in.
mkdir "$work/lib"
cp "$build"/.libs/libtp.so.0 "$work/lib/"
before=${LD_LIBRARY_PATH:-}
LD_LIBRARY_PATH=$work/lib${before:+:$before}
export LD_LIBRARY_PATH
meet "nothing stands in"
if mapped "$work/lib/libtp.so.0"; then
    pass
else
    fail "$build/tests/regress/quick does not look for libtp where it is told"
fi
cp "$work/said" "$work/real"

mkdir "$work/lib/tp"
cp "$build"/fabric/ofi/absent/lib* "$work/lib/tp/"
meet "installed"
stands_in "installed" "$work/lib/tp"

# An empty library lacks every function.
for name in libpsm_infinipath.so.1 libpsm2.so.2; do
    rm "$work/lib/tp/$name"
    ${CC:-cc} -shared -nostdlib -Wl,-soname,"$name" -o "$work/lib/tp/$name" \
        -x c /dev/null
done
meet "what stands in does not fit"
grep -o 'libpsm.*' "$work/real" | sort -u >"$work/needed"
grep -o '/usr.*libpsm.*' "$work/said" | grep -o 'libpsm.*' | sort -u |
    diff "$work/needed" - | empty "not the libraries that libfabric needs:"

if [ -n "$before" ]; then
    LD_LIBRARY_PATH=$before
else
    unset LD_LIBRARY_PATH
fi
meet "in the build tree"
stands_in "in the build tree" /fabric/ofi/absent

# The kernel's list, of which one look is more than all else that is read.
symbols=$(tee </proc/kallsyms 2>/dev/null | wc -c)
if [ "$symbols" -lt 4000000 ]; then
    skip kallsyms "/proc/kallsyms has but $symbols bytes"
else
    sed -n 's/^\(rank .\): rchar: \([0-9]*\)/\1 \2/p' "$work/said" |
        awk -v most=$((symbols / 2)) '$3 > most' |
        empty "read more than half of what is in /proc/kallsyms, bytes:"
fi
finish
