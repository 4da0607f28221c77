#!/bin/sh
# SPDX-License-Identifier: MIT
# Gathers the libraries of this Debian machine in one folder, so that the program can be built where there are a compiler
# and no packages: tools/scripts/bundle_deps.sh FOLDER here, `make DEPS=FOLDER` there (same processor, a C library not older).
# What has a complete static form travels as .a; libmicrohttpd and cmocka as shared objects with what they load.
set -eu
dest=${1:?usage: tools/scripts/bundle_deps.sh FOLDER}
packages='libxxhash-dev libpcre2-dev libjansson-dev liburing-dev liblz4-dev libedit-dev libmicrohttpd-dev libcmocka-dev'
arch=$(gcc -print-multiarch)
lib=/usr/lib/$arch

command -v dpkg-query >/dev/null || {
	echo "bundle_deps: gathers Debian's packages, and this system has no dpkg" >&2
	exit 1
}
page_packages=$(tools/scripts/build_page.sh --list)
for p in $packages $page_packages; do
	dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null | grep -qx installed || {
		echo "bundle_deps: $p is not installed; run tools/scripts/install_deps.sh test" >&2
		exit 1
	}
done

rm -rf "$dest"
mkdir -p "$dest/include" "$dest/lib" "$dest/licences"

for p in $packages; do
	cp "/usr/share/doc/$p/copyright" "$dest/licences/$p"
	dpkg-query -L "$p" | grep -E '^/usr/include/.*\.h$' | while read -r header; do
		name=${header#/usr/include/}
		name=${name#"$arch"/}
		mkdir -p "$dest/include/$(dirname "$name")"
		cp "$header" "$dest/include/$name"
	done
done

# the parts of serve's page, where build_page.sh looks for them
for p in $page_packages; do
	cp "/usr/share/doc/$p/copyright" "$dest/licences/$p"
done
for path in javascript/marked/marked.min.js nodejs/dompurify/dist/purify.min.js \
	javascript/katex nodejs/highlight.js/lib; do
	mkdir -p "$dest/share/$(dirname "$path")"
	cp -rL "/usr/share/$path" "$dest/share/$(dirname "$path")/"
done
find "$dest/share" \( -name '*.ttf' -o -name '*.woff' \) -delete

for name in pcre2-8 jansson uring lz4; do
	cp "$lib/lib$name.a" "$dest/lib/"
done
# one libedit.a that needs nothing else
{
	echo "create $dest/lib/libedit.a"
	for name in edit bsd md tinfo; do
		echo "addlib $lib/lib$name.a"
	done
	echo save
	echo end
} | ar -M
for p in libbsd-dev libmd-dev libncurses-dev; do
	[ ! -f "/usr/share/doc/$p/copyright" ] || cp "/usr/share/doc/$p/copyright" "$dest/licences/$p"
done

# a shared object and all that it loads, except the C library and the compiler's own
copy_shared() { # soname path
	[ ! -e "$dest/lib/$1" ] || return 0
	cp -L "$2" "$dest/lib/$1"
	owner=$(dpkg-query -S "$(realpath "$2")" | cut -d: -f1)
	cp "/usr/share/doc/$owner/copyright" "$dest/licences/$owner"
}
for name in microhttpd cmocka; do
	real=$(realpath "$lib/lib$name.so")
	soname=$(objdump -p "$real" | awk '$1 == "SONAME" { print $2 }')
	copy_shared "$soname" "$real"
	ln -sf "$soname" "$dest/lib/lib$name.so"
	ldd "$real" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | while read -r dep path; do
		case $dep in libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | libgcc_s.so.*) continue ;; esac
		copy_shared "$dep" "$path"
	done
done
du -sh "$dest" | awk '{ print "bundle_deps: " $2 ": " $1 }'
