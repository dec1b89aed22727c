#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Runs a command where an RDMA device exists: as root, inside a throw-away QEMU
# guest that boots a stock Debian kernel, sees the host's file system at the
# same paths, and owns a software RDMA device (rdma_rxe, "soft-RoCE").  The
# host needs neither RDMA hardware nor an RDMA-capable kernel, and no KVM:
# plain emulation is enough.
#
#   rdma-vm.sh run [OPTION]... -- CMD [ARG]...
#   rdma-vm.sh setup             # fetch and cache the kernel for it
#   rdma-vm.sh ready             # can it run?  If not, says what is missing
#
# Options of `run`:
#   -C DIR     directory CMD starts in                        (default: $PWD)
#   -w DIR     let CMD write to this host directory; repeatable.  Everything
#              else of the host is readable, and writes to it are accepted but
#              live in guest memory and vanish with the guest.
#   -t SECS    kill everything after so many seconds, not counting a boot that
#              came to nothing and was tried again            (default: 300)
#   -m MIB     memory of each guest                           (default: 1024)
#   -c N       virtual CPUs of each guest        (default: 2; with -n 2: 1)
#   -n N       guests, 1 or 2.  Two guests share a private Ethernet segment,
#              both run CMD, and their output lines start with "[0] " / "[1] ".
#   -a ACCEL   auto, tcg or kvm                               (default: auto)
#   -v         show the guests' kernel messages on stderr
#
# CMD inherits the caller's environment and stdout/stderr (as pipes), has
# /dev/null as stdin, and finds these variables:
#   RDMA_VM_NODE     0 or 1            RDMA_VM_NODES    1 or 2
#   RDMA_VM_IP       this guest's IP address on the RDMA-capable interface
#   RDMA_VM_PEER_IP  the other guest's (with one guest: the same address)
#   RDMA_VM_IBDEV    rxe0              RDMA_VM_NETDEV   eth0
#
# When CMD ends, whatever it left running ends too.  With two guests, a CMD that
# fails gives the other one ten more seconds.
#
# Exit status: CMD's own (of two, the first that is not 0); 124 when the time
# ran out; 125 when the machinery itself failed, twice if that was before any
# CMD began; 126 when a guest froze: its kernel runs no process any more, on one
# of its processors at least, or keeps one that cannot even be killed.  The end
# of its console is printed then.
#
# Environment:
#   RDMA_VM_CACHE    where the kernel is kept   (default: ~/.cache/rdma-vm);
#                    remove that directory to move to a newer kernel
#   RDMA_VM_KERNEL   kernel meta-package        (default: linux-image-amd64)
#   RDMA_VM_MODULE   path of an extra .ko to load; RDMA_VM_DRIVER names the
#                    link type it brings        (default: rxe)
#
# `setup` downloads two packages with apt-get and unpacks them in the cache; it
# installs nothing.  `run` and `ready` need no network, and none need root.
#
# Good to know:
# - /dev, /proc, /sys and /run are the guest's own.
# - The emulated CPU has AVX2, not AVX-512: beware of -march=native.
# - libfabric's rxm provider sizes one completion queue for FI_UNIVERSE_SIZE
#   peers, 256 by default, which is more than rxe has to give: set it to 64.

set -u -o pipefail
shopt -s extglob

PATH=$PATH:/usr/sbin:/sbin

readonly PROG=${0##*/}
readonly CACHE=${RDMA_VM_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/rdma-vm}
readonly KERNEL_PKG=${RDMA_VM_KERNEL:-linux-image-amd64}
readonly DRIVER=${RDMA_VM_DRIVER:-rxe}
readonly EXTRA_MODULE=${RDMA_VM_MODULE:-}

# Bump when the contents of the cache change, so that old caches are rebuilt.
readonly CACHE_FORMAT=1

# Modules the guest loads, in this order, each after what it depends on.
# The crc32 modules are no dependencies that depmod knows: rxe asks the crypto
# layer for "crc32" at run time, when no modprobe would answer, and a siw.ko
# given as RDMA_VM_MODULE likewise relies on what is there.
readonly MODULES=(
    virtio_pci virtio_net virtio_console    # devices
    9p 9pnet_virtio overlay                 # file systems
    dummy                                   # an interface for the lone guest
    crc32_generic crc32c_generic libcrc32c
    ib_uverbs rdma_ucm                      # RDMA, as seen from user space
    rdma_rxe                                # the device itself
)

# A guest that has not started CMD by then never will: seconds of processor time,
# of which it takes 20, and of the clock, as a busy machine may give it little.
readonly BOOT_CPU_SECS=120
readonly BOOT_SECS=600
readonly PULSE_SECS=180

die() { printf '%s: %s\n' "$PROG" "$*" >&2; exit 125; }

usage() { sed -n '/^#   rdma-vm.sh run/,/^# installs nothing/s/^#\( \|$\)//p' "$0"; }

# ---- preparation ------------------------------------------------------------

# apt-get, silent unless it fails.
apt_get() {
    local log rc=0
    log=$(mktemp) || return 1
    DEBIAN_FRONTEND=noninteractive apt-get -q -y \
        -o APT::Sandbox::User=root -o DPkg::Lock::Timeout=120 \
        "$@" >"$log" 2>&1 </dev/null || {
            rc=$?
            { echo "$PROG: apt-get $*:"; tail -n 20 "$log"; } >&2
        }
    rm -f "$log"
    return "$rc"
}

# What is not installed, by the packages that bring it.
missing() {
    command -v qemu-system-x86_64 >/dev/null || echo qemu-system-x86
    command -v depmod >/dev/null             || echo kmod
    command -v xz >/dev/null                 || echo xz-utils
    command -v rdma >/dev/null               || echo iproute2
    compgen -G '/usr/lib/*/libibverbs/librxe-*.so' >/dev/null \
        || echo ibverbs-providers
}

# Everything that decides the cache's content decides its name.
store() {
    echo "$CACHE/$({ echo "$CACHE_FORMAT $KERNEL_PKG ${MODULES[*]}"
                     guest_init; } | sha256sum | cut -c 1-12)"
}

# Unpack package $1 under $2, in the current directory.
unpack() {
    rm -f ./*.deb
    apt_get download "$1" || die "could not download $1"
    dpkg-deb -x ./*.deb "$2" || die "could not unpack $1"
    rm -f ./*.deb
}

# Print module $1 (a .ko file, perhaps compressed) as the kernel wants it.
plain_module() {
    case $1 in
        *.ko) cat "$1" ;;
        *.xz) xz -dc "$1" ;;
    esac
}

# Turn the bzImage $1 into the ELF image $2, which QEMU boots directly (PVH).
# That spares an emulated CPU the decompression: seconds on every start.  Any
# failure is harmless: the caller then uses the bzImage.
plain_kernel() {
    local at
    # The payload starts with the magic number of its format.  busybox has an
    # xz, but not the x86 filter that kernels are compressed with.
    at=$(LC_ALL=C grep -aboPm1 '\xfd7zXZ\x00' "$1" | head -n 1) &&
        tail -c "+$((${at%%:*} + 1))" "$1" | xz -dc --single-stream >"$2"
    [[ $(head -c 4 "$2" | tail -c 3) == ELF ]]
} 2>/dev/null

# Fill the cache: kernel, initramfs, busybox.  Runs under the cache's lock.
build_cache() {
    local work=$1 pkg release root file name m

    cd "$work" || die "no $work"
    unpack busybox-static busybox    # first, because it refreshes the lists

    # The meta-package names the current kernel package.
    pkg=$(apt-cache depends "$KERNEL_PKG" 2>/dev/null |
          awk '$1 == "Depends:" && $2 ~ /^linux-image-[0-9]/ { print $2; exit }')
    [[ $pkg ]] || pkg=$KERNEL_PKG
    unpack "$pkg" kernel

    install -m 755 busybox/bin/busybox busybox.bin || die "no busybox"
    BUSYBOX=$work/busybox.bin
    root=$work/kernel
    [[ -e $root/lib ]] || ln -s usr/lib "$root/lib"
    release=$(cd "$root/lib/modules" && echo *)
    [[ -e $root/boot/vmlinuz-$release ]] || die "$pkg holds no kernel"

    plain_kernel "$root/boot/vmlinuz-$release" vmlinux ||
        cp "$root/boot/vmlinuz-$release" vmlinux || die "no kernel"

    # The modules, flat, with the order in which to load them.
    depmod -C /dev/null -b "$root" "$release" || die "depmod failed"
    mkdir -p initramfs/{bin,modules,proc,sys,dev,host,rw,new}
    for m in "${MODULES[@]}"; do
        modprobe -C /dev/null -d "$root" -S "$release" --show-depends "$m" ||
            die "$pkg has no module $m"
    done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >order
    [[ ${PIPESTATUS[0]} -eq 0 && -s order ]] || die "$pkg lacks a module"
    while read -r file; do
        name=${file##*/} name=${name%%.ko*}.ko
        plain_module "$file" >"initramfs/modules/$name" || die "bad $file"
        echo "$name"
    done <order >initramfs/modules/ORDER

    cp busybox.bin initramfs/bin/busybox
    guest_init >initramfs/init
    chmod 755 initramfs/init
    (cd initramfs && find . | "$BUSYBOX" cpio -o -H newc) \
        >initramfs.cpio 2>/dev/null || die "no initramfs"

    echo "$release" >release
    rm -rf kernel busybox initramfs order
}

# Sets STORE and BUSYBOX, or says what is missing.
ready() {
    local names

    [[ $(uname -m) == x86_64 ]] || die "needs an x86-64 host"
    names=$(missing | tr '\n' ' ')
    [[ ! $names ]] || die "not installed: $names"
    STORE=$(store)
    BUSYBOX=$STORE/busybox.bin
    [[ -e $STORE/release ]] ||
        die "no kernel in $CACHE ('tests/hosts/rdma-vm.sh setup' fetches one)"
}

# Fills the cache, if it is not filled yet.
setup() {
    STORE=$(store)
    mkdir -p "$CACHE" || die "cannot create $CACHE"
    (
        flock -w 600 9 || die "cannot lock $CACHE"
        [[ -e $STORE/release ]] && exit 0
        # A mirror may no longer hold the versions that old lists name.
        ((EUID != 0)) || apt_get update || exit 125
        # A half-filled cache never carries the final name.
        work=$(mktemp -d "$CACHE/tmp.XXXXXX") || die "cannot write to $CACHE"
        trap 'rm -rf "$work"' EXIT
        (build_cache "$work") || exit 125
        rm -rf "$STORE"
        chmod 755 "$work"
        mv "$work" "$STORE" || die "cannot fill $CACHE"
    ) 9>"$CACHE/lock" || exit 125
}

# ---- guest programs ---------------------------------------------------------

# /init of the guest: load the modules and assemble a root file system, with
# the host's as the read-only lower layer and memory as the writable one.
guest_init() {
    cat <<'EOF'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin

fail() { echo "rdma-vm: $*"; poweroff -f; }

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for m in $(cat /modules/ORDER); do
    # Some are variants for a CPU that this one is not.  If one that matters
    # is missing, a step below fails and says so.
    insmod "/modules/$m" || echo "rdma-vm: $m not loaded"
done

share() {    # TAG DIRECTORY OPTIONS
    mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,$3" "$1" "$2" ||
        fail "cannot mount $1 on $2"
}
share host /host ro,cache=loose
mount -t tmpfs -o mode=755 rw /rw
mkdir /rw/upper /rw/work
mount -t overlay -o lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work \
    root /new || fail "cannot mount the overlay"

mount --move /dev /new/dev
mount --move /proc /new/proc
mount --move /sys /new/sys
mount -t tmpfs -o mode=755 run /new/run
mkdir /new/run/rdma-vm
share control /new/run/rdma-vm cache=none
exec switch_root /new /run/rdma-vm/busybox sh /run/rdma-vm/stage2
fail "switch_root"
EOF
}

# PID 1 after that, inside the host's file system.
guest_stage2() {
    cat <<'EOF'
C=/run/rdma-vm                    # the control share: written by both sides
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
. $C/settings                     # NODE NODES IP PEER DRIVER WRITABLE STUCK

bb() { $C/busybox "$@"; }

fail() {
    echo "rdma-vm: $*"
    bb dmesg | bb tail -n 20
    bb poweroff -f
}

# Repeat a command, by default for ten seconds, until it succeeds.
await() {
    tries=100
    until "$@"; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || fail "gave up waiting: $*"
        bb sleep 0.1
    done
}

bb mkdir -p /dev/pts /dev/shm /run/lock
bb mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
bb mount -t tmpfs -o mode=1777 shm /dev/shm
bb ln -sfn /proc/self/fd /dev/fd
bb ln -sfn /proc/self/fd/0 /dev/stdin
bb ln -sfn /proc/self/fd/1 /dev/stdout
bb ln -sfn /proc/self/fd/2 /dev/stderr

i=0
while [ $i -lt $WRITABLE ]; do
    bb mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=mmap \
        w$i "$(bb cat $C/w$i)" || fail "cannot mount writable directory $i"
    i=$((i + 1))
done

# Names.  This /etc/hosts is the guest's; the host's stays as it is.
bb hostname node$NODE
printf '%s\n' "127.0.0.1 localhost" "10.77.0.1 node0" "10.77.0.2 node1" >/etc/hosts

# The interface, and the RDMA device on it.  The MTU makes room for RoCE's
# largest, 4096, plus headers.
ip link set lo up
if [ $NODES = 1 ]; then
    ip link set dummy0 name eth0 || fail "no dummy interface"
else
    ip link delete dummy0
fi
ip address add $IP/24 dev eth0 && ip link set eth0 mtu 4500 up || fail "no eth0"
[ ! -e $C/extra.ko ] || bb insmod $C/extra.ko || fail "cannot load the extra module"
rdma link add ${DRIVER}0 type $DRIVER netdev eth0 || fail "no $DRIVER device"

# It is usable once its port is up and, for RoCE, has the address as a GID.
port_is_up() { rdma link show ${DRIVER}0/1 2>/dev/null | bb grep -q "state ACTIVE"; }
has_gid() {
    bb cat /sys/class/infiniband/${DRIVER}0/ports/1/gids/* 2>/dev/null |
        bb grep -q ":ffff:0a4d:000$((NODE + 1))\$"
}
await port_is_up
[ $DRIVER != rxe ] || await has_gid

# Neither guest starts before the other is there.
peer_answers() { bb ping -c 1 -W 1 $PEER >/dev/null 2>&1; }
await peer_answers

# stdout and stderr leave through a virtio port each.  CMD gets a pipe in front
# of it, so that opening /dev/stdout or /dev/stderr works like anywhere else.
port_named() { bb grep -lx "$1" /sys/class/virtio-ports/*/name 2>/dev/null; }
for s in stdout stderr; do
    await port_named $s >/run/$s.name
    p=$(bb cat /run/$s.name) p=${p%/name}
    bb mkfifo /run/$s
    $C/busybox cat /run/$s >/dev/${p##*/} &
    eval "cat_$s=$!"
done

# The threads that are stuck in the kernel, waiting (D) or on their way out.
stuck() {
    bb awk '{
        id = $1
        sub(/.*[)] /, "")
        if ($1 == "D" || ($1 != "Z" && $1 != "X" && and($7, 4)))
            print id
    }' /proc/[0-9]*/task/[0-9]*/stat 2>/dev/null
}

# The host looks whether this goes on.  Each processor has to run something for
# it: one that is stuck in the kernel keeps for ever what waits for it alone.
# It stops for a thread that was found stuck each time in three minutes, too.
pulse() {
    n=0 cpus=$(bb nproc) held= since=0
    while bb sleep 5; do
        now=" $(stuck | bb tr '\n' ' ')" still=
        for id in $held; do
            case $now in *" $id "*) still="$still $id" ;; esac
        done
        [ "$still" ] || since=$n
        held=${still:-$now}
        if [ $((n - since)) -ge $STUCK ]; then
            for id in $held; do
                echo "rdma-vm: stuck: $(bb cat /proc/$id/stat)" >/dev/console
                bb cat /proc/$id/stack >/dev/console
            done
            return
        fi
        cpu=0
        while [ $cpu -lt $cpus ]; do
            bb taskset $(bb printf %x $((1 << cpu))) $C/busybox true
            cpu=$((cpu + 1))
        done
        n=$((n + 1))
        echo $n >$C/pulse
    done
}
pulse &
pulse=$!

ulimit -l unlimited
ulimit -c 0
: >$C/started
bb env -i $C/busybox setsid bash $C/command </dev/null >/run/stdout 2>/run/stderr
status=$?

# End what CMD left running, so that the pipes end, and let them drain.
for p in /proc/[0-9]*; do
    p=${p#/proc/}
    case $p in
        1 | $cat_stdout | $cat_stderr | $pulse) ;;
        *) kill -9 $p 2>/dev/null ;;
    esac
done
wait $cat_stdout $cat_stderr
bb sync
echo $status >$C/status.new && bb mv $C/status.new $C/status

# Stay until the host says that every guest is done: the other one may still
# need this one's end of a connection.
until [ -e $C/leave ]; do bb sleep 0.1; done
bb poweroff -f
EOF
}

# ---- running ----------------------------------------------------------------

# Whether KVM can run an unmodified kernel here.  /dev/kvm alone proves little:
# a host with kvm_pvm only (nested, no hardware virtualization) offers one that
# interprets the guest instruction by instruction until it meets one it lacks.
kvm_usable() {
    [[ -r /dev/kvm && -w /dev/kvm ]] &&
        [[ -d /sys/module/kvm_intel || -d /sys/module/kvm_amd ]]
}

# Write what guest $1 needs into $2.  The rest of the arguments is CMD.
prepare_guest() {
    local node=$1 dir=$2 ip=10.77.0.$(($1 + 1)) peer i
    shift 2
    peer=10.77.0.$((nodes == 1 ? 1 : 2 - node))

    { mkdir -p "$dir/control" && mkfifo "$dir/stdout" "$dir/stderr" &&
        cp "$BUSYBOX" "$dir/control/busybox"; } || die "cannot write to $dir"
    if [[ $EXTRA_MODULE ]]; then
        cp "$EXTRA_MODULE" "$dir/control/extra.ko" || exit 125
    fi
    guest_stage2 >"$dir/control/stage2"
    printf '%s\n' "NODE=$node" "NODES=$nodes" "IP=$ip" "PEER=$peer" \
        "DRIVER=$DRIVER" "WRITABLE=${#writable[@]}" \
        "STUCK=$((PULSE_SECS / 5))" >"$dir/control/settings"
    for i in "${!writable[@]}"; do
        printf '%s' "${writable[i]}" >"$dir/control/w$i"
    done
    export -n SHELLOPTS BASHOPTS    # read-only in the bash that reads this
    {
        export -p
        printf 'export RDMA_VM_%s\n' "NODE=$node" "NODES=$nodes" "IP=$ip" \
            "PEER_IP=$peer" "IBDEV=${DRIVER}0" "NETDEV=eth0"
        printf 'cd %q || exit 125\n' "$directory"
        printf 'exec'; printf ' %q' "$@"; echo
    } >"$dir/control/command"
}

# Start guest $1, prepared in $2, in the background; $! is its QEMU.
start_guest() {
    local node=$1 dir=$2 args i s
    local append="console=ttyS0 panic=-1 oops=panic random.trust_cpu=on"

    # Being slow is no reason for the kernel to complain, let alone to panic.
    append+=" no_timer_check nowatchdog rcupdate.rcu_cpu_stall_suppress=1"
    append+=" mitigations=off net.ifnames=0"
    [[ $verbose ]] || append+=" quiet"

    args=(-nodefaults -no-user-config -no-reboot -display none
          -machine pc -smp "$cpus" -m "$memory"
          -kernel "$STORE/vmlinux" -initrd "$STORE/initramfs.cpio"
          -append "$append" -serial "file:$dir/console")
    case $accel in
        kvm) args+=(-accel kvm -cpu host) ;;
        tcg) args+=(-accel "tcg,thread=multi" -cpu "max,la57=off") ;;
    esac

    # The host's tree may span several file systems, hence multidevs=remap.
    share() {    # TAG DIRECTORY OPTIONS
        args+=(-virtfs "local,mount_tag=$1,path=${2//,/,,},security_model=none,multidevs=remap$3")
    }
    share host / ,readonly=on
    share control "$dir/control" ""
    for i in "${!writable[@]}"; do share "w$i" "${writable[i]}" ""; done

    args+=(-device virtio-serial-pci)
    for s in stdout stderr; do
        args+=(-chardev "file,id=$s,path=${dir//,/,,}/$s"
               -device "virtserialport,chardev=$s,name=$s")
    done

    # The segment between two guests is a pair of sockets: no port is opened,
    # no interface appears on the host.  Their names are relative because a
    # socket's name must be short.
    s="dgram,id=net,local.type=unix,local.path=net$node"
    s+=",remote.type=unix,remote.path=net$((1 - node))"
    ((nodes == 1)) || args+=(-netdev "$s" -device
        "virtio-net-pci,netdev=net,mac=52:54:00:77:00:0$((node + 1)),romfile=")

    (cd "$tmp" && exec qemu-system-x86_64 "${args[@]}") \
        </dev/null >"$dir/qemu" 2>&1 &
}

# Start guest $1 and what reads its words.
launch_guest() {
    local node=$1 dir=$tmp/$1 reader=(cat)

    ((nodes == 1)) || reader=(sed -u "s/^/[$node] /")
    "${reader[@]}" <"$dir/stdout" & readers+=($!)
    "${reader[@]}" <"$dir/stderr" >&2 & readers+=($!)
    start_guest "$node" "$dir"
    guests[node]=$!
}

# Guest $1 has not booted, as $2 says.  Once in hundreds of times an emulated
# machine stands still before its kernel has said a word, and the next one does
# not: start all again, if no CMD has begun.  False: one has, or they were.
launch_again() {
    local node

    [[ ! $again ]] || return 1
    for ((node = 0; node < nodes; node++)); do
        [[ ! -e $tmp/$node/control/started ]] || return 1
    done
    again=1
    printf '%s: guest %s %s; starting again\n' "$PROG" "$1" "$2" >&2
    {
        kill -9 "${guests[@]}"
        reap 20 "${readers[@]}"
        wait "${guests[@]}" "${readers[@]}"
    } 2>/dev/null
    readers=() pulses=() beats=()
    ((deadline += SECONDS - begun))
    begun=$SECONDS boot=$((SECONDS + boot_secs))
    for ((node = 0; node < nodes; node++)); do
        rm -f "$tmp/$node"/control/{started,pulse,status,status.new,leave}
        launch_guest "$node"
    done
}

# Does guest $1 still run processes?  Its pulse has been another one lately, or
# it has not begun.
has_pulse() {
    local now=''

    { read -r now <"$tmp/$1/control/pulse"; } 2>/dev/null
    if [[ ! $now || $now != "${pulses[$1]:-}" ]]; then
        pulses[$1]=$now beats[$1]=$SECONDS
    fi
    ((SECONDS - beats[$1] < PULSE_SECS))
}

# Has guest $1 had time to boot?
boot_is_over() {
    local stat ticks

    ((SECONDS < boot)) || return 0
    stat=$(cat "/proc/${guests[$1]}/stat" 2>/dev/null) || return 1
    read -r -a ticks <<<"${stat##*) }"    # [11] in user mode, [12] in the kernel
    ((ticks[11] + ticks[12] >= BOOT_CPU_SECS * $(getconf CLK_TCK)))
}

# Watch the guests until all have ended or it is over otherwise.  Returns 0,
# 124, 125, 126 or the status of a CMD that failed while the other went on.
watch_guests() {
    local boot_secs=$((seconds < BOOT_SECS ? seconds : BOOT_SECS))
    local begun=$SECONDS late=124 again=''
    local deadline=$((begun + seconds)) boot=$((begun + boot_secs))
    local alive finished node control status

    while :; do
        alive=0 finished=0
        for ((node = 0; node < nodes; node++)); do
            control=$tmp/$node/control
            if [[ -e $control/status ]]; then
                ((finished += 1))
                read -r status <"$control/status"
                if ((status && late == 124)); then
                    late=$status
                    ((deadline < SECONDS + 10)) || deadline=$((SECONDS + 10))
                fi
            fi
            if kill -0 "${guests[node]}" 2>/dev/null; then
                ((alive += 1))
                if [[ ! -e $control/started ]] && boot_is_over "$node"; then
                    failed=$node fate="did not boot in $((SECONDS - begun)) s"
                    launch_again "$node" "$fate" || return 125
                    failed=''
                fi
                if [[ ! -e $control/status ]] && ! has_pulse "$node"; then
                    failed=$node fate=froze
                    return 126
                fi
            elif [[ ! -e $control/status ]]; then
                failed=$node fate=failed
                launch_again "$node" "$fate" || return 125
                failed='' alive=1
            fi
        done
        ((alive)) || return 0
        ((SECONDS < deadline)) || return "$late"
        if ((finished == nodes)); then
            for ((node = 0; node < nodes; node++)); do
                : >"$tmp/$node/control/leave"
            done
        fi
        sleep 0.1
    done
}

# Wait up to $1 tenths of a second for the processes in $2... to be gone, then
# kill what is left.
reap() {
    local tenths=$1 pid
    shift
    for pid; do
        while kill -0 "$pid" 2>/dev/null; do
            ((tenths-- > 0)) || { kill -9 "$pid" 2>/dev/null; break; }
            sleep 0.1
        done
    done
}

# End everything this run has started.  The guests go first, so that what they
# have said still reaches the readers.
clean_up() {
    ((${#guests[@]})) && kill "${guests[@]}" 2>/dev/null
    reap 30 "${guests[@]}"
    reap 20 "${readers[@]}"
    ((${#tails[@]})) && kill "${tails[@]}" 2>/dev/null
    wait 2>/dev/null
    [[ ! $tmp ]] || rm -rf "$tmp"
}

run() {
    local directory=$PWD seconds=300 memory=1024 cpus='' nodes=1 accel=auto
    local verbose='' writable=() option dir node s failed='' fate='' rc=0

    # Global, because clean_up needs them: process ids and scratch directory.
    guests=() readers=() tails=() tmp='' pulses=() beats=()

    while getopts :C:w:t:m:c:n:a:v option; do
        case $option in
            C) directory=$OPTARG ;;
            w) writable+=("$OPTARG") ;;
            t) seconds=$OPTARG ;;
            m) memory=$OPTARG ;;
            c) cpus=$OPTARG ;;
            n) nodes=$OPTARG ;;
            a) accel=$OPTARG ;;
            v) verbose=1 ;;
            *) usage >&2; exit 125 ;;
        esac
    done
    shift $((OPTIND - 1))
    (($#)) || { usage >&2; exit 125; }
    [[ $nodes == [12] ]] || die "-n takes 1 or 2"
    cpus=${cpus:-$((3 - nodes))}
    for s in "$seconds" "$memory" "$cpus"; do
        [[ $s == [1-9]*([0-9]) ]] || die "not a number: $s"
    done
    case $accel in
        auto) if kvm_usable; then accel=kvm; else accel=tcg; fi ;;
        tcg | kvm) ;;
        *) die "-a takes auto, tcg or kvm" ;;
    esac
    for s in "$directory" "${writable[@]}"; do
        [[ -d $s ]] || die "no directory $s"
    done
    directory=$(realpath -- "$directory")
    for s in "${!writable[@]}"; do writable[s]=$(realpath -- "${writable[s]}"); done

    ready
    tmp=$(mktemp -d "${TMPDIR:-/tmp}/rdma-vm.XXXXXX") || die "no temporary directory"
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP

    for ((node = 0; node < nodes; node++)); do
        dir=$tmp/$node
        prepare_guest "$node" "$dir" "$@"
        launch_guest "$node"
        if [[ $verbose ]]; then
            : >"$dir/console"
            tail -f "$dir/console" >&2 & tails+=($!)
        fi
    done

    if watch_guests; then
        wait "${readers[@]}"
        for ((node = 0; node < nodes && rc == 0; node++)); do
            read -r rc <"$tmp/$node/control/status"
        done
    else
        rc=$?
        ((rc != 124)) || printf '%s: timed out after %s s\n' "$PROG" "$seconds" >&2
    fi
    if [[ $failed ]]; then
        printf '%s: guest %s %s; its console ends with\n' "$PROG" "$failed" \
            "$fate"
        tail -n 40 "$tmp/$failed/console" "$tmp/$failed/qemu" | tr -d '\r'
    fi >&2
    exit "$rc"
}

case ${1:-} in
    run) shift; run "$@" ;;
    setup) setup ;;
    ready) ready ;;
    -h | --help | help) usage ;;
    *) usage >&2; exit 125 ;;
esac
