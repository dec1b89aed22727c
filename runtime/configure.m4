dnl SPDX-License-Identifier: BSD-3-Clause
dnl Libraries that libtp loads when it needs them, under the names that linking
dnl would note.  TP_LOADED_LIBRARY(variable, library, function)
AC_DEFUN([TP_LOADED_LIBRARY], [
AC_MSG_CHECKING([under which name lib$2 is loaded])
tp_loaded_name=
tp_saved_LIBS=$LIBS
LIBS="[$]$1_LIBS $LIBS"
AC_LINK_IFELSE([AC_LANG_PROGRAM([[void $3(void);]], [[$3();]])],
    [tp_loaded_name=`$OBJDUMP -p conftest$ac_exeext |
        awk '[$]1 == "NEEDED" && [$]2 ~ /^lib$2/ { print [$]2 }'`])
LIBS=$tp_saved_LIBS
AC_MSG_RESULT([$tp_loaded_name])
AS_IF([test -z "$tp_loaded_name"],
      [AC_MSG_ERROR([lib$2 is not a shared library that can be linked])])
AC_DEFINE_UNQUOTED([$1_LIBRARY], ["$tp_loaded_name"], [The file name of lib$2])
])

dnl TP_LIBRARY_PLACE(variable, pkg-config's name, file): where it was when tp
dnl was built, for when nothing else leads there, as in a prefix of its own.
AC_DEFUN([TP_LIBRARY_PLACE], [
tp_place=`$PKG_CONFIG --variable=libdir $2`
dnl Where programs will run that root is no folder.
tp_place=${tp_place@%:@"$PKG_CONFIG_SYSROOT_DIR"}
AC_DEFINE_UNQUOTED([$1_LIBRARY_PLACE], ["$tp_place/$3"],
    [Where $2's library was when tp was built])
])

dnl So that programs under valgrind do not hear that what a peer has written is
dnl uninitialised.
AC_CHECK_HEADERS([valgrind/memcheck.h])

dnl HMAC-SHA-256 for peers outside the job.
TP_REQUIRE_PACKAGE([NETTLE], [nettle >= 3.4], [nettle-dev])
tp_nettle_version=`$PKG_CONFIG --modversion nettle`
TP_LOADED_LIBRARY([NETTLE], [nettle], [nettle_hmac_sha256_digest])
TP_LIBRARY_PLACE([NETTLE], [nettle], [$tp_loaded_name])

dnl Cards, under other launchers than tprun.
TP_REQUIRE_PACKAGE([PMIX], [pmix >= 4.2], [libpmix-dev])
TP_LOADED_LIBRARY([PMIX], [pmix], [PMIx_Init])
TP_LIBRARY_PLACE([PMIX], [pmix], [$tp_loaded_name])
