#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The HTTP server with the official openai and anthropic Python clients and with other programs
# (serve_clients.py). $SERVE_PYTHON names the Pythons that have them, with blanks between, else
# python3; .ci/run makes them. Skips without any.
set -u
cd "$(dirname "$0")/../../.." || exit 1
worst=77
for python in ${SERVE_PYTHON:-python3}; do
	command -v "$python" >/dev/null 2>&1 || {
		echo "no $python"
		continue
	}
	"$python" tests/e2e/serve/serve_clients.py
	case $? in
	0) [ $worst != 77 ] || worst=0 ;;
	77) ;;
	*) worst=1 ;;
	esac
done
exit $worst
