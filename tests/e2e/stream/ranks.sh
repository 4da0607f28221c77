#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The layers of the model on 1, 2 and 3 ranks of one host, which mpirun starts: logits, answers,
# sessions and a server's answers are those of one process. What cannot be is refused in a sentence.
# Ranks that are killed or stopped at random moments: every rank ends, the sentence names the one,
# sessions stay whole. That 8 times, four at a time; ROUNDS=20 does more.
# shellcheck disable=SC2317 # called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
command -v mpirun >/dev/null 2>&1 || skip 'no mpirun: apt-get install openmpi-bin'
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export TMPDIR=$work # of mpirun: in /tmp all mpirun of a user share a folder, which the one that ends deletes
mpi=(mpirun --oversubscribe --bind-to none)

# ranks N ARGS...: as `run`, of N ranks.
ranks() {
	local n=$1
	shift
	timeout -k 5 "${RUN_LIMIT:-300}" "${mpi[@]}" -np "$n" "$GLMSTREAM" "$@" >"$work/out" 2>"$work/err" </dev/null
	rc=$?
	said="mpirun -np $n glmstream $*"
}

# on N ARGS...: as `ranks`; one process alone is started without mpirun.
on() {
	if [ "$1" = 1 ]; then
		run "${@:2}"
	else
		ranks "$@"
	fi
}

ranks 2 --version
! grep -q 'built without MPI' "$work/err" || skip 'built without MPI'
exits 0
check "one rank of two speaks" [ "$(wc -l <"$work/out")" = 1 ]

# ---- the same logits ----
head -n 12 tests/data/pocket_ids.txt >"$work/ids"
logits() { # number of ranks, file, options: of all positions
	local n=$1 out=$2
	shift 2
	ranks "$n" dump-logits --backend cpu -m "$POCKET" --ids "$work/ids" --all -o "$work/$out" --force "$@"
	exits 0
}
logits 1 one.f32 --chunk 8
check "one rank has no plan of ranks" [ "$(grep -c '^rank ' "$work/err")" = 0 ]
logits 2 two.f32 --chunk 8
check "logits of 2 ranks" cmp -s "$work/one.f32" "$work/two.f32"
check "rank 1 has the first layers" grep -q '^rank 1 (.*): layers 0 to ' "$work/err"
check "rank 0 has the last layers" grep -q '^rank 0 (.*): layers [1-6] to 6, ' "$work/err"
ranks 2 dump-logits --backend cpu -m "$POCKET" --ids "$work/ids" --mtp-steps 2 -o "$work/drafts" --force
exits 0
check "and the MTP layer where it is wanted" grep -q '^rank 0 (.*): layers [1-6] to 6 and MTP' "$work/err"
# a prompt of several chunks: they follow each other through the ranks
last() { # number of ranks, file: of the last position
	on "$1" dump-logits --backend cpu -m "$POCKET" --ids "$work/ids" -o "$work/$2" --force --chunk 40
	exits 0
}
last 1 last.1
for n in 2 3; do
	last $n last.$n
	check "logits behind chunks on $n ranks" cmp -s "$work/last.1" "$work/last.$n"
done
ranks 2 bench prefill --backend cpu -m "$POCKET" -t 1 --chunk 40 --prompt 150 --seconds 0.01 --repeats 1 -q
exits 0
check "chunks in flight on 2 ranks" grep -q 'stages computing at a time, mean (2): 150 tokens' "$work/out"
logits 3 three.f32 --cache-gb 0.02 --ram-gb 0.01 --lookahead 2
check "logits of 3 ranks with caches" cmp -s "$work/one.f32" "$work/three.f32"
check "a cache of each" [ "$(grep -c '^rank .*, cache of ' "$work/err")" = 3 ]
logits 2 four.f32 --cards 0,0
check "logits of 2 ranks with 2 stages each" cmp -s "$work/one.f32" "$work/four.f32"

# ---- the same answers; a session goes on under another number of ranks ----
answer() { # number of ranks, file, options
	local n=$1 out=$2
	shift 2
	on "$n" --backend cpu -m "$POCKET" --temp 0 --think off -n 24 -p 'Define river.' -q "$@"
	exits 0
	check "an answer came" [ -s "$work/out" ]
	cp "$work/out" "$work/$out"
}
answer 1 first.1 --draft off --session "$work/one.session"
answer 2 first.2 --draft 3 --session "$work/two.session"
check "the answer of 2 ranks with drafts" cmp -s "$work/first.1" "$work/first.2"
cp "$work/two.session" "$work/three.session"
answer 1 second.1 --draft off --session "$work/one.session"
answer 1 second.2 --draft off --session "$work/two.session"
answer 3 second.3 --draft off --session "$work/three.session" --cache-gb 0.02
check "1 rank goes on where 2 stopped" cmp -s "$work/second.1" "$work/second.2"
check "3 ranks go on where 2 stopped" cmp -s "$work/second.1" "$work/second.3"

ranks 2 --backend cpu -m "$POCKET" --temp 0 --think off -n 4 -p 'Define river.' --json --cache-gb 0.02
exits 0
check "figures name the ranks" last_line_is_json "$work/err" ranks
check "and count the experts of all" python3 -c 'import json, sys
e = json.loads(open(sys.argv[1]).read().splitlines()[-1])
sys.exit(e["ranks"] != 2 or e["miss"] + e["hit_cache"] < 6 * 4 * 4)' "$work/err"

# ---- figures of each stage ----
ranks 2 bench decode --backend cpu -m "$POCKET" -t 1 --cards 0,0 --rows 1 --prompt 8 -n 6 --repeats 1 -q
exits 0
for where in 'stage 0 (layers 0 to [0-4], rank 1, card 0)' 'stage 1 (.*, rank 1, card 0)' \
	'stage 2 (.*, rank 0, card 0)' 'stage 3 (layers [3-6] to 6, rank 0, card 0)'; do
	check "$where" grep -q "^rows  *a step of 1: $where  *[0-9.]*[1-9][0-9.]* ms" "$work/out"
done

# ---- a profile counts the layers of all ranks ----
ranks 2 --backend cpu -m "$POCKET" --temp 0 --think off -n 8 -p 'Define river.' -q --cache-gb 0.02 --warm "$work/two.profile" --draft off
exits 0
run --backend cpu -m "$POCKET" --temp 0 --think off -n 8 -p 'Define river.' -q --cache-gb 0.02 --warm "$work/one.profile" --draft off
exits 0
check "the profile of 2 ranks is that of one" cmp -s "$work/one.profile" "$work/two.profile"

# ---- processes of ranks ----
# start N ARGS: $job of mpirun; the processes of the ranks: $pids, by rank.
start() {
	local n=$1 i pid
	shift
	"${mpi[@]}" -np "$n" "$GLMSTREAM" "$@" >"$work/out" 2>"$work/err" <"$work/turns" &
	job=$! said="mpirun -np $n glmstream $*"
	for ((i = 0; i < 2400; i++)); do
		pids=()
		for pid in $(pgrep -P $job); do
			i_am=$(tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | sed -n 's/^OMPI_COMM_WORLD_RANK=//p')
			[ -z "$i_am" ] || pids[i_am]=$pid
		done
		[ ${#pids[@]} != "$n" ] || return 0
		sleep 0.05
	done
	wrong "$n ranks did not start"
}
# A process that nobody waited for has ended too; a number may have been given to another one.
all_end() {
	local pid i
	for pid in "${pids[@]}"; do
		for ((i = 0; i < 2400; i++)); do
			{ grep -qs '^State:[[:space:]]*[^ZX]' "/proc/$pid/status" &&
				grep -qsz '^OMPI_COMM_WORLD_RANK=' "/proc/$pid/environ"; } || break
			sleep 0.05
		done
		[ "$i" != 600 ] || return 1
	done
}
yes 'Define another word, and say where it comes from.' | head -n 60 >"$work/turns"

# ---- a server with 8 clients ----
answers_health() { python3 -c 'import sys, urllib.request
urllib.request.urlopen(sys.argv[1] + "/health", timeout=60)' "$1"; }
serve() { # number of ranks, file
	local url='' i
	start "$1" serve --backend cpu -m "$POCKET" --port 0 --sessions 4 -c 512 --cache-gb 0.02
	for ((i = 0; i < 600 && ${#url} == 0; i++)); do
		sleep 0.1
		url=$(sed -n 's/^listening on //p' "$work/out")
	done
	python3 tests/e2e/stream/ranks_clients.py "$url" >"$work/$2" 2>>"$work/err"
	check "8 clients were answered" [ $? = 0 ]
	curl -s "$url/metrics" >"$work/metrics" 2>/dev/null || python3 -c 'import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1] + "/metrics").read().decode())' "$url" >"$work/metrics"
	if [ "$1" -gt 1 ]; then # rank 0 ends in order, however long that takes: it needs the others
		kill "${pids[1]}"
		[ "$1" != 2 ] || sleep 6
		check "SIGTERM does not end a rank that rank 0 needs" answers_health "$url"
	fi
	kill "${pids[0]}"
	wait $job
	rc=$?
	exits 0
	check "every rank ended" all_end
	check "without an error" [ "$(grep -c '^glmstream: ' "$work/err")" = 0 ]
}
serve 1 clients.1
for n in 2 3; do
	serve $n clients.$n
	check "8 clients of $n ranks" cmp -s "$work/clients.1" "$work/clients.$n"
done
check "no answer of several ranks is paused" grep -qx 'glmstream_preempted_bytes_limit 0' "$work/metrics"

# ---- what cannot be ----
ranks 2 inspect "$POCKET"
exits 2
check "inspect takes one process" grep -q '^glmstream: inspect works in one process' "$work/err"
ranks 2 bench ops
refused=$((rc == 2 || rc == 1)) # mpirun answers 1 if it ends a rank before that reports its status
check "bench ops is refused" [ "$refused" = 1 ]
check "bench ops too" grep -q '^glmstream: of bench mpirun can start only' "$work/err"
ranks 2 bench decode --backend cpu -m "$POCKET" -t 1 --draft 2 --cache-gb 0.01 -n 4 --repeats 1
check "bench decode with drafts and a cache opens two engines" \
	grep -q '^glmstream: of bench mpirun can start only' "$work/err"
ranks 2 dump-logits -m "$POCKET" --ids "$work/ids" -o "$work/x" --trace "$work/y"
exits 2
check "a trace takes one rank" grep -q -- '^glmstream: .*--trace .* takes one rank' "$work/err"
ranks 8 dump-logits --backend cpu -m "$POCKET" --ids "$work/ids" -o "$work/x"
exits 2
check "no more ranks than layers" grep -q '^glmstream: .*8 ranks make 8 stages, the model has 7 layers' "$work/err"
# ---- two ranks on one card ----
one_card=(dump-logits --backend cuda -m "$POCKET" --ids "$work/ids" -o "$work/x" --force)
run "${one_card[@]}"
if [ $rc != 0 ]; then
	skip_part 'two ranks on one card: no graphics card answers'
else
	ranks 2 "${one_card[@]}"
	exits 2
	check "two ranks on one card are named" grep -qE '^glmstream: rank 1 \(.*\): card 0 \(GPU-[0-9a-f-]{36}\) is also card 0 of rank 0 \(.*--cards$' "$work/err"
	ranks 2 "${one_card[@]}" --cards 0
	exits 0
	check "their rows go by MPI, and why" grep -qE '^rows of rank 1 \(.*\) come by MPI: (both ranks compute on one card|.*NCCL|.*nccl)' "$work/err"
	timeout -k 5 300 "${mpi[@]}" -np 1 "$GLMSTREAM" "${one_card[@]}" --cards 0 : \
		-np 1 "$GLMSTREAM" "${one_card[@]}" >"$work/out" 2>"$work/err" </dev/null
	rc=$? said='two ranks of which one names the card'
	exits 2
fi

# ---- files that are missing or differ ----
ranks 2 -p hello -m "$work/none.gguf"
check "a file that is missing" [ "$rc" = 3 ]
check "a file that is missing is named" grep -q '^glmstream: rank 0 (.*none.gguf' "$work/err"
"$GLMSTREAM" synth -o "$work/other.gguf" --like "$POCKET" >/dev/null 2>&1 || cp "$POCKET" "$work/other.gguf"
# the same shapes, one byte of a weight differs: in the middle of the file's last tensor
python3 - "$work/other.gguf" "$POCKET" <<'END'
import shutil, sys
shutil.copy(sys.argv[2], sys.argv[1])
with open(sys.argv[1], "r+b") as f:
    f.seek(24)
    data = bytearray(open(sys.argv[2], "rb").read(1 << 20))
    at = data.find(b"blk.0.attn_norm.weight")
    f.seek(at + 4)
    f.write(b"1")
    f.seek(data.find(b"blk.1.attn_norm.weight") + 4)
    f.write(b"0")
END
timeout -k 5 300 "${mpi[@]}" -np 1 "$GLMSTREAM" -p hello -m "$POCKET" --backend cpu : \
	-np 1 "$GLMSTREAM" -p hello -m "$work/other.gguf" --backend cpu >"$work/out" 2>"$work/err" </dev/null
rc=$? said='ranks with two files'
exits 1
check "a rank with another file is named" grep -q '^glmstream: rank 1 (.*): the model file is not that of rank 0' "$work/err"

# a rank that fails alone while rank 0 waits for its input, or loads
mkfifo "$work/never"
timeout -k 5 300 "${mpi[@]}" -np 1 "$GLMSTREAM" dump-logits -m "$POCKET" --ids "$work/never" -o "$work/x" : \
	-np 1 "$GLMSTREAM" dump-logits --no-such-option >"$work/out" 2>"$work/err" </dev/null
rc=$? said='ranks of which one has a wrong option'
exits 2
check "it names itself" grep -q '^glmstream: rank 1 (.*): .*no-such-option' "$work/err"

# ---- a step that fails on another rank ----
# a fifth of the way into the file: experts of layer 1
python3 - "$POCKET" "$work/damaged.gguf" <<'END'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
at = len(data) // 5
data[at:at + 4000] = bytes(x ^ 0x55 for x in data[at:at + 4000])
open(sys.argv[2], "wb").write(data)
END
cp "$POCKET.xxh3" "$work/damaged.gguf.xxh3"
damaged=(-p 'Define river.' -m "$work/damaged.gguf" --backend cpu -q -n 40 --think off --temp 0)
run "${damaged[@]}"
exits 1
fault=$(sed -n 's/^glmstream: //p' "$work/err")
ranks 2 "${damaged[@]}"
exits 1
check "the fault of rank 1 is that of one process" grep -q "^glmstream: rank 1 (.*): ${fault:-?}" "$work/err"

# ---- rank 0 dies while it writes ----
# interrupted NUMBER HOW ARGS: of 2 ranks, rank 0 under fail_write.
interrupted() {
	timeout -k 5 300 "${mpi[@]}" -np 1 "$work/fail_write" "$1" "$2" "$GLMSTREAM" "${@:3}" : \
		-np 1 "$GLMSTREAM" "${@:3}" >"$work/out" 2>"$work/err" </dev/null
	rc=$? said="rank 0 of 2, call $1: $2: glmstream ${*:3}"
}
c_tool fail_write
for ((i = 0; i < 60; i++)); do echo "The river number $i runs to the sea."; done >"$work/long"
writes=(--backend cpu -m "$POCKET" --temp 0 --think off -n 2 -q -c 900 --draft off)
run "${writes[@]}" -f "$work/long"
exits 0
cp "$work/out" "$work/long.answer"
for what in session store; do
	to=(-p 'Define stone.' --session "$work/torn.session")
	[ $what = session ] || to=(-f "$work/long" --session-dir "$work/store")
	cp "$work/one.session" "$work/torn.session"
	interrupted 0 EIO "${writes[@]}" "${to[@]}"
	[ $rc != 77 ] || {
		skip_part 'system calls cannot be traced here'
		break
	}
	exits 0
	# the kind of the calls that write to a file, then what makes the file visible
	kind=$(sed -n 's/^short [0-9]*: *k\([0-9]*\).*/\1/p' "$work/err")
	check "it writes a $what" [ -n "$kind" ]
	for how in torn KILL; do
		# MPI has files too, and not the same in each run: if this one has fewer kinds, an earlier one
		[ $how = torn ] || kind=$((kind + 1))
		killed_at=${kind:-0} rc=0
		while [ $rc = 0 ] && [ "$killed_at" -gt 0 ]; do
			rm -rf "$work/store"
			cp "$work/one.session" "$work/torn.session"
			interrupted "k$killed_at" $how "${writes[@]}" "${to[@]}"
			killed_at=$((killed_at - 1))
		done
		check "the status is that of a killed rank" [ $rc = 137 ]
		run "${writes[@]}" "${to[@]}"
		said="$said, after $how"
		exits 0
		check "nothing is damaged" [ "$(grep -c 'damaged\|removed' "$work/err")" = 0 ]
		[ $what = session ] || check "the answer is the same" cmp -s "$work/out" "$work/long.answer"
	done
done

# ---- ranks that die or hang ----
# What is interrupted: answers of a session in even rounds, a server with 8 clients in odd ones.
begin_work() { # number of the round
	if [ $(($1 % 2)) = 0 ]; then
		start 3 --backend cpu -m "$POCKET" --temp 0 --think off -n 48 -c 4096 \
			--session "$work/lost.session" --draft off
		return
	fi
	local url='' i
	start 3 serve --backend cpu -m "$POCKET" --port 0 --sessions 4 -c 1024
	for ((i = 0; i < 600 && ${#url} == 0; i++)); do
		sleep 0.1
		url=$(sed -n 's/^listening on //p' "$work/out")
	done
	python3 tests/e2e/stream/ranks_clients.py "$url" >/dev/null 2>&1 &
}
# What hangs while MPI starts cannot be named, and mpirun itself may hang when a rank is killed then
# (Open MPI 4.1.4): ranks are interrupted once each has mapped the model.
mpi_started() {
	local pid i
	for pid in "${pids[@]}"; do
		for ((i = 0; i < 2400; i++)); do
			! grep -qs 'pocket.gguf' "/proc/$pid/maps" || break
			sleep 0.05
		done
		[ "$i" != 600 ] || return 1
	done
}
# round NUMBER SIGNAL RANK DELAY, of 3 ranks.
round() {
	local began number=$1
	cp "$work/one.session" "$work/lost.session"
	begin_work "$number"
	shift
	check 'the ranks open the model' mpi_started
	sleep "$3"
	began=$(date +%s%N)
	kill "-$1" "${pids[$2]}" 2>/dev/null
	timeout -k 1 300 tail --pid=$job -f /dev/null
	check "every rank ended" all_end
	wait $job
	rc=$?
	echo $((($(date +%s%N) - began) / 1000000)) >"$work/ms"
	said="$1 of rank $2 after $3 s"
	check "the status is not 0" [ $rc != 0 ]
	if [ "$1" = STOP ]; then
		exits 1
		check "the rank that hangs is named" grep -q "rank $2 (.*) has not answered" "$work/err"
	else
		check "the rank that was killed is named" grep -qE "process rank $2 |rank $2 \([^)]*\) (has|MPI)" "$work/err"
	fi
	# only answers keep a session
	[ $((number % 2)) != 0 ] || answer 1 after --session "$work/lost.session" --draft off
}

# A round in a folder of its own, beside others: what was wrong goes to `log`, the counts to `counts`.
round_beside() { # as round
	work=$work/round.$1 n_checks=0 n_wrong=0
	mkdir "$work"
	cp "$work/../one.session" "$work/../turns" "$work"
	round "$@" >"$work/log"
	echo "$n_checks $n_wrong" >"$work/counts"
}

ROUNDS=${ROUNDS:-8} BESIDE=4
RANDOM=4711
for ((k = 0; k < ROUNDS; k++)); do
	signal=KILL
	[ $((k % 3)) != 2 ] || signal=STOP
	round_beside $k $signal $((k % 4 == 0 ? 1 : RANDOM % 3)) "0.$((RANDOM % 10))" &
	[ $((k % BESIDE)) != $((BESIDE - 1)) ] || wait
done
wait
longest=0
for ((k = 0; k < ROUNDS; k++)); do
	cat "$work/round.$k/log"
	read -r checks bad <"$work/round.$k/counts"
	n_checks=$((n_checks + checks)) n_wrong=$((n_wrong + bad))
	ms=$(cat "$work/round.$k/ms")
	[ "$ms" -le "$longest" ] || longest=$ms
done
echo "$ROUNDS rounds, the longest end took $longest ms"
finish
