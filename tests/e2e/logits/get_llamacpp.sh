#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Fetches what the test against llama.cpp (llamacpp.sh) needs into build/llamacpp: its engine as
# PyPI's wheel xllamacpp, and from the sdist of the same release the one file that the wheel lacks,
# the quantiser, compiled here. A few seconds of compiling in place of ten minutes. Says in a
# sentence why it cannot, and exits with 77.
set -u
cd "$(dirname "$0")/../../.." || exit 1
release=2026.10.11549 # llama.cpp b11549
to=$PWD/build/llamacpp

cannot() {
	echo "$1: llama.cpp was not tried"
	exit 77
}

[ -f "$to/libpeer.so" ] && [ "$(cat "$to/release" 2>/dev/null)" = "$release" ] &&
	cmp -s tests/e2e/logits/peer_shim.c "$to/peer_shim.c" && exit 0
rm -rf "$to" && mkdir -p "$to/fetched" || exit 1
command -v g++ >/dev/null || cannot "no g++ on this machine"
python3 -m venv "$to/venv" >/dev/null 2>&1 || cannot "no python3 with venv on this machine"
pip=("$to/venv/bin/pip" -q --disable-pip-version-check)
timeout 300 "${pip[@]}" install --no-deps --only-binary :all: "xllamacpp==$release" ||
	cannot "PyPI does not answer"

# pip would go on to build the sdist, of which only the archive is wanted
TMPDIR=$to/fetched "${pip[@]}" download --no-cache-dir --no-deps --no-binary :all: \
	"xllamacpp==$release" -d "$to/fetched" >"$to/pip.log" 2>&1 &
download=$!
archive=
for _ in $(seq 600); do
	archive=$(find "$to/fetched" -name "xllamacpp-$release.tar.gz" | head -n 1)
	[ -n "$archive" ] && gzip -t "$archive" 2>/dev/null && break
	kill -0 $download 2>/dev/null || break
	archive=
	sleep 0.5
done
[ -n "$archive" ] && tar xzf "$archive" -C "$to" --strip-components=3 \
	"xllamacpp-$release/thirdparty/llama.cpp/include" \
	"xllamacpp-$release/thirdparty/llama.cpp/ggml/include" \
	"xllamacpp-$release/thirdparty/llama.cpp/src" \
	"xllamacpp-$release/thirdparty/llama.cpp/tools/quantize"
unpacked=$?
kill $download 2>/dev/null
wait $download 2>/dev/null
rm -rf "$to/fetched"
if [ -z "$archive" ] || [ $unpacked != 0 ]; then
	cannot "PyPI does not give the sdist of xllamacpp"
fi

# the wheel is compiled for manylinux2014: std::string as it was before C++11
flags=(-O1 -fPIC "-I$to/include" "-I$to/ggml/include" "-I$to/src")
g++ -std=c++17 -D_GLIBCXX_USE_CXX11_ABI=0 -DNDEBUG "${flags[@]}" -c "$to/src/llama-quant.cpp" \
	-o "$to/quant.o" &&
	gcc -std=gnu11 "${flags[@]}" -c tests/e2e/logits/peer_shim.c -o "$to/shim.o" &&
	g++ -shared -o "$to/libpeer.so" "$to/quant.o" "$to/shim.o" || exit 1
# the presets of llama-quantize by their numbers, as its table has them
sed -n 's/^ *{ "\([A-Z0-9_]*\)", *\(LLAMA_FTYPE_[A-Za-z0-9_]*\),.*/\1 \2/p' \
	"$to/tools/quantize/quantize.cpp" | while read -r name constant; do
	echo "$name $(sed -n "s/^ *$constant *= *\([0-9]*\),.*/\1/p" "$to/include/llama.h")"
done >"$to/presets"
cp tests/e2e/logits/peer_shim.c "$to/"
echo $release >"$to/release"
