#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# Runs tpperf and what is beside it, briefly and with every byte verified, and
# looks at what is printed.  Whether it is fast is not asked here.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"
# shellcheck source=bench/judge.sh
. bench/judge.sh

tprun=$build/launcher/tprun
tpperf=$build/bench/tpperf
brief='--repetitions 2 --time 0.2'
header=who,test,mode,buffers,ranks,window,bytes,unit,value,low,high,best,p99
header=$header,repetitions,waited

# job RANKS OPTION...: tpperf as a job.
job()
{
    ranks=$1
    shift
    run "$tprun" -n "$ranks" "$tpperf" "$@"
}

# results COUNT: the last command ended well, and printed that many results
# whose figures are possible ones.
results()
{
    [ "$status" -eq 0 ] && [ ! -s "$work/err" ] &&
        [ "$(head -n 1 "$work/out")" = "$header" ] &&
        [ "$(($(wc -l <"$work/out") - 1))" -eq "$1" ] &&
        awk -F, 'NR > 1 && (NF != 15 || !($9 > 0) || $10 > $9 || $11 < $9 ||
                            ($12 != "" && !($12 > 0))) { bad = 1 }
                 END { exit bad }' "$work/out"
    check "expected $1 results"
}

# refused PATTERN: the last command was a mistake, and whichever rank is first
# says which.
refused()
{
    [ "$status" -eq 2 ] && [ ! -s "$work/out" ] &&
        grep -q -e "^tpperf: .*$1" "$work/err"
    check "expected to be refused with /$1/"
}

# shellcheck disable=SC2086 # $brief has several words
suite()
{
    sizes=1,7,8,64,1000,100k
    for way in '--progress manual' '--progress auto' '--progress thread' \
        '--progress manual --poll' '--memory tp'; do
        for buffers in '' --fresh; do
            job 2 $brief --csv --verify $way $buffers --sizes $sizes \
                --window 5 latency bandwidth bidirectional rate
            results 24
        done
        job 2 $brief --csv --verify $way --sizes $sizes --fresh latency
        results 6
    done
    for shape in '' --tensors '--metadata 100' '--memory tp --fresh'; do
        job 2 $brief --csv --verify --buffers 3 $shape --sizes 1,2,7,100k \
            latency bandwidth
        results 8
    done
    for buffers in '' --fresh; do
        job 2 $brief --csv --verify --blocking $buffers --sizes $sizes \
            latency bandwidth rate
        results 30
    done
    for shape in '' '--progress thread --offset 17' '--memory tp --borrow' \
        '--tensors --metadata 9 --fresh --memory tp --offset 16'; do
        job 2 $brief --csv --verify $shape --work 3 --sizes 8,100k overlap
        results 2
    done
    for ranks in 2 3 4; do
        job $ranks $brief --csv --verify pairs ring star init mesh
        results 11
        job $ranks $brief --csv --verify --memory tp mesh
        results 2
    done
    job 2 $brief --csv --sizes 0 latency
    results 1
    job 4 --csv memory
    [ "$status" -eq 0 ] && [ "$(grep -c ',memory-' "$work/out")" -eq 6 ]
    check "expected six lines"
    job 4 $brief --csv idle
    [ "$status" -eq 0 ] && [ "$(grep -c ',idle,' "$work/out")" -eq 1 ]
    check "expected one line"
}

# What is printed for people and for programs tells the same.
# shellcheck disable=SC2086
formats()
{
    job 2 $brief --sizes 8,64 latency
    [ "$status" -eq 0 ] && grep -q '^# tp, latency, auto, reused buffers, ' \
        "$work/out" && [ "$(grep -cE '^ +(8|64) ' "$work/out")" -eq 2 ]
    check "expected a table"
    job 2 $brief --json --who me --sizes 8,64 latency init
    [ "$status" -eq 0 ] && [ "$(grep -c '"who": "me"' "$work/out")" -eq 5 ] &&
        [ "$(grep -c '"p99": null' "$work/out")" -eq 3 ]
    check "expected JSON"
    # What is not UTF-8 cannot be in JSON as it is.
    job 2 $brief --json --who "$(printf 'a\377')" --sizes 8 latency
    [ "$status" -eq 0 ] && grep -q '"who": "a?"' "$work/out"
    check "expected a name in JSON"
}

# shellcheck disable=SC2086
pictures()
{
    job 2 --plot picture.txt
    refused 'not picture.txt'
    # A PATH without gnuplot; tprun wants nothing of it.
    command='tpperf --plot without gnuplot'
    PATH=$work "$tprun" -n 2 "$tpperf" $brief --sizes 8 \
        --plot "$work/none.svg" latency >"$work/out" 2>"$work/err" </dev/null
    status=$?
    [ "$status" -eq 1 ] && grep -q 'apt-get install gnuplot-nox' "$work/err"
    check "expected the package's name"
    if ! command -v gnuplot >/dev/null; then
        skip gnuplot "not installed (apt-get install gnuplot-nox)"
        return
    fi
    for kind in svg png; do
        job 2 $brief --fresh --sizes 8,4k --plot "$work/it's.$kind" latency \
            bandwidth
        [ "$status" -eq 0 ] && [ ! -s "$work/err" ] &&
            [ "$(wc -c <"$work/it's.$kind")" -gt 4000 ]
        check "expected a picture"
    done
    job 2 $brief --sizes 8 --plot "$work/none/none.svg" latency
    [ "$status" -eq 1 ] && [ ! -s "$work/out" ] &&
        grep -q 'cannot write .*/none/none.svg: No such file' "$work/err"
    check "expected to be told at once"
    job 2 $brief --plot "$work/none.svg" init
    [ "$status" -eq 1 ] && grep -q 'none of the results can be drawn' "$work/err"
    check "expected to be told"
}

# shellcheck disable=SC2086
mistakes()
{
    job 2 --sizes 8,,9
    refused '--sizes: expected SIZE,..., not 8,,9'
    job 2 --sizes 8x
    refused 'not 8x'
    job 2 --sizes ''
    refused '--sizes: expected SIZE,..., not "";'
    job 2 --window 0
    refused '--window: expected N,... from 1 to 65536, not 0'
    job 2 --repetitions many
    refused '--repetitions: expected N from 1 to 10000, not many'
    job 2 --time -1
    refused '--time: expected MS from 0.01 to 3600000, not -1'
    job 2 --limit 0
    refused '--limit: expected SECONDS from 1 to 86400, not 0'
    job 2 --buffers 1025
    refused '--buffers: expected N from 1 to 1024, not 1025'
    job 2 --memory cuda:64
    refused '--memory: expected malloc|tp|cuda.:N. with N up to 63, not'
    job 2 --plot picture.gif
    refused '--plot: expected FILE.svg or .png, not picture.gif'
    job 2 --progress sometimes
    refused '--progress: expected manual|auto|thread, not sometimes'
    job 2 throughput
    refused 'there is no test throughput'
    job 2 --nonesuch
    refused 'unknown option --nonesuch'
    job 2 -b -xh latency
    refused 'unknown option -x;'
    job 2 --csv=yes
    refused 'no value is allowed after --csv=yes'
    job 2 --floor ring
    refused 'unknown option --floor'
    job 2 --sizes
    refused 'a value is missing after --sizes'
    job 2 --who a,b
    refused 'not a,b'
    job 2 memory latency
    refused 'the test memory must be run alone'
    job 2 --fresh ring
    refused 'ring and star cannot be combined with --fresh'
    job 2 --blocking overlap
    refused 'bidirectional and overlap cannot be combined with --blocking'
    job 2 --work=-1
    refused '--work: expected US from 0 to 1000000, not -1'
    job 2 --fresh star
    refused 'ring and star cannot be combined with --fresh'
    job 2 --blocking --poll
    refused '--blocking, star and mesh cannot be combined with'
    job 2 --borrow --buffers 2
    refused '--borrow cannot be combined with --buffers'
    for also in --borrow --poll --tensors '--metadata 8' '--buffers 2' \
        '--memory cuda'; do
        # shellcheck disable=SC2086
        job 2 $also mesh
        refused '--blocking, star and mesh cannot be combined with'
        job 2 $also star
        refused '--blocking, star and mesh cannot be combined with'
    done
    run "$tpperf" $brief
    [ "$status" -eq 1 ] && grep -q 'at least 2 ranks' "$work/err"
    check "one rank is too few"
    for words in --version "$brief --sizes 8 latency"; do
        [ -e /dev/full ] || continue
        run "$tprun" -n 2 sh -c "exec $tpperf $words >/dev/full"
        [ "$status" -eq 1 ] &&
            grep -q '^tpperf: cannot write standard output$' "$work/err"
        check "a full disk is an error"
    done
    # Four buffers in all.  Should it not refuse, it soon gives up.
    kib=$(awk '/^(Mem|Swap)Total:/ { sum += $2 } END { printf "%d", sum / 3 }' \
        /proc/meminfo)
    job 2 --limit 2 --sizes "${kib}k" latency
    [ "$status" -eq 1 ] && grep -q 'in 2 ranks; this machine has ' "$work/err"
    check "more memory than there is is an error"
}

# --help, tpperf(1) and the table of options name the same.
manual()
{
    run "$tpperf" --help
    [ "$status" -eq 0 ] && head -n 1 "$work/out" | grep -q '^usage: '
    check "expected the usage"
    grep -oE -e '--[a-z]+' "$work/out" | sed 's/^--//' | sort -u >"$work/help"
    grep -oE '^\.It .*Fl -[a-z]+' man/man1/tpperf.1 | sed 's/.*Fl -//' |
        sort -u >"$work/page"
    diff "$work/help" "$work/page" | empty "< in --help, > in tpperf(1)"
    sed -n 's/^  \([a-z][a-z]*\) .*/\1/p' "$work/out" | sort >"$work/help"
    sed -n 's/^\.It Cm \([a-z]*\)$/\1/p' man/man1/tpperf.1 | sort |
        diff "$work/help" - | empty "tests: < in --help, > in tpperf(1)"
    run "$tpperf" --version
    [ "$status" -eq 0 ] && grep -q '^tpperf (tp) [0-9]' "$work/out"
    check "expected the version"
}

# What a peer costs in memory is no matter of speed: it must not grow with the
# number of ranks.
scale()
{
    run "$build/bench/scale" 2000 16
    [ "$status" -eq 0 ] && grep -q '^2000 ranks, 16 per host: ' "$work/out" &&
        [ "$(sed -n 's/^a known peer, connected *\([0-9]*\) bytes$/\1/p' \
            "$work/out")" -le 512 ]
    check "expected the cost of a peer"
    run "$build/bench/scale" none
    [ "$status" -eq 2 ] && grep -q '^scale: usage: ' "$work/err"
    check "expected to be refused"
}

# The floors need two cpus of their own.
# shellcheck disable=SC2086
floors()
{
    if [ "$(nproc)" -lt 2 ]; then
        skip cpus "floors need two cpus, here is one"
        return
    fi
    run "$build/bench/floors" $brief --csv --verify --sizes 1,8,48,4000,300k \
        --window 5 --floor line,ring,mapped,socket,eventfd latency bandwidth
    results 39
    run "$build/bench/floors" $brief --csv --verify --fresh --sizes 8,4000 \
        --window 5 --floor line,ring,mapped,socket \
        latency bandwidth bidirectional
    results 16
    run "$build/bench/floors" $brief --csv --verify --fresh --sizes 8,4000 \
        --window 5 --floor cma latency bandwidth bidirectional
    if [ "$status" -ne 0 ] && grep -q 'not permitted' "$work/err"; then
        skip cma "process_vm_readv is not permitted here"
    else
        results 6
    fi
    run "$build/bench/floors" --floor ring,sky
    [ "$status" -eq 2 ] && grep -q 'there is no floor sky' "$work/err"
    check "expected to be refused"
}

# Those that are built.  Ranks that spin starve each other where cpus are few.
# UCX and TensorPipe only if asked: what they do on a loaded machine says nothing
# of tp.
# shellcheck disable=SC2086
peers()
{
    case ${TP_TEST_SANITIZER:-} in
    ?*) skip sanitizer "no other system is built for it"; return ;;
    esac
    how="$brief --csv --verify --sizes 8,1000,100k --window 5"
    tests='latency bandwidth bidirectional rate'
    asked=ucx
    if [ -z "${TP_TEST_PEERS:-}" ]; then
        asked=
        skip peers "UCX and TensorPipe run if TP_TEST_PEERS is set"
    fi
    for name in libfabric $asked; do
        if [ ! -x "$build/bench/$name" ]; then
            skip "$name" "not built: configure names the package"
            continue
        fi
        for buffers in '' --fresh; do
            run "$build/bench/$name" --waiting yield $how $buffers $tests
            results 12
        done
        run "$build/bench/$name" --waiting yield --ranks 4 $how pairs ring
        results 6
        run "$build/bench/$name" --waiting yield $how --work 3 overlap
        results 3
        run "$build/bench/$name" --ranks 1
        [ "$status" -eq 2 ] &&
            grep -q 'expected N from 2 to 64, not 1' "$work/err"
        check "expected to be refused"
    done
    if [ -x "$build/bench/tensorpipe" ] && [ -n "$asked" ]; then
        for buffers in '' --fresh; do
            run "$build/bench/tensorpipe" $how $buffers $tests
            results 12
        done
        run "$build/bench/tensorpipe" $how --work 3 overlap
        results 3
    fi
    mpirun=$(command -v mpirun.openmpi)
    if [ ! -x "$build/bench/openmpi" ] || [ -z "$mpirun" ]; then
        skip libopenmpi-dev "no Open MPI to compare with"
        return
    fi
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
    for buffers in '' --fresh; do
        run "$mpirun" -n 2 --oversubscribe "$build/bench/openmpi" $how \
            $buffers $tests
        results 12
    done
    run "$mpirun" -n 2 --oversubscribe "$build/bench/openmpi" $how --work 3 \
        overlap
    results 3
}

# A system that is made of figures: what compare makes of them is known.
comparing()
{
    cat >"$work/system" <<'END'
#!/bin/sh
printf '%s\n' who,test,mode,buffers,ranks,window,bytes,unit,value,low,high,best,p99,repetitions,waited
n=$(cat "$1.count" 2>/dev/null || echo 0)
echo $((n + 1)) >"$1.count"
shift
for i in $(seq $n); do shift; done
printf 'x,latency,m,reused,2,0,8,us,%s,1,1,,,1,0\n' "$1"
printf 'x,rate,m,reused,2,64,8,M/s,%s,1,1,,,1,0\n' "$1"
END
    run "${SHELL:-/bin/sh}" bench/compare -a -n 3 -B "$work" -o "$work/csv" \
        ours="sh $work/system $work/ours 2 9 3" \
        worse="sh $work/system $work/worse 8 9 7" \
        peer="sh $work/system $work/peer 6 1 4"
    # Medians 3, 8, 4: the best peer is 4 for times, 8 for rates.
    [ "$status" -eq 0 ] &&
        grep -qE '^ +8 +0 +3 +8 +4 +0.75 ' "$work/out" &&
        grep -qE '^ +8 +64 +3 +8 +4 +0.38 ' "$work/out" &&
        [ "$(wc -l <"$work/csv")" -eq 19 ]
    check "expected medians and ratios"
    run "${SHELL:-/bin/sh}" bench/compare -i "$work/csv"
    [ "$status" -eq 0 ] && grep -qE '^ +8 +64 +3 +8 +4 +0.38 ' "$work/out"
    check "what was written is read again"
    run "${SHELL:-/bin/sh}" bench/compare -n 1 -B "$work" bad=false
    [ "$status" -eq 1 ] && grep -q 'bad failed' "$work/err"
    check "a command that fails ends it"
    run "${SHELL:-/bin/sh}" bench/compare -n 1 -B "$work" dumb=true
    [ "$status" -eq 1 ] && grep -q 'dumb printed no results' "$work/err"
    check "a command without results ends it"
    for option in -o -p; do
        run "${SHELL:-/bin/sh}" bench/compare -a -n 1 -B "$work" \
            $option "$work/none/none.svg" bad=false
        [ "$status" -eq 1 ] && grep -q "^compare: cannot write $work/none/" \
            "$work/err" && [ "$(wc -l <"$work/err")" -eq 1 ]
        check "what cannot be written is told at once"
    done
    run "${SHELL:-/bin/sh}" bench/compare -i bench/run.sh
    [ "$status" -eq 1 ] && grep -q 'no file that -o has written' "$work/err"
    check "another file is no result"
    run "${SHELL:-/bin/sh}" bench/compare -n 1 -t 1 -B "$work" 'slow=sleep 9 #'
    [ "$status" -eq 1 ] && grep -q 'ended after 1 s (-t)' "$work/err"
    check "a limit is told as such"
    run "${SHELL:-/bin/sh}" bench/compare short -B "$work"
    [ "$status" -eq 2 ] && grep -q "wanted, not '-B'" "$work/err" &&
        [ "$(wc -l <"$work/err")" -eq 1 ]
    check "an option behind a work is named"
    for words in '' '-n x a=b' '-n 0 a=b' '-c 1.2.3 a=b' '-c . a=b' nonsense \
        '-p a.txt a=b'; do
        # shellcheck disable=SC2086
        run "${SHELL:-/bin/sh}" bench/compare $words
        [ "$status" -eq 2 ]
        check "expected to be refused"
    done
}

# Goals are judged by figures that are known.
goals()
{
    head=work,round,good,canary_us,others_percent,$header
    {
        echo "$head"
        for round in 1 2 3; do
            printf "short,$round,1,-,0,%s,latency,m,reused,2,0,%s,us,%s,,,,,1,0\n" \
                tp 8 0.2 tp 64 0.30 ucx 8 0.3 ucx 64 0.35 mpich 8 0.4 \
                floor/ring 8 0.16 floor/ring 64 0.16 tp+alloc 8 0.1 \
                tp 1024 0.5 ucx 1024 1.0
        done
        echo 'short,4,0,-,0,ucx,latency,m,reused,2,0,8,us,0.01,,,,,1,0'
    } >"$work/figures"
    run "${SHELL:-/bin/sh}" bench/compare --goals -i "$work/figures"
    [ "$status" -eq 0 ] &&
        grep -qF '| 8: 0.67 ±0% ucx, 64: 0.86 ±0% ucx | <= 0.80 | 1 of 2 |' \
            "$work/out" &&
        grep -qF '1.88 ±0% floor/ring | <= 1.35 | 1 of 2 |' "$work/out" &&
        grep -qF '| 1 KiB | 1k: 0.50 ±0% ucx | <= 0.85 | met |' "$work/out" &&
        grep -qF '1 of 3 goals that were measured are met.' "$work/out"
    check "expected the goals"
    # Every goal is of a work that there is.
    sed -n 's/^[^#;]*; \([a-z]*\);.*/\1/p' bench/goals | sort -u >"$work/aimed"
    sed -n -E 's/^# (WORK|ASKED) ([a-z]*) .*/\2/p' bench/works |
        sort >"$work/there"
    comm -23 "$work/aimed" "$work/there" | empty "goals of no work"
}

# Whichever awk a system has, the figures are the same.
awks()
{
    path=$PATH
    for awk in mawk gawk original-awk busybox; do
        if ! command -v "$awk" >/dev/null; then
            skip "$awk" "not installed (apt-get install $awk)"
            continue
        fi
        mkdir -p "$work/awk"
        ln -sf "$(command -v "$awk")" "$work/awk/awk"
        PATH=$work/awk:$path
        rm -f "$work/"*.count
        comparing
        goals
        PATH=$path
    done
}

# All that has been built does the least that it can.
side_by_side()
{
    if [ "$(nproc)" -lt 2 ] || [ ! -x "$build/bench/floors" ]; then
        skip cpus "ranks that spin need two cpus"
        return
    fi
    run "${SHELL:-/bin/sh}" bench/compare -a -n 1 -m 1 -B "$build" -x \
        ucx,ucx+cma,ucx+late,openmpi,openmpi+cma,mpich,tensorpipe -- \
        --repetitions 2 --time 0.2 --sizes 8 --verify latency
    [ "$status" -eq 0 ] && grep -qE '^ +8 +0 ' "$work/out" &&
        grep -q 'floor/ring' "$work/out"
    check "expected a table"
}

# Counted twice, the instructions are the same.
counting()
{
    if ! command -v valgrind >/dev/null; then
        skip valgrind "not installed (apt-get install valgrind)"
        return
    fi
    if [ -n "${TP_TEST_SANITIZER:-}" ]; then
        skip valgrind "sanitizers do not run under it"
        return
    fi
    run "${SHELL:-/bin/sh}" bench/instructions -B "$build" -n 3
    [ "$status" -eq 0 ] && grep -qE '^ +[0-9]+\.[0-9]  in all$' "$work/out"
    check "expected a count"
}

if [ ! -x "$tprun" ] || [ ! -x "$tpperf" ]; then
    skip tprun "tprun or tpperf is not built"
    finish
fi
suite
formats
pictures
mistakes
manual
scale
floors
peers
awks
side_by_side
counting
finish
