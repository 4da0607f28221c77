#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs the Debian packages that glmstream needs and this machine lacks. It looks for the files, not for packages, so
# it is content with libraries installed by hand, and does nothing (one preprocessor run) when all is there.
#   tools/scripts/install_deps.sh [test] [lint]      "test": also what the tests need, "lint": also the checkers of `make lint`
# Exit status 1 when something required is missing and cannot be installed.
set -u

# header or program, package, need. Without an optional one a feature is lost, without a required one nothing builds.
headers='xxhash.h libxxhash-dev required
pcre2.h libpcre2-dev required
jansson.h libjansson-dev required
liburing.h liburing-dev optional
lz4frame.h liblz4-dev optional
histedit.h libedit-dev optional
microhttpd.h libmicrohttpd-dev optional'
programs='pkg-config pkg-config optional'
for group in "$@"; do
	case $group in
	test) headers="$headers
cmocka.h libcmocka-dev required
mpi/mpi.h libopenmpi-dev optional"
		programs="$programs
python3 python3 required
mpirun openmpi-bin optional" ;;
	lint) programs="$programs
clang clang required
clang-format clang-format required
clang-tidy clang-tidy required
cppcheck cppcheck required
shellcheck shellcheck required" ;;
	*)
		echo "install_deps: unknown group '$group' (known: test, lint)" >&2
		exit 2
		;;
	esac
done

# Prints "package need" for all that is missing.
list_missing() {
	cc=${CC:-gcc}
	command -v "${cc%% *}" >/dev/null 2>&1 || {
		echo gcc required
		echo libc6-dev required
		cc=false
	}
	printf '%s\n' "$headers" | while read -r header package_need; do
		printf '#if !__has_include(<%s>)\n"%s"\n#endif\n' "$header" "$package_need"
	done | if [ "$cc" = false ]; then cat; else $cc -E -P -xc -; fi | sed -n 's/^"\(.*\)"$/\1/p'
	# the parts of serve's page, which are put into the program
	"$(dirname "$0")/build_page.sh" --check ||
		for package in $("$(dirname "$0")/build_page.sh" --list); do
			echo "$package optional"
		done
	printf '%s\n' "$programs" | while read -r program package_need; do
		command -v "$program" >/dev/null 2>&1 || echo "$package_need"
	done
}

missing=$(list_missing)
[ -n "$missing" ] || exit 0
required=$(printf '%s\n' "$missing" | sed -n 's/ required$//p' | tr '\n' ' ')
optional=$(printf '%s\n' "$missing" | sed -n 's/ optional$//p' | tr '\n' ' ')

give_up() {
	echo "install_deps: $1; please install: $required${optional:+(optional: $optional)}" >&2
	[ -z "$required" ] # what is optional stops nothing
	exit
}

command -v apt-get >/dev/null 2>&1 || give_up "this system has no apt-get (the names are Debian's)"
sudo=
if [ "$(id -u)" != 0 ]; then
	command -v sudo >/dev/null 2>&1 || give_up "not root, and there is no sudo"
	sudo=sudo
fi
apt() {
	echo "install_deps: $sudo apt-get $*"
	$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@" >/dev/null
}
# shellcheck disable=SC2086 # word lists
{
	apt install -y --no-install-recommends $required $optional 2>/dev/null && exit 0
	apt update || give_up "apt-get update failed"
	apt install -y --no-install-recommends $required $optional && exit 0
	# a release without one optional package must not stop the rest
	[ -z "$required" ] || apt install -y --no-install-recommends $required || give_up "apt-get install failed"
	for package in $optional; do
		apt install -y --no-install-recommends "$package" || echo "install_deps: no $package, its feature is left out" >&2
	done
}
exit 0
