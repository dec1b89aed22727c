#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# The suites of tests/multi with payloads on devices, over cuda_host: what
# tests/gpu/test_suites does for one of the ways.
TP_TEST_WAY=host
export TP_TEST_WAY
exec "${TP_TEST_BUILD:-.}/tests/gpu/test_suites"
