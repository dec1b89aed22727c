dnl SPDX-License-Identifier: BSD-3-Clause
dnl Build options that concern every folder, and the summary at the end.

AS_CASE(["$prefix"], [*[[[:space:]]]*], [AC_MSG_ERROR([--prefix='$prefix':
    libtool cannot install into a folder with blanks in its name.])])

AC_ARG_ENABLE([devel], [AS_HELP_STRING([--enable-devel],
    [for work on tp itself: long warning list, warnings are errors])],
    [], [enable_devel=no])
AC_ARG_ENABLE([sanitizer], [AS_HELP_STRING([--enable-sanitizer=LIST],
    [build with compiler sanitizers: address,undefined or thread])],
    [], [enable_sanitizer=no])

TP_CFLAGS="-std=gnu11 -fvisibility=hidden -Werror=implicit-function-declaration"
dnl Else a change to one function moves all behind it, and what takes half a
dnl microsecond takes a tenth more or less for that; 32 as the decoders fetch.
TP_CFLAGS="$TP_CFLAGS -falign-functions=32"
AS_IF([test "x$enable_devel" = xyes], [
    TP_CFLAGS="$TP_CFLAGS -Wall -Wextra -Wshadow -Wstrict-prototypes"
    TP_CFLAGS="$TP_CFLAGS -Wmissing-prototypes -Wpointer-arith -Wundef"
    TP_CFLAGS="$TP_CFLAGS -Wvla -Wwrite-strings -Wno-missing-field-initializers"
    TP_CFLAGS="$TP_CFLAGS -Werror"])
AS_CASE([$enable_sanitizer],
    [no|""], [],
    [yes], [AC_MSG_ERROR([--enable-sanitizer needs a list: address,undefined or thread])],
    [tp_sanitizer="$enable_sanitizer"
     TP_CFLAGS="$TP_CFLAGS -fsanitize=$enable_sanitizer"
     TP_CFLAGS="$TP_CFLAGS -fno-omit-frame-pointer -fno-sanitize-recover=all"
     TP_LDFLAGS="-fsanitize=$enable_sanitizer"
     AC_MSG_CHECKING([whether $CC can -fsanitize=$enable_sanitizer])
     tp_saved_CFLAGS="$CFLAGS"
     CFLAGS="$CFLAGS -fsanitize=$enable_sanitizer"
     AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])], [AC_MSG_RESULT([yes])],
        [AC_MSG_RESULT([no])
         AC_MSG_ERROR([--enable-sanitizer=$enable_sanitizer: $CC cannot link with it.
    The list is address,undefined or thread; on Debian or Ubuntu the libraries
    come with gcc: apt-get install gcc libc6-dev])])
     CFLAGS="$tp_saved_CFLAGS"
     dnl gcc warns that ThreadSanitizer does not understand fences.  Ours order
     dnl memory shared between processes, of which it sees one side only.
     AS_CASE([$enable_sanitizer,$CC], [*thread*,*clang*], [],
        [*thread*], [TP_CFLAGS="$TP_CFLAGS -Wno-tsan"])])
AM_CONDITIONAL([SANITIZER], [test -n "$tp_sanitizer"])
AM_CONDITIONAL([SANITIZER_THREAD],
               [case $tp_sanitizer in *thread*) true ;; *) false ;; esac])
AC_SUBST([tp_sanitizer])
AC_SUBST([TP_CFLAGS])
AC_SUBST([TP_LDFLAGS])

dnl TP_LACKS(what, Debian package): ends configure, and says what to do.
AC_DEFUN([TP_LACKS], [AC_MSG_ERROR([

    tp needs $1, which was not found.
    On Debian or Ubuntu: apt-get install $2
    or run ./setup, which installs all that is missing.
])])

dnl TP_REQUIRE_PACKAGE(variable, pkg-config spec, Debian package)
AC_DEFUN([TP_REQUIRE_PACKAGE],
    [PKG_CHECK_MODULES([$1], [$2], [], [
        tp_there=`$PKG_CONFIG --modversion m4_bpatsubst([$2], [ .*]) 2>/dev/null`
        AS_IF([test -n "$tp_there"], [AC_MSG_ERROR([

    tp needs $2, but what is here is $tp_there.
    Where a newer one is installed too, PKG_CONFIG_PATH says where.
])])
        TP_LACKS([$2], [$3])])])

AC_DEFUN([TP_SUMMARY], [
    AS_IF([test "x$prefix" = xNONE], [prefix=$ac_default_prefix])
    AC_MSG_NOTICE([
tp $PACKAGE_VERSION will be built as follows:
  to be installed in    $prefix
  compiler              $CC $CFLAGS
  development warnings  $enable_devel
  sanitizer             $enable_sanitizer
  hwloc                 $tp_hwloc_version
  PMIx                  $tp_pmix_version
  libfabric             $tp_libfabric_version
  nettle                $tp_nettle_version
  CUDA channels         $tp_cuda_summary
  tests                 $tp_check_summary
  to compare with       $tp_peers_summary
  manual page checks    ${MANDOC:-no (mandoc is missing: apt-get install mandoc)}

Next: make, make check, make install.
])])
