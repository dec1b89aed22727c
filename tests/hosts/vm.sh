# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=sh
#
# What the tests with virtual machines read first: vm, which runs them.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

unset TP_RANK TP_SIZE TP_BACKENDS TP_PROGRESS TP_IFACE TP_REQUIRE

vm() { bash "$source/tests/hosts/rdma-vm.sh" "$@"; }

# vm_run FILE ARGUMENTS...: vm run, with what it says in the file.  Of the tests
# that run side by side one at a time does: each machine has as many processors
# as the host, and a virtual one that waits for its turn keeps the others.
vm_run()
{
    exec 9<"$source/tests/hosts/rdma-vm.sh"
    flock 9
    vm_try "$@" 9<&-
    exec 9<&-
}

# Now and then an emulated machine freezes with a processor busy in the kernel's
# software RDMA device, and has nothing to tell us: then it is tried once more,
# in a new one, and said.  A job that hangs is no such case: the machine has a
# pulse.
vm_try()
{
    file=$1
    shift
    vm run "$@" >"$file" 2>&1
    [ $? -eq 126 ] || return 0
    echo "    an emulated machine froze, and is tried once more; it said:"
    sed 's/^/        /' "$file"
    [ ! -d "$work/share" ] || find "$work/share" -mindepth 1 -delete
    vm run "$@" >"$file" 2>&1
}
