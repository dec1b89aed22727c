#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# The totals themselves: tests/lib/summary on results made by hand.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

# result NAME VERDICT LINES...: what `make check` leaves of one test.
result()
{
    name=$1 verdict=$2
    shift 2
    printf '%s\n' "$@" >"$work/tree/$name.log"
    echo ":test-result: $verdict" >"$work/tree/$name.trs"
}

# expect STATUS LINE [OPTION...]
expect()
{
    status=$1 line=$2
    shift 2
    tests/lib/summary "$@" "$work/tree" >"$work/said"
    got=$?
    said=$(tail -n 1 "$work/said")
    if [ "$got" -eq "$status" ] && [ "$said" = "$line" ]; then
        pass
    else
        fail "expected '$line' ($status), got '$said' ($got)"
    fi
}

mkdir "$work/tree"
expect 1 "0 passed, 0 failed, 0 skipped"

result good PASS "tpx: 3 passed, 0 failed, 1 skipped" "PASS good"
result gone SKIP "SKIP: mandoc: not there" "tpx: 0 passed, 0 failed, 2 skipped"
expect 0 "3 passed, 0 failed, 3 skipped"

result bad FAIL "tpx: 1 passed, 2 failed, 0 skipped"
expect 1 "4 passed, 2 failed, 3 skipped"

# Killed before it could tell; killed after it told; silent.
result killed FAIL "Running suite(s): x"
expect 1 "4 passed, 3 failed, 3 skipped"
result leaking FAIL "tpx: 5 passed, 0 failed, 0 skipped" "ERROR: LeakSanitizer"
expect 1 "9 passed, 4 failed, 3 skipped"
result silent PASS "nothing to say"
expect 1 "9 passed, 5 failed, 3 skipped"

# A rank's own line does not count beside the test's.
result ranks PASS "tpx: 7 passed, 0 failed, 0 skipped" \
    "tpx: 2 passed, 0 failed, 0 skipped"
expect 1 "11 passed, 5 failed, 3 skipped"

# A tree within, from a failed distcheck, is not counted.
mkdir -p "$work/tree/tp-1/_build/sub"
echo ":test-result: FAIL" >"$work/tree/tp-1/_build/sub/x.trs"
expect 1 "11 passed, 5 failed, 3 skipped"

# Steps that are no test programs.
echo broken >"$work/make.log"
expect 1 "12 passed, 6 failed, 3 skipped" \
    --show --passed distcheck --failed "build=$work/make.log"
for text in broken "Running suite" "LeakSanitizer" "nothing to say" \
    "skipped (1x) mandoc: not there"; do
    if grep -qF "$text" "$work/said"; then
        pass
    else
        fail "--show does not show: $text"
    fi
done

# In a few words, while the rest still runs.
printf '%s\n' noise "x.c:7:F:case:test:0: it is not so" \
    "FAIL: a script" "    err: in its own words" noise "tpx: 1 passed, 1 failed, 0 skipped" \
    >"$work/tree/words.log"
echo ":test-result: FAIL" >"$work/tree/words.trs"
if tests/lib/summary --brief "$work/tree" "$work/make.log" >"$work/said"; then
    fail "--brief does not tell of failures by its status"
else
    pass
fi
for text in "tree/words: 1 failed, 1 passed:" "x.c:7:F:case:test:0: it is" \
    "FAIL: a script" "err: in its own words" \
    "tree/leaking: 0 failed, 5 passed:" "ERROR: LeakSanitizer" \
    "tree/killed: ended early:" "Running suite" "make.log:" broken; do
    if grep -qF "$text" "$work/said"; then
        pass
    else
        fail "--brief does not show: $text"
    fi
done
if grep -q -e noise -e tree/good "$work/said"; then
    fail "--brief shows what nobody needs"
else
    pass
fi

# A program that hangs is ended, and what it has left is named.  It may send what
# ends it to its group, as Check does.
cat >"$work/hangs.sh" <<END
#!/bin/sh
trap 'trap : TERM; kill 0; exit 1' TERM
setsid sleep 977 &
echo \$! >"$work/sleeper"
wait
END
TP_TEST_LIMIT=1 TP_TEST_WRAP='' sh tests/lib/wrap "$work/hangs.sh" \
    >"$work/said" 2>&1
status=$?
kill "$(cat "$work/sleeper")"
if [ $status -eq 124 ] && grep -q '^FAIL: status 124 after' "$work/said" &&
    grep -q '^    .*sleep 977$' "$work/said"; then
    pass
else
    fail "a program that hangs: status $status"
    cat "$work/said"
fi
finish
