#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Several make-believe hosts on one Linux machine, for tests between hosts.
#
#   nethosts.sh up [--ssh] N     host1 .. hostN, on one network
#   nethosts.sh nic HOST NIC NET ADDRESS...   one more card, on network NET
#   nethosts.sh bridge HOST NAME ADDRESS...   a bridge that ends in the host
#   nethosts.sh exec HOST COMMAND...          same directory and environment
#   nethosts.sh link HOST up|down [NIC]       the cable is in, or out
#   nethosts.sh rate HOST 1gbit|off [NIC]     caps what the host sends
#   nethosts.sh crash HOST       as a power failure: not a last packet
#   nethosts.sh down             removes everything
#   nethosts.sh list
#
# Each host is one set of namespaces, held by its own process 1:
#   network  eth0 with 10.77.0.K and fd77::K, further cards by `nic`; each is
#            plugged into a bridge that lives in a namespace of its own, so the
#            machine's real network is never touched, and no two runs meet
#   UTS, IPC, PID, mount   own name, /proc, /sys, /tmp, /dev/shm, /etc/hosts,
#            boot_id and machine-id; all other files are common, as in a cluster
# With --ssh each has an sshd, and "ssh host2 COMMAND" works from any of them
# without a question.
#
# All runs under a guard, which ends with the process NH_OWNER (default: who
# calls `up`) and takes everything with it, however either of them ended.
#
# environment: NH_DIR        keys, logs, process ids; one per run, required
#              NH_OWNER      process id of the owner
#              NH_NET        first three numbers of eth0's addresses (10.77.0)
#              NH_SHM        size of each /dev/shm (1g)
#              NH_SHARE      colon list of directories under /tmp that stay
#                            common (the current one and NH_DIR always do)
#              NH_SAME_ID=1  keep the machine's boot_id and machine-id
#
# needs: root; unshare, nsenter, setpriv (util-linux); iproute2; with --ssh
# openssh-server; the kernel's veth and bridge.
set -euo pipefail

NH_NET=${NH_NET:-10.77.0}
NH_SHM=${NH_SHM:-1g}
NH_DIR=${NH_DIR:-}

die() { echo "nethosts: $*" >&2; exit 1; }

# ---- processes ---------------------------------------------------------------

# Process 1 of a host, the holder of the switch, or the guard.
pid_of() { cat "$NH_DIR/$1/pid" 2>/dev/null || true; }

started() { cut -d' ' -f22 "/proc/$1/stat" 2>/dev/null; }

# A recorded pid counts only while it is the process that was recorded, since
# pids are reused, and not once it waits for its parent only.
alive()
{
    local pid
    pid=$(pid_of "$1")
    [ -n "$pid" ] &&
        [ "$(started "$pid")" = "$(cat "$NH_DIR/$1/start" 2>/dev/null)" ] &&
        [ "$(cut -d' ' -f3 "/proc/$pid/stat" 2>/dev/null)" != Z ]
}

remember()
{
    started "$2" >"$NH_DIR/$1/start"
    echo "$2" >"$NH_DIR/$1/pid"
}

# until_true SECONDS COMMAND...: false if it has not become true by then.
until_true()
{
    local end=$((SECONDS + $1 + 1))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.02
    done
}

# The outside's tools in the network namespace of NAME.
in_net()
{
    local name=$1
    shift
    nsenter -t "$(pid_of "$name")" -n -- "$@"
}

check_host() { alive "$1" || die "$1 is not up"; }

# Is it in a network namespace of its own already?
apart()
{
    local its
    its=$(readlink "/proc/$1/ns/net" 2>/dev/null) || return 1
    [ "$its" != "$(readlink /proc/self/ns/net)" ]
}

# ---- inside a new host, as its process 1 -------------------------------------

host_mounts()
{
    local host=$1 own=$NH_DIR/$1 dir

    mount --make-rprivate /
    mount -t tmpfs -o "mode=1777,size=$NH_SHM" tmpfs /dev/shm
    # A /sys that shows this network, and the control groups as before.
    mount --bind /sys/fs/cgroup "$own/cgroup"
    mount -t sysfs sysfs /sys
    mount --bind "$own/cgroup" /sys/fs/cgroup 2>/dev/null || true

    # A private /tmp that still shows the directories which must be common.
    mount -t tmpfs -o mode=1777 tmpfs "$own/tmp"
    local IFS=:
    for dir in $NH_DIR ${NH_SHARE:-}; do
        case $dir in /tmp/?*) ;; *) continue ;; esac
        mkdir -p "$own/tmp${dir#/tmp}"
        mount --bind "$dir" "$own/tmp${dir#/tmp}"
    done
    unset IFS
    mount --rbind "$own/tmp" /tmp

    mount --bind "$NH_DIR/etc/hosts" /etc/hosts
    mount --bind "$own/hostname" /etc/hostname
    if [ -n "${NH_SSH:-}" ]; then
        mount --bind "$NH_DIR/etc/ssh_config.d" /etc/ssh/ssh_config.d
    fi
    if [ -z "${NH_SAME_ID:-}" ]; then
        mount --bind "$own/boot_id" /proc/sys/kernel/random/boot_id
        [ ! -e /etc/machine-id ] ||
            mount --bind "$own/machine-id" /etc/machine-id
    fi
    hostname "$host"
}

# The shell stays process 1, and buries the orphans.
host_init()
{
    host_mounts "$1"
    : >"$NH_DIR/$1/mounted"
    until [ -e "$NH_DIR/$1/plugged" ]; do sleep 0.02; done
    cd /
    if [ -n "${NH_SSH:-}" ]; then
        /usr/sbin/sshd -D -f "$NH_DIR/$1/sshd_config" \
            -E "$NH_DIR/$1/sshd.log" &
    fi
    sleep infinity &
    wait
}

# ---- up ----------------------------------------------------------------------

# One key pair for the user; every host accepts it and knows all hosts' keys.
ssh_common()
{
    mkdir -p "$NH_DIR/etc/ssh_config.d" /run/sshd
    chmod 755 /run/sshd
    ssh-keygen -q -t ed25519 -N '' -C nethosts -f "$NH_DIR/user_key"
    : >"$NH_DIR/known_hosts"
    cat >"$NH_DIR/etc/ssh_config.d/nethosts.conf" <<END
Host host* $NH_NET.*
    User root
    IdentityFile $NH_DIR/user_key
    IdentitiesOnly yes
    UserKnownHostsFile $NH_DIR/known_hosts
    StrictHostKeyChecking yes
    BatchMode yes
    ConnectTimeout 5
    LogLevel ERROR
END
}

ssh_host()
{
    local host=$1 ip=$2 own=$NH_DIR/$1

    ssh-keygen -q -t ed25519 -N '' -C "$host" -f "$own/host_key"
    echo "$host,$ip $(cut -d' ' -f1,2 "$own/host_key.pub")" \
        >>"$NH_DIR/known_hosts"
    cat >"$own/sshd_config" <<END
Port 22
ListenAddress $ip
HostKey $own/host_key
PidFile $own/sshd.pid
AuthorizedKeysFile $NH_DIR/user_key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
UseDNS no
PrintMotd no
PrintLastLog no
MaxStartups 512
MaxSessions 512
AcceptEnv *
Subsystem sftp internal-sftp
END
}

ssh_listens() { in_net "$1" ss -Hltn 'sport = :22' | grep -q .; }

make_host()
{
    local host=host$1 own=$NH_DIR/host$1 holder pid

    mkdir -p "$own/tmp" "$own/cgroup"
    echo "$host" >"$own/hostname"
    cat /proc/sys/kernel/random/uuid >"$own/boot_id"
    tr -d - </proc/sys/kernel/random/uuid >"$own/machine-id"
    [ -z "${NH_SSH:-}" ] || ssh_host "$host" "$NH_NET.$1"
    # `unshare` stays outside as the parent of process 1; both die with us.
    setpriv --pdeathsig KILL unshare --net --mount --uts --ipc --pid --fork \
        --kill-child --mount-proc bash "$self" _host "$host" \
        </dev/null >"$own/log" 2>&1 &
    holder=$!
    until_true 20 test -e "$own/mounted" ||
        die "$host did not start: $(cat "$own/log")"
    pid=$(cat "/proc/$holder/task/$holder/children")
    remember "$host" "${pid%% *}"
    in_net "$host" ip link set lo up
    cmd_nic "$host" eth0 lan "$NH_NET.$1/24" "fd77::$1/64"
    : >"$own/plugged"
}

make_switch()
{
    mkdir -p "$NH_DIR/switch"
    setpriv --pdeathsig KILL unshare --net sleep infinity \
        </dev/null >/dev/null 2>&1 &
    until_true 20 apart $! || die "no network namespace"
    remember switch $!
}

owner_lives()
{
    [ "$(started "$NH_OWNER")" = "$1" ] && [ ! -e "$NH_DIR/end" ]
}

# Everything is a child of this process, and ends with it by its death signal.
guard()
{
    local count=$1 owner k

    trap 'exit 1' TERM INT HUP
    trap cleanup EXIT
    owner=$(started "$NH_OWNER")
    remember guard $$
    printf '127.0.0.1\tlocalhost\n::1\tlocalhost\n' >"$NH_DIR/etc/hosts"
    for k in $(seq "$count"); do
        printf '%s\thost%s\n' "$NH_NET.$k" "$k"
    done >>"$NH_DIR/etc/hosts"
    [ -z "${NH_SSH:-}" ] || ssh_common
    make_switch
    for k in $(seq "$count"); do make_host "$k"; done
    if [ -n "${NH_SSH:-}" ]; then
        for k in $(seq "$count"); do
            until_true 20 ssh_listens "host$k" ||
                die "sshd of host$k: $(cat "$NH_DIR/host$k/sshd.log")"
        done
    fi
    : >"$NH_DIR/ready"
    while owner_lives "$owner"; do sleep 0.2; done
}

names()
{
    local dir
    for dir in "$NH_DIR"/host[0-9]* "$NH_DIR"/switch; do
        [ ! -d "$dir" ] || echo "${dir##*/}"
    done | sort -V
}

cleanup()
{
    local name
    trap - EXIT
    for name in $(names); do
        if alive "$name"; then kill -9 "$(pid_of "$name")" || true; fi
    done
    wait 2>/dev/null || true
    rm -rf --one-file-system "$NH_DIR"
}

ready_or_over() { [ -e "$NH_DIR/ready" ] || ! kill -0 "$1" 2>/dev/null; }

cmd_up()
{
    [ "${1:-}" != --ssh ] || { NH_SSH=1; shift; }
    if ! [[ ${1:-} =~ ^[0-9]+$ ]] || [ "$1" -lt 1 ] || [ "$1" -gt 250 ]; then
        die "up N, with N from 1 to 250"
    fi
    [ "$(id -u)" = 0 ] || die "needs root"
    mkdir -p "$NH_DIR"
    [ -z "$(ls -A "$NH_DIR")" ] || die "$NH_DIR is not empty: in use?"
    mkdir -p "$NH_DIR/guard" "$NH_DIR/etc"
    NH_SHARE=$PWD:${NH_SHARE:-}
    NH_OWNER=${NH_OWNER:-$PPID}
    export NH_DIR NH_NET NH_SHM NH_SHARE NH_OWNER NH_SSH
    setsid bash "$self" _guard "$1" </dev/null >"$NH_DIR/guard/log" 2>&1 &
    until_true 120 ready_or_over $! || { kill $!; die "took too long"; }
    [ -e "$NH_DIR/ready" ] || die "the guard has ended"
}

cmd_down()
{
    local pid
    pid=$(pid_of guard)
    if alive guard; then
        : >"$NH_DIR/end"
        until_true 20 guard_over || kill -9 "$pid"
    fi
    rm -rf --one-file-system "$NH_DIR"
}

guard_over() { ! alive guard; }

# ---- the other commands --------------------------------------------------------

cmd_list()
{
    local name
    for name in $(names); do
        [ "$name" != switch ] || continue
        printf '%-8s %-12s %s\n' "$name" "$NH_NET.${name#host}" \
            "$(alive "$name" && echo "process $(pid_of "$name")" ||
               echo down)"
    done
}

# The switch end of a card is called HOST.NIC there; fifteen letters at most.
cmd_nic()
{
    local host=$1 nic=$2 net=$3 address
    shift 3
    check_host "$host"
    in_net switch ip link add "$net" type bridge 2>/dev/null || true
    in_net switch ip link set "$net" up
    in_net "$host" ip link add "$nic" type veth peer name "$host.$nic"
    in_net "$host" ip link set "$host.$nic" netns "$(pid_of switch)"
    in_net switch ip link set "$host.$nic" master "$net" up
    in_net "$host" ip link set "$nic" up
    for address; do add_address "$host" "$nic" "$address"; done
}

add_address()
{
    case $3 in
    *:*) in_net "$1" ip addr add "$3" dev "$2" nodad ;;
    *) in_net "$1" ip addr add "$3" dev "$2" ;;
    esac
}

# As docker0 and virbr0 with something running behind them.
cmd_bridge()
{
    local host=$1 name=$2 address
    shift 2
    check_host "$host"
    in_net "$host" ip link add "$name" type bridge
    in_net "$host" ip link add "$name.in" type veth peer name "$name.out"
    in_net "$host" ip link set "$name.in" master "$name" up
    in_net "$host" ip link set "$name.out" up
    in_net "$host" ip link set "$name" up
    for address; do add_address "$host" "$name" "$address"; done
}

cmd_exec()
{
    local host=$1
    shift
    check_host "$host"
    [ $# -gt 0 ] || set -- bash
    # shellcheck disable=SC2016 # for the inner shell
    exec nsenter -t "$(pid_of "$host")" -m -u -i -n -p -- \
        sh -c 'cd "$1" 2>/dev/null || cd /; shift; exec "$@"' sh "$PWD" "$@"
}

cmd_link()
{
    check_host "$1"
    case ${2:-} in
    up | down) in_net switch ip link set "$1.${3:-eth0}" "$2" ;;
    *) die "link HOST up|down [NIC]" ;;
    esac
}

cmd_rate()
{
    local nic=${3:-eth0}
    check_host "$1"
    in_net "$1" tc qdisc del dev "$nic" root 2>/dev/null || true
    [ "${2:-off}" = off ] ||
        in_net "$1" tc qdisc add dev "$nic" root tbf rate "$2" \
            burst 256kb latency 50ms
}

# First the cables, so that no dying kernel says goodbye.
cmd_crash()
{
    local end
    check_host "$1"
    for end in $(in_net switch ip -o link | grep -o " $1\.[^@:]*"); do
        in_net switch ip link set "$end" down
    done
    kill -9 "$(pid_of "$1")"
}

self=$(readlink -f "$0")
case ${1:-} in
up | down | list | exec | crash | link | rate | nic | bridge)
    [ -n "$NH_DIR" ] || die "NH_DIR must name a directory for this run"
    command=cmd_$1
    shift
    "$command" "$@"
    ;;
_guard) guard "$2" ;;
_host) host_init "$2" ;;
*)
    sed -n '3,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "$0"
    exit 2
    ;;
esac
