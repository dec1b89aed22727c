# SPDX-License-Identifier: BSD-3-Clause
#
# What gnuplot draws of the CSV of bench/compare: the medians over the size, a
# panel for each test.  -v plot=FILE.svg or FILE.png
BEGIN { FS = "," }

function median(text,    parts, count, i, j, v, sorted) {
    count = split(text, parts, " ")
    for (i = 1; i <= count; i++) {
        v = parts[i] + 0
        for (j = i - 1; j >= 1 && sorted[j] > v; j--) sorted[j + 1] = sorted[j]
        sorted[j + 1] = v
    }
    return sorted[int((count + 1) / 2)]
}

NR == 1 || $3 != 1 || $14 == "" || $14 <= 0 || $12 == 0 { next }
{
    panel = ($1 == "own" ? "" : $1 ": ") $7 ", " $9 " buffers, " $10 " ranks"
    curve = panel SUBSEP $6 ($11 > 0 ? ", window " $11 : "")
    point = curve SUBSEP $12
    if (!(panel in units)) { panels[++panel_count] = panel; units[panel] = $13 }
    if (!(curve in points)) curves[panel] = curves[panel] curve "\n"
    if (!(point in all)) points[curve] = points[curve] " " $12
    all[point] = all[point] " " $14
}

function quote(text) {
    gsub(/'/, "''", text)
    return "'" text "'"
}

function draw(panel, number,    list, n, i, sizes, m, k, part, text) {
    n = split(curves[panel], list, "\n") - 1
    for (i = 1; i <= n; i++) {
        printf "$data%d_%d << EOD\n", number, i
        m = split(points[list[i]], sizes, " ")
        for (k = 1; k <= m; k++)
            print sizes[k], median(all[list[i], sizes[k]])
        print "EOD"
    }
    print "set title " quote(panel)
    print "set ylabel " quote(units[panel])
    for (i = 1; i <= n; i++) {
        split(list[i], part, SUBSEP)
        text = text (i > 1 ? ", " : "") sprintf("$data%d_%d with linespoints " \
                     "title %s", number, i, quote(part[2]))
    }
    print "plot " text
}

END {
    columns = panel_count > 1 ? 2 : 1
    rows = int((panel_count + columns - 1) / columns)
    print "set terminal " (plot ~ /\.png$/ ? "pngcairo" : "svg") " size " \
          800 * columns "," 500 * (rows ? rows : 1) " noenhanced"
    print "set output " quote(plot)
    print "set multiplot layout " (rows ? rows : 1) "," columns
    print "set logscale x 2\nset logscale y 10\nset xlabel 'bytes'"
    print "set format x '%.0b%B'\nset grid\nset key outside right"
    for (p = 1; p <= panel_count; p++) draw(panels[p], p)
    print "unset multiplot"
}
