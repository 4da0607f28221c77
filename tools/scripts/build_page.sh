#!/bin/sh
# SPDX-License-Identifier: MIT
# Puts together what the server sends for its page, compressed as it is sent:
#   tools/scripts/build_page.sh OUT [DEPS]
# OUT/app.js.gz and app.css.gz are the files of src/serve/page, OUT/lib.js.gz, lib.css.gz and
# OUT/KaTeX_*.woff2 come from Debian's packages (below DEPS/share, else below /usr/share), and
# OUT/files.inc lists all of them for src/serve/page.c. `build_page.sh --check [DEPS]` only says by
# its exit status whether all packages are there; `build_page.sh --list` prints the packages.
# Without the packages the page has no lib.* and shows answers as plain text.
set -eu
packages='libjs-marked node-dompurify libjs-katex fonts-katex node-highlight.js'
languages='bash cmake cpp cs css diff dockerfile go haskell http ini java javascript json julia
kotlin lua makefile markdown matlab nginx perl php plaintext powershell protobuf python r ruby rust scala
shell sql swift tex typescript xml yaml'
# KaTeX's fonts without six bold and slanted ones: browsers derive those from the upright ones
fonts='AMS-Regular Caligraphic-Regular Fraktur-Regular Main-Bold Main-Italic Main-Regular
Math-Italic SansSerif-Regular Script-Regular Size1-Regular Size2-Regular
Size3-Regular Size4-Regular Typewriter-Regular'

case ${1:-} in
--list)
	echo "$packages"
	exit 0
	;;
esac
out=${1:?usage: tools/scripts/build_page.sh OUT [DEPS]}
share=${2:+$2/share}
share=${share:-/usr/share}
marked=$share/javascript/marked/marked.min.js
purify=$share/nodejs/dompurify/dist/purify.min.js
katex=$share/javascript/katex
hljs=$share/nodejs/highlight.js/lib
have_lib=1
for f in "$marked" "$purify" "$katex/katex.min.js" "$katex/katex.min.css" \
	"$katex/fonts/KaTeX_Main-Regular.woff2" "$hljs/highlight.js" "$hljs/languages/cpp.js"; do
	[ -r "$f" ] || have_lib=0
done
if [ "$out" = --check ]; then
	[ $have_lib = 1 ]
	exit
fi

rm -rf "$out"
mkdir -p "$out"
pack() { # name type
	gzip -9n "$out/$1"
	add "$1" "$2" 1 "$1.gz"
}
add() { # name type is_gzip file
	echo "FILE_BYTES($(echo "$1" | tr -c 'A-Za-z0-9\n' _), \"$1\", \"$2\", $3, \"$out/$4\")" \
		>>"$out/files.inc"
}

cp src/serve/page/theme.js "$out/"
{
	echo '"use strict";'
	cat src/serve/page/js/*.js
} >"$out/app.js"
cat src/serve/page/css/*.css >"$out/app.css"
cp src/serve/page/favicon.ico "$out/"
pack theme.js 'text/javascript; charset=utf-8'
pack app.js 'text/javascript; charset=utf-8'
pack app.css 'text/css; charset=utf-8'
add favicon.ico image/x-icon 0 favicon.ico
[ $have_lib = 1 ] || exit 0

{
	# Debian 12's DOMPurify (2.4.1...deb12u1) reads a variable that it does not declare, shadowNode,
	# and so fails on every text; one that is there makes its check of the root's depth pass
	echo '(function () { var shadowNode = { __depth: 0 };'
	cat "$purify"
	printf '\n})();\n'
	cat "$marked"
	echo
	cat "$katex/katex.min.js"
	echo
	# highlight.js is written for Node: each file assigns module.exports; and version 9, which
	# Debian keeps, advertises version 10 in the console
	printf '(function (module, console) {\n'
	cat "$hljs/highlight.js"
	printf '\n})({}, { log() {}, error() {} });\n'
	for l in $languages; do
		printf '(function (module) {\n'
		cat "$hljs/languages/$l.js"
		printf '\nhljs.registerLanguage("%s", module.exports);\n})({});\n' "$l"
	done
} | sed '/^\/\/# sourceMappingURL=/d' >"$out/lib.js"
# of each typeface only the form that all browsers read
# shellcheck disable=SC2086 # a word list
faces=$(echo $fonts | tr ' ' '|')
sed -e 's/}/}\n/g' "$katex/katex.min.css" | sed -E \
	-e "/^@font-face/{/KaTeX_($faces)\.woff2/!d;}" \
	-e 's#src:url\(fonts/(KaTeX_[A-Za-z0-9-]*\.woff2)\)[^;]*#src:url(\1) format("woff2")#' \
	-e '/^@font-face/s/}/;font-display:swap}/' >"$out/lib.css"
pack lib.js 'text/javascript; charset=utf-8'
pack lib.css 'text/css; charset=utf-8'
# what the licences ask a program to carry that has these parts inside
for p in $packages; do
	printf '==== %s\n\n' "$p"
	if [ -n "${2:-}" ]; then cat "$2/licences/$p"; else cat "/usr/share/doc/$p/copyright"; fi
	echo
done >"$out/licences.txt"
pack licences.txt 'text/plain; charset=utf-8'
for f in $fonts; do
	cp -L "$katex/fonts/KaTeX_$f.woff2" "$out/"
	add "KaTeX_$f.woff2" font/woff2 0 "KaTeX_$f.woff2"
done
