dnl SPDX-License-Identifier: BSD-3-Clause
dnl HMAC-SHA-256 for peers outside the job.
TP_REQUIRE_PACKAGE([NETTLE], [nettle >= 3.4], [nettle-dev])
tp_nettle_version=`$PKG_CONFIG --modversion nettle`

dnl Loaded when a secret is first used, under the name that linking would note.
AC_MSG_CHECKING([under which name libnettle is loaded])
tp_nettle_library=
tp_saved_LIBS=$LIBS
LIBS="$NETTLE_LIBS $LIBS"
AC_LINK_IFELSE([AC_LANG_PROGRAM([[void nettle_hmac_sha256_digest(void);]],
                                [[nettle_hmac_sha256_digest();]])],
    [tp_nettle_library=`$OBJDUMP -p conftest$ac_exeext |
        awk '$1 == "NEEDED" && $2 ~ /^libnettle/ { print $2 }'`])
LIBS=$tp_saved_LIBS
AC_MSG_RESULT([$tp_nettle_library])
AS_IF([test -z "$tp_nettle_library"],
      [AC_MSG_ERROR([libnettle is not a shared library that can be linked])])
AC_DEFINE_UNQUOTED([NETTLE_LIBRARY], ["$tp_nettle_library"],
                   [The file name of libnettle])
