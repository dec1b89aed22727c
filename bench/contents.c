/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What is in the messages.  Word i of message n is n * C + i if the buffer is
 * rewritten (fresh), so that nothing old passes for new.  A reused buffer holds
 * the words of message 0 but for its first, which is stamped when contents are
 * verified.
 */
#include <string.h>

#include "bench/bench.h"

#define CONTENTS_STEP UINT64_C(0x9e3779b97f4a7c15)

typedef uint64_t contents_pair __attribute__((vector_size(16)));

static uint64_t contents_seed(uint64_t number)
{
    return (number + 1) * CONTENTS_STEP;
}

/* A cache line at a time: a loop over words takes twice as long where it lies
 * across two lines of code, which is another for each program. */
void bench_fill(void *buffer, size_t length, uint64_t seed)
{
    unsigned char *bytes = buffer;
    size_t words = length / 8, i = 0;
    uint64_t last = seed + words;
    contents_pair pair = { seed, seed + 1 };

    for (; i + 8 <= words; i += 8) {
        contents_pair line[] = { pair, pair + 2, pair + 4, pair + 6 };

        memcpy(bytes + 8 * i, line, 16);
        memcpy(bytes + 8 * i + 16, line + 1, 16);
        memcpy(bytes + 8 * i + 32, line + 2, 16);
        memcpy(bytes + 8 * i + 48, line + 3, 16);
        pair += 8;
    }
    for (; i < words; i++) {
        uint64_t word = seed + i;

        memcpy(bytes + 8 * i, &word, 8);
    }
    memcpy(bytes + 8 * words, &last, length % 8);
}

/* Do the bytes from `from` on follow the seed? */
static bool contents_follow(const unsigned char *bytes, size_t length,
                            size_t from, uint64_t seed)
{
    size_t words = length / 8;
    uint64_t last = seed + words, wrong = 0;

    for (size_t i = from / 8; i < words; i++) {
        uint64_t word;

        memcpy(&word, bytes + 8 * i, 8);
        wrong |= word ^ (seed + i);
    }
    return wrong == 0
           && memcmp(bytes + 8 * words, &last, length % 8) == 0;
}

static size_t contents_stamp_length(const struct bench_job *job)
{
    return job->bytes < 8 ? job->bytes : 8;
}

void bench_write(const struct bench_job *job, void *buffer, uint64_t number)
{
    uint64_t seed = contents_seed(number);

    if (job->fresh)
        bench_fill(buffer, job->bytes, seed);
    else
        memcpy(buffer, &seed, contents_stamp_length(job));
}

bool bench_right_here(const struct bench_job *job, const void *buffer,
                      uint64_t number)
{
    uint64_t seed = contents_seed(number);

    if (!job->verify)
        return true;
    if (job->fresh)
        return contents_follow(buffer, job->bytes, 0, seed);
    if (memcmp(buffer, &seed, contents_stamp_length(job)) != 0)
        return false;
    return job->bytes <= 8 || contents_follow(buffer, job->bytes, 8, 0);
}

/* Both ends are spoilt, so that the next message cannot borrow from this. */
bool bench_verify(const struct bench_job *job, void *buffer, uint64_t number)
{
    unsigned char *bytes = buffer;
    size_t spoilt = contents_stamp_length(job);

    if (!bench_right_here(job, buffer, number))
        return false;
    memset(bytes, 0xee, spoilt);
    memset(bytes + job->bytes - spoilt, 0xee, spoilt);
    return true;
}
