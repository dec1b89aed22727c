/* SPDX-License-Identifier: BSD-3-Clause */
/* The screen of tptop: a table of ranks, or of pairs, by ncurses. */
#include "config.h"

#include <curses.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

#include "launcher/tptop.h"

static struct {
    SCREEN *terminal;
    bool pairs;                    /* not ranks */
    long first;                    /* row that is shown first */
    const struct tptop_sample *sample;
} screen;

/* ncurses gives the terminal back after ^C and before ^Z; ^\ would leave it as
 * it is, so that is a key. */
static void screen_take_quit(void)
{
    struct termios settings;

    if (tcgetattr(STDIN_FILENO, &settings) < 0)
        return;
    settings.c_cc[VQUIT] = _POSIX_VDISABLE;
    if (tcsetattr(STDIN_FILENO, TCSANOW, &settings) == 0)
        def_prog_mode();
}

tp_status tptop_screen_open(struct tpb_error *error)
{
    const char *name = getenv("TERM");

    if (!isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO))
        return tpb_fail(error, TP_ERR_INVALID, "this is not a terminal; "
                        "`tptop --json` prints what scripts can read");
    screen.terminal = newterm(NULL, stdout, stdin);
    if (screen.terminal == NULL)
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED, "TERM=%s: this terminal "
                        "is not known; try TERM=ansi",
                        name != NULL ? name : "");
    /* ncurses would draw all the same, one line over the other. */
    if (tigetstr("cup") == NULL) {
        reset_shell_mode();            /* as newterm() found it */
        delscreen(screen.terminal);
        screen.terminal = NULL;
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED, "TERM=%s: this terminal "
                        "cannot show a table; `tptop --json` prints what "
                        "scripts can read", name != NULL ? name : "");
    }
    cbreak();
    noecho();
    screen_take_quit();
    keypad(stdscr, TRUE);
    curs_set(0);
    return TP_OK;
}

void tptop_screen_close(void)
{
    if (screen.terminal == NULL)
        return;
    endwin();
    delscreen(screen.terminal);
    screen.terminal = NULL;
}

/* Not printw(): that of ncurses 6.4 crashes when a text is longer than the
 * whole screen. */
static void screen_print(const char *format, ...) TPB_PRINTF(1, 2);
static void screen_print(const char *format, ...)
{
    char text[256];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    addstr(text);
}

/* "1.23M": at most six places. */
static const char *screen_number(double number, char text[16])
{
    static const char units[] = " kMGTP";
    int unit = 0;

    while (number >= 999.5 && units[unit + 1] != '\0') {
        number /= 1000;
        unit++;
    }
    if (unit == 0)
        snprintf(text, 16, "%.0f", number);
    else
        snprintf(text, 16, "%.*f%c", number < 9.995 ? 2 : number < 99.95
                 ? 1 : 0, number, units[unit]);
    return text;
}

static void screen_rates(const struct tptop_rates *rates)
{
    char a[16], b[16], c[16], d[16], e[16], f[16];

    screen_print(" %8s %8s %8s %8s %7s %8s",
                 screen_number(rates->messages_out, a),
                 screen_number(rates->bytes_out, b),
                 screen_number(rates->messages_in, c),
                 screen_number(rates->bytes_in, d),
                 screen_number((double)rates->queued, e),
                 screen_number((double)rates->buffered, f));
}

static void screen_since(uint64_t since)
{
    uint64_t now = screen.sample->now.at;

    if (since != 0 && now > since)
        screen_print(" %8.1f", (double)(now - since) * 1e-9);
    else
        screen_print(" %8s", "");
}

static void screen_rank(uint32_t index)
{
    const struct tptop_rank *rank = &screen.sample->now.ranks[index];
    struct tptop_rates rates = tptop_rank_rates(screen.sample, index);
    bool waits = rank->record.phase == TPB_PHASE_RUNNING
                 && rank->record.wait != TPB_WAIT_NONE;
    char state[32];

    tptop_state(rank, state, sizeof(state));
    screen_print("%5u %7u %-*s", index, rank->record.pid, TPTOP_STATE, state);
    screen_since(waits ? rank->record.wait_since : 0);
    screen_rates(&rates);
}

static void screen_pair(uint32_t index, uint32_t slot)
{
    const struct tpb_record_pipe *pipe =
        &screen.sample->now.ranks[index].pipes[slot];
    struct tptop_rates rates = tptop_pipe_rates(screen.sample, index, slot);

    screen_print("%5u %5d %4u %-13s", index, (int)pipe->peer, pipe->number,
                 pipe->stats.transport[0] != '\0' ? pipe->stats.transport
                 : "-");
    screen_since(pipe->blocked_since);
    screen_rates(&rates);
}

/* What did not fit the line goes; ncurses has put it on the next ones. */
static void screen_cut(int line)
{
    if (getcury(stdscr) > line) {
        move(line + 1, 0);
        clrtobot();
    }
}

/* All rows there are; draws those from screen.first on.  Returns how many. */
static long screen_rows(int top)
{
    long row = 0;

    for (uint32_t i = 0; i < screen.sample->now.count; i++) {
        const struct tptop_rank *rank = &screen.sample->now.ranks[i];
        uint32_t lines = screen.pairs ? rank->record.used : 1;

        for (uint32_t j = 0; j < lines; j++) {
            if (screen.pairs && rank->pipes[j].serial == 0)
                continue;
            if (row++ < screen.first || row - screen.first > LINES - top)
                continue;
            move((int)(row - 1 - screen.first) + top, 0);
            if (screen.pairs)
                screen_pair(i, j);
            else
                screen_rank(i);
            screen_cut((int)(row - 1 - screen.first) + top);
        }
    }
    return row;
}

static void screen_draw(void)
{
    long rows;

    erase();
    screen_print("%.*s: %u ranks, every %g s    p: %s  arrows: scroll  "
                 "q: leave", (int)sizeof(screen.sample->file->job),
                 screen.sample->file->job, screen.sample->now.count,
                 screen.sample->interval, screen.pairs ? "ranks" : "pairs");
    screen_cut(0);
    attron(A_REVERSE);
    if (move(1, 0) == OK)
        screen_print(screen.pairs ? "%5s %5s %4s %-13s" : "%5s %7.0s%7s %-11s",
                     "RANK", screen.pairs ? "PEER" : "",
                     screen.pairs ? "PIPE" : "PID",
                     screen.pairs ? "BACKEND" : "STATE");
    if (move(1, screen.pairs ? 30 : 14 + TPTOP_STATE) == OK)
        screen_print(" %8s %8s %8s %8s %8s %7s %8s",
                     screen.pairs ? "BLOCKED" : "WAITS", "MSG/S>", "B/S>",
                     "MSG/S<", "B/S<", "QUEUED", "BUFFERED");
    attroff(A_REVERSE);
    screen_cut(1);
    rows = screen_rows(2);
    if (screen.first >= rows) {    /* none was drawn */
        screen.first = rows > 0 ? rows - 1 : 0;
        screen_rows(2);
    }
    refresh();
}

void tptop_screen_show(const struct tptop_sample *sample)
{
    screen.sample = sample;
    screen_draw();
}

/* The rows that a key for pages scrolls by. */
static long screen_page(void)
{
    return LINES > 3 ? LINES - 2 : 1;
}

/* False: the user wants to leave. */
static bool screen_key(int key)
{
    switch (key) {
    case 'q':
    case 3:                        /* ^C, if it is no signal */
    case 28:                       /* ^\ */
        return false;
    case 'p':
        screen.pairs = !screen.pairs;
        screen.first = 0;
        break;
    case KEY_DOWN:
        screen.first++;
        break;
    case KEY_UP:
        screen.first -= screen.first > 0;
        break;
    case KEY_NPAGE:
        screen.first += screen_page();
        break;
    case KEY_PPAGE:
        screen.first -= screen.first > screen_page() ? screen_page()
                                                     : screen.first;
        break;
    default:
        break;
    }
    screen_draw();
    return true;
}

/* A terminal that is gone answers at once, for ever.  Not everybody gets a
 * SIGHUP with that, and dies of it. */
static bool screen_gone(void)
{
    struct pollfd keys = { STDIN_FILENO, POLLIN, 0 };

    return poll(&keys, 1, 0) == 1 && (keys.revents & (POLLHUP | POLLERR)) != 0;
}

bool tptop_screen_wait(double seconds)
{
    uint64_t until = tpb_now() + (uint64_t)(seconds * 1e9), now;

    while ((now = tpb_now()) < until) {
        int key;

        timeout((int)((until - now) / 1000000) + 1);
        key = getch();
        if (key == ERR ? screen_gone() : !screen_key(key))
            return false;
    }
    return true;
}
