/* SPDX-License-Identifier: BSD-3-Clause */
/* The order of the candidates, the reasons, the contract. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/pair.h"

/* ---- the order on recorded machines ------------------------------------ */

/* Of every kind of machine, inside and between: the order, and what decides
 * it.  cma is a channel of all, beside shm. */
#define INSIDE "shm ofi:verbs ofi:tcp|loop; cma"
#define OUTSIDE "ofi:verbs ofi:tcp|loop shm;|cma"

static const struct {
    const char *name_a, *name_b;   /* NULL: one machine, two cores */
    uint32_t core_a, core_b;
    enum tpt_locality locality;
    const char *order;
    uint32_t latency_ns;           /* of the first */
    uint32_t megabytes;
    uint32_t tcp_megabytes;        /* of ofi:tcp, which 10000 NICs limit */
    uint64_t cma_from;             /* 0: no channel */
} orders[] = {
    { "one-socket", NULL, 0, 1, TPT_SAME_L3, INSIDE, 250, 12000, 3000, 54000 },
    { "two-socket", NULL, 0, 1, TPT_SAME_L3, INSIDE, 250, 12000, 3000, 54000 },
    { "two-socket", NULL, 0, 6, TPT_SAME_HOST, INSIDE, 550, 7200, 1800,
      38880 },
    { "sub-numa", NULL, 0, 1, TPT_SAME_L3, INSIDE, 250, 12000, 3000, 54000 },
    { "sub-numa", NULL, 0, 3, TPT_SAME_PACKAGE, INSIDE, 370, 10200, 2550,
      49572 },
    { "sub-numa", NULL, 0, 6, TPT_SAME_HOST, INSIDE, 550, 7200, 1800, 38880 },
    { "chiplets", NULL, 0, 1, TPT_SAME_L2, INSIDE, 250, 12000, 3000, 54000 },
    { "chiplets", NULL, 0, 2, TPT_SAME_L3, INSIDE, 250, 12000, 3000, 54000 },
    { "chiplets", NULL, 0, 15, TPT_SAME_NUMA, INSIDE, 330, 11400, 2850,
      54036 },
    { "small-vm", NULL, 0, 1, TPT_SAME_NUMA, INSIDE, 330, 11400, 2850, 54036 },
    { "cloud-vm", NULL, 0, 1, TPT_SAME_L3, INSIDE, 250, 12000, 3000, 54000 },
    { "no-l3", NULL, 0, 3, TPT_SAME_NUMA, INSIDE, 330, 11400, 2850, 54036 },
    { "nics-rdma", NULL, 0, 1, TPT_SAME_L3, INSIDE, 250, 12000, 3000, 54000 },
    { "nics-rdma", NULL, 0, 4, TPT_SAME_HOST, INSIDE, 550, 7200, 1800, 38880 },
    { "nics-slow", NULL, 0, 1, TPT_SAME_L3, INSIDE, 250, 12000, 3000, 54000 },
    { "gpu-switches", NULL, 0, 1, TPT_SAME_L3, INSIDE, 250, 12000, 3000,
      54000 },
    { "gpu-switches", NULL, 0, 8, TPT_SAME_HOST, INSIDE, 550, 7200, 1800,
      38880 },
    { "power-nvlink", NULL, 0, 1, TPT_SAME_L2, INSIDE, 250, 12000, 3000,
      54000 },
    { "power-nvlink", NULL, 0, 2, TPT_SAME_NUMA, INSIDE, 330, 11400, 2850,
      54036 },
    { "power-nvlink", NULL, 0, 8, TPT_SAME_HOST, INSIDE, 550, 7200, 1800,
      38880 },
    /* Like machines. */
    { "one-socket", "one-socket", 0, 0, TPT_OTHER_HOST, OUTSIDE, 1900, 24000,
      3000, 0 },
    { "nics-rdma", "nics-rdma", 0, 0, TPT_OTHER_HOST, OUTSIDE, 1900, 24000,
      3000, 0 },
    { "gpu-switches", "gpu-switches", 0, 8, TPT_OTHER_HOST, OUTSIDE, 1900,
      24000, 3000, 0 },
    { "power-nvlink", "power-nvlink", 0, 8, TPT_OTHER_HOST, OUTSIDE, 1900,
      12500, 3000, 0 },
    { "nics-slow", "nics-slow", 0, 0, TPT_OTHER_HOST, OUTSIDE, 1900, 24000,
      125, 0 },
    /* Unlike ones: the worse end counts. */
    { "nics-rdma", "nics-slow", 0, 0, TPT_OTHER_HOST, OUTSIDE, 1900, 24000,
      125, 0 },
    { "small-vm", "one-socket", 0, 0, TPT_OTHER_HOST, OUTSIDE, 1900, 24000,
      3000, 0 },
    { "gpu-switches", "power-nvlink", 0, 0, TPT_OTHER_HOST, OUTSIDE, 1900,
      12500, 3000, 0 },
    { "gpu-switches", "nics-slow", 8, 0, TPT_OTHER_HOST, OUTSIDE, 1900, 24000,
      125, 0 },
    { "power-nvlink", "chiplets", 8, 3, TPT_OTHER_HOST, OUTSIDE, 1900, 12500,
      3000, 0 },
    { "sub-numa", "cloud-vm", 11, 1, TPT_OTHER_HOST, OUTSIDE, 1900, 24000,
      3000, 0 },
};

START_TEST(test_orders)
{
    const struct tpt_candidate *cma;

    if (orders[_i].name_b == NULL)
        pair(orders[_i].name_a, orders[_i].core_a, orders[_i].core_b);
    else
        hosts_at(orders[_i].name_a, orders[_i].core_a, orders[_i].name_b,
                 orders[_i].core_b);
    tpx_card_channel(&a, "cma", "", 1500, 18000);
    tpx_card_channel(&b, "cma", "", 1500, 18000);
    score(NULL, NULL);
    ck_assert_str_eq(tpt_locality_name(plan.locality),
                     tpt_locality_name(orders[_i].locality));
    ck_assert_str_eq(order(&plan), orders[_i].order);
    ck_assert_int_eq(plan.candidates[0].reason, TPT_REASON_CHOSEN);
    ck_assert_int_eq(tpt_plan_best(&plan), 0);
    ck_assert_uint_eq(plan.candidates[0].latency_ns, orders[_i].latency_ns);
    ck_assert_uint_eq(plan.candidates[0].megabytes, orders[_i].megabytes);
    ck_assert_uint_eq(find("ofi:tcp")->megabytes, orders[_i].tcp_megabytes);
    cma = find("cma");
    ck_assert_int_eq(cma->reason, orders[_i].cma_from != 0 ? TPT_REASON_CHOSEN
                     : TPT_REASON_NOT_SAME_HOST);
    ck_assert_uint_eq(cma->from_bytes, orders[_i].cma_from != 0
                      ? orders[_i].cma_from : UINT64_MAX);
    /* The other side sees the same. */
    ck_assert_int_eq(tpt_score(&b, &a, NULL, &mirror, NULL), TP_OK);
    ck_assert_str_eq(order(&plan), order(&mirror));
}
END_TEST

START_TEST(test_self)
{
    pair("one-socket", 0, 0);
    b = a;
    score(NULL, NULL);
    ck_assert_int_eq(plan.locality, TPT_SAME_PROCESS);
    ck_assert_str_eq(order(&plan), "loop|ofi:tcp ofi:verbs shm");
    ck_assert_int_eq(find("shm")->reason, TPT_REASON_NOT_OTHER_PROCESS);
}
END_TEST

/* ---- the model --------------------------------------------------------- */

START_TEST(test_terms)
{
    pair("one-socket", 0, 1);
    a.backends[1].latency_ns = 300;
    b.backends[1].megabytes = 8000;
    score(NULL, NULL);
    /* The slower side of each; 65536 / 8000 MB/s = 8.192 us. */
    ck_assert_uint_eq(find("shm")->latency_ns, 300);
    ck_assert_uint_eq(find("shm")->megabytes, 8000);
    ck_assert_uint_eq(find("shm")->cost_ns, 8492);
}
END_TEST

START_TEST(test_slow_nic_limits)
{
    hosts("nics-rdma", "nics-slow");
    a.backends[3].megabytes = b.backends[3].megabytes = 50000;
    score(NULL, NULL);
    /* 1 Gb/s at the one end: 125 MB/s. */
    ck_assert_uint_eq(find("ofi:tcp")->megabytes, 125);
    ck_assert_ptr_nonnull(strstr(find("ofi:tcp")->evidence, "NIC eth0"));
    /* The other end has no RDMA device of a known speed: 200 Gb/s limit. */
    ck_assert_uint_eq(find("ofi:verbs")->megabytes, 25000);
    ck_assert_ptr_nonnull(strstr(find("ofi:verbs")->evidence, "NIC mlx5_0"));
    /* Inside a host no NIC matters. */
    pair("nics-slow", 0, 1);
    score(NULL, NULL);
    ck_assert_uint_eq(find("ofi:tcp")->megabytes, 3000);
    /* But an RDMA device, whose link the data passes twice. */
    ck_assert_uint_eq(find("ofi:verbs")->megabytes, 12000);
}
END_TEST

START_TEST(test_far_nic)
{
    hosts("nics-rdma", "nics-rdma");
    for (uint32_t i = 0; i < a.nic_count; i++)
        if (strcmp(a.nics[i].name, "mlx5_0") == 0)
            a.nics[i].megabits = 0;
    score(NULL, NULL);
    /* Only mlx5_1 is left, at the other node: 90 % of 25000. */
    ck_assert_uint_eq(find("ofi:verbs")->megabytes, 22500);
    ck_assert_ptr_nonnull(strstr(find("ofi:verbs")->evidence, "NIC mlx5_1"));
    /* And the way there is longer, on the one side. */
    ck_assert_uint_eq(find("ofi:verbs")->latency_ns, 900 + 1000 + 150);
    ck_assert_uint_eq(find("ofi:tcp")->latency_ns, 8000 + 1000);
    /* From a core over there it is not. */
    hosts_at("nics-rdma", 4, "nics-rdma", 0);
    score(NULL, NULL);
    ck_assert_uint_eq(find("ofi:verbs")->latency_ns, 900 + 1000);
}
END_TEST

/* ---- several NICs at once ---------------------------------------------- */

/* Between hosts: does rails beat ofi:tcp there, and by which speed? */
static const struct {
    const char *name_a, *name_b;
    uint32_t core_a, core_b;
    uint32_t megabits;             /* 0: as recorded; else of each NIC */
    const char *order;
    uint64_t rails, tcp;           /* MB/s */
    const char *words;             /* of rails' evidence */
} several[] = {
    /* Two NICs each, one of them far: 1250 + 90 % of it. */
    { "nics-two", "nics-two", 0, 0, 0, "rails ofi:tcp|loop shm", 2375, 1250,
      "limited by NICs eth0+eth1 of 20 Gb/s together" },
    /* At the other ends each is near once: the near one with the near one. */
    { "nics-two", "nics-two", 0, 4, 0, "rails ofi:tcp|loop shm", 2375, 1250,
      "of 20 Gb/s together" },
    { "nics-two", "nics-two", 0, 0, 1000, "rails ofi:tcp|loop shm", 237, 125,
      "limited by NICs eth0+eth1 of 2 Gb/s together" },
    /* The processor is what limits: more NICs do not help. */
    { "nics-two", "nics-two", 0, 0, 100000, "ofi:tcp rails|loop shm", 3000,
      3000, "model for other host" },
    /* One side has but one, which is as fast as these two together. */
    { "nics-two", "nics-rdma", 0, 0, 0, "rails ofi:tcp|loop shm", 2375, 1250,
      "limited by NICs eth0+eth1 of 20 Gb/s together" },
    { "nics-two", "nics-slow", 0, 0, 0, "ofi:tcp rails|loop shm", 125, 125,
      "limited by NIC eth0 of 1 Gb/s" },
    /* No NIC of a known speed there: the one side's. */
    { "nics-two", "one-socket", 0, 0, 0, "rails ofi:tcp|loop shm", 2375, 1250,
      "limited by NICs eth0+eth1 of 20 Gb/s together" },
};

START_TEST(test_several_nics)
{
    hosts_at(several[_i].name_a, several[_i].core_a, several[_i].name_b,
             several[_i].core_b);
    for (int i = 0; i < 2; i++) {
        struct tpt_card *card = i == 0 ? &a : &b;

        for (uint32_t j = 0; j < card->nic_count
                             && several[_i].megabits > 0; j++)
            card->nics[j].megabits = several[_i].megabits;
        card->backend_count = 3;   /* no verbs */
        tpx_card_rails(card);
    }
    score(NULL, NULL);
    ck_assert_str_eq(order(&plan), several[_i].order);
    ck_assert_uint_eq(find("rails")->megabytes, several[_i].rails);
    ck_assert_uint_eq(find("ofi:tcp")->megabytes, several[_i].tcp);
    ck_assert_msg(strstr(find("rails")->evidence, several[_i].words) != NULL,
                  "%s", find("rails")->evidence);
    ck_assert_int_eq(tpt_score(&b, &a, NULL, &mirror, NULL), TP_OK);
    ck_assert_str_eq(order(&plan), order(&mirror));
    for (uint32_t i = 0; i < plan.count; i++)
        ck_assert_uint_eq(plan.candidates[i].megabytes,
                          mirror.candidates[i].megabytes);
}
END_TEST

START_TEST(test_several_nics_inside)
{
    pair("nics-two", 0, 1);
    a.backend_count = b.backend_count = 3;
    tpx_card_rails(&a);
    tpx_card_rails(&b);
    score(NULL, NULL);
    /* Inside a host no NIC is touched. */
    ck_assert_str_eq(order(&plan), "shm ofi:tcp rails|loop");
    ck_assert_uint_eq(find("rails")->megabytes, 3000);
    ck_assert_str_eq(find("rails")->nic, "");
}
END_TEST

/* What was measured counts: two streams over one NIC may be faster. */
START_TEST(test_several_streams)
{
    hosts("cloud-vm", "cloud-vm");
    a.backend_count = b.backend_count = 3;
    tpx_card_rails(&a);
    tpx_card_rails(&b);
    ck_assert_uint_eq(a.backends[3].nics, 0);
    score(NULL, NULL);
    ck_assert_str_eq(order(&plan), "ofi:tcp rails|loop shm");
    a.backends[3].measured[TPT_OTHER_HOST] = (struct tpt_cost) { 9000, 4000 };
    score(NULL, NULL);
    ck_assert_str_eq(order(&plan), "rails ofi:tcp|loop shm");
    ck_assert_ptr_nonnull(strstr(find("rails")->evidence, "measured for "));
}
END_TEST

START_TEST(test_card_nics)
{
    pair("nics-two", 0, 0);
    ck_assert_uint_eq(tpt_card_nics(&a, TPT_NIC_IP, 4), 3);
    ck_assert_uint_eq(tpt_card_nics(&a, TPT_NIC_IP, 1), 0);
    ck_assert_uint_eq(tpt_card_nics(&a, TPT_NIC_RDMA, 4), 0);
    a.nics[0].megabits = 0;
    ck_assert_uint_eq(tpt_card_nics(&a, TPT_NIC_IP, 4), 0);
    pair("gpu-switches", 0, 0);
    ck_assert_uint_eq(tpt_card_nics(&a, TPT_NIC_RDMA, 16), 0xff00);
}
END_TEST

START_TEST(test_ties_by_name)
{
    pair("one-socket", 0, 1);
    a.backend_count = b.backend_count = 0;
    for (int i = 0; i < 3; i++) {
        tpx_card_add(&a, (const char *[]){ "c", "a", "b" }[i],
                     TPT_REACH_HOST, 100, 1000);
        tpx_card_add(&b, (const char *[]){ "b", "c", "a" }[i],
                     TPT_REACH_HOST, 100, 1000);
    }
    score(NULL, NULL);
    ck_assert_str_eq(order(&plan), "a b c");
}
END_TEST

START_TEST(test_no_bandwidth_given)
{
    pair("one-socket", 0, 1);
    a.backends[1].megabytes = 0;
    score(NULL, NULL);
    ck_assert_uint_eq(find("shm")->megabytes, 1);
    a.backend_count = b.backend_count = 0;
    score(NULL, NULL);
    ck_assert_uint_eq(plan.count, 0);
    ck_assert_int_eq(tpt_plan_best(&plan), -1);
}
END_TEST

/* ---- the reasons ------------------------------------------------------- */

static unsigned reasons_seen;

/* The candidate has this verdict, and says these words. */
static void expect(const char *name, enum tpt_reason reason,
                   const char *evidence, const char *remedy)
{
    const struct tpt_candidate *candidate = find(name);

    ck_assert_str_eq(tpt_reason_name(candidate->reason),
                     tpt_reason_name(reason));
    ck_assert_msg(strstr(candidate->evidence, evidence) != NULL, "%s",
                  candidate->evidence);
    ck_assert_msg(remedy == NULL ? candidate->remedy[0] == '\0'
                  : strstr(candidate->remedy, remedy) != NULL, "%s",
                  candidate->remedy);
    ck_assert_int_eq(candidate->possible, reason == TPT_REASON_CHOSEN
                     || reason == TPT_REASON_SLOWER);
    reasons_seen |= 1u << reason;
}

static void expect_channels(void)
{
    pair("one-socket", 0, 1);
    tpx_card_channel(&a, "rma", "ofi", 2000, 20000);
    tpx_card_channel(&b, "rma", "ofi", 2000, 20000);
    score(NULL, NULL);
    expect("rma", TPT_REASON_NEEDS_TRANSPORT, "over ofi only, and the "
           "transport is shm", "forbid shm in TP_BACKENDS, if");
}

static void expect_reach(void)
{
    pair("one-socket", 0, 1);
    score(NULL, NULL);
    expect("shm", TPT_REASON_CHOSEN, "same L3", NULL);
    expect("ofi:tcp", TPT_REASON_SLOWER, "same L3", NULL);
    expect("loop", TPT_REASON_NOT_SAME_PROCESS, "itself", NULL);
    b = a;
    score(NULL, NULL);
    expect("shm", TPT_REASON_NOT_OTHER_PROCESS, "others", NULL);
    hosts("one-socket", "small-vm");
    score(NULL, NULL);
    expect("shm", TPT_REASON_NOT_SAME_HOST, "host1 and host2", NULL);
    /* Names of hosts often differ at their ends. */
    snprintf(a.host.name, sizeof(a.host.name), "training-job-7f9c8d6b5-worker-0"
             ".pods.cluster.example");
    snprintf(b.host.name, sizeof(b.host.name), "training-job-7f9c8d6b5-worker-1"
             ".pods.cluster.example");
    score(NULL, NULL);
    expect("shm", TPT_REASON_NOT_SAME_HOST, "training-job-7f9c8d6b5-worker-0"
           ".pods.cluster.example and training-job-7f9c8d6b5-worker-1.pods."
           "cluster.example", NULL);
}

static void expect_probes(void)
{
    hosts("one-socket", "small-vm");
    a.backends[2].usable = 0;
    snprintf(a.backends[2].why, TPT_WORDS, "no address but the loopback's");
    b.backends[3].usable = 0;
    snprintf(b.backends[3].why, TPT_WORDS, "no RDMA device");
    score(NULL, NULL);
    expect("ofi:tcp", TPT_REASON_MINE_UNUSABLE, "no address but",
           "on this host");
    expect("ofi:verbs", TPT_REASON_YOURS_UNUSABLE, "no RDMA device", "host2");
    a.backend_count = 3;
    snprintf(b.backends[2].name, TPT_NAME, "ofi:efa");
    score(NULL, NULL);
    expect("ofi:verbs", TPT_REASON_MINE_LACKS, "the one here has not",
           "ofi:verbs");
    expect("ofi:tcp", TPT_REASON_YOURS_LACKS, "host2", "on host2");
}

static void expect_policy(void)
{
    pair("one-socket", 0, 1);
    score("^shm", NULL);
    expect("shm", TPT_REASON_FORBIDDEN, "TP_BACKENDS=^shm", "take shm out");
    score("^nonesuch,,ofi,shm", NULL);
    expect("ofi:tcp", TPT_REASON_FORBIDDEN, "", "take ofi out");
    expect("shm", TPT_REASON_FORBIDDEN, "", "take shm out");
    score("shm", NULL);
    expect("ofi:tcp", TPT_REASON_FORBIDDEN, "TP_BACKENDS=shm",
           "add ofi:tcp");
    b.backends[1].forbidden = 1;
    b.backends[1].usable = 0;
    score(NULL, NULL);
    expect("shm", TPT_REASON_FORBIDDEN, "TP_BACKENDS on host1", "host1");
    a.backends[1].forbidden = 1;
    score(NULL, NULL);
    expect("shm", TPT_REASON_FORBIDDEN, "TP_BACKENDS here", "here");
    pair("one-socket", 0, 1);
    score(NULL, "node:ofi:tcp,node:ofi:verbs");
    expect("shm", TPT_REASON_CONTRACT, "wants ofi:tcp, ofi:verbs for class "
           "node", "add node:shm");
    expect("ofi:verbs", TPT_REASON_CHOSEN, "", NULL);
}

static void expect_trial(void)
{
    pair("one-socket", 0, 1);
    score(NULL, NULL);
    tpt_plan_demote(&plan, "shm", "connect: Operation not permitted");
    expect("shm", TPT_REASON_TRIAL_FAILED, "not permitted", "^shm");
    expect("ofi:verbs", TPT_REASON_CHOSEN, "", NULL);
}

static void expect_devices(void)
{
    pair("gpu-switches", 0, 1);
    tpx_card_gpus(&a);
    tpx_card_gpus(&b);
    a.gpu_count = b.gpu_count = 1;
    b.gpus[0] = b.gpus[1];
    b.gpus[0].denied_count = 1;
    b.gpus[0].denied[0] = a.gpus[0].place.pci;
    score(NULL, NULL);
    expect("cuda_ipc", TPT_REASON_NO_PEER_ACCESS, "no access to each other",
           "nvidia-smi");
}

/* What only TP_BACKENDS makes is in every build with libfabric. */
START_TEST(test_named_on_one_side)
{
    hosts("one-socket", "small-vm");
    snprintf(a.backends[3].name, TPT_NAME, "ofi:sockets");
    score(NULL, NULL);
    expect("ofi:sockets", TPT_REASON_YOURS_LACKS, "TP_BACKENDS here names it",
           "name ofi:sockets in TP_BACKENDS on host2, too");
    expect("ofi:verbs", TPT_REASON_MINE_LACKS, "the one here has not",
           "build the tp here");
    ck_assert_int_eq(tpt_score(&b, &a, NULL, &plan, NULL), TP_OK);
    expect("ofi:sockets", TPT_REASON_MINE_LACKS, "TP_BACKENDS on host1 names",
           "name ofi:sockets in TP_BACKENDS here, too");
    /* One without libfabric. */
    b.backend_count = 2;
    score(NULL, NULL);
    expect("ofi:sockets", TPT_REASON_YOURS_LACKS, "the tp here has it",
           "build the tp on host2");
}
END_TEST

START_TEST(test_every_reason)
{
    reasons_seen = 0;
    expect_reach();
    expect_probes();
    expect_policy();
    expect_trial();
    expect_channels();
    expect_devices();
    ck_assert_uint_eq(reasons_seen, (1u << TPT_REASON_COUNT) - 1);
}
END_TEST

/* ---- trials ------------------------------------------------------------ */

START_TEST(test_demote)
{
    pair("one-socket", 0, 1);
    score(NULL, NULL);
    ck_assert_str_eq(order(&plan), "shm ofi:verbs ofi:tcp|loop");
    mirror = plan;
    tpt_plan_demote(&plan, "nonesuch", "x");
    ck_assert_mem_eq(&plan, &mirror, sizeof(plan));
    tpt_plan_demote(&plan, "ofi:verbs", "no answer");
    ck_assert_str_eq(order(&plan), "shm ofi:tcp|loop ofi:verbs");
    ck_assert_int_eq(plan.candidates[0].reason, TPT_REASON_CHOSEN);
    tpt_plan_demote(&plan, "shm", "refused");
    ck_assert_str_eq(order(&plan), "ofi:tcp|loop ofi:verbs shm");
    ck_assert_int_eq(plan.candidates[0].reason, TPT_REASON_CHOSEN);
    ck_assert_ptr_nonnull(strstr(find("shm")->remedy, "; TP_BACKENDS=^shm "
                                 "avoids the trial"));
    tpt_plan_demote(&plan, "ofi:tcp", "refused");
    /* Without the last one, too, there would be none. */
    ck_assert_ptr_null(strstr(find("ofi:tcp")->remedy, "TP_BACKENDS"));
    ck_assert_ptr_null(strstr(find("shm")->remedy, "TP_BACKENDS"));
    ck_assert_int_eq(tpt_plan_best(&plan), -1);
    ck_assert_uint_eq(plan.count, 4);
    tpt_plan_demote(&plan, "ofi:tcp", "again");
    ck_assert_str_eq(find("ofi:tcp")->evidence, "again");
    /* The other side's own trial of it did not fail. */
    tpt_plan_restore(&plan, "nonesuch");
    tpt_plan_restore(&plan, "loop");
    ck_assert_int_eq(tpt_plan_best(&plan), -1);
    tpt_plan_restore(&plan, "ofi:tcp");
    ck_assert_str_eq(order(&plan), "ofi:tcp|loop ofi:verbs shm");
    ck_assert_ptr_nonnull(strstr(find("shm")->remedy, "TP_BACKENDS=^shm"));
    ck_assert_int_eq(plan.candidates[0].reason, TPT_REASON_CHOSEN);
    tpt_plan_restore(&plan, "shm");
    ck_assert_str_eq(order(&plan), "shm ofi:tcp|loop ofi:verbs");
    ck_assert_int_eq(find("ofi:tcp")->reason, TPT_REASON_SLOWER);
}
END_TEST

/* ---- TP_BACKENDS and TP_REQUIRE ---------------------------------------- */

START_TEST(test_backends_policy)
{
    pair("one-socket", 0, 1);
    score("", NULL);
    ck_assert_str_eq(order(&plan), "shm ofi:verbs ofi:tcp|loop");
    score("ofi", NULL);
    ck_assert_str_eq(order(&plan), "ofi:verbs ofi:tcp|loop shm");
    score("^ofi:verbs,shm", NULL);
    ck_assert_str_eq(order(&plan), "ofi:tcp|loop ofi:verbs shm");
    score("nonesuch", NULL);
    ck_assert_int_eq(tpt_plan_best(&plan), -1);
}
END_TEST

/* Of those that are forbidden here, the remedy names one that the other side
 * has: to allow another would not connect the pair. */
START_TEST(test_barred)
{
    struct tpb_text text = { 0 };

    pair("one-socket", 0, 1);
    b.backends[1].forbidden = 1;
    b.backends[1].usable = 0;
    score("ofi:verbs", NULL);
    ck_assert(find("shm")->barred && !find("ofi:tcp")->barred);
    tpt_plan_refusal(&plan, &text);
    ck_assert_ptr_nonnull(strstr(text.text, "ofi:tcp, shm (forbidden: "
                                 "TP_BACKENDS=ofi:verbs here; remedy: add "
                                 "ofi:tcp to TP_BACKENDS)"));
    tpb_text_fini(&text);
}
END_TEST

/* What both forbid: the remedy is that of who is wanted, and of the others both
 * that lack. */
START_TEST(test_both_policies)
{
    struct tpb_text text = { 0 };

    pair("one-socket", 0, 1);
    score("ofi:verbs", "node:shm");
    ck_assert_str_eq(find("ofi:tcp")->remedy, "add ofi:tcp to TP_BACKENDS, "
                     "and add node:ofi:tcp to TP_REQUIRE");
    ck_assert_str_eq(find("shm")->remedy, "add shm to TP_BACKENDS");
    tpt_plan_refusal(&plan, &text);
    ck_assert_str_eq(text.text, "ofi:verbs (contract: TP_REQUIRE wants shm for "
                     "class node; remedy: add node:ofi:verbs to TP_REQUIRE); "
                     "ofi:tcp, shm (forbidden: TP_BACKENDS=ofi:verbs here; "
                     "remedy: add shm to TP_BACKENDS)");
    tpb_text_fini(&text);
}
END_TEST

static const struct {
    const char *require;
    enum tpt_locality locality;
    const char *backend;
    enum tpt_allowance allowance;
} contracts[] = {
    { NULL, TPT_SAME_L3, "shm", TPT_FREE },
    { "", TPT_OTHER_HOST, "ofi:tcp", TPT_FREE },
    { "node:shm", TPT_SAME_L3, "shm", TPT_ALLOWED },
    { "node:shm", TPT_SAME_HOST, "ofi:tcp", TPT_DENIED },
    { "node:shm", TPT_SAME_PROCESS, "loop", TPT_FREE },
    { "node:shm", TPT_OTHER_HOST, "ofi:tcp", TPT_FREE },
    { "node:shm,net:ofi:tcp", TPT_OTHER_HOST, "ofi:tcp", TPT_ALLOWED },
    { "node:shm,net:ofi:tcp", TPT_OTHER_HOST, "ofi:verbs", TPT_DENIED },
    { "node:shm,net:ofi:tcp", TPT_SAME_CORE, "ofi:tcp", TPT_DENIED },
    { "net:ofi", TPT_OTHER_HOST, "ofi:tcp", TPT_ALLOWED },
    { "net:of", TPT_OTHER_HOST, "ofi:tcp", TPT_FREE },
    { "node:shm,node:cma", TPT_SAME_L2, "cma", TPT_ALLOWED },
    { "node:shm,node:cma", TPT_SAME_L2, "shm", TPT_ALLOWED },
    { "node:shm,node:cma", TPT_SAME_L2, "shm2", TPT_DENIED },
    { "node:shm,node:cma", TPT_SAME_L2, "map", TPT_DENIED },
    { "node:shm", TPT_SAME_L2, "cma", TPT_FREE },
    { "node:cma", TPT_SAME_L2, "shm", TPT_FREE },
    { "node:cma", TPT_SAME_L2, "map", TPT_DENIED },
    { "net:verbs", TPT_OTHER_HOST, "ofi:verbs", TPT_ALLOWED },
    { "net:verbs", TPT_OTHER_HOST, "ofi:tcp", TPT_DENIED },
    { "net:verb", TPT_OTHER_HOST, "ofi:verbs", TPT_FREE },
    { "node:shm", TPT_SAME_L3, "ofi:shm", TPT_DENIED },
    { "node:ofi:shm", TPT_SAME_L3, "ofi:shm", TPT_ALLOWED },
    { "self:loop", TPT_SAME_PROCESS, "loop", TPT_ALLOWED },
    { "self:loop", TPT_SAME_PROCESS, "shm", TPT_DENIED },
    { "any:shm", TPT_OTHER_HOST, "ofi:tcp", TPT_DENIED },
    { "any:shm,net:ofi:tcp", TPT_OTHER_HOST, "ofi:tcp", TPT_ALLOWED },
    { "any:shm,net:ofi:tcp", TPT_OTHER_HOST, "shm", TPT_ALLOWED },
    { " node:shm , net:ofi:tcp ", TPT_SAME_NUMA, "shm", TPT_ALLOWED },
    { " node:shm , net:ofi:tcp ", TPT_OTHER_HOST, "ofi:tcp", TPT_ALLOWED },
};

static const struct tpt_known known[] = {
    { "loop", TPT_ROLE_TRANSPORT }, { "shm", TPT_ROLE_TRANSPORT },
    { "shm2", TPT_ROLE_TRANSPORT }, { "ofi:tcp", TPT_ROLE_TRANSPORT },
    { "ofi:verbs", TPT_ROLE_TRANSPORT }, { "ofi:shm", TPT_ROLE_TRANSPORT },
    { "cma", TPT_ROLE_CHANNEL }, { "map", TPT_ROLE_CHANNEL }
};

START_TEST(test_contract)
{
    struct tpb_error error = { "" };
    enum tpt_allowance allowance = (enum tpt_allowance)-1;
    size_t i = 0;

    while (strcmp(known[i].name, contracts[_i].backend) != 0)
        i++;
    ck_assert_msg(tpt_require_allows(contracts[_i].require,
                                     contracts[_i].locality, known,
                                     TPB_COUNT(known), &known[i], &allowance,
                                     &error) == TP_OK, "%s", error.text);
    ck_assert_int_eq(allowance, contracts[_i].allowance);
}
END_TEST

static const struct { const char *require, *words; } mistakes[] = {
    { "shm", "\"shm\" is not CLASS:BACKEND" },
    { "node", "\"node\" is not CLASS:BACKEND" },
    { "node:", "\"node:\" is not CLASS:BACKEND" },
    { ":shm", "\":shm\" is not CLASS:BACKEND" },
    { ":", "\":\" is not CLASS:BACKEND" },
    { ",", "is not CLASS:BACKEND" },
    { " ", "is not CLASS:BACKEND" },
    { "node:shm,", "\"\" is not CLASS:BACKEND" },
    { ",node:shm", "\"\" is not CLASS:BACKEND" },
    { "node:shm,,net:shm", "\"\" is not CLASS:BACKEND" },
    { "host:shm", "unknown class \"host\"; there are self, node, net, any and "
      "cuda" },
    { "nod:shm", "unknown class \"nod\"" },
    { "nodes:shm", "unknown class \"nodes\"" },
    { "node:shm,NET:ofi:tcp", "unknown class \"NET\"" },
    { "node:shmm", "unknown backend \"shmm\"; known here: loop, shm, ofi:tcp" },
    { "node:sh", "unknown backend \"sh\"" },
    { "net:ofi:tcp2", "unknown backend \"ofi:tcp2\"" },
    { "net:ofi:", "unknown backend \"ofi:\"" },
};

START_TEST(test_contract_mistakes)
{
    struct tpt_policy policy = { NULL, mistakes[_i].require };
    struct tpb_error error = { "" };

    pair("one-socket", 0, 1);
    memset(&plan, 0x5a, sizeof(plan));
    mirror = plan;
    ck_assert_int_eq(tpt_score(&a, &b, &policy, &plan, &error),
                     TP_ERR_INVALID);
    ck_assert_msg(strstr(error.text, mistakes[_i].words) != NULL
                  && strstr(error.text, "TP_REQUIRE") != NULL, "%s",
                  error.text);
    ck_assert_mem_eq(&plan, &mirror, sizeof(plan));
    ck_assert_int_eq(tpt_score(&a, &b, &policy, &plan, NULL), TP_ERR_INVALID);
}
END_TEST

START_TEST(test_check_early)
{
    static const struct tpt_known names[] = {
        { "shm", TPT_ROLE_TRANSPORT }, { "ofi:tcp", TPT_ROLE_TRANSPORT }
    };
    struct tpb_error error = { "" };

    ck_assert_int_eq(tpt_require_check(NULL, names, 2, &error), TP_OK);
    ck_assert_int_eq(tpt_require_check("node:shm,net:ofi", names, 2, &error),
                     TP_OK);
    ck_assert_int_eq(tpt_require_check("any:tcp", names, 2, &error), TP_OK);
    ck_assert_int_eq(tpt_require_check("node:loop", names, 2, &error),
                     TP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "known here: shm, ofi:tcp"));
    ck_assert_int_eq(tpt_require_check("node:loop", NULL, 0, &error),
                     TP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "known here: none"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("score");
    TCase *tests = tcase_create("score");

    tcase_set_timeout(tests, 180);
    tcase_add_loop_test(tests, test_orders, 0, TPB_COUNT(orders));
    tcase_add_test(tests, test_self);
    tcase_add_test(tests, test_terms);
    tcase_add_test(tests, test_slow_nic_limits);
    tcase_add_test(tests, test_far_nic);
    tcase_add_loop_test(tests, test_several_nics, 0, TPB_COUNT(several));
    tcase_add_test(tests, test_several_nics_inside);
    tcase_add_test(tests, test_several_streams);
    tcase_add_test(tests, test_card_nics);
    tcase_add_test(tests, test_ties_by_name);
    tcase_add_test(tests, test_no_bandwidth_given);
    tcase_add_test(tests, test_named_on_one_side);
    tcase_add_test(tests, test_every_reason);
    tcase_add_test(tests, test_demote);
    tcase_add_test(tests, test_backends_policy);
    tcase_add_test(tests, test_barred);
    tcase_add_test(tests, test_both_policies);
    tcase_add_loop_test(tests, test_contract, 0, TPB_COUNT(contracts));
    tcase_add_loop_test(tests, test_contract_mistakes, 0,
                        TPB_COUNT(mistakes));
    tcase_add_test(tests, test_check_early);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
