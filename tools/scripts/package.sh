#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes a package of a built program: tools/scripts/package.sh deb|tarball BUILD_DIR
#   deb       a Debian package, BUILD_DIR/glmstream_VERSION_ARCHITECTURE.deb
#   tarball   BUILD_DIR/glmstream-VERSION-linux-PROCESSOR.tar.gz: a folder that runs from anywhere,
#             with all libraries but the C library's
# The same commit, compiler and libraries give the same bytes: dates are that of the commit
# (SOURCE_DATE_EPOCH, if set).
set -eu
what=$1 build=$2
cd "$(dirname "$0")/../.."
export LC_ALL=C TZ=UTC

fail() {
	echo "package: $1" >&2
	exit 1
}

version=$(sed -n 's/^#define GLM_VERSION "\(.*\)"/\1/p' src/base/version.h)
if commit=$(git rev-parse --short=7 HEAD 2>/dev/null); then
	: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct)}"
	git describe --exact-match --tags --match "v$version" >/dev/null 2>&1 ||
		version=$version+git$(date -d "@$SOURCE_DATE_EPOCH" +%Y%m%d).$commit
else
	: "${SOURCE_DATE_EPOCH:=$(stat -c %Y Makefile)}"
fi
export SOURCE_DATE_EPOCH
stage=$build/stage-$what
rm -rf "$stage"

# Puts into the stage what `make install` installs; makes the folder of licences, $doc.
put_files() { # prefix
	tools/scripts/install.sh install "$build" "$1" "$stage" >/dev/null
	doc=$stage$1/share/doc/glmstream
	mkdir -p "$doc"
}

print_copyright() {
	cat <<-EOF
		Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
		Upstream-Name: glmstream

		Files: *
		Copyright: $(sed -n 's/^Copyright (c) //p' LICENSE)
		License: Expat

		Files: usr/share/glmstream/pocket.gguf usr/share/glmstream/pocket.gguf.xxh3
		Copyright: $(sed -n 's/^Copyright (c) //p' LICENSE), 2006 Princeton University (the definitions that the model repeats)
		License: Expat and WordNet

		License: Expat
		$(sed -n '/^Permission/,$p' LICENSE | field)

		License: WordNet
		$(field <tools/pocket/LICENSE.wordnet)
	EOF
	# what is compiled into the program
	if [ -f "$build/page/licences.txt.gz" ]; then
		printf '\nThe page of glmstream serve contains parts of other packages, with these licences:\n\n'
		gzip -dc "$build/page/licences.txt.gz"
	fi
	if grep -q cudart_static "$build/.libs"; then
		printf '\nThe program contains the CUDA runtime (cudart_static), Copyright NVIDIA Corporation,\n'
		printf 'redistributed under the terms of the CUDA Toolkit End User License Agreement.\n'
	fi
}

field() { # a text as the continuation of a field
	sed 's/[ \t]*$//; s/^$/./; s/^/ /'
}

# Gives every file of the stage the date of the commit.
date_files() {
	find "$stage" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

make_deb() {
	command -v dpkg-shlibdeps >/dev/null || fail "no dpkg-shlibdeps: apt-get install dpkg-dev"
	put_files /usr
	program=$stage/usr/bin/glmstream
	strip --remove-section=.comment --remove-section=.note "$program"
	gzip -9n "$stage/usr/share/man/man1/glmstream.1"
	# Debian's place for zsh
	mv "$stage/usr/share/zsh/site-functions" "$stage/usr/share/zsh/vendor-completions"
	mkdir -p "$stage/lib/systemd"
	mv "$stage/usr/lib/systemd/system" "$stage/lib/systemd/"
	rm -r "$stage/usr/lib"
	print_copyright >"$doc/copyright"
	maintainer=${DEBEMAIL:+${DEBFULLNAME:-glmstream} <$DEBEMAIL>}
	maintainer=${maintainer:-$(git log -1 --format='%an <%ae>' 2>/dev/null ||
		echo 'The glmstream authors <glmstream@localhost>')}
	{
		printf 'glmstream (%s) unstable; urgency=medium\n\n' "$version"
		printf '  * Built from the sources%s.\n\n' "${commit:+ of commit $commit}"
		printf ' -- %s  %s\n' "$maintainer" "$(date -R -d "@$SOURCE_DATE_EPOCH")"
	} | gzip -9n >"$doc/changelog.gz"
	find "$stage" -type d -exec chmod 755 {} +
	find "$stage" -type f ! -path '*/bin/*' -exec chmod 644 {} +

	# dpkg-shlibdeps wants the layout of a source package
	rm -rf "$build/shlibs"
	install -D "$program" "$build/shlibs/debian/glmstream/usr/bin/glmstream"
	mkdir "$build/shlibs/debian/glmstream/DEBIAN"
	printf 'Source: glmstream\n\nPackage: glmstream\nArchitecture: any\n' >"$build/shlibs/debian/control"
	depends=$(cd "$build/shlibs" && dpkg-shlibdeps -O debian/glmstream/usr/bin/glmstream |
		sed -n 's/^shlibs:Depends=//p')
	[ -n "$depends" ] || fail "dpkg-shlibdeps finds no libraries"
	rm -r "$build/shlibs"

	architecture=$(dpkg --print-architecture)
	size=$(du -k -s --apparent-size "$stage" | cut -f1)
	mkdir "$stage/DEBIAN"
	(cd "$stage" && find . -type f ! -path './DEBIAN/*' -printf '%P\n' | sort | xargs md5sum) \
		>"$stage/DEBIAN/md5sums"
	cat >"$stage/DEBIAN/control" <<-EOF
		Package: glmstream
		Version: $version
		Section: science
		Priority: optional
		Architecture: $architecture
		Maintainer: $maintainer
		Installed-Size: $size
		Depends: $depends
		Description: run GLM-5.2 on one graphics card by streaming its experts
		 GLM-5.2 is a mixture-of-experts language model of 744 billion parameters.
		 What every token needs stays in the memory of the card; the routed experts
		 stay on an NVMe drive and pass through a cache whose size you choose.
		 .
		 The package has a chat, an HTTP server with OpenAI's and Anthropic's APIs and
		 a page, tools to convert, measure and tune, and a small model that runs
		 without a card.
	EOF
	chmod 644 "$stage/DEBIAN/"*
	date_files
	package=$build/glmstream_${version}_$architecture.deb
	# level 1: the model, most of the size, does not compress
	dpkg-deb --root-owner-group -Zxz -z1 --build "$stage" "$package" >/dev/null
}

make_tarball() {
	name=glmstream-$version-linux-$(uname -m)
	put_files "/$name"
	top=$stage/$name
	# the program with the search path for its libraries
	install -m 755 "$build/portable/glmstream" "$top/bin/glmstream"
	strip "$top/bin/glmstream"
	# the unit names the folder of an installation, and there is none
	rm -r "$top/lib/systemd"
	mkdir -p "$top/lib/glmstream" "$doc/licences"
	ldd "$top/bin/glmstream" | awk '/not found/ { print > "/dev/stderr"; exit 1 }' ||
		fail "the program misses a library here"
	# what every Linux has: the C library and the loader
	ldd "$top/bin/glmstream" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' |
		grep -vE '^(ld-linux[^ ]*|lib(c|m|pthread|dl|rt))\.so' | while read -r soname path; do
		cp -L "$path" "$top/lib/glmstream/$soname"
		chmod 644 "$top/lib/glmstream/$soname"
		# a file of /usr is known by its path before the merge with /
		owner=$(dpkg-query -S "$(realpath "$path")" 2>/dev/null ||
			dpkg-query -S "$(realpath "$path" | sed 's|^/usr||')" 2>/dev/null || :)
		owner=${owner%%:*}
		[ -z "$owner" ] || cp -L "/usr/share/doc/$owner/copyright" "$doc/licences/$owner"
	done
	print_copyright >"$doc/copyright"
	cp LICENSE README.md "$top/"
	find "$stage" -type d -exec chmod 755 {} +
	date_files
	package=$build/$name.tar.gz
	tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner --format=gnu -cf - "$name" |
		gzip -n >"$package"
}

case $what in
deb | tarball) "make_$what" ;;
*)
	echo "package: deb or tarball, not '$what'" >&2
	exit 2
	;;
esac
rm -rf "$stage"
du -h --apparent-size "$package" | awk '{ print "  " $2 ": " $1 }'
