dnl SPDX-License-Identifier: BSD-3-Clause
TP_REQUIRE_PACKAGE([PMIX], [pmix >= 4.2], [libpmix-dev])
tp_pmix_version=`$PKG_CONFIG --modversion pmix`
TP_REQUIRE_PACKAGE([NCURSES], [ncursesw >= 6], [libncurses-dev])
