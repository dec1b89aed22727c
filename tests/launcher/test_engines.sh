#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# Which engine tprun chooses, what it makes of its options, and what it says
# when something does not fit.  The engines are stand-ins that record their
# arguments; real ones are in tests/hosts.  For PRRTE, which Debian 12 does not
# have, this is the only test.
# shellcheck disable=SC2016 # what is quoted is for the shell of a rank
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"
tprun=$build/launcher/tprun
away=192.0.2.1                      # nobody's address, by RFC 5737
mkdir "$work/bin"
unset SLURM_JOB_ID SLURM_JOB_NODELIST

# engine NAME WORDS [PLUGINS]: a stand-in whose --version says WORDS, and that
# tells of ranks that have ended well.
engine()
{
    cat >"$work/bin/$1" <<END
#!/bin/sh
case "\$1" in
# Not where SIGPIPE, which tprun ignores, is ignored here, too.
--version) sh -c 'kill -PIPE \$\$' || echo "$2" ;;
--mpi=list) echo "${3:-}" ;;
*)
    printf '%s\n' "\$@" >"$work/arguments"
    echo "\$BETA" >"$work/beta"
    ranks=0
    while [ \$# -gt 0 ] && [ "\${1##*/}" != tprun-rank ]; do
        [ "\$1" != -n ] || ranks=\$2
        shift
    done
    while [ \$((ranks -= 1)) -ge 0 ]; do
        printf '\036tp%s E %d 1 0 host \036\n' "\$3" "\$ranks" >&2
    done ;;
esac
END
    chmod +x "$work/bin/$1"
}

# stand_in NAME WORDS: one whose --version says WORDS, and that does with what
# tprun-rank is told what standard input says.
stand_in()
{
    {
        printf '#!/bin/sh\n[ "$1" != --version ] || { echo "%s"; exit; }\n' "$2"
        echo 'while [ "${1##*/}" != tprun-rank ]; do shift; done'
        cat
    } >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}

# Only our engines are in PATH, and what the stand-ins themselves need.
for tool in sh bash printf echo cat ssh true sleep setsid wc; do
    for folder in /usr/bin /bin; do
        [ ! -x $folder/$tool ] || ln -sf $folder/$tool "$work/bin/$tool"
    done
done

# try STATUS WORDS OPTIONS...: tprun ends with that, and says that.
try()
{
    want=$1 words=$2
    shift 2
    rm -f "$work/arguments"
    PATH=$work/bin "$tprun" "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
    if [ $status -eq "$want" ] && { [ -z "$words" ] ||
        cat "$work/out" "$work/err" | grep -q -e "$words"; }; then
        pass
    else
        fail "tprun $*: status $status, expected $want and: $words"
        cat "$work/out" "$work/err"
    fi
}

# got WORDS...: these arguments came to the engine, one after the other.
got()
{
    for word; do echo "$word"; done >"$work/want"
    if tr '\n' '\001' <"$work/arguments" |
        grep -q -F -e "$(tr '\n' '\001' <"$work/want")"; then
        pass
    else
        fail "the engine did not get: $*"
        cat "$work/arguments"
    fi
}

# ---- nothing there, or nothing that fits ----

try 2 "$away is not this machine, and nothing.*apt-get install openmpi-bin" \
    --host $away true
try 2 'engine slurm: srun is not in PATH' --engine slurm --host $away true
try 2 'engine prrte: prterun is not in PATH' --engine prrte true
try 2 'engine local: 192.0.2.1 is not this machine' \
    --engine local --host $away true
try 2 'engine pbs: expected auto, local, slurm' --engine pbs true
try 2 'host: "a,,b": the name of a host is missing' --host a,,b true
try 2 'hostfile /nonexistent: No such file' --hostfile /nonexistent true
try 0 '' -n 2 --host localhost true
printf 'localhost slots=2\nlocalhost slot=1\n' >"$work/hosts"
try 2 'hosts:2: slot=: expected slots=' --hostfile "$work/hosts" true

engine mpirun 'mpirun (Open MPI) 3.1.6'
try 2 'mpirun is Open MPI 3.1; tp .* needs 4.0 or newer' --host $away true
engine mpirun 'HYDRA build details:'
try 2 "is not Open MPI's: it says .HYDRA build details:" --host $away true
engine srun 'slurm 19.05.5' 'srun: pmix'
try 2 'srun is Slurm 19.05; tp .* needs 20.11 or newer' --engine slurm true
engine srun 'slurm-wlm 22.05.8' 'srun: none pmi2'
try 2 'this Slurm has no PMIx plug-in' --engine slurm true
printf '#!/bin/sh\nexec sleep 60\n' >"$work/bin/srun"
try 2 'srun --version has not ended after 10 s: is the file system' \
    --engine slurm true
engine srun 'slurm-wlm 22.05.8' 'srun: none pmi2'

# ---- what they are told ----

engine prterun 'prterun (PRRTE) 3.0.2'
export BETA='two words' DISPLAY=:9
try 0 '' -n 3 --host $away:2,localhost:1 --bind-to package --tag \
    -x ALPHA=1 --keep-going --wdir /usr sh -c 'echo "$BETA"'
got -n 3 --host $away:2,localhost:1 --map-by slot:OVERSUBSCRIBE \
    --bind-to package --output tag --runtime-options continuous
got --prtemca plm_ssh_args '-o BatchMode=yes -o ConnectTimeout=10'
got -x ALPHA
got -x BETA
! grep -q -x -e HOME -e DISPLAY "$work/arguments" ||
    fail "what belongs to this host went to another"
got -k -p 0,3,/usr -- sh -c 'echo "$BETA"'
grep -q '^two words$' "$work/beta" || fail "the environment did not arrive"
try 0 '' --host $away -x HOME=/tpx -x DISPLAY true
got -x HOME
got -x DISPLAY
export TP_CPUS=4
try 0 '' --host $away -x TP_CPUS true
unset TP_CPUS
! grep -q -x TP_CPUS "$work/arguments" ||
    fail "the cpus of this host were told to another"
# shellcheck disable=SC2088 # no path
try 2 'takes one user for all other hosts' --host a@$away,b@192.0.2.2 true
try 0 '' --host a@$away true
got '-o BatchMode=yes -o ConnectTimeout=10 -l a'
try 2 'takes no IPv6 addresses' --host 2001:db8::1 true

try 0 '' --host $away --map-by l3 --bind-to l3 --stdin all \
    --merge-stderr --output out -n 1 echo a : -n 2 --wdir /usr echo b c
got --map-by l3cache:OVERSUBSCRIBE --bind-to l3cache --stdin all
got -m -o out -p 0,2, -p 1,3,/usr -- echo a echo b c
try 0 '' --host $away --tag --timestamp true
got --output tag,timestamp
try 0 '' --host $away --wrap 'env -i' echo a
got -- env -i echo a
try 0 '' --host $away -- echo a : b:c ::
got -- echo a :: b:c :::
try 2 'wrap: not with --engine prrte: for some ranks only' --host $away \
    --wrap '0:env -i' echo a
try 2 'pty: not with --engine prrte' --host $away --pty true
try 2 'gpus-per-rank: not with --engine prrte' --host $away \
    --gpus-per-rank 1 true
try 0 '^ranks 0 to 1 on 192.0.2.1$' --host $away:2 --display-map true

rm "$work/bin/prterun"
engine mpirun.openmpi 'mpirun.openmpi (Open MPI) 4.1.4'
try 0 '' --host $away --bind-to package --tag --keep-going true
got -n 1 --host $away:1 --map-by slot:OVERSUBSCRIBE --bind-to socket \
    --xml --continuous --mca plm_rsh_args
got -f -k -- true
got --mca oob_tcp_keepalive_time 10 --mca oob_tcp_keepalive_intvl 2 \
    --mca oob_tcp_keepalive_probes 5
export OMPI_MCA_oob_tcp_keepalive_intvl=7 TP_HEARTBEAT=60s
try 0 '' --host $away true
got --mca oob_tcp_keepalive_time 60 --mca oob_tcp_keepalive_probes 5
unset OMPI_MCA_oob_tcp_keepalive_intvl TP_HEARTBEAT
try 0 '' --host $away -x TP_HEARTBEAT=0 true
! grep -q keepalive "$work/arguments" || fail "probes without TP_HEARTBEAT"
engine mpirun.openmpi 'mpirun (Open MPI) 5.0.3'
try 0 '' --host $away --bind-to package --tag true
got --bind-to package --output tag --prtemca plm_ssh_args

engine srun 'slurm-wlm 22.05.8' 'srun: none pmix pmix_v4'
export SLURM_JOB_ID=7 SLURM_JOB_NODELIST='192.0.2.[1-2],192.0.2.3'
export SLURM_TASKS_PER_NODE='2(x2),1' SLURM_NTASKS=5
try 0 '' --tag --bind-to core true
got --mpi=pmix --ntasks=5 --distribution=arbitrary \
    --nodelist=192.0.2.1,192.0.2.1,192.0.2.2,192.0.2.2,192.0.2.3
got --cpu-bind=cores --label
try 2 'keep-going: not with --engine slurm' --keep-going true
try 2 'map-by: not with --engine slurm' --map-by numa true
try 2 'bind-to: not with --engine slurm' --bind-to l3 true
try 2 'timestamp: not with --engine slurm' --timestamp true
try 0 '' --gpus-per-rank 2 --bind-to numa --stdin none true
got --input=none
got --cpu-bind=ldoms --gpus-per-task=2
try 2 'me@192.0.2.1: not with --engine slurm' --host me@192.0.2.1 true
engine srun 'slurm-wlm 22.05.8' 'srun: none'
try 0 '' true
got --prtemca plm_ssh_args '-o BatchMode=yes -o ConnectTimeout=10'
unset SLURM_JOB_ID SLURM_JOB_NODELIST

try 0 "^TP_REQUIRE=net:ofi:tcp TP_REQUIRE_ABORT=1 /.*/mpirun.openmpi .* -- echo 'a b'\$" \
    --dry-run --require net:ofi:tcp --host $away echo 'a b'

if [ -e /dev/full ]; then
    for option in --dry-run --display-map; do
        PATH=$work/bin "$tprun" --host $away $option true \
            >/dev/full 2>"$work/err" </dev/null
        status=$?
        if [ $status -eq 1 ] && grep -q '^tprun: cannot write to standard' \
            "$work/err"; then
            pass
        else
            fail "$option: a full disk is an error (status $status)"
        fi
    done
fi

# ---- ranks that fail, and others that go on ----

# All ranks run here; with LOST nothing comes but that the first one has begun.
cat >"$work/bin/prterun" <<'END'
#!/bin/sh
[ "$1" != --version ] || { echo 'prterun (PRRTE) 3.0.2'; exit; }
while [ "${1##*/}" != tprun-rank ]; do
    [ "$1" != -n ] || ranks=$2
    shift
done
if [ -n "${LOST:-}" ]; then
    printf '\036tp%s S 0 1 0 host \036\n' "$3" >&2
    exit
fi
while [ $((ranks -= 1)) -ge 0 ]; do
    PMIX_RANK=$ranks "$@" &
done
wait
END
chmod +x "$work/bin/prterun"

# at_last WORDS: that is the last line.
at_last()
{
    if tail -n 1 "$work/err" | grep -q -e "$1"; then
        pass
    else
        fail "the last line is not: $1"
        cat "$work/err"
    fi
}

fails='test $PMIX_RANK = 1 || exit 3'
try 3 'rank 0 on .* with status 3$' --engine prrte --host $away:2 --keep-going \
    sh -c "$fails"
# What ends the job later is what counts.
try 124 'rank 0 on .* with status 3$' --engine prrte --host $away:2 \
    --keep-going --timeout 10 sh -c "$fails; exec sleep 60"
at_last '^tprun: the job ran longer than --timeout 10; still running: rank 1 '
try 7 '' --engine prrte --host $away:2 --keep-going bash -c "$fails; sleep 1
    printf 'A 7 no such model' >&\$TP_REPORT; exec sleep 60"
at_last '^tprun: rank 1 on .* ended the job with status 7: no such model$'
PATH=$work/bin "$tprun" --engine prrte --host $away:2 --keep-going sh -c \
    "$fails; exec sleep 60" >"$work/out" 2>"$work/err" </dev/null &
killed=$!
for _ in $(seq 6000); do
    ! grep -q 'status 3$' "$work/err" || break
    sleep 0.01
done
sleep 0.5
kill $killed
wait $killed
status=$?
if [ $status -eq 143 ]; then
    pass
else
    fail "SIGTERM after a failure: status $status"
fi
at_last '^tprun: signal 15 (SIGTERM) ended the job$'
try 127 'tpx-no: no such program' --engine prrte --host $away:2 --keep-going \
    tpx-no
LOST=yes try 1 '^tprun: prterun ended with status 0 before the ranks did$' \
    --engine prrte --host $away:2 --keep-going true

# What an outer tprun has told its rank is not for these.
export TP_DOOR=8:9:1:2:name:1:1:2 TP_RECORD=8:64
try 0 '^<>$' --engine prrte --host $away sh -c 'echo "<$TP_DOOR$TP_RECORD>"'
try 0 'tprun-rank' --dry-run --engine prrte --host $away true
# An installation that was moved knows its own.
if grep -qx 'bindir = ${exec_prefix}/bin' "$build/Makefile" &&
   grep -qx 'libexecdir = ${exec_prefix}/libexec' "$build/Makefile"; then
    mkdir -p "$work/moved/bin" "$work/moved/libexec/tp"
    cp "$tprun" "$work/moved/bin"
    cp "$build/launcher/tprun-rank" "$work/moved/libexec/tp"
    tprun=$work/moved/bin/tprun
    try 0 " $work/moved/libexec/tp/tprun-rank " --dry-run --engine prrte \
        --host $away true
    tprun=$build/launcher/tprun
fi
grep -E 'TP_(DOOR|RECORD)' "$work/out" | empty "variables of a rank are passed on"
unset TP_DOOR TP_RECORD
export TP_REPORT=9
try 0 '^<>$' sh -c 'echo "<$TP_REPORT>"'
unset TP_REPORT
rm "$work/bin/prterun"

# ---- an engine that is killed ----

version=$(sed -n 's/^#define PACKAGE_VERSION "\(.*\)"/\1/p' "$build/config.h")
keeper="$build/launcher/tprun-rank -j $$ -V $version"

# mpirun would throw away that there is no such program, if nobody stayed.
# shellcheck disable=SC2086 # several words
PMIX_RANK=0 $keeper -f -k -- tpx-no 2>"$work/marks" </dev/null &
killed=$!
for _ in $(seq 6000); do
    [ ! -s "$work/marks" ] || break
    sleep 0.01
done
sleep 0.3
if grep -q '^State:.[^ZX]' /proc/$killed/status; then
    pass
else
    fail "tprun-rank does not wait until tprun knows"
fi
kill -USR2 $killed
wait $killed || fail "tprun-rank does not end well with --keep-going"

# Of nothing but colons it gets one more than the program is to have.
# shellcheck disable=SC2086 # several words
if [ "$(PMIX_RANK=0 $keeper -- echo :: b:c ::: '' 2>/dev/null)" = ': b:c :: ' ]
then
    pass
else
    fail "an argument of nothing but colons arrives changed"
fi

# goes RANK WHOM COMMAND...: that is started, and killed; the rank goes, and what
# it has started, also in a session of its own.  Each has its own number: the
# guards of one that is gone may still be looking for its children.
goes()
{
    number=$1 whom=$2
    shift 2
    : >"$work/out"
    PMIX_RANK=$number "$@" >"$work/out" 2>/dev/null </dev/null &
    killed=$!
    for _ in $(seq 6000); do
        ! grep -q '^all$' "$work/out" || break
        sleep 0.01
    done
    kill -9 $killed
    wait $killed 2>/dev/null
    gone=0 started=$(sed '/all/d' "$work/out")
    for _ in $(seq 6000); do
        gone=1
        for pid in $started; do
            ! grep -q '^State:.[^ZX]' "/proc/$pid/status" 2>/dev/null || gone=0
        done
        [ $gone -eq 0 ] || break
        sleep 0.01
    done
    if grep -q '^all$' "$work/out" && [ $gone -eq 1 ]; then
        pass
    else
        fail "what a rank has started outlives $whom"
        # shellcheck disable=SC2086 # numbers
        kill -9 $started
    fi
}
starts='setsid sleep 600 & echo $!; sleep 600 & echo $!; echo all; wait'
goes 1 "its engine" sh -c "$keeper -- sh -c '$starts'; true"
# shellcheck disable=SC2086 # several words
goes 2 "its tprun-rank" $keeper -- sh -c "$starts"

# Nobody reads for longer than what the rank leaves may take to end: that which
# does not heed SIGTERM is killed all the same.
mkfifo "$work/unread"
exec 7<>"$work/unread"
# shellcheck disable=SC2086 # several words
PMIX_RANK=0 $keeper -f -- sh -c "trap '' TERM; sleep 600 & echo \$! >'$work/left'
    echo \$\$ >'$work/rank'; yes &
    until [ -e '$work/go' ]; do sleep 0.05; done" \
    2>"$work/unread" </dev/null 7<&- &
killed=$!
# The rank ends when nothing more goes into the pipe, and so much comes out that
# its end is heard of, but not all.  (Where that is late, what is left may be gone
# by then, and no more comes: nothing here waits for a certain number of bytes.)
for _ in $(seq 200); do
    ! { [ -s "$work/rank" ] && grep -q pipe_write "/proc/$killed/wchan"; } ||
        break
    sleep 0.05
done
: >"$work/go"
for _ in $(seq 6000); do
    { [ ! -s "$work/rank" ] || [ -e "/proc/$(cat "$work/rank")" ]; } || break
    dd if="$work/unread" of=/dev/null bs=4096 count=1 iflag=nonblock \
        status=none 2>/dev/null
    sleep 0.01
done
sleep 5
cat <&7 >/dev/null &
reader=$!
gone=0
for _ in $(seq 1500); do
    grep -q '^State:.[^ZX]' "/proc/$(cat "$work/left")/status" 2>/dev/null ||
        { gone=1; break; }
    sleep 0.01
done
kill -9 $killed $reader
wait $killed $reader 2>/dev/null
exec 7<&-
if [ $gone -eq 1 ]; then
    pass
else
    fail "what a rank leaves outlives it where nobody reads"
    kill -9 "$(cat "$work/left")"
fi

# ---- a rank that does not start ----

# The other one has been started; a host went down in between.
stand_in mpirun.openmpi 'mpirun (Open MPI) 4.1.4' <<END
printf '\036tp%s S 1 1 0 host \036\n' "\$3" >&2
sleep 200 &
trap 'kill \$!; exit 1' TERM
wait \$!
END
try 1 '^tprun: mpirun.openmpi has not started rank 0 and 1 more, 60 s after' \
    --host $away:3 sleep 200
if grep -q '^tprun: waiting for mpirun.openmpi to start rank 0 and 1 more$' \
    "$work/err"; then
    pass
else
    fail "nobody said what is waited for"
fi

# Nobody reads for longer than tprun waits for a start, and the word of rank 1's
# is behind what rank 0 has written.
stand_in mpirun.openmpi 'mpirun (Open MPI) 4.1.4' <<END
trap 'kill -USR2 \$zero \$one' USR2
: >"$work/zero" >"$work/one"
PMIX_RANK=0 "\$@" 2>"$work/zero" &
zero=\$!
PMIX_RANK=1 "\$@" 2>"$work/one" &
one=\$!
size=
until new=\$(cat "$work/zero" "$work/one" | wc -c)
    [ "\$new" = "\$size" ] && [ "\$new" -gt 5333333 ]; do
    size=\$new
    sleep 0.5
done
printf '<stderr rank="0">%s</stderr>\n' "\$(cat "$work/zero")"
printf '<stderr rank="1">%s</stderr>\n' "\$(cat "$work/one")"
until wait; do :; done
END
mkfifo "$work/pipe"
{ sleep 15; wc -c; } <"$work/pipe" >"$work/count" &
PATH=$work/bin "$tprun" --host $away:2 printf '%1999999d\n' 1 >"$work/pipe" \
    2>"$work/err" </dev/null
status=$?
wait $!
if [ $status -eq 0 ] && [ ! -s "$work/err" ] &&
    [ "$(cat "$work/count")" = 4000000 ]; then
    pass
else
    fail "nobody reads, and a start is missed: $status $(cat "$work/count")"
    cat "$work/err"
fi

# What the ranks print an engine of the others writes itself, and is not through
# with it long after they have ended: our reader has other things to do.
stand_in prterun 'prterun (PRRTE) 3.0.2' <<'END'
printf '\036tp%s S 0 1 0 host \036\n\036tp%s E 0 1 0 host \036\n' "$3" "$3" >&2
printf '%1999999d\n' 1
END
{ sleep 7; wc -c; } <"$work/pipe" >"$work/count" &
PATH=$work/bin "$tprun" --engine prrte --host $away true >"$work/pipe" \
    2>"$work/err" </dev/null
status=$?
wait $!
if [ $status -eq 0 ] && [ ! -s "$work/err" ] &&
    [ "$(cat "$work/count")" = 2000000 ]; then
    pass
else
    fail "an engine is ended that still writes: $status $(cat "$work/count")"
    cat "$work/err"
fi

# And who reads standard error, which goes through us, reads it slowly: the rest
# is there when the engine has gone.
stand_in prterun 'prterun (PRRTE) 3.0.2' <<'END'
printf '\036tp%s S 0 1 0 host \036\n' "$3" >&2
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do printf '%9999d\n' $i; done >&2
printf '\036tp%s E 0 1 0 host \036\n' "$3" >&2
END
bite() { dd bs=16384 count=1 iflag=fullblock status=none; }
{ sleep 2; bite; sleep 3; bite; sleep 3; cat; } <"$work/pipe" >"$work/out" &
PATH=$work/bin "$tprun" --engine prrte --host $away true 2>"$work/pipe" \
    </dev/null
status=$?
wait $!
if [ $status -eq 0 ] && [ "$(wc -c <"$work/out")" = 120000 ]; then
    pass
else
    fail "what the engine wrote is lost: $status $(wc -c <"$work/out")"
fi

# --timeout is kept where nobody reads.
stand_in prterun 'prterun (PRRTE) 3.0.2' <<'END'
printf '\036tp%s S 0 1 0 host \036\n' "$3" >&2
while :; do printf '%9999d\n' 1; done >&2
END
exec 7<>"$work/pipe"
PATH=$work/bin "$tprun" --timeout 2 --engine prrte --host $away true \
    2>"$work/pipe" </dev/null 7<&- &
killed=$!
for _ in $(seq 6000); do
    kill -0 $killed 2>/dev/null || break
    sleep 0.01
done
kill -9 $killed 2>/dev/null
wait $killed
status=$?
exec 7<&-
if [ $status -eq 124 ]; then
    pass
else
    fail "--timeout waits for who does not read: $status"
fi
rm "$work/bin/prterun"

# ---- hosts that answer late, or not as they should ----

cat >"$work/bin/mpirun.openmpi" <<END
#!/bin/sh
[ "\$1" != --version ] || { echo 'mpirun (Open MPI) 4.1.4'; exit; }
exit 1
END
mv "$work/bin/ssh" "$work/bin/ssh.real"
ln -s true "$work/bin/orted"
cat >"$work/bin/ssh" <<'END'
#!/bin/sh
case $3 in
192.0.2.1) sleep 60 ;;
192.0.2.2) echo tp-reached ;;
192.0.2.3) echo tp-no-keeper; echo tp-reached ;;
192.0.2.4) echo tp-reached; sleep 60 & ;;
192.0.2.5) exec sleep 60 >&- 2>&- ;;
192.0.2.7) printf 'well\nnoise \033[2J.\a\n'; exit 255 ;;
192.0.2.6) TMPDIR=/nonexistent exec sh -c "$4" ;;
esac
END
chmod +x "$work/bin/ssh"
try 1 '^tprun: 192.0.2.1: no answer to ssh in 8 s; is it up?$' --host \
    192.0.2.1,192.0.2.2,192.0.2.3,192.0.2.4,192.0.2.5,192.0.2.6,192.0.2.7 \
    true
for words in '192.0.2.3: .*tprun-rank is not there; install the same tp' \
    '192.0.2.5: no answer to ssh in 8 s; is it up' \
    '192.0.2.6: nothing can be written to /nonexistent, where Open MPI' \
    '192.0.2.7: noise [^[:cntrl:]]*[[]2J[.][^[:cntrl:]]*; does .ssh. to'; do
    if grep -q "^tprun: $words" "$work/err"; then pass; else fail "$words"; fi
done
if [ "$(grep -c '^tprun: 192' "$work/err")" = 5 ]; then
    pass
else
    fail "hosts are named that are well"
    cat "$work/err"
fi
mv -f "$work/bin/ssh.real" "$work/bin/ssh"
rm "$work/bin/orted"

# ---- a rank whose own word is lost ----

# srun, after its step was ended before tprun-rank could tell.
cat >"$work/bin/srun" <<END
#!/bin/sh
case "\$1" in
--version) echo "slurm-wlm 22.05.8"; exit ;;
--mpi=list) echo pmix; exit ;;
esac
while [ "\${1##*/}" != tprun-rank ]; do shift; done
PMIX_RANK=0 PMIX_NAMESPACE=n setsid "\$@" 2>"$work/marks" &
while [ ! -s "$work/marks" ]; do sleep 0.01; done
cat "$work/marks" >&2
kill -9 \$!
wait \$!
echo 'srun: error: host3: task'"\$WORDS" >&2
exit 137
END
chmod +x "$work/bin/srun"
# lost WORDS STATUS SAID OPTIONS...
lost()
{
    rm -f "$work/marks"
    words=$1 ended=$2 said=$3
    shift 3
    WORDS=$words try "$ended" "$said" --engine slurm "$@" -n 1 \
        sleep 60
}
says=', srun says: '
lost ' 0: Killed' 137 "^tprun: rank 0 on .* by signal 9 .*${says}Killed\$"
lost ' 0: Killed' 137 " by signal 9 .*${says}Killed\$" --verbose
lost ' 0: Segmentation fault (core dumped)' 139 ' killed by signal 11 '
lost ' 0: Out Of Memory' 137 "by signal 9 .*${says}Out Of Memory\$"
lost 's 0,2-3: Exited with exit code 7' 7 "rank 0 on .* with status 7$says"
lost ' 1: Killed' 137 '^tprun: srun ended with status 137 before'
lost ' 0: Whatever' 137 '^tprun: srun ended with status 137 before'
# What else it says is shown, and of several ends what tells most is the cause.
more='srun: error: host3: task'
lost " 7: Killed
srun: error: Node failure on host3
$more 0: Exited with exit code 9
$more 0: Killed" 137 '^srun: error: Node failure on host3$'
if tail -1 "$work/err" | grep -q '^tprun: rank 0 on .* by signal 9 '; then
    pass
else
    fail "the death is not what counts"
fi

# ---- another libpmix ----

echo 'const char *PMIx_Get_version(void); const char *PMIx_Get_version(void)
{ return "OpenPMIx 3.2.3, repo rev: v3.2.3"; }' >"$work/old.c"
if [ -z "${TP_TEST_SANITIZER:-}" ] &&
    ${CC:-cc} -shared -fPIC -o "$work/libpmix.so.2" "$work/old.c"; then
    export LD_LIBRARY_PATH="$work"
    try 1 'libpmix.so.2 is version 3.2.3; tp .* needs 4.2 or newer' true
fi
finish
