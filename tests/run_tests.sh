#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs every test of a build tree in parallel and says how it went: tests/run_tests.sh BUILD_DIR
# [NAME ...]
#
# A unit, which is what the last line counts, is one program (tests/*/test_*.c), one script
# (tests/e2e/*/*.sh), one fuzz target fed with its saved inputs, or a check of the sources (layers,
# shape, words). Exit status 77 of a unit means skipped, its last line of output is the reason. The
# whole log of each failed unit is printed, and the names of all before the last line. Exit status 1
# if any failed. Environment: TEST_JOBS (twice the number of cores: a script waits for half of its
# time), TEST_TIMEOUT seconds that a unit may take with a core of its own (600; 1800 under a
# sanitizer); TEST_LEAVE_OUT names of units that are not run. A unit's line has its time by the
# clock and of processors.
#
# On a card also: tests/card/check.sh.
set -u
build=${1:?usage: tests/run_tests.sh BUILD_DIR [NAME ...]}
shift
cd "$(dirname "$0")/.." || exit 1
logs=$build/test-logs
rm -rf "$logs" && mkdir -p "$logs" || exit 1

export GLMSTREAM=$PWD/$build/glmstream # the scripts test this program
# a short quarantine and short stacks: tests that allocate millions of times would take gigabytes
# and minutes
export ASAN_OPTIONS=${ASAN_OPTIONS:-protect_shadow_gap=0:allocator_may_return_null=1:quarantine_size_mb=16:malloc_context_size=8}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1}
export XDG_CACHE_HOME=$PWD/$logs/cache # what earlier runs used must not reach a test
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} # several programs share the cores: none may spin
case $build in *san-*) limit=1800 ;; *) limit=600 ;; esac
limit=${TEST_TIMEOUT:-$limit}
cores=$(nproc)
jobs=${TEST_JOBS:-$((cores * 2))}
export cores jobs

# One line per unit: name, then the command. The scripts come first: they take longest.
list_units() {
	local f n
	for f in tests/e2e/*/*.sh; do
		n=${f##*/}
		[ -x "$f" ] && echo "e2e_${n%.sh} $f"
	done
	for n in layers shape words; do
		echo "$n tools/scripts/check_$n.sh"
	done
	for f in "$build"/tests/test_*; do
		n=${f##*/}
		# a program whose source is gone is an old build's
		[ -x "$f" ] && compgen -G "tests/*/$n.c" >/dev/null && echo "$n $f"
	done
	for f in "$build"/tests/fuzz/replay_*; do
		n=${f##*/replay_}
		# shellcheck disable=SC2046 # a folder and a pack, or one of them
		[ -x "$f" ] && [ -n "$(find tests/fuzz -name "fuzz_$n.c")" ] &&
			echo "replay_$n" "$f" $(compgen -G "tests/fuzz/corpus/$n*" | grep -E "/$n(\.pack)?\$")
	done
}

# A unit shares the cores with the other units and with other programs: its time limit grows with
# both.
scale_limit() { # limit
	local load
	read -r load _ </proc/loadavg
	load=$((${load%.*} - jobs))
	echo $(($1 * ((load > 0 ? load : 0) + (jobs > cores ? jobs : cores)) / cores))
}

run_unit() { # logs limit name command...
	local logs=$1 limit=$2 name=$3 start rc cases verdict note='' user system
	local TIMEFORMAT='%U %S'
	shift 3
	limit=$(scale_limit "$limit")
	start=$(date +%s%N)
	{ time timeout -k 10 "$limit" "$@" >"$logs/$name.log" 2>&1 </dev/null; } 2>"$logs/$name.time"
	rc=$?
	case $rc in
	0)
		verdict=ok
		# cmocka names each single case that a program skipped, twice
		cases=$(grep '^\[  SKIPPED \] [^0-9]' "$logs/$name.log" | sort -u | grep -c .)
		[ "$cases" = 0 ] || note="$cases cases skipped"
		;;
	77) verdict=skip note=$(tail -n 1 "$logs/$name.log") ;;
	124 | 137) verdict=FAIL note="no end within $limit s, or killed" ;;
	*) verdict=FAIL note="exit status $rc" ;;
	esac
	# cmocka exits with the number of failures, which might be 77
	if [ $verdict = skip ] && grep -q '^\[  FAILED  \]' "$logs/$name.log"; then
		verdict=FAIL note='77 cases failed'
	fi
	echo "$verdict" >"$logs/$name.verdict"
	read -r user system <"$logs/$name.time"
	printf '%-4s %-28s %6d ms %6.1f s of processors  %s\n' "$verdict" "$name" \
		$((($(date +%s%N) - start) / 1000000)) "$(awk "BEGIN { print $user + $system }")" "$note"
}
export -f run_unit scale_limit

units=$(list_units)
if [ $# -gt 0 ]; then
	units=$(printf '%s\n' "$units" | awk -v want=" $* " 'index(want, " " $1 " ")')
fi
units=$(printf '%s\n' "$units" | awk -v not=" ${TEST_LEAVE_OUT:-} " '!index(not, " " $1 " ")')
if [ -n "$units" ]; then
	# shellcheck disable=SC2016 # $0 and $@ belong to the inner shell
	printf '%s\n' "$units" | xargs -P "$jobs" -L 1 bash -c 'run_unit "$0" "$@"' "$logs" "$limit"
fi

count() { cat "$logs"/*.verdict 2>/dev/null | grep -cx "$1"; }
failed=()
for name in $(printf '%s\n' "$units" | cut -d ' ' -f 1); do
	case $(cat "$logs/$name.verdict" 2>/dev/null) in
	ok | skip) continue ;;
	esac
	failed+=("$name")
	printf '\n---- %s failed; %s:\n' "$name" "$logs/$name.log"
	cat "$logs/$name.log" 2>/dev/null
	printf -- '---- end of %s\n' "$logs/$name.log"
done
# how busy the cores were: of the shell's children
times >"$logs/times"
read -r user system < <(tail -n 1 "$logs/times")
seconds() { awk -F'[ms]' '{ printf "%d", $1 * 60 + $2 }' <<<"$1"; }
echo "$SECONDS s by the clock with $jobs at a time, $(($(seconds "$user") + $(seconds "$system"))) s of processors"
[ ${#failed[@]} = 0 ] || printf '\nfailed: %s\n' "${failed[*]}"
echo "$(count ok) passed, ${#failed[@]} failed, $(count skip) skipped"
[ ${#failed[@]} = 0 ] && [ "$(count ok)" -gt 0 ]
