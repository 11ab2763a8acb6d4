"""What is known of commands that carry other commands or write files: one line for each, its name first."""

from __future__ import annotations


def _table(text: str) -> dict[str, tuple[str, ...]]:
    """Lines of `name word word ...` as a table."""
    rows = [line.split() for line in text.strip().splitlines()]
    return {row[0]: tuple(row[1:]) for row in rows}


SHELLS = frozenset(["sh", "bash", "zsh", "dash", "ksh", "mksh", "ash", "fish", "rbash", "csh", "tcsh"])

# Commands whose remaining words are a command, each with its option letters that take no value.
PREFIXES = _table("""
sudo AbBEeHiKklNnPSsvV
doas Lns
env i0v
nice
nohup
timeout vfp
time apv
command pvV
builtin
exec cl
xargs 0rtpxo
parallel kqtvX0u
stdbuf
setsid cfw
ionice t
chroot
strace fqvxyTtrwCcdDiknS
ltrace fSiLrtC
watch bcdegtxprw
unbuffer p
flock sxunFo
su lmpPf
runuser lmpPf
pkexec
busybox
toybox
caffeinate dimsu
chrt abdfimorv
taskset acp
numactl
prlimit
systemd-run qSPdtG
unshare muipnUCTfrc
nsenter amuipnCUTrwF
firejail
bwrap
fakeroot
torsocks
proxychains q
proxychains4 q
entr acdnprsz
ssh 46AaCfGgKkMNnqsTtVvXxYy
rsh n
coproc
trap lp
eval
source
.
alias p
hyperfine
script aefq
npx y
bunx
pnpx
uvx
pipx
nix-shell
tmux
screen
xterm
open
xdg-open
osascript
at
batch
crontab
""")
# Options and subcommands that run code or another command.
CODE = _table("""
python -c
perl -e -E -n -p -i -M -m
ruby -e -n -p -i -r
node -e -p --eval --print -r --require --import
deno eval
bun -e -p --eval x
php -r -B -R -E
lua -e
R -e
Rscript -e
julia -e -E
tclsh
make --eval -f -E
gdb -ex -x --eval-command
vim -c -S + --cmd
vi -c -S + --cmd
nvim -c -S + --cmd
emacs --eval -eval -f -l --batch
ed
ex
expect -c
less +
tar --to-command --checkpoint-action -I --use-compress-program --rsh-command -F --info-script
rsync -e --rsh --rsync-path
scp -S -o
sftp -S -o
rg --pre --hostname-bin
ag --pager
man -P --pager -H
sort --compress-program
zip -TT --unzip-command
fd -x -X --exec --exec-batch
fdfind -x -X --exec --exec-batch
npm exec x
pnpm exec dlx
yarn exec dlx
uv run
cargo --config
go -exec -toolexec -vettool
docker run exec
podman run exec
kubectl run exec
sqlite3 -cmd
""")
# Options that write or delete files, of commands that people take for readers.
WRITES = _table("""
find -delete -fprint -fprint0 -fprintf -fls
git --output --output-directory
sort -o --output
tree -o
curl -o -O --output --remote-name --remote-name-all --output-dir -D --dump-header -c --cookie-jar -K --config
wget -O -o -P --output-document --output-file --directory-prefix
yq -i --inplace
sed -i --in-place
perl -i
ruby -i
diff --output
xxd -r
less -o -O --log-file
date -s --set
gofmt -w
shfmt -w --write
clang-format -i
file -C --compile
""")
