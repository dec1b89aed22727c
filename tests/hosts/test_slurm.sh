#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Jobs in an allocation of Slurm: by tprun, and by srun itself.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
# shellcheck source=tests/hosts/hosts.sh
. "${TP_TEST_SOURCE:-.}/tests/hosts/hosts.sh"
self=$source/tests/hosts/test_slurm.sh
refused='^tprun: rank . on host. .*ended the job with status 1: no '
refused+='backend reaches rank .* on host.*TP_REQUIRE wants shm for class net'

# here SECONDS COMMAND...: as on(), for we run on host1 already.
here()
{
    local limit=$(($1 * 4))
    shift
    timeout -k 5 "$limit" "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
    was_said
}

# In an allocation of 3 nodes.
jobs()
{
    here 40 "$tprun" -n 3 "$ring"
    check "ring over ofi:tcp" ended 0 'every byte right;.*over ofi:tcp' ''
    # shellcheck disable=SC2016 # for the inner shell
    here 20 "$tprun" -n 3 sh -c \
        '[ "$PMIX_RANK" = 2 ] && sleep 0.3; "$0" ring 1 && "$0" ring 2' \
        "$build/tests/launcher/doors"
    check "several programs of a rank" ended 0 '' ''
    here 20 "$tprun" -n 6 hostname
    check "even blocks" [ "$(sort <<<"$out" | uniq -c | tr -s ' \n' ' ')" \
        = " 2 host1 2 host2 2 host3 " ]
    here 20 "$tprun" --host host3:2,host2 --tag hostname
    check "hosts in their order" ended 0 '^0: host3$' ''
    check "and the slots" holds "$out" '^2: host2$'
    here 20 "$tprun" -n 3 --explain --require net:ofi:tcp "$mourn" well
    check "--explain" ended 0 '' 'rank 0 .host1.*rank 2 .host3.*other host'
    here 20 "$tprun" -n 3 --require net:shm "$mourn" well
    check "--require" ended 1 '' "$refused"
    check "--require, once" [ "$(grep -c "ended the job" <<<"$err")" = 1 ]
    check "--require ends who does not listen" spoken 1 \
        'rank [0-2]: no backend reaches the peer' "$refused" \
        here 20 "$tprun" -n 3 --require net:shm "$mourn" deaf
    here 20 env TP_REQUIRE=net:shm "$tprun" -n 3 "$mourn" well
    check "TP_REQUIRE" ended 9 '' 'TP_REQUIRE wants shm for class net'
    check "a remote rank is killed" spoken 137 'rank 0: the peer died' \
        '^tprun: rank 2 on host3 .*signal 9' here 20 "$tprun" -n 3 "$mourn" kill
    here 20 "$tprun" -n 3 "$mourn" abort
    check "tp_abort" ended 42 '^' \
        'rank 2 on host3 .*status 42: the disk of this node is full$'
    # shellcheck disable=SC2016 # for the inner shell
    here 20 "$tprun" -n 3 sh -c 'test $PMIX_RANK = 1 && exit 7; sleep 600'
    check "an exit status" ended 7 '' '^tprun: rank 1 on host2 .*status 7'
    check "in one line" told 'status 7'
    here 20 "$tprun" -n 3 ./nothing
    check "no such program" ended 127 '' ': ./nothing: no such program'
    here 20 "$tprun" -n 3 --timeout 1 sleep 600
    check "--timeout" ended 124 '^' 'longer than --timeout 1; '
    here 20 "$tprun" -n 3 --keep-going true
    check "--keep-going is refused" ended 2 '' \
        '--keep-going: not with --engine slurm'
    here 20 "$tprun" --host nowhere true
    check "a host outside of the allocation" ended 1 '' 'not available'
    here 40 srun --mpi=pmix -n 3 "$mourn" well
    check "srun without tprun" ended 0 '' ''
    here 20 srun --mpi=pmix -n 3 "$mourn" abort
    check "tp_abort without tprun" holds "$err" 'tp: rank 2 ended the job'
}

# host1 cannot call host2, but the other way round.  Slurm's PMIx carries no
# word from rank to rank: who is not told and opens no pipe himself is not met.
one_way_only()
{
    local address rank=$build/tests/hosts/rank
    # Slurm's own goes by slurmd's port then.
    export SLURM_PMIX_DIRECT_CONN=false
    nft add table inet tp
    nft 'add chain inet tp out { type filter hook output priority 0; }'
    for address in 'ip daddr 10.77.0.2' 'ip6 daddr fd77::2'; do
        nft add rule inet tp out "$address" tcp dport 32768-65535 \
            'tcp flags & (syn | ack) == syn drop'
    done
    here 40 "$tprun" --host host1,host2 "$rank" talk
    check "either side may begin" ended 0 'rank 1 via ofi:tcp' ''
    here 40 env TP_CONNECT_TIMEOUT=15s TP_LOG=warn,peer=info \
        "$tprun" --host host1,host2 "$rank" knock
    check "who cannot be asked to call" ended 1 '' \
        'did it connect to us, and this launcher cannot ask it to'
    nft delete table inet tp
    unset SLURM_PMIX_DIRECT_CONN
}

signals()
{
    local signal
    for signal in TERM KILL; do
        "$tprun" -n 3 sleep 600 2>/dev/null &
        for _ in $(seq 600); do
            [ "$(squeue -h -s -o %i | grep -c '\.[0-9]')" -eq 0 ] || break
            sleep 0.1
        done
        kill -"$signal" $!
        wait $! 2>/dev/null
        status=$?
        check "SIG$signal ends the job" [ "$status" -ge 128 ]
        for _ in $(seq 600); do
            out=$(squeue -h -s -o %i | grep '\.[0-9]')
            [ -n "$out" ] || break
            sleep 0.1
        done
        check "no step is left after SIG$signal" [ -z "$out" ]
    done
}

# srun says so, and goes on.
a_helper_is_killed()
{
    : >"$work/err"
    timeout 200 "$tprun" -n 3 --verbose sleep 600 >"$work/out" 2>"$work/err" \
        </dev/null &
    for _ in $(seq 600); do
        ! grep -q '^tprun: rank 1 on host2 .* runs$' "$work/err" || break
        sleep 0.1
    done
    ssh host2 pkill -KILL -x tprun-rank
    wait $!
    status=$?
    was_said
    check "a tprun-rank is killed" ended 137 '' \
        '^tprun: rank 1 on host2 .*signal 9 .*srun says: Killed'
}

# As most jobs are run: by a script that waits in the queue and has nobody at
# its terminal.
batch()
{
    cat >"$work/job.sh" <<SCRIPT
#!/bin/bash
#SBATCH --nodes=3 --ntasks-per-node=2
#SBATCH --output=$work/batch.out --error=$work/batch.err
"$tprun" hostname | sort | uniq -c | tr -s ' \n' ' '
"$tprun" -n 3 "$ring" || exit
"$tprun" -n 3 --tag "$mourn" kill
echo "tprun's status: \$?" >&2
"$tprun" --timeout 1 sleep 600
exit 5
SCRIPT
    here 90 sbatch -Q --wait "$work/job.sh"
    check "sbatch has the status of its script" [ "$status" = 5 ]
    out=$(cat "$work/batch.out") err=$(cat "$work/batch.err")
    check "as many ranks as tasks of the script" \
        holds "$out" '^ *2 host1 2 host2 2 host3 '
    check "ring in a script" holds "$out" 'every byte right;.*over ofi:tcp'
    check "a death in a script" holds "$err" \
        '^tprun: rank 2 on host3 .*signal 9'
    check "its status" holds "$err" "^tprun's status: 137$"
    check "--timeout in a script" holds "$err" 'longer than --timeout 1; '
}

case ${1:-} in
'')
    if ! reason=$("$source/tests/hosts/slurm.sh" check 2>&1); then
        skip slurm "$reason"
    elif ! command -v nft >/dev/null; then
        skip slurm "needs nft (apt-get install nftables)"
    else
        export NH_SHARE=$work HOSTS_RESULTS=$work/results
        "$source/tests/hosts/slurm.sh" run 3 "$self" inside
    fi
    finish ;;
inside)
    salloc -Q -N 3 "$self" allocated
    here 20 salloc -Q -n 5 "$tprun" hostname
    check "as many ranks as tasks" [ "$(wc -l <<<"$out")" = 5 ]
    batch ;;
allocated)
    jobs
    one_way_only
    a_helper_is_killed
    signals ;;
esac
cat "$work/results" >>"$HOSTS_RESULTS"
