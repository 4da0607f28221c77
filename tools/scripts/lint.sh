#!/bin/sh
# SPDX-License-Identifier: MIT
# Everything that can be said about the sources without running them: tools/scripts/lint.sh
# [preprocessor flags] A checker that is not installed is named and left out
# (tools/scripts/install_deps.sh lint installs them all). Exit status 1 if any checker has something
# to say.
set -u
cd "$(dirname "$0")/../.." || exit 1
status=0
jobs=$(nproc)

step() { # name, program it needs, command ...
	name=$1 program=$2
	shift 2
	if ! command -v "$program" >/dev/null 2>&1; then
		echo "$name: left out, $program is not installed"
	elif out=$("$@" 2>&1); then
		echo "$name: clean"
	else
		printf '%s\n%s: see above\n' "$out" "$name"
		status=1
	fi
}

find_sources() {
	find src cache stream kernels tools tests -type f \( "$@" \) 2>/dev/null | sort
}
c_files=$(find_sources -name '*.c')
shell_files=$(find_sources -name '*.sh'; ls .ci/run)
python_files=$(find_sources -name '*.py')

# shellcheck disable=SC2016,SC2086,SC2317 # flags of the inner shell; word lists; called through step
run_tidy() {
	# not the tests: the analyser does not know that a failed assertion of cmocka does not return.
	# The instruction sets of one file are harmless to the others, which are only parsed.
	case $(uname -m) in x86_64) isa='-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq' ;; *) isa= ;; esac
	# The analyser takes minutes for the kernels that are one macro for all types and rows. It follows
	# the paths of a function for 150,000 steps, not for 225,000: two thirds of the time.
	depth='--extra-arg=-Xclang --extra-arg=-analyzer-config --extra-arg=-Xclang --extra-arg=max-nodes=150000'
	printf '%s\n' $c_files | grep -v '^tests/' | xargs -P "$jobs" -n 1 sh -c 'flags=$1 options=$2
		case $3 in */cpu_dot_*) options=--checks=-clang-analyzer-* ;; esac
		clang-tidy --quiet $options "$3" -- -std=gnu11 -Wno-unknown-pragmas $flags 2>/dev/null' \
		tidy "$isa $*" "$depth" | grep -E '(error|warning): ' && return 1
	return 0
}

# cppcheck takes no statement expression in an initialiser: it reads a header of its own, in which MIN
# and MAX are plain choices.
# shellcheck disable=SC2086,SC2317 # word lists; called through step
run_cppcheck() {
	mkdir -p build/cppcheck/src/base
	sed -e 's/^#define MIN(.*/#define MIN(a, b) ((a) < (b) ? (a) : (b))/' \
		-e 's/^#define MAX(.*/#define MAX(a, b) ((a) > (b) ? (a) : (b))/' \
		src/base/num.h >build/cppcheck/src/base/num.h
	cppcheck -q -j "$jobs" --std=c11 --language=c --error-exitcode=1 --inline-suppr \
		--enable=warning,performance,portability -Ibuild/cppcheck \
		--suppressions-list=tools/scripts/cppcheck.txt --library=tools/scripts/cppcheck.cfg \
		"$@" $c_files
}

# shellcheck disable=SC2086 # word lists
{
	step layers awk tools/scripts/check_layers.sh
	step shape awk tools/scripts/check_shape.sh
	step words awk tools/scripts/check_words.sh
	step format clang-format make -s --no-print-directory format-check
	step shellcheck shellcheck shellcheck -x -P . $shell_files
	[ -z "$python_files" ] || step python python3 python3 -c 'import ast, sys
for path in sys.argv[1:]:
    ast.parse(open(path, encoding="utf-8").read(), path)' $python_files
	step cppcheck cppcheck run_cppcheck "$@"
	step clang-tidy clang-tidy run_tidy "$@"
}
exit $status
