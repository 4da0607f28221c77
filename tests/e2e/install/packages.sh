#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What `make deb` and `make tarball` make of a built program: contents, lintian, that packing twice
# gives the same bytes, and that the unpacked programs answer. CLEAN_SYSTEMS="bookworm noble"
# installs both in fresh systems of these Debian and Ubuntu releases (mmdebstrap, root, network).
# shellcheck disable=SC2016 # expanded by the shell of mmdebstrap's hooks
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
case $GLMSTREAM in */san-*) skip "a sanitizer build is not packed" ;; esac
command -v dpkg-shlibdeps >/dev/null 2>&1 || skip "no dpkg-shlibdeps (apt-get install dpkg-dev)"
build=$(dirname "$GLMSTREAM")
[ -x "$build/portable/glmstream" ] || skip "a build with DEPS=folder is not packed"

# packed in a copy of the tree's build, so that nothing is left in it
pack() { # kind, folder
	mkdir -p "$2"
	cp -r "$build/glmstream" "$build/portable" "$build/.libs" "$2/"
	[ ! -d "$build/page" ] || cp -r "$build/page" "$2/"
	tools/scripts/package.sh "$1" "$2" >"$work/out" 2>"$work/err"
	rc=$?
	said="package.sh $1"
	exits 0
	check "nothing on stderr" [ ! -s "$work/err" ]
	check "nothing is left behind" [ -z "$(find "$2" -maxdepth 1 -name 'stage*' -o -name shlibs)" ]
}
answers() { # program...
	(cd / && env -u GLMSTREAM_POCKET "$@" -p "Define river." --temp 0 --think off -n 30) >"$work/out" 2>"$work/err"
	rc=$?
	said="$*"
	exits 0
	check "it answers" grep -q river "$work/out"
	check "it has verified its model" grep -q '; bytes verified$' "$work/err"
}

# ---- deb -----------------------------------------------------------------------------------------
pack deb "$work/a"
deb=$(echo "$work"/a/glmstream_*.deb)
dpkg-deb -c "$deb" | awk '{ print $1, $2, $6 }' | grep -v '/ *$' >"$work/files"
sort >"$work/expected" <<END_FILES
-rw-r--r-- root/root ./lib/systemd/system/glmstream.service
-rw-r--r-- root/root ./usr/share/bash-completion/completions/glmstream
-rw-r--r-- root/root ./usr/share/doc/glmstream/changelog.gz
-rw-r--r-- root/root ./usr/share/doc/glmstream/copyright
-rw-r--r-- root/root ./usr/share/glmstream/glm52-routing.gltr1
-rw-r--r-- root/root ./usr/share/glmstream/pocket.gguf
-rw-r--r-- root/root ./usr/share/glmstream/pocket.gguf.xxh3
-rw-r--r-- root/root ./usr/share/man/man1/glmstream.1.gz
-rw-r--r-- root/root ./usr/share/zsh/vendor-completions/_glmstream
-rwxr-xr-x root/root ./usr/bin/glmstream
END_FILES
check "the package has these files and no others" cmp <(sort "$work/files") "$work/expected"
for p in libc6 libjansson4 libpcre2-8-0; do
	check "the package depends on $p" grep -qE "(^|, )$p( |,|\$)" <(dpkg-deb -f "$deb" Depends)
done
dpkg-deb -x "$deb" "$work/root"
dpkg-deb -e "$deb" "$work/root/DEBIAN"
check "the sums are right" eval '(cd "$work/root" && md5sum --quiet -c DEBIAN/md5sums)'
check "the sums are of all files" [ "$(wc -l <"$work/root/DEBIAN/md5sums")" = "$(wc -l <"$work/expected")" ]
check "the program is stripped" [ "$(objdump -h "$work/root/usr/bin/glmstream" | grep -c debug_info)" = 0 ]
# ---- hardening: what tools/scripts/harden.mk asks for is in the program ----
program=$work/root/usr/bin/glmstream
readelf -lWd "$program" >"$work/elf"
nm -D --undefined-only "$program" | sed 's/@.*//; s/.* //' >"$work/imports"
check "it can be loaded anywhere (PIE)" grep -qE 'FLAGS_1\).* PIE' "$work/elf"
check "its imports are bound at the start" grep -qE 'FLAGS_1\).* NOW' "$work/elf"
check "and then read-only (RELRO)" grep -q GNU_RELRO "$work/elf"
check "its stack is not executable" grep -qE 'GNU_STACK .* RW +0x' "$work/elf"
check "functions guard their stacks" grep -qx __stack_chk_fail "$work/imports"
check "copies are checked (FORTIFY)" [ "$(grep -cE '^__.*_chk$' "$work/imports")" -ge 5 ]
if compgen -G "$build/kernels/cuda/runtime/*.o" >/dev/null && [ -f "$build/.flags" ] && grep -q nvcc "$build/.flags"; then
	nm --undefined-only "$build"/kernels/cuda/runtime/*.o >"$work/cuda_imports"
	check "nvcc's objects guard their stacks too" grep -q __stack_chk_fail "$work/cuda_imports"
fi

check "the unit names the program" grep -q '^ExecStart=/usr/bin/glmstream serve' \
	"$work/root/lib/systemd/system/glmstream.service"
for what in 'The glmstream authors' 'Princeton University'; do
	check "the licences name: $what" grep -q "$what" "$work/root/usr/share/doc/glmstream/copyright"
done
if [ -d "$build/page" ] && [ -f "$build/page/licences.txt.gz" ]; then
	check "the licences name the page's parts" grep -qi 'katex' "$work/root/usr/share/doc/glmstream/copyright"
fi
answers "$work/root/usr/bin/glmstream"
if command -v lintian >/dev/null 2>&1; then
	lintian --allow-root --fail-on warning,error "$deb" >"$work/lintian" 2>&1
	rc=$? said=lintian
	check "lintian has nothing to say: $(head -n 3 "$work/lintian")" [ $rc = 0 ]
else
	skip_part "the package by lintian: it is not installed"
fi
pack deb "$work/again"
check "the same bytes the second time" cmp "$deb" "$work/again/${deb##*/}"

# ---- tarball -------------------------------------------------------------------------------------
pack tarball "$work/a"
tarball=$(echo "$work"/a/glmstream-*.tar.gz)
mkdir "$work/any where"
tar -C "$work/any where" -xf "$tarball"
top=$(echo "$work/any where"/glmstream-*)
check "one folder, with the name of the file" [ "${top##*/}.tar.gz" = "${tarball##*/}" ]
answers "$top/bin/glmstream"
ldd "$top/bin/glmstream" >"$work/ldd"
# the C library's come from the system
outside=$(grep -F ' => ' "$work/ldd" | grep -vF " => $top/" | awk '{ print $3 }' |
	grep -vE '/(lib(c|m|pthread|dl|rt)|ld-linux[^/]*)\.so' | xargs)
check "all other libraries are its own (not: $outside)" [ -z "$outside" ]
check "there are libraries" [ "$(find "$top/lib/glmstream" -name '*.so*' | wc -l)" -ge 3 ]
check "and their licences" [ "$(find "$top/share/doc/glmstream/licences" -type f | wc -l)" -ge 3 ]
check "a tampered folder is noticed" eval 'mv "$top/share" "$top/shar"; ! "$top/bin/glmstream" -p x 2>/dev/null'
pack tarball "$work/again"
check "the same bytes the second time" cmp "$tarball" "$work/again/${tarball##*/}"

# ---- fresh systems -------------------------------------------------------------------------------
in_clean_system() { # release, mirrors...
	local release=$1 ask='-p "Define river." --temp 0 --think off -n 30 -q'
	shift
	# the tarball before anything but the essential packages is there, then the package by apt
	mmdebstrap --quiet --variant=essential --include=apt \
		--essential-hook="mkdir \"\$1/srv/t\" && tar -C \"\$1/srv/t\" -xf '$tarball'" \
		--essential-hook="chroot \"\$1\" sh -c '/srv/t/*/bin/glmstream $ask' | tee /dev/stderr | grep -q river" \
		--customize-hook="cp '$deb' \"\$1/srv/\" && chroot \"\$1\" sh -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends /srv/*.deb'" \
		--customize-hook="chroot \"\$1\" glmstream $ask | tee /dev/stderr | grep -q river" \
		--customize-hook='test -e "$1/usr/share/glmstream/pocket.gguf"' \
		--customize-hook='chroot "$1" dpkg --purge glmstream' \
		--customize-hook='! test -e "$1/usr/share/glmstream"' \
		"$release" /dev/null "$@" >"$work/out" 2>"$work/err"
	rc=$? said="mmdebstrap $release"
	check "installs and answers in a clean $release: $(tail -n 3 "$work/err" | tr -d "\0")" [ $rc = 0 ]
}
[ -n "${CLEAN_SYSTEMS:-}" ] || skip_part "fresh systems: CLEAN_SYSTEMS names none"
for release in ${CLEAN_SYSTEMS:-}; do
	case $release in
	noble)
		key=/usr/share/keyrings/ubuntu-archive-keyring.gpg
		[ -f $key ] || {
			skip_part "Ubuntu $release: no package ubuntu-archive-keyring"
			continue
		}
		in_clean_system "$release" "deb [signed-by=$key] http://archive.ubuntu.com/ubuntu $release main universe"
		;;
	*) in_clean_system "$release" ;;
	esac
done
finish
