dnl SPDX-License-Identifier: BSD-3-Clause
dnl None of these is needed to build; tests that lack one are left out or skip.
PKG_CHECK_MODULES([CHECK], [check >= 0.15],
    [tp_check=yes; tp_check_summary="yes (Check `$PKG_CONFIG --modversion check`)"],
    [tp_check=no; tp_check_summary="lint only (Check is missing: apt-get install check)"])
AM_CONDITIONAL([WITH_CHECK], [test "$tp_check" = yes])
AC_CHECK_PROGS([MANDOC], [mandoc])
AC_CHECK_PROGS([SHELLCHECK], [shellcheck])
dnl Not AC_PROG_CXX: only a test that tp.h is C++ too wants this compiler.
AC_CHECK_PROGS([TEST_CXX], [g++ clang++ c++])
