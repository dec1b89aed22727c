/* SPDX-License-Identifier: BSD-3-Clause */
/* What a rank has open of other processes' device memory, as explain and tptop
 * tell it. */
#include "config.h"

#include "runtime/base/record.h"
#include "topology/json.h"

json_t *tpt_json_imports(const struct tpb_record_imports *imports)
{
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
        "opened", (json_int_t)TPB_RECORD_GET(imports->opened),
        "found", (json_int_t)TPB_RECORD_GET(imports->found),
        "closed", (json_int_t)TPB_RECORD_GET(imports->closed),
        "open", (json_int_t)TPB_RECORD_GET(imports->open),
        "open_bytes", (json_int_t)TPB_RECORD_GET(imports->open_bytes),
        "pulled", (json_int_t)TPB_RECORD_GET(imports->pulled),
        "pulled_bytes", (json_int_t)TPB_RECORD_GET(imports->pulled_bytes),
        "lent", (json_int_t)TPB_RECORD_GET(imports->lent));
}
