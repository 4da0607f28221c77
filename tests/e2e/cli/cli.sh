#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The command line as its users meet it: help, exit codes, refusals, damaged files, what goes to
# stdout and what to stderr. No input may crash the program, hang it, or make it answer from bytes
# that are not there.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"

no_escapes() {
	! grep -q $'\033' "$work/out" "$work/err"
}

json_is_whole() {
	python3 -m json.tool <"$work/out" >/dev/null
}

hash_of() {
	grep -o '"logits_hash": *"*[0-9a-fx]*' "$work/err" | tail -n 1
}

# ---- help and usage ------------------------------------------------------------------------------

run --version
exits 0
check "--version prints name and version" grep -qE '^glmstream [0-9]+\.[0-9]+' "$work/out"
run --help
exits 0
check "--help belongs on stdout" [ -s "$work/out" ]
check "--help says nothing on stderr" [ ! -s "$work/err" ]
commands=$(sed -n '/^Commands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p' "$work/out")
check "--help lists commands" [ -n "$commands" ]
for c in $commands; do
	run "$c" --help
	exits 0
	check "help of $c shows its usage" grep -q "glmstream" "$work/out"
	check "help of $c has an example" grep -qi '^example' "$work/out"
	check "help of $c says nothing on stderr" [ ! -s "$work/err" ]
	run "$c" --no-such-option
	error_is_one_sentence 2 no-such-option
done
run no-such-command
error_is_one_sentence 2 no-such-command
for surplus in '--version -p' '--help run' '-h run' 'help clients now' 'help --man page' 'help run now' 'help trace show now'; do
	# shellcheck disable=SC2086 # words
	run $surplus
	error_is_one_sentence 2 "unexpected argument"
done
run help clients
for word in ANTHROPIC_BASE_URL model_providers.glmstream openai-compatible Cline apiBase OPENAI_API_BASE_URL \
	'aider --model' OLLAMA_HOST; do
	check "help clients speaks of $word" grep -qF -- "$word" "$work/out"
done
check "help clients has lines of at most 100 columns" [ "$(wc -L <"$work/out")" -le 100 ]
run help proxy
for word in 'proxy_buffering off;' '--trusted-proxy' reverse_proxy; do
	check "help proxy speaks of $word" grep -qF -- "$word" "$work/out"
done
run help --man
for section in CLIENTS 'BEHIND A PROXY' 'THREAT MODEL OF THE SERVER'; do
	check "the manual has the section" grep -q "^.SH $section" "$work/out"
done
section_of() { # section: its text, without font changes
	sed -n "/^\.SH $1\$/,/^\.SH /p" "$work/out" | sed 's/\\f[BIR]//g; s/\\-/-/g' | tr '\n' ' '
}
explains() { section_of "$1" | grep -qE -- "$2"; }
check "MEMORY explains --cpu-experts" explains MEMORY \
	'--cpu-experts auto lets the processor .*off, the default.* answers are the same .*Try it where'
check "MEMORY explains --kv-ram" explains MEMORY \
	'--kv-ram on their latents .*answers are the same. auto, the default.* --kv-type fp8 keeps'
check "MODELS explains --exact-prompts" explains MODELS \
	'--exact-prompts makes .*The default is off.* the same bits .*Use it to'
check "MODELS explains --fast-prompts" explains MODELS \
	'--fast-prompts makes .*on the CPU.*AMX.*The default is off'
check "and how to report a vulnerability" explains 'THREAT MODEL OF THE SERVER' 'How to report a vulnerability .* not in a public issue'
run help trace show
exits 0
check "help knows the parts of a command" grep -q '^Usage: glmstream trace show' "$work/out"
run --no-such-option
error_is_one_sentence 2 no-such-option

# ---- what people type who come from elsewhere ---------------------------------------------------

hints() { # pattern of the hint, then the command line
	local hint=$1
	shift
	run "$@"
	error_is_one_sentence 2
	check "the hint should match: $hint" grep -qE "^hint: .*$hint" "$work/err"
}
hints '--cache-gb' -ngl 99
hints '--cache-gb' --n-gpu-layers=99
hints '--cache-gb' -ot 'exps=CPU'
hints '-c N' --ctx-size 4096
hints '--temp' --temperature 0.5
hints '-n N' --n-predict 5
hints '--sessions' -np 4
hints '-m FILE' -hf unsloth/GLM-5.2-GGUF
hints 'leave it out' -fa
hints '--kv-type' -ctk q8_0
hints '--cards 0,1' -mg 1
hints '--system' -sys 'be brief'
hints '-m FILE' run glm5.2
hints "-p 'Define river.'" run 'Define river.'
hints '-m FILE' pull glm-5.2
hints 'inspect FILE' show glm-5.2
hints '--recipe' quantize a.gguf b.gguf
if has_command serve; then
	run serve --api-key ''
	error_is_one_sentence 2 'key is empty'
	for bad in '--api-key ,' '--cors chat.example.org' '--cors https://chat.example.org/' \
		'--allow-host llm.example.org:8080' '--allow-host [::1]:80' '--allow-host https://llm.example.org' '--allow-host a,b'; do
		# shellcheck disable=SC2086 # option and value
		run serve --port 0 $bad
		error_is_one_sentence 2 "^glmstream: ${bad% *}[ :]"
	done
	run serve --port 0 --model-name ''
	error_is_one_sentence 2 'name is empty'
	hints '--sessions' serve -np 4
	hints '-c N' serve --ctx-size 4096
	hints 'did you mean serve' server
	# before the model is opened
	python3 -c 'import socket, sys
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
sys.stdin.read()' < <(sleep 60) >"$work/port" &
	taken=$!
	until [ -s "$work/port" ]; do sleep 0.05; done
	run serve -m "$work/missing.gguf" --port "$(cat "$work/port")"
	kill $taken
	error_is_one_sentence 1 'port [0-9]+: Address already in use'
	run serve -m "$work/missing.gguf" --port 0 --host no-such-host.invalid
	error_is_one_sentence 2 '^glmstream: --host no-such-host.invalid: '
fi

# ---- files that are not models -------------------------------------------------------------------

: >"$work/empty.gguf"
echo "not a model at all, just a line of text" >"$work/text.gguf"
printf 'GGUF\003\000\000\000\377\377\377\377\377\377\377\177\377\377\377\377\377\377\377\177' >"$work/huge-counts.gguf"
head -c 4096 /dev/urandom >"$work/noise.gguf"
for c in run inspect tokenize render dump-logits perplexity imatrix; do
	for m in "$work/missing.gguf" "$work" "$work/empty.gguf" "$work/text.gguf" "$work/huge-counts.gguf" "$work/noise.gguf"; do
		case $c in
		run) run -m "$m" -p x -n 1 ;;
		inspect) run inspect "$m" ;;
		dump-logits) echo 1 >"$work/ids" && run dump-logits -m "$m" --ids "$work/ids" -o "$work/logits" ;;
		perplexity) echo text >"$work/t" && run perplexity -m "$m" -f "$work/t" ;;
		imatrix) run imatrix -m "$m" -f "$work/t" -o "$work/im.gguf" ;;
		*) run "$c" -m "$m" </dev/null ;;
		esac
		error_is_one_sentence 3 "${m##*/}"
	done
done
run inspect $'no such\n\033[31mfile'
error_is_one_sentence 3 'no such\?\?\[31mfile'
run convert "$work/missing-folder" -o "$work/x.gguf" --recipe q8
error_is_one_sentence 3 missing-folder
mkdir "$work/empty-folder"
run convert "$work/empty-folder" -o "$work/x.gguf" --recipe q8
error_is_one_sentence 3
check "a failed conversion leaves no file behind" [ ! -e "$work/x.gguf" ]
run convert "$work/empty-folder" -o "$work/x.gguf" --recipe no-such-recipe
error_is_one_sentence 2 no-such-recipe
run compare "$work/missing-a" "$work/missing-b"
error_is_one_sentence 3 missing-a

need_pocket

# ---- outputs that cannot be written, before the work ---------------------------------------------

python3 tests/e2e/convert/gen_checkpoint.py "$work/tiny" --tokenizer tests/data/tokenizer/pocket-tokenizer.json >"$work/gen" ||
	wrong "the generator failed"
echo 1 2 3 >"$work/ids"
for bad in "$work/no-folder/out" "$work/empty-folder"; do
	run dump-logits -m "$work/missing.gguf" --ids "$work/ids" -o "$bad"
	error_is_one_sentence 3 "${bad##*/}: (cannot be written|is a directory)"
	run dump-logits -m "$work/missing.gguf" --ids "$work/ids" -o "$work/logits" --taps "$bad"
	error_is_one_sentence 3 "${bad##*/}: (cannot be written|is a directory)"
	for suffix in '' .gguf .dat; do
		mkdir -p "$work/empty-folder$suffix"
		run imatrix -m "$work/missing.gguf" -f "$work/t" -o "$bad$suffix"
		error_is_one_sentence 3 "${bad##*/}$suffix: (cannot be written|is a directory|exists and is not a regular file)"
	done
	run -m "$work/missing.gguf" -p x --session "$work/no-folder/session"
	error_is_one_sentence 3 'session: cannot be written'
	run -m "$work/missing.gguf" -p x --session-dir "$work/ids"
	error_is_one_sentence 3 '^glmstream: --session-dir: .*ids is no folder'
	run trace simulate shipped --experts 100 --policy lru --svg "$bad"
	error_is_one_sentence 3 "${bad##*/}: (cannot be written|is a directory)"
	run tune --cache-gb 0.006 --svg "$bad"
	error_is_one_sentence 3 "${bad##*/}: (cannot be written|is a directory)"
	check "tune has measured nothing" [ "$(grep -c measuring "$work/err")" = 0 ]
	run convert "$work/tiny" -o "$bad" --target-gb 0.02
	error_is_one_sentence 3 "${bad##*/}: (cannot be written|is a directory)"
	check "convert has chosen no types" [ "$(grep -c '^source' "$work/err")" = 0 ]
done
for same in "$work/both" -; do
	run dump-logits --ids "$work/ids" -o "$same" --taps "$same"
	error_is_one_sentence 2 '^glmstream: -o and --taps name the same file'
done
check "nothing is written" [ ! -e "$work/both" ]
run dump-logits --ids "$work/ids" -o /dev/null --taps /dev/null
exits 0
run export -m "$POCKET" -o -
error_is_one_sentence 2 '^glmstream: -o: this output cannot go to stdout'
run plan --vram-gb 24 --ram-gb 64 -m "$work/missing.gguf"
error_is_one_sentence 3 'missing.gguf: No such file'
check "the hint of a plan is of its trace, not of its model" [ "$(grep -c '^hint' "$work/err")" = 0 ]

# ---- values that make no sense -------------------------------------------------------------------

for bad in "-c 0" "-c -1" "-c x" "-c 1e3x" "-n -1" "-n x" "-n 99999999999999999999" "--temp x" "--temp -1" "--temp nan" \
	"--top-p 2" "--top-p -0.5" "--top-k -1" "--min-p 7" "--seed x" "--think maybe" "--backend abacus" "--policy none-such" \
	"--io carrier-pigeon" "--cache-gb x" "--cache-gb -1" "--ram-gb x" "--lookahead x" "--lookahead 17" "-t -1" "-t x"; do
	# shellcheck disable=SC2086 # option and value
	run -p x $bad
	error_is_one_sentence 2 "^glmstream: ${bad% *}: "
done
run -p
error_is_one_sentence 2
run -p x -f "$work/text.gguf"
exits 2
run -p x -q -v
error_is_one_sentence 2 'exclude each other'
run -p x -n 1 --session-dir ''
error_is_one_sentence 2 '^glmstream: --session-dir: the name of a folder is expected'
run -p x -m "$work/no-such-model" --session-dir-gb 3
error_is_one_sentence 2 'give --session-dir as well'
run -p x -n 1 --backend cpu --policy lru --lookahead 2 --io threads --no-direct --io-depth 4
exits 0
check "options of a cache that is not there are named" \
	grep -q '^warning: no effect without --cache-gb.* --policy, --lookahead, --io, --io-depth, --no-direct$' "$work/err"
run -p x -n 1 -q --backend cpu --lookahead 2 --trace "$work/predicted"
check "a trace has the predictions of a lookahead" [ ! -s "$work/err" ]
run -p x -n 1 -q --cache-gb 0.01 --policy lru --lookahead 2 --io threads --no-direct --io-depth 4
check "with a cache they have effect" [ ! -s "$work/err" ]
run -p x -n 1 --backend cpu --exact-prompts
exits 0
check "what is for a card is said to be" grep -q '^backend cpu: --exact-prompts has no effect' "$work/err"
run -p x -n 1 -q --backend cpu --kv-ram on
exits 0
check "so is --kv-ram" grep -q '^warning: no effect on the CPU.*: --kv-ram on$' "$work/err"
run -p x -n 1 -q --backend cpu --kv-ram auto
check "but not what it does unasked" [ ! -s "$work/err" ]
run -f "$work/missing-prompt" -n 1
error_is_one_sentence 3 missing-prompt
run -p x -n 1 --cache-gb 0.000001
error_is_one_sentence 4 "smallest that works is [0-9.]+ GB"
smallest=$(sed -n 's/.*smallest that works is \([0-9.]*\) GB.*/\1/p' "$work/err")

# ---- an answer -----------------------------------------------------------------------------------

run -p "Define river." --temp 0 --think off -n 40
exits 0
check "the answer is on stdout" grep -qi river "$work/out"
check "stdout has no escape sequences" no_escapes
check "statistics are on stderr" [ -s "$work/err" ]
cp "$work/out" "$work/first"
NO_COLOR=1 run -p "Define river." --temp 0 --think off -n 40
check "the same prompt at temperature 0 gives the same answer" cmp -s "$work/out" "$work/first"
run -p "Define river." --temp 0 --think off -n 40 -q
exits 0
check "-q gives the same answer" cmp -s "$work/out" "$work/first"
check "-q says nothing on stderr" [ ! -s "$work/err" ]
long=$(yes "river and mountain" | head -n 150 | tr '\n' ' ')
run -p "$long" --temp 0 --think off -n 2 --chunk 32
check "progress is for terminals" [ "$(grep -c "reading the prompt" "$work/err")" = 0 ]
printf 'Define river.' | timeout 300 "$GLMSTREAM" -f - -q --temp 0 --think off -n 40 2>"$work/err" | cat >"$work/out"
check "a prompt from a pipe, an answer into one" cmp -s "$work/out" "$work/first"
check "and nothing else with -q" [ ! -s "$work/err" ]
printf 'Define river.' >"$work/prompt"
run -f "$work/prompt" --temp 0 --think off -n 40
check "-f reads the prompt from a file" cmp -s "$work/out" "$work/first"

run -p "Define river." --temp 0 --think off -n 40 --json
exits 0
check "--json keeps the answer as it is" cmp -s "$work/out" "$work/first"
check "the last line of stderr is JSON" last_line_is_json "$work/err" prompt_tokens new_tokens prefill_tok_s \
	decode_tok_s hit_cache hit_ram on_host miss bytes_read wait_ms_per_token wait_drafts_ms_per_token logits_hash backend io \
	ram_refused_bytes
want_hash=$(hash_of)
run -p "Define river." --temp 0 --think off -c 20 --json
exits 0
check "a full context is a warning" grep -q 'the context of 20 tokens is full' "$work/err"
check "before the line of JSON" last_line_is_json "$work/err" stop
check "there is a logits hash" [ -n "$want_hash" ]
run -p "Define river." -n 1 --cache-gb 1 --ram-gb 1 --backend cpu
check "budgets above what the experts need are capped, and it is said" [ "$(grep -c 'capped to that' "$work/err")" = 2 ]
run -p "Define river." --temp 0 --think off -n 2 --cache-gb 0.007 --ram-gb 0.004 --backend cpu --cpu-experts auto
exits 0
check "--cpu-experts without a card says so" grep -q '^experts on the processor: none, there is no card$' "$work/err"
twice=$(awk -v gb="$smallest" 'BEGIN { print 2 * gb }')
for how in "--cache-gb $smallest" "--cache-gb $twice --lookahead 0" "--cache-gb $twice --ram-gb $twice" "--io threads" \
	"--io threads --no-direct --cache-gb $twice" "--policy sieve --cache-gb $twice" "--policy lfu --cache-gb $twice" \
	"-t 1"; do
	# shellcheck disable=SC2086 # options
	run -p "Define river." --temp 0 --think off -n 40 --json --backend cpu $how
	exits 0
	check "$how changes the answer" cmp -s "$work/out" "$work/first"
	check "$how changes the logits" [ "$(hash_of)" = "$want_hash" ]
done

{
	echo "Define river."
	yes "the river and the mountain" | head -n 70 | tr '\n' ' '
} >"$work/turns"
run --temp 0 --think off -n 20 --json --backend cpu --cache-gb "$twice" --chunk 128 <"$work/turns"
exits 0
figure() { sed -n "s/.*\"$1\": *\([0-9]*\).*/\1/p" "$work/err" | tail -n 1; }
check "a long prompt leaves the cached experts" [ "$(figure cached_before_prompt)" -gt 8 ]
check "but for the slots that it borrows" [ "$(figure cached_kept)" -ge $(($(figure cached_before_prompt) - 8)) ]

run -p "Define river." -n 0
exits 0
check "-n 0 writes nothing" [ ! -s "$work/out" ]
long=$(yes "river and mountain" | head -n 200 | tr '\n' ' ')
run -p "$long" -c 64 -n 4
error_is_one_sentence 3 64
run -p $'broken \xff\xfe\xc3 text' -n 2 --temp 0
error_is_one_sentence 3 'byte 7 \(0xff\) is not valid UTF-8'
run -p "" -n 2 --think off --temp 0
exits 0
check "an empty prompt is a prompt" [ -s "$work/out" ]
timeout 300 "$GLMSTREAM" -p "Define river." --temp 0 -n 20 >/dev/full 2>"$work/err"
rc=$? said="glmstream -p ... >/dev/full"
exits 1

# a standard stream that is closed is not the first file that is opened
timeout 300 "$GLMSTREAM" -q -n 2 --cache-gb "$smallest" <&- >"$work/out" 2>"$work/err"
rc=$? said="glmstream --cache-gb ... <&-"
error_is_one_sentence 1 "standard input"
run -p x -n 0 -q --trace "$work/trace"
if grep -q 'built without lz4' "$work/err"; then
	skip_part "a trace with closed streams: this program was built without lz4"
else
	exits 0
	"$GLMSTREAM" -p "Define river." -n 2 --trace "$work/trace" >&- 2>&-
	run trace show "$work/trace"
	exits 0
fi

for named in "$POCKET" "run $POCKET"; do
	# shellcheck disable=SC2086 # words
	run $named -p "Define river." --temp 0 --think off -n 40 -q
	exits 0
	check "a file as the first word is the model" cmp -s "$work/out" "$work/first"
done
run "$POCKET" -m "$POCKET" -p x
error_is_one_sentence 2 'both name a model'
run "$work/no-such.gguf" -p x
error_is_one_sentence 3 'no-such.gguf'

# one line before the answer and one behind it; the rest is for -v
run -p "Define river." --temp 0 --think off
check "an answer comes with two lines on stderr" [ "$(wc -l <"$work/err")" = 2 ]
check "the first says what answers" grep -qE '^pocket.gguf: 7 layers \+ MTP, 32 experts .*; cpu \(.*\); context [0-9]+; bytes verified$' "$work/err"
check "the second how fast" grep -qE '^[0-9]+ prompt at .*, [0-9]+ new at [0-9.]+ tok/s(; [0-9.]+ tokens a step)?; [0-9]+ experts verified in [0-9.]+ ms; cpu$' "$work/err"
run -p "Define river." --temp 0 --think off --cache-gb 0.006 --ram-gb 0.004
check "with a cache as well" [ "$(wc -l <"$work/err")" = 2 ]
check "where the experts were: cache and RAM" grep -qE '; experts [0-9.]+ % cache, ([0-9.]+ % RAM, )?[0-9.]+ % read' "$work/err"
run -p "Define river." --temp 0 --think off --cache-gb 0.006 -v
for what in memory: experts: reader: '; logits [0-9a-f]{16}'; do
	check "-v says $what" grep -qE "$what" "$work/err"
done
check "there is no VRAM on a CPU" [ "$(grep -ci vram "$work/err")" = 0 ]
run -p "Define river." --temp 0 --think off -n 3
check "an answer that -n cut off is marked" grep -q '; cut off by -n 3$' "$work/err"
run -p "Define river." --temp 0 --think off -n 40
check "one that ended by itself is not" [ "$(grep -c 'cut off' "$work/err")" = 0 ]
run -p "What is the weather in Paris?" --temp 0 --think off
check "a call is a line of its own" grep -qxE 'call get_weather \{"city": "Paris"\}' "$work/out"
for what in help "help --man" "-q -n 300 --temp 0 --think off -p Define"; do
	# shellcheck disable=SC2086 # words
	"$GLMSTREAM" $what 2>"$work/err" | head -c 1 >"$work/out"
	check "a reader that stops early is no news ($what)" [ ! -s "$work/err" ]
done
seq 1 100 >"$work/ids"
"$GLMSTREAM" dump-logits --ids "$work/ids" --all -o - -q 2>"$work/err" | head -c 1 >"$work/out"
check "not of logits either" [ ! -s "$work/err" ]

# a pipe is a chat of one turn per line
printf 'Define river.\nDefine island.\n' | timeout 300 "$GLMSTREAM" --temp 0 --think off -n 40 >"$work/out" 2>"$work/err"
rc=$? said="printf ... | glmstream"
exits 0
check "both lines are answered" [ "$(grep -ciE 'river|island' "$work/out")" -ge 2 ]
check "a pipe gets no escape sequences" no_escapes
check "and no warning" [ "$(grep -c warning "$work/err")" = 0 ]
printf '/help\n/think off\nDefine dog.\n/exit\n' | timeout 300 "$GLMSTREAM" --temp 0 --think off -q >"$work/out" 2>"$work/err"
rc=$? said="printf /help ... | glmstream"
exits 0
check "commands in a pipe are warned of once" [ "$(grep -c 'line 1: "/help" is sent to the model' "$work/err")" = 1 ]
check "and only once" [ "$(wc -l <"$work/err")" = 1 ]
printf '/usr/bin is a folder\n/help me\n' | timeout 300 "$GLMSTREAM" --temp 0 --think off -q -n 4 >"$work/out" 2>"$work/err"
check "other lines with a slash are not" [ ! -s "$work/err" ]
{
	yes 'Define dog.' | head -n 6
	printf ' \t\nlast'
} | timeout 300 "$GLMSTREAM" --temp 0 --think off -q -c 60 >"$work/out" 2>"$work/err"
rc=$? said="yes 'Define dog.' | glmstream -c 60"
exits 3
check "a full context in a pipe says which line and how many are left" \
	grep -q '^glmstream: standard input, line 2: 62 tokens do not fit the context of 60; 5 more lines are not answered$' "$work/err"
check "the first line is answered" [ "$(wc -l <"$work/out")" = 1 ]
{ # what has not come yet is not waited for: the program ends before the writer, who waits for that
	printf 'Define dog.\nDefine cat.\nDefine island.\n'
	for _ in $(seq 600); do
		[ ! -e "$work/ended" ] || break
		sleep 0.1
	done
	[ ! -e "$work/ended" ] || touch "$work/seen"
} | (
	timeout 600 "$GLMSTREAM" --temp 0 --think off -q -c 60 >"$work/out" 2>"$work/err"
	touch "$work/ended"
)
check "a writer that goes on is not waited for" [ -e "$work/seen" ]
check "then it is at least that many" grep -q '; at least 1 more line is not answered$' "$work/err"
{ # a file named by mistake may be large, or have no end: some MiB of it are counted
	printf '\377\n'
	yes x | head -c 8000000
} >"$work/lines"
run -q -t 1 <"$work/lines"
error_is_one_sentence 3 'line 1: .*; at least [0-9]+ more lines are not answered$'

# ---- the other commands --------------------------------------------------------------------------

ln "$POCKET" "$work/"$'fl\303\274sse\377.gguf' || cp "$POCKET" "$work/"$'fl\303\274sse\377.gguf'
run inspect --json "$work/"$'fl\303\274sse\377.gguf'
exits 0
check "of a name that is not UTF-8 JSON replaces the bad byte alone" grep -q $'/fl\303\274sse\357\277\275\\.gguf"' "$work/out"

printf 'Größe 日本語 \xf0\x9f\x99\x82 123456 \t x' >"$work/text"
run tokenize -m "$POCKET" <"$work/text"
exits 0
check "tokenize prints one line of numbers" grep -qxE '[0-9]+( [0-9]+)*' "$work/out"
cp "$work/out" "$work/ids"
run tokenize -m "$POCKET" --decode <"$work/ids"
exits 0
check "decoding gives the text back" cmp -s "$work/out" "$work/text"
for ids in "99999999" "-1" "1 x 2" "1.5" "4294967297"; do
	run tokenize -m "$POCKET" --decode <<<"$ids"
	error_is_one_sentence 3
done
for ids in "8192" "-1" "1 two 3" "" "99999999999999999999"; do
	echo "$ids" >"$work/ids"
	run dump-logits -m "$POCKET" --ids "$work/ids" -o "$work/logits"
	error_is_one_sentence 3
	check "refused ids leave no output file" [ ! -e "$work/logits" ]
done
echo "10 20 30" >"$work/ids"
run dump-logits -m "$POCKET" --ids "$work/ids" --all -o "$work/logits"
exits 0
check "dump-logits prints JSON" last_line_is_json "$work/out" rows vocab logits_hash
check "three rows of float32" [ "$(stat -c %s "$work/logits")" = $((3 * 8192 * 4)) ]
run compare "$work/logits" "$work/logits" --vocab 8192
exits 0
head -c 1000 "$work/logits" >"$work/short"
run compare "$work/logits" "$work/short" --vocab 8192
error_is_one_sentence 3
run render -m "$POCKET" <<<'{"messages": [{"role": "user", "content": "Hi"}]}'
exits 0
check "render prints the template" grep -qF '<|user|>Hi<|assistant|>' "$work/out"
for json in '{' '[]' '{"messages": 1}' '{"messages": [{"role": "nobody", "content": "x"}]}' ''; do
	run render -m "$POCKET" <<<"$json"
	error_is_one_sentence 3
done
run inspect "$POCKET"
exits 0
run inspect "$POCKET" --json
exits 0
check "inspect --json is JSON" json_is_whole

# ---- damaged models ------------------------------------------------------------------------------

# The model cut off at 200 places, most of them in its tables, must be refused each time.
size=$(stat -c %s "$POCKET")
positions=$(awk -v size="$size" 'BEGIN {
	srand(1)
	for (i = 0; i < 60; i++) print i * 7 + 4
	for (i = 0; i < 100; i++) print int(rand() * (size < 1200000 ? size : 1200000))
	for (i = 0; i < 36; i++) print int(rand() * size)
	print size - 1; print size - 32; print size - 4096; print int(size / 2)
}' | sort -rnu)
cp "$POCKET" "$work/cut.gguf"
for at in $positions; do
	truncate -s "$at" "$work/cut.gguf" # only ever shorter
	run -m "$work/cut.gguf" -p x -n 1
	error_is_one_sentence 3 cut.gguf
done

finish
