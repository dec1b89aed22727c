dnl SPDX-License-Identifier: BSD-3-Clause
dnl HMAC-SHA-256 for peers outside the job.
TP_REQUIRE_PACKAGE([NETTLE], [nettle >= 3.4], [nettle-dev])
tp_nettle_version=`$PKG_CONFIG --modversion nettle`
