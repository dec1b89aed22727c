dnl SPDX-License-Identifier: BSD-3-Clause
dnl Other systems to compare with.  None is required: what is there is built,
dnl and what is not is named with its package.
tp_peers_summary= tp_peers_absent=
dnl BENCH_PEER(variable, name, Debian package): said in the summary.
AC_DEFUN([BENCH_PEER], [
    AM_CONDITIONAL([BENCH_$1], [test "$tp_peer_$1" = yes])
    AS_IF([test "$tp_peer_$1" = yes],
        [tp_peers_summary="$tp_peers_summary${tp_peers_summary:+, }$2"],
        [tp_peers_absent="$tp_peers_absent $3"])])

PKG_CHECK_MODULES([OPENMPI], [ompi-c], [tp_peer_OPENMPI=yes],
    [tp_peer_OPENMPI=no])
BENCH_PEER([OPENMPI], [Open MPI], [libopenmpi-dev])
PKG_CHECK_MODULES([MPICH], [mpich], [tp_peer_MPICH=yes], [tp_peer_MPICH=no])
BENCH_PEER([MPICH], [MPICH], [libmpich-dev])
PKG_CHECK_MODULES([UCX], [ucx >= 1.12], [tp_peer_UCX=yes], [tp_peer_UCX=no])
BENCH_PEER([UCX], [UCX], [libucx-dev])

dnl TensorPipe has no pkg-config file, and is C++: not AC_PROG_CXX, since only
dnl this program wants that compiler.
AS_IF([test "$cross_compiling" = yes],
    [AC_CHECK_PROGS([BENCH_CXX], [$host_alias-g++ $host_alias-clang++])],
    [AC_CHECK_PROGS([BENCH_CXX], [g++ clang++ c++])])
tp_peer_TENSORPIPE=no
AC_MSG_CHECKING([for TensorPipe])
echo '#include <tensorpipe/tensorpipe.h>' >conftest.cc
AS_IF([test -n "$BENCH_CXX" &&
       $BENCH_CXX -std=c++17 -E conftest.cc >/dev/null 2>&1],
    [tp_peer_TENSORPIPE=yes])
rm -f conftest.cc
AC_MSG_RESULT([$tp_peer_TENSORPIPE])
BENCH_PEER([TENSORPIPE], [TensorPipe], [libtensorpipe-dev])

tp_peers_summary="libfabric${tp_peers_summary:+, }$tp_peers_summary"
AS_IF([test -n "$tp_peers_absent"],
    [tp_peers_summary="$tp_peers_summary (more by apt-get install$tp_peers_absent)"])
