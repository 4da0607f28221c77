#!/bin/sh
# SPDX-License-Identifier: MIT
# Puts the built program, its model, manual, completions and systemd unit in place, or takes them away again:
#   tools/scripts/install.sh install|uninstall BUILD_DIR PREFIX [DESTDIR]
# Manual and completions are written by the program itself, from its option tables.
set -eu
what=$1 build=$2 prefix=$3 dest=${4:-}
cd "$(dirname "$0")/../.."

program=bin/glmstream
model=share/glmstream/pocket.gguf
values=$model.xxh3 # its check values are found beside it
routing=share/glmstream/glm52-routing.gltr1
manual=share/man/man1/glmstream.1
bash=share/bash-completion/completions/glmstream
zsh=share/zsh/site-functions/_glmstream
unit=lib/systemd/system/glmstream.service

put() { # source, mode, place below the prefix
	install -D -m "$2" "$1" "$dest$prefix/$3"
	echo "  $dest$prefix/$3"
}

case $what in
install)
	made=$(mktemp -d)
	trap 'rm -rf "$made"' EXIT
	"$build/glmstream" help --man >"$made/man"
	"$build/glmstream" help --bash >"$made/bash"
	"$build/glmstream" help --zsh >"$made/zsh"
	sed "s|@PREFIX@|$prefix|" tools/share/glmstream.service >"$made/unit"
	put "$build/glmstream" 755 $program
	if [ -f tools/pocket/pocket.gguf ]; then
		put tools/pocket/pocket.gguf 644 $model
		put tools/pocket/pocket.gguf.xxh3 644 $values
	fi
	put tools/share/glm52-routing.gltr1 644 $routing
	put "$made/man" 644 $manual
	put "$made/bash" 644 $bash
	put "$made/zsh" 644 $zsh
	put "$made/unit" 644 $unit
	;;
uninstall)
	for f in $program $model $values $routing $manual $bash $zsh $unit; do
		rm -f "$dest$prefix/$f"
	done
	rmdir "$dest$prefix/share/glmstream" 2>/dev/null || :
	;;
*)
	echo "install.sh: install or uninstall, not '$what'" >&2
	exit 2
	;;
esac
