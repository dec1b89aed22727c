#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# What zsh and bash complete, by a Tab typed to the shells themselves.
# shellcheck disable=SC2016 # what is quoted is for the other shells
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"
PATH=$build/launcher:$PATH
TPX_WORK=$work
TPX_FILES=$source/launcher/completion
export PATH TPX_WORK TPX_FILES
mkdir -p "$work/folder/inner"

# What is typed, and what stands there after a Tab.
cat >"$work/cases" <<'END'
tprun --disp|tprun --display-map
tprun -n 2 --bind-to pac|tprun -n 2 --bind-to package
tprun -np 2 --map-by nu|tprun -np 2 --map-by numa
tprun --engine sl|tprun --engine slurm
tprun --stdin n|tprun --stdin none
tprun --wdir folder/inn|tprun --wdir folder/inner
tprun -n 1 true --disp|tprun -n 1 true --disp
tprun true : -n 2 --report|tprun true : -n 2 --report-bindings
tprun --bind-to=pac|tprun --bind-to=package
tprun --bind-to=core --disp|tprun --bind-to=core --display-map
tprun --host a:4,b@c --disp|tprun --host a:4,b@c --display-map
tprun -x A=1 --disp|tprun -x A=1 --display-map
END

# ended WHO: each line of $work/typed is what the case wants.
ended()
{
    sed 's/[ /]*$//' "$work/typed" >"$work/lines"
    count=0
    while IFS='|' read -r typed wanted; do
        count=$((count + 1))
        line=$(sed -n "${count}p" "$work/lines")
        if [ "$line" = "$wanted" ]; then
            pass
        else
            fail "$1, after \"$typed\" and a Tab: \"$line\", not \"$wanted\""
        fi
    done <"$work/cases"
    rm -f "$work/typed"
}

# A shell on a terminal, to which a key writes down what stands there.
cat >"$work/zsh" <<'END'
zmodload zsh/zpty
zpty shell zsh -f -i
type() { zpty -w -n shell "$1" }
type $'PS1= PS2=; stty -echo; unsetopt beep; cd $TPX_WORK\n'
type $'fpath=($TPX_FILES $fpath); autoload -Uz compinit; compinit -u -D\n'
type $'show() { print -r -- "$BUFFER" >>$TPX_WORK/typed; BUFFER= }\n'
type $'zle -N show; bindkey "^I" complete-word; bindkey "^X" show\n'
type $'echo rea""dy\n'
zpty -r shell seen '*ready*'
count=0
while IFS='|' read -r typed wanted; do
    type "$typed"$'\t\x18'
    ((count++))
    until [[ -e $TPX_WORK/typed && $(wc -l <$TPX_WORK/typed) -ge $count ]]; do
        sleep 0.05
    done
done <$TPX_WORK/cases
zpty -d shell
END
if command -v zsh >/dev/null; then
    timeout -k 5 120 zsh -f "$work/zsh" </dev/null >"$work/out" 2>&1 ||
        fail "zsh: status $?: $(tail -n 5 "$work/out")"
    ended zsh
else
    skip zsh "not installed: apt-get install zsh"
fi

# bash has no terminals for others, but hands on what it would show.  It parts
# words at some signs as well, and completes behind the last of these.
cat >"$work/bash" <<'END'
cd "$TPX_WORK"
. "$TPX_FILES/tprun"
complete -p tprun >/dev/null || exit 1
while IFS='|' read -r typed wanted; do
    read -ra COMP_WORDS < <(sed 's/[=:@]/ & /g' <<<"$typed")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=() COMP_LINE=$typed
    _tprun
    if [[ ${#COMPREPLY[@]} -gt 0 ]]; then
        echo "${typed%"${COMP_WORDS[COMP_CWORD]}"}${COMPREPLY[*]}"
    else
        echo "$typed"
    fi
done <"$TPX_WORK/cases" >"$TPX_WORK/typed"
END
if command -v bash >/dev/null; then
    timeout -k 5 120 bash --norc "$work/bash" </dev/null >"$work/out" 2>&1 ||
        fail "bash: status $?: $(tail -n 5 "$work/out")"
    ended bash
else
    skip bash "not installed"
fi
finish
