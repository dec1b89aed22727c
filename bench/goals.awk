# SPDX-License-Identifier: BSD-3-Clause
#
# Each goal of bench/goals, what was measured, and whether it is met; from the
# CSV of bench/compare.

function trim(text) {
    gsub(/^ +| +$/, "", text)
    return text
}

FNR == 1 { file++ }

file == 1 && !/^#/ && NF {
    split($0, part, ";")
    for (i = 1; i <= 9; i++) goal[goals + 1, i] = trim(part[i])
    goals++
}

file == 2 && FNR == 1 { FS = ","; next }
file == 2 {
    works[$1] = 1
    if ($3 != 1 || $14 == "") next
    series = $1 SUBSEP $7 SUBSEP $9 SUBSEP $10 SUBSEP $12 SUBSEP $6
    # Of several windows ...
    key = series SUBSEP $11
    if (!(key in figures)) windows[series] = windows[series] $11 " "
    figures[key] = figures[key] $14 " "
    if (!($6 in known)) { known[$6] = 1; who[++systems] = $6 }
}

function median(text,    parts, count, i, j, v, sorted) {
    count = split(text, parts, " ")
    for (i = 1; i <= count; i++) {
        v = parts[i] + 0
        for (j = i - 1; j >= 1 && sorted[j] > v; j--) sorted[j + 1] = sorted[j]
        sorted[j + 1] = v
    }
    spread = sorted[int((3 * count + 3) / 4)] - sorted[int((count + 3) / 4)]
    if (count % 2) return sorted[(count + 1) / 2]
    return (sorted[count / 2] + sorted[count / 2 + 1]) / 2
}

# ... that which suits this system best.  "" if nothing is known of it; its
# spread, as a share, in `wide'.
function figure(work, test, buffers, ranks, bytes, name, higher,
                series, list, n, i, v, best) {
    series = work SUBSEP test SUBSEP buffers SUBSEP ranks SUBSEP bytes \
             SUBSEP name
    best = ""
    n = split(windows[series], list, " ")
    for (i = 1; i <= n; i++) {
        v = median(figures[series, list[i]])
        if (best == "" || (higher ? v > best : v < best)) {
            best = v
            wide = v ? spread / v : 0
        }
    }
    return best
}

# May this one stand against ours?
function stands(name, ours, against,    list, n, i) {
    if (against == "peers")
        return name !~ /^floor\// && name !~ /^tp($|\+)/ &&
               name != "fi_pingpong" && name != "pmix"
    n = split(against, list, ",")
    for (i = 1; i <= n; i++)
        if (name == list[i] || index(name, list[i] "+") == 1 && list[i] != "tp")
            return 1
    return 0
}

# The figure to hold ours against, and whose it is in `rival'.
function opponent(g, bytes, higher,    part, s, v, best, against, buffers) {
    against = goal[g, 8]
    buffers = goal[g, 4]
    if (split(against, part, /[@\/]/) == 3 && against ~ /@/) {
        rival = part[1]
        return figure(goal[g, 2], goal[g, 3], part[3], goal[g, 5], part[2],
                      part[1], higher)
    }
    best = ""
    for (s = 1; s <= systems; s++) {
        if (!stands(who[s], goal[g, 7], against)) continue
        v = figure(goal[g, 2], goal[g, 3], buffers, goal[g, 5], bytes, who[s],
                   higher)
        if (v != "" && (best == "" || (higher ? v > best : v < best))) {
            best = v
            rival = who[s]
        }
    }
    return best
}

function size(bytes) {
    if (bytes >= 1048576) return bytes / 1048576 "M"
    if (bytes >= 1024) return bytes / 1024 "k"
    return bytes
}

function judge(g,    n, list, i, ours, theirs, higher, limit, ratio, text, all,
               met, off, alone, before, fewer) {
    higher = goal[g, 9] ~ /^>=/
    limit = substr(goal[g, 9], 4) + 0
    n = split(goal[g, 6], list, ",")
    for (i = 1; i <= n; i++) {
        ours = figure(goal[g, 2], goal[g, 3], goal[g, 4], goal[g, 5], list[i],
                      goal[g, 7], higher)
        if (ours == "") continue
        off = wide
        rival = ""
        alone = goal[g, 8] == "-" || goal[g, 8] ~ /^growth@/
        theirs = alone ? 1 : opponent(g, list[i], higher)
        if (theirs == "" || theirs == 0) continue
        ratio = ours / theirs
        if (goal[g, 8] ~ /^growth@/) {
            before = substr(goal[g, 8], 8)
            fewer = figure(goal[g, 2], goal[g, 3], goal[g, 4], before, list[i],
                           goal[g, 7], higher)
            if (fewer == "") continue
            ratio = (ours - fewer) / (goal[g, 5] - before)
        }
        all++
        met += higher ? ratio >= limit : ratio <= limit
        text = text (text == "" ? "" : ", ") \
               (list[i] == 0 ? "" : size(list[i]) ": ") \
               sprintf(ratio >= 100 ? "%.0f" : "%.2f", ratio) \
               sprintf(" ±%.0f%%", 50 * (off + (alone ? 0 : wide))) \
               (rival == "" ? "" : " " rival)
    }
    if (!all) return "not measured||"
    return text "|" goal[g, 9] "|" (met == all ? "met" : met " of " all)
}

END {
    printf "| goal | ours / theirs | limit | |\n|---|---|---|---|\n"
    for (g = 1; g <= goals; g++) {
        said = judge(g)
        if (said ~ /^not/ && !all && !(goal[g, 2] in works)) continue
        split(said, part, "|")
        shown = goal[g, 1] ~ /^\(/
        printf "| %s | %s | %s | %s |\n", goal[g, 1], part[1],
            shown ? "" : part[2], shown ? "" : part[3]
        if (shown || said ~ /^not/) continue
        judged++
        reached += part[3] == "met"
    }
    printf "\n%d of %d goals that were measured are met.\n", reached, judged
}
