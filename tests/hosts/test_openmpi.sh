#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Jobs over three hosts, started by Open MPI's mpirun over ssh: by tprun, and
# by mpirun itself.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
# shellcheck source=tests/hosts/hosts.sh
. "${TP_TEST_SOURCE:-.}/tests/hosts/hosts.sh"
self=$source/tests/hosts/test_openmpi.sh
refused='^tprun: rank . on host. .*ended the job with status 1: no '
refused+='backend reaches rank .* on host.*TP_REQUIRE wants shm for class net'

three=host1,host2,host3
doors=$build/tests/launcher/doors

jobs_end_well()
{
    on host1 40 "$tprun" -n 3 --host $three "$ring"
    check "ring over ofi:tcp" ended 0 'every byte right;.*over ofi:tcp' ''
    # shellcheck disable=SC2016 # for the inner shell
    on host1 20 "$tprun" -n 3 --host $three sh -c \
        '[ "$PMIX_RANK" = 2 ] && sleep 0.3; "$0" ring 1 && "$0" ring 2' "$doors"
    check "several programs of a rank" ended 0 '' ''
    # shellcheck disable=SC2016
    on host1 60 "$tprun" -n 2 --host host1,host2 -x TP_CONNECT_TIMEOUT=40s \
        sh -c '"$0" ring 1 || exit; [ "$PMIX_RANK" = 1 ] || {
        kill -STOP $PPID; { sleep 3; kill -CONT $PPID; } & }; "$0" ring 2
        status=$?; wait; exit $status' "$doors"
    check "its tprun-rank is stopped between two" ended 0 '' ''
    on host1 20 "$tprun" --host host1:2,host3 hostname
    check "as many ranks as slots" ended 0 host1 ''
    check "on the hosts with the slots" [ "$(sort <<<"$out" | tr '\n' ' ')" \
        = "host1 host1 host3 " ]
    local file
    file=$("$nethosts" directory)/hostfile
    printf 'host2 slots=1 # one\n\nhost[3-3]:2\n' >"$file"
    on host1 20 "$tprun" --hostfile "$file" hostname
    check "a hostfile" [ "$(sort <<<"$out" | tr '\n' ' ')" \
        = "host2 host3 host3 " ]
    on host1 20 "$tprun" --host $three --tag sh -c 'echo out; echo err >&2'
    check "--tag" ended 0 '^\[2\] out$' '^\[2\] err$'
    # shellcheck disable=SC2016 # for the inner shell
    on host1 20 env BETA='two words' "$tprun" --host host2 -x \
        "ALPHA=a;b,c 'd'" sh -c 'echo "$ALPHA|$BETA|$HOME"; pwd'
    check "the environment" holds "$out" "^a;b,c 'd'\|two words\|/"
    check "the working directory" holds "$out" "^$source\$"
    on host1 20 "$tprun" --host host2 --wdir /usr/lib pwd
    check "--wdir" ended 0 '^/usr/lib$' ''
    on host1 20 "$tprun" --host host2,host3 -n 1 echo one : -n 1 echo two
    check "two programs" [ "$(sort <<<"$out" | tr '\n' ' ')" = "one two " ]
    file=$("$nethosts" directory)/output/of/each
    on host1 20 "$tprun" --host host2,host3 --output "$file" hostname
    check "a file for each rank" [ "$(cat "$file"/[01].out)" = "host2
host3" ]
    on host1 20 "$tprun" -n 2 --host localhost,host1 hostname
    check "this host alone needs no engine" ended 0 host1 ''
    on host1 20 "$tprun" --host guest@host2 id -un
    check "another user" ended 0 '^guest$' ''
    # shellcheck disable=SC2016
    echo 'echo from rank $PMIX_RANK' >"$work/script"
    "$nethosts" exec host1 timeout 80 "$tprun" --host host2,host3 sh \
        <"$work/script" >"$work/out" 2>"$work/err"
    status=$? out=$(cat "$work/out") err=$(cat "$work/err")
    check "rank 0 reads the input" [ "$out" = "from rank 0" ]
    seq 20000 >"$work/numbers"
    "$nethosts" exec host1 timeout 80 "$tprun" --host host2,host3 --stdin all \
        wc -l <"$work/numbers" >"$work/out" 2>"$work/err"
    status=$? out=$(cat "$work/out") err=$(cat "$work/err")
    check "all read the input" [ "$status $out" = "0 20000
20000" ]
    on host1 20 "$tprun" --host $three --stdin all wc -l
    check "all cannot read it here" ended 2 '' 'this host; leave this one out$'
}

# Each rank writes megabytes of lines to both streams, in pieces of its own,
# and ends at once; or is ended by the death of another.
lines_stay_whole()
{
    local pad words file
    pad=$(printf 'x%.0s' $(seq 300))
    # shellcheck disable=SC2016
    words='seq -f "$PMIX_RANK %06.0f '$pad' é<&>." 0 19999
        seq -f "$PMIX_RANK e%06.0f '$pad'" 0 99 >&2; printf "end\n$PMIX_RANK "'
    "$nethosts" exec host1 timeout 200 "$tprun" -n 6 --host $three \
        sh -c "$words" >"$work/lines" 2>"$work/errors" </dev/null
    status=$? out='' err=$(grep -v waiting "$work/errors" | head -n 3)
    check "much output" [ $status = 0 ]
    check "no line is torn" empty_of "$work/lines" \
        "^([0-5] [0-9]{6} $pad é<&>[.]|([0-5] )?end|[0-5] )$"
    check "nor one of standard error" empty_of "$work/errors" \
        "^([0-5] e[0-9]{6} $pad|tprun: waiting.*)$"
    check "none is lost, and their order kept" [ "$(awk '
        / 0/ { if ($2 + 0 != next_of[$1]++) print "rank", $1, "line", $2 }
        / e/ { if (substr($2, 2) + 0 != error_of[$1]++) print "rank", $1, $2 }
        END { for (rank in next_of) print next_of[rank], error_of[rank] }' \
        <(grep '^. [0-9]' "$work/lines") <(grep '^. e' "$work/errors") |
        sort | uniq -c | tr -s ' ')" = " 6 20000 100" ]
    # The last one dies when all that the others have written is here: what mpirun
    # itself has not passed on when the job ends it may throw away.
    file=$("$nethosts" directory)/all
    : >"$work/out"
    { until [ "$(grep -c '^all$' "$work/out")" = 2 ]; do sleep 0.1; done
      : >"$file"; } &
    # shellcheck disable=SC2016
    on host1 60 "$tprun" --host $three sh -c 'test $PMIX_RANK = 2 || {
        seq 20000; echo all; exec sleep 600; }
        until test -e "$0"; do sleep 0.1; done
        echo last; kill -9 $$' "$file"
    kill $! 2>/dev/null
    check "all was passed on when one died" [ "$status $(wc -l <<<"$out") \
$(grep -c '^all$' <<<"$out") $(grep -c '^last$' <<<"$out")" = "137 40003 2 1" ]
    # On a terminal a question appears before its line ends.
    file=$("$nethosts" directory)
    mkfifo "$work/keys"
    # shellcheck disable=SC2016
    echo 'test $PMIX_RANK = 0 || exec sleep 3; printf "name? "; read name
        echo "hello $name"' >"$file/ask"
    "$nethosts" exec host1 timeout 240 script -q -e -f "$file/prompt" \
        -c "$tprun --host host2,host3 sh $file/ask" <"$work/keys" >/dev/null &
    exec 9>"$work/keys"
    for _ in $(seq 1200); do
        ! grep -q 'name?' "$file/prompt" 2>/dev/null || break
        sleep 0.1
    done
    out=$(cat "$file/prompt")
    err=''
    check "a question without newline" holds "$out" 'name[?] $'
    echo you >&9
    wait $!
    status=$? out=$(cat "$file/prompt")
    exec 9>&-
    check "and its answer" ended 0 'hello you' ''
}

# empty_of FILE PATTERN: all its lines are like that.
empty_of() { [ "$(grep -v -c -E -e "$2" "$1")" = 0 ]; }

jobs_explain()
{
    on host1 20 "$tprun" --host $three --explain --require net:ofi:tcp \
        "$mourn" well
    check "--explain" ended 0 '' 'rank 0 .host1.*rank 2 .host3.*other host'
    check "--explain names the path" holds "$err" 'ofi:tcp .*chosen'
    on host1 20 "$tprun" --host $three --require net:shm "$mourn" well
    check "--require" ended 1 '' "$refused"
    check "--require, once" [ "$(grep -c "ended the job" <<<"$err")" = 1 ]
    check "--require ends who does not listen" spoken 1 \
        'rank [0-2]: no backend reaches the peer' "$refused" \
        on host1 20 "$tprun" --host $three --require net:shm "$mourn" deaf
    on host1 20 env TP_REQUIRE=net:shm "$tprun" --host $three "$mourn" well
    check "TP_REQUIRE" ended 9 '' 'TP_REQUIRE wants shm for class net'
}

jobs_fail()
{
    on host1 30 "$tprun" --host $three "$mourn" kill
    check "a remote rank is killed" ended 137 '^' 'was killed by signal 9'
    check "the first cause" told '^tprun: rank 2 on host3 \(pid [0-9]+\) was '
    on host1 30 "$tprun" --host $three --keep-going "$mourn" kill
    check "--keep-going" ended 137 'rank 1: the peer died' 'rank 2 on host3'
    check "the peers were told" [ "$(grep -c 'cut off after' <<<"$out")" = 2 ]
    on host1 30 "$tprun" --host $three "$mourn" abort
    check "tp_abort" ended 42 '^' \
        'rank 2 on host3 .*status 42: the disk of this node is full$'
    on host1 30 "$tprun" --host $three --keep-going "$mourn" abort
    check "tp_abort, --keep-going" ended 42 '^' \
        'rank 2 on host3 .*status 42: the disk of this node is full$'
    on host1 30 "$tprun" --host $three "$mourn" leave
    check "no tp_finalize" ended 1 '^' 'rank 2 on host3 .* without tp_finalize'
    on host1 30 "$tprun" --host $three --keep-going "$mourn" leave
    check "no tp_finalize, --keep-going" ended 1 'rank 0: the peer died' \
        'rank 2 on host3 .* without tp_finalize'
    # shellcheck disable=SC2016
    on host1 30 "$tprun" --host $three sh -c \
        'test $PMIX_RANK = 1 && exit 7; sleep 600'
    check "an exit status" ended 7 '' ''"rank 1 on host2 .*status 7"
    on host1 30 "$tprun" --host host2,host3 ./nothing
    check "no such program" ended 127 '' ': ./nothing: no such program'
    on host1 30 "$tprun" --host host2,host3 --keep-going ./nothing
    check "no such program, --keep-going" ended 127 '' \
        'rank 1 on host3: ./nothing: no such program'
    on host1 30 "$tprun" --host host2 --wdir /nonexistent true
    check "no such directory" [ "$status" = 2 ]
    on host1 30 "$tprun" --host $three --timeout 1 sleep 600
    check "--timeout" ended 124 '^' 'longer than --timeout 1; '
    check "nothing is left" nobody host1 host2 host3
}

jobs_killed()
{
    local signal
    for signal in TERM KILL; do
        "$nethosts" exec host1 "$tprun" --host $three sleep 600 2>/dev/null &
        for _ in $(seq 600); do
            ! "$nethosts" exec host3 pgrep -x sleep >/dev/null || break
            sleep 0.1
        done
        "$nethosts" exec host1 pkill -"$signal" -x tprun
        wait $! 2>/dev/null
        status=$?
        check "SIG$signal ends the job" [ "$status" -ge 128 ]
        check "nothing is left after SIG$signal" nobody host1 host2 host3
    done
}

# More than tprun holds, and a pipe that nobody reads: it ends all the same, with
# its last line and without a piece of what goes between it and its ranks.
nobody_reads()
{
    local how file
    file=$("$nethosts" directory)/pipe
    mkfifo "$file"
    exec 8<>"$file"
    for how in timeout signal; do
        set --
        [ $how = signal ] || set -- --timeout 20
        "$nethosts" exec host1 timeout 200 "$tprun" --host $three "$@" yes \
            >&8 2>"$work/err" </dev/null 8>&- &
        if [ $how = signal ]; then
            for _ in $(seq 600); do
                ! "$nethosts" exec host3 pgrep -x yes >/dev/null || break
                sleep 0.1
            done
            sleep 3
            "$nethosts" exec host1 pkill -TERM -x tprun
        fi
        wait $!
        status=$?
        : >"$work/out"
        was_said
        set -- 143 'signal 15 .SIGTERM. ended the job'
        [ $how = signal ] || set -- 124 'the job ran longer than --timeout'
        check "nobody reads, and a $how" ended "$1" '' "^tprun: $2"
        check "in one line after a $how" [ "$(wc -l <<<"$err")" = 1 ]
    done
    exec 8>&-
}

# all_up HOST COUNT: within a minute so many sleep there, and tprun knows of all
# ranks: a word of theirs is behind tprun-rank's own.
all_up()
{
    for _ in $(seq 600); do
        [ "$(grep -c '^up$' "$work/out")" != 3 ] ||
            [ "$("$nethosts" exec "$1" pgrep -x -c sleep)" != "$2" ] || break
        sleep 0.1
    done
}

# Its ranks tell nothing any more, and neither do mpirun's own words.
a_helper_is_killed()
{
    : >"$work/out"
    "$nethosts" exec host1 timeout 200 "$tprun" --host $three sh -c \
        'setsid sleep 600 & echo up; exec sleep 600' \
        >"$work/out" 2>"$work/err" </dev/null &
    all_up host2 2
    "$nethosts" exec host2 pkill -KILL -x "$1"
    wait $!
    status=$?
    was_said
    check "$1 is killed" ended 143 '^up$' \
        '^tprun: rank [02] .*[(]SIGTERM[)]; rank 1 on host2 .* without a word$'
    check "nothing is left after $1" nobody host1 host2 host3
}

# The others may go on, and mpirun says nothing of it.
a_helper_is_killed_of_many()
{
    # shellcheck disable=SC2016 # for the inner shell
    on host1 60 "$tprun" --host $three --keep-going sh -c \
        'test $PMIX_RANK != 1 || kill -KILL $PPID; sleep 2; echo $PMIX_RANK on'
    check "tprun-rank is killed, --keep-going" ended 137 '^[02] on' \
        '^tprun: rank 1 on host2 .* signal 9 .SIGKILL., with its tprun-rank'
    check "the others end well" [ "$(grep -c ' on$' <<<"$out")" = 2 ]
    check "nothing is left, --keep-going" nobody host1 host2 host3
}

# One job waits for nothing but the engine; of the other, a rank that lives ends
# it first, and mpirun has to be killed, for its daemon there never answers.
a_host_crashes()
{
    local file waits host
    file=$("$nethosts" directory)/crashed
    : >"$work/out"
    # shellcheck disable=SC2016 # for the inner shell
    "$nethosts" exec host1 timeout 200 "$tprun" --host $three sh -c \
        'test $PMIX_RANK = 0 || exec sleep 600
        until test -e "$0"; do sleep 0.1; done; exit 3' "$file" \
        >"$work/one" 2>&1 </dev/null &
    waits=$!
    "$nethosts" exec host1 env TP_HEARTBEAT=5s timeout 200 "$tprun" \
        --host $three sh -c 'echo up; exec sleep 601' \
        >"$work/out" 2>"$work/err" </dev/null &
    all_up host3 2
    "$nethosts" crash host3
    touch "$file"
    wait $!
    status=$?
    was_said
    check "a host crashed" ended 143 '^up$' \
        '^tprun: rank [01] .*[(]SIGTERM[)]; rank 2 on host3 .* without a word$'
    wait $waits
    status=$? out='' err=$(cat "$work/one")
    check "and a rank ends the job" ended 3 '' '^tprun: rank 0 .*status 3$'
    check "nothing is left of a host that crashed" nobody host1 host2
}

hosts_are_wrong()
{
    on host1 60 "$tprun" --host host2,nowhere hostname
    check "an unknown host" ended 1 '' '^tprun: nowhere: .*; put it into'
    on host1 20 "$tprun" --host fd77::2 hostname
    check "an address that mpirun does not take" ended 2 '' \
        'fd77::2: --engine openmpi takes no IPv6 addresses'
    on host1 20 "$tprun" --host me@host2,you@host3 hostname
    check "two users" ended 2 '' 'takes one user'
    on host1 20 env PATH=/nowhere "$tprun" --host host2 /bin/hostname
    check "no engine" ended 2 '' 'host2 is not this machine.*install'
    on host1 90 "$tprun" --host host2,host3 hostname
    check "a host that is down" ended 1 '' '^tprun: host3: '
    check "of which only that one is named" [ \
        "$(grep -c '^tprun: host' <<<"$err")" = 1 ]
}

# On one host there is no room for files, or no descriptor, or all is read-only.
a_host_lacks_something()
{
    "$nethosts" exec host3 sh -c 'mount -o remount,size=64k /tmp
        yes >/tmp/yes 2>/dev/null'
    on host1 60 "$tprun" --host $three "$mourn" well
    check "a full /tmp is named" holds "$err" \
        "job's size: no room is left where its files are [(]/tmp/"
    "$nethosts" exec host3 sh -c 'rm /tmp/yes; mount -o remount,ro,bind /tmp'
    on host1 60 "$tprun" --host $three "$mourn" well
    check "a read-only /tmp" holds "$err" \
        '^tprun: host3: nothing can be written to /tmp, where Open MPI'
    check "and nothing else is wrong" [ "$(grep -c '^tprun: ' <<<"$err")" = 1 ]
    "$nethosts" exec host3 sh -c 'mount -o remount,rw,bind /tmp
        mount -o remount,size=50% /tmp'
    # shellcheck disable=SC2016 # for the inner shell
    on host1 60 env TP_LOG=peer=info "$tprun" --host host2,host3 --keep-going \
        sh -c 'test $PMIX_RANK = 0 || ulimit -n 32; exec "$0" talk' \
        "$build/tests/hosts/rank"
    check "it is the peer that has no descriptors" holds "$err" \
        '10[.]77[.]0[.]3:[0-9]*: it answers: .*Too many open files'
    check "nothing is left there" nobody host1 host2 host3
}

mpirun_itself()
{
    on host1 40 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        mpirun.openmpi --host $three "$mourn" well
    check "mpirun without tprun" ended 0 '' ''
    on host1 40 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        mpirun.openmpi --host $three "$mourn" abort
    check "tp_abort without tprun" holds "$err" 'tp: rank 2 ended the job'
}

# host2 cannot call host3, and host3 waits for anybody; so host2 has it called.
one_way_only()
{
    "$nethosts" exec host3 nft -f - <<'END'
table inet tp { chain in { type filter hook input priority 0; }; }
add rule inet tp in ip saddr 10.77.0.2 tcp flags & (syn | ack) == syn drop
add rule inet tp in ip6 saddr fd77::2 tcp flags & (syn | ack) == syn drop
END
    on host1 60 "$tprun" --host host2,host3 "$build/tests/hosts/rank" knock
    check "a peer that can only call is asked to" ended 0 \
        'rank 1 via ofi:tcp' ''
    # The same without an engine: ranks whose networks are not tprun's.
    # shellcheck disable=SC2016 # for the inner shell
    timeout 240 "$tprun" -n 2 sh -c 'exec "$0" exec host$((PMIX_RANK + 2)) "$@"' \
        "$nethosts" "$build/tests/hosts/rank" knock \
        >"$work/out" 2>"$work/err" </dev/null
    status=$? out=$(cat "$work/out") err=$(cat "$work/err")
    check "a peer in another network is asked, too" ended 0 \
        'rank 1 via ofi:tcp' ''
    "$nethosts" exec host3 nft delete table inet tp
    # shellcheck disable=SC2016
    timeout 240 "$tprun" -n 3 sh -c 'exec "$0" exec host$((PMIX_RANK + 1)) "$@"' \
        "$nethosts" "$mourn" never >"$work/out" 2>"$work/err" </dev/null
    status=$? out=$(cat "$work/out") err=$(cat "$work/err")
    check "one of another network leaves before it is met" ended 0 \
        'closed by the peer' ''
    check "both hear of it there" \
        [ "$(grep -c 'has left the job' <<<"$out")" = 2 ]
}

# ssh gets through, and no daemon to mpirun; which waits, and so does tprun.
a_firewall()
{
    refuses 1 drop 'iifname eth0 tcp dport 1024-65535'
    on host1 100 "$tprun" --host host2,host3 hostname
    check "a firewall that only ssh gets through" ended 1 '' \
        'did not start a rank .*daemons do not call back: does a firewall'
    "$nethosts" exec host1 nft delete table inet tp
}

only_ipv6()
{
    on host1 40 "$tprun" --host host2,host3 "$ring"
    check "IPv6 alone" ended 0 'every byte right;.*over ofi:tcp' ''
}

inside=${1:-}
case $inside in
'')
    if ! reason=$("$nethosts" check 2>&1); then
        skip hosts "$reason"
    elif ! command -v mpirun.openmpi >/dev/null; then
        skip openmpi "not installed (apt-get install openmpi-bin)"
    elif ! command -v nft >/dev/null; then
        skip hosts "needs nft (apt-get install nftables)"
    else
        export NH_SHARE=$work HOSTS_RESULTS=$work/results
        "$nethosts" run 3 "$self" inside || fail "no end inside: $?"
        NH_IP=6 "$nethosts" run 3 "$self" ipv6 || fail "no end with IPv6: $?"
    fi
    finish ;;
inside)
    jobs_end_well
    lines_stay_whole
    jobs_explain
    jobs_fail
    jobs_killed
    nobody_reads
    a_host_lacks_something
    mpirun_itself
    one_way_only
    a_firewall
    a_helper_is_killed tprun-rank
    a_helper_is_killed orted
    a_helper_is_killed_of_many
    a_host_crashes
    hosts_are_wrong ;;
ipv6) only_ipv6 ;;
esac
cat "$work/results" >>"$HOSTS_RESULTS"
