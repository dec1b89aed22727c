# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=sh
#
# What the tests of bench/ share: they run a command, and judge by what it said.
# shellcheck disable=SC2154 # work is tests/lib/lint.sh's

# Seconds that a command may take.
deadline=120

# run COMMAND...: with a deadline; what it says is in $work/out and $work/err,
# its status in $status.
run()
{
    command=$*
    timeout --kill-after=5 "$deadline" "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
}

# check WORDS: judges by the status of the command before.
check()
{
    if [ $? -eq 0 ]; then
        pass
    else
        fail "$command: $1 (status $status)"
        sed 's/^/    /' "$work/out" "$work/err" | head -n 20
    fi
}
