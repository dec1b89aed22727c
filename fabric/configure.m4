dnl SPDX-License-Identifier: BSD-3-Clause
TP_REQUIRE_PACKAGE([LIBFABRIC], [libfabric >= 1.17], [libfabric-dev])
TP_LIBRARY_PLACE([LIBFABRIC], [libfabric], [libfabric.so.1])
tp_libfabric_version=`$PKG_CONFIG --modversion libfabric`
