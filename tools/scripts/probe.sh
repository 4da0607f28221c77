#!/bin/sh
# SPDX-License-Identifier: MIT
# Which libraries are there? Called by the Makefile: tools/scripts/probe.sh CC DEPS NAME=auto|0|1 ...
# Prints the names found, on one line. With DEPS (a folder with include/ and lib/) only a trial link decides; without it
# pkg-config is asked first, which is faster. NAME=1 that is not there prints NAME=missing.
set -u
cc=$1 deps=$2
shift 2

trial_link() { # header -lname
	printf '#include <stdio.h>\n#include <%s>\nint main(void) { return 0; }\n' "$1" |
		$cc ${deps:+"-I$deps/include"} -DPCRE2_CODE_UNIT_WIDTH=8 -xc - -o /dev/null \
			${deps:+"-L$deps/lib" "-Wl,-rpath-link,$deps/lib"} "$2" >/dev/null 2>&1
}

found() { # pkg-config name, header, -lname
	{ [ -z "$deps" ] && pkg-config --exists "$1" 2>/dev/null; } || trial_link "$2" "$3"
}

for request in "$@"; do
	name=${request%%=*} want=${request#*=}
	case $want in 0 | no) continue ;; esac
	case $name in
	XXH) found libxxhash xxhash.h -lc ;; # a header only
	PCRE2) found libpcre2-8 pcre2.h -lpcre2-8 ;;
	JSON) found jansson jansson.h -ljansson ;;
	URING) found liburing liburing.h -luring ;;
	LZ4) found liblz4 lz4frame.h -llz4 ;;
	EDIT) found libedit histedit.h -ledit ;;
	HTTP) found libmicrohttpd microhttpd.h -lmicrohttpd ;;
	PAGE) tools/scripts/build_page.sh --check "$deps" ;;
	MPI) pkg-config --exists ompi-c 2>/dev/null ;;
	*) false ;;
	esac && printf '%s ' "$name" && continue
	case $want in 1 | yes) printf '%s=missing ' "$name" ;; esac
done
echo
