#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# An output whose name is a link is written to where the link leads. (What else an output may replace: overwrite.sh.)
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
RUN_LIMIT=200
tree=$PWD
cd "$work" || exit 1
GLMSTREAM=$(realpath "$GLMSTREAM")
cp "$POCKET" model.gguf
echo 1 2 3 >ids
python3 -c "print('Define river. ' * 40)" >text

has_traces=1
"$GLMSTREAM" -m model.gguf -p 'Define river.' -n 2 -q --trace t.trace >"$work/out" 2>"$work/err" || has_traces=
short=(-m model.gguf -p 'Define river.' -n 2 --temp 0 --think off -q)
python3 "$tree/tests/e2e/convert/gen_checkpoint.py" tiny --tokenizer "$tree/tests/data/tokenizer/pocket-tokenizer.json" >gen ||
	wrong "the generator failed"

# a link is written through: the file behind it is replaced or made, and only if it may be
mkdir disk
via_link() { # COMMAND...: writes out.link, which leads to disk/out
	local made
	not_notes() { [ "$(head -c 8 disk/out | tr -d '\0')" != 'my notes' ]; }
	for made in '' 1; do
		ln -sf disk/out out.link
		rm -f disk/out
		[ -z $made ] || echo 'my notes' >disk/out
		run "$@" --force
		exits 0
		check "out.link is still a link" [ -L out.link ]
		check "the file behind it is written" [ -s disk/out ]
		check "the notes are replaced" not_notes
		check "nothing else is there" [ "$(ls -A disk) $(echo out.link*)" = 'out out.link' ]
	done
	echo 'my notes' >disk/out
	run "$@"
	error_is_one_sentence 3 'exists'
	check "the notes are as they were" grep -q 'my notes' disk/out
	ln -sf out.link2 out.link
	ln -sf out.link out.link2
	run "$@" --force
	error_is_one_sentence 3 'out.link: .*[Ll]evels of symbolic links'
	check "the links are as they were" [ -L out.link -a -L out.link2 ]
	rm -r out.link out.link2 disk/out
}
via_link dump-logits -m model.gguf --ids ids -o out.link
via_link imatrix -m model.gguf -f text -c 64 --chunks 1 -o out.link -q
via_link convert tiny -o out.link --recipe q8 -q
[ $has_traces ] && via_link "${short[@]}" --trace out.link
small_shape num_hidden_layers=5
via_link synth --shape shape.json -o out.link -q

finish
