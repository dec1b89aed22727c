dnl SPDX-License-Identifier: BSD-3-Clause
dnl Other systems to compare with.  None is required: what is there is built.
PKG_CHECK_MODULES([OPENMPI], [ompi-c], [tp_openmpi=yes], [tp_openmpi=no])
PKG_CHECK_MODULES([MPICH], [mpich], [tp_mpich=yes], [tp_mpich=no])
AM_CONDITIONAL([BENCH_OPENMPI], [test "$tp_openmpi" = yes])
AM_CONDITIONAL([BENCH_MPICH], [test "$tp_mpich" = yes])
tp_peers_summary=
AS_IF([test "$tp_openmpi" = yes], [tp_peers_summary="Open MPI "])
AS_IF([test "$tp_mpich" = yes], [tp_peers_summary="${tp_peers_summary}MPICH"])
AS_IF([test -z "$tp_peers_summary"], [tp_peers_summary="nothing (none needed)"])
