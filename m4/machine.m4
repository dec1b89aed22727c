dnl SPDX-License-Identifier: BSD-3-Clause
dnl Machines for which tp is not made are refused, before anything is asked for.
AC_CANONICAL_HOST

dnl TP_MACHINE(what, condition of the preprocessor, why): ends configure if not.
AC_DEFUN([TP_MACHINE], [
AC_MSG_CHECKING([whether $host_cpu-$host_os $1])
AC_COMPILE_IFELSE([AC_LANG_SOURCE([[
#if !($2)
#error no
#endif
]])], [AC_MSG_RESULT([yes])], [AC_MSG_RESULT([no])
AC_MSG_ERROR([

    tp does not work on $host: it needs a machine that $1.
    $3
])])])

TP_MACHINE([runs Linux], [defined(__linux__)],
    [It shares memory and watches processes by means of that kernel only.])
TP_MACHINE([is little-endian],
    [__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__],
    [What ranks send each other has that order, and nothing converts it.])
TP_MACHINE([has 64-bit addresses], [__SIZEOF_POINTER__ == 8],
    [It reckons in 64 and 128 bits, and ranks share words of 64 without locks.])
