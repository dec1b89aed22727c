#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A Slurm cluster on the make-believe hosts of nethosts.sh, for tests.
#
# usage: slurm.sh check          can this machine do it?  1 and why if not
#        slurm.sh run N CMD...   make host1 ... hostN with a slurmd each, run
#                                CMD on host1, remove all of it; CMD's status
#
# CMD finds SLURM_CONF in its environment, so that srun, salloc and sinfo work.
# Keys, sockets, spool and log files all live in the world of nethosts.sh and
# end with it.  Each host says that it has CPUS_PER_NODE (8) processors.
#
# needs: what nethosts.sh needs, slurm-wlm, slurm-wlm-basic-plugins, munge,
# and libpmix-dev, since Slurm's PMIx plug-in loads libpmix.so by that name
set -euo pipefail

self=$(readlink -f "$0")
hosts=${self%/*}/nethosts.sh

die()
{
    echo "slurm: $*" >&2
    exit 1
}

cmd_check()
{
    local tool
    "$hosts" check
    for tool in slurmctld slurmd munged; do
        [ -x "/usr/sbin/$tool" ] ||
            die "needs $tool (apt-get install slurm-wlm munge)"
    done
    # shellcheck disable=SC2144 # one file or none
    [ -e /usr/lib/*/slurm-wlm/mpi_pmix.so ] ||
        die "Slurm lacks its PMIx plug-in" \
            "(apt-get install slurm-wlm-basic-plugins)"
    # shellcheck disable=SC2144
    [ -e /usr/lib/*/libpmix.so ] ||
        die "needs libpmix.so (apt-get install libpmix-dev)"
}

configuration()
{
    cat <<CONF
ClusterName=tp
SlurmctldHost=host1
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/run/munge.socket
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
TmpFS=$dir/tmp/%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=2
MinJobAge=60
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=host[1-$1] CPUs=${CPUS_PER_NODE:-8} RealMemory=2000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
CONF
}

idle()
{
    local n
    n=$(timeout 20 "$hosts" exec host1 sinfo -h -t idle -o %D 2>/dev/null)
    [ "$n" = "$1" ]
}

# The daemon of host K, and what it needs there.
host_up()
{
    local h=host$1
    mkdir -p "$dir/spool/$h" "$dir/tmp/$h"
    chmod 1777 "$dir/tmp/$h"
    # All of one kernel: one munged serves them all, by its socket.
    "$hosts" exec "$h" /usr/sbin/slurmd -N "$h" -f "$SLURM_CONF"
}

# In the world of the hosts.
world_up()
{
    local n=$1 k
    shift
    dir=$("$hosts" directory)/slurm
    export SLURM_CONF=$dir/slurm.conf
    mkdir -p "$dir/state" "$dir/run" "$dir/log"
    chmod 755 "$dir" "$dir/run"
    dd if=/dev/urandom of="$dir/munge.key" bs=1024 count=1 status=none
    chmod 400 "$dir/munge.key"
    configuration "$n" >"$SLURM_CONF"
    "$hosts" exec host1 /usr/sbin/munged --force --key-file "$dir/munge.key" \
        --socket "$dir/run/munge.socket" --pid-file "$dir/munged.pid" \
        --log-file "$dir/log/munged.log" --seed-file "$dir/munged.seed"
    "$hosts" exec host1 /usr/sbin/slurmctld -c -f "$SLURM_CONF"
    for k in $(seq "$n"); do host_up "$k"; done
    for k in $(seq 900); do
        ! idle "$n" || break
        [ "$k" -lt 900 ] || die "not up in 90 s: $(tail -n 5 "$dir"/*.log)"
        sleep 0.1
    done
    "$hosts" exec host1 "$@"
}

case ${1:-} in
check) cmd_check ;;
run)
    shift
    [ $# -gt 1 ] || die "run N CMD..."
    cmd_check
    n=$1
    shift
    exec "$hosts" run "$n" "$self" _world "$n" "$@" ;;
_world) shift; world_up "$@" ;;
*)
    sed -n '/^# A Slurm/,/^# and lib/s/^# \{0,1\}//p' "$0"
    exit 2 ;;
esac
