#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# No output is written over a file that the same command reads, whatever name leads to it, with
# --force too. Two outputs do not share a file. An output whose name is a link is written to where
# the link leads. (What else an output may replace: overwrite.sh.)
# shellcheck disable=SC2317 # functions called through check
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
echo '{"type": "object"}' >schema.json

# keeps FILE COMMAND...: FILE is read by the command, so it stays as it is: its bytes, its date, its
# name (also that of a link)
keeps() {
	local file=$1 before
	shift
	touch -d '2001-01-01' "$file"
	before=$(stat -c '%i %s %Y %F' "$file" && sha256sum <"$file")
	run "$@"
	error_is_one_sentence 2 "${file##*/}: is (an|standard) input of this command; it is not replaced"
	check "the hint is another name" grep -q '^hint: give the output another name' "$work/err"
	check "$file is as it was" [ "$before" = "$(stat -c '%i %s %Y %F' "$file" && sha256sum <"$file")" ]
	check "nothing is left beside it" [ ! -e "$file.partial" ]
}

has_traces=1
"$GLMSTREAM" -m model.gguf -p 'Define river.' -n 2 -q --trace t.trace >"$work/out" 2>"$work/err" || has_traces=

short=(-m model.gguf -p 'Define river.' -n 2 --temp 0 --think off -q)
for force in '' --force; do
	# the model and what replaces it: its own name, another way to it, a link, a hard link
	ln -sf model.gguf link.gguf
	ln -f model.gguf hard.gguf
	mkdir -p folder
	cp model.gguf copy.gguf
	for name in model.gguf ./folder/../model.gguf "$work/model.gguf" link.gguf hard.gguf; do
		keeps "$name" dump-logits -m model.gguf --ids ids -o "$name" $force
	done
	keeps ids dump-logits -m model.gguf --ids ids -o ids $force
	keeps ids dump-logits -m model.gguf --ids ids -o logits --taps ids $force
	check "the other output is not begun" [ ! -e logits ]
	# shellcheck disable=SC2094 # that is the point
	keeps ids dump-logits -m model.gguf --ids - -o ids $force <ids
	keeps text imatrix -m model.gguf -f text -c 64 --chunks 1 -o text $force
	keeps model.gguf imatrix -m link.gguf -f text -c 64 --chunks 1 -o model.gguf $force
	[ $has_traces ] || continue
	keeps model.gguf "${short[@]}" --trace model.gguf $force
	keeps model.gguf "${short[@]}" --trace link.gguf $force
	keeps schema.json "${short[@]}" --json-schema schema.json --trace schema.json $force
	keeps copy.gguf "${short[@]}" --cache-gb 0.006 --replicas model.gguf,copy.gguf --trace copy.gguf $force
	keeps t.trace trace simulate t.trace --svg t.trace $force
	keeps text tune -m model.gguf -f text --svg text $force
done

# every part of a split model, and every file of a checkpoint
python3 "$tree/tests/e2e/convert/gen_checkpoint.py" tiny --tokenizer "$tree/tests/data/tokenizer/pocket-tokenizer.json" >gen ||
	wrong "the generator failed"
run convert tiny -o split.gguf --recipe q8 --split-gb 0.004 -q
exits 0
run imatrix -m tiny -f text -c 64 --chunks 1 -o im.gguf -q
exits 0
first=$(echo split-00001-of-*.gguf) second=$(echo split-00002-of-*.gguf) shard=$(echo tiny/*.safetensors | cut -d' ' -f1)
for force in '' --force; do
	keeps "$second" dump-logits -m "$first" --ids ids -o "$second" $force
	keeps "$shard" dump-logits -m tiny --ids ids -o "$shard" $force
	for name in "$shard" tiny/config.json tiny/tokenizer.json; do
		keeps "$name" convert tiny -o "$name" --recipe q8 -q $force
	done
	keeps tiny/config.json synth --shape tiny/config.json -o tiny/config.json -q $force
	[ $force ] && keeps tiny/config.json synth --format hf --shape tiny/config.json -o tiny -q --force
	cp im.gguf c.gguf.journal
	keeps c.gguf.journal convert tiny -o c.gguf --imatrix c.gguf.journal --recipe q4 -q $force
done

# check values beside a model, which the command reads with it
run verify tiny --write -q
exits 0
printf 'GLMXXH3\n' >model.gguf.xxh3
for force in '' --force; do
	keeps tiny/model.safetensors.xxh3 dump-logits -m tiny --ids ids -o tiny/model.safetensors.xxh3 $force
	keeps model.gguf.xxh3 dump-logits -m model.gguf --ids ids -o model.gguf.xxh3 $force
	keeps model.gguf.xxh3 imatrix -m model.gguf -f text -c 64 --chunks 1 -o model.gguf.xxh3 $force
done
run verify tiny --write --force -q
exits 0
rm tiny/model.safetensors.xxh3 model.gguf.xxh3

# a word ("glm-5.2" of --shape, "shipped" of traces) is no input, also where a file has its name
mkdir glm-5.2
cp tiny/config.json glm-5.2
run synth --format hf -o glm-5.2 -q
error_is_one_sentence 3 'glm-5.2.*: exists already'
for _ in 1 2; do
	run trace simulate shipped --experts 8 --svg shipped
	exits 0
done

# the file of a standard stream, to which more is printed
for fd in 1 2; do
	echo 'printed before' >printed
	command=("$GLMSTREAM" dump-logits -m model.gguf --ids ids -o printed --force)
	[ $fd = 1 ] && "${command[@]}" >>printed 2>err
	[ $fd = 2 ] && "${command[@]}" >out 2>>printed
	rc=$? said="dump-logits -o printed $fd>>printed"
	check "what was printed stays" grep -q 'printed before' printed
done

# two outputs with one name, whether the file is there or not
ln -s new.file other.name
for other in new.file ./new.file other.name; do
	set -- new.file "$other"
	run dump-logits -m model.gguf --ids ids -o "$1" --taps "$2" --force
	error_is_one_sentence 2 '-o and --taps name the same file'
	run "${short[@]}" --warm "$1" --session "$2" --force
	error_is_one_sentence 2 '--session and --warm name the same file'
	run "${short[@]}" --warm "$1" --trace "$2" --force
	error_is_one_sentence 2 '--trace and --warm name the same file'
	check "nothing is begun" [ ! -e new.file -a ! -e new.file.partial ]
done

# names that are no files: said before the model is opened, and nothing is left
mkdir -p odd/folder
names_no_file() { # STATUS WORDS NAME COMMAND...
	local status=$1 words=$2 name=$3
	shift 3
	run "$@" "$name"
	error_is_one_sentence "$status" "$words"
	check "the model is not opened" [ "$(grep -c . "$work/err")" -le 2 ]
	check "nothing is left" [ "$(ls odd) $(ls -A odd/folder)" = 'folder ' ]
	check "nothing is left here" [ ! -e - -a ! -e .partial -a ! -e odd/folder.partial ]
}
loud=(-m model.gguf -p 'Define river.' -n 2 --temp 0 --think off)
for option in --trace --warm --session; do
	[ $has_traces ] || [ $option != --trace ] || continue
	names_no_file 2 "$option: the name of a file is expected, an empty one found" '' "${loud[@]}" $option
	names_no_file 2 "$option: this output cannot go to stdout" - "${loud[@]}" $option
	names_no_file 3 'odd/folder: is a directory' odd/folder "${loud[@]}" $option
done
for option in -o --taps; do
	dump=(dump-logits -m model.gguf --ids ids)
	[ $option = -o ] || dump+=(-o odd/logits)
	names_no_file 2 "$option: the name of a file is expected, an empty one found" '' "${dump[@]}" $option
	names_no_file 3 'odd/folder: is a directory' odd/folder "${dump[@]}" $option
done
names_no_file 2 '--svg: this output cannot go to stdout' - trace simulate shipped --experts 8 --svg
names_no_file 2 '-o: this output cannot go to stdout' - imatrix --merge im.gguf -o
names_no_file 3 'odd/folder: .*not a regular file' odd/folder imatrix --merge im.gguf -o
names_no_file 3 'odd/folder: is a directory' odd/folder convert tiny --recipe q8 -o
run dump-logits -m model.gguf --ids ids -o odd/logits --taps -
exits 0
check "taps on stdout are alone there" [ "$(grep -c logits_hash "$work/out")" = 0 ]
last_line_is_json "$work/err" rows

# a pipe that nobody reads is no reason to ignore a signal
mkfifo pipe
has_ended() { ! kill -0 "$1" 2>/dev/null; }
"$GLMSTREAM" dump-logits -m model.gguf --ids ids -o pipe >out 2>err &
pid=$!
for _ in $(seq 1200); do
	grep -q verified err && break
	sleep 0.1
done
sleep 0.5
kill -INT $pid
for _ in $(seq 600); do
	kill -0 $pid 2>/dev/null || break
	sleep 0.1
done
check "one signal ends it" has_ended $pid
kill -KILL $pid 2>/dev/null
wait $pid
rc=$? said="dump-logits -o pipe"
exits 130

# a trace into a pipe that another program reads
if [ $has_traces ]; then
	run "${short[@]}" --trace >(cat >piped.trace)
	exits 0
	for _ in $(seq 600); do
		[ ! -s piped.trace ] || break
		sleep 0.1
	done
	check "a trace goes into >(COMMAND)" [ "$(head -c 8 piped.trace)" = GLMTRACE ]
fi

# a write-protected file is replaced with --force alone. Root may write all files, so the program
# runs as a user who may not
mkdir protected && chmod 711 "$work" && chmod 777 protected
cp "$GLMSTREAM" program
user_run() {
	(
		user=()
		[ "$(id -u)" != 0 ] || user=(setpriv --reuid 65534 --regid 65534 --clear-groups)
		HOME=$work/protected
		exec timeout 300 ${user[@]+"${user[@]}"} ./program "$@" >"$work/out" 2>"$work/err"
	)
	rc=$? said="program $*"
}
user_run --version
if [ $rc = 0 ] && { [ "$(id -u)" != 0 ] || ! setpriv --reuid 65534 --regid 65534 --clear-groups test -w ids; }; then
	for option in --session --warm --trace; do
		[ $has_traces ] || [ $option != --trace ] || continue
		file=protected/file$option
		user_run "${short[@]}" $option $file
		exits 0
		chmod 444 $file
		sum=$(sha256sum $file)
		user_run "${short[@]}" $option $file
		if [ $option = --warm ]; then
			exits 0 # it is only read
		else
			error_is_one_sentence 3 "$file: is write-protected"
		fi
		check "$file is as it was" [ "$sum" = "$(sha256sum $file)" ]
		[ $option != --trace ] || user_run "${short[@]}" $option $file --force
		[ $option != --trace ] || exits 0
	done
else
	skip_part "write-protected files: no user who may not write them"
fi

# what is replaced keeps its permissions
keeps_mode() { # COMMAND...: writes mode.out
	rm -f mode.out
	run "$@" --force
	exits 0
	chmod 600 mode.out
	run "$@" --force
	exits 0
	check "mode.out is as private as it was" [ "$(stat -c %a mode.out)" = 600 ]
}
keeps_mode dump-logits -m model.gguf --ids ids -o mode.out
keeps_mode convert tiny -o mode.out --recipe q8 -q
keeps_mode imatrix --merge im.gguf -o mode.out -q
[ $has_traces ] && keeps_mode "${short[@]}" --trace mode.out

# a pipe by the name that a shell gives it, whose link names no file
piped() { # COMMAND...: writes the file that comes behind it, the same as into the file "direct"
	rm -f direct piped
	"$GLMSTREAM" "$@" direct --force >out 2>err || wrong "it cannot be written as a file"
	"$GLMSTREAM" "$@" >(cat >piped) >out 2>err
	rc=$? said="$* >(cat >piped)"
	exits 0
	for _ in $(seq 600); do
		[ "$(stat -c %s piped)" = "$(stat -c %s direct)" ] && break
		sleep 0.1
	done
	check "the pipe carries the file" [ "$(head -c 8 piped | tr -d '\0')" = "$(head -c 8 direct | tr -d '\0')" ]
}
piped dump-logits -m model.gguf --ids ids -o
[ $has_traces ] && piped "${short[@]}" --trace
run "${short[@]}" --warm pipe
error_is_one_sentence 3 'pipe: is not a regular file, expected a profile or a trace'

# a link is written through: the file behind it is replaced or made, and only if it may be
mkdir disk links
via_link() { # COMMAND...: writes links/out.link, which leads to disk/out
	local made
	not_notes() { [ "$(head -c 8 disk/out 2>&1 | tr -d '\0')" != 'my notes' ]; }
	for made in '' 1; do
		ln -sf ../disk/out links/out.link
		rm -f disk/out
		[ -z $made ] || echo 'my notes' >disk/out
		run "$@" --force
		exits 0
		check "out.link is still a link" [ -L links/out.link ]
		check "the file behind it is written" [ -s disk/out ]
		check "the notes are replaced" not_notes
		check "nothing else is there" [ "$(ls -A disk) $(ls -A links)" = 'out out.link' ]
	done
	echo 'my notes' >disk/out
	run "$@"
	error_is_one_sentence 3 'exists'
	check "the notes are as they were" grep -q 'my notes' disk/out
	ln -sf out.link2 links/out.link
	ln -sf out.link links/out.link2
	run "$@" --force
	error_is_one_sentence 3 'out.link: .*[Ll]evels of symbolic links'
	check "the links are as they were" [ -L links/out.link -a -L links/out.link2 ]
	rm links/* disk/out
}
via_link dump-logits -m model.gguf --ids ids -o links/out.link
via_link imatrix -m model.gguf -f text -c 64 --chunks 1 -o links/out.link -q
via_link convert tiny -o links/out.link --recipe q8 -q
[ $has_traces ] && via_link "${short[@]}" --trace links/out.link
small_shape num_hidden_layers=5
via_link synth --shape shape.json -o links/out.link -q

finish
