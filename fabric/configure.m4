dnl SPDX-License-Identifier: BSD-3-Clause
TP_REQUIRE_PACKAGE([LIBFABRIC], [libfabric >= 1.17], [libfabric-dev])
tp_libfabric_version=`$PKG_CONFIG --modversion libfabric`
