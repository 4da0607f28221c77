#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What the Makefile builds on machines that this one is not: with and without a card, with and
# without nvcc, and that `make install` keeps the choices of the build before it. Nothing is
# compiled: make prints its commands, and nvcc is a script that knows its architectures.
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
unset CC CUDA CUDA_ARCH CFLAGS CPPFLAGS LDFLAGS WERROR SAN MAKEFLAGS MFLAGS

printf '#!/bin/sh\nprintf "compute_%%s\\n" 80 86 89 90 120\n' >"$work/nvcc"
chmod +x "$work/nvcc"
build=$work/build

# what make would run: the architectures of the code for CUDA (none: CPU only) and, in $work/out,
# its output
archs() { # arguments of make...
	make -n V=1 BUILD="$build" NVCC="$work/nvcc" CARD_NODES= "$@" >"$work/out" 2>"$work/err"
	rc=$?
	said="make $*"
	grep -m 1 'elementwise\.cu' "$work/out" | grep -oE 'code=[a-z0-9_]+' | cut -d= -f2 | xargs
}

says() {
	check "make says: $1" grep -qF "'CUDA: $1'" "$work/out"
}

# expect TEXT ARCHITECTURES ARGUMENTS...
expect() {
	local text=$1 expected=$2 seen
	shift 2
	seen=$(archs "$@") said="make $*"
	check "$text: for '$expected', not '$seen'" [ "$seen" = "$expected" ]
}

all='sm_80 sm_89 sm_90a sm_120 compute_90'
ada=(CARD_NODES=/dev/nvidia2 "CARD_QUERY=echo 8.9")

expect "no card" '' all
says 'no graphics card here; CPU only (CUDA=1 builds it)'
expect "no card, and it is asked for" "$all" all CUDA=1
says "$work/nvcc for 80 89 90 120"
expect "an architecture is asked for" 'sm_90a compute_90' all CUDA_ARCH=90
expect "by its other name" 'sm_80' all CUDA_ARCH=sm_80
expect "a card" sm_89 all "${ada[@]}"
says "$work/nvcc for 89"
expect "two kinds of cards" 'sm_80 sm_89' all "${ada[@]}" "CARD_QUERY=printf '8.9\n8.0\n8.9\n'"
expect "a card newer than nvcc" compute_90 all "${ada[@]}" "CARD_QUERY=echo 13.0"
expect "a card without nvidia-smi" '' all "${ada[@]}" CARD_QUERY=false
check "is left to nvcc" grep -q 'arch=native' "$work/out"
expect "a card that is too old" '' all "${ada[@]}" "CARD_QUERY=echo 7.5"
says 'no graphics card of compute capability 8.0 or above here; CPU only (CUDA=1 builds it)'
expect "a card, and nvcc is not wanted" '' all "${ada[@]}" CUDA=0
says 'switched off'
expect "a card and no nvcc" '' all "${ada[@]}" NVCC=
says 'a graphics card is here, but no nvcc; CPU only'
expect "no nvcc" '' all NVCC=
says 'no nvcc found; CPU only'
make -n BUILD="$build" NVCC= CUDA=1 all >"$work/out" 2>"$work/err"
rc=$?
check "CUDA=1 without nvcc is an error" grep -q 'CUDA=1: nvcc is neither' "$work/err"
expect "others may run what is installed" "$all" install
expect "also from a machine with a card" "$all" install "${ada[@]}"

# what was built before, as the recipe of `all` notes it
built() {
	rm -rf "$build" && mkdir "$build"
	make -s -o "$build/libglmstream.a" -o "$build/glmstream" all BUILD="$build" NVCC="$work/nvcc" \
		CARD_NODES= "$@" >"$work/out" 2>"$work/err"
	rc=$?
	said="make $*"
	exits 0
	: >"$build/glmstream"
}
built
expect "after a build without CUDA, install keeps to that" '' install
expect "unless asked" "$all" install CUDA=1 "CUDA_ARCH=80 89 90 120"
expect "the next build looks again" sm_89 all "${ada[@]}"
built CUDA=0
expect "after CUDA=0, also on a machine with a card" '' install "${ada[@]}"
built CUDA=1
expect "after a build for all" "$all" install
built "${ada[@]}"
expect "after a build for this card" sm_89 install
check "nvcc is where it was" grep -q "CUDA ?= 1" "$build/.choices"
built CUDA=0 CFLAGS='-O1 -g0' WERROR=1 WITH_LZ4=0 CC='gcc -DOTHER'
expect "flags" '' install
check "are kept too" grep -q -- 'gcc -DOTHER -std=gnu11 -O1 -g0 .*-Werror .*-DHAVE_LZ4=0' "$work/out"
CFLAGS=-O3 expect "those of the environment come first" '' install
check "as those of the command line do" grep -q -- '-std=gnu11 -O3 ' "$work/out"
finish
