/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Every reason code, from real ranks that really cannot, or that are told to
 * pretend (TP_CARD_HOOK); and the JSON that they print, member by member
 * against tp_explain(7).
 */
#include "config.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "tests/launcher/run.h"
#include "topology/score.h"

/* By enum tpt_reason; what is not there fails. */
static const struct reason_case {
    const char *who, *peer;        /* whose pipe to whom is explained */
    const char *settings[2];       /* RANK:VARIABLE=VALUE */
    const char *backend;
    const char *evidence, *remedy; /* some words of each; NULL: no remedy */
    const char *mine, *yours;      /* a member of the verdict that is false,
                                      or, after a +, true; NULL: not asked */
} reasons[TPT_REASON_COUNT] = {
    [TPT_REASON_CHOSEN] = { "0", "1", { NULL }, "shm", "model for ", NULL,
                            "+usable", "+usable" },
    [TPT_REASON_SLOWER] = { "1", "0", { NULL }, "ofi:tcp", "model for ", NULL,
                            "+usable", "+usable" },
    [TPT_REASON_NOT_SAME_PROCESS] = { "0", "1", { NULL }, "loop",
                                      "a rank to itself only", NULL, "+built",
                                      "+built" },
    [TPT_REASON_NOT_SAME_HOST] = { "0", "1", { "1:TP_CARD_HOOK=host" }, "shm",
                                   " and elsewhere", NULL, NULL, NULL },
    [TPT_REASON_MINE_UNUSABLE] = { "1", "0", { "1:TP_IFACE=nonesuch0" },
                                   "ofi:tcp", "", "on this host", "usable",
                                   "+usable" },
    [TPT_REASON_YOURS_UNUSABLE] = { "0", "1", { "1:TP_IFACE=nonesuch0" },
                                    "ofi:tcp", "", "fix that on", "+usable",
                                    "usable" },
    [TPT_REASON_MINE_LACKS] = { "1", "0", { "1:TP_CARD_HOOK=lacks=shm" },
                                "shm", "the one here has not",
                                "build the tp here with shm", "built",
                                "+built" },
    [TPT_REASON_YOURS_LACKS] = { "0", "1", { "1:TP_CARD_HOOK=lacks=shm" },
                                 "shm", "the tp here has it", "as here",
                                 "+built", "built" },
    [TPT_REASON_FORBIDDEN] = { "0", "1", { "1:TP_BACKENDS=^shm" }, "shm",
                               "by TP_BACKENDS on ", "allow shm", "+usable",
                               "+forbidden" },
    [TPT_REASON_CONTRACT] = { "0", "1", { "0:TP_REQUIRE=node:tcp" }, "shm",
                              "TP_REQUIRE wants tcp for class node",
                              "add node:shm to TP_REQUIRE", NULL, NULL },
    [TPT_REASON_TRIAL_FAILED] = { "0", "1", { "*:TP_CARD_HOOK=address=shm" },
                                  "shm", "", "TP_BACKENDS=^shm", "+usable",
                                  "+usable" },
    [TPT_REASON_NOT_OTHER_PROCESS] = { "0", "0", { NULL }, "shm",
                                       "a rank to others only", NULL, NULL,
                                       NULL },
    [TPT_REASON_NEEDS_TRANSPORT] = { "0", "1", { "*:TP_CARD_HOOK=over=cma" },
                                     "cma", "goes over ofi only, and the "
                                     "transport is shm", "forbid shm in "
                                     "TP_BACKENDS, if you want it anyway",
                                     NULL, NULL },
    [TPT_REASON_NO_PEER_ACCESS] = { "0", "1",
                                    { "*:TP_CARD_HOOK=denied",
                                      "*:TP_CUDA_LIBRARY=libcuda.so.1" },
                                    "cuda_ipc", "no access to each other's",
                                    "nvidia-smi topo", "+usable", "+usable" },
};

/* The last one is of a channel that not every build has. */
#ifdef TP_CUDA
enum { REASONS_HERE = TPT_REASON_COUNT };
#else
enum { REASONS_HERE = TPT_REASON_NO_PEER_ACCESS };
#endif

/* The explanation of that case; with `explain` "1" the ranks' tables, too. */
static json_t *reasons_launch(const struct reason_case *row,
                              const char *explain)
{
    struct tpx_launch launch = { 0 };
    json_error_t error;
    json_t *root;

    setenv("TP_EXPLAIN", explain, 1);
    tpx_run_tprun(&launch, "-n", "2",
                  tpx_program("tests/launcher/explainer"), row->who, row->peer,
                  row->settings[0], row->settings[1]);
    root = json_loads(launch.out, JSON_REJECT_DUPLICATES, &error);
    unsetenv("TP_EXPLAIN");
    ck_assert_msg(root != NULL && launch.status == 0, "status %d, %s: %.2000s",
                  launch.status, root != NULL ? "" : error.text, launch.err);
    if (*explain == '1')
        for (int i = 0; i < 2; i++)
            ck_assert_msg(strstr(launch.err, i == 0 ? " trial here: may not "
                                 "read pid" : " trial there: may not read "
                                 "pid") != NULL, "%s", launch.err);
    tpx_release(&launch);
    return root;
}

static json_t *reasons_run(const struct reason_case *row)
{
    ck_assert_msg(row->who != NULL, "a reason without a case: %s",
                  tpt_reason_name((enum tpt_reason)(row - reasons)));
    return reasons_launch(row, "0");
}

static const char *reasons_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    ck_assert_msg(text != NULL, "no %s", key);
    return text;
}

static json_t *reasons_find(json_t *root, const char *name)
{
    json_t *list = json_object_get(root, "candidates"), *candidate;
    size_t i;

    json_array_foreach(list, i, candidate)
        if (strcmp(reasons_text(candidate, "name"), name) == 0)
            return candidate;
    ck_abort_msg("no candidate %s", name);
}

/* "+usable": true there; "usable": false. */
static void reasons_verdict(const json_t *candidate, const char *side,
                            const char *wanted)
{
    const json_t *verdict = json_object_get(candidate, side), *member;

    if (wanted == NULL)
        return;
    member = json_object_get(verdict, wanted + (*wanted == '+'));
    ck_assert(json_is_boolean(member));
    ck_assert_msg(json_is_true(member) == (*wanted == '+'), "%s: %s", side,
                  wanted);
}

START_TEST(test_reason)
{
    const struct reason_case *row = &reasons[_i];
    json_t *root = reasons_run(row), *candidate;
    const char *remedy;

    candidate = reasons_find(root, row->backend);
    ck_assert_str_eq(reasons_text(candidate, "reason"),
                     tpt_reason_name((enum tpt_reason)_i));
    ck_assert_int_eq(json_integer_value(json_object_get(candidate,
                                                        "reason_code")), _i);
    ck_assert_msg(strstr(reasons_text(candidate, "evidence"), row->evidence)
                  != NULL, "%s", reasons_text(candidate, "evidence"));
    ck_assert_str_ne(reasons_text(candidate, "evidence"), "");
    remedy = reasons_text(candidate, "remedy");
    ck_assert_msg(row->remedy == NULL ? *remedy == '\0'
                  : strstr(remedy, row->remedy) != NULL, "%s", remedy);
    ck_assert_int_eq(json_is_true(json_object_get(candidate, "possible")),
                     _i == TPT_REASON_CHOSEN || _i == TPT_REASON_SLOWER);
    reasons_verdict(candidate, "mine", row->mine);
    reasons_verdict(candidate, "yours", row->yours);
    json_decref(root);
}
END_TEST

/* ---- trials ------------------------------------------------------------ */

/* Does that side's trial of cma say so?  The words of a refusal. */
static void trial_says(const json_t *candidate, const char *side,
                       const char *words)
{
    const json_t *trial = json_object_get(json_object_get(candidate, side),
                                          "trial");
    const json_t *passed = json_object_get(trial, "passed");

    ck_assert_msg(json_is_boolean(passed), "no trial of %s", side);
    ck_assert_msg(json_is_true(passed) == (words == NULL), "%s: %s", side,
                  reasons_text(trial, "words"));
    ck_assert_msg(strstr(reasons_text(trial, "words"), words != NULL
                         ? words : "") != NULL, "%s: %s", side,
                  reasons_text(trial, "words"));
}

/* Rank 0 may not read rank 1, but rank 1 may read rank 0: each tells both. */
START_TEST(test_trials)
{
    static const struct reason_case cases[] = {
        { .who = "0", .peer = "1",
          .settings = { "0:EXPLAINER=weak", "1:EXPLAINER=hide" } },
        { .who = "1", .peer = "0",
          .settings = { "0:EXPLAINER=weak", "1:EXPLAINER=hide" } },
    };
    static const char no[] = "not permitted";
    json_t *root = reasons_launch(&cases[_i], "1"), *cma;

    cma = reasons_find(root, "cma");
    trial_says(cma, "mine", _i == 0 ? no : NULL);
    trial_says(cma, "yours", _i == 0 ? NULL : no);
    ck_assert_int_eq(json_is_true(json_object_get(cma, "possible")), _i == 0);
    if (_i == 1) {
        ck_assert_str_eq(reasons_text(cma, "reason"), "trial_failed");
        ck_assert_ptr_nonnull(strstr(reasons_text(cma, "evidence"), no));
    }
    /* The transport, which both tried by connecting. */
    trial_says(reasons_find(root, "shm"), "mine", NULL);
    trial_says(reasons_find(root, "shm"), "yours", NULL);
    json_decref(root);
}
END_TEST

/* Rank 0 does not find rank 1's socket, which waits for anybody: what only one
 * has tried is told to both. */
START_TEST(test_trials_transport)
{
    static const struct reason_case cases[] = {
        { .who = "0", .peer = "1",
          .settings = { "1:TP_CARD_HOOK=address=shm", "1:EXPLAINER=any" } },
        { .who = "1", .peer = "0",
          .settings = { "1:TP_CARD_HOOK=address=shm", "1:EXPLAINER=any" } },
    };
    json_t *root = reasons_launch(&cases[_i], "0"), *shm;

    shm = reasons_find(root, "shm");
    trial_says(shm, _i == 0 ? "mine" : "yours", "");
    ck_assert_str_eq(reasons_text(shm, "reason"), "trial_failed");
    json_decref(root);
}
END_TEST

/* ---- what is beneath --------------------------------------------------- */

/* Libfabric's provider, of ofi:tcp and of what rails make of it; shared memory
 * has nothing beneath. */
START_TEST(test_carrier)
{
    static const struct {
        struct reason_case launch;
        const char *ends;
    } cases[] = {
        { { .who = "0", .peer = "1", .backend = "ofi:tcp",
            .settings = { "*:TP_BACKENDS=ofi:tcp", "0:TP_OFI_TCP=tcp" } },
          "'s provider tcp" },
        { { .who = "1", .peer = "0", .backend = "ofi:tcp",
            .settings = { "*:TP_BACKENDS=ofi:tcp", "0:TP_OFI_TCP=tcp" } },
          NULL },
        { { .who = "0", .peer = "1", .backend = "rails",
            .settings = { "*:TP_BACKENDS=rails", "*:TP_RAILS=2" } }, NULL },
        { { .who = "0", .peer = "1", .backend = "shm" }, "" },
    };
    json_t *root = reasons_launch(&cases[_i].launch, "0"), *carrier;
    const char *ends = cases[_i].ends, *text;

    carrier = json_object_get(reasons_find(root, cases[_i].launch.backend),
                              "carrier");
    text = json_string_value(carrier);
    if (ends != NULL && *ends == '\0') {
        ck_assert(json_is_null(carrier));
    } else {
        ck_assert_pstr_ne(text, NULL);
        ck_assert_msg(strncmp(text, "libfabric 1.", 12) == 0, "%s", text);
        /* Before 1.18 the better one has a name of its own. */
        if (ends == NULL)
            ends = strncmp(text, "libfabric 1.17", 14) == 0
                   ? "'s provider net" : "'s provider tcp";
        ck_assert_msg(strlen(text) > strlen(ends)
                      && strcmp(text + strlen(text) - strlen(ends), ends) == 0,
                      "%s", text);
    }
    json_decref(root);
}
END_TEST

/* ---- the schema -------------------------------------------------------- */

/* The names of all members, each once, as " name name ". */
static void schema_collect(const json_t *value, struct tpb_text *names)
{
    const json_t *member;
    const char *key;
    char word[64];
    size_t i;

    if (json_is_array(value))
        json_array_foreach(value, i, member)
            schema_collect(member, names);
    json_object_foreach((json_t *)value, key, member) {
        snprintf(word, sizeof(word), " %s ", key);
        if (strstr(names->text, word) == NULL)
            tpb_text_add(names, "%s ", key);
        schema_collect(member, names);
    }
}

/* Those that the page names in its JSON section: the words after Va. */
static void schema_of_page(struct tpb_text *names)
{
    const char *source = getenv("TP_TEST_SOURCE");
    char path[1024], word[64], *page, *line, *save = NULL, *inner;

    snprintf(path, sizeof(path), "%s/man/man7/tp_explain.7",
             source != NULL ? source : ".");
    page = tpb_read_file(path, NULL);
    ck_assert_ptr_nonnull(page);
    line = strstr(page, ".Sh JSON\n");
    ck_assert_ptr_nonnull(line);
    for (line = strtok_r(line + 9, "\n", &save);
         line != NULL && strncmp(line, ".Sh ", 4) != 0;
         line = strtok_r(NULL, "\n", &save)) {
        char *va = strncmp(line, ".It Va ", 7) == 0   ? line + 7
                   : strncmp(line, ".Va ", 4) == 0    ? line + 4
                                                      : NULL;

        for (char *token = va != NULL ? strtok_r(va, " ,:;.()", &inner) : NULL;
             token != NULL; token = strtok_r(NULL, " ,:;.()", &inner)) {
            snprintf(word, sizeof(word), " %s ", token);
            if (strstr(names->text, word) == NULL)
                tpb_text_add(names, "%s ", token);
        }
    }
    tpb_free(page);
}

/* Every word of `a` is in `b`. */
static void schema_within(const char *a, const char *b, const char *where)
{
    char word[64];

    for (a++; *a != '\0'; a += strcspn(a, " ") + 1) {
        snprintf(word, sizeof(word), " %.*s ", (int)strcspn(a, " "), a);
        ck_assert_msg(strstr(b, word) != NULL, "%s:%s", where, word);
    }
}

START_TEST(test_schema)
{
    struct tpb_text output = { 0 }, page = { 0 };
    /* With GPUs, where the build knows of them. */
    json_t *root = reasons_run(&reasons[REASONS_HERE - 1]);

    tpb_text_add(&output, " ");
    tpb_text_add(&page, " ");
    schema_collect(root, &output);
    schema_of_page(&page);
    schema_within(output.text, page.text, "printed but not in tp_explain(7)");
    if (REASONS_HERE == (int)TPT_REASON_COUNT)
        schema_within(page.text, output.text,
                      "in tp_explain(7) but not printed");
    ck_assert_int_eq(json_integer_value(json_object_get(root, "version")), 1);
    json_decref(root);
    tpb_text_fini(&output);
    tpb_text_fini(&page);
}
END_TEST

/* ---- the contract ------------------------------------------------------ */

/* Refused: the job ends, and its last words name the contract and the remedy;
 * if it cannot be understood, before anything happens. */
static const struct {
    const char *require, *backends, *words[3];
} refusals[] = {
    { "node:shm", "^shm",
      { "forbidden", "remedy: take shm out of TP_BACKENDS" } },
    { "node:tcp,net:shm", "shm,map,cma",
      { "TP_REQUIRE wants tcp for class node", "remedy: add node:shm" } },
    { "node:cma", "^cma",
      { "TP_REQUIRE wants cma for class node", "take cma out of TP_REQUIRE" } },
    { "node:tcp,any:map,node:cma", "shm,map",
      { "TP_REQUIRE wants tcp for class node",
        "(forbidden: TP_BACKENDS=shm,map here" } },
    { "here:shm", "",
      { "unknown class \"here\"", "self, node, net, any and cuda" } },
    { "cuda:shm", "",
      { "class cuda is of GPUs' memory, and shm carries none" } },
    { "node:smh", "",
      { "unknown backend \"smh\"", "known here: loop, shm" } },
};

START_TEST(test_refused)
{
    struct tpx_launch launch = { 0 };

    setenv("TP_BACKENDS", refusals[_i].backends, 1);
    tpx_run_tprun(&launch, "-n", "2", "--require", refusals[_i].require,
                  tpx_program("man/examples/ring"));
    unsetenv("TP_BACKENDS");
    ck_assert_int_ne(launch.status, 0);
    for (const char *const *word = refusals[_i].words; *word != NULL; word++)
        ck_assert_msg(strstr(launch.err, *word) != NULL, "no \"%s\" in %s",
                      *word, launch.err);
    tpx_release(&launch);
}
END_TEST

static int reasons_count(const char *text, const char *words)
{
    int count = 0;

    for (; (text = strstr(text, words)) != NULL; text += strlen(words))
        count++;
    return count;
}

/* One job that ends so; was its program told before, and was that heard which
 * it had to say when it left? */
static bool reasons_broken(const char *reaction)
{
    struct tpx_launch launch = { 0 };
    bool told;

    tpx_run_tprun(&launch, "-n", "2", "--require", "node:tcp",
                  tpx_program("tests/launcher/talk"), reaction);
    ck_assert_msg(launch.status == 1, "%d: %s", launch.status, launch.err);
    ck_assert_msg(reasons_count(launch.err, "TP_REQUIRE wants tcp") == 1
                  && strstr(launch.err, "ended the job with status 1: no "
                            "backend reaches rank ") != NULL
                  && strstr(launch.err, "remedy: add node:shm") != NULL,
                  "%s", launch.err);
    told = strstr(launch.out, ": no backend reaches the peer") != NULL
           && (strcmp(reaction, "exit") != 0
               || strstr(launch.out, "goes\n") != NULL);
    tpx_release(&launch);
    return told;
}

/* The launcher insists: the job ends by the first pair that has to break the
 * contract, after the program was told, whatever that makes of it.  It has a
 * tenth of a second for that; on a busy machine this may be over before it has
 * said a word. */
START_TEST(test_broken)
{
    static const char *const reactions[] = { "stay", "exit", "ring" };
    bool told = false;

    setenv("TP_BACKENDS", "shm", 1);
    for (int turn = 0; turn < 5 && !told; turn++)
        told = reasons_broken(reactions[_i]);
    ck_assert_msg(told, "the program was not told");
}
END_TEST

/* Not where the program is to go on, or where nobody but the ranks' environment
 * says it: there it is told, and goes on. */
START_TEST(test_told_only)
{
    struct tpx_launch launch = { 0 };
    const char *talk = tpx_program("tests/launcher/talk");

    setenv("TP_BACKENDS", "shm", 1);
    if (_i == 0) {
        tpx_run_tprun(&launch, "-n", "2", "--keep-going", "--require",
                      "node:tcp", talk, "ring");
    } else if (_i == 1) {
        tpx_run_tprun(&launch, "-n", "2", "-x", "TP_REQUIRE_ABORT=0",
                      "--require", "node:tcp", talk, "ring");
    } else {
        setenv("TP_REQUIRE", "node:tcp", 1);
        tpx_run_tprun(&launch, "-n", "2", talk, "ring");
        unsetenv("TP_REQUIRE");
    }
    ck_assert_msg(launch.status == 0, "%d: %s", launch.status, launch.err);
    ck_assert_msg(reasons_count(launch.out, ": no backend reaches the peer")
                  >= 1, "%s", launch.out);    /* or that the other has left */
    ck_assert_msg(reasons_count(launch.err, "peer: error: no backend reaches")
                  >= 1, "%s", launch.err);
    tpx_release(&launch);
}
END_TEST

/* One that nobody had met yet is dead: the launcher's word or the first refusal
 * tells, and no other way is tried, though there are some. */
START_TEST(test_unmet)
{
    static const char *const backends[] = {
        "loop,shm,ofi:tcp,rails", "loop,ofi:tcp,rails"
    };
    static const char without[] =
        "d=$(mktemp -d) && for i in 0 1 2; do env -u TP_DOOR"
        " TP_BOOTSTRAP=dir:$d TP_RANK=$i TP_SIZE=3 \"$0\" unmet & done; wait;"
        " rm -r \"$d\"";
    const char *talk = tpx_program("tests/launcher/talk");
    struct tpx_launch launch = { 0 };
    bool alone = _i >= 2;

    setenv("TP_BACKENDS", backends[_i % 2], 1);
    setenv("TP_RAILS", "2", 1);
    if (alone)
        tpx_run_tprun(&launch, "sh", "-c", without, talk);
    else
        tpx_run_tprun(&launch, "-n", "3", "--keep-going", talk, "unmet");
    ck_assert_msg(launch.status == (alone ? 0 : 137), "%d: %s", launch.status,
                  launch.err);
    ck_assert_msg(strstr(launch.out, "rank 0: the peer died") != NULL,
                  "%s: %s", launch.out, launch.err);
    if (alone)
        ck_assert_msg(strstr(launch.out, "tried 1: rank 1 on ") != NULL
                      && strstr(launch.out, "is gone: its process ended")
                         != NULL, "%s", launch.out);
    else
        ck_assert_msg(strstr(launch.out, "tried 0: rank 1 ") != NULL
                      || strstr(launch.out, "tried 1: rank 1 ") != NULL,
                      "%s", launch.out);
    tpx_release(&launch);
}
END_TEST

/* And kept: the same contracts where they can be. */
START_TEST(test_kept)
{
    static const char *const contracts[] = {
        "node:shm", "node:tcp", "node:shm,net:tcp", "any:ofi,any:shm"
    };
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "-n", "2", "--require", contracts[_i],
                  tpx_program("man/examples/ring"));
    ck_assert_msg(launch.status == 0, "%s", launch.err);
    ck_assert_msg(strstr(launch.out, _i == 1 ? "over ofi:tcp" : "over shm")
                  != NULL, "%s", launch.out);
    tpx_release(&launch);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reasons");
    TCase *tests = tcase_create("reasons");

    tcase_set_timeout(tests, 180);
    tcase_add_loop_test(tests, test_reason, 0, REASONS_HERE);
    tcase_add_loop_test(tests, test_trials, 0, 2);
    tcase_add_loop_test(tests, test_trials_transport, 0, 2);
    tcase_add_loop_test(tests, test_carrier, 0, 4);
    tcase_add_test(tests, test_schema);
    tcase_add_loop_test(tests, test_refused, 0, TPB_COUNT(refusals));
    tcase_add_loop_test(tests, test_broken, 0, 3);
    tcase_add_loop_test(tests, test_told_only, 0, 3);
    tcase_add_loop_test(tests, test_unmet, 0, 4);
    tcase_add_loop_test(tests, test_kept, 0, 4);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
