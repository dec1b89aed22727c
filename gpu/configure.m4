dnl SPDX-License-Identifier: BSD-3-Clause
dnl libcuda is loaded at run time, by declarations of our own; cuda.h, where
dnl there is one, is only compared with them by a test.
AC_ARG_VAR([CUDA_HOME], [the CUDA Toolkit's folder, with include/cuda.h])
AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda=DIR],
    [where include/cuda.h is, for a test only (default: CUDA_HOME, pkg-config's
     cuda, /usr/local/cuda, /usr); --without-cuda: no CUDA channels])],
    [], [with_cuda=check])
tp_cuda=no
tp_cuda_h=no
tp_cuda_summary="no (--without-cuda)"
AS_IF([test "x$with_cuda" != xno], [
    tp_cuda=yes
    tp_cuda_summary="yes"
    tp_cuda_dirs="$with_cuda"
    AS_CASE([$with_cuda], [yes|check], [
        tp_cuda_dirs="$CUDA_HOME"
        PKG_CHECK_EXISTS([cuda],
            [tp_cuda_dirs="$tp_cuda_dirs `$PKG_CONFIG --variable=cudaroot cuda`"])
        tp_cuda_dirs="$tp_cuda_dirs /usr/local/cuda /usr"])
    AS_IF([test "x$with_cuda" = xcheck && test -n "$CUDA_HOME" &&
           test ! -f "$CUDA_HOME/include/cuda.h"],
        [AC_MSG_WARN([CUDA_HOME=$CUDA_HOME has no include/cuda.h; looking elsewhere])])
    for dir in $tp_cuda_dirs; do
        AS_IF([test "$tp_cuda_h" = no && test -f "$dir/include/cuda.h"], [
            tp_cuda_h=yes
            tp_cuda_summary="yes (cuda.h to compare with is in $dir)"
            dnl The compiler looks into /usr/include by itself, in its own order.
            AS_IF([test "$dir" != /usr], [CUDA_CFLAGS="-isystem $dir/include"])])
    done
    AS_CASE([$with_cuda], [yes|check], [],
        [AS_IF([test "$tp_cuda_h" = no],
            [AC_MSG_ERROR([--with-cuda=$with_cuda: no include/cuda.h there.
    Give the CUDA Toolkit's folder (Debian: nvidia-cuda-dev), or nothing: it is
    not needed to build, or --without-cuda.])])])])
AC_SUBST([CUDA_CFLAGS])
AS_IF([test "$tp_cuda" = yes],
    [AC_DEFINE([TP_CUDA], [1], [Define if the CUDA channels are built.])])
AM_CONDITIONAL([WITH_CUDA], [test "$tp_cuda" = yes])
AM_CONDITIONAL([WITH_CUDA_H], [test "$tp_cuda_h" = yes])
