#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# contain.sh PROGRAM...: runs a rank's program in namespaces of its own, as a
# container's.  Rank N takes the N-th word of TPX_KINDS, whose letters say which:
#
#     u  user      p  PID      n  network
#     m  mount and UTS: another host name; /dev/shm of 64 KiB, or with n none at
#        all; with p a /proc of its own, where that can be mounted; with h none
#     -  nothing
missing_shm()
{
    # Not sticky: the kernel would protect its devices from us.
    mount -t tmpfs -o mode=755 none /mnt || return
    for device in null zero random urandom; do
        : >/mnt/$device && mount --bind /dev/$device /mnt/$device || return
    done
    mount --rbind /mnt /dev
}

if [ "$1" = --inside ]; then
    kind=$2
    shift 2
    case $kind in *m*)
        hostname "contained-$$" || exit 90
        case $kind in
        *n*) missing_shm ;;
        *)   mount -t tmpfs -o size=64k none /dev/shm ;;
        esac || exit 91
        case $kind in
        *h*) mount -t tmpfs none /proc || exit 92 ;;
        *p*) mount -t proc proc /proc 2>/dev/null ;;
        esac ;;
    esac
    exec "$@"
fi
kind=$(echo "$TPX_KINDS" |
       cut -d ' ' -f "$((${PMIX_RANK:-${TP_RANK:-0}} + 1))")
flags=
case $kind in *u*) flags="$flags -U -r" ;; esac
case $kind in *p*) flags="$flags -p -f --kill-child" ;; esac
case $kind in *n*) flags="$flags -n" ;; esac
case $kind in *m*) flags="$flags -m -u" ;; esac
[ -n "$flags" ] || exec "$@"
# shellcheck disable=SC2086 # several words
exec unshare $flags "$0" --inside "$kind" "$@"
