#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Several make-believe hosts on one Linux machine, for tests across hosts.
#
# usage: nethosts.sh check             can this machine do it?  1 and why if not
#        nethosts.sh run N CMD...      make host1 ... hostN, run CMD beside them,
#                                      remove all of it; CMD's exit status
#   and within CMD:
#        nethosts.sh exec HOST CMD...  run CMD on HOST, without ssh
#        nethosts.sh crash HOST        power failure: cables out, then SIGKILL
#                                      for all on HOST, so nobody says goodbye
#        nethosts.sh link HOST up|down [NIC]
#                                      plug in or pull a network cable (eth0)
#        nethosts.sh nic HOST NIC NETWORK ADDRESS...
#                                      one more card, as eth7, on a network that
#                                      is made if there is none of that name
#        nethosts.sh bridge HOST NAME ADDRESS...
#                                      a bridge that ends in HOST, like docker0
#        nethosts.sh rate HOST RATE|off [NIC]
#                                      cap what HOST sends, as in 1gbit
#        nethosts.sh list              what is up
#        nethosts.sh directory         a place for files that goes with it
#
# A host is one set of namespaces held by its own process 1: network (eth0 with
# 10.77.0.K and fd77::K, eth1 with 10.77.1.K and fd77:0:0:1::K, ...), host name,
# processes, IPC, and of the files /proc, /sys, /dev/shm, /tmp, /run,
# /etc/hosts, machine-id and boot_id.  All other files are shared, as on a
# cluster with a common file system.  sshd runs on each; "ssh host2 CMD" works
# from any of them without a prompt, as root and as the user "guest".
#
# All hosts live in one more set of namespaces made for this run.  So nothing
# of it has a name outside, runs do not meet, and whatever is killed in
# whatever way, the kernel takes all of it away.
#
# environment: NH_NICS       network interfaces of each host            (1)
#              NH_IP         4, 6 or 46: which addresses they have      (46)
#              NH_SHM        size of each /dev/shm                      (1g)
#              NH_SHARE      colon list of directories under /tmp that all
#                            hosts see (this one and TP_TEST_* always do)
#              NH_SAME_ID=1  keep the machine's boot_id and machine-id
#
# needs: root, bash, util-linux, iproute2, openssh-server
set -euo pipefail

NH_NICS=${NH_NICS:-1}
NH_IP=${NH_IP:-46}
self=$(readlink -f "$0")

# In the world's own memory file system, which hides what is there otherwise;
# so not one in which we work.
NH_DIR=/mnt/nethosts
case "$PWD:${TP_TEST_BUILD:-}:${TP_TEST_SOURCE:-}" in
*/mnt/*) NH_DIR=/srv/nethosts ;;
esac

die()
{
    echo "nethosts: $*" >&2
    exit 1
}

pid_of() { cat "$NH_DIR/$1/pid" 2>/dev/null || true; }

alive()
{
    local pid
    pid=$(pid_of "$1")
    [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null
}

check_host() { alive "$1" || die "$1 is not up"; }

# until_true TENTHS COMMAND...
until_true()
{
    local tries=$(($1 * 5))
    shift
    while ! "$@"; do
        [ $((tries--)) -gt 0 ] || return 1
        sleep 0.02
    done
}

# ---- what it takes ----------------------------------------------------------

cmd_check()
{
    local tool
    [ "$(id -u)" = 0 ] || die "needs root"
    for tool in unshare nsenter setpriv ip tc ssh ssh-keygen /usr/sbin/sshd; do
        command -v "$tool" >/dev/null ||
            die "needs $tool (apt-get install iproute2 openssh-server)"
    done
    unshare --net --mount --uts --ipc --pid --fork --kill-child sh -c '
        mount -t tmpfs tmpfs /mnt && ip link add br0 type bridge &&
        ip link add veth0 type veth peer name veth1' >/dev/null 2>&1 ||
        die "the kernel does not let this process make namespaces, mounts," \
            "bridges or veth pairs (a container needs --privileged)"
}

# ---- one host ---------------------------------------------------------------

# Process 1 of a host, until it becomes sshd.
host_init()
{
    local h=$1 d=$NH_DIR/$1
    hostname "$h"
    host_mounts "$d"
    # The outside plugs in the cable, then drops this file.
    until_true 600 [ -e "$d/go" ] || die "$h: no network"
    cd /
    exec /usr/sbin/sshd -D -f "$d/sshd_config" -E "$d/sshd.log"
}

host_mounts()
{
    local d=$1 dir
    mount -t tmpfs -o "mode=1777,size=${NH_SHM:-1g}" tmpfs /dev/shm
    # A private /tmp that still shows the directories that must be common.
    mount -t tmpfs -o mode=1777 tmpfs "$d/tmp"
    local IFS=:
    for dir in $NH_SHARE; do
        case $dir in /tmp/?*) ;; *) continue ;; esac
        mkdir -p "$d/tmp${dir#/tmp}"
        mount --bind "$dir" "$d/tmp${dir#/tmp}"
    done
    mount --rbind "$d/tmp" /tmp
    mount -t tmpfs -o mode=755 tmpfs /run
    mkdir /run/sshd
    # The interfaces under /sys are those of the one who mounts it.
    mount --rbind /sys/fs/cgroup "$d/cgroup"
    mount -t sysfs sysfs /sys
    mount --rbind "$d/cgroup" /sys/fs/cgroup
    mount --bind "$d/hostname" /etc/hostname
    [ -n "${NH_SAME_ID:-}" ] || host_identity "$d"
}

host_identity()
{
    mount --bind "$1/boot_id" /proc/sys/kernel/random/boot_id
    [ ! -e /etc/machine-id ] || mount --bind "$1/machine-id" /etc/machine-id
}

host_files()
{
    local h=$1 d=$NH_DIR/$1
    mkdir -p "$d/tmp" "$d/cgroup"
    echo "$h" >"$d/hostname"
    cat /proc/sys/kernel/random/uuid >"$d/boot_id"
    tr -d - </proc/sys/kernel/random/uuid >"$d/machine-id"
    ssh-keygen -q -t ed25519 -N '' -C "$h" -f "$d/host_key"
    echo "$h,10.77.*,fd77:* $(cut -d' ' -f1,2 "$d/host_key.pub")" \
        >>"$NH_DIR/known_hosts"
    cat >"$d/sshd_config" <<CONF
Port 22
HostKey $d/host_key
PidFile $d/sshd.pid
AuthorizedKeysFile $NH_DIR/user_key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
# A shell that is not the outermost one: bash leaves ~/.bashrc alone, which may
# take long, print or fail where several begin at once.
SetEnv SHLVL=1
UsePAM no
UseDNS no
PrintMotd no
PrintLastLog no
MaxStartups 512
MaxSessions 512
Subsystem sftp internal-sftp
CONF
}

# One cable: NIC I of host K into bridge I.
host_plug()
{
    local k=$1 i=$2 pid=$3 in
    in="nsenter -t $pid -n --"
    ip link add "host$k-$i" type veth peer name "eth$i" netns "$pid"
    ip link set "host$k-$i" master "br$i" up
    case $NH_IP in *4*) $in ip addr add "10.77.$i.$k/24" dev "eth$i" ;; esac
    case $NH_IP in *6*)
        $in ip addr add "fd77:0:0:$i::$k/64" dev "eth$i" nodad ;;
    esac
    $in ip link set "eth$i" up
}

other_network()
{
    local ns
    ns=$(readlink "/proc/$1/ns/net" 2>/dev/null) || return 1
    [ "$ns" != "$(readlink /proc/self/ns/net)" ]
}

host_born()
{
    pid=$(cat "/proc/$1/task/$1/children" 2>/dev/null || true)
    pid=${pid%% *}
    [ -n "$pid" ] && other_network "$pid"
}

host_make()
{
    local k=$1 h=host$1 d=$NH_DIR/host$1 pid='' i
    host_files "$h"
    setsid unshare --net --mount --uts --ipc --pid --fork --kill-child \
        --mount-proc "$self" _host "$h" </dev/null >"$d/init.log" 2>&1 &
    until_true 600 host_born $! || die "$h: $(cat "$d/init.log")"
    echo "$pid" >"$d/pid"
    nsenter -t "$pid" -n -- ip link set lo up
    for i in $(seq 0 $((NH_NICS - 1))); do host_plug "$k" "$i" "$pid"; done
    : >"$d/go"
}

host_listens()
{
    alive "$1" || return 0
    nsenter -t "$(pid_of "$1")" -n -- ss -Hltn 'sport = :22' | grep -q .
}

# ---- the world around them --------------------------------------------------

# Process 1 of the world: N CMD...
world_init()
{
    local n=$1 k
    shift
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    mount -t tmpfs -o mode=755 tmpfs "${NH_DIR%/*}"
    mkdir -p "$NH_DIR/etc/ssh_config.d"
    ip link set lo up
    for k in $(seq 0 $((NH_NICS - 1))); do
        ip link add "br$k" type bridge
        ip link set "br$k" up
    done
    world_files "$n"
    for k in $(seq "$n"); do host_make "$k"; done
    for k in $(seq "$n"); do
        until_true 600 host_listens "host$k" || true
        alive "host$k" || die "host$k: $(cat "$NH_DIR/host$k/"*.log)"
    done
    "$@"
}

# Who is who, for all hosts: names, a key pair, one more user.
world_files()
{
    local k
    ssh-keygen -q -t ed25519 -N '' -C nethosts -f "$NH_DIR/user_key"
    : >"$NH_DIR/known_hosts"
    printf '127.0.0.1\tlocalhost\n::1\tlocalhost\n' >"$NH_DIR/etc/hosts"
    for k in $(seq "$1"); do
        case $NH_IP in *4*) printf '10.77.0.%s\thost%s\n' "$k" "$k" ;; esac
        case $NH_IP in *6*) printf 'fd77::%s\thost%s\n' "$k" "$k" ;; esac
    done >>"$NH_DIR/etc/hosts"
    { cat /etc/passwd && echo "guest:*:4242:4242::$NH_DIR/guest:/bin/bash"
    } >"$NH_DIR/etc/passwd"
    { cat /etc/group && echo "guest:*:4242:"; } >"$NH_DIR/etc/group"
    mkdir "$NH_DIR/guest"
    chown 4242:4242 "$NH_DIR/guest"
    cat >"$NH_DIR/etc/ssh_config.d/nethosts.conf" <<CONF
Host *
    IdentityFile $NH_DIR/user_key
    IdentitiesOnly yes
    UserKnownHostsFile $NH_DIR/known_hosts
    StrictHostKeyChecking yes
    BatchMode yes
    ConnectTimeout 30
    LogLevel ERROR
CONF
    for k in hosts passwd group; do
        mount --bind "$NH_DIR/etc/$k" "/etc/$k"
    done
    mount --bind "$NH_DIR/etc/ssh_config.d" /etc/ssh/ssh_config.d
}

cmd_run()
{
    local n=${1:-}
    if ! [[ $n =~ ^[0-9]+$ ]] || [ "$n" -lt 1 ] || [ "$n" -gt 250 ]; then
        die "run N CMD..., with N from 1 to 250"
    fi
    [ $# -gt 1 ] || die "run N CMD..."
    cmd_check
    export NH_SHARE="$PWD:${TP_TEST_BUILD:-}:${TP_TEST_SOURCE:-}:${NH_SHARE:-}"
    export NH_NICS NH_IP
    # Whoever dies, all below dies: this one's parent, this one, process 1.
    exec setpriv --pdeathsig KILL unshare --net --mount --uts --ipc --pid \
        --fork --kill-child --mount-proc "$self" _world "$@"
}

# ---- within it --------------------------------------------------------------

cmd_list()
{
    local d h
    for d in "$NH_DIR"/host[0-9]*; do
        h=${d##*/}
        if alive "$h"; then echo "$h up"; else echo "$h down"; fi
    done
}

cmd_directory() { echo "$NH_DIR"; }

cmd_exec()
{
    local h=$1
    shift
    check_host "$h"
    # shellcheck disable=SC2016 # for the inner shell
    exec nsenter -t "$(pid_of "$h")" -m -u -i -n -p -- \
        sh -c 'cd "$1" 2>/dev/null || cd /; shift; exec "$@"' sh "$PWD" "$@"
}

cmd_crash()
{
    local end
    check_host "$1"
    for end in $(ip -o link | grep -o " $1-[0-9]*"); do
        ip link set "$end" down
    done
    kill -9 "$(pid_of "$1")"
}

cmd_link()
{
    local nic=${3:-eth0}
    check_host "$1"
    ip link set "$1-${nic#eth}" "$2"
}

# host_addresses HOST NIC ADDRESS...
host_addresses()
{
    local in nic=$2 address
    in="nsenter -t $(pid_of "$1") -n --"
    shift 2
    for address; do
        case $address in
        *:*) $in ip addr add "$address" dev "$nic" nodad ;;
        *) $in ip addr add "$address" dev "$nic" ;;
        esac
    done
    $in ip link set "$nic" up
}

cmd_nic()
{
    local h=$1 nic=$2 network=$3 end
    check_host "$h"
    shift 3
    end=$h-${nic#eth}
    ip link add "$network" type bridge 2>/dev/null || true
    ip link set "$network" up
    ip link add "$end" type veth peer name "$nic" netns "$(pid_of "$h")"
    ip link set "$end" master "$network" up
    host_addresses "$h" "$nic" "$@"
}

# Something runs behind it, or it would count as down.
cmd_bridge()
{
    local h=$1 name=$2 in
    check_host "$h"
    shift 2
    in="nsenter -t $(pid_of "$h") -n --"
    $in ip link add "$name" type bridge
    $in ip link add "$name-in" type veth peer name "$name-out"
    $in ip link set "$name-in" master "$name" up
    $in ip link set "$name-out" up
    host_addresses "$h" "$name" "$@"
}

cmd_rate()
{
    local nic=${3:-eth0} pid
    check_host "$1"
    pid=$(pid_of "$1")
    nsenter -t "$pid" -n -- tc qdisc del dev "$nic" root 2>/dev/null || true
    [ "$2" = off ] || nsenter -t "$pid" -n -- tc qdisc add dev "$nic" root \
        tbf rate "$2" burst 256kb latency 50ms
}

case ${1:-} in
check | run | list | directory | exec | crash | link | nic | bridge | rate)
    command=cmd_$1
    shift
    "$command" "$@" ;;
_world) shift; world_init "$@" ;;
_host) host_init "$2" ;;
*)
    sed -n '/^# Several/,/^# needs/s/^# \{0,1\}//p' "$0"
    exit 2 ;;
esac
