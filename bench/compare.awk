# SPDX-License-Identifier: BSD-3-Clause
#
# The tables of bench/compare, from its CSV.
BEGIN { FS = "," }

function quantile(values, count, share,    place, below) {
    place = share * (count - 1) + 1
    below = int(place)
    if (below >= count) return values[count]
    return values[below] + (place - below) * (values[below + 1] - values[below])
}

# Splits "1 2 3 " into sorted[1..count].
function sort(text,    parts, i, j, v) {
    count = split(text, parts, " ")
    for (i = 1; i <= count; i++) {
        v = parts[i] + 0
        for (j = i - 1; j >= 1 && sorted[j] > v; j--) sorted[j + 1] = sorted[j]
        sorted[j + 1] = v
    }
}

function number(v) {
    return v == "" ? "-" : sprintf(v >= 100 ? "%.0f" : "%.3g", v)
}

# The mark says that less than 10 % is no difference here.
function ratio(a, b) {
    if (a == "" || b == "" || b == 0) return "-"
    return sprintf("%.2f%s", a / b, (a / b > 0.9 && a / b < 1.1) ? "~" : "")
}

NR == 1 || $14 == "" { next }
{
    head = ($1 == "own" ? "" : $1 ": ") $7 \
           ($9 == "-" ? "" : ", " $9 " buffers") ", " $10 " ranks, " $13
    row = head SUBSEP $12 SUBSEP $11
    if (!(head in heads)) { heads[head] = $1; order[++tables] = head }
    if (!(row in rows)) { rows[row] = head; line[++lines] = row }
    if (!($6 in names)) { names[$6] = 1; name[++systems] = $6 }
    if ($3 != 1) next
    if ($1 "/" $2 != round) rounds[$1]++
    round = $1 "/" $2
    all[row, $6] = all[row, $6] $14 " "
    there[head, $6] = 1
}

# Of one row: its figures, the best of the others, the spread of ours.
function print_row(row, head,    s, value, ours, peer, floor, spread, first,
                   higher, key) {
    higher = head ~ /\/s$/
    split(row, key, SUBSEP)
    printf "%10s %6s", key[2], key[3]
    first = ours = peer = floor = spread = ""
    for (s = 1; s <= systems; s++) {
        if (!((head, name[s]) in there)) continue
        # Where tp is missing nobody else is held against the others; of the
        # user's own programs the first one is.
        if (first == "" && (heads[head] == "own" || name[s] ~ /^tp($|\+)/))
            first = name[s]
        value = ""
        if ((row, name[s]) in all) {
            sort(all[row, name[s]])
            value = quantile(sorted, count, 0.5)
        }
        printf " %13s", number(value)
        if (value == "") continue
        if (name[s] == first) {
            ours = value
            if (value > 0)
                spread = (quantile(sorted, count, 0.75) \
                          - quantile(sorted, count, 0.25)) / value
        } else if (name[s] ~ /^floor\//) {
            if (floor == "" || (higher ? value > floor : value < floor))
                floor = value
        } else if (name[s] !~ /^tp($|\+)/ && index(name[s], first "+") != 1 &&
                   (peer == "" || (higher ? value > peer : value < peer)))
            peer = value
    }
    printf " %8s %8s %6s%%\n", ratio(ours, peer), ratio(ours, floor),
        (spread == "" ? "-" : sprintf("%.0f", 100 * spread))
}

END {
    for (r in rounds) most = rounds[r] > most ? rounds[r] : most
    printf "%d good rounds; medians, spread between quartiles; ~ is a tie\n",
        most
    for (t = 1; t <= tables; t++) {
        head = order[t]
        printf "\n# %s\n%10s %6s", head, "bytes", "window"
        for (s = 1; s <= systems; s++)
            if ((head, name[s]) in there) printf " %13s", name[s]
        printf " %8s %8s %7s\n", "/ peer", "/ floor", "spread"
        for (l = 1; l <= lines; l++)
            if (rows[line[l]] == head) print_row(line[l], head)
    }
}
