# SPDX-License-Identifier: MIT
# shellcheck shell=bash disable=SC2034 # used by the scripts
# For the end-to-end scripts, sourced: runs the program, keeps what it printed, counts what was
# wrong. $GLMSTREAM names the program (the runner of the tests sets it), $POCKET the model.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../../.." || exit 1
export PYTHONPATH=$PWD/tests/e2e/lib # modules that several folders import
GLMSTREAM=${GLMSTREAM:-$PWD/build/release/glmstream}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HOME=$work # no history file of the user is touched
unset XDG_STATE_HOME XDG_CACHE_HOME GLMSTREAM_POCKET
n_checks=0 n_wrong=0

skip() { # what was wrong so far counts all the same
	[ $n_wrong = 0 ] || finish
	echo "$1"
	exit 77
}

# A part that this machine cannot test; tests/run_tests.sh counts these lines.
skip_part() {
	printf '[  SKIPPED ] %s\n' "$1"
}

cannot_test() {
	echo "$1"
	exit 1
}

[ -x "$GLMSTREAM" ] || cannot_test "no program at ${GLMSTREAM#"$PWD"/}"
command -v python3 >/dev/null 2>&1 ||
	cannot_test "no python3: tools/scripts/install_deps.sh test installs it"

# small_shape KEY=NUMBER...: $work/shape.json, the config.json of a model that is small enough for a
# test (`synth --shape`), with these numbers in place of its own.
small_shape() {
	python3 - "$@" >"$work/shape.json" <<'END' || cannot_test "no shape: $*"
import json, sys
shape = {
    "model_type": "glm_moe_dsa", "hidden_act": "silu", "num_hidden_layers": 6, "num_nextn_predict_layers": 1,
    "hidden_size": 256, "vocab_size": 8500, "max_position_embeddings": 4096, "num_attention_heads": 4,
    "q_lora_rank": 256, "kv_lora_rank": 256, "qk_nope_head_dim": 96, "qk_rope_head_dim": 32, "v_head_dim": 64,
    "index_n_heads": 4, "index_head_dim": 64, "index_topk": 64, "index_topk_freq": 4, "index_skip_topk_offset": 3,
    "rms_norm_eps": 1e-5, "rope_theta": 8000000, "first_k_dense_replace": 3, "intermediate_size": 512,
    "moe_intermediate_size": 256, "n_routed_experts": 8, "num_experts_per_tok": 4, "n_shared_experts": 1,
    "routed_scaling_factor": 2.5, "norm_topk_prob": True}
for key, number in (a.split("=") for a in sys.argv[1:]):
    if key not in shape:
        sys.exit("no key " + key)
    shape[key] = int(number)
print(json.dumps(shape))
END
}

# small_model: $work/small.gguf with random weights, for tests in which prompts must cost little.
small_model() {
	small_shape num_hidden_layers=2 first_k_dense_replace=1
	run synth -o "$work/small.gguf" --shape "$work/shape.json" -q
	[ "$rc" = 0 ] || cannot_test "no small model"
}

# The pocket model of the tree.
need_pocket() {
	POCKET=$PWD/tools/pocket/pocket.gguf
	[ -f "$POCKET" ] || cannot_test "no pocket model in tools/pocket (make pocket)"
}

# c_tool NAME [FLAGS]: compiles tests/e2e/lib/NAME.c as $work/NAME (NAME.so from the same source).
c_tool() {
	local cc=${CC-}
	cc=$(command -v "${cc##* }" || command -v cc || command -v gcc || command -v clang) ||
		skip "no C compiler"
	"$cc" -O1 "${@:2}" -o "$work/$1" "tests/e2e/lib/${1%.so}.c" || cannot_test "$1 does not compile"
}

# $work/fail_alloc.so, for LD_PRELOAD.
need_fail_alloc() {
	case $GLMSTREAM in *san-*) skip "a sanitizer has allocation of its own" ;; esac
	c_tool fail_alloc.so -shared -fPIC
}

# Only `serve` depends on a library that may be missing.
has_command() {
	"$GLMSTREAM" --help | grep -q "^  $1 "
}

# run ARGS...: $rc, $work/out, $work/err; stdin is empty unless redirected by the caller. A run of
# more than 300 s ends.
run() {
	timeout -k 5 "${RUN_LIMIT:-300}" "$GLMSTREAM" "$@" >"$work/out" 2>"$work/err"
	rc=$?
	said="glmstream $*"
}

wrong() {
	n_wrong=$((n_wrong + 1))
	printf 'WRONG: %.300s\n  after: %.300s (exit status %s)\n' "$1" "${said:-}" "${rc:-}"
	sed 's/^/  stderr: /' "$work/err" 2>/dev/null | cut -c1-300 | head -n 8
}

# check TEXT CONDITION...: the condition is a command.
check() {
	local text=$1
	shift
	n_checks=$((n_checks + 1))
	"$@" || wrong "$text"
}

exits() { # status, of the run before
	check "expected exit status $1" [ "$rc" = "$1" ]
}

# An error is one line "glmstream: ...", perhaps a hint on the next, says nothing on stdout, and is
# no crash.
error_is_one_sentence() { # exit status, pattern that stderr must match (optional)
	exits "$1"
	check "an error belongs on stderr alone" [ ! -s "$work/out" ]
	check "an error is one line and perhaps a hint" error_lines
	[ $# -lt 2 ] || check "the message should match: $2" grep -qE -- "$2" "$work/err"
}

# One error, at most one hint, no report of a sanitizer. In the shell alone: thousands of checks call it.
error_lines() {
	local line errors=0 hints=0
	while IFS= read -r line || [ "$line" ]; do
		case $line in
		*Sanitizer* | *'runtime error'* | 'bug: '*) return 1 ;;
		'glmstream: '?*) errors=$((errors + 1)) ;;
		'hint: '*) hints=$((hints + 1)) ;;
		esac
	done <"$work/err"
	[ $errors = 1 ] && [ $hints -le 1 ]
}

# The last line of a file is a JSON object with these keys.
last_line_is_json() { # file, keys...
	local line
	line=$(tail -n 1 "$1")
	shift
	printf '%s' "$line" | python3 -c 'import json, sys
o = json.loads(sys.stdin.read())
missing = [k for k in sys.argv[1:] if k not in o]
if missing:
    sys.exit("no key " + " ".join(missing))' "$@"
}

finish() {
	echo "$n_checks checks, $n_wrong wrong"
	[ $n_wrong = 0 ]
	exit
}
