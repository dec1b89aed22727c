/* SPDX-License-Identifier: BSD-3-Clause */
/* Preloaded into a program, lets libpmix look like a version of long ago. */
const char *PMIx_Get_version(void);

__attribute__((__visibility__("default"))) const char *PMIx_Get_version(void)
{
    return "OpenPMIx 3.1.5, repo rev: v3.1.5 (PMIx Standard: 3.1)";
}
