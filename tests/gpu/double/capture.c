/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Captures of streams into graphs, as far as others can break them: what goes
 * to a captured stream is part of a graph that nobody runs, and what the
 * driver calls unsafe ends the captures of this thread, and those of any thread
 * that were begun globally, unless the thread that calls is in a mode that lets
 * it.  The error comes to both.
 *
 * Source: the CUDA driver API's manual, cuStreamBeginCapture() and
 * cuThreadExchangeStreamCaptureMode().
 */
#include "config.h"

#include <string.h>

#include "tests/gpu/double/double.h"

enum { CAPTURES = 8 };

static struct capture {
    struct cu_stream_s *stream;        /* NULL: none */
    pthread_t thread;
    int mode;
    bool broken;
} captures[CAPTURES];

static _Thread_local int capture_mode = CU_CAPTURE_GLOBAL;

static struct capture *capture_find(const struct cu_stream_s *stream)
{
    for (int i = 0; i < CAPTURES; i++)
        if (captures[i].stream == stream)
            return &captures[i];
    return NULL;
}

bool double_captured_locked(const struct cu_stream_s *stream)
{
    return capture_find(stream) != NULL;
}

cu_result double_capture_break_locked(const struct cu_stream_s *stream,
                                      cu_result code)
{
    struct capture *capture = capture_find(stream);

    if (capture != NULL)
        capture->broken = true;
    return code;
}

/* Does it forbid unsafe calls to this thread? */
static bool capture_forbids(const struct capture *capture)
{
    bool mine = pthread_equal(capture->thread, pthread_self()) != 0;

    if (capture->stream == NULL || capture_mode == CU_CAPTURE_RELAXED
        || capture->mode == CU_CAPTURE_RELAXED)
        return false;
    return mine || (capture->mode == CU_CAPTURE_GLOBAL
                    && capture_mode == CU_CAPTURE_GLOBAL);
}

cu_result double_capture_allows_locked(const char *name)
{
    static const char *const unsafe[] = {
        "cuEventQuery", "cuStreamQuery", "cuStreamSynchronize",
        "cuMemAlloc_v2", "cuMemAllocManaged", "cuMemHostAlloc", "cuMemFree_v2",
        "cuMemFreeHost", "cuMemHostRegister_v2", "cuMemHostUnregister",
        "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle", "cuMemUnmap",
        "cuStreamDestroy_v2"
    };
    cu_result code = CU_OK;
    size_t i = 0;

    while (i < sizeof(unsafe) / sizeof(unsafe[0])
           && strcmp(unsafe[i], name) != 0)
        i++;
    if (i == sizeof(unsafe) / sizeof(unsafe[0]))
        return CU_OK;
    for (i = 0; i < CAPTURES; i++)
        if (capture_forbids(&captures[i])) {
            captures[i].broken = true;
            code = CU_CAPTURE_UNSUPPORTED;
        }
    return code;
}

cu_result cuThreadExchangeStreamCaptureMode(int *mode)
{
    int before;

    DOUBLE_BEGIN();
    if (*mode < CU_CAPTURE_GLOBAL || *mode > CU_CAPTURE_RELAXED)
        return double_end(CU_INVALID_VALUE);
    before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return double_end(CU_OK);
}

cu_result cuStreamBeginCapture_v2(cu_stream stream, int mode)
{
    struct capture *capture = NULL;

    DOUBLE_BEGIN();
    stream = double_stream_locked(stream);
    if (stream != NULL && !double_captured_locked(stream))
        capture = capture_find(NULL);
    if (capture == NULL || mode < CU_CAPTURE_GLOBAL
        || mode > CU_CAPTURE_RELAXED)
        return double_end(CU_INVALID_VALUE);
    *capture = (struct capture){ stream, pthread_self(), mode, false };
    return double_end(CU_OK);
}

cu_result cuStreamEndCapture(cu_stream stream, void **graph)
{
    static int made;
    struct capture *capture;
    cu_result code;

    DOUBLE_BEGIN();
    stream = double_stream_locked(stream);
    capture = stream != NULL ? capture_find(stream) : NULL;
    if (capture == NULL)
        return double_end(CU_INVALID_VALUE);
    code = capture->broken ? CU_CAPTURE_INVALIDATED : CU_OK;
    *graph = capture->broken ? NULL : &made;
    capture->stream = NULL;
    return double_end(code);
}

cu_result cuStreamIsCapturing(cu_stream stream, int *status)
{
    const struct capture *capture;

    DOUBLE_BEGIN();
    stream = double_stream_locked(stream);
    capture = stream != NULL ? capture_find(stream) : NULL;
    *status = capture == NULL ? CU_CAPTURE_NONE
              : capture->broken ? CU_CAPTURE_BROKEN : CU_CAPTURE_ACTIVE;
    return double_end(CU_OK);
}
