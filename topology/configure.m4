dnl SPDX-License-Identifier: BSD-3-Clause
TP_REQUIRE_PACKAGE([HWLOC], [hwloc >= 2.5], [libhwloc-dev])
TP_REQUIRE_PACKAGE([JANSSON], [jansson >= 2.10], [libjansson-dev])
tp_hwloc_version=`$PKG_CONFIG --modversion hwloc`
