dnl SPDX-License-Identifier: BSD-3-Clause
dnl cuda.h is needed to build the CUDA channels; libcuda is loaded at run time.
AC_ARG_VAR([CUDA_HOME], [the CUDA Toolkit's folder, with include/cuda.h])
AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda=DIR],
    [where include/cuda.h is (default: CUDA_HOME, pkg-config's cuda,
     /usr/local/cuda, /usr)])],
    [], [with_cuda=check])
tp_cuda=no
tp_cuda_summary="no (--without-cuda)"
AS_IF([test "x$with_cuda" != xno], [
    tp_cuda_summary="no (cuda.h was not found; --with-cuda=DIR says where it is)"
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
        AS_IF([test "$tp_cuda" = no && test -f "$dir/include/cuda.h"], [
            tp_cuda=yes
            tp_cuda_summary="not in this release yet; cuda.h for them is in $dir"
            dnl The compiler looks into /usr/include by itself, in its own order.
            AS_IF([test "$dir" != /usr], [CUDA_CFLAGS="-isystem $dir/include"])])
    done
    AS_IF([test "$tp_cuda" = no && test "x$with_cuda" != xcheck],
        [AC_MSG_ERROR([--with-cuda=$with_cuda: no include/cuda.h there.
    Give the CUDA Toolkit's folder (Debian: nvidia-cuda-dev), or --without-cuda.])])])
AC_SUBST([CUDA_CFLAGS])
AM_CONDITIONAL([WITH_CUDA], [test "$tp_cuda" = yes])
