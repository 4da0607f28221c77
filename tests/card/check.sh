#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What a machine with a card checks besides `make test`. There a test that can compute on the CPU
# does so; here it computes on the card.
#
#   tests/card/check.sh BUILD_DIR STEP ...
#
#   correct     every test that computes on a card when asked to; scripts that need a card; ONLY, if
#               set, is a pattern (grep -E) for the lines of list_correct that run
#   cards       the tests of stages over cards 0 and 1
#   memory      compute-sanitizer: memcheck, initcheck and racecheck of the ops. Besides, of a build
#               with CPPFLAGS=-DCUDA_RACECHECK: compute-sanitizer --tool racecheck
#               --num-cuda-barriers 64 BUILD_DIR/tests/test_backend_parity brief test_deferred
#   blocks      10^6 quantised blocks of each type
#   prompts     figures of tests/bench/RESULTS.md: prompts and their products, 11 layers
#   full        prompts, 78 layers: the first of 8,192 tokens finds nothing cached, the others fill
#               both tiers; needs 23 GB of disk
#   stop        78 layers: how soon a prompt of 18,000 tokens ends when its client leaves
#   kv_ram      prompts, 78 layers, with the latents in host memory
#   rows        several rows in a step, and drafts, 11 layers
#   profile     where a step of 4, 8 and 32 rows spends its time, kernel by kernel (ncu), 11 layers
#   start       78 layers: the first, 64th and 512th token of a fresh start, without and with the
#               profile of an earlier run; needs 23 GB of disk
#   decode      78 layers, with and without drafts and the processor; needs 23 GB of disk
#   lane        78 layers of 128 experts, all in the second tier or the card: with and without the
#               processor; needs 23 GB of disk
#   two         78 layers on cards 0 and 1
#
# Units of "correct" run CARD_JOBS (4) at a time, all others alone. A unit's line has its time. The
# log of a unit is printed if it failed, was skipped or is a figure; all logs stay in
# BUILD_DIR/card-logs. The last line counts the units and names the failed; exit status 1 if there
# are any.
#
# Environment: CARD_TIMEOUT, seconds that a unit may take (500); MODELS, the folder for the models of
# `synth`, which stay there (BUILD_DIR/card-models).
set -u
build=$(realpath "${1:?usage: tests/card/check.sh BUILD_DIR STEP ...}") || exit 2
shift
cd "$(dirname "$0")/../.." || exit 1
export GLMSTREAM=$build/glmstream
export GLMSTREAM_ROUTING=${GLMSTREAM_ROUTING:-$PWD/tools/share/glm52-routing.gltr1}
logs=$build/card-logs models=${MODELS:-$build/card-models} limit=${CARD_TIMEOUT:-500}
mkdir -p "$logs" "$models" build || exit 1 # tests write to build/
rm -f "$logs"/*.verdict
export logs limit

unit() { # name, show (always, failed), command ...
	local name=$1 show=$2 start=$SECONDS rc
	shift 2
	timeout "$limit" "$@" >"$logs/$name.log" 2>&1
	rc=$?
	case $rc in 0) verdict=ok ;; 77) verdict=skip ;; *) verdict=FAIL ;; esac
	echo "$verdict $name" >"$logs/$name.verdict"
	{
		printf '%-4s %-28s %4d s  %s\n' $verdict "$name" $((SECONDS - start)) \
			"$([ $verdict = ok ] || echo "exit status $rc")"
		if [ "$show" = always ] || [ $verdict != ok ]; then
			sed 's/^/     /' "$logs/$name.log"
		fi
	}
}
export -f unit

list_correct() { # name, command
	local t=$build/tests
	for n in backend_parity observed_card expert_bits prompt_passes prompt_rows; do
		echo "test_$n $t/test_$n"
	done
	echo "golden $t/test_forward_golden tools/pocket/pocket.gguf tests/data/pocket_golden cuda"
	echo "test_stream_logits $t/test_stream_logits cuda"
	echo "test_backend_draw $t/test_backend_draw cuda"
	for n in kv_ram fetch_rows quantize_cuda; do
		echo "test_$n $t/test_$n"
	done
	for n in stages prompt_chunks hand_over micro_batches verify generate_drafts serve_drafts \
		host_experts session_file prefix_store; do
		echo "test_$n env GLM_BACKEND=cuda $t/test_$n"
	done
	echo "prompt_passes.sh tests/e2e/logits/prompt_passes.sh"
	echo "card_folder.sh tests/e2e/stream/card_folder.sh"
}

list_alone() { # takes all of the card's memory
	echo "card_memory.sh tests/e2e/trust/card_memory.sh"
}

# shellcheck disable=SC2016 # the inner shell expands these
run_units() { # how many at a time; lines of name and command on standard input
	xargs -d '\n' -P "$1" -I{} bash -c 'read -r name command <<<"{}"; unit "$name" failed $command'
}

step_correct() {
	list_correct | grep -E -- "${ONLY:-.}" | run_units "${CARD_JOBS:-4}"
	list_alone | grep -E -- "${ONLY:-.}" | run_units 1
}

step_cards() {
	for n in stages prompt_chunks hand_over micro_batches; do
		unit "cards_$n" failed env GLM_BACKEND=cuda GLM_CARDS=0,1 "$build/tests/test_$n"
	done
}

step_memory() {
	local check=(compute-sanitizer --error-exitcode 9 --report-api-errors no) # allocations are refused on purpose
	unit memcheck failed "${check[@]}" --tool memcheck "$build/tests/test_backend_parity" small
	unit initcheck failed "${check[@]}" --tool initcheck "$build/tests/test_backend_parity" small
	unit racecheck failed "${check[@]}" --tool racecheck \
		"$build/tests/test_backend_parity" small test_every_case
	unit memcheck_observed failed "${check[@]}" --tool memcheck "$build/tests/test_observed_card"
}

step_blocks() {
	unit blocks failed "$build/tests/test_quantize_cuda" 1000000
}

model() { # layers, experts (256): $file, made once
	local name=m$1${2:+_$2}
	file=$models/$name.gguf
	[ -e "$file" ] && return
	unit "synth_$name" failed "$GLMSTREAM" synth -o "$file.part" --recipe iq2 --layers "$1" \
		--expert-count "${2:-256}" --alias 1 --tokenizer tools/pocket/pocket.gguf -q --force
	grep -q '^ok' "$logs/synth_$name.verdict" && mv "$file.part" "$file"
}

bench() { # name, arguments
	local name=$1
	shift
	unit "$name" always "$GLMSTREAM" bench "$@" --backend cuda
}

step_prompts() {
	model 11 || return
	bench prompts prefill -m "$file" -p 512,2048,8192 -c 8448 --chunk 8192 --repeats 2
	bench prompts_exact prefill -m "$file" -p 8192 -c 8448 --chunk 8192 --repeats 1 --exact-prompts
	bench prompts_long prefill -m "$file" -p 131072 -c 131328 --chunk 8192 --repeats 1
	bench prompts_ops ops --only prompt --repeats 3 --seconds 0.02
}

# of a model of 78 layers on one card, whose file is read from the page cache
whole=(--cache-gb auto --ram-gb auto --no-direct --io threads --verify off)

step_full() {
	local some=("${whole[@]}" --warm "$models/full.profile")
	model 78 || return
	rm -f "$models/full.profile"
	bench full_profile decode -m "$file" "${some[@]}" --routing shipped -c 2048 -n 1400 --repeats 1 \
		--most-seconds 18
	bench full_prompts prefill -m "$file" "${some[@]}" -p 8192,32768,512 -c 33024 --chunk 8192 \
		--repeats 3
}

step_stop() {
	model 78 || return
	unit stop always python3 tests/card/stop.py "$file" --backend cuda "${whole[@]}" -c 24576 \
		--chunk 8192
}

step_kv_ram() {
	model 78 || return
	bench kv_ram prefill -m "$file" "${whole[@]}" --kv-ram on -p 8192,32768 -c 33024 --chunk 8192 \
		--repeats 2
}

step_rows() {
	model 11 || return
	bench rows decode -m "$file" --rows 1,4,8,16,32,64 -p 64 -n 60 --repeats 2 --verify off
	bench rows_temp decode -m "$file" --rows 1,8,32 --temp 1 -p 64 -n 60 --repeats 1 --verify off
	bench rows_drafts decode -m "$file" -p 1 -n 600 --resident 256 --repeats 1 --verify off \
		--accept 0.72,0.60,0.50
}

step_profile() {
	model 11 || return
	for rows in 4 8 32; do
		# shellcheck disable=SC2016 # the inner shell expands it
		unit "profile_$rows" always bash -c 'ncu --csv --print-units base --clock-control none \
			--graph-profiling node --metrics gpu__time_duration.sum,dram__bytes_read.sum \
			--launch-skip 8000 --launch-count 1000 "$GLMSTREAM" bench decode -m "$1" --backend cuda \
			--rows "$2" -p 16 -n 100 --repeats 1 --verify off >"$3" 2>&1
			tests/card/kernels.py "$3"' profile "$file" "$rows" "$logs/profile_$rows.csv"
	done
}

step_start() {
	local some=("${whole[@]}" -c 2048 -n 600 --repeats 1 --most-seconds 22 --routing shipped)
	model 78 || return
	rm -f "$models/start.profile"
	bench start_without decode -m "$file" "${some[@]}" --warm "$models/start.profile"
	bench start_with decode -m "$file" "${some[@]}" --warm "$models/start.profile"
}

step_decode() {
	local some=("${whole[@]}" -c 2048 -n 1400 --repeats 1 --routing shipped --most-seconds 26)
	model 78 || return
	bench plain decode -m "$file" "${some[@]}" --cpu-experts off
	bench lane decode -m "$file" "${some[@]}" --cpu-experts auto
	bench drafts decode -m "$file" "${some[@]}" --accept 0.72 --cpu-experts off
	bench drafts_lane decode -m "$file" "${some[@]}" --accept 0.72 --cpu-experts auto
}

step_lane() {
	local some=(--cache-gb 12 --ram-gb 90 --no-direct --io threads --verify off --resident 128
		-c 2048 -n 400 --repeats 1 --most-seconds 30)
	model 78 128 || return
	bench lane_off decode -m "$file" "${some[@]}" --cpu-experts off
	bench lane_auto decode -m "$file" "${some[@]}" --cpu-experts auto
}

step_two() {
	local two=(--cards "0,1" --verify off --no-direct --io threads)
	model 78 || return
	bench two_copy copy --cards 0,1 --repeats 3
	bench two_rows decode -m "$file" "${two[@]}" -c 2048 -p 16 -n 60 --rows 1,8,32,64
	bench two_drafts decode -m "$file" "${two[@]}" --resident 256 --accept 0.72,0.60,0.50 \
		-p 1 -n 300
	bench two_prompts prefill -m "$file" --cards 0,1 --chunk 2048 -p 8192,32768 -c 34000
}

[ $# -gt 0 ] || set -- correct
for step in "$@"; do
	[ "$(type -t "step_$step")" = function ] || {
		echo "check.sh: no step \"$step\"" >&2
		exit 2
	}
done
for step in "$@"; do
	echo "==== $step"
	"step_$step"
done
failed=$(cat "$logs"/*.verdict | sed -n 's/^FAIL //p' | tr '\n' ' ')
printf '%d ok, %d skipped, failed: %s\n' "$(grep -l '^ok' "$logs"/*.verdict | wc -l)" \
	"$(grep -l '^skip' "$logs"/*.verdict | wc -l)" "${failed:-none}"
[ -z "$failed" ]
